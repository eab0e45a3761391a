//! Old and new adapters with every negotiated set, through the bridge to a wire without offloads, and back: each frame
//! is correct in every byte.

use ibmveth::{AdapterConfig, Attributes, Firmware, Style, TxOffloads};
use link::Link;
use offload::{CsumOffload, Features};
use packet::{Csum, Packet};

use crate::site::*;

/// Every set of offloads that the dependency rules allow.
fn offloads() -> Vec<TxOffloads> {
    let mut all = vec![TxOffloads::NONE, TxOffloads { rx_csum: true, ..TxOffloads::NONE }, TxOffloads::CSUM];
    for (tso4, tso6) in [(true, false), (false, true), (true, true)] {
        all.push(TxOffloads { tso4, tso6, ..TxOffloads::CSUM });
    }
    all
}

/// Hypervisors with all features, and with one missing.
fn firmwares() -> [(&'static str, Firmware); 6] {
    let without = |bits: Attributes| Firmware { attributes: Some(Attributes::ALL & !bits), ..Firmware::CURRENT };
    [
        ("all", Firmware::CURRENT),
        ("no IPv4 checksums", without(Attributes::IPV4_TCP_CSUM)),
        ("no IPv6 checksums", without(Attributes::IPV6_TCP_CSUM)),
        ("no padded checksums", without(Attributes::PADDED_CSUM)),
        ("no large send", without(Attributes::LARGE_SEND_SUPPORT)),
        ("no word", Firmware { attributes: None, ..Firmware::CURRENT }),
    ]
}

/// Tells whether a packet needs no offload of a device.
fn is_plain(pkt: &Packet) -> bool {
    pkt.is_linear() && pkt.meta.cut.gso().is_none() && !matches!(pkt.meta.csum, Csum::Partial { .. })
}

/// Sends each load in both directions, with and without a tag. Returns the number of crossings.
fn cross(site: &mut Site, case: &str) -> usize {
    let mut crossings = 0;
    for flow in flows() {
        for load in Load::ALL {
            for vid in [None, Some(VLAN)] {
                let case = format!("{case}, {load:?}, {vid:?}, {}", flow.src);
                site.guest_sends(load.packet(&site.node.mem, &flow), vid);
                let packets = site.drain_wire();
                let frames = finished(&site.node.mem, packets);
                assert!(frames == load.frames(&flow, STATION, GUEST, vid), "{case}: to the wire");
                let back = flow.reversed();
                site.wire_brings(load.packet(&site.node.mem, &back), vid);
                let packets = site.drain_guest();
                let frames = finished(&site.node.mem, packets);
                assert!(frames == load.frames(&back, GUEST, STATION, vid), "{case}: to the guest");
                crossings += 2;
            }
        }
    }
    assert_eq!(site.node.drops(), [], "{case}");
    assert_eq!((site.trunk.stats().tx_dropped, site.trunk.stats().rx_dropped), (0, 0), "{case}");
    assert_eq!((site.guest.counters().tx_dropped, site.lan().counters().no_buffer), (0, 0), "{case}");
    crossings
}

#[test]
fn frames_are_unchanged_under_every_negotiation() {
    let mut crossings = 0;
    for (name, firmware) in firmwares() {
        for style in [Style::New, Style::Old] {
            for other in [Style::New, Style::Old] {
                let [guest, trunk] = [style, other].map(|style| AdapterConfig { style, ..config() });
                let mut site = Site::new(firmware, guest, trunk, Features::NONE);
                for wanted in offloads() {
                    for others in offloads() {
                        // The adapter continues without offloads that the hypervisor refuses.
                        let _ = site.guest.set_offloads(&mut site.lan.lock().unwrap(), wanted);
                        let _ = site.trunk.set_offloads(others);
                        let case = format!("{name}, {style:?} guest {wanted:?}, {other:?} trunk {others:?}");
                        crossings += cross(&mut site, &case);
                    }
                }
            }
        }
    }
    assert_eq!(crossings, 6 * 4 * 36 * 2 * 5 * 2 * 2);
}

#[test]
fn egress_without_an_offload_gets_fitted_packets() {
    let all = Features { frames: false, ..Features::ALL };
    let egresses = [
        all,
        Features::NONE,
        Features { sg: false, ..all },
        Features { csum: CsumOffload::None, ..all },
        Features { csum: CsumOffload::Ipv4, ..all },
        Features { csum: CsumOffload::Ipv6, ..all },
        Features { tso4: false, ..all },
        Features { tso6: false, ..all },
        Features { gso_max_segs: 2, ..all },
    ];
    for egress in egresses {
        for style in [Style::New, Style::Old] {
            let config = AdapterConfig { style, ..config() };
            let mut site = Site::new(Firmware::CURRENT, config, config, egress);
            site.guest.set_offloads(&mut site.lan.lock().unwrap(), TxOffloads::ALL).unwrap();
            site.trunk.set_offloads(TxOffloads::ALL).unwrap();
            cross(&mut site, &format!("{egress:?} {style:?}"));
        }
    }
    // The datapath itself prepares plain frames for a device without offloads.
    let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
    site.guest_sends(Load::Fat.packet(&site.node.mem, &flows()[0]), Some(VLAN));
    let packets = site.drain_wire();
    assert!(packets.len() == 5 && packets.iter().all(is_plain));
}

#[test]
fn zeroed_checksum_never_leaves_by_the_wire() {
    // The requirement concerns the first packet of a connection.
    for flow in flows() {
        let mut site = Site::new(Firmware::CURRENT, config(), config(), Features::NONE);
        site.guest_sends(Load::Partial.packet(&site.node.mem, &flow), None);
        let got = site.drain_wire();
        assert_eq!(
            got.iter().map(Packet::to_vec).collect::<Vec<_>>(),
            Load::Partial.frames(&flow, STATION, GUEST, None)
        );
    }
}

#[test]
fn fat_frame_stays_fat_from_guest_to_wire_and_back() {
    for flow in flows() {
        for vid in [None, Some(VLAN)] {
            let egress = Features { frames: false, ..Features::ALL };
            let mut site = Site::new(Firmware::CURRENT, config(), config(), egress);
            site.guest_sends(Load::Fat.packet(&site.node.mem, &flow), vid);
            let packets = site.drain_wire();
            assert_eq!((packets.len(), packets[0].meta.cut.segs()), (1, 5), "{vid:?}");
            site.wire_brings(Load::Fat.packet(&site.node.mem, &flow.reversed()), vid);
            let packets = site.drain_guest();
            assert_eq!((packets.len(), packets[0].meta.cut.segs()), (1, 5), "{vid:?}");
        }
    }
}
