//! Two gateways on one wire, each with a daemon of its own.

use std::process::Command;
use std::time::Duration;

use system::{
    Auth, Charon, CharonFiles, Gateway, Netns, Outcome, Scratch, fatpath, run, strongswan_example, veth, wait_until,
};

/// How long IKE may take for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What differs from the example.
pub(crate) struct Setup {
    pub(crate) auth: Auth,
    /// What takes the place of what in `swanctl.conf`.
    pub(crate) connections: &'static [(&'static str, &'static str)],
}

/// The example as it is.
pub(crate) const EXAMPLE: Setup = Setup { auth: Auth::Psk, connections: &[] };

/// One of the two ends. Fields are dropped in this order.
pub(crate) struct End {
    pub(crate) charon: Option<Charon>,
    pub(crate) gateway: Gateway,
    pub(crate) netns: Netns,
    name: &'static str,
    pub(crate) files: CharonFiles,
}

/// Both, on one wire.
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

    /// All but the daemons.
    pub(crate) fn prepare(setup: &Setup) -> Outcome<Self> {
        let scratch = Scratch::new()?;
        let [left, right] = [Netns::new("left")?, Netns::new("right")?];
        veth((&left, "eth0"), (&right, "eth0"))?;
        let ends = [End::start("left", 1, left, &scratch, setup)?, End::start("right", 2, right, &scratch, setup)?];
        Ok(Self { ends, scratch })
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

    /// Has a packet bring up the tunnel. What needs it waits for it, or is lost: the first packets are.
    pub(crate) fn up(&self) -> Outcome {
        let [left, _] = &self.ends;
        let ping = || left.netns.sh("ping -c 1 -W 1 10.2.0.1").is_ok();
        wait_until("a packet comes through", PATIENCE, ping).map_err(|failed| self.explain(&failed))
    }

    /// A failure with what both ends have to say of it.
    pub(crate) fn explain(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        let mut text = failed.message().unwrap_or_default().to_owned();
        for end in &self.ends {
            let shown = |what| end.gateway.show(what).unwrap_or_default();
            let log = end.charon.as_ref().map(Charon::log).unwrap_or_default();
            text += &format!(
                "\n--- {}\n{log}\n{}\n{}\n{}\n{}",
                end.name,
                end.gateway.log(),
                shown("sa"),
                shown("counters"),
                shown("drops")
            );
        }
        text.into()
    }

    /// What `ip xfrm` says of the gateway of an end.
    pub(crate) fn xfrm(&self, end: &End, words: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["ip", "--instance", end.name, "xfrm"]).args(words.split_whitespace());
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }
}

impl End {
    fn start(name: &'static str, number: u8, netns: Netns, scratch: &Scratch, setup: &Setup) -> Outcome<Self> {
        let peer = 3 - number;
        netns.sh(&format!("ip addr add 192.0.2.{number}/24 dev eth0"))?;
        let gateway = Gateway::start(&netns, scratch, name, &strongswan_example(&format!("{name}.toml"))?)?;
        netns.sh(&format!("ip addr add 10.{number}.0.1/24 dev tun0; ip route add 10.{peer}.0.0/24 dev tun0"))?;
        let files = CharonFiles::new(scratch, name, setup.auth)?;
        files.for_test()?;
        for (from, to) in setup.connections {
            files.change("swanctl.conf", from, to)?;
        }
        Ok(Self { charon: None, gateway, netns, name, files })
    }

    /// Tells the daemon something.
    pub(crate) fn swanctl(&self, words: &[&str]) -> Outcome<String> {
        self.charon.as_ref().ok_or("it does not run")?.swanctl(words)
    }

    /// What the daemon has logged.
    pub(crate) fn log(&self) -> String {
        self.charon.as_ref().map(Charon::log).unwrap_or_default()
    }
}
