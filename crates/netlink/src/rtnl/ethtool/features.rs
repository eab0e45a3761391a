//! Features of a link: `ethtool -k`, `-K` (Linux `net/ethtool/ioctl.c`, `__netdev_update_features`).

use base::PortId;
use nlsock::ethtool::{FEATURE_WORDS, command};

use super::target::{Answer, Target, unsupported};
use crate::error::{Error, errno};
use crate::rtnl::backend::Backend;
use crate::rtnl::header::word;
use config::features::FeatureSet;

/// Flag: some of the requested features cannot be switched on this link (`ETHTOOL_F_UNSUPPORTED`).
const UNSUPPORTED: u32 = 1;
/// Flag: some of the requested features take effect only when other features allow them (`ETHTOOL_F_WISH`).
const WISH: u32 = 2;

/// Named features that no device ever changes (`NETIF_F_NEVER_CHANGE`).
const NEVER_CHANGED: FeatureSet = FeatureSet::VLAN_CHALLENGED;

/// `ETH_FLAG_*`: hardware VLANs out and in, LRO, filters, hashes. No link supports any.
const ETH_FLAGS: u32 = 1 << 7 | 1 << 8 | 1 << 15 | 1 << 27 | 1 << 28;

/// Features of a link: switchable, requested, and enabled ones.
#[derive(Clone, Copy, Debug)]
struct Now {
    can: FeatureSet,
    wanted: FeatureSet,
    on: FeatureSet,
}

pub(super) fn carry_out<B: Backend>(target: &mut Target<'_, B>, command: u32, block: &[u8]) -> Result<Answer, Error> {
    match command {
        command::GFEATURES => Ok(all(now(target)?, word(&block[4..]))),
        command::SFEATURES => set(target, block),
        command::GFLAGS => Ok(Answer::value(command, 0)),
        command::SFLAGS => match word(&block[4..]) {
            0 => Ok(Answer::default()),
            flags if flags & !ETH_FLAGS != 0 => Err(Error::new(errno::EINVAL)),
            _ => Err(unsupported()),
        },
        _ => match of_pair(command) {
            Some((of, false)) => {
                let on = now(target)?.on & of;
                Ok(Answer::value(command, u32::from(!on.is_empty())))
            }
            Some((of, true)) => {
                let now = now(target)?;
                if (of & now.can).is_empty() {
                    return Err(unsupported());
                }
                let wanted = of.only_if(word(&block[4..]) != 0);
                switch(target, now, of & now.can, wanted)?;
                Ok(Answer::default())
            }
            None => Err(unsupported()),
        },
    }
}

/// Features of a command that is older than `GFEATURES`, and whether the command sets them (Linux
/// `ethtool_get_feature_mask`).
fn of_pair(command: u32) -> Option<(FeatureSet, bool)> {
    use nlsock::ethtool::command::*;
    let pairs = [
        (GRXCSUM, SRXCSUM, FeatureSet::RX_CSUM),
        (GTXCSUM, STXCSUM, FeatureSet::CSUM),
        (GSG, SSG, FeatureSet::SG | FeatureSet::FRAGLIST),
        (GTSO, STSO, FeatureSet::ALL_TSO),
        (GGSO, SGSO, FeatureSet::GSO),
        (GGRO, SGRO, FeatureSet::GRO),
    ];
    let found = pairs.into_iter().find(|&(get, set, _)| get == command || set == command);
    found.map(|(_, set, of)| (of, set == command))
}

fn now<B: Backend>(target: &mut Target<'_, B>) -> Result<Now, Error> {
    if target.is_virtual() {
        let own = if target.is_loopback() { FeatureSet::LOOPBACK } else { FeatureSet::OF_VRF };
        let on = own | FeatureSet::VLAN_CHALLENGED;
        return Ok(Now { can: FeatureSet::NONE, wanted: FeatureSet::NONE, on });
    }
    let wanted = target.config.features;
    let detail = target.detail()?;
    Ok(Now { can: detail.can, wanted, on: detail.on })
}

/// `struct ethtool_gfeatures`, for a program with space for `size` words.
fn all(now: Now, size: u32) -> Answer {
    let Now { can, wanted, on } = now;
    let half = |set: FeatureSet, at: usize| (set.0 >> (32 * at)) as u32;
    // Words `available`, `requested`, `active` and `never_changed` of `struct ethtool_get_features_block`.
    let block = |at: usize| [can, (wanted & can) | (on & !can), on, NEVER_CHANGED].map(|set| half(set, at));
    let blocks = (0..FEATURE_WORDS.min(size as usize)).flat_map(block);
    Answer::words([command::GFEATURES, FEATURE_WORDS as u32].into_iter().chain(blocks))
}

/// `struct ethtool_sfeatures` (Linux `ethtool_set_features`).
fn set<B: Backend>(target: &mut Target<'_, B>, block: &[u8]) -> Result<Answer, Error> {
    if word(&block[4..]) as usize != FEATURE_WORDS {
        return Err(Error::new(errno::EINVAL));
    }
    let (mut valid, mut wanted) = (FeatureSet::NONE, FeatureSet::NONE);
    for at in 0..FEATURE_WORDS {
        let half = |from: usize| FeatureSet(u64::from(word(&block[8 + 8 * at + from..])) << (32 * at));
        (valid, wanted) = (valid | half(0), wanted | half(4));
    }
    if !(valid & NEVER_CHANGED).is_empty() {
        return Err(Error::new(errno::EINVAL));
    }
    let before = now(target)?;
    let mut result = 0;
    if !(valid & !before.can).is_empty() {
        valid = valid & before.can;
        result |= UNSUPPORTED;
    }
    let after = switch(target, before, valid, wanted)?;
    let differ = |of: FeatureSet| (after.wanted & of) != (after.on & of);
    if differ(valid) {
        result |= WISH;
    }
    Ok(Answer { block: Vec::new(), result })
}

/// Sets the features in `valid` as in `wanted`, and returns the link's features afterwards.
fn switch<B: Backend>(
    target: &mut Target<'_, B>,
    now: Now,
    valid: FeatureSet,
    wanted: FeatureSet,
) -> Result<Now, Error> {
    let wanted = (now.wanted & !valid) | (wanted & valid);
    if wanted == now.wanted {
        return Ok(now);
    }
    target.rtnl.backend.set_features(PortId(target.index), wanted)?;
    if let Some(link) = target.rtnl.model.link_mut(target.index) {
        link.config.features = wanted;
    }
    target.config.features = wanted;
    self::now(target)
}
