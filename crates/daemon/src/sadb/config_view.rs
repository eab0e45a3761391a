//! SAs of netlink clients in the form of a configuration file, for `fatpath show`.

use std::collections::HashSet;

use base::SaId;
use xfrm::{Aevents, SaConfig};

use crate::node::Node;
use crate::records::SaRecord;

/// SAs that netlink clients have added, in the form of a file and the oldest first; without those of `known`.
pub(crate) fn added_sas<'a>(
    node: &'a Node,
    known: &'a HashSet<SaId>,
) -> impl Iterator<Item = (SaConfig, &'a ipsec::Sa)> {
    let sas = node.datapath.ipsec.sad().by_birth(u64::MAX).map(|(_, sa)| sa);
    let added = sas.filter(|sa| !known.contains(&sa.id()));
    added.filter_map(|sa| Some((config(sa)?, sa)))
}

/// Configuration of an SA in its present state, with the algorithm of the request that created it.
fn config(sa: &ipsec::Sa) -> Option<SaConfig> {
    Some(SaConfig {
        src: sa.src(),
        dst: sa.dst(),
        spi: sa.spi(),
        dir: sa.dir(),
        mode: sa.mode(),
        reqid: sa.reqid(),
        algorithm: sa.request::<SaRecord>()?.request.algorithm.clone(),
        replay_window: sa.replay().size(),
        flags: sa.flags(),
        encap: sa.encap(),
        selector: sa.selector().copied(),
        seq: sa.replay().top(),
        oseq: sa.oseq(),
        mark: sa.mark(),
        output_mark: sa.output_mark(),
        if_id: sa.if_id(),
        lifetime: sa.lifetime(),
        tfcpad: sa.tfcpad(),
        nat: sa.nat(),
        acquire_seq: 0,
        aevents: Aevents::default(),
        offload: None,
        request: None,
    })
}
