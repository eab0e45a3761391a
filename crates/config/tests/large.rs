//! Files with very many SAs, policies and routes. `reload.rs` counts the comparisons of a reload.

use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use config::Config;

/// File of a gateway with a tunnel to each peer in `peers`: two SAs and a route each, and a policy for every fifth.
fn file(peers: Range<u32>) -> String {
    let link = "[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\naddresses = [\"192.0.2.1/24\"]\n";
    let mut text = link.to_owned();
    for n in peers {
        let peer = std::net::Ipv4Addr::from_bits(0x6440_0000 + n);
        let key = format_args!("name = \"rfc4106(gcm(aes))\", key = \"0x{n:040x}\", icv = 128");
        for (src, dst, spi) in [("192.0.2.1", &*peer.to_string(), n + 1), (&*peer.to_string(), "192.0.2.1", n + 1)] {
            writeln!(
                text,
                "[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = {spi}\nmode = \"tunnel\"\nreqid = {spi}\naead = {{ {key} }}"
            )
            .unwrap();
        }
        let by = if n % 2 == 0 { "via = \"192.0.2.254\"" } else { "dev = \"eth0\"" };
        writeln!(text, "[[route]]\nto = \"{peer}/32\"\n{by}").unwrap();
        if n % 5 == 0 {
            let net = std::net::Ipv4Addr::from_bits(0x0a00_0000 + (n << 8));
            writeln!(
                text,
                "[[policy]]\ndir = \"out\"\ndst = \"{net}/24\"\ntmpl = [{{ src = \"192.0.2.1\", dst = \"{peer}\", mode = \"tunnel\", reqid = {} }}]",
                n + 1
            )
            .unwrap();
        }
    }
    text
}

/// Time to read all SAs.
fn time(read: impl FnOnce() -> usize) -> Duration {
    let before = Instant::now();
    assert_eq!(read(), 60_000);
    before.elapsed()
}

/// A file must take as long to read as its two halves. With a linear search for each of its 60 000 SAs or 30 000 routes
/// it would take twice as long. The halves exceed a processor's caches, like the whole file, so that cache effects are
/// equal. One undisturbed round out of ten suffices.
#[test]
fn large_file_is_read_in_linear_time() {
    const PEERS: u32 = 30_000;
    let whole = file(0..PEERS);
    let halves = [file(0..PEERS / 2), file(PEERS / 2..PEERS)];
    let read = |text: &str| Config::from_toml(text, "f").unwrap();
    let config = read(&whole);
    let counts = [config.sas.len(), config.policies.len(), config.routes.len()];
    assert_eq!(counts, [2 * PEERS, PEERS / 5, PEERS].map(|count| count as usize));
    let rounds = (0..10).map(|_| {
        let of_halves = time(|| halves.iter().map(|half| read(half).sas.len()).sum::<usize>());
        (of_halves, time(|| read(&whole).sas.len()))
    });
    let mut seen = Vec::new();
    let is_linear = |&(of_halves, of_whole): &(Duration, Duration)| 2 * of_whole < 3 * of_halves;
    assert!(rounds.inspect(|round| seen.push(*round)).any(|round| is_linear(&round)), "{seen:?}");
}
