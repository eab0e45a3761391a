//! Two gateways on one wire, each with a daemon of its own.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use system::{
    Auth, Charon, CharonFiles, Gateway, Netns, Outcome, Scratch, fatpath, longest_gap, outer_v6, run,
    strongswan_example, veth, wait_until,
};

/// Longest time that an exchange of IKE may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Links of the gateways towards each other.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Wan {
    /// A UDP socket of the host's stack.
    Udp,
    /// An exclusive interface.
    Interface,
}

/// Differences from the example.
pub(crate) struct Setup {
    pub(crate) wan: Wan,
    /// Whether the outer addresses are IPv6.
    pub(crate) v6: bool,
    pub(crate) auth: Auth,
    /// Whether the gateways have host sides. Without, IKE passes by their sockets for key managers.
    pub(crate) host_side: bool,
    /// Replacements in `swanctl.conf`: old text and new text.
    pub(crate) connections: &'static [(&'static str, &'static str)],
}

/// The unchanged example.
pub(crate) const EXAMPLE: Setup =
    Setup { wan: Wan::Udp, v6: false, auth: Auth::Psk, host_side: true, connections: &[] };

/// One of the two ends. Fields are dropped in this order.
pub(crate) struct End {
    pub(crate) charon: Option<Charon>,
    pub(crate) gateway: Gateway,
    pub(crate) netns: Netns,
    pub(crate) name: &'static str,
    pub(crate) files: CharonFiles,
    /// Text of the gateway's file.
    pub(crate) toml: String,
}

/// Both ends, on one wire.
pub(crate) struct Site {
    pub(crate) ends: [End; 2],
    scratch: Scratch,
}

impl Site {
    pub(crate) fn new(setup: &Setup) -> Outcome<Self> {
        let mut site = Self::prepare(setup)?;
        site.start()?;
        Ok(site)
    }

    /// The site without the daemons.
    pub(crate) fn prepare(setup: &Setup) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let [left, right] = [Netns::new("left")?, Netns::new("right")?];
        veth((&left, "eth0"), (&right, "eth0"))?;
        let ends = [End::start("left", 1, left, &scratch, setup)?, End::start("right", 2, right, &scratch, setup)?];
        Ok(Self { ends, scratch })
    }

    /// A site without its daemons, with `between` as a NAT: the left end reaches the right end at 192.0.2.254, and the
    /// right end reaches the left end at 198.51.100.254.
    pub(crate) fn behind(between: &Netns) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let [left, right] = [Netns::new("left")?, Netns::new("right")?];
        veth((&left, "eth0"), (between, "near"))?;
        veth((between, "far"), (&right, "eth0"))?;
        between.sh("ip addr add 192.0.2.254/24 dev near; ip addr add 198.51.100.254/24 dev far")?;
        right.sh("ip addr add 198.51.100.2/24 dev eth0")?;
        let of_left = |text: String| text.replace("192.0.2.2", "192.0.2.254");
        let of_right = |text: String| text.replace("192.0.2.1", "198.51.100.254").replace("192.0.2.2", "198.51.100.2");
        let left = End::start_with("left", 1, left, &scratch, &EXAMPLE, &of_left)?;
        let right = End::start_with("right", 2, right, &scratch, &EXAMPLE, &of_right)?;
        for end in [&left, &right] {
            // The ends detect the NAT themselves.
            end.files.change("swanctl.conf", "encap = yes", "encap = no")?;
        }
        // An end behind a NAT is identified by a name.
        for (end, [left, right]) in
            [(&left, ["192.0.2.1", "192.0.2.254"]), (&right, ["198.51.100.254", "198.51.100.2"])]
        {
            end.files.edit("swanctl.conf", |text| {
                ["id", "id-1", "id-2"].into_iter().fold(text, |text, key| {
                    text.replace(&format!("{key} = {left}\n"), &format!("{key} = left.example\n"))
                        .replace(&format!("{key} = {right}\n"), &format!("{key} = right.example\n"))
                })
            })?;
        }
        right.files.change("swanctl.conf", "start_action = trap", "start_action = none")?;
        Ok(Self { ends: [left, right], scratch })
    }

    /// Starts the daemons.
    pub(crate) fn start(&mut self) -> Outcome {
        (0..2).try_for_each(|at| self.start_charon(at))
    }

    pub(crate) fn start_charon(&mut self, at: usize) -> Outcome {
        let end = &mut self.ends[at];
        end.charon = Some(Charon::start(&end.netns, &self.scratch, end.name, &end.files)?);
        Ok(())
    }

    /// Restarts the gateway of an end of the example, with a file for the state that programs set. The caller starts
    /// its daemon again.
    pub(crate) fn restart_with_state(&mut self, at: usize) -> Outcome {
        drop(self.ends[at].charon.take());
        self.ends[at].gateway.terminate()?;
        self.start_with_state(at)
    }

    /// Starts the gateway of an end of the example, after its end, with a file for the state that programs set.
    pub(crate) fn start_with_state(&mut self, at: usize) -> Outcome {
        let end = &self.ends[at];
        let state = self.state(end);
        let mut command = end.netns.command("sh");
        command.args(["-c", &format!("exec {} \"$@\" --state {}", fatpath().display(), state.display()), "sh"]);
        self.start_by(at, command)
    }

    /// Starts the gateway of an end, after its end, by a command that has a file for the state.
    pub(crate) fn start_by(&mut self, at: usize, command: Command) -> Outcome {
        let end = &mut self.ends[at];
        end.gateway = Gateway::start_under(command, &self.scratch, end.name, &end.toml)?;
        end.to_peer(at + 1)
    }

    /// Replaces the gateway of an end, which has a file for its state, by another one, under pings to `address`. Returns the longest
    /// time without an answer.
    pub(crate) fn replace(&mut self, at: usize, address: IpAddr) -> Outcome<Duration> {
        let state = self.state(&self.ends[at]);
        let Self { ends, scratch } = self;
        let End { gateway, netns, toml, .. } = &mut ends[at];
        let mut command = netns.command("sh");
        command.args(["-c", &format!("exec {} \"$@\" --state {}", fatpath().display(), state.display()), "sh"]);
        longest_gap(netns, address, scratch, || gateway.replace(command, scratch, toml, PATIENCE).map(drop))
    }

    /// File for the state of the gateway of an end.
    pub(crate) fn state(&self, end: &End) -> PathBuf {
        self.scratch.file(&format!("{}.state", end.name))
    }

    /// Saves the state of the gateway of an end.
    pub(crate) fn save(&self, end: &End) -> Outcome<String> {
        run(Command::new(fatpath()).args(["save", "--instance", end.name]).env("FATPATH_RUNDIR", self.scratch.path()))
    }

    /// The directory of the gateways' and the daemons' files.
    pub(crate) const fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Sends a packet that brings up the tunnel. The first packets wait for the tunnel or are lost.
    pub(crate) fn up(&self) -> Outcome {
        let [left, _] = &self.ends;
        let ping = || left.netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok();
        wait_until("a packet comes through", PATIENCE, ping).map_err(|failed| self.explain(&failed))
    }

    /// A failure, with the logs and the states of both ends.
    pub(crate) fn explain(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let mut text = failed.message().unwrap_or_default().to_owned();
        for end in &self.ends {
            let shown = |what| end.gateway.show(what).unwrap_or_default();
            let log = end.charon.as_ref().map(Charon::log).unwrap_or_default();
            text += &format!(
                "\n--- {}\n{log}\n{}\n{}\n{}\n{}\n{}",
                end.name,
                end.gateway.log(),
                shown("sa"),
                shown("counters"),
                shown("drops"),
                // Packets that were lost before they reached the gateway.
                end.netns.sh("ip -s link; grep Udp: /proc/net/snmp").unwrap_or_default()
            );
        }
        text.into()
    }

    /// Output of `ip xfrm` about the gateway of an end.
    pub(crate) fn xfrm(&self, end: &End, words: &str) -> Outcome<String> {
        self.ip(end, &format!("xfrm {words}"))
    }

    /// Runs `ip` on the gateway of an end.
    pub(crate) fn ip(&self, end: &End, words: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["ip", "--instance", end.name]).args(words.split_whitespace());
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }
}

