//! Virtual Ethernet adapters and their hypervisor, as a list of operations: arbitrary descriptors, receive entries and
//! attribute words, from a partition without a driver and from a broken hypervisor, in addition to two adapters that
//! send, receive and change their settings. After each operation pools are within their limit of buffers, the attribute
//! word has only negotiated bits, and each received frame is a packet. A frame between adapters with buffers for it
//! arrives unchanged, whatever its number of fragments.

use ibmveth::{
    Adapter, AdapterConfig, AdapterPlace, Attributes, BufDesc, Firmware, FragListMode, Lan, McastCommand, PoolConfig,
    Refusal, RxEntry, Style, TxOffloads, Unit,
};
use offload::Features;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use sim::{Choices, Flow};
use wire::MacAddr;

const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// Small pools, all active.
const POOLS: [PoolConfig; 5] = {
    let mut pools = PoolConfig::DEFAULT;
    let mut at = 0;
    while at < pools.len() {
        pools[at].count = 4;
        pools[at].active = true;
        at += 1;
    }
    pools
};

struct World {
    lan: Lan,
    mem: Memory,
    adapters: [Adapter; 2],
    units: [Unit; 3],
    /// Address of a region of the partition without a driver.
    region: u32,
}

impl World {
    fn new(choices: &mut Choices<'_>) -> Self {
        let attributes = Some(Attributes(u64::from(choices.word()) << 4 | u64::from(choices.byte())) & Attributes::ALL);
        let firmware = Firmware {
            attributes: attributes.filter(|_| choices.byte() != 1),
            descriptors: choices.byte().into(),
            copies_per_call: choices.byte().into(),
            io_regions: if choices.once_in(8) { choices.byte().into() } else { usize::MAX },
        };
        let mut lan = Lan::new(firmware);
        let mem = Memory::heap();
        let places = [
            AdapterPlace::trunk(mac(1), 1, vec![5]),
            AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(2)) },
            AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(3)) },
        ];
        let units = places.map(|place| lan.add_adapter(place).expect("a place that can be"));
        let adapters = [0, 1].map(|at| {
            let style = choices.pick(&[Style::New, Style::Old]);
            let config = AdapterConfig { pools: POOLS, style, ..AdapterConfig::default() };
            let mut adapter = Adapter::probe(&mut lan, units[at], config).expect("settings that can be");
            let _ = adapter.open(&mut lan);
            adapter
        });
        let _ = lan.register(units[2], 16, mac(3));
        let region = Packet::with_data(&mem, &[0; 4096]).expect("a heap without limit");
        let region = lan.io(units[2]).map(region.into_head()).unwrap_or(0);
        Self { lan, mem, adapters, units, region }
    }

    /// A descriptor: of arbitrary bits, and often of mapped bytes.
    fn desc(&self, choices: &mut Choices<'_>) -> BufDesc {
        let bits = choices.bytes(8).iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
        match choices.byte() % 3 {
            0 => BufDesc(bits),
            _ => BufDesc(bits & 0x0700_0fff_0000_0000 | 1 << 63 | u64::from(self.region)),
        }
    }

    fn frame(&self, choices: &mut Choices<'_>) -> Packet {
        let len = usize::from(choices.word()) % 4000;
        let mut bytes = choices.bytes(len).to_vec();
        if !choices.byte().is_multiple_of(4) && bytes.len() > 12 {
            bytes[..6].copy_from_slice(&mac(choices.byte() % 4).0);
        }
        let cut = usize::from(choices.word()) % (bytes.len() + 1);
        let (front, back) = bytes.split_at(cut);
        let with = |bytes: &[u8]| Packet::with_data(&self.mem, bytes).expect("a heap without limit");
        let mut pkt = with(front);
        match choices.byte() % 3 {
            0 => pkt.push_child(with(back)),
            _ => drop(pkt.push_frag(with(back).into_head())),
        }
        if choices.once_in(2) {
            pkt.meta.csum = Csum::Partial { start: choices.byte().into(), offset: choices.pick(&[16, 6, 200]) };
        }
        if choices.once_in(2) {
            let kind = choices.pick(&[GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp]);
            let size = choices.word().max(1);
            pkt.meta.cut = Cut::Gso(Gso { kind, size, segs: choices.word(), ecn: false, fixed_id: false });
        }
        pkt
    }

    /// Reopens both adapters, with buffers for any frame, and sends a frame of up to 9 KB from the adapter `from` to
    /// the other.
    fn check_arrival(&mut self, choices: &mut Choices<'_>, from: usize) {
        let Self { lan, mem, adapters, .. } = self;
        if lan.firmware().io_regions != usize::MAX {
            return;
        }
        for adapter in adapters.iter_mut() {
            adapter.close(lan);
            for (at, pool) in POOLS.iter().enumerate() {
                adapter.set_pool_size(lan, at, pool.size).expect("a size that can be");
                adapter.set_pool_count(lan, at, pool.count).expect("a number that can be");
                adapter.set_pool_active(lan, at, true).expect("a pool");
            }
            adapter.set_mtu(lan, 9100).expect("a pool that holds it");
            adapter.open(lan).expect("memory without limit");
        }
        let len = usize::from(choices.word()) % 9000;
        let flow = choices.pick(&[Flow::new("10.0.0.1", "10.0.0.2"), Flow::new("fd00::1", "fd00::2")]);
        let version: [u8; 2] = if flow.src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        let (ethertype, payload) = match choices.byte() % 3 {
            0 => (version, flow.tcp(1, len)),
            1 => (version, flow.udp(len)),
            _ => ([0x88, 0xb5], vec![0xff; len]),
        };
        let tag: &[u8] = choices.pick(&[&[][..], &[0x81, 0, 0, 5]]);
        let to = 1 - from;
        let sent = [&mac(to as u8 + 1).0[..], &mac(from as u8 + 1).0, tag, &ethertype, &payload].concat();
        let mut pieces = sent
            .chunks(usize::from(choices.word()).max(100))
            .map(|bytes| Packet::with_data(mem, bytes).expect("a heap without limit"));
        let mut pkt = pieces.next().expect("a header");
        pieces.for_each(|piece| pkt.push_child(piece));
        adapters[from].transmit(lan, 0, pkt).expect("a frame that can be sent");
        let mut received = Vec::new();
        adapters[to].poll(lan, mem, 2, &mut received);
        assert!(received.len() == 1 && received[0].to_vec() == sent, "{} bytes of {ethertype:?}", sent.len());
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        let at = usize::from(choices.byte() % 2);
        let unit = self.units[usize::from(choices.byte() % 3)];
        let Self { lan, adapters, .. } = self;
        match choices.byte() % 13 {
            0 => {
                let word =
                    |choices: &mut Choices<'_>| Attributes(u64::from(choices.word()) << 3 | u64::from(choices.byte()));
                let (reset, set) = (word(choices), word(choices));
                let before = lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE);
                let answer = lan.illan_attributes(unit, reset, set);
                let after = lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE);
                match answer {
                    Ok(word) => {
                        assert_eq!((Ok(word), word.contains(set), word.intersects(reset)), (after, true, false));
                    }
                    Err(_) => assert_eq!(before, after),
                }
            }
            1 => {
                let descs: Vec<BufDesc> = (0..choices.byte() % 9).map(|_| self.desc(choices)).collect();
                let bytes = choices.bytes(200);
                if let Some(region) = self.lan.io(self.units[2]).bytes_mut(self.region, bytes.len()) {
                    region.copy_from_slice(bytes);
                }
                let copies = self.lan.counters().copies;
                let answer = self.lan.send(self.units[2], &descs, choices.byte().into(), choices.word());
                // A refused frame is not copied to any adapter.
                let is_refused = answer.result == Err(Refusal::Parameter);
                assert!(!is_refused || self.lan.counters().copies == copies);
            }
            2 => {
                let descs: Vec<BufDesc> = (0..choices.byte() % 10).map(|_| self.desc(choices)).collect();
                let _ = self.lan.add_buffers(self.units[2], &descs);
                descs.iter().for_each(|&desc| {
                    let _ = self.lan.add_buffer(self.units[2], desc);
                });
            }
            3 => {
                let mut bytes = [0; RxEntry::LEN];
                let given = choices.bytes(RxEntry::LEN);
                bytes[..given.len()].copy_from_slice(given);
                assert_eq!(RxEntry::decode(&bytes).encode(), bytes);
                lan.corrupt_rx_entry(unit, choices.byte().into(), bytes);
            }
            4..=6 => {
                let pkt = self.frame(choices);
                let _ = self.adapters[at].transmit(&mut self.lan, 0, pkt);
            }
            7 => {
                let bit = choices.byte();
                let [rx_csum, tx_csum, tso4, tso6] = [1, 2, 4, 8].map(|mask| bit & mask != 0);
                let _ = adapters[at].set_offloads(lan, TxOffloads { rx_csum, tx_csum, tso4, tso6 });
            }
            8 => {
                let _ = adapters[at].set_mtu(lan, choices.word().into());
            }
            9 => {
                let pool = usize::from(choices.byte() % 6);
                let _ = match choices.byte() % 3 {
                    0 => adapters[at].set_pool_active(lan, pool, choices.once_in(2)),
                    1 => adapters[at].set_pool_count(lan, pool, usize::from(choices.byte() % 12)),
                    _ => adapters[at].set_pool_size(lan, pool, choices.word().into()),
                };
            }
            10 => {
                adapters[at].set_frag_list_mode(choices.pick(&[
                    FragListMode::Cut,
                    FragListMode::Linearize,
                    FragListMode::InPlace,
                ]));
                let command = McastCommand(u64::from(choices.word()) << 4 | u64::from(choices.byte()));
                let _ = lan.multicast_ctrl(unit, command, MacAddr([choices.byte(), 0, 0, 0, 0, 1]));
            }
            11 => self.check_arrival(choices, at),
            _ => {
                let mut received = Vec::new();
                adapters[at].poll(lan, &self.mem, choices.byte().into(), &mut received);
                for pkt in received {
                    pkt.check_invariants();
                    let mut wire = Vec::new();
                    let _ = offload::fit(&self.mem, &Features::NONE, pkt, 14, &mut wire);
                    wire.iter().for_each(Packet::check_invariants);
                }
            }
        }
    }

    fn check(&mut self) {
        for adapter in &self.adapters {
            for at in 0..5 {
                let config = adapter.pool(at).expect("one of five");
                assert!(adapter.available(at) <= config.count && config.check().is_ok());
            }
        }
        for unit in self.units {
            let word = self.lan.illan_attributes(unit, Attributes::NONE, Attributes::NONE);
            let known = Attributes::ALL | Attributes::ACTIVE_TRUNK | Attributes::TRUNK_PRIORITY;
            assert!(word.is_err() || word.is_ok_and(|word| known.contains(word)));
        }
    }
}

/// Runs one input.
pub fn target(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut world = World::new(&mut choices);
    while !choices.is_over() {
        world.step(&mut choices);
        world.check();
    }
    // Closed adapters hold nothing.
    for adapter in &mut world.adapters {
        adapter.close(&mut world.lan);
        assert!((0..5).all(|at| adapter.available(at) == 0));
    }
}
