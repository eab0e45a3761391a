//! Commands of `ethtool` (Linux `net/ethtool/ioctl.c`), carried in messages of [`nlsock::ethtool`].

mod features;
mod stats;
mod target;

use driver::DriverKind;
use nlsock::ethtool::{
    BLOCK, COUNTS_LEN, DRVINFO_LEN, FIXED, LINK_MODE_WORDS, LINK_MODE_WORDS_AT, LINK_SETTINGS_LEN, NAME, RESULT,
    command, input_len, room,
};

use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::rtnl::backend::Backend;
use crate::rtnl::header::{behind, fixed, word};
use crate::rtnl::node::Rtnl;
use crate::rtnl::state::LinkDetail;
use crate::saved::find;
use crate::session::{Reply, Request};
use config::model::LinkKind;
use target::{Answer, Target, put_text, unsupported};

pub(super) use nlsock::ethtool::MESSAGE;

const ATTRS: AttrPolicy<6> = policy(&[(NAME, Kind::Str(15)), (BLOCK, Kind::Max(LINK_SETTINGS_LEN as u16))]);

/// Carries out a command. Commands that need privileges are refused to unprivileged clients.
pub(super) fn serve<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (_, rest) = fixed::<FIXED>(request)?;
    let attrs = parse(rest, behind(FIXED), &ATTRS, Strictness::Liberal)?;
    let name = attrs.get(NAME).and_then(Attr::text).unwrap_or_default();
    let block = attrs.get(BLOCK).map_or(&[][..], |attr| attr.data);
    let index = rtnl.model.index_of(name).ok_or(Error::new(errno::ENODEV))?;
    let link = rtnl.model.link(index).ok_or(Error::new(errno::ENODEV))?;
    let command = word(block);
    if !request.privileged && !is_for_all(command) {
        return Err(Error::new(errno::EPERM));
    }
    if block.len() < input_len([command, block.get(4..).map_or(0, word)]) {
        return Err(Error::new(errno::EINVAL));
    }
    let (config, up) = (link.config.clone(), link.up);
    let mut answer = carry_out(&mut Target { rtnl, index, config, up }, command, block)?;
    answer.block.truncate(room(block));
    reply.send(MESSAGE, 0, |w| {
        w.fixed(&[0; FIXED]);
        w.put(BLOCK, &answer.block);
        if answer.result != 0 {
            w.put_u32(RESULT, answer.result);
        }
    });
    Ok(())
}

/// Whether a message has a command that is not read-only.
pub(super) fn is_change(message: &[u8]) -> bool {
    let block = find(message, FIXED, BLOCK).and_then(|at| message.get(at..));
    block.is_some_and(|block| block.len() >= 4 && !is_for_all(word(block)))
}

/// Whether a command is read-only, so that every client may send it (Linux `__dev_ethtool`).
fn is_for_all(command: u32) -> bool {
    use nlsock::ethtool::command::*;
    /// Unsupported commands that Linux allows to every client.
    const OTHERS: [u32; 20] = [
        0x1, 0x7, 0xe, 0x12, 0x20, 0x21, 0x27, 0x29, 0x2d, 0x2e, 0x2f, 0x30, 0x38, 0x41, 0x44, 0x46, 0x48, 0x4a, 0x4e,
        0x50,
    ];
    let known = [
        GDRVINFO,
        GLINK,
        GRINGPARAM,
        GRXCSUM,
        GTXCSUM,
        GSG,
        GSTRINGS,
        GSTATS,
        GTSO,
        GGSO,
        GFLAGS,
        GGRO,
        GSSET_INFO,
        GFEATURES,
        GCHANNELS,
        GLINKSETTINGS,
    ];
    known.contains(&command) || OTHERS.contains(&command)
}

fn carry_out<B: Backend>(target: &mut Target<'_, B>, command: u32, block: &[u8]) -> Result<Answer, Error> {
    match command {
        command::GDRVINFO => driver(target),
        command::GLINK => {
            let up = if target.is_virtual() { target.up } else { target.detail()?.state.up };
            Ok(Answer::value(command, up.into()))
        }
        command::GLINKSETTINGS => settings(target, block),
        command::GCHANNELS => channels(target),
        command::GRINGPARAM => rings(target),
        command::GSSET_INFO => stats::set_info(target, block),
        command::GSTRINGS => stats::names(target, block),
        command::GSTATS => stats::values(target, block),
        _ => features::carry_out(target, command, block),
    }
}

