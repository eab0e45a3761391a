//! Shortcuts (fast paths): two paths around the stages of [`receive`](super), for packets that every stage would treat alike.
//!
//! | shortcut | packets | stages that it skips |
//! |---|---|---|
//! | [`esp_run`] | ESP like the one before it | wire tap, link layer, IP input (both taps, hooks, VRF), FIB, local input |
//! | [`fragment_train`] | fragments behind equal headers | wire tap, link layer, GRO, IP input (both taps, hooks, VRF) |
//!
//! A shortcut may run only where every stage it skips is a no-op: [`Shortcuts`](crate::node::ports::Shortcuts) is set accordingly, and
//! counters of the skipped stages are counted by the same functions.

use std::net::IpAddr;

use base::{Domain, Origin, PortId};
use packet::{Burst, Packet};
use reassembly::Train;
use wire::ipv6::Ipv6Header;

use super::gro;
use super::gro_sink::{AnyLinkSink, GroSink};
use super::ip_rcv::{receive_decrypted, receive_opened};
use super::l2::l3_offset;
use crate::addresses::{check_addresses, is_link_local};
use crate::local::reassembly as local_reassembly;
use crate::next::Cast;
use crate::node::hooks::HookUser;
use crate::run::run;
use crate::{Cx, Datapath, IpPacket, hand_over, ila_hook, trace};

/// Decrypts the run of ESP packets at the front of a burst that match the previous packet's receive template.
#[inline]
pub(super) fn esp_run(dp: &mut Datapath, cx: Cx<'_>, link: PortId, burst: &mut Burst<'_>) {
    let Some(port) = dp.ports.get(link).filter(|port| port.shortcuts().esp_run) else { return };
    let mac = port.config.mac;
    let is_gro = port.config.gro;
    let l3 = |pkt: &Packet| l3_offset(mac, pkt);
    if dp.ipsec.close_here(cx.now) {
        // A decrypted packet may be ESP as well.
        receive_opened(dp, cx);
    }
    loop {
        if is_first_mapped(dp, link, burst, l3) {
            if dp.ipsec.has_opened() {
                receive_opened(dp, cx);
            }
            return;
        }
        let mut out = gro::storage(dp);
        let Datapath { ipsec, gro, ports, counters, .. } = dp;
        let mut sink = GroSink { gro, ports, mem: cx.mem, out: &mut out };
        let run = if is_gro {
            ipsec.open_run(cx.mem, cx.now, burst, l3, counters, &mut sink)
        } else {
            ipsec.open_run(cx.mem, cx.now, burst, l3, counters, &mut AnyLinkSink(sink))
        };
        let broken = run.map(|run| {
            if let Some(port) = dp.ports.get_mut(link) {
                port.fat.rx_esp_gro_packets += run.packets;
            }
            dp.count_received(link, run.version, run.packets);
            dp.count_delivered(link, run.version, run.packets);
            run.broken
        });
        trace::esp_dropped(dp);
        gro::run_out(dp, cx, out);
        match broken {
            Some(Some(pkt)) => receive_decrypted(dp, cx, pkt),
            Some(None) => {}
            None if dp.ipsec.has_opened() => receive_opened(dp, cx),
            None => return,
        }
    }
}

/// Tells whether ILA translates the destination of the first packet of a burst. The packets of a run have the same destination.
#[inline]
fn is_first_mapped(dp: &Datapath, link: PortId, burst: &Burst<'_>, l3: impl Fn(&Packet) -> Option<usize>) -> bool {
    dp.hooks.is_set(HookUser::Ila) && is_mapped_packet(dp, link, burst, l3)
}

#[inline(never)]
fn is_mapped_packet(dp: &Datapath, link: PortId, burst: &Burst<'_>, l3: impl Fn(&Packet) -> Option<usize>) -> bool {
    let first = burst.first();
    let header = first.and_then(|first| Ipv6Header::ref_from(first.head().get(l3(first)?..)?).ok());
    header.is_some_and(|header| header.version() == 6 && ila_hook::is_mapped(dp, link, header.dst().into()))
}

/// Reassembles the fragments for this node at the front of a burst that have equal headers.
#[inline]
pub(super) fn fragment_train(dp: &mut Datapath, cx: Cx<'_>, link: PortId, burst: &mut Burst<'_>) {
    let Some(port) = dp.ports.get(link).filter(|port| port.shortcuts().fragment_train) else { return };
    let mac = port.config.mac;
    let domain = dp.fib.domain(link);
    let mut is_any = false;
    while let Some(first) = burst.first()
        && let Some(l3) = l3_offset(mac, first)
        && let Some(train) = Train::of(first, l3)
        && is_for_node_alone(dp, domain, link, train.addresses())
        && !hand_over::is_train_elsewhere(dp, train.addresses())
    {
        let train = train.in_domain(domain);
        let out = gro::flush_before(dp, &first.head()[l3..]);
        gro::run_out(dp, cx, out);
        let l3 = |pkt: &Packet| l3_offset(mac, pkt);
        let Some((packets, verdict)) = local_reassembly::handle_train(dp, cx, link, &train, burst, l3) else { break };
        is_any = true;
        dp.count_received(link, train.version(), packets);
        let mut ip = IpPacket::empty();
        let next = local_reassembly::apply_verdict(dp, cx, &mut ip, Origin::Port(link), verdict, Cast::Unicast);
        run(dp, cx, &mut ip, next);
        if dp.ipsec.has_opened() {
            receive_opened(dp, cx);
        }
    }
    if is_any {
        local_reassembly::drop_evicted(dp);
    }
}

/// Tells whether packets between these addresses are valid and for this node alone.
fn is_for_node_alone(dp: &Datapath, domain: Domain, link: PortId, [src, dst]: [IpAddr; 2]) -> bool {
    !is_link_local(dst)
        && check_addresses(src, dst).is_ok()
        && !ila_hook::is_mapped(dp, link, dst)
        && dp.is_local(domain, dst)
        && !dp.fib.local_reads_flow(dst.is_ipv4())
        && !dp.is_martian(domain, link, src)
}
