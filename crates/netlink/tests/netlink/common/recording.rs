//! Recorded requests of real programs.

/// Recorded requests of iproute2's programs.
pub(crate) fn recorded() -> Vec<Vec<u8>> {
    let requests = include_str!("../../recordings/iproute2.txt")
        .lines()
        .filter_map(|line| line.strip_prefix("> ")?.split_once(' '));
    let bytes =
        |hex: &str| (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    requests.map(|(_, hex)| bytes(hex)).collect()
}
