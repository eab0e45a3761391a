//! Memory of the tables that remote parties fill, all at their limits at once, for two links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use base::{Domain, Instant, PortId};
use fib::{Fib, LladdrUpdate, Neighbours};
use host::Established;
use ipsec::{Ipsec, SpiRequest};
use packet::Allocations;
use wire::{FlowKey, MacAddr, Protocol};
use xfrm::{Mark, Mode};

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

const MIB: usize = 1 << 20;
const LINKS: u32 = 2;

/// Truesize of all packets that may wait: for neighbours, for SAs, in reassembly of both families, and for links.
const PACKETS: usize = 8 * MIB + ipsec::MAX_HELD_BYTES + 2 * (4 * MIB) + LINKS as usize * datapath::TX_QUEUE_BYTES;

/// Memory of a table that `fill` fills, and the table.
fn memory<T>(fill: impl FnOnce() -> T) -> (usize, T) {
    let before = Allocations::live();
    let table = fill();
    Allocations::settle();
    ((Allocations::live() - before) as usize, table)
}

fn v4(n: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0000 + n).into()
}

fn v6(n: u32) -> IpAddr {
    Ipv6Addr::from((0xfe80 << 112) + u128::from(n)).into()
}

#[test]
fn remote_tables_at_their_limits_take_less_than_64_mib() {
    Allocations::settle();
    let limits = fib::Limits::default();
    let (neighbours, table) = memory(|| {
        let mut table = Neighbours::new(limits);
        let mut actions = Vec::new();
        for n in 0..2000 {
            let now = Instant::ZERO + Duration::from_millis(10 * u64::from(n));
            for link in (1..=LINKS).map(PortId) {
                for addr in [v4(n), v6(n)] {
                    table.learn(now, link, addr, LladdrUpdate::Solicitation(MacAddr([2, 0, 0, 0, 0, 1])), &mut actions);
                    actions.clear();
                }
            }
        }
        table
    });
    assert_eq!(table.len(), 4 * limits.entries, "the table is full");
    assert_eq!(limits.waiting_bytes_total, 8 * MIB);

    let (path_mtus, fib) = memory(|| {
        let mut fib = Fib::default();
        for n in 0..3000 {
            let _ = fib.lower_path_mtu(Instant::ZERO, Domain::DEFAULT, v4(n), 1300, 1500);
        }
        fib
    });
    assert_eq!(fib.path_mtus(Instant::ZERO).count(), fib::MAX_PATH_MTUS);

    let (flows, established) = memory(|| {
        let mut established = Established::default();
        for n in 0..1 << 19 {
            let key = FlowKey { src: v6(n), dst: v6(1), protocol: Protocol::TCP, sport: n as u16, dport: 80 };
            established.sent(Instant::ZERO, Domain::DEFAULT, PortId(1), key, false);
        }
        established
    });
    let count = established.iter_from(Instant::ZERO, 0).count();
    assert!(count > 60_000, "{count} flows");

    let (larvae, ipsec) = memory(|| {
        let mut ipsec = Ipsec::new();
        for n in 0..20_000 {
            let request = SpiRequest {
                src: v6(1),
                dst: v6(n),
                mode: Mode::Tunnel,
                reqid: n,
                mark: Mark::ANY,
                if_id: 0,
                dir: None,
                cpu: None,
                seq: 0,
                min: 0x1000 + n,
                max: 0x1000 + n,
            };
            let _ = ipsec.alloc_spi(Instant::ZERO, &request, &mut || 0);
        }
        ipsec
    });
    assert_eq!(ipsec.sad().larvae().count(), ipsec::sad::MAX_LARVAE);

    let tables = neighbours + path_mtus + flows + larvae;
    let all = PACKETS + tables;
    assert!(
        all < 64 * MIB,
        "{all} bytes: packets {PACKETS}, neighbours {neighbours}, path MTUs {path_mtus}, flows {flows}, larval SAs {larvae}"
    );
    assert!(tables > MIB, "{tables} bytes are counted");
}
