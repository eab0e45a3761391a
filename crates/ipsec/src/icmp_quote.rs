//! ICMP errors about ESP that this node has sent.

use wire::{Protocol, Quote, Spi, udp};
use xfrm::{EspInUdp, Offload, OffloadMode, SaDir};

use crate::ipsec::Ipsec;
use crate::sa::Sa;

impl Sa {
    /// Tells whether packets were sent by it. In packet mode the device assigns their numbers, and without its key the owner.
    fn has_sent(&self, has_key: bool) -> bool {
        match self.offload {
            Some(Offload { mode: OffloadMode::Packet, dir, .. }) => dir == SaDir::Out && self.first_used().is_some(),
            _ => self.oseq() > 0 || !has_key && self.first_used().is_some(),
        }
    }
}

impl Ipsec {
    /// Tells whether the packet that an ICMP error quotes is one that an SA of this node may have sent (RFC 4301
    /// §6.1.1, Linux `esp4_err`): its destination, SPI and, in UDP, ports are the SA's. The caller checks that its
    /// source is this node. An attacker off the path has to guess the SPI.
    pub fn may_have_sent(&self, quote: &Quote<'_>) -> bool {
        let (encap, esp) = match quote.protocol {
            Protocol::ESP => (None, quote.payload),
            Protocol::UDP => match udp::UdpHeader::split_from(quote.payload) {
                Ok((udp, esp)) => (Some(EspInUdp { sport: udp.sport(), dport: udp.dport() }), esp),
                Err(_) => return false,
            },
            _ => return false,
        };
        //= RFC 4301 §8.2.1 icmp-names-an-sa: an unprotected ICMP error about the path changes it only if it quotes
        //=   SPI and addresses of an SA that this node has sent by
        let Some(&spi) = esp.first_chunk() else { return false };
        self.nat.sa_to(&self.sad, quote.dst, Spi(u32::from_be_bytes(spi))).is_some_and(|sa| {
            sa.dir != Some(SaDir::In)
                && sa.has_sent(self.sad.owns(sa))
                && sa.encap_to() == encap
                && (sa.src == quote.src || sa.src.is_unspecified())
        })
    }
}
