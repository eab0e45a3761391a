//! `qdisc` of a `[[link]]`: the link's queueing discipline, with the words and units of `tc`.

use ::qdisc::{Depth, Kind, LinkLayer, Options, OptionsError, Peak, RateSpec, Tbf};

use super::reader::{Result, Table, Value, quoted};

const KEYS: &[&str] = &["kind", "limit", "rate", "burst", "latency", "peakrate", "mtu", "overhead", "mpu", "linklayer"];

/// Default limit of a `pfifo` in packets: Linux's `txqueuelen`.
const PFIFO_LIMIT: u32 = 1000;

const RATE: &str = "a rate such as \"100mbit\"";
const SIZE: &str = "a number of bytes, or a size such as \"32kb\"";
const TIME: &str = "a time such as \"50ms\"";

/// Reads the discipline of one link.
pub(super) fn read(value: &Value<'_>) -> Result<Options> {
    let table = value.table(KEYS)?;
    let kinds = Kind::ALL.map(|kind| (kind.name(), kind));
    let kind = table.need("kind", "use pfifo, bfifo or tbf")?.word(&kinds)?;
    if kind != Kind::Tbf {
        for key in KEYS.iter().skip(2) {
            if let Some(value) = table.get(key) {
                return Err(value.error("is only for tbf; take it out"));
            }
        }
    }
    match kind {
        Kind::Pfifo => {
            let limit = table.get("limit").map_or(Ok(PFIFO_LIMIT), |value| value.number(0..=u32::MAX))?;
            Ok(Options::Pfifo { limit })
        }
        Kind::Bfifo => Ok(Options::Bfifo { limit: size(&table.need("limit", &format!("use {SIZE}"))?)? }),
        Kind::Tbf => tbf(&table).map(Options::Tbf),
    }
}

fn tbf(table: &Table<'_>) -> Result<Tbf> {
    let link_layer = table.get("linklayer").map(|value| {
        value.word(&[("ethernet", LinkLayer::ETHERNET), ("atm", LinkLayer::ATM), ("adsl", LinkLayer::ATM)])
    });
    let bytes = |key| table.get(key).map_or(Ok(0), |value| value.number(0..=u16::MAX));
    let costs = RateSpec {
        rate: 0,
        overhead: bytes("overhead")?,
        mpu: bytes("mpu")?,
        link_layer: link_layer.unwrap_or(Ok(LinkLayer::ETHERNET))?,
    };
    let rate_value = table.need("rate", &format!("use {RATE}"))?;
    let rate = RateSpec { rate: rate(&rate_value)?, ..costs };
    let burst_value = table.need("burst", &format!("use {SIZE}"))?;
    let burst = size(&burst_value)?;
    let peak = match (table.get("peakrate"), table.get("mtu")) {
        (Some(peak), Some(mtu)) => Some((RateSpec { rate: self::rate(&peak)?, ..costs }, size(&mtu)?)),
        (Some(_), None) => return Err(table.missing("mtu", &format!("peakrate needs it; use {SIZE}"))),
        (None, Some(mtu)) => return Err(mtu.error("is only for a tbf with peakrate; take it out")),
        (None, None) => None,
    };
    let limit = match (table.get("limit"), table.get("latency")) {
        (Some(limit), None) => size(&limit)?,
        (None, Some(latency)) => {
            let seconds = time(&latency)?;
            // As in `tc`: the bytes that each rate passes in the time, plus its burst; the smaller of both.
            let bytes = |rate: RateSpec, burst: u32| rate.rate as f64 * seconds + f64::from(burst);
            let by_peak = peak.map_or(f64::INFINITY, |(rate, mtu)| bytes(rate, mtu));
            whole(&latency, bytes(rate, burst).min(by_peak), u32::MAX.into())? as u32
        }
        (None, None) => return Err(table.missing("limit", &format!("use {SIZE}, or latency"))),
        (Some(_), Some(latency)) => return Err(latency.error("cannot be combined with limit; take one out")),
    };
    let peak = peak.map(|(rate, mtu)| Peak { rate, mtu: Depth::Bytes(mtu) });
    let tbf = Tbf { limit, rate, burst: Depth::Bytes(burst), peak };
    match tbf.max_len() {
        Ok(_) => Ok(tbf),
        Err(OptionsError::PeakRate { .. }) => {
            let value = table.need("peakrate", RATE)?;
            Err(value.error("does not exceed rate; use a higher one, or take it out"))
        }
        Err(OptionsError::NoRate) => Err(rate_value.error(format!("is no rate; use {RATE}"))),
        Err(OptionsError::NoBurst | OptionsError::KindMismatch) => {
            Err(burst_value.error("no packet fits in it; use at least the MTU of the link and 14 bytes"))
        }
    }
}

