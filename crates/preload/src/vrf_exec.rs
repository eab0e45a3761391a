//! `ip vrf exec`, which is refused at its start: it would bind a program's sockets to the host's interface with the
//! number of the gateway's VRF, and leave a control group on the host.

use crate::program_memory::List;
use crate::{gateway, report, sys};

/// Ends the program if its command line is `ip vrf exec`.
pub(crate) fn refuse(arguments: List<'_>) {
    let words = arguments.texts().map(|word| word.get().unwrap_or_default().to_bytes());
    if gateway::address().is_some() && is_vrf_exec(words) {
        report::line(format_args!(
            "ip vrf exec: a kernel's control groups know no VRF of the gateway's. `fatpath exec --vrf NAME` binds a program's \
             sockets to one; for a VRF of the host start `ip vrf exec` without `fatpath exec`."
        ));
        sys::_exit(1);
    }
}

/// Tells whether a command line is `ip vrf exec`, with words possibly abbreviated (iproute2 `matches`).
fn is_vrf_exec<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    let is_short_for = |word: &[u8], long: &str| !word.is_empty() && long.as_bytes().starts_with(word);
    let program = words.next().unwrap_or_default();
    if program.rsplit(|&byte| byte == b'/').next() != Some(b"ip") {
        return false;
    }
    let object = loop {
        let Some(word) = words.next() else { return false };
        let Some(option) = word.strip_prefix(b"-") else { break word };
        if option == b"-" {
            break words.next().unwrap_or_default();
        }
        if has_value(option.strip_prefix(b"-").unwrap_or(option)) {
            words.next();
        }
    };
    is_short_for(object, "vrf") && words.next().is_some_and(|word| is_short_for(word, "exec"))
}

/// Tells whether the word after an option of `ip` is its value (iproute2 `ip.c`).
fn has_value(option: &[u8]) -> bool {
    let is = |long: &str, least: usize| option.len() >= least && long.as_bytes().starts_with(option);
    is("loops", 1) || is("family", 1) || is("batch", 1) || is("netns", 1) || is("rcvbuf", 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vrf_exec_is_found_behind_options_and_in_short() {
        let is = |line: &str| is_vrf_exec(line.split(' ').map(str::as_bytes));
        let lines = [
            "ip vrf exec red ping 10.0.0.1",
            "/usr/sbin/ip v e red sh",
            "ip -4 -d vrf exec red sh",
            "ip -n vrf vrf exec red sh",
            "ip --netns x vrf exec red sh",
            "ip -f inet -rc 100 -b file vrf ex red sh",
            "ip -- vrf exec red sh",
        ];
        for line in lines {
            assert!(is(line), "{line}");
        }
        let others = [
            "ip",
            "ip vrf",
            "ip vrf show",
            "ip vrf identify",
            "ip route show vrf exec",
            "ip -n vrf exec",
            "ip link add vrf type vrf table 3",
            "ip -r vrfs exec",
            "ipx vrf exec red",
            "sh -c vrf exec",
            "ip vrf  exec",
            "ip -- ",
        ];
        for line in others {
            assert!(!is(line), "{line}");
        }
    }
}
