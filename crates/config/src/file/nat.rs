//! NAT traversal of an SA in UDP: the keys of `[[sa]]` that begin with `nat-`.

use xfrm::{EspInUdp, NatTraversal, SaDir};

use super::reader::{Result, Table};

const INTERVAL: &str = "nat-keepalive-interval";
const THRESHOLD: &str = "nat-mapping-threshold";
const FOLLOW: &str = "nat-follow";

/// All keys.
pub(super) const KEYS: [&str; 3] = [INTERVAL, THRESHOLD, FOLLOW];

/// Reads the keys of an SA with the given UDP header, direction and replay window (Linux `verify_newsa_info`).
pub(super) fn read(
    table: &Table<'_>,
    encap: Option<EspInUdp>,
    dir: Option<SaDir>,
    replay_window: u32,
) -> Result<NatTraversal> {
    for (key, other_way) in [(INTERVAL, SaDir::In), (THRESHOLD, SaDir::Out), (FOLLOW, SaDir::Out)] {
        let Some(value) = table.get(key) else { continue };
        if encap.is_none() {
            return Err(value.error("is for an SA with a UDP header; add encap, or take it out"));
        }
        if dir == Some(other_way) {
            let its_dir = if other_way == SaDir::In { SaDir::Out } else { SaDir::In };
            return Err(value.error(format!("is for an SA of dir {its_dir}; take it out")));
        }
    }
    let seconds = |key| table.get(key).map_or(Ok(0), |value| value.number(0..=u32::MAX));
    let follow = match table.get(FOLLOW) {
        Some(value) => {
            let follow = value.bool()?;
            if follow && replay_window == 0 {
                return Err(
                    value.error("needs a replay-window, or a replayed packet would move the peer; use 1 to 4096")
                );
            }
            follow
        }
        None => false,
    };
    Ok(NatTraversal { keepalive_interval: seconds(INTERVAL)?, mapping_threshold: seconds(THRESHOLD)?, follow })
}
