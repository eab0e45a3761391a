//! State of one gateway for `fatpath status`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use base::DropReason;
use client::{CliError, Client};
use ctl::request::VIEW_ROWS;
use ctl::state::{DropState, LinkState, PolicyState, SaState, SummaryState};
use ctl::{Reply, Request, Shown, StateKind};
use serde::Serialize;

use super::tunnel::{TunnelKey, TunnelState, TunnelStatus, tunnels};

/// Time limit for a reply: a gateway that hangs must not keep the status of the others waiting.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Status of a gateway.
#[derive(Clone, Debug, Serialize)]
pub(super) struct GatewayStatus {
    /// Name.
    pub(super) name: String,
    /// Failure to reach the gateway; everything else is empty then.
    pub(super) error: Option<String>,
    /// Names of the links, without `lo`.
    pub(super) links: Vec<String>,
    /// Links that are down, with the reason.
    pub(super) links_down: Vec<LinkDown>,
    /// Tunnels.
    pub(super) tunnels: Vec<TunnelStatus>,
    /// Drops by reason, most frequent first.
    pub(super) drops: Vec<DropSum>,
    /// Reason for which the tunnels are left out.
    pub(super) tunnels_left_out: Option<String>,
}

/// Link that is down.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LinkDown {
    pub(super) link: String,
    pub(super) why: Option<String>,
}

/// Drops for one reason since the start of the gateway.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct DropSum {
    pub(super) reason: String,
    pub(super) count: u64,
    /// Input links of the packets.
    pub(super) links: Vec<String>,
    /// Cause, in a sentence.
    pub(super) cause: String,
    pub(super) remedy: String,
}

/// States of a gateway at one time.
#[derive(Debug)]
pub(super) struct Sample {
    at: Instant,
    links: Vec<LinkState>,
    policies: Vec<PolicyState>,
    sas: Vec<SaState>,
    drops: Vec<DropState>,
    /// Reason for which there are neither policies nor SAs.
    left_out: Option<String>,
}

impl Sample {
    /// Requests the states of the gateway `name`, whose control socket is at `path`.
    ///
    /// # Errors
    /// The gateway does not reply.
    pub(super) fn take(name: &str, path: &Path) -> Result<Self, CliError> {
        let mut client = Client::look_within(name, path.to_owned(), ANSWER_LIMIT)?;
        let is_viewer = client.is_viewer();
        let mut show = |what| match client.ask(&Request::Show { what })? {
            Reply::Show { shown } => Ok(shown),
            _ => Err(client.confused()),
        };
        let mismatch = || CliError::failed(format!("{}: the answer is to another question", path.display()));
        let Shown::Links(links) = show(StateKind::Links)? else { return Err(mismatch()) };
        let Shown::Drops(drops) = show(StateKind::Drops)? else { return Err(mismatch()) };
        let left_out = if is_viewer {
            let Shown::Summary(summary) = show(StateKind::Summary)? else { return Err(mismatch()) };
            too_many(&summary)
        } else {
            None
        };
        let (mut policies, mut sas) = (Vec::new(), Vec::new());
        if left_out.is_none() {
            let Shown::Policies(all) = show(StateKind::Policies)? else { return Err(mismatch()) };
            policies = all;
            let Shown::Sa(all) = show(StateKind::Sa)? else { return Err(mismatch()) };
            sas = all;
        }
        Ok(Self { at: Instant::now(), links, policies, sas, drops, left_out })
    }

    fn tunnels(&self) -> Vec<(TunnelKey, TunnelStatus)> {
        tunnels(&self.links, &self.policies, &self.sas)
    }

    /// Status at the time of this sample, with rates since the sample `earlier`.
    pub(super) fn status(&self, name: &str, earlier: Option<&Self>) -> GatewayStatus {
        let mut tunnels = self.tunnels();
        if let Some(earlier) = earlier {
            let millis = self.at.duration_since(earlier.at).as_millis().max(1) as u64;
            let before: BTreeMap<TunnelKey, TunnelStatus> = earlier.tunnels().into_iter().collect();
            for (key, tunnel) in &mut tunnels {
                let Some(before) = before.get(key) else { continue };
                // Bytes of SAs that are removed at a rekey leave the sum.
                let rate = |now: u64, before: u64| Some(now.checked_sub(before)?.saturating_mul(8_000) / millis);
                tunnel.rx_bits_per_second = rate(tunnel.rx_bytes, before.rx_bytes);
                tunnel.tx_bits_per_second = rate(tunnel.tx_bytes, before.tx_bytes);
            }
        }
        let own = || self.links.iter().filter(|link| link.name != "lo");
        let down = own().filter(|link| !link.up);
        GatewayStatus {
            name: name.to_owned(),
            error: None,
            links: own().map(|link| link.name.clone()).collect(),
            links_down: down.map(|link| LinkDown { link: link.name.clone(), why: link.why_down.clone() }).collect(),
            tunnels: tunnels.into_iter().map(|(_, tunnel)| tunnel).collect(),
            drops: sums(&self.drops, |name| own().any(|link| link.name == name && link.kind == "udp")),
            tunnels_left_out: self.left_out.clone(),
        }
    }
}

