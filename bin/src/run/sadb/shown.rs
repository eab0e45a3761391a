//! SAs and policies in the words of the file, for `fatpath show`.

use std::collections::HashSet;

use base::SaId;
use control::model;

use crate::run::node::Node;
use crate::run::translate::from_ipsec::sa_config;

/// The SAs that programs have added, as the file would have said it, the oldest first; without those of `known`.
pub(crate) fn added_sas<'a>(
    node: &'a Node,
    known: &'a HashSet<SaId>,
) -> impl Iterator<Item = (model::SaConfig, &'a ipsec::Sa)> {
    let records = node.sadb.sas.values().filter(|record| !known.contains(&record.id));
    records.filter_map(|record| {
        let sa = node.datapath.ipsec.sa(record.id)?;
        Some((sa_config(sa, record.said.algorithm.clone()), sa))
    })
}
