//! `fatpath-fleet completions` and `fatpath-fleet man`: completion scripts and man pages, generated from the command line.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use client::{CliError, print};

/// Sections after clap's: on each page.
const SECTIONS: &[(&str, &[(&str, &str)])] = &[
    (
        "EXIT STATUS",
        &[
            ("0", "Done, or ended by SIGTERM or SIGINT."),
            (
                "1",
                "The command line or the file is wrong, etcd or the agent does not answer, or refuses; standard error says what.",
            ),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("FATPATH_INSTANCE", "The name of the gateway, if neither the file nor --instance has one."),
            (
                "FATPATH_RUNDIR",
                "The directory of the sockets of gateways and agents, and of the last state of the store.",
            ),
        ],
    ),
    (
        "FILES",
        &[
            ("/etc/fatpath/NAME.fleet.toml", "The file of the unit fatpath-fleet@NAME."),
            ("/run/fatpath/NAME.netlink", "The netlink socket of the gateway NAME, which its agent drives."),
            ("/run/fatpath/NAME.agent", "The socket of the agent of the gateway NAME, which its user alone can use."),
            ("/var/lib/fatpath/NAME.fleet", "The last state of the store, which is applied before etcd answers."),
        ],
    ),
];

/// Prints the completion script of a shell.
///
/// # Errors
/// Writing to standard output fails.
pub(crate) fn completions(mut program: Command, shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "fatpath-fleet", &mut script);
    print(&script)
}

/// Writes `fatpath-fleet.1`, and a page for each command.
///
/// # Errors
/// The directory does not exist or is not writable.
pub(crate) fn man(mut program: Command, dir: &Path) -> Result<(), CliError> {
    let failed = |err: io::Error| CliError::failed(format!("{}: {err}", dir.display()));
    fs::read_dir(dir).map_err(failed)?;
    program.build();
    let commands: Vec<Command> = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    for command in commands.into_iter().chain([program]) {
        write_page(command, dir).map_err(failed)?;
    }
    Ok(())
}

fn write_page(command: Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command).source(concat!("fatpath ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut roff = Roff::new();
    for (heading, entries) in SECTIONS {
        roff.control("SH", [*heading]);
        for (what, means) in *entries {
            roff.control("TP", []).text([bold(*what)]).text([roman(*means)]);
        }
    }
    roff.to_writer(&mut page)?;
    fs::write(dir.join(man.get_filename()), page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-pages-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let program = crate::program();
        man(program.clone(), &dir).unwrap();
        for command in program.get_subcommands() {
            let name = format!("fatpath-fleet-{}.1", command.get_name());
            let page = fs::read_to_string(dir.join(&name)).unwrap();
            assert!(page.contains(".SH SYNOPSIS") && page.contains("NAME.agent"), "{name}");
        }
        assert!(fs::read_to_string(dir.join("fatpath-fleet.1")).unwrap().contains("fatpath\\-fleet\\-run(1)"));
        fs::remove_dir_all(dir).unwrap();
        assert!(man(program, Path::new("/nowhere")).unwrap_err().messages().contains("/nowhere"));
    }
}