impl GatewayStatus {
    /// Status of a gateway that could not be asked.
    pub(super) fn unreachable(name: &str, error: String) -> Self {
        let (links, links_down, tunnels, drops) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let tunnels_left_out = None;
        Self { name: name.to_owned(), error: Some(error), links, links_down, tunnels, drops, tunnels_left_out }
    }

    /// Whether the gateway did not answer, or one of its tunnels is down or may be.
    pub(super) fn has_failure(&self) -> bool {
        self.error.is_some()
            || self.tunnels_left_out.is_some()
            || self.tunnels.iter().any(|tunnel| tunnel.state == TunnelState::Down)
    }
}

/// Reason for which a client of the view socket does not get the tunnels, if they are too many.
fn too_many(summary: &SummaryState) -> Option<String> {
    let sas = summary.sas.valid + summary.sas.dying + summary.sas.larval;
    let policies = summary.policies.inbound + summary.policies.outbound + summary.policies.forward;
    (sas.max(policies) > VIEW_ROWS as u64).then(|| {
        format!("{sas} SAs and {policies} policies: the view socket shows {VIEW_ROWS} of a kind at most, and the control socket all")
    })
}

/// Remedy if the socket of a `udp` link refuses packets: it sends those of its own address and port, as ESP has.
const OUTSIDE_THE_TUNNEL: &str = "it is mostly one that no policy covers, as its source is outside the tunnel's networks; \
                                  `ip route get ADDRESS` shows which source this host chooses, `src` of a route sets it";

/// Sums of drops over links, most frequent first. `is_udp` tells whether a name is that of a `udp` link.
fn sums(drops: &[DropState], is_udp: impl Fn(&str) -> bool) -> Vec<DropSum> {
    let mut sums: Vec<DropSum> = Vec::new();
    for drop in drops.iter().filter(|drop| drop.count > 0) {
        let link = drop.link.clone();
        if let Some(sum) = sums.iter_mut().find(|sum| sum.reason == drop.reason) {
            sum.count += drop.count;
            sum.links.extend(link);
            continue;
        }
        let known = DropReason::by_name(&drop.reason);
        let is_outside = known == Some(DropReason::TxError) && link.as_deref().is_some_and(&is_udp);
        let remedy = known.map_or_else(String::new, DropReason::remedy);
        sums.push(DropSum {
            reason: drop.reason.clone(),
            count: drop.count,
            links: link.into_iter().collect(),
            cause: known.map_or_else(String::new, DropReason::short_cause),
            remedy: if is_outside { OUTSIDE_THE_TUNNEL.to_owned() } else { remedy },
        });
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.count));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_summed_over_links_and_sorted() {
        let drop = |link: &str, reason: DropReason, count| DropState {
            link: Some(link.to_owned()),
            reason: reason.name().to_owned(),
            count,
        };
        let drops = [
            drop("a", DropReason::NoRoute, 2),
            drop("a", DropReason::EspIcv, 4),
            drop("b", DropReason::NoRoute, 3),
            drop("b", DropReason::EspReplay, 0),
        ];
        let found = sums(&drops, |_| false);
        let counts: Vec<_> = found.iter().map(|sum| (sum.reason.as_str(), sum.count, sum.links.join(","))).collect();
        assert_eq!(counts, [("NoRoute", 5, "a,b".to_owned()), ("EspIcv", 4, "a".to_owned())]);
        assert_eq!(found[1].cause, DropReason::EspIcv.short_cause());
    }

    #[test]
    fn refusal_by_a_socket_is_a_packet_outside_the_tunnel() {
        let drops = ["wan", "eth0"].map(|link| DropState {
            link: Some(link.to_owned()),
            reason: DropReason::TxError.name().to_owned(),
            count: 1,
        });
        let remedy = |drop: &DropState| sums(std::slice::from_ref(drop), |name| name == "wan")[0].remedy.clone();
        assert!(remedy(&drops[0]).contains("ip route get"), "{}", remedy(&drops[0]));
        assert_eq!(remedy(&drops[1]), DropReason::TxError.remedy());
    }
}