/// Reads a number of bytes, or a size with a unit of `tc`, as [`size_up_to`].
fn size(value: &Value<'_>) -> Result<u32> {
    Ok(size_up_to(value, u32::MAX.into())? as u32)
}

/// Reads a number of bytes up to `most`, or a size with a unit of `tc`: powers of 1024.
pub(super) fn size_up_to(value: &Value<'_>, most: u64) -> Result<u64> {
    const UNITS: [(&str, f64); 10] = [
        ("", 1.0),
        ("b", 1.0),
        ("k", 1024.0),
        ("kb", 1024.0),
        ("m", 1048576.0),
        ("mb", 1048576.0),
        ("g", 1073741824.0),
        ("gb", 1073741824.0),
        ("kbit", 128.0),
        ("mbit", 131072.0),
    ];
    if value.is_number() {
        return value.number(0..=most);
    }
    Ok(whole(value, with_unit(value, &UNITS, SIZE)?, most as f64)? as u64)
}

/// Reads a rate with a unit of `tc`, in bytes per second; without a unit it is in bits.
fn rate(value: &Value<'_>) -> Result<u64> {
    const UNITS: [(&str, f64); 19] = [
        ("", 0.125),
        ("bit", 0.125),
        ("kbit", 125.0),
        ("mbit", 125e3),
        ("gbit", 125e6),
        ("tbit", 125e9),
        ("kibit", 128.0),
        ("mibit", 131072.0),
        ("gibit", 134217728.0),
        ("tibit", 137438953472.0),
        ("bps", 1.0),
        ("kbps", 1e3),
        ("mbps", 1e6),
        ("gbps", 1e9),
        ("tbps", 1e12),
        ("kibps", 1024.0),
        ("mibps", 1048576.0),
        ("gibps", 1073741824.0),
        ("tibps", 1099511627776.0),
    ];
    // Above this limit, a float does not represent all whole numbers.
    const MOST: f64 = 9007199254740992.0;
    Ok(whole(value, with_unit(value, &UNITS, RATE)?, MOST)? as u64)
}

/// Reads a time with a unit of `tc`, in seconds.
fn time(value: &Value<'_>) -> Result<f64> {
    const UNITS: [(&str, f64); 9] = [
        ("s", 1.0),
        ("sec", 1.0),
        ("secs", 1.0),
        ("ms", 1e-3),
        ("msec", 1e-3),
        ("msecs", 1e-3),
        ("us", 1e-6),
        ("usec", 1e-6),
        ("usecs", 1e-6),
    ];
    with_unit(value, &UNITS, TIME)
}

/// Reads a decimal fraction with one of `units`, in any case; `hint` is an example for errors.
fn with_unit(value: &Value<'_>, units: &[(&str, f64)], hint: &str) -> Result<f64> {
    let text = value.str()?;
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| factor);
    let number = number.parse::<f64>().ok().zip(factor).map(|(number, factor)| number * factor);
    number.ok_or_else(|| value.error(format!("{} is unknown; use {hint}", quoted(text))))
}

