//! The plugin of Wireshark and tshark (extcap(4)): links of running gateways as interfaces to capture on.
//!
//! Wireshark runs each program of its directory for plugins: with `--extcap-interfaces` for the list, with `--capture` for packets, which
//! go to a FIFO as pcapng. A line on standard error, before the program ends with an error, is what Wireshark shows its user.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::ValueHint;
use clap::{ArgGroup, Parser};
use client::{Capture, Captured, CliError, Client, command_line, instance_name, print};
use ctl::state::LinkState;
use ctl::{Reply, Request, Shown, StateKind};

/// Name by which the program is the plugin.
pub(crate) const NAME: &str = "fatpath-extcap";

/// Beginning of the name of an interface.
const BEGIN: &str = "fatpath:";

/// End of the name of an interface with fat packets. No link has a name with a space.
const FAT: &str = " (fat)";

/// Time limit for a gateway's answer: Wireshark waits for the list.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Links of fatpath gateways, as a plugin of Wireshark
///
/// Wireshark and tshark run this program from their directory for plugins (extcap). A capture shows what packets carry, so it takes the
/// user that runs the gateway.
#[derive(Debug, Parser)]
#[command(name = NAME, version = env!("FATPATH_VERSION"), max_term_width = 100)]
#[command(group = ArgGroup::new("task").required(true).args(["interfaces", "dlts", "config", "capture"]))]
struct Extcap {
    /// Print the interfaces: the links of all gateways that this user may capture on
    #[arg(long = "extcap-interfaces")]
    interfaces: bool,
    /// Print the link-layer type of an interface
    #[arg(long = "extcap-dlts", requires = "interface")]
    dlts: bool,
    /// Print the options of an interface: there are none
    #[arg(long = "extcap-config", requires = "interface")]
    config: bool,
    /// Capture on an interface until the reader of the FIFO is gone
    #[arg(long, requires = "interface", requires = "fifo")]
    capture: bool,
    /// Name of an interface
    #[arg(long = "extcap-interface", value_name = "NAME", value_parser = Interface::parse, value_hint = ValueHint::Other)]
    #[arg(allow_hyphen_values = true)]
    interface: Option<Interface>,
    /// FIFO for the packets
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    fifo: Option<PathBuf>,
    /// Capture filter: only the empty one
    #[arg(long = "extcap-capture-filter", value_name = "FILTER", value_hint = ValueHint::Other)]
    #[arg(allow_hyphen_values = true)]
    filter: Option<String>,
    /// Version of Wireshark
    #[arg(long = "extcap-version", value_name = "VERSION", num_args = 0..=1, value_hint = ValueHint::Other)]
    _version: Option<Option<String>>,
}

/// Link of a gateway, or its fat packets.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Interface {
    gateway: String,
    link: String,
    is_fat: bool,
}

/// Does what Wireshark asks for.
pub(crate) fn main() -> ExitCode {
    let extcap: Extcap = match command_line::parse() {
        Ok(extcap) => extcap,
        Err(code) => return code,
    };
    command_line::exit_code(extcap.run().map(|()| ExitCode::SUCCESS))
}

impl Extcap {
    fn run(self) -> Result<(), CliError> {
        let Some(interface) = &self.interface else { return print(interfaces().as_bytes()) };
        if self.dlts {
            return print(interface.link_layer()?.as_bytes());
        }
        match &self.fifo {
            Some(fifo) if self.capture => interface.capture(fifo, self.filter.as_deref().unwrap_or_default()),
            _ if self.interfaces => print(interfaces().as_bytes()),
            // No options.
            _ => Ok(()),
        }
    }
}

/// The interfaces, each in a line. A gateway on whose links this user may not capture is a line on standard error.
fn interfaces() -> String {
    let mut text = format!("extcap {{version={}}}{{display=fatpath}}\n", env!("CARGO_PKG_VERSION"));
    for (gateway, path) in client::gateways() {
        let connected = Client::connect_within(&gateway, path, ANSWER_LIMIT);
        match connected.and_then(|mut client| links(&mut client)) {
            Ok(links) => links.iter().for_each(|link| text += &lines(&gateway, link)),
            Err(err) => {
                // With standard error closed there is no other place.
                let _ = writeln!(io::stderr(), "{NAME}: no links of {gateway}: {}", err.message.replace('\n', " "));
            }
        }
    }
    text
}

/// Lines of a link: its packets on the wire, and fat.
fn lines(gateway: &str, link: &LinkState) -> String {
    let line = |is_fat| {
        let interface = Interface { gateway: gateway.to_owned(), link: link.name.clone(), is_fat };
        let fat = if is_fat { ", fat packets" } else { "" };
        let display = format!("fatpath {gateway}: {} ({}{fat})", escaped(&link.name), escaped(&link.kind));
        format!("interface {{value={interface}}}{{display={display}}}\n")
    };
    line(false) + &line(true)
}

fn links(client: &mut Client) -> Result<Vec<LinkState>, CliError> {
    match client.ask(&Request::Show { what: StateKind::Links })? {
        Reply::Show { shown: Shown::Links(links) } => Ok(links),
        _ => Err(client.confused()),
    }
}

/// A text without characters that end a value in Wireshark's form, or are none of a name there: `%` and two hexadecimal digits for each
/// such byte.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._+@".contains(&byte);
    let bytes =
        text.bytes().map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") });
    bytes.collect()
}

