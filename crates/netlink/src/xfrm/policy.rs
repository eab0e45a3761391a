//! Policies in messages: parsing and serialisation (Linux `xfrm_policy_construct`, `xfrm_dump_policy`).

use xfrm::Mark;

use super::attributes::Attributes;
use super::check;
use super::layout::{Layout, PolicyId, PolicyInfo, Tmpl};
use super::nums::attr;
use super::sa::{mark, put_mark};
use crate::attr::Attr;
use crate::error::Error;
use crate::message::Writer;

/// Policy of a request or a reply.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Policy {
    /// Fixed part.
    pub info: PolicyInfo,
    /// SAs to apply to the policy's packets.
    pub templates: Vec<Tmpl>,
    /// Mark of the policy's packets.
    pub mark: Mark,
    /// Number of the policy's XFRM interface.
    pub if_id: u32,
}

impl Policy {
    /// Parses `NEWPOLICY` and `UPDPOLICY`.
    ///
    /// # Errors
    /// Linux's refusal of the request.
    pub(super) fn parse(info: &[u8], attrs: &Attributes<'_>) -> Result<Self, Error> {
        let info = PolicyInfo::of(info);
        check::new_policy(&info, attrs)?;
        check::policy_type(attrs)?;
        let templates = check::templates(attrs, info.sel.family, info.dir)?;
        check::policy_offload(attrs)?;
        check::interface(attrs)?;
        check::policy_flags(info.flags)?;
        let if_id = attrs.get(attr::IF_ID).map_or(0, Attr::u32);
        Ok(Self { info, templates, mark: mark(attrs), if_id })
    }

    /// Writes the payload of `NEWPOLICY`.
    pub(super) fn write(&self, w: &mut Writer) {
        w.fixed(&self.info.to_bytes());
        self.write_attributes(w);
    }

    /// Writes the attributes.
    pub(super) fn write_attributes(&self, w: &mut Writer) {
        if !self.templates.is_empty() {
            let bytes: Vec<u8> = self.templates.iter().flat_map(Layout::to_bytes).collect();
            w.put(attr::TMPL, &bytes);
        }
        // `struct xfrm_userpolicy_type`: main.
        w.put(attr::POLICY_TYPE, &[0; 6]);
        put_mark(w, self.mark);
        if self.if_id != 0 {
            w.put_u32(attr::IF_ID, self.if_id);
        }
    }
}

/// Key of the policy in a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PolicyQuery {
    /// Number of the policy if not 0, else its selector.
    pub id: PolicyId,
    /// Mark.
    pub mark: Mark,
    /// Number of the policy's XFRM interface.
    pub if_id: u32,
}

impl PolicyQuery {
    /// Parses `DELPOLICY` and `GETPOLICY`.
    pub(super) fn parse(id: &[u8], attrs: &Attributes<'_>) -> Result<Self, Error> {
        let id = PolicyId::of(id);
        check::policy_type(attrs)?;
        check::policy_dir(id.dir)?;
        Ok(Self { id, mark: mark(attrs), if_id: attrs.get(attr::IF_ID).map_or(0, Attr::u32) })
    }
}
