//! Scenarios: the kinds of ESP connection, and the traffic that each has to carry.

use std::net::{IpAddr, SocketAddr};

use interop::Uml;
use system::{Endpoint, Esp, Mode, Netns, OUTER_V4, OUTER_V6, Outcome, PING_SIZES, Suite, blob, digest, ping_script};

use crate::site::{INNER_V4, INNER_V6, Inner, Near, Site};

/// Bytes of each TCP transfer.
const STREAM_LEN: usize = 4 << 20;

/// Fewer sizes for the second end, since the reply to a ping is as long as the ping.
const SOME_SIZES: &[u16] = &[0, 56, 1408, 1473, 20000];

/// One kind of connection.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    mode: Mode,
    outer: [&'static str; 2],
    inner: Inner,
    suite: Suite,
    esn: bool,
    window: u32,
    start: u32,
    udp: bool,
    /// Whether the near end is a host without IPsec behind a gateway in transport mode (RFC 4301 §3.3, "bump in the
    /// wire"). Linux does not decrypt for other hosts.
    pub(crate) behind: bool,
    /// Whether the scenario runs with Linux as the near end too, which validates it.
    pub(crate) with_linux: bool,
}

const TUNNEL: Scenario = Scenario {
    name: "tunnel_v4",
    mode: Mode::Tunnel,
    outer: OUTER_V4,
    inner: INNER_V4,
    suite: Suite::GCM,
    esn: false,
    window: 32,
    start: 0,
    udp: false,
    behind: false,
    with_linux: true,
};

const TRANSPORT: Scenario =
    Scenario { name: "transport_v4", mode: Mode::Transport, inner: Inner::hosts(OUTER_V4), ..TUNNEL };

const BEHIND: Scenario = Scenario {
    name: "transport_tcp_v4",
    outer: INNER_V4.ends(),
    inner: Inner::hosts(INNER_V4.ends()),
    behind: true,
    with_linux: false,
    ..TRANSPORT
};

const V6: Scenario = Scenario { outer: OUTER_V6, inner: INNER_V6, with_linux: false, ..TUNNEL };
const V4_IN_V6: Scenario = Scenario { inner: INNER_V4, ..V6 };
const V6_IN_V4: Scenario = Scenario { outer: OUTER_V4, ..V6 };
const V4: Scenario = Scenario { outer: OUTER_V4, ..V4_IN_V6 };
const TRANSPORT_V4: Scenario = Scenario { with_linux: false, ..TRANSPORT };
const TRANSPORT_V6: Scenario = Scenario { outer: OUTER_V6, inner: Inner::hosts(OUTER_V6), ..TRANSPORT_V4 };

const CHACHA: Suite = Suite::Aead { name: "rfc7539esp(chacha20,poly1305)", key_len: 36, icv_bits: 128 };
const GMAC_128: Suite = Suite::Aead { name: "rfc4543(gcm(aes))", key_len: 20, icv_bits: 128 };
const GMAC_256: Suite = Suite::Aead { name: "rfc4543(gcm(aes))", key_len: 36, icv_bits: 128 };
const CCM_128: Suite = Suite::Aead { name: "rfc4309(ccm(aes))", key_len: 19, icv_bits: 64 };
const CCM_256: Suite = Suite::Aead { name: "rfc4309(ccm(aes))", key_len: 35, icv_bits: 128 };

const fn cbc(key_len: u32, code: &'static str, code_key_len: u32, trunc_bits: Option<u16>) -> Suite {
    Suite::Separate { enc: ("cbc(aes)", key_len), auth: (code, code_key_len), trunc_bits }
}

const CBC_MD5: Suite = cbc(16, "hmac(md5)", 16, None);
const CBC_SHA1: Suite = cbc(16, "hmac(sha1)", 20, None);
const CBC_SHA256_96: Suite = cbc(32, "hmac(sha256)", 32, None);
const CBC_SHA256_128: Suite = cbc(24, "hmac(sha256)", 32, Some(128));
const CBC_SHA384: Suite = cbc(24, "hmac(sha384)", 48, None);
const CBC_SHA512: Suite = cbc(32, "hmac(sha512)", 64, None);
const CBC_CMAC: Suite = cbc(16, "cmac(aes)", 16, None);
const CBC_XCBC: Suite = cbc(32, "xcbc(aes)", 16, None);
const CBC_RMD160: Suite = cbc(16, "hmac(rmd160)", 20, None);
const NULL_SHA256: Suite =
    Suite::Separate { enc: ("ecb(cipher_null)", 0), auth: ("hmac(sha256)", 32), trunc_bits: Some(128) };
const CTR_SHA256: Suite =
    Suite::Separate { enc: ("rfc3686(ctr(aes))", 36), auth: ("hmac(sha256)", 32), trunc_bits: Some(128) };