/// The text that [`escaped`] has made; `None` for another one.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                (digit(rest.next())? << 4 | digit(rest.next())?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fat = if self.is_fat { FAT } else { "" };
        write!(f, "{BEGIN}{}/{}{fat}", self.gateway, escaped(&self.link))
    }
}

impl Interface {
    /// Parses the name of an interface.
    fn parse(name: &str) -> Result<Self, String> {
        let parse = || {
            let (gateway, link) = name.strip_prefix(BEGIN)?.split_once('/')?;
            let (link, is_fat) = link.strip_suffix(FAT).map_or((link, false), |link| (link, true));
            let link = unescaped(link).filter(|link| !link.is_empty())?;
            Some(Self { gateway: instance_name(gateway).ok()?, link, is_fat })
        };
        parse().ok_or_else(|| format!("it is no `{BEGIN}GATEWAY/LINK`, as --extcap-interfaces prints them"))
    }

    fn connect(&self) -> Result<Client, CliError> {
        Client::connect_within(&self.gateway, client::socket_path(&self.gateway), ANSWER_LIMIT)
    }

    /// Line with the link-layer type: Ethernet, or IP packets without a link layer, as behind GRO.
    fn link_layer(&self) -> Result<String, CliError> {
        let links = links(&mut self.connect()?)?;
        let Some(link) = links.into_iter().find(|link| link.name == self.link) else {
            return Err(CliError::failed(format!("{}: no link is named {}", self.gateway, self.link)));
        };
        Ok(if link.lladdr.is_some() && !self.is_fat {
            "dlt {number=1}{name=EN10MB}{display=Ethernet}\n".to_owned()
        } else {
            "dlt {number=101}{name=RAW}{display=IP}\n".to_owned()
        })
    }

    /// Captures until the reader of `fifo` is gone, or at a signal.
    fn capture(&self, fifo: &Path, filter: &str) -> Result<(), CliError> {
        if !filter.is_empty() {
            return Err(CliError::failed("there are no capture filters here; use a display filter (tshark -Y)"));
        }
        let capture = Capture::begin(self.connect()?, &self.link, self.is_fat)?;
        let failed = |err: io::Error| CliError::system(&fifo.display().to_string(), &err);
        // It waits for the reader, which is there by now.
        let fifo = OpenOptions::new().write(true).open(fifo).map_err(failed)?;
        let Captured { by_gateway, .. } = capture.copy(fifo).map_err(failed)?;
        if by_gateway {
            return Err(CliError::failed(format!(
                "{self}: the gateway has ended the capture: it, or the link, is gone"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Extcap, String> {
        let words = [&[NAME][..], words].concat();
        Extcap::try_parse_from(words).map_err(|err| err.to_string())
    }

    #[test]
    fn interface_has_its_name_whatever_the_link_is_called() {
        for (link, is_fat, want) in [
            ("wan", false, "fatpath:left/wan"),
            ("wan", true, "fatpath:left/wan (fat)"),
            ("eth0.7", false, "fatpath:left/eth0.7"),
            ("a}{value=x", false, "fatpath:left/a%7D%7Bvalue%3Dx"),
            ("<img>", true, "fatpath:left/%3Cimg%3E (fat)"),
            ("(fat)", false, "fatpath:left/%28fat%29"),
            ("grün", false, "fatpath:left/gr%C3%BCn"),
            ("%41", false, "fatpath:left/%2541"),
        ] {
            let interface = Interface { gateway: "left".to_owned(), link: link.to_owned(), is_fat };
            assert_eq!(interface.to_string(), want);
            assert_eq!(Interface::parse(want), Ok(interface));
        }
    }

    #[test]
    fn name_that_is_no_interface_is_refused() {
        for name in [
            "",
            "eth0",
            "fatpath:",
            "fatpath:left",
            "fatpath:left/",
            "fatpath:/wan",
            "fatpath:../x/wan",
            "fatpath:l/%4",
            "fatpath:l/%FF",
        ] {
            assert!(Interface::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn options_have_any_order_and_either_form() {
        let name = "fatpath:left/wan (fat)";
        for words in [
            &["--capture", "--extcap-interface", name, "--fifo", "/f"][..],
            &["--fifo=/f", "--extcap-interface=fatpath:left/wan (fat)", "--capture", "--extcap-version=4.0"],
            &[
                "--extcap-version",
                "--extcap-capture-filter",
                "",
                "--fifo",
                "/f",
                "--capture",
                "--extcap-interface",
                name,
            ],
        ] {
            let extcap = parse(words).unwrap();
            assert!(extcap.capture && extcap.fifo.as_deref() == Some(Path::new("/f")), "{words:?}");
            assert_eq!(extcap.interface.unwrap().to_string(), name);
        }
        assert!(parse(&["--extcap-interfaces", "--extcap-version=4.0"]).unwrap().interfaces);
        assert!(parse(&["--extcap-config", "--extcap-interface", name]).unwrap().config);
        for words in [
            &[][..],
            &["--capture", "--fifo", "/f"],
            &["--capture", "--extcap-interface", name],
            &["--extcap-dlts"],
            &["--extcap-interfaces", "--extcap-dlts", "--extcap-interface", name],
            &["--extcap-dlts", "--extcap-interface", "wan"],
            &["--extcap-interfaces", "--what"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
