//! Configuration file: TOML with iproute2's words.
//!
//! All checks are done before anything is returned, in the order links, routes, SAs, policies, ILA mappings, and the
//! first fault is the error. Each table of the file has a module.

mod algorithm;
mod bridge;
mod crypto;
mod dev;
mod device;
mod document;
mod host;
mod ila;
mod index;
mod ipsec;
mod link;
mod nat;
mod qdisc;
mod reader;
mod reassembly;
mod route;
mod worker;
mod xfrm;

use document::Document;
use index::Index;
pub use reader::ConfigError;
use reader::{Result, Source};

use crate::model::Config;

/// Top-level keys of a file.
const ROOT_KEYS: &[&str] = &[
    "link",
    "route",
    "sa",
    "policy",
    "ipsec",
    "policy-default",
    "worker",
    "crypto",
    "reassembly",
    "host",
    "ila",
    "ila-adj-transport",
    "ila-icmp-errors",
];

impl Config {
    /// Reads and validates a whole file. `file` is its name, for errors only.
    ///
    /// # Errors
    /// The first fault in the file.
    pub fn from_toml(text: &str, file: &str) -> Result<Self> {
        Document::read(Source::new(file, text), Self::from_document)
    }

    fn from_document(root: &Document<'_>) -> Result<Self> {
        root.check_keys(ROOT_KEYS)?;
        let mut config =
            Self { xfrm: xfrm::options(root)?, policy_default: xfrm::policy_default(root)?, ..Self::default() };
        root.each("link", link::KEYS, |table| {
            if link::is_loopback(table) {
                if !config.lo.is_empty() {
                    let name = table.need("name", "lo")?;
                    return Err(name.error("lo is given twice; put its addresses into one table"));
                }
                config.lo = link::read_loopback(table)?;
                return Ok(());
            }
            let link = link::read(table, &config.links)?;
            config.links.push(link);
            Ok(())
        })?;
        root.each("link", link::KEYS, |table| link::check_master(table, &config.links))?;
        let mut index = Index::of_links(&config.links);
        root.each("route", route::KEYS, |table| {
            route::note_direct(table, &mut index);
            Ok(())
        })?;
        root.each("route", route::KEYS, |table| {
            let route = route::read(table, &config, &index)?;
            index.push_route(&route);
            config.routes.push(route);
            Ok(())
        })?;
        root.each("sa", ipsec::SA_KEYS, |table| {
            let sa = ipsec::read_sa(table, &config, &index)?;
            index.push_sa(&sa);
            config.sas.push(sa);
            Ok(())
        })?;
        root.each("policy", ipsec::POLICY_KEYS, |table| {
            let policy = ipsec::read_policy(table, &config, &mut index)?;
            index.push_policy(&policy);
            config.policies.push(policy);
            Ok(())
        })?;
        let mut mappings = ila::Seen::default();
        root.each("ila", ila::KEYS, |table| {
            let mapping = ila::read(table, &config, &mut mappings)?;
            config.ila.push(mapping);
            Ok(())
        })?;
        if let Some(value) = root.get("ila-adj-transport") {
            config.ila_adj_transport = value.word(ila::ADJ_TRANSPORT)?;
        }
        if let Some(value) = root.get("ila-icmp-errors") {
            config.ila_icmp_errors = value.word(ila::ICMP_ERRORS)?;
        }
        if let Some(value) = root.get("worker") {
            config.worker = worker::read(&value.table(worker::KEYS)?)?;
        }
        if let Some(value) = root.get("crypto") {
            config.crypto = crypto::read(&value.table(crypto::KEYS)?)?;
        }
        if let Some(value) = root.get("reassembly") {
            config.reassembly = reassembly::read(&value.table(reassembly::KEYS)?)?;
        }
        if let Some(value) = root.get("host") {
            config.host = host::read(&value.table(host::KEYS)?)?;
        }
        Ok(config)
    }
}