/// All of them. The second part tries each algorithm but SM3, which the kernel at the far end was built without, spread
/// over modes, families, kinds of sequence number, windows and UDP.
pub(crate) static SCENARIOS: &[Scenario] = &[
    TUNNEL,
    Scenario { name: "tunnel_v6", outer: OUTER_V6, inner: INNER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v4_in_v6", outer: OUTER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v6_in_v4", inner: INNER_V6, ..TUNNEL },
    Scenario { name: "tunnel_v4_icv_96", suite: Suite::gcm(36, 96), ..TUNNEL },
    Scenario { name: "tunnel_v4_esn", esn: true, window: 1024, ..TUNNEL },
    Scenario { name: "tunnel_v4_in_udp", udp: true, ..TUNNEL },
    Scenario { name: "tunnel_v6_in_udp_esn", udp: true, esn: true, window: 1024, inner: INNER_V6, ..TUNNEL },
    TRANSPORT,
    Scenario { name: "transport_v6", outer: OUTER_V6, inner: Inner::hosts(OUTER_V6), ..TRANSPORT },
    Scenario { name: "transport_v4_esn", esn: true, window: 1024, ..TRANSPORT },
    BEHIND,
    Scenario { name: "transport_tcp_v6", outer: INNER_V6.ends(), inner: Inner::hosts(INNER_V6.ends()), ..BEHIND },
    Scenario { name: "transport_tcp_v4_esn", esn: true, window: 1024, ..BEHIND },
    Scenario { name: "gcm_128_64/v6", suite: Suite::gcm(20, 64), window: 1024, ..V6 },
    Scenario { name: "gcm_192_96/v4_in_v6", suite: Suite::gcm(28, 96), esn: true, ..V4_IN_V6 },
    Scenario { name: "chacha/v4_in_v6", suite: CHACHA, esn: true, window: 1024, ..V4_IN_V6 },
    Scenario { name: "chacha/v6_in_v4_in_udp", suite: CHACHA, udp: true, ..V6_IN_V4 },
    Scenario { name: "gmac_128/v6_in_v4", suite: GMAC_128, esn: true, ..V6_IN_V4 },
    Scenario { name: "gmac_256/transport_v6", suite: GMAC_256, window: 1024, ..TRANSPORT_V6 },
    Scenario { name: "ccm_128_64/v4_in_udp", suite: CCM_128, udp: true, window: 1024, ..V4 },
    Scenario { name: "ccm_256_128/transport_v4", suite: CCM_256, esn: true, ..TRANSPORT_V4 },
    Scenario { name: "cbc_md5/v6", suite: CBC_MD5, ..V6 },
    Scenario { name: "cbc_sha1/v4", suite: CBC_SHA1, ..V4 },
    Scenario { name: "cbc_sha1/transport_v4", suite: CBC_SHA1, window: 1024, ..TRANSPORT_V4 },
    Scenario { name: "cbc_sha256_96/v6_in_v4_in_udp", suite: CBC_SHA256_96, esn: true, udp: true, ..V6_IN_V4 },
    Scenario { name: "cbc_sha256_128/v4", suite: CBC_SHA256_128, esn: true, window: 1024, ..V4 },
    Scenario { name: "cbc_sha384/v4_in_v6", suite: CBC_SHA384, window: 1024, ..V4_IN_V6 },
    Scenario { name: "cbc_sha512/transport_v6", suite: CBC_SHA512, esn: true, ..TRANSPORT_V6 },
    Scenario { name: "cbc_cmac/v6", suite: CBC_CMAC, esn: true, window: 1024, ..V6 },
    Scenario { name: "cbc_xcbc/v4_in_udp", suite: CBC_XCBC, esn: true, udp: true, ..V4 },
    Scenario { name: "cbc_rmd160/v4_in_v6", suite: CBC_RMD160, ..V4_IN_V6 },
    Scenario { name: "null_sha256/v4_in_udp", suite: NULL_SHA256, esn: true, udp: true, ..V4 },
    Scenario { name: "null_sha256/transport_v6", suite: NULL_SHA256, ..TRANSPORT_V6 },
    Scenario { name: "ctr_sha256/v4", suite: CTR_SHA256, esn: true, window: 1024, ..V4 },
    Scenario { name: "wrap/gcm_256/v4", esn: true, window: 1024, start: NEAR_WRAP, ..V4 },
    Scenario { name: "wrap/cbc_sha256/v6_in_v4_in_udp", suite: CBC_SHA256_128, udp: true, ..WRAP_V6_IN_V4 },
    Scenario { name: "wrap/gmac_128/v6_in_v4", suite: GMAC_128, ..WRAP_V6_IN_V4 },
];

