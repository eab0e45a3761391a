//! Links from descriptors that another thread, with capabilities, has made.

use driver::{DriverKind, XdpMode};
use libtest_mimic::Trial;
use link::{Config, Link, OpenError};
use packet::Memory;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use system::{Need, Netns, Outcome, trial};

use super::{config, drain, shards};
use crate::xdp::cable_of_queues;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::ETHTOOL];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("queues/link_from_descriptors_takes_no_capability", NEEDS, without_capabilities),
        trial("queues/descriptors_of_another_link_are_refused", NEEDS, others),
    ]
}

/// Makes the descriptors of a link for `of` shards in a namespace, and the link for `to` shards on a thread without capabilities.
fn opened(netns: &Netns, config: &Config, [of, to]: [u8; 2]) -> Result<Vec<Box<dyn Link>>, OpenError> {
    netns.enter(|| {
        let acquired = link::acquire(config, shards(of))?;
        let open = || {
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
                .expect("a thread may give up capabilities");
            assert!(link::acquire(&tun("fat1"), shards(1)).is_err(), "a thread without capabilities has made a device");
            link::from_descriptors(config, acquired, shards(to))
        };
        std::thread::scope(|scope| scope.spawn(open).join().expect("the thread has not panicked"))
    })
}

fn tun(name: &str) -> Config {
    config(name, DriverKind::Tun { queues: 1 }, true)
}

fn udp(bind: &str) -> Config {
    config("wan", DriverKind::Udp { bind: bind.parse().expect("an address") }, true)
}

fn packet(exclusive: bool) -> Config {
    config("eth0", DriverKind::Packet { interface: "eth0".to_owned(), exclusive }, true)
}

fn xdp(mode: XdpMode) -> Config {
    config("eth0", DriverKind::Xdp { interface: "eth0".to_owned(), ring: 256, mode }, true)
}

fn without_capabilities() -> Outcome {
    let cable = cable_of_queues(4)?;
    cable.us.sh("ip link set lo up")?;
    let mem = Memory::heap();
    for config in [
        tun("fat0"),
        Config { mtu: Some(1400), ..config("fat2", DriverKind::Tap { queues: 4 }, false) },
        udp("127.0.0.1:500"),
        packet(false),
        packet(true),
        xdp(XdpMode::Native),
        xdp(XdpMode::Generic),
    ] {
        let mut queues = opened(&cable.us, &config, [3, 3]).map_err(|err| format!("{err}, of {:?}", config.kind))?;
        assert_eq!(queues.len(), 3, "{:?}", config.kind);
        assert_eq!(queues[0].mtu(), config.mtu.map_or(1500, usize::from), "{:?}", config.kind);
        drain(&mut queues, &mem)?;
    }
    Ok(())
}

fn others() -> Outcome {
    let cable = cable_of_queues(4)?;
    for (config, given) in [(tun("fat0"), 2), (udp("127.0.0.1:4500"), 3), (packet(false), 2), (xdp(XdpMode::Native), 8)]
    {
        let Err(err) = opened(&cable.us, &config, [2, 4]) else {
            return Err(format!("a link of {:?} was made", config.kind).into());
        };
        let want = format!("descriptors: {given} are not those of this kind of link for 4 workers");
        assert!(err.to_string().ends_with(&want), "{err}");
    }
    Ok(())
}
