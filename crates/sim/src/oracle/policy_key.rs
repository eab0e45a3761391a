//! Keys of policies, as the databases compare and show them.

use xfrm::{PolicyKey, PortMask, Selector};

/// Key of a policy as the databases show it: without port bits outside of the mask.
pub(super) fn known(key: PolicyKey) -> PolicyKey {
    let port = |it: PortMask| PortMask { port: it.port & it.mask, ..it };
    let Selector { sport, dport, .. } = key.selector;
    PolicyKey { selector: Selector { sport: port(sport), dport: port(dport), ..key.selector }, ..key }
}

/// Tells whether two keys are of one policy.
pub(super) fn same(a: &PolicyKey, b: &PolicyKey) -> bool {
    known(*a) == known(*b)
}
