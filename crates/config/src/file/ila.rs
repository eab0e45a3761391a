//! `[[ila]]`: a mapping of one locator to another, with the words of `ip ila`.

use std::collections::HashMap;

use super::dev;
use super::reader::{Result, Table, Value, quoted};
use base::Prefix;

use crate::model::{
    AdjTransport, Config, CsumMode, HookType, IdentType, Identifier, IlaConfig, IlaErrors, Locator, RouteEncap,
};

pub(super) const KEYS: &[&str] = &["loc_match", "identifier", "loc", "dev", "csum-mode", "ident-type"];

/// Words of `ila-adj-transport`.
pub(super) const ADJ_TRANSPORT: &[(&str, AdjTransport)] =
    &[("linux", AdjTransport::Linux), ("rfc1624", AdjTransport::Rfc1624)];

/// Words of `ila-icmp-errors`.
pub(super) const ICMP_ERRORS: &[(&str, IlaErrors)] = &[("restored", IlaErrors::Restored), ("linux", IlaErrors::Linux)];

/// Keys of a route's `encap`.
const ENCAP_KEYS: &[&str] = &["type", "loc", "csum-mode", "ident-type", "hook-type"];

const HOOK_TYPES: &[(&str, HookType)] =
    &[(HookType::Output.name(), HookType::Output), (HookType::Input.name(), HookType::Input)];

const CSUM_MODES: &[(&str, CsumMode)] = &[
    (CsumMode::AdjTransport.name(), CsumMode::AdjTransport),
    (CsumMode::NeutralMap.name(), CsumMode::NeutralMap),
    (CsumMode::NeutralMapAuto.name(), CsumMode::NeutralMapAuto),
    (CsumMode::NoAction.name(), CsumMode::NoAction),
];

/// All types, by the names under which iproute2 shows them.
const IDENT_TYPES: &[(&str, IdentType)] = &{
    let mut words = [("", IdentType::UseFormat); IdentType::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = (IdentType::ALL[at].name(), IdentType::ALL[at]);
        at += 1;
    }
    words
};

/// Positions of earlier mappings in the list.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<(Locator, Option<Identifier>, Option<String>), usize>);

/// Reads mapping number `n`. `config` contains all links.
pub(super) fn read(table: &Table<'_>, config: &Config, seen: &mut Seen, n: usize) -> Result<IlaConfig> {
    let hint = "use a locator such as \"2001:db8:0:1\"";
    let match_value = table.need("loc_match", hint)?;
    let locator_match = locator(&match_value)?;
    let identifier = table.get("identifier").map(|value| identifier(&value)).transpose()?;
    let locator = locator(&table.need("loc", hint)?)?;
    let dev = table.get("dev").map(|value| dev::read(&value, config)).transpose()?;
    let csum_mode = table.get("csum-mode").map_or(Ok(CsumMode::default()), |value| value.word(CSUM_MODES))?;
    let ident_type = table.get("ident-type").map_or(Ok(IdentType::default()), |value| value.word(IDENT_TYPES))?;
    if let Some(n) = seen.0.insert((locator_match, identifier, dev.clone()), n) {
        let of_address = identifier.map(|identifier| format!(" identifier {identifier}")).unwrap_or_default();
        let of = dev.map_or_else(|| "any device".to_owned(), |dev| format!("device {dev}"));
        return Err(
            match_value.error(format!("{locator_match}{of_address} for {of} is already ila[{n}]; take one out"))
        );
    }
    Ok(IlaConfig { locator_match, identifier, locator, dev, csum_mode, ident_type })
}

/// Reads the encapsulation of a route to `to`.
pub(super) fn read_encap(value: &Value<'_>, to: Prefix) -> Result<RouteEncap> {
    let table = value.table(ENCAP_KEYS)?;
    table.need("type", "use \"ila\"")?.word(&[("ila", ())])?;
    let locator = locator(&table.need("loc", "use a locator such as \"2001:db8:0:1\"")?)?;
    let csum_mode = table.get("csum-mode").map_or(Ok(CsumMode::default()), |value| value.word(CSUM_MODES))?;
    let ident_type = table.get("ident-type").map_or(Ok(IdentType::default()), |value| value.word(IDENT_TYPES))?;
    let hook_type = table.get("hook-type").map_or(Ok(HookType::default()), |value| value.word(HOOK_TYPES))?;
    let encap = RouteEncap { locator, csum_mode, ident_type, hook_type };
    encap.check(to).map_err(|err| value.error(format!("{to} cannot be translated: {err}")))?;
    Ok(encap)
}

