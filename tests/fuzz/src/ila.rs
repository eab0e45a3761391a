//! Translation of hostile IPv6 packets, linear and in fragments, with any checksum state.

use ila::{AdjTransport, CsumMode, Direction, HookType, IdentType, Locator, Rewrite, RouteEncap};
use offload::ip_headers;
use packet::{Buf, Csum, Cut, Gso, GsoKind, Memory, Packet};

use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((locator, mode, to_sir, is_linux, partial, fat, cut, bytes)) =
        structured::<(u64, u8, bool, bool, Option<(u16, u16)>, Option<u16>, usize, &[u8])>(input)
    else {
        return;
    };
    let mem = Memory::heap();
    let (front, back) = bytes.split_at(cut.min(bytes.len()));
    let Ok(mut pkt) = Packet::with_data(&mem, front) else { return };
    let _ = pkt.push_frag(Buf::foreign(back.to_vec()));
    if let Some((start, offset)) = partial {
        pkt.meta.csum = Csum::Partial { start, offset };
    }
    if let Some(size @ 1..) = fat {
        pkt.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV6, size, segs: 1, ecn: false, fixed_id: false });
    }
    let Ok(info) = ip_headers(&mem, &mut pkt) else { return };
    let before = pkt.to_vec();
    let csum_mode = CsumMode::from_number(mode % 4).expect("one of four");
    let rewrite = Rewrite { locator: Locator(locator), csum_mode, diff: None };
    let direction = if to_sir { Direction::IlaToSir } else { Direction::SirToIla };
    let sign = if is_linux { AdjTransport::Linux } else { AdjTransport::Rfc1624 };
    let Ok(dst) = rewrite.packet(&mem, &mut pkt, &info, direction, sign) else { return };
    pkt.check_invariants();
    let after = pkt.to_vec();
    assert_eq!(after.len(), before.len());
    assert_eq!(after[24..40], dst.octets());
    assert_eq!(after[..24], before[..24]);
    let hook_type = if to_sir { HookType::Input } else { HookType::Output };
    let encap = RouteEncap { locator: Locator(locator), csum_mode, ident_type: IdentType::Luid, hook_type };
    // The reverse of a translated address is the original.
    let sir_prefix = Locator::of(dst);
    if let Some(original) = encap.original(dst, sir_prefix) {
        assert_eq!((encap.address(original), Locator::of(original)), (dst, sir_prefix));
    }
}
