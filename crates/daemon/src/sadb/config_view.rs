//! SAs and policies in the words of the file, for `fatpath show`.

use std::collections::HashSet;

use base::SaId;
use config::model;

use crate::node::Node;
use crate::records::SaRecord;
use crate::translate::from_ipsec::sa_config;

/// The SAs that programs have added, as the file would have said it, the oldest first; without those of `known`.
pub(crate) fn added_sas<'a>(
    node: &'a Node,
    known: &'a HashSet<SaId>,
) -> impl Iterator<Item = (model::SaConfig, &'a ipsec::Sa)> {
    let sas = node.datapath.ipsec.sad().by_birth(u64::MAX).map(|(_, sa)| sa);
    let added = sas.filter(|sa| !known.contains(&sa.id()));
    added.filter_map(|sa| Some((sa_config(sa, sa.request::<SaRecord>()?.said.algorithm.clone()), sa)))
}
