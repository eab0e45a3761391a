//! Requests of a client of the netlink family `ila`: messages of few keys with any flags, some with mutated bytes. The gateway does not
//! panic, and its worker has the mappings that clients see.

use daemon::fuzzing::request_generic;

use crate::structured::structured;

/// A request: its command and flags; small numbers for attributes, in the order of [`ATTRIBUTES`]; and mutated bytes at some places.
type IlaRequest = (u8, u16, [Option<u8>; 6], Vec<(u8, u8)>);

/// Number, length and largest value of each attribute: the locators, the identifier, the device, the modes. The largest values are refused.
const ATTRIBUTES: [(u16, usize, u8); 6] = [(1, 8, 3), (2, 8, 3), (3, 8, 3), (4, 4, 2), (7, 1, 4), (8, 1, 33)];

/// `NLM_F_REQUEST`, and the number of the family.
const REQUEST: u16 = 1;
const FAMILY: u16 = 19;

/// Requests of an input that are run.
const MOST: usize = 64;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((privileged, requests)) = structured::<(bool, Vec<IlaRequest>)>(input) else { return };
    let datagrams: Vec<Vec<u8>> = requests.iter().take(MOST).map(datagram).collect();
    request_generic(privileged, &datagrams);
}

fn datagram((command, flags, values, mutated): &IlaRequest) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend([command % 6, 1, 0, 0]);
    for ((kind, len, most), value) in ATTRIBUTES.into_iter().zip(values) {
        let Some(value) = value.map(|value| u64::from(value % (most + 1))) else { continue };
        bytes.extend((4 + len as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        match len {
            8 => bytes.extend(value.to_be_bytes()),
            _ => bytes.extend(&value.to_ne_bytes()[..4]),
        }
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..6].copy_from_slice(&FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(flags | REQUEST).to_ne_bytes());
    for &(at, byte) in mutated {
        let at = usize::from(at) % bytes.len();
        bytes[at] = byte;
    }
    bytes
}
