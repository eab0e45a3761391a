//! One TCP stream from host to host: over veth alone, through a tunnel of two gateways, and through another tunnel.

use std::time::Instant;

use testbed::Failure;

use super::config::Keys;
use super::gateway::Gateway;
use super::meter::Cost;
use super::peer::Peer;
use super::ping;
use super::sample::DemoSample;
use super::site::{Site, explain, gbps, readings};
use super::storm::Storm;
use super::topology::Side;

/// The ceiling: no gateway runs.
pub(super) fn veth(site: &Site) -> Result<DemoSample, Failure> {
    let stream = site.stream(site.topology.plain_address())?;
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost: None })
}

/// Through the tunnel, with new gateways, and optionally with this number of changes per second.
pub(super) fn measure(site: &Site, fat: bool, storm: Option<u32>) -> Result<DemoSample, Failure> {
    let keys = Keys::random()?;
    let start = |side| Gateway::start(&site.topology, &site.scratch, side, fat, &keys, &site.stop);
    let mut gateways = [start(Side::A)?, start(Side::B)?];
    let host = site.topology.host(Side::A);
    let pinged = ping::ping(host, Side::B.host(), &site.stop);
    pinged.map_err(|failure| explain(failure, &mut gateways))?;
    let storm = storm.map(|rate| Storm::start(&gateways, &site.scratch, rate, &site.stop)).transpose()?;
    let before = readings(&gateways)?;
    let storm_cpu = |gateways: &_| storm.as_ref().map_or(0.0, |storm| storm.cpu_seconds(gateways));
    let (start, storm_before) = (Instant::now(), storm_cpu(&gateways));
    let streamed = site.stream(Side::B.host());
    let stream = streamed.map_err(|failure| explain(failure, &mut gateways))?;
    let load = (storm_cpu(&gateways) - storm_before) / start.elapsed().as_secs_f64();
    let after = readings(&gateways)?;
    let changes = storm.map(|storm| storm.end(load, &site.stop)).transpose()?;
    Ok(DemoSample {
        gbps: gbps(stream),
        arrived: None,
        changes,
        transactions: None,
        cost: Some(Cost::of_gateways(&before, &after, stream)),
    })
}

/// Through another tunnel, set up anew.
pub(super) fn peer(site: &Site, peer: Peer) -> Result<DemoSample, Failure> {
    let mut running = peer.start(&site.topology, &site.scratch, &site.stop)?;
    let host = site.topology.host(Side::A);
    let pinged = ping::ping(host, Side::B.host(), &site.stop);
    pinged.map_err(|failure| running.explain(failure))?;
    let before = running.usage()?;
    let streamed = site.stream(Side::B.host());
    let stream = streamed.map_err(|failure| running.explain(failure))?;
    let cost = before.zip(running.usage()?).map(|(before, after)| Cost::between(before, after, stream));
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions: None, cost })
}
