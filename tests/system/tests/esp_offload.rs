//! ESP offloaded to the device of a link by `ip xfrm state add … offload crypto dev DEV dir DIR`.

use std::process::Command;

use libtest_mimic::Trial;
use system::{Cable, Capture, Gateway, Need, Netns, Outcome, Scratch, fatpath, macvlan, run, transfer, trial, veth};

use crate::bridge::guest;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::TCPDUMP];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("esp_offload/device_encrypts_to_a_peer_without_one", NEEDS, || offloaded(veth)),
        trial("esp_offload/device_of_a_macvlan_encrypts_to_a_peer_without_one", NEEDS, || offloaded(macvlan)),
    ]
}

/// A gateway of the test.
struct Site<'a> {
    scratch: &'a Scratch,
    name: &'a str,
}

impl Site<'_> {
    fn sh(&self, script: &str) -> Outcome<String> {
        let mut command = Command::new(fatpath());
        command.args(["exec", "--instance", self.name, "--", "sh", "-ec", script]);
        run(command.env("FATPATH_RUNDIR", self.scratch.path()))
    }
}

/// Configuration of a gateway; `more` are further keys of the link to the other one.
fn config(own: u8, more: &str) -> String {
    let peer = 3 - own;
    format!(
        "[[link]]\nname = \"up0\"\nkind = \"packet\"\ninterface = \"up0\"\naddresses = [\"192.0.2.{own}/24\"]\n{more}\
         [[link]]\nname = \"tap0\"\nkind = \"tap\"\naddresses = [\"10.{own}.0.254/24\"]\n\
         [[route]]\nto = \"10.{peer}.0.0/24\"\nvia = \"192.0.2.{peer}\"\n"
    )
}

/// Command that adds the SA from a site to the other.
fn state(from: u8, more: &str) -> String {
    let to = 3 - from;
    format!(
        "ip xfrm state add src 192.0.2.{from} dst 192.0.2.{to} proto esp spi 0x100{from} reqid 1 mode tunnel \
         replay-window 64 flag esn aead 'rfc4106(gcm(aes))' 0x{}{from:02} 128 {more}\n",
        "11".repeat(19)
    )
}

/// Commands that add the policies of a site.
fn policies(own: u8) -> String {
    let peer = 3 - own;
    let policy = |dir, from, to| {
        format!(
            "ip xfrm policy add dir {dir} src 10.{from}.0.0/24 dst 10.{to}.0.0/24 \
             tmpl src 192.0.2.{from} dst 192.0.2.{to} proto esp reqid 1 mode tunnel\n"
        )
    };
    policy("out", own, peer) + &policy("fwd", peer, own) + &policy("in", peer, own)
}

fn offloaded(cable: Cable) -> Outcome {
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    cable((&left, "up0"), (&right, "up0"))?;
    let with_device = config(1, "esp-offload = \"software\"\n");
    let mut gateways = [
        Gateway::start(&left, &scratch, "left", &with_device)?,
        Gateway::start(&right, &scratch, "right", &config(2, ""))?,
    ];
    let guests = [guest("a", &left, "tap0", "10.1.0.2/24")?, guest("b", &right, "tap0", "10.2.0.2/24")?];
    for (guest, own) in guests.iter().zip(1..) {
        guest.sh(&format!("ip route add default via 10.{own}.0.254"))?;
    }
    let sites = ["left", "right"].map(|name| Site { scratch: &scratch, name });
    let [a, b] = &sites;
    a.sh(&(state(1, "offload dev up0 dir out") + &state(2, "offload dev up0 dir in") + &policies(1)))?;
    // Without a device, software does the work, as under Linux.
    b.sh(&(state(1, "offload dev up0 dir in") + &state(2, "") + &policies(2)))?;
    for (dst, spi, dir) in [(2, "0x1001", "out"), (1, "0x1002", "in")] {
        let shown = a.sh(&format!("ip -s xfrm state get dst 192.0.2.{dst} proto esp spi {spi}"))?;
        assert!(shown.contains("offload") && shown.contains(&format!("dev up0 dir {dir}")), "{shown}");
    }
    let shown = gateways[0].show("sa")?;
    assert!(shown.contains("dev up0 dir out mode crypto") && shown.contains("dev up0 dir in mode crypto"), "{shown}");
    assert!(!b.sh("ip xfrm state")?.contains("offload") && !gateways[1].show("sa")?.contains("offload"));
    let features = a.sh("ethtool -k up0")?;
    assert!(features.contains("esp-hw-offload: on [fixed]"), "{features}");

    let capture = Capture::start(&right, "up0", "ip", &scratch)?;
    transfer(&guests[0], (&guests[1], "10.2.0.2".parse()?), 4 << 20)?;
    transfer(&guests[1], (&guests[0], "10.1.0.2".parse()?), 4 << 20)?;
    let file = capture.finish()?;
    let read = |filter: &str| {
        let text = run(Command::new("tcpdump").args(["-nr"]).arg(&file).arg(filter))?;
        Outcome::Ok(text.lines().filter(|line| line.contains("192.0.2.") || line.contains("10.")).count())
    };
    assert!(read("esp")? > 1000, "{} packets of ESP", read("esp")?);
    assert_eq!(read("not esp")?, 0, "packets that are not ESP");
    for gateway in &gateways {
        let shown = gateway.show("sa")?;
        assert!(!shown.contains("lifetime current:\n\t  0(bytes)"), "{shown}");
    }

    // Refused with the reason. iproute2 before 6.2 cannot ask for packet mode.
    let add = state(2, "encap espinudp 4500 4500 0.0.0.0 offload dev up0 dir in").replace("0x1002", "0x2002");
    let refused = a.sh(&add).unwrap_err().message().unwrap_or_default().to_owned();
    assert!(refused.contains("The device of up0 does not offload an SA with UDP encapsulation"), "{refused}");
    // The SA that is removed takes its place on the device with it.
    a.sh(&format!(
        "ip xfrm state delete src 192.0.2.2 dst 192.0.2.1 proto esp spi 0x1002\n{}",
        state(2, "offload dev up0 dir in")
    ))?;
    // A reload that takes the device away takes its SAs away, as the end of a device does under Linux.
    gateways[0].reload(&with_device)?;
    assert!(gateways[0].show("sa")?.contains("0x00001002"), "an unchanged link keeps its SAs");
    gateways[0].reload(&config(1, ""))?;
    gateways[0].wait_until("the SAs are gone", |gateway| gateway.show("sa").is_ok_and(|shown| shown.is_empty()))?;
    let features = a.sh("ethtool -k up0")?;
    assert!(features.contains("esp-hw-offload: off [fixed]"), "{features}");
    Ok(())
}
