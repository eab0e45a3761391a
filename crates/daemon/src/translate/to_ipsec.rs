//! SAs and policies of the file, in the terms of crate `ipsec`.

use std::time::Duration;

use base::Prefix;
use config::model;
use ipsec::{
    Action, Algorithm, Authentication, Code, Dir, Encryption, EspInUdp, Level, Lifetime, Limits, Mark, Mode,
    NatTraversal, PolicyConfig, PortMask, SaConfig, SaDir, SaFlags, Selector, Template,
};
use wire::{Protocol, Spi};
use zeroize::Zeroizing;

/// An SA of the file.
pub(crate) fn sa(config: &model::SaConfig) -> SaConfig {
    SaConfig {
        dir: config.dir.map(sa_dir),
        reqid: config.reqid,
        replay_window: config.replay_window,
        flags: flags(config.flags),
        encap: config.encap.map(|encap| EspInUdp { sport: encap.sport, dport: encap.dport }),
        selector: config.selector.as_ref().map(selector),
        seq: config.seq,
        oseq: config.oseq,
        mark: mark(config.mark),
        output_mark: mark(config.output_mark),
        if_id: config.if_id,
        lifetime: lifetime(&config.limit),
        tfcpad: config.tfcpad,
        nat: nat(config.nat),
        ..SaConfig::new(config.src, config.dst, Spi(config.spi), mode(config.mode), algorithm(&config.algorithm))
    }
}

fn nat(nat: model::NatTraversal) -> NatTraversal {
    let model::NatTraversal { keepalive_interval, mapping_threshold, follow } = nat;
    NatTraversal { keepalive_interval, mapping_threshold, follow }
}

/// An algorithm, with its keys.
pub(crate) fn algorithm(algorithm: &model::Algorithm) -> Algorithm {
    let bytes = |key: &model::Key| Zeroizing::new(key.bytes().to_vec());
    match algorithm {
        model::Algorithm::Aead { name, key, icv_bits } => {
            let (key, icv_len) = (bytes(key), usize::from(icv_bits / 8));
            match name {
                model::Aead::GcmAes => Algorithm::GcmAes { key, icv_len },
                model::Aead::GmacAes => Algorithm::GmacAes { key },
                model::Aead::CcmAes => Algorithm::CcmAes { key, icv_len },
                model::Aead::ChaCha20Poly1305 => Algorithm::ChaCha20Poly1305 { key },
            }
        }
        model::Algorithm::Separate { enc: model::Enc::Null, auth: None, .. } => Algorithm::Null,
        model::Algorithm::Separate { enc, key, auth } => {
            let enc = match enc {
                model::Enc::Null => Encryption::Null,
                model::Enc::CbcAes => Encryption::CbcAes { key: bytes(key) },
                model::Enc::CtrAes => Encryption::CtrAes { key: bytes(key) },
            };
            let auth = auth.as_ref().map(|auth| Authentication {
                code: code(auth.name),
                key: bytes(&auth.key),
                icv_len: usize::from(auth.icv_bits / 8),
            });
            Algorithm::Separate { enc, auth }
        }
    }
}

fn code(name: model::Auth) -> Code {
    match name {
        model::Auth::HmacMd5 => Code::HmacMd5,
        model::Auth::HmacSha1 => Code::HmacSha1,
        model::Auth::HmacSha256 => Code::HmacSha256,
        model::Auth::HmacSha384 => Code::HmacSha384,
        model::Auth::HmacSha512 => Code::HmacSha512,
        model::Auth::HmacRipemd160 => Code::HmacRipemd160,
        model::Auth::HmacSm3 => Code::HmacSm3,
        model::Auth::CmacAes => Code::CmacAes,
        model::Auth::XcbcAes => Code::XcbcAes,
    }
}

fn flags(flags: model::SaFlags) -> SaFlags {
    let model::SaFlags {
        noecn,
        decap_dscp,
        nopmtudisc,
        wildrecv,
        icmp,
        af_unspec,
        esn,
        dont_encap_dscp,
        oseq_may_wrap,
    } = flags;
    SaFlags { noecn, decap_dscp, nopmtudisc, wildrecv, icmp, af_unspec, esn, dont_encap_dscp, oseq_may_wrap }
}

fn mark(mark: Option<model::Mark>) -> Mark {
    mark.map_or(Mark::ANY, |model::Mark { value, mask }| Mark { value, mask })
}

fn lifetime(limit: &model::Limit) -> Lifetime {
    let limits = |bounds: &model::Bounds| Limits {
        bytes: bounds.bytes.unwrap_or(u64::MAX),
        packets: bounds.packets.unwrap_or(u64::MAX),
        added: bounds.add_secs.map(Duration::from_secs),
        used: bounds.use_secs.map(Duration::from_secs),
    };
    Lifetime { soft: limits(&limit.soft), hard: limits(&limit.hard) }
}

fn sa_dir(dir: model::SaDir) -> SaDir {
    match dir {
        model::SaDir::In => SaDir::In,
        model::SaDir::Out => SaDir::Out,
    }
}

fn mode(mode: model::Mode) -> Mode {
    match mode {
        model::Mode::Transport => Mode::Transport,
        model::Mode::Tunnel => Mode::Tunnel,
    }
}

fn selector(selector: &model::Selector) -> Selector {
    let port = |port: Option<u16>| port.map_or(PortMask::ANY, PortMask::exactly);
    let (src, dst): (Prefix, Prefix) = (selector.src, selector.dst);
    let protocol = selector.proto.map(Protocol);
    Selector { protocol, sport: port(selector.sport), dport: port(selector.dport), ..Selector::new(src, dst) }
}

fn dir(dir: model::Dir) -> Dir {
    match dir {
        model::Dir::In => Dir::In,
        model::Dir::Out => Dir::Out,
        model::Dir::Fwd => Dir::Fwd,
    }
}

/// A policy of the file.
pub(crate) fn policy(config: &model::PolicyConfig) -> PolicyConfig {
    PolicyConfig {
        priority: config.priority,
        action: match config.action {
            model::PolicyAction::Allow => Action::Allow,
            model::PolicyAction::Block => Action::Block,
        },
        templates: config.templates.iter().map(template).collect(),
        mark: mark(config.mark),
        if_id: config.if_id,
        lifetime: lifetime(&config.limit),
        ..PolicyConfig::new(dir(config.dir), selector(&config.selector))
    }
}

fn template(template: &model::Template) -> Template {
    Template {
        src: template.src,
        dst: template.dst,
        spi: None,
        mode: mode(template.mode),
        reqid: template.reqid,
        level: match template.level {
            model::Level::Required => Level::Required,
            model::Level::Use => Level::Use,
        },
    }
}
