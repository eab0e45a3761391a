//! SAs of netlink clients in the form of a configuration file, for `fatpath show`.

use xfrm::{Aevents, SaConfig};

use crate::records::SaRecord;

/// Configuration of an SA in its present state, with the algorithm of the request that created it.
pub(crate) fn config(sa: &ipsec::Sa) -> Option<SaConfig> {
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
