//! The site of a demo: its namespaces, and one stream through them.

use std::net::Ipv4Addr;
use std::time::Duration;

use testbed::{Failure, Scratch, Stop};

use super::gateway::Gateway;
use super::meter::Reading;
use super::stream::{self, Ends, Stream};
use super::topology::{Side, Topology};

const BITS_PER_GBIT: f64 = 1e9;

/// All that exists while rounds are measured.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) topology: Topology,
    pub(super) scratch: Scratch,
    pub(super) stop: Stop,
    /// Duration of each stream.
    pub(super) length: Duration,
    /// Whether iperf3 makes the TCP streams.
    pub(super) iperf3: bool,
}

impl Site {
    /// One stream from host A to an address of host B.
    pub(super) fn stream(&self, address: Ipv4Addr) -> Result<Stream, Failure> {
        let (sender, receiver) = (self.topology.host(Side::A), self.topology.host(Side::B));
        self.stream_between(Ends { sender, receiver, address })
    }

    /// One stream between two hosts.
    pub(super) fn stream_between(&self, ends: Ends<'_>) -> Result<Stream, Failure> {
        let run = if self.iperf3 { stream::iperf3 } else { stream::builtin };
        run(ends, self.length, &self.stop)
    }
}

/// Readings of both gateways, the sender's first.
pub(super) fn readings(gateways: &[Gateway; 2]) -> Result<[Reading; 2], Failure> {
    let [a, b] = gateways;
    Ok([Reading::take(a)?, Reading::take(b)?])
}

/// Adds the gateways' own errors, or their drops, to a failed stream or ping.
pub(super) fn explain(failure: Failure, gateways: &mut [Gateway]) -> Failure {
    if matches!(failure, Failure::Interrupted) {
        return failure;
    }
    let mut output = Vec::new();
    for gateway in gateways {
        match gateway.check().and_then(|()| gateway.drops()) {
            Ok(drops) => output.push(drops),
            Err(ended) => output.push(ended.to_string()),
        }
    }
    Failure::step(failure.to_string(), output.join("; "))
}

/// Throughput in units of 10⁹ bits a second.
pub(super) fn gbps(stream: Stream) -> f64 {
    if stream.seconds > 0.0 { stream.bytes as f64 * 8.0 / stream.seconds / BITS_PER_GBIT } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_in_units_of_a_billion_bits() {
        assert_eq!(gbps(Stream { bytes: 2_500_000_000, seconds: 2.0 }), 10.0);
        assert_eq!(gbps(Stream { bytes: 0, seconds: 0.0 }), 0.0);
    }
}
