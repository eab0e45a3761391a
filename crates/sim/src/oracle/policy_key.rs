//! Keys of policies, as compared and shown by the databases.

use xfrm::{PolicyKey, PortMask, Selector};

/// Key of a policy in the databases' form: without port bits outside of the mask.
pub(super) fn known(key: PolicyKey) -> PolicyKey {
    let port = |it: PortMask| PortMask { port: it.port & it.mask, ..it };
    let Selector { sport, dport, .. } = key.selector;
    PolicyKey { selector: Selector { sport: port(sport), dport: port(dport), ..key.selector }, ..key }
}

/// Tells whether two keys name one policy.
pub(super) fn same(a: &PolicyKey, b: &PolicyKey) -> bool {
    known(*a) == known(*b)
}
