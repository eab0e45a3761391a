//! GRO packets with frag lists: never dropped, in any mode of the trunk adapter.

use ibmveth::{Adapter, AdapterConfig, AdapterPlace, Firmware, FragListMode};
use link::Link;
use offload::Features;
use packet::{CopyReason, Memory, Packet};
use sim::Flow;

use crate::site::*;

/// A fat packet with one segment in its head, and further ones in the frag list.
fn frag_list(mem: &Memory, flow: &Flow) -> Packet {
    let whole = Load::Fat.packet(mem, flow);
    let bytes = whole.to_vec();
    let (first, others) = bytes.split_at(flow.tcp_headers() + usize::from(MSS));
    let mut pkt = Packet::with_data(mem, first).unwrap();
    others.chunks(MSS.into()).for_each(|piece| pkt.push_child(Packet::with_data(mem, piece).unwrap()));
    pkt.meta = whole.meta;
    pkt
}

#[test]
fn frag_list_crosses_the_bridge_without_a_drop() {
    for mode in [FragListMode::Cut, FragListMode::Linearize, FragListMode::InPlace] {
        for flow in flows().map(Flow::reversed) {
            for vid in [None, Some(VLAN)] {
                let config = AdapterConfig { frag_list: mode, ..config() };
                let mut site = Site::new(Firmware::CURRENT, config, config, Features::NONE);
                for _ in 0..100 {
                    site.wire_brings(frag_list(&site.node.mem, &flow), vid);
                    let packets = site.drain_guest();
                    assert_eq!(packets.len(), if mode == FragListMode::Cut { 5 } else { 1 }, "{mode:?}");
                    let frames = finished(&site.node.mem, packets);
                    assert!(frames == Load::Fat.frames(&flow, GUEST, STATION, vid), "{mode:?}, {vid:?}");
                }
                let counters = site.trunk.adapter().counters();
                let (cut, linearized, in_place) = match mode {
                    FragListMode::Cut => (100, counters.tx_linearized, 0),
                    FragListMode::Linearize => (0, 100, 0),
                    FragListMode::InPlace => (0, 0, 100),
                };
                let got = (counters.tx_cut, counters.tx_linearized, counters.tx_in_place);
                assert_eq!(got, (cut, linearized, in_place), "{mode:?}");
                assert_eq!((site.node.drops(), site.trunk.stats().tx_dropped), (Vec::new(), 0), "{mode:?}");
                // The bridge copies nothing; `settle` enters the adapter's copies in the ledger.
                let ledger = |site: &Site| site.node.mem.copies().get(CopyReason::Linearize).copies;
                assert_eq!(ledger(&site), 0, "{mode:?}");
                site.trunk.settle(&site.node.mem);
                assert_eq!(site.node.mem.copies().get(CopyReason::DeviceFrame), counters.copied, "{mode:?}");
            }
        }
    }
}

#[test]
fn standby_trunk_has_frag_lists_linearized_for_it() {
    let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
    assert!(site.trunk.features().frag_list);
    let flow = flows()[0].reversed();
    let linearized = |site: &Site| site.node.mem.copies().get(CopyReason::Linearize).copies;
    // A better trunk opens: this one is on standby, and its frames reach no receiver.
    let place = AdapterPlace { vlans: vec![VLAN], ..AdapterPlace::trunk(mac(7), 1, Vec::new()) };
    let unit = site.lan().add_adapter(place).unwrap();
    let mut better = Adapter::probe(&mut site.lan(), unit, config()).unwrap();
    better.open(&mut site.lan()).unwrap();
    site.drain_wire();
    assert!(!site.trunk.adapter().is_active_trunk() && better.is_active_trunk());
    site.wire_brings(frag_list(&site.node.mem, &flow), None);
    assert!(!site.trunk.features().frag_list);
    assert_eq!((linearized(&site), site.drain_guest().len(), site.lan().counters().no_receiver), (1, 0, 1));
    // The better trunk closes, and this one takes over.
    better.close(&mut site.lan());
    site.drain_wire();
    site.wire_brings(frag_list(&site.node.mem, &flow), None);
    assert!(site.trunk.features().frag_list);
    site.drain_guest();
    site.wire_brings(frag_list(&site.node.mem, &flow), None);
    assert_eq!(site.drain_guest().len(), 1);
    assert_eq!((linearized(&site), site.node.drops(), site.trunk.stats().tx_dropped), (2, Vec::new(), 0));
}
