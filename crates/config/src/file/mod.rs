//! Configuration file: TOML with iproute2's words.
//!
//! All checks are done before anything is returned, in the order links, tunnels, routes, SAs, policies, ILA mappings;
//! the errors are those of all tables. Each table of the file has a module.

mod algorithm;
mod bridge;
mod crypto;
mod dev;
mod device;
mod document;
mod expand;
mod faults;
mod host;
mod ila;
mod index;
mod ipsec;
mod limits;
mod link;
mod meter;
mod nat;
mod qdisc;
mod reader;
mod reassembly;
mod route;
mod tunnel;
mod warnings;
mod worker;
mod xfrm;

use document::Document;
use faults::Faults;
pub use faults::Findings;
use index::{Index, Places};
pub use meter::Meter;
pub use reader::ConfigError;
use reader::{Result, Source};
use zeroize::Zeroizing;

use crate::model::Config;
use tunnel::{Expansion, Tunnel};

/// Top-level keys of a file.
const ROOT_KEYS: &[&str] = &[
    "link",
    "tunnel",
    "route",
    "sa",
    "policy",
    "ipsec",
    "policy-default",
    "worker",
    "crypto",
    "reassembly",
    "host",
    "limits",
    "ila",
    "ila-adj-transport",
    "ila-icmp-errors",
];

/// Outcome of reading a file without errors.
struct Read {
    config: Config,
    places: Places,
    expansions: Vec<Expansion>,
}

impl Config {
    /// Reads and validates a whole file. `file` is its name, for errors only.
    ///
    /// # Errors
    /// The first error of the file.
    pub fn from_toml(text: &str, file: &str) -> std::result::Result<Self, ConfigError> {
        let read = Document::read(Source::new(file, text), read_document);
        read.map(|read| read.config).map_err(|errors| {
            let none = ConfigError { file: file.to_owned(), line: 1, key: String::new(), text: String::new() };
            errors.first.into_iter().next().unwrap_or(none)
        })
    }

    /// Reads and validates a whole file, with warnings about what cannot work or is dangerous.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn with_warnings(text: &str, file: &str) -> std::result::Result<(Self, Findings), Findings> {
        Self::metered(text, file, &Meter::default())
    }

    /// As [`with_warnings`](Self::with_warnings), with the progress in `meter`.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn metered(text: &str, file: &str, meter: &Meter) -> std::result::Result<(Self, Findings), Findings> {
        let source = Source::new(file, text).metered(meter);
        let Read { config, places, .. } = Document::read(source, read_document)?;
        let warnings = warnings::of(&config, &places, source);
        Ok((config, warnings))
    }

    /// The file with each `[[tunnel]]` replaced by the tables that it stands for. Keys are left out unless
    /// `with_keys`; a file without its keys is refused when it is read.
    ///
    /// # Errors
    /// The errors of the file, or its tunnels are in a list in brackets.
    pub fn expand_toml(text: &str, file: &str, with_keys: bool) -> std::result::Result<Zeroizing<String>, Findings> {
        Document::read(Source::new(file, text), |root| {
            let read = read_document(root)?;
            expand::text(root, &read.expansions, with_keys)
        })
    }
}

/// Reads all tables of a document.
fn read_document(root: &Document<'_>) -> std::result::Result<Read, Findings> {
    let mut faults = Faults::new(root.source());
    root.check_keys(ROOT_KEYS, &mut faults);
    let mut config = Config {
        xfrm: faults.ok(xfrm::options(root)).unwrap_or_default(),
        policy_default: faults.ok(xfrm::policy_default(root)).unwrap_or_default(),
        ..Config::default()
    };
    let mut places = Vec::new();
    read_links(root, &mut config, &mut places, &mut faults);
    let tunnels = tunnel::read_all(root, &config, &places, &mut faults);
    let expansions = tunnel::expand(&tunnels, root, &config);
    config.tunnels = tunnels.iter().map(Tunnel::named).collect();
    let of_tunnels: Vec<Document<'_>> = expansions.iter().filter_map(Expansion::document).collect();
    for document in &of_tunnels {
        read_links(document, &mut config, &mut places, &mut faults);
    }
    root.each("link", link::KEYS, &mut faults, |table, _| link::check_master(table, &config.links));
    let mut index = Index::of_links(&config.links, places);
    let all = || std::iter::once(root).chain(&of_tunnels);
    for document in all() {
        document.each("route", route::KEYS, &mut faults, |table, _| {
            route::note_direct(table, &mut index);
            Ok(())
        });
    }
    for document in all() {
        document.each("route", route::KEYS, &mut faults, |table, place| {
            let route = route::read(table, &config, &index)?;
            index.push_route(&route, place);
            config.routes.push(route);
            Ok(())
        });
    }
    for document in all() {
        document.each("sa", ipsec::SA_KEYS, &mut faults, |table, place| {
            let sa = ipsec::read_sa(table, &config, &index)?;
            index.push_sa(&sa, place);
            config.sas.push(sa);
            Ok(())
        });
    }
    for document in all() {
        document.each("policy", ipsec::POLICY_KEYS, &mut faults, |table, place| {
            let policy = ipsec::read_policy(table, &config, &mut index)?;
            index.push_policy(&policy, place);
            config.policies.push(policy);
            Ok(())
        });
    }
    let mut mappings = ila::Seen::default();
    root.each("ila", ila::KEYS, &mut faults, |table, place| {
        let mapping = ila::read(table, &config, &mut mappings, place.n as usize)?;
        config.ila.push(mapping);
        Ok(())
    });
    read_settings(root, &mut config, &mut faults);
    let places = index.places;
    faults.finish(Read { config, places, expansions })
}

fn read_links(document: &Document<'_>, config: &mut Config, places: &mut Vec<faults::Place>, faults: &mut Faults<'_>) {
    document.each("link", link::KEYS, faults, |table, place| {
        if link::is_loopback(table) {
            if !config.lo.is_empty() {
                let name = table.need("name", "lo")?;
                return Err(name.error("lo is given twice; put its addresses into one table"));
            }
            config.lo = link::read_loopback(table)?;
            return Ok(());
        }
        let link = link::read(table, &config.links, places)?;
        config.links.push(link);
        places.push(place);
        Ok(())
    });
}

/// Reads the keys and tables that a file has at most once.
fn read_settings(root: &Document<'_>, config: &mut Config, faults: &mut Faults<'_>) {
    let mut set = |key: &str, read: &mut dyn FnMut(&reader::Value<'_>) -> Result<()>| {
        if let Some(value) = root.get(key) {
            faults.ok(read(&value));
        }
    };
    set("ila-adj-transport", &mut |value| {
        config.ila_adj_transport = value.word(ila::ADJ_TRANSPORT)?;
        Ok(())
    });
    set("ila-icmp-errors", &mut |value| {
        config.ila_icmp_errors = value.word(ila::ICMP_ERRORS)?;
        Ok(())
    });
    set("crypto", &mut |value| {
        config.crypto = crypto::read(&value.table(crypto::KEYS)?)?;
        Ok(())
    });
    set("reassembly", &mut |value| {
        config.reassembly = reassembly::read(&value.table(reassembly::KEYS)?)?;
        Ok(())
    });
    set("host", &mut |value| {
        config.host = host::read(&value.table(host::KEYS)?)?;
        Ok(())
    });
    set("limits", &mut |value| {
        config.limits = limits::read(&value.table(limits::KEYS)?, config)?;
        Ok(())
    });
    // The last one: it refuses what several workers cannot have.
    set("worker", &mut |value| {
        config.worker = worker::read(&value.table(worker::KEYS)?, config)?;
        Ok(())
    });
}
