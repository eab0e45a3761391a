//! Attributes of requests for links.

use crate::attr::{Attr, AttrPolicy, Attrs, Kind, Strictness, policy};
use crate::error::Error;
use crate::rtnl::nums::*;
use config::features::FeatureSet;

/// Contents of an `IFLA_LINKINFO` attribute.
#[derive(Debug, Default)]
pub(super) struct LinkInfo<'a> {
    /// Kind of the link.
    pub(super) kind: Option<String>,
    /// Settings of the kind (`IFLA_INFO_DATA`).
    pub(super) data: Option<Attr<'a>>,
    /// Settings as a member of the master (`IFLA_INFO_SLAVE_DATA`).
    pub(super) member_data: Option<Attr<'a>>,
}

/// Parses an `IFLA_LINKINFO` attribute.
pub(super) fn info_of<'a>(info: &Attr<'a>) -> Result<LinkInfo<'a>, Error> {
    const INFO: AttrPolicy<6> = policy(&[
        (IFLA_INFO_KIND, Kind::Str(64)),
        (IFLA_INFO_DATA, Kind::Nested),
        (IFLA_INFO_SLAVE_KIND, Kind::Str(64)),
        (IFLA_INFO_SLAVE_DATA, Kind::Nested),
    ]);
    let info = info.parse(&INFO, Strictness::Liberal)?;
    let kind = info.get(IFLA_INFO_KIND).and_then(Attr::text).map(str::to_owned);
    Ok(LinkInfo { kind, data: info.get(IFLA_INFO_DATA).copied(), member_data: info.get(IFLA_INFO_SLAVE_DATA).copied() })
}

/// Kind in `IFLA_LINKINFO`.
pub(super) fn kind_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<String>, Error> {
    attrs.get(IFLA_LINKINFO).map_or(Ok(None), |info| Ok(info_of(info)?.kind))
}

/// Requested features of a saved link.
pub(super) fn features_of<const N: usize>(attrs: &Attrs<'_, N>) -> Result<Option<FeatureSet>, Error> {
    const INFO: AttrPolicy<6> = policy(&[(IFLA_INFO_DATA, Kind::Nested)]);
    let Some(info) = attrs.get(IFLA_LINKINFO) else { return Ok(None) };
    let info = info.parse(&INFO, Strictness::Liberal)?;
    let mut settings = info.get(IFLA_INFO_DATA).into_iter().flat_map(Attr::iter);
    let features = settings.find(|setting| setting.kind == IFLA_FATPATH_FEATURES);
    Ok(features.map(|features| FeatureSet(features.u64()) & FeatureSet::SWITCHED))
}
