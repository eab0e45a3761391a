//! Application of a plan, and of clients' changes, by a worker that decides on no packet meanwhile.

use base::{Instant, PortId, ShardId};
use config::model::{IlaErrors, LinkKind};
use config::settings::{EarlyDemux, L3mdevAccept, Settings};
use ila::Mappings;
use netlink::rtnl::Delta;

use super::node::Node;
use super::path_hash;
use super::plan::Plan;
use super::processors;
use super::translate::{fib, reassembly};
use super::xfrm;

/// Applies `plan`. MTUs are set first, as the one step that can be refused. Returns the replaced ILA mappings, whose memory another
/// thread frees.
pub(crate) fn apply(node: &mut Node, plan: Plan) -> Result<Mappings, String> {
    let mut replaced = Mappings::default();
    node.set_mtus(&plan.mtus)?;
    if let Some(socket) = plan.ike_socket {
        node.poller.add_ike(socket.fd()).map_err(|err| format!("epoll: {err}"))?;
        node.ike = Some(socket);
    }
    node.datapath.set_ike(plan.ike);
    node.datapath.set_clamp_mss(plan.clamp_mss);
    node.datapath.set_defrag(plan.defrag);
    let now = node.now();
    plan.removed.into_iter().for_each(|id| node.close(now, id));
    let opened: Vec<PortId> = plan.opened.iter().map(|(id, ..)| *id).collect();
    for (id, queues, config) in plan.opened {
        // One link, of this shard.
        queues.into_iter().for_each(|link| node.open(id, link, config.clone()));
    }
    plan.ports.into_iter().for_each(|(id, requested)| node.set_port(id, requested));
    // The lower links of VLAN devices may have changed.
    for at in 0..node.slots.len() {
        if node.slots[at].as_ref().is_some_and(|slot| matches!(slot.config.kind, LinkKind::Vlan { .. })) {
            node.see_link(PortId(at as u32));
        }
    }
    // Every link of the file is up.
    for at in 0..node.slots.len() {
        node.set_admin_up(now, PortId(at as u32), true);
    }
    if let Some(fib) = plan.fib {
        let Node { datapath, captures, vrfs, .. } = &mut *node;
        datapath.fib.replace(fib);
        for &device in vrfs.keys().filter(|device| !plan.vrfs.contains_key(device)) {
            datapath.set_vrf_port(now, device, None);
            captures.close(device);
        }
        *vrfs = plan.vrfs;
        for (&device, vrf) in &*vrfs {
            datapath.set_vrf_port(now, device, Some((vrf.name.clone(), vrf.mtu as usize)));
        }
    }
    if let Some(bridges) = &plan.bridges {
        node.become_bridges(bridges)?;
    }
    node.set_promiscuous_links();
    for (id, options) in plan.qdiscs {
        node.set_qdisc_from_file(id, options)?;
    }
    if let Some(worker) = plan.worker {
        let shard = node.shard.as_ref().map_or(ShardId::FIRST, |(shard, _)| *shard);
        processors::bind("worker", node.thread, worker.cpus.get(usize::from(shard.0)).copied());
    }
    plan.ipsec.apply(&mut node.datapath.ipsec, &mut node.of_file);
    if let Some(crypto) = plan.crypto {
        node.datapath.ipsec.set_crypto(crypto);
    }
    if let Some((mappings, sign, errors)) = plan.ila {
        replaced = node.datapath.replace_ila(mappings);
        node.datapath.set_ila_adj_transport(sign);
        node.datapath.restore_ila_errors(errors == IlaErrors::Restored);
    }
    if let Some(settings) = plan.settings {
        set(node, settings);
    }
    // The reply to the caller lists the links that are down.
    opened.into_iter().for_each(|id| node.look_at(now, id));
    node.config = plan.config;
    Ok(replaced)
}

/// Applies a change of routes, addresses, rules or VRFs.
pub(crate) fn apply_delta(node: &mut Node, now: Instant, delta: Delta) {
    let Node { datapath, vrfs, captures, .. } = node;
    fib::apply(&mut datapath.fib, &delta);
    match delta {
        Delta::Vrf(device, Some(vrf)) => {
            datapath.set_vrf_port(now, device, Some((vrf.name.clone(), vrf.mtu as usize)));
            vrfs.insert(device, vrf);
        }
        Delta::Vrf(device, None) => {
            datapath.set_vrf_port(now, device, None);
            captures.close(device);
            vrfs.remove(&device);
        }
        _ => {}
    }
}

/// Applies the settings that netlink clients can change (sysctl).
pub(crate) fn set(node: &mut Node, settings: Settings) {
    node.datapath.set_reassembly(reassembly::config(settings.reassembly));
    xfrm::set_options(&mut node.datapath.ipsec, settings.xfrm);
    node.limits = settings.tables;
    let EarlyDemux { ip, tcp, udp } = settings.early_demux;
    node.datapath.early_demux = datapath::EarlyDemux { ip: ip != 0, tcp: tcp != 0, udp: udp != 0 };
    let L3mdevAccept { tcp, udp } = settings.l3mdev_accept;
    node.datapath.set_l3mdev_accept(datapath::L3mdevAccept { tcp, udp });
    node.datapath.fib.set_path_hash(path_hash::of(settings.path_hash));
}