/// Initial sequence number whose lower half soon wraps.
const NEAR_WRAP: u32 = 0xffff_ff00;

const WRAP_V6_IN_V4: Scenario = Scenario { esn: true, window: 1024, start: NEAR_WRAP, ..V6_IN_V4 };

impl Scenario {
    /// Builds the site and carries traffic over it.
    pub(crate) fn run(&self, near: Near) -> Outcome {
        let esp = Esp {
            suite: self.suite,
            esn: self.esn,
            window: self.window,
            start: self.start,
            udp: self.udp,
            behind: self.behind,
            ..Esp::new(self.mode, self.outer, &[(self.inner.near_net, self.inner.peer_net)])
        };
        let mut site = Site::new(near, &esp)?;
        match self.mode {
            Mode::Tunnel => tunnel_traffic(&mut site, &self.inner),
            Mode::Transport if self.behind => behind_traffic(&mut site, &self.inner),
            Mode::Transport => transport_traffic(&mut site, near, &self.inner),
        }
        .map_err(|failed| format!("{}{}", failed.message().unwrap_or_default(), site.evidence()))?;
        if self.start > 0 {
            site.has_wrapped()?;
        }
        site.peer_errors()
    }
}

/// Traffic between a host behind the near end and the peer itself.
fn tunnel_traffic(site: &mut Site, inner: &Inner) -> Outcome {
    let (host, peer) = (inner.near.parse()?, inner.peer.parse()?);
    // The first packet of the link's MTU gives the host the tunnel's MTU by an ICMP error, and may be lost (RFC 1191).
    let _ = site.host.sh(&ping_script(peer, &[1472]));
    site.host.sh(&ping_script(peer, PING_SIZES))?;
    site.peer.sh(&ping_script(host, SOME_SIZES))?;
    stream_to_host(&site.host, &mut site.peer, host)?;
    stream_to_peer(&site.host, &mut site.peer, host)
}

/// Pings between the ends of the connection; fatpath's own end only replies.
fn transport_traffic(site: &mut Site, near: Near, inner: &Inner) -> Outcome {
    let (own, peer): (IpAddr, IpAddr) = (inner.near.parse()?, inner.peer.parse()?);
    match near {
        Near::Linux => {
            site.peer.sh(&ping_script(own, PING_SIZES))?;
            site.near_linux()?.sh(&ping_script(peer, SOME_SIZES))?;
        }
        Near::Fatpath => {
            site.peer.sh(&ping_script(own, PING_SIZES))?;
        }
    }
    Ok(())
}

/// Traffic between the peer and a host, which are the ends of the connection. A gateway cannot protect fragments.
fn behind_traffic(site: &mut Site, inner: &Inner) -> Outcome {
    let (host, peer): (IpAddr, IpAddr) = (inner.near.parse()?, inner.peer.parse()?);
    let largest = if host.is_ipv4() { 1438 } else { 1418 };
    let whole: Vec<u16> = PING_SIZES.iter().copied().filter(|&size| size < largest).chain([largest]).collect();
    site.host.sh(&ping_script(peer, &whole))?;
    site.peer.sh(&ping_script(host, &whole))?;
    stream_to_host(&site.host, &mut site.peer, host)?;
    stream_to_peer(&site.host, &mut site.peer, host)
}

/// A TCP stream from the peer to a host behind the near end.
pub(crate) fn stream_to_host(near: &Netns, peer: &mut Uml, host: IpAddr) -> Outcome {
    let data = blob(STREAM_LEN);
    let endpoint = Endpoint::listen(near, SocketAddr::new(host, 0))?;
    peer.put("stream", &data)?;
    let script = format!("exec timeout 20 bash -c 'cat stream >/dev/tcp/{host}/{}'", endpoint.address()?.port());
    let sending = peer.start(&script)?;
    let received = endpoint.receive();
    sending.wait()?;
    compare(&digest(&received?).to_string(), &data)
}

/// A TCP stream from a host behind the near end to the peer.
pub(crate) fn stream_to_peer(near: &Netns, peer: &mut Uml, host: IpAddr) -> Outcome {
    let data = blob(STREAM_LEN);
    let endpoint = Endpoint::listen(near, SocketAddr::new(host, 0))?;
    let script = format!("exec timeout 20 bash -c 'sha256sum </dev/tcp/{host}/{}'", endpoint.address()?.port());
    let receiving = peer.start(&script)?;
    let sent = endpoint.send(&data);
    let sum = receiving.wait()?;
    sent?;
    compare(sum.split_whitespace().next().unwrap_or_default(), &data)
}

fn compare(sum: &str, data: &[u8]) -> Outcome {
    let want = digest(data).to_string();
    if sum == want { Ok(()) } else { Err(format!("the stream's SHA-256 is {sum}, {want} was sent").into()) }
}