/// `struct ethtool_drvinfo`: the link's kind, fatpath's version, and the underlying interface or address. `lo` has
/// none, as in Linux.
fn driver<B: Backend>(target: &mut Target<'_, B>) -> Result<Answer, Error> {
    if target.is_loopback() {
        return Err(unsupported());
    }
    let kind = target.config.kind.word();
    let on = match target.config.kind.bind() {
        Some(bind) => bind.to_string(),
        None => target.config.kind.interface().unwrap_or(kind).to_owned(),
    };
    let counts = stats::count(target)?;
    let mut block = command::GDRVINFO.to_ne_bytes().to_vec();
    // Driver, version, firmware, bus, expansion ROM, reserved bytes.
    for (text, len) in [(kind, 32), (env!("CARGO_PKG_VERSION"), 32), ("", 32), (on.as_str(), 32), ("", 32), ("", 12)] {
        put_text(&mut block, text, len);
    }
    // Numbers of private flags, statistics and tests, lengths of EEPROM and of registers.
    block.extend([0, counts as u32, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    debug_assert_eq!(block.len(), DRVINFO_LEN);
    Ok(Answer { block, result: 0 })
}

/// `struct ethtool_link_settings`: Linux's values for a TUN or TAP device (`tun_default_link_ksettings`), and the
/// driver's values for an interface of the host. Other links have none.
fn settings<B: Backend>(target: &mut Target<'_, B>, block: &[u8]) -> Result<Answer, Error> {
    let mut answer = match &target.config.kind {
        kind if kind.is_tun() => settings_of_tun(),
        kind => target.rtnl.backend.settings(kind.interface().ok_or_else(unsupported)?)?,
    };
    if block[LINK_MODE_WORDS_AT] != LINK_MODE_WORDS as u8 {
        // A wrong number of words is answered by the correct one, negated.
        answer.truncate(LINK_SETTINGS_LEN);
        answer[4..].fill(0);
        answer[LINK_MODE_WORDS_AT] = (LINK_MODE_WORDS as u8).wrapping_neg();
    }
    Ok(Answer { block: answer, result: 0 })
}

/// 10 Gb/s, full duplex, and empty link mode sets: supported, advertised, advertised by the peer.
fn settings_of_tun() -> Vec<u8> {
    const SPEED_10000: u32 = 10_000;
    const DUPLEX_FULL: u8 = 1;
    let mut settings = vec![0; LINK_SETTINGS_LEN + 3 * 4 * LINK_MODE_WORDS];
    settings[..4].copy_from_slice(&command::GLINKSETTINGS.to_ne_bytes());
    settings[4..8].copy_from_slice(&SPEED_10000.to_ne_bytes());
    (settings[8], settings[LINK_MODE_WORDS_AT]) = (DUPLEX_FULL, LINK_MODE_WORDS as u8);
    settings
}

/// `struct ethtool_channels`: combined receive and transmit queues. The maximum is the current number: it is fixed
/// while the link is open.
fn channels<B: Backend>(target: &mut Target<'_, B>) -> Result<Answer, Error> {
    let of_kind = target.config.kind.driver().ok_or_else(unsupported)?.queues();
    let of_interface = |detail: LinkDetail| detail.state.ring.map(|ring| ring.queues).ok_or_else(unsupported);
    let queues = of_kind.map_or_else(|| target.detail().and_then(of_interface), |queues| Ok(queues.into()))?;
    let words = [command::GCHANNELS, 0, 0, 0, queues, 0, 0, 0, queues];
    debug_assert_eq!(words.len() * 4, COUNTS_LEN);
    Ok(Answer::words(words))
}

/// `struct ethtool_ringparam`: frames of each receive and transmit ring of an AF_XDP link.
fn rings<B: Backend>(target: &mut Target<'_, B>) -> Result<Answer, Error> {
    let ring = match target.config.kind {
        LinkKind::Driver(DriverKind::Xdp { .. }) => target.detail()?.state.ring.ok_or_else(unsupported)?.frames,
        _ => return Err(unsupported()),
    };
    Ok(Answer::words([
        command::GRINGPARAM,
        DriverKind::MAX_XDP_RING.into(),
        0,
        0,
        DriverKind::MAX_XDP_RING.into(),
        ring,
        0,
        0,
        ring,
    ]))
}
