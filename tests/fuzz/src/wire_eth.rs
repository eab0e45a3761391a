//! A frame: Ethernet, any number of VLAN tags, then ARP or IP.

use wire::ip::Info;
use wire::{EtherType, FlowKey, arp, eth, vlan};

/// Runs one input.
pub fn target(frame: &[u8]) {
    let Ok(eth) = eth::Eth::parse(frame) else {
        assert!(frame.len() < eth::EthHeader::LEN);
        return;
    };
    assert_eq!(eth.header().dst().to_string().parse(), Ok(eth.header().dst()));
    let again = eth::EthHeader::new(eth.header().dst(), eth.header().src(), eth.header().ethertype());
    assert_eq!(again.as_bytes(), &frame[..eth::EthHeader::LEN]);

    let (mut ethertype, mut payload) = (eth.header().ethertype(), eth.payload());
    while ethertype.is_vlan() {
        let Ok(tag) = vlan::Vlan::parse(payload) else { return };
        let tci = tag.header().tci();
        assert!(tci.vid() <= 4095 && tci.priority() <= 7);
        (ethertype, payload) = (tag.header().ethertype(), tag.payload());
    }
    match ethertype {
        EtherType::ARP => {
            if let Ok(arp) = arp::ArpHeader::parse(payload) {
                let sender = (arp.sender_mac(), arp.sender_ip());
                let again = match arp.operation() {
                    arp::Operation::REPLY => arp::ArpHeader::reply(sender, (arp.target_mac(), arp.target_ip())),
                    _ => return,
                };
                assert_eq!(again.as_bytes(), &payload[..arp::ArpHeader::LEN]);
            }
        }
        EtherType::IPV4 | EtherType::IPV6 => {
            if let Ok(info) = Info::parse(payload, payload.len()) {
                assert!(info.total_len <= payload.len());
                assert_eq!(FlowKey::parse(payload, payload.len()), Ok(FlowKey::new(&info, payload)));
            }
        }
        _ => {}
    }
}