impl End {
    fn start(name: &'static str, number: u8, netns: Netns, scratch: &Scratch, setup: &Setup) -> Outcome<Self> {
        let own = |text: String| if setup.v6 { outer_v6(&text) } else { text };
        Self::start_with(name, number, netns, scratch, setup, &own)
    }

    /// A site whose files are those of the example, changed by `own`.
    fn start_with(
        name: &'static str,
        number: u8,
        netns: Netns,
        scratch: &Scratch,
        setup: &Setup,
        own: &dyn Fn(String) -> String,
    ) -> Outcome<Self> {
        let file = match setup.wan {
            Wan::Udp => {
                netns.sh(&format!(
                    "ip addr add 192.0.2.{number}/24 dev eth0; ip addr add 2001:db8::{number}/64 dev eth0"
                ))?;
                format!("{name}.toml")
            }
            Wan::Interface => {
                // The host's kernel only carries frames here.
                netns.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6")?;
                format!("interface/{name}.toml")
            }
        };
        let mut toml = own(strongswan_example(&file)?);
        if !setup.host_side {
            toml = toml.replace("name = \"wan\"\n", "name = \"wan\"\nike = true\n") + "\n[host]\nside = \"off\"\n";
        }
        let gateway = Gateway::start(&netns, scratch, name, &toml)?;
        let files = match setup.wan {
            Wan::Udp => CharonFiles::new(scratch, name, setup.auth)?,
            Wan::Interface => CharonFiles::on_interface(scratch, name)?,
        };
        files.edit("swanctl.conf", own)?;
        files.with_own_socket()?;
        files.giving_up_soon()?;
        for (from, to) in setup.connections {
            files.change("swanctl.conf", from, to)?;
        }
        let end = Self { charon: None, gateway, netns, name, files, toml };
        end.to_peer(number.into())?;
        Ok(end)
    }

    /// Routes the traffic of this end's host to the other host by its gateway.
    fn to_peer(&self, number: usize) -> Outcome {
        let peer = 3 - number;
        self.netns
            .sh(&format!("ip addr replace 10.{number}.0.1/24 dev tun0; ip route replace 10.{peer}.0.0/24 dev tun0"))?;
        // The gateway must not lose packets when it is not scheduled for a moment.
        self.netns.sh("ip link set tun0 txqueuelen 10000")?;
        Ok(())
    }

    /// Runs a command of the daemon.
    pub(crate) fn swanctl(&self, words: &[&str]) -> Outcome<String> {
        self.charon.as_ref().ok_or("it does not run")?.swanctl(words)
    }

    /// Log of the daemon.
    pub(crate) fn log(&self) -> String {
        self.charon.as_ref().map(Charon::log).unwrap_or_default()
    }
}
