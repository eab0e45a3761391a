//! The configuration file: TOML with iproute2's words.
//!
//! Everything is checked before anything is returned, in the order links, routes, SAs, policies, and the first thing
//! that is wrong is the error. What a file may say, table by table, is in the modules below.

mod algorithm;
mod crypto;
mod index;
mod ipsec;
mod link;
mod nat;
mod reader;
mod reassembly;
mod route;
mod xfrm;

use index::Index;
pub(crate) use ipsec::PROTOCOLS;
pub use reader::ConfigError;
use reader::{Result, Source};

use crate::model::Config;

/// What a file consists of.
const ROOT_KEYS: &[&str] = &["link", "route", "sa", "policy", "ipsec", "policy-default", "crypto", "reassembly"];

impl Config {
    /// Reads and checks a whole file. `file` is its name, for errors alone.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn from_toml(text: &str, file: &str) -> Result<Self> {
        let source = Source::new(file, text);
        let document = source.parse()?;
        let root = source.root(&document, ROOT_KEYS)?;
        let mut config =
            Self { xfrm: xfrm::options(&root)?, policy_default: xfrm::policy_default(&root)?, ..Self::default() };
        let links = root.tables("link", link::KEYS)?;
        for table in &links {
            let link = link::read(table, &config.links)?;
            config.links.push(link);
        }
        links.iter().try_for_each(|table| link::check_master(table, &config.links))?;
        let mut index = Index::of_links(&config.links);
        let routes = root.tables("route", route::KEYS)?;
        routes.iter().for_each(|table| route::note_direct(table, &mut index));
        for table in routes {
            let route = route::read(&table, &config, &index)?;
            index.push_route(&route);
            config.routes.push(route);
        }
        for table in root.tables("sa", ipsec::SA_KEYS)? {
            let sa = ipsec::read_sa(&table, &config, &index)?;
            index.push_sa(&sa);
            config.sas.push(sa);
        }
        for table in root.tables("policy", ipsec::POLICY_KEYS)? {
            let policy = ipsec::read_policy(&table, &config, &mut index)?;
            index.push_policy(&policy);
            config.policies.push(policy);
        }
        if let Some(value) = root.get("crypto") {
            config.crypto = crypto::read(&value.table(crypto::KEYS)?)?;
        }
        if let Some(value) = root.get("reassembly") {
            config.reassembly = reassembly::read(&value.table(reassembly::KEYS)?)?;
        }
        Ok(config)
    }
}
