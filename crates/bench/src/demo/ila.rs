//! Request/response streams between sockets of two gateways' host sides, whose packets travel under ILA addresses:
//!
//! - `none`: with the addresses of the sockets, untranslated;
//! - `lwt`: a route translates sent packets, and a route received ones;
//! - `hook`: a route translates sent packets, and a mapping, before early demux, received ones.

use std::net::{IpAddr, Ipv6Addr};

use testbed::Failure;

use super::config::worker;
use super::gateway::Gateway;
use super::meter::Cost;
use super::requests::{self, RequestEnds, Transactions};
use super::sample::DemoSample;
use super::site::{Site, explain, gbps, readings};
use super::stream::Stream;
use super::topology::Side;

/// Bytes of payload of a transaction.
const PAYLOAD: u64 = 2;
/// Factor from processor seconds for 10⁹ bytes to microseconds for one transaction.
const CPU_US_PER_TRANSACTION: f64 = PAYLOAD as f64 / 1e9 * 1e6;

/// Translator of received packets.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum IlaSetting {
    None,
    Lwt,
    Hook,
}

impl IlaSetting {
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Lwt, Self::Hook];

    /// Ratios: the quantity, and the two settings.
    pub(super) const RATIOS: [(&'static str, Self, Self); 2] =
        [("hook/none", Self::Hook, Self::None), ("lwt/none", Self::Lwt, Self::None)];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "rr/none",
            Self::Lwt => "rr/lwt",
            Self::Hook => "rr/hook",
        }
    }
}

/// SIR address of a side's sockets.
const fn sir(side: Side) -> Ipv6Addr {
    Ipv6Addr::new(0x3333, 0, 0, 1, 0x2000, 0, 0, side as u16 + 1)
}

/// The streams of one setting, through new gateways.
pub(super) fn measure(site: &Site, setting: IlaSetting, streams: u16) -> Result<DemoSample, Failure> {
    let start = |side| Gateway::launch(&site.topology, &site.scratch, side, &gateway_toml(setting, side), &site.stop);
    let mut gateways = [start(Side::A)?, start(Side::B)?];
    let [client, server] = [gateways[0].host_side()?, gateways[1].host_side()?];
    let ends = RequestEnds { client: &client, server: &server, to: IpAddr::V6(sir(Side::B)), streams };
    let mut before = None;
    let begins = || readings(&gateways).map(|read| before = Some(read));
    let measured = requests::builtin(ends, site.length, &site.stop, begins);
    let (mut times, elapsed) = measured.map_err(|failure| explain(failure, &mut gateways))?;
    let before = before.ok_or_else(|| Failure::step("measure", "it has not begun"))?;
    let after = readings(&gateways)?;
    let stream = Stream { bytes: times.len() as u64 * PAYLOAD, seconds: elapsed.as_secs_f64() };
    let cost = Cost::of_gateways(&before, &after, stream);
    let cpu_us = cost.cpu_s_per_gb * CPU_US_PER_TRANSACTION;
    let transactions = Some(Transactions { cpu_us, ..Transactions::of(&mut times, elapsed) });
    Ok(DemoSample { gbps: gbps(stream), arrived: None, changes: None, transactions, cost: Some(cost) })
}

/// The file of one side's gateway. A locator for each side, fd0a and fd0b.
fn gateway_toml(setting: IlaSetting, side: Side) -> String {
    let peer = side.other();
    let wire = |side: Side| Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, side as u16 + 1);
    let place = |side: Side| format!("fd0{}", side.letter());
    let mut toml = format!(
        "[[link]]\nname = \"wan\"\nkind = \"packet\"\ninterface = \"bare\"\naddresses = [\"{}/64\", \"{}/128\"]\n\n\
         [[route]]\nto = \"{}/128\"\nvia = \"{}\"\n",
        wire(side),
        sir(side),
        sir(peer),
        wire(peer)
    );
    if setting != IlaSetting::None {
        toml +=
            &format!("encap = {{ type = \"ila\", loc = \"{}:0:0:0\", csum-mode = \"neutral-map\" }}\n", place(peer));
    }
    toml += &match setting {
        IlaSetting::None => String::new(),
        IlaSetting::Lwt => format!(
            "\n[[route]]\nto = \"{}:0:0:0:2000::/67\"\ndev = \"wan\"\n\
             encap = {{ type = \"ila\", loc = \"3333:0:0:1\", csum-mode = \"neutral-map\", hook-type = \"input\" }}\n",
            place(side)
        ),
        IlaSetting::Hook => format!(
            "\n[[ila]]\nloc_match = \"{}:0:0:0\"\nloc = \"3333:0:0:1\"\ncsum-mode = \"neutral-map\"\n",
            place(side)
        ),
    };
    toml + &worker(side)
}

#[cfg(test)]
mod tests {
    use config::Config;

    use super::*;

    #[test]
    fn files_of_all_settings_are_accepted() {
        for setting in IlaSetting::ALL {
            for side in Side::BOTH {
                let toml = gateway_toml(setting, side);
                let config =
                    Config::from_toml(&toml, "demo.toml").unwrap_or_else(|err| panic!("{setting:?}: {err}\n{toml}"));
                let encaps = config.routes.iter().filter(|route| route.encap.is_some()).count();
                let want = match setting {
                    IlaSetting::None => (0, 0),
                    IlaSetting::Lwt => (2, 0),
                    IlaSetting::Hook => (1, 1),
                };
                assert_eq!((encaps, config.ila.len()), want);
            }
        }
    }
}