/// A number without its fraction, at most `most`.
fn whole(value: &Value<'_>, number: f64, most: f64) -> Result<f64> {
    match number.trunc() {
        number if number <= most => Ok(number),
        _ => Err(value.error(format!("is out of range; use at most {most} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Config;

    fn read_text(text: &str) -> std::result::Result<Option<Options>, String> {
        let toml = format!("[[link]]\nname = \"t\"\nkind = \"tun\"\nqdisc = {text}\n");
        let config = Config::from_toml(&toml, "f").map_err(|error| error.to_string())?;
        Ok(config.links[0].qdisc)
    }

    fn tbf(rate: u64, burst: u32, limit: u32) -> Tbf {
        let rate = RateSpec { rate, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
        Tbf { limit, rate, burst: Depth::Bytes(burst), peak: None }
    }

    #[test]
    fn disciplines_are_read_in_units_of_tc() {
        let with_peak = Tbf {
            rate: RateSpec { overhead: 24, mpu: 64, link_layer: LinkLayer::ATM, ..tbf(1_000_000, 0, 0).rate },
            peak: Some(Peak {
                rate: RateSpec { rate: 2_000_000, overhead: 24, mpu: 64, link_layer: LinkLayer::ATM },
                mtu: Depth::Bytes(1540),
            }),
            // 2 MB/s for 1 ms, plus one packet of 1540 bytes.
            ..tbf(0, 20480, 3540)
        };
        let cases = [
            ("{ kind = \"pfifo\" }", Options::Pfifo { limit: 1000 }),
            ("{ kind = \"pfifo\", limit = 0 }", Options::Pfifo { limit: 0 }),
            ("{ kind = \"bfifo\", limit = 3000 }", Options::Bfifo { limit: 3000 }),
            ("{ kind = \"bfifo\", limit = \"1.5k\" }", Options::Bfifo { limit: 1536 }),
            (
                "{ kind = \"tbf\", rate = \"100mbit\", burst = \"32kb\", limit = \"3MB\" }",
                Options::Tbf(tbf(12_500_000, 32768, 3 << 20)),
            ),
            (
                "{ kind = \"tbf\", rate = \"8000\", burst = 1600, latency = \"50ms\" }",
                Options::Tbf(tbf(1000, 1600, 1650)),
            ),
            (
                "{ kind = \"tbf\", rate = \"1mbps\", burst = \"20k\", latency = \"1ms\", peakrate = \"16mbit\", mtu = 1540, \
                 overhead = 24, mpu = 64, linklayer = \"atm\" }",
                Options::Tbf(with_peak),
            ),
        ];
        for (text, want) in cases {
            assert_eq!(read_text(text), Ok(Some(want)), "{text}");
        }
    }

    #[test]
    fn disciplines_that_cannot_be_are_refused_by_name() {
        let tbf = |more: &str| format!("{{ kind = \"tbf\", {more} }}");
        let cases = [
            ("\"tbf rate 1mbit\"".to_owned(), "f:4: link[0].qdisc: is a text; use a table."),
            ("{}".to_owned(), "f:4: link[0].qdisc.kind: missing; use pfifo, bfifo or tbf."),
            ("{ kind = \"htb\" }".to_owned(), "f:4: link[0].qdisc.kind: htb is unknown; use pfifo, bfifo or tbf."),
            (
                "{ kind = \"pfifo\", rate = \"1mbit\" }".to_owned(),
                "f:4: link[0].qdisc.rate: is only for tbf; take it out.",
            ),
            (
                "{ kind = \"bfifo\" }".to_owned(),
                "f:4: link[0].qdisc.limit: missing; use a number of bytes, or a size such as \"32kb\".",
            ),
            (
                "{ kind = \"bfifo\", limit = \"4g\" }".to_owned(),
                "f:4: link[0].qdisc.limit: is out of range; use at most 4294967295 bytes.",
            ),
            (tbf("burst = 1"), "f:4: link[0].qdisc.rate: missing; use a rate such as \"100mbit\"."),
            (
                tbf("rate = \"1furlong\", burst = 1"),
                "f:4: link[0].qdisc.rate: 1furlong is unknown; use a rate such as \"100mbit\".",
            ),
            (
                tbf("rate = \"0bit\", burst = 2000, limit = 1"),
                "f:4: link[0].qdisc.rate: is no rate; use a rate such as \"100mbit\".",
            ),
            (
                tbf("rate = \"1mbit\", burst = 2000"),
                "f:4: link[0].qdisc.limit: missing; use a number of bytes, or a size such as \"32kb\", or latency.",
            ),
            (
                tbf("rate = \"1mbit\", burst = 2000, limit = 1, latency = \"1s\""),
                "f:4: link[0].qdisc.latency: cannot be combined with limit; take one out.",
            ),
            (
                tbf("rate = \"1mbit\", burst = 2000, latency = \"1\""),
                "f:4: link[0].qdisc.latency: 1 is unknown; use a time such as \"50ms\".",
            ),
            (
                tbf("rate = \"1mbit\", burst = 0, limit = 1"),
                "f:4: link[0].qdisc.burst: no packet fits in it; use at least the MTU of the link and 14 bytes.",
            ),
            (
                tbf("rate = \"2mbit\", burst = 2000, limit = 1, peakrate = \"1mbit\", mtu = 1540"),
                "f:4: link[0].qdisc.peakrate: does not exceed rate; use a higher one, or take it out.",
            ),
            (
                tbf("rate = \"2mbit\", burst = 2000, limit = 1, mtu = 1540"),
                "f:4: link[0].qdisc.mtu: is only for a tbf with peakrate; take it out.",
            ),
            (
                tbf("rate = \"999999999tbit\", burst = 2000, limit = 1"),
                "f:4: link[0].qdisc.rate: is out of range; use at most 9007199254740992 bytes.",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(read_text(&text), Err(want.to_owned()), "{text}");
        }
        let vrf = "[[link]]\nname = \"v\"\nkind = \"vrf\"\ntable = 7\nqdisc = { kind = \"pfifo\" }\n";
        let of_vrf = Config::from_toml(vrf, "f").unwrap().links[0].qdisc;
        assert_eq!(of_vrf, Some(Options::Pfifo { limit: 1000 }), "the device of a VRF has one, too");
    }
}
