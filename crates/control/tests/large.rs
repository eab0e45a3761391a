//! Files of very many SAs, policies and routes.

use std::fmt::Write;
use std::ops::Range;
use std::time::{Duration, Instant};

use control::{Change, Config};

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

fn time<T>(what: impl FnOnce() -> T) -> (Duration, T) {
    let before = Instant::now();
    let done = what();
    (before.elapsed(), done)
}

/// Compared with itself: a search for each of 60 000 SAs, or of 30 000 routes, among all others would take many times as long as the
/// same for each of 60 parts. One round out of ten has to be quiet enough to show it.
#[test]
fn a_large_file_is_read_and_compared_as_fast_as_its_parts() {
    const PEERS: u32 = 30_000;
    const PART: u32 = 500;
    let whole = file(0..PEERS);
    let parts: Vec<String> = (0..PEERS / PART).map(|at| file(at * PART..(at + 1) * PART)).collect();
    let read = |text: &str| Config::from_toml(text, "f").unwrap();
    let config = read(&whole);
    let counts = [config.sas.len(), config.policies.len(), config.routes.len()];
    assert_eq!(counts, [2 * PEERS, PEERS / 5, PEERS].map(|count| count as usize));
    let mut changed = config.clone();
    changed.sas[7].reqid = 99;
    let rounds = (0..10).map(|_| {
        let of_parts = time(|| parts.iter().map(|part| read(part).sas.len()).sum::<usize>()).0;
        let of_whole = time(|| read(&whole)).0;
        let (to_compare, change) = time(|| Change::between(&config, &changed));
        assert_eq!(change.sas.kept.iter().filter(|kept| kept.changed).count(), 1);
        (of_parts, of_whole, to_compare)
    });
    let mut seen = Vec::new();
    let is_quiet = |&(of_parts, of_whole, to_compare): &(Duration, Duration, Duration)| {
        of_whole < 3 * of_parts && to_compare < of_parts
    };
    assert!(rounds.inspect(|round| seen.push(*round)).any(|round| is_quiet(&round)), "{seen:?}");
}