fn identifier(value: &Value<'_>) -> Result<Identifier> {
    let text = value.str()?;
    text.parse().map_err(|_| {
        let given = quoted(text);
        value.error(format!("{given} is no identifier; use four groups of hexadecimal digits, such as \"2000:0:0:7\""))
    })
}

fn locator(value: &Value<'_>) -> Result<Locator> {
    let text = value.str()?;
    text.parse().map_err(|_| {
        let given = quoted(text);
        value.error(format!("{given} is no locator; use four groups of hexadecimal digits, such as \"2001:db8:0:1\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "[[link]]\nname = \"wan\"\nkind = \"packet\"\ninterface = \"eth0\"\n";

    fn read(text: &str) -> std::result::Result<Vec<IlaConfig>, String> {
        let config = Config::from_toml(&format!("{LINK}{text}"), "gw.toml");
        config.map(|config| config.ila).map_err(|err| err.to_string())
    }

    #[test]
    fn mapping_has_words_and_defaults_of_ip_ila() {
        let text = "[[ila]]\nloc_match = \"2001:db8:0:1\"\nloc = \"fd00:0:0:7\"\n\
                    [[ila]]\nloc_match = \"2001:db8:0:1\"\nloc = \"fd00:0:0:8\"\ndev = \"wan\"\n\
                    csum-mode = \"neutral-map\"\nident-type = \"luid\"\n";
        let any = IlaConfig {
            locator_match: Locator(0x2001_0db8_0000_0001),
            identifier: None,
            locator: Locator(0xfd00_0000_0000_0007),
            dev: None,
            csum_mode: CsumMode::NoAction,
            ident_type: IdentType::UseFormat,
        };
        let of_wan = IlaConfig {
            locator: Locator(0xfd00_0000_0000_0008),
            dev: Some("wan".to_owned()),
            csum_mode: CsumMode::NeutralMap,
            ident_type: IdentType::Luid,
            ..any.clone()
        };
        let of_address = IlaConfig { identifier: Some(Identifier(0x2000_0000_0000_0007)), ..any.clone() };
        let text =
            format!("{text}[[ila]]\nloc_match = \"2001:db8:0:1\"\nidentifier = \"2000:0:0:7\"\nloc = \"fd00:0:0:7\"\n");
        assert_eq!(read(&text), Ok(vec![any, of_wan, of_address]));
        for ident_type in IdentType::ALL {
            let name = ident_type.name();
            let text = format!("[[ila]]\nloc_match = \"1:2:3:4\"\nloc = \"1:2:3:5\"\nident-type = \"{name}\"\n");
            assert_eq!(read(&text).unwrap()[0].ident_type, ident_type);
        }
        for mode in CsumMode::ALL {
            let text =
                format!("[[ila]]\nloc_match = \"1:2:3:4\"\nloc = \"1:2:3:5\"\ncsum-mode = \"{}\"\n", mode.name());
            assert_eq!(read(&text).unwrap()[0].csum_mode, mode);
        }
        for (text, sign) in [
            ("", AdjTransport::Linux),
            ("ila-adj-transport = \"linux\"\n", AdjTransport::Linux),
            ("ila-adj-transport = \"rfc1624\"\n", AdjTransport::Rfc1624),
        ] {
            assert_eq!(Config::from_toml(text, "gw.toml").unwrap().ila_adj_transport, sign);
        }
    }

    fn encap(text: &str) -> std::result::Result<Option<RouteEncap>, String> {
        let config = Config::from_toml(&format!("{LINK}[[route]]\n{text}"), "gw.toml");
        config.map(|config| config.routes[0].encap).map_err(|err| err.to_string())
    }

    #[test]
    fn route_has_encapsulation_by_words_of_ip_route() {
        let to = "to = \"3333:0:0:1:2000::/67\"\ndev = \"wan\"\n";
        let plain = RouteEncap {
            locator: Locator(0x2001_0db8_0000_0001),
            csum_mode: CsumMode::NoAction,
            ident_type: IdentType::UseFormat,
            hook_type: HookType::Output,
        };
        assert_eq!(encap(to), Ok(None));
        assert_eq!(encap(&format!("{to}encap = {{ type = \"ila\", loc = \"2001:db8:0:1\" }}\n")), Ok(Some(plain)));
        let all = "encap = { type = \"ila\", loc = \"2001:db8:0:1\", csum-mode = \"neutral-map\", ident-type = \"luid\", \
                   hook-type = \"input\" }\n";
        let set = RouteEncap {
            csum_mode: CsumMode::NeutralMap,
            ident_type: IdentType::Luid,
            hook_type: HookType::Input,
            ..plain
        };
        assert_eq!(encap(&format!("{to}{all}")), Ok(Some(set)));
        let refused = [
            ("to = \"10.0.0.0/8\"\ndev = \"wan\"\n", "type = \"ila\", loc = \"1:2:3:4\"", "ILA is for IPv6 alone"),
            (
                "to = \"3333:0:0:1:3000::/68\"\ndev = \"wan\"\n",
                "type = \"ila\", loc = \"1:2:3:4\", csum-mode = \"neutral-map\"",
                "has the C bit",
            ),
            (to, "type = \"ila\", loc = \"1:2:3:4\", ident-type = \"port\"", "port is unknown; use iid, luid"),
            (to, "loc = \"1:2:3:4\"", "type: missing"),
            (to, "type = \"ila\"", "loc: missing"),
            (to, "type = \"mpls\", loc = \"1:2:3:4\"", "mpls is unknown"),
            (to, "type = \"ila\", loc = \"1:2:3:4\", dev = \"wan\"", "unknown key"),
            (
                "to = \"3333:0:0:1:2000::/67\"\ntype = \"blackhole\"\n",
                "type = \"ila\", loc = \"1:2:3:4\"",
                "has no next hop",
            ),
        ];
        for (to, given, why) in refused {
            let error = encap(&format!("{to}encap = {{ {given} }}\n")).unwrap_err();
            assert!(error.contains(why), "{given}: {error}");
        }
        for (text, errors) in [
            ("", IlaErrors::Restored),
            ("ila-icmp-errors = \"linux\"\n", IlaErrors::Linux),
            ("ila-icmp-errors = \"restored\"\n", IlaErrors::Restored),
        ] {
            assert_eq!(Config::from_toml(text, "gw.toml").unwrap().ila_icmp_errors, errors);
        }
    }

    #[test]
    fn wrong_mapping_is_refused_by_what_is_wrong() {
        let good = "loc_match = \"1:2:3:4\"\nloc = \"1:2:3:5\"\n";
        let cases = [
            ("[[ila]]\nloc = \"1:2:3:5\"\n".to_owned(), "ila[0].loc_match: missing"),
            ("[[ila]]\nloc_match = \"1:2:3:5\"\n".to_owned(), "ila[0].loc: missing"),
            ("[[ila]]\nloc_match = \"1::4\"\nloc = \"1:2:3:5\"\n".to_owned(), "1::4 is no locator"),
            (format!("[[ila]]\n{good}dev = \"lan\"\n"), "no link is named lan"),
            (format!("[[ila]]\n{good}csum-mode = \"adjust\"\n"), "adjust is unknown"),
            (format!("[[ila]]\n{good}ident-type = \"port\"\n"), "port is unknown; use iid, luid, virt-v4"),
            (format!("[[ila]]\n{good}identifier = \"::7\"\n"), "::7 is no identifier"),
            (
                format!(
                    "[[ila]]\n{good}identifier = \"0:0:0:7\"\n[[ila]]\n{good}[[ila]]\n{good}identifier = \"0:0:0:7\"\n"
                ),
                "1:2:3:4 identifier 0:0:0:7 for any device is already ila[0]",
            ),
            (format!("[[ila]]\n{good}[[ila]]\n{good}"), "1:2:3:4 for any device is already ila[0]"),
            (format!("[[ila]]\n{good}locator = 1\n"), "unknown key"),
        ];
        for (text, why) in cases {
            let error = read(&text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
