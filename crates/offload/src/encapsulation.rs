//! Headers of an encapsulated packet, from the outermost IP header to the innermost transport header.

use arrayvec::ArrayVec;
use base::DropReason;
use packet::{Memory, Packet};
use wire::tunnel::Inside;
use wire::{Malformed, Version};

use crate::headers::{self, Headers};

/// Maximum number of nested tunnels.
pub(crate) const MAX_TUNNELS: usize = 4;

/// Headers of each nested IP packet, with those of UDP tunnels.
#[derive(Debug)]
pub(crate) struct Encapsulation {
    /// Headers of the tunnels, outermost first; empty without a tunnel.
    pub(crate) tunnels: ArrayVec<Headers, MAX_TUNNELS>,
    /// Headers of the packet inside all tunnels.
    pub(crate) inner: Headers,
    /// Whether all segments of the inner packet have the same tunnel headers, apart from lengths and checksums of IP
    /// and UDP.
    pub(crate) is_constant: bool,
}

impl Encapsulation {
    /// Parses the headers of a packet of `len` bytes, whose first bytes are in `head`, from the IP header at `l3` to
    /// the transport header at `start`.
    ///
    /// # Errors
    /// [`Malformed::TunnelUnknown`] if the headers do not lead to `start`; [`Malformed::OutsideHead`] if they exceed
    /// `head`; the fault of the outermost header.
    pub(crate) fn parse(head: &[u8], len: usize, l3: usize, start: usize) -> Result<Self, Malformed> {
        let (mut tunnels, mut is_constant) = (ArrayVec::<_, MAX_TUNNELS>::new(), true);
        let (mut at, mut version) = (l3, None::<Version>);
        loop {
            let headers = Headers::parse(head, len, at).map_err(|why| match why {
                Malformed::OutsideHead => why,
                _ if !tunnels.is_empty() => Malformed::TunnelUnknown,
                _ => why,
            })?;
            let is_other_version = version.is_some_and(|version| version != headers.version);
            if headers.fragment || headers.l4 > start || is_other_version {
                return Err(Malformed::TunnelUnknown);
            }
            if headers.l4 == start {
                return Ok(Self { tunnels, inner: headers, is_constant });
            }
            let inside = Inside::find(headers.protocol, &head[headers.l4..]).map_err(|why| match why {
                Malformed::TunnelShort if head.len() < len => Malformed::OutsideHead,
                _ => Malformed::TunnelUnknown,
            })?;
            (at, version) = (headers.l4 + inside.at, Some(inside.version));
            is_constant &= inside.is_constant;
            tunnels.try_push(headers).map_err(|_| Malformed::TunnelUnknown)?;
        }
    }

    /// As [`parse`](Self::parse), for a packet that is segmented at its inner headers. Pulls the headers into the
    /// packet's head.
    ///
    /// # Errors
    /// [`DropReason::GsoEncapsulation`] also if tunnel headers differ between segments.
    pub(crate) fn find(mem: &Memory, pkt: &mut Packet, l3: usize, start: usize) -> Result<Self, DropReason> {
        let found = headers::bring_in(mem, pkt, l3, |head, len| Self::parse(head, len, l3, start))?;
        if found.is_constant { Ok(found) } else { Err(DropReason::GsoEncapsulation) }
    }
}

/// Parses the headers of a fat packet of `len` bytes, whose first bytes are in `head`, from the IP header at `l3`
/// through tunnels to the transport header at `start`, and returns the headers of the inner packet.
///
/// # Errors
/// [`Malformed::TunnelUnknown`] if the headers do not lead to `start`, or differ between segments;
/// [`Malformed::OutsideHead`] if they exceed `head`; the fault of the outermost header.
pub fn inner_headers(head: &[u8], len: usize, l3: usize, start: usize) -> Result<Headers, Malformed> {
    let found = Encapsulation::parse(head, len, l3, start)?;
    if found.is_constant { Ok(found.inner) } else { Err(Malformed::TunnelUnknown) }
}
