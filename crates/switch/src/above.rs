//! Devices one above the other: VLAN devices above links, bridges above their ports.

/// Tells whether the device `top` is `target` or above it: frames sent by `top` may leave by `target`. `below` returns the devices
/// directly below one: the link of a VLAN device, the ports of a bridge. A bridge with a port above itself would be a loop (Linux
/// `__netdev_has_upper_dev`).
pub fn is_above<K: Copy + Eq>(top: K, target: K, below: impl Fn(K) -> Vec<K>) -> bool {
    let mut found = vec![top];
    let mut at = 0;
    while let Some(&device) = found.get(at) {
        if device == target {
            return true;
        }
        for next in below(device) {
            if !found.contains(&next) {
                found.push(next);
            }
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_above_their_ports_and_links() {
        // 1 is a bridge with ports 2 and 3; 3 is a VLAN device of 4, and so is 5. 6 and 7 are above each other.
        let below = |device| match device {
            1 => vec![2, 3],
            3 | 5 => vec![4],
            6 => vec![7],
            7 => vec![6],
            _ => vec![],
        };
        for (top, target, want) in
            [(1, 1, true), (1, 4, true), (5, 4, true), (4, 1, false), (5, 1, false), (2, 3, false), (6, 1, false)]
        {
            assert_eq!(is_above(top, target, below), want, "{top} above {target}");
        }
    }
}
