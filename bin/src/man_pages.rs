//! `fatpath completions` and `fatpath man`: completion scripts and man pages, generated from the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use client::{CliError, print};

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::config_page;

/// Prints the completion script of a shell.
///
/// # Errors
/// Writing to standard output fails.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fatpath", &mut script);
    print(&script)
}

/// Writes `fatpath.1`, a page for each command, and `fatpath.toml.5`.
///
/// # Errors
/// The directory does not exist or is not writable.
pub(crate) fn man(args: &ManArgs) -> Result<(), CliError> {
    let failed = |err: io::Error| CliError::failed(format!("{}: {err}", args.dir.display()));
    fs::read_dir(&args.dir).map_err(failed)?;
    let mut root = Cli::command();
    root.build();
    let has_page = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for command in root.get_subcommands().filter(has_page) {
        let name = command.get_name().to_owned();
        write_page(command.clone().override_usage(usage(command)), &name, &args.dir).map_err(failed)?;
    }
    fs::write(args.dir.join("fatpath.toml.5"), config_page::render()).map_err(failed)?;
    write_page(root, "fatpath", &args.dir).map_err(failed)
}

/// Writes the man page of a command.
fn write_page(command: Command, name: &str, dir: &Path) -> io::Result<()> {
    let man = Man::new(command).source(concat!("fatpath ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    sections(name).to_writer(&mut page)?;
    fs::write(dir.join(man.get_filename()), page)
}

/// Formats the [`SECTIONS`] with entries for a command.
fn sections(name: &str) -> Roff {
    let mut roff = Roff::new();
    for (heading, entries) in SECTIONS {
        let mut entries = entries.iter().filter(|entry| name == "fatpath" || entry.of.contains(&name)).peekable();
        if entries.peek().is_some() {
            roff.control("SH", [*heading]);
        }
        for entry in entries {
            roff.control("TP", []).text([bold(entry.what)]).text([roman(entry.means)]);
        }
    }
    roff
}

/// SYNOPSIS of a command with the names of its values, which clap's own omits.
fn usage(command: &Command) -> String {
    let mut words = vec![command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()];
    let (positional, options): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(|arg| arg.is_positional());
    for arg in options.into_iter().chain(positional) {
        if matches!(arg.get_action(), ArgAction::Help | ArgAction::Version) || arg.is_hide_set() {
            continue;
        }
        let flag = match (arg.get_short(), arg.get_long()) {
            (Some(short), _) => Some(format!("-{short}")),
            (None, Some(long)) => Some(format!("--{long}")),
            (None, None) => None,
        };
        let values = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
        let word = flag.into_iter().chain(values.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" ");
        words.push(if arg.is_required_set() { word } else { format!("[{word}]") });
    }
    words.join(" ")
}

/// Entry of a section: its subject, and the commands on whose pages it is. The page of `fatpath` has all entries.
struct Entry {
    what: &'static str,
    means: &'static str,
    of: &'static [&'static str],
}

const EVERY: &[&str] = &[
    "run",
    "pair",
    "up",
    "down",
    "check",
    "genkey",
    "load",
    "save",
    "show",
    "explain",
    "doctor",
    "demo",
    "bench",
    "plot",
    "metrics",
    "top",
    "web",
    "capture",
    "monitor",
    "trace",
    "completions",
    "man",
];
const WITH_PROGRAM: &[&str] = &["exec", "ip"];
const WITH_SOCKET: &[&str] =
    &["run", "pair", "up", "down", "load", "save", "show", "status", "capture", "monitor", "trace"];

/// Sections after clap's.
const SECTIONS: &[(&str, &[Entry])] = &[
    (
        "EXIT STATUS",
        &[
            Entry { what: "0", means: "Done, or ended by SIGTERM or SIGINT.", of: EVERY },
            Entry {
                what: "1",
                means: "The command line is wrong, or a file, device or program is missing or failed; standard error \
                        says what.",
                of: EVERY,
            },
            Entry {
                what: "1",
                means: "The gateway, the library or the program is not there, or the program cannot load the library. \
                        Else the exit code is the program's own.",
                of: WITH_PROGRAM,
            },
            Entry { what: "0", means: "No tunnel is down.", of: &["status"] },
            Entry {
                what: "1",
                means: "A tunnel is down, a gateway does not answer, or the command line is wrong.",
                of: &["status"],
            },
            Entry {
                what: "1",
                means: "A step failed; standard error says what. Else the exit code is that of ping, or of the shell.",
                of: &["try"],
            },
            Entry { what: "3", means: "No gateway runs.", of: &["status"] },
            Entry {
                what: "2",
                means: "The configuration is wrong, or its file cannot be read; nothing was changed.",
                of: &["run", "check", "load"],
            },
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            Entry {
                what: "FATPATH_LOG",
                means: "Log lines that go to standard error: error, warn, info (the default) or trace, which has a \
                        line for every dropped packet.",
                of: &["run"],
            },
            Entry {
                what: "FATPATH_SANDBOX",
                means: "trap: a system call that the sandbox refuses ends the gateway, after a line that names the call.",
                of: &["run"],
            },
            Entry {
                what: "FATPATH_INSTANCE",
                means: "The name of the gateway for commands without --instance.",
                of: &["run", "load", "save", "show", "top", "capture", "monitor", "trace", "exec", "ip"],
            },
            Entry {
                what: "FATPATH_RUNDIR",
                means: "The directory of the sockets of gateways, in place of /run/fatpath and $XDG_RUNTIME_DIR/fatpath, and \
                        of their state.",
                of: &[
                    "run", "pair", "up", "down", "load", "save", "show", "status", "capture", "monitor", "trace",
                    "exec", "ip",
                ],
            },
            Entry {
                what: "FATPATH_CONFDIR",
                means: "The directory of the files of pair and up, in place of /etc/fatpath, or $XDG_CONFIG_HOME/fatpath and \
                        ~/.config/fatpath for users other than root. With it or FATPATH_RUNDIR, up starts no units of systemd.",
                of: &["pair", "up"],
            },
            Entry {
                what: "FATPATH_PRELOAD",
                means: "The library that is preloaded into the program, in place of libfatpath_preload.so beside fatpath or \
                        in ../lib/fatpath.",
                of: WITH_PROGRAM,
            },
        ],
    ),
    (
        "FILES",
        &[
            Entry {
                what: "/run/fatpath/NAME.sock",
                means: "The control socket of the gateway NAME, which only its user can use. Of a gateway of another \
                        user than root it is in $XDG_RUNTIME_DIR/fatpath, if there is that variable.",
                of: WITH_SOCKET,
            },
            Entry {
                what: "/run/fatpath/NAME.netlink",
                means: "The netlink socket of the gateway NAME. Users other than root and the gateway's own \
                        may only look at links and routes.",
                of: &["run", "exec", "ip"],
            },
            Entry {
                what: "/var/lib/fatpath/NAME.state",
                means: "State of the gateway NAME that is kept over a restart, with keys; only the gateway's user may read \
                        it. Of a gateway of another user than root it is in $XDG_STATE_HOME/fatpath or \
                        ~/.local/state/fatpath.",
                of: &["run", "save"],
            },
            Entry {
                what: "fatpath-bench",
                means: "The program that measures, beside fatpath or in PATH.",
                of: &["demo", "bench"],
            },
            Entry {
                what: "fatpath-see",
                means: "The program of metrics, top and web, beside fatpath or in PATH.",
                of: &["metrics", "top", "web"],
            },
            Entry {
                what: "/run/fatpath/NAME.view.sock",
                means: "The view socket of the gateway NAME, for its user and members of the group fatpath, where the \
                        control socket refuses them.",
                of: &["show", "status", "trace", "monitor", "metrics", "top", "web"],
            },
            Entry { what: "/dev/net/tun", means: "Device that makes TUN and TAP devices.", of: &["run", "demo"] },
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synopsis_names_values_and_brackets_optional_arguments() {
        let mut root = Cli::command();
        root.build();
        for (name, want) in [
            (
                "run",
                "fatpath run [-c FILE] [--state FILE] [--replace] [--ephemeral] [--allow-links KIND] [--user USER] [--no-sandbox] [-i NAME]",
            ),
            ("check", "fatpath check [--expand] [--with-keys] [--state FILE] -c FILE"),
            ("show", "fatpath show [-j] [-a] [--sums] [-i NAME] [WHAT]"),
            ("metrics", "fatpath metrics [--listen ADDRESS] [--textfile DIR] [--interval SECONDS] [-i NAME]"),
            ("top", "fatpath top [--once] [--interval SECONDS] [-i NAME]"),
            ("web", "fatpath web [--listen ADDRESS] [--socket PATH] [--results FILE] [-i NAME]"),
            ("status", "fatpath status [-j] [-w SECONDS] [-i NAME]"),
            ("capture", "fatpath capture [-w FILE] [--after-gro] [-i NAME] LINK"),
            ("man", "fatpath man DIR"),
        ] {
            assert_eq!(usage(root.find_subcommand(name).unwrap()), want);
        }
    }

    #[test]
    fn every_command_lists_exit_codes_and_2_only_with_a_file() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let text = sections(name).render();
            assert!(text.contains("EXIT STATUS") && text.contains("\\fB1\\fR"), "{name}");
            assert_eq!(text.contains("\\fB2\\fR"), matches!(name, "run" | "check" | "load"), "{name}");
            assert_eq!(text.contains("FATPATH_LOG"), name == "run", "{name}");
        }
    }
}
