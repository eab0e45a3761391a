//! Files of very many SAs, policies and routes. How often each is compared by a reload is counted in `reload.rs`.

use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use config::Config;

/// As a file of a gateway with a tunnel to each of so many peers: two SAs and a route each, and a policy for every fifth.
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

/// The time that it takes to read all SAs.
fn time(read: impl FnOnce() -> usize) -> Duration {
    let before = Instant::now();
    assert_eq!(read(), 60_000);
    before.elapsed()
}

/// A file takes as long as its two halves. Where each of its 60 000 SAs, or 30 000 routes, was searched for among all others, the
/// file would take twice as long. The halves are larger than a processor's caches, as the file is, so that their size does
/// not matter. One round out of ten has to be quiet enough to show it.
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
