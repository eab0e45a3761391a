//! Guests of a gateway that is restarted or replaced: their connections, rings and frames go on. Front ends of these tests are on a
//! bridge with each other.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use system::{
    FrontEnd, Gateway, Manager, Manners, Need, Netns, Outcome, Scratch, change_user, exchange, fatpath, trial,
    wait_until,
};

use crate::bridge::bridge;

const NEEDS: &[Need] = &[Need::Namespaces];

const PATIENCE: Duration = Duration::from_secs(20);

/// Restarts under a stream of frames.
const ROUNDS: usize = 3;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("guest_ports/frames_go_on_over_a_restart", NEEDS, || go_on(Way::Restart, 1, "")),
        trial("guest_ports/frames_go_on_over_a_replacement", NEEDS, || go_on(Way::Replace, 1, "")),
        trial("guest_ports/several_pairs_go_on_over_a_restart", NEEDS, || go_on(Way::Restart, 4, TWO_WORKERS)),
        trial("guest_ports/several_pairs_go_on_over_a_replacement", NEEDS, || go_on(Way::Replace, 4, TWO_WORKERS)),
        trial("guest_ports/number_of_workers_changes_over_a_restart", NEEDS, workers),
        trial("guest_ports/less_memory_in_the_file_closes_a_guest", NEEDS, less_memory),
        trial("guest_ports/killed_gateway_leaves_guests_to_reconnect", NEEDS, killed),
        trial("guest_ports/store_without_room_closes_guests", NEEDS, small_store),
        trial("guest_ports/damaged_store_closes_guests", NEEDS, || damaged_store(None)),
        trial("guest_ports/start_that_fails_loses_no_guest", NEEDS, failed_start),
        trial("guest_ports/port_that_the_file_lacks_is_removed", NEEDS, || removed(None)),
        trial("guest_ports/swapped_names_leave_guests_with_their_sockets", NEEDS, swapped),
        trial("guest_ports/listeners_without_their_table_are_bound_anew", NEEDS, || without_table(None)),
        trial("guest_ports/listener_without_its_file_is_bound_anew", NEEDS, || without_file(None)),
        trial("guest_ports/addresses_of_bridge_and_ports_stay", NEEDS, addresses),
        trial("guest_ports/ports_of_one_machine_share_its_memory", NEEDS, one_machine),
        trial("guest_ports/socket_of_another_program_stays", NEEDS, || foreign(None)),
        trial("guest_ports/frames_go_on_when_the_user_changes", NEEDS, other_users),
        trial("guest_ports/user_goes_on_over_a_restart", NEEDS, || users(Way::Restart)),
        trial("guest_ports/user_goes_on_over_a_replacement", NEEDS, || users(Way::Replace)),
        trial("guest_ports/user_removes_a_port_that_the_file_lacks", NEEDS, || removed(USER)),
        trial("guest_ports/user_leaves_a_socket_of_another_program", NEEDS, || foreign(USER)),
        trial("guest_ports/user_cannot_have_root_remove_by_its_link", NEEDS, planted),
        trial("guest_ports/user_ends_listeners_without_their_table", NEEDS, || without_table(USER)),
        trial("guest_ports/user_binds_a_socket_without_its_file_anew", NEEDS, || without_file(USER)),
        trial("guest_ports/user_closes_guests_of_a_damaged_store", NEEDS, || damaged_store(USER)),
    ]
}

/// A user that no host has.
const USER: Option<&str> = Some("61234");

const TWO_WORKERS: &str = "[worker]\ncount = 2\n";

/// Way from a gateway to the next one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// SIGTERM and a start, under the service manager.
    Restart,
    /// `fatpath run --replace`.
    Replace,
}

/// A gateway with two guests.
struct Site {
    gateway: RefCell<Gateway>,
    manager: Option<Manager>,
    netns: Netns,
    toml: String,
    pairs: u16,
    /// User of the next gateways; `None`: that of all tests.
    user: Cell<Option<&'static str>>,
    scratch: Scratch,
}

/// Configuration with ports for both guests.
fn toml(scratch: &Scratch, pairs: u16, more: &str) -> String {
    [bridge("br0", ""), port(scratch, 0, pairs, ""), port(scratch, 1, pairs, ""), more.to_owned()].concat()
}

fn socket(scratch: &Scratch, number: usize) -> PathBuf {
    scratch.file("guests").join(format!("vm{number}.sock"))
}

fn port(scratch: &Scratch, number: usize, pairs: u16, more: &str) -> String {
    let socket = socket(scratch, number).display().to_string();
    format!(
        "[[link]]\nname = \"vm{number}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nqueues = {pairs}\nmaster = \"br0\"\n{more}"
    )
}

impl Site {
    fn new(way: Way, pairs: u16, more: &str) -> Outcome<Self> {
        Self::of_user(way, pairs, more, None)
    }

    /// A gateway of a user, which does not even search the directory of its guests' sockets.
    fn of_user(way: Way, pairs: u16, more: &str, user: Option<&'static str>) -> Outcome<Self> {
        let (scratch, netns) = (Scratch::new()?, Netns::new("guests")?);
        let dir = scratch.file("guests");
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        let manager = if way == Way::Restart { Some(Manager::new(&scratch)?) } else { None };
        let toml = toml(&scratch, pairs, more);
        let mut command = match &manager {
            Some(manager) => manager.command(&netns, &scratch.file("x.state"))?,
            None => netns.command(fatpath()),
        };
        user.into_iter().for_each(|user| change_user(&mut command, user));
        let gateway = RefCell::new(Gateway::start_under(command, &scratch, "x", &toml)?);
        let site = Self { gateway, manager, netns, toml, pairs, user: Cell::new(user), scratch };
        site.belongs_to_user()?;
        Ok(site)
    }

    /// Fails unless all threads of the gateway are the user's.
    fn belongs_to_user(&self) -> Outcome {
        let Some(user) = self.user.get() else { return Ok(()) };
        let uid = if user == "root" { "0" } else { user };
        let gateway = self.gateway.borrow();
        for thread in fs::read_dir(format!("/proc/{}/task", gateway.id()))? {
            // A thread may have ended.
            let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
            let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or("no user")?;
            assert!(ids.split_whitespace().all(|id| id == uid), "{status}{}", gateway.log());
        }
        Ok(())
    }

    fn guests(&self) -> Outcome<[FrontEnd; 2]> {
        Ok([self.guest(0)?, self.guest(1)?])
    }

    fn guest(&self, number: usize) -> Outcome<FrontEnd> {
        FrontEnd::connect(&socket(&self.scratch, number), self.pairs, number as u8 + 1)
    }

    fn manager(&self) -> Outcome<&Manager> {
        self.manager.as_ref().ok_or_else(|| "no manager".into())
    }

    fn terminate(&self) -> Outcome {
        let mut gateway = self.gateway.borrow_mut();
        assert!(gateway.terminate()?.success(), "{}", gateway.log());
        Ok(())
    }

    fn start(&self, toml: &str) -> Outcome {
        let mut command = self.manager()?.command(&self.netns, &self.scratch.file("x.state"))?;
        self.user.get().into_iter().for_each(|user| change_user(&mut command, user));
        let started = Gateway::start_under(command, &self.scratch, "x", toml)?;
        self.gateway.replace(started);
        self.belongs_to_user()
    }

    /// Goes to the next gateway, with the file `toml`.
    fn renew(&self, way: Way, toml: &str) -> Outcome {
        match way {
            Way::Restart => self.terminate().and_then(|()| self.start(toml)),
            Way::Replace => {
                let mut command = self.netns.command(fatpath());
                self.user.get().into_iter().for_each(|user| change_user(&mut command, user));
                self.gateway.borrow_mut().replace(command, &self.scratch, toml, PATIENCE).map(drop)?;
                self.belongs_to_user()
            }
        }
    }

    fn log(&self) -> String {
        self.gateway.borrow().log()
    }

    /// State of a guest that `fatpath show links` prints.
    fn state(&self, number: usize) -> Outcome<serde_json::Value> {
        Ok(self.gateway.borrow().link(&format!("vm{number}"))?["guest"].clone())
    }

    /// Fails unless the gateway goes on with the connections of both guests, which see nothing of it.
    fn goes_on(&self, guests: &[FrontEnd; 2]) -> Outcome {
        let log = self.log();
        for (number, guest) in guests.iter().enumerate() {
            assert!(!guest.is_closed()?, "{log}");
            assert!(log.contains(&format!("vm{number}: its guest goes on")), "{log}");
            let state = self.state(number)?;
            assert_eq!((&state["connected"], &state["connections"]), (&true.into(), &0.into()), "{state}");
            assert_eq!((&state["violations"], &state["regions"]), (&0.into(), &2.into()), "{state}");
        }
        assert!(!log.contains("reconnects") && !log.contains("ERROR"), "{log}");
        Ok(())
    }

    /// Fails unless both guests are disconnected, for a reason that the log has, and connect again.
    fn reconnects(&self, guests: [FrontEnd; 2], why: &str) -> Outcome {
        for (number, guest) in guests.iter().enumerate() {
            wait_until("the connection is closed", PATIENCE, || guest.is_closed().is_ok_and(|closed| closed))
                .map_err(|_| format!("guest {number}: {}", self.log()))?;
        }
        let log = self.log();
        assert!(log.contains(why), "{why}: {log}");
        drop(guests);
        let mut guests = self.guests()?;
        exchange(&mut guests, || Ok(())).map(drop).map_err(|failed| self.explain(&failed))
    }

    fn explain(&self, failed: &libtest_mimic::Failed) -> libtest_mimic::Failed {
        format!("{}\n---\n{}", failed.message().unwrap_or_default(), self.log()).into()
    }
}

fn go_on(way: Way, pairs: u16, more: &str) -> Outcome {
    keep(&Site::new(way, pairs, more)?, way)
}

/// Guests of a gateway of a user; and the files of their sockets go with their links.
fn users(way: Way) -> Outcome {
    let site = Site::of_user(way, 2, TWO_WORKERS, USER)?;
    keep(&site, way)?;
    site.gateway
        .borrow()
        .reload(&[bridge("br0", ""), port(&site.scratch, 1, 2, ""), TWO_WORKERS.to_owned()].concat())?;
    let [first, second] = [0, 1].map(|number| socket(&site.scratch, number));
    wait_until("the socket of a port that was adopted is removed", PATIENCE, || !first.exists())
        .map_err(|failed| site.explain(&failed))?;
    assert!(second.exists(), "{}", site.log());
    site.terminate()?;
    assert_eq!(second.exists(), way == Way::Restart, "{}", site.log());
    Ok(())
}

/// An installation that gets the user of gateways, and loses it again.
fn other_users() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::of_user(way, 1, "", Some("root"))?;
        let mut guests = site.guests()?;
        for user in ["61234", "61235", "root"] {
            site.user.set(Some(user));
            exchange(&mut guests, || site.renew(way, &site.toml)).map_err(|failed| site.explain(&failed))?;
            site.goes_on(&guests)?;
        }
    }
    Ok(())
}

/// Another program takes the path of a guest's socket, which a gateway has adopted, or whose link the next gateway lacks.
fn foreign(user: Option<&'static str>) -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::of_user(way, 1, "", user)?;
        let [first, second] = [0, 1].map(|number| socket(&site.scratch, number));
        let other = |path: &PathBuf| {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        };
        site.renew(way, &site.toml)?;
        let _first = other(&first)?;
        let without_first = [bridge("br0", ""), port(&site.scratch, 1, 1, "")].concat();
        site.gateway.borrow().reload(&without_first)?;
        wait_until("the link is gone", PATIENCE, || site.state(0).is_err())?;
        UnixStream::connect(&first).map_err(|err| format!("{err}: {}", site.log()))?;
        let _second = other(&second)?;
        site.renew(way, &bridge("br0", ""))?;
        wait_until("the link is gone", PATIENCE, || site.state(1).is_err())?;
        UnixStream::connect(&second).map_err(|err| format!("{err}: {}", site.log()))?;
        site.terminate()?;
        UnixStream::connect(&first).and_then(|_| UnixStream::connect(&second))?;
    }
    Ok(())
}

/// Sockets of guests behind a symbolic link of the user's: root's opener removes none there, and a port there is refused by name.
fn planted() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::of_user(way, 1, "", USER)?;
        site.renew(way, &site.toml)?;
        let (dir, real) = (site.scratch.file("guests"), site.scratch.file("real"));
        fs::rename(&dir, &real)?;
        symlink(&real, &dir)?;
        lchown(&dir, Some(61_234), Some(61_234))?;
        let without_first = [bridge("br0", ""), port(&site.scratch, 1, 1, "")].concat();
        site.gateway.borrow().reload(&without_first)?;
        wait_until("the link is gone", PATIENCE, || site.state(0).is_err())?;
        assert!(real.join("vm0.sock").exists(), "{}", site.log());
        let next = |toml: &str| match way {
            Way::Restart => site.start(toml),
            Way::Replace => site.renew(way, toml),
        };
        if way == Way::Restart {
            site.terminate()?;
        }
        let refused = next(&without_first).err().ok_or("a port behind the link is made")?;
        let why = refused.message().unwrap_or_default();
        assert!(why.contains(&format!("the gateway's user 61234 may change {}", dir.display())), "{why}");
        next(&bridge("br0", ""))?;
        let stays = format!("{}: the socket of an earlier gateway's guest stays: ", dir.join("vm1.sock").display());
        assert!(site.log().contains(&stays), "{}", site.log());
        assert!(["vm0.sock", "vm1.sock"].iter().all(|name| real.join(name).exists()), "{}", site.log());
    }
    Ok(())
}

/// The same guests go on over several restarts.
fn keep(site: &Site, way: Way) -> Outcome {
    let pairs = site.pairs;
    let mut guests = site.guests()?;
    for _ in 0..ROUNDS {
        let exchanged =
            exchange(&mut guests, || site.renew(way, &site.toml)).map_err(|failed| site.explain(&failed))?;
        println!("{way:?}, {pairs} pairs: {exchanged:?} frames, none is lost");
        assert!(exchanged.iter().all(|&frames| frames > 100), "{exchanged:?}");
        site.goes_on(&guests)?;
        if let Some(manager) = &site.manager {
            assert!(manager.stored("guests")?.is_empty() && manager.stored("guest-0")?.is_empty(), "{}", site.log());
        }
    }
    // Messages are answered as before.
    for guest in &mut guests {
        assert_eq!(guest.most_pairs()?, u64::from(pairs));
    }
    Ok(())
}

/// Pairs are dealt to as many workers as there are.
fn workers() -> Outcome {
    let site = Site::new(Way::Restart, 3, "")?;
    let mut guests = site.guests()?;
    for count in [2, 3, 1] {
        let toml = toml(&site.scratch, 3, &format!("[worker]\ncount = {count}\n"));
        exchange(&mut guests, || site.renew(Way::Restart, &toml)).map_err(|failed| site.explain(&failed))?;
        site.goes_on(&guests)?;
    }
    Ok(())
}

/// A guest with more memory than its link has from now on.
fn less_memory() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::new(way, 1, "")?;
        let guests = site.guests()?;
        let less = [bridge("br0", ""), port(&site.scratch, 0, 1, "memory = \"64kb\"\n"), port(&site.scratch, 1, 1, "")];
        site.renew(way, &less.concat()).map_err(|failed| site.explain(&failed))?;
        let log = site.log();
        let line = log.lines().find(|line| line.contains("vm0: its guest reconnects: memory region 1: "));
        let why = "more than 65536 bytes of memory; raise `memory` of the link";
        assert!(line.is_some_and(|line| line.contains(why)) && log.contains("vm1: its guest goes on"), "{log}");
        assert!(guests[0].is_closed()? && !guests[1].is_closed()?, "{log}");
        // As the file is now, also the next connection is refused.
        assert!(site.guest(0).is_err());
        site.renew(way, &site.toml)?;
        let mut guests = [site.guest(0)?, { guests }.into_iter().nth(1).ok_or("no guest")?];
        exchange(&mut guests, || Ok(())).map_err(|failed| site.explain(&failed))?;
    }
    Ok(())
}

fn killed() -> Outcome {
    let site = Site::new(Way::Restart, 1, "")?;
    let guests = site.guests()?;
    site.gateway.borrow_mut().kill()?;
    assert!(guests.iter().all(|guest| guest.is_closed().is_ok_and(|closed| closed)));
    site.start(&site.toml)?;
    site.reconnects(guests, "running with")
}

/// Room for the other descriptors and those of the first guest, but for one; and for none at all.
fn small_store() -> Outcome {
    let site = Site::new(Way::Restart, 1, "")?;
    // The host side, three listeners, the table of links, two sockets; and the table of guests with five descriptors of the first one.
    let guests = site.guests()?;
    let before = |site: &Site| -> Outcome<usize> {
        let names = ["host-side", "control", "view", "netlink", "links", "link-1-0", "link-2-0"];
        names.iter().map(|name| Ok(site.manager()?.stored(name)?.len())).sum()
    };
    site.manager()?.behave(Manners::StoresAtMost(7 + 1 + 5));
    site.terminate()?;
    assert_eq!(before(&site)?, 7);
    assert_eq!(["guest-4", "guest-5"].map(|name| site.manager().unwrap().stored(name).unwrap().len()), [1, 0]);
    site.start(&site.toml)?;
    let log = site.log();
    assert!(log.contains("vm1: its guest reconnects: 0 of 6 descriptors were kept"), "{log}");
    site.reconnects(guests, "vm0: its guest reconnects: 5 of 6 descriptors were kept")?;
    assert!(site.manager()?.stored("guest-0")?.is_empty());
    let guests = site.guests()?;
    site.manager()?.behave(Manners::StoresNothing);
    site.terminate()?;
    site.start(&site.toml)?;
    assert!(!site.log().contains("reconnects"), "{}", site.log());
    // A manager that hangs gives them to a later start again.
    site.reconnects(guests, "running with")?;
    let guests = site.guests()?;
    site.manager()?.behave(Manners::Stores);
    site.terminate()?;
    site.manager()?.behave(Manners::Hangs);
    site.start(&site.toml)?;
    site.reconnects(guests, "guests reconnect: the service manager has them still: it does not answer")
}

/// Sealed memory with these bytes.
fn memory(bytes: &[u8]) -> Outcome<OwnedFd> {
    let mut file = File::from(memfd_create("guests", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

fn damaged_store(user: Option<&'static str>) -> Outcome {
    let site = Site::of_user(Way::Restart, 1, "", user)?;
    type Damage = fn(&str) -> String;
    let cases: [(Damage, &str); 4] = [
        (|_| "[".to_owned(), "guests reconnect: it has no guests: "),
        (|table| table.replace("\"protocol\":", "\"prot\":"), "guests reconnect: it has no guests: "),
        (|table| table.replace("\"size\":256", "\"size\":255"), "vm0: its guest reconnects: queue 0: "),
        (|table| table.replace("/vm0.sock\"", "/vm9.sock\""), "vm0: its guest reconnects: no link has its socket"),
    ];
    for (damage, why) in cases {
        let guests = site.guests()?;
        site.terminate()?;
        let stored = site.manager()?.stored("guests")?;
        let mut table = vec![0; 1 << 16];
        let len = rustix::io::pread(stored[0].as_fd(), &mut table, 0)?;
        let table = String::from_utf8(table[..len].to_vec())?;
        assert!(table.contains("\"vm0\"") && table.contains("\"size\":256"), "{table}");
        site.manager()?.remove("guests");
        site.manager()?.put("guests", memory(damage(&table).as_bytes())?);
        site.start(&site.toml)?;
        if why.ends_with("socket") {
            // The other one goes on.
            assert!(guests[0].is_closed()? && !guests[1].is_closed()?, "{}", site.log());
            assert!(site.log().contains(why) && site.log().contains("vm1: its guest goes on"), "{}", site.log());
            continue;
        }
        site.reconnects(guests, why)?;
    }
    // Without the table.
    let guests = site.guests()?;
    site.terminate()?;
    site.manager()?.remove("guests");
    site.start(&site.toml)?;
    site.reconnects(guests, "guests reconnect: their table was not kept")
}

/// A start with a wrong file, and then one with the right one.
fn failed_start() -> Outcome {
    let site = Site::new(Way::Restart, 1, "")?;
    let mut guests = site.guests()?;
    exchange(&mut guests, || {
        site.terminate()?;
        let wrong = format!("{}[[link]]\nname = \"none\"\nkind = \"packet\"\ninterface = \"none0\"\n", site.toml);
        assert!(site.start(&wrong).is_err());
        site.start(&site.toml)
    })
    .map_err(|failed| site.explain(&failed))?;
    site.goes_on(&guests)?;
    // So does a gateway of which the next one fails.
    let site = Site::new(Way::Replace, 1, "")?;
    let mut guests = site.guests()?;
    exchange(&mut guests, || {
        let wrong = format!("{}[[link]]\nname = \"none\"\nkind = \"packet\"\ninterface = \"none0\"\n", site.toml);
        assert!(site.renew(Way::Replace, &wrong).is_err());
        site.renew(Way::Replace, &site.toml)
    })
    .map_err(|failed| site.explain(&failed))?;
    site.goes_on(&guests)
}

/// A port that the next file lacks goes with its socket, and comes again.
fn removed(user: Option<&'static str>) -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::of_user(way, 1, "", user)?;
        let guests = site.guests()?;
        site.renew(way, &[bridge("br0", ""), port(&site.scratch, 1, 1, "")].concat())?;
        let log = site.log();
        assert!(log.contains("vm0: its guest reconnects: no link has its socket"), "{log}");
        assert!(guests[0].is_closed()? && !guests[1].is_closed()?, "{log}");
        let socket = socket(&site.scratch, 0);
        assert!(!socket.exists() && UnixStream::connect(&socket).is_err(), "{log}");
        site.renew(way, &site.toml)?;
        let mut guests = [site.guest(0)?, { guests }.into_iter().nth(1).ok_or("no guest")?];
        exchange(&mut guests, || Ok(())).map_err(|failed| site.explain(&failed))?;
        // No port is left, and none in their directory.
        site.renew(way, &bridge("br0", ""))?;
        assert!(fs::read_dir(site.scratch.file("guests"))?.next().is_none(), "{}", site.log());
        assert!(!site.log().contains("stays"), "{}", site.log());
        site.renew(way, &site.toml)?;
        site.terminate()?;
        assert_eq!(socket.exists(), way == Way::Restart);
    }
    Ok(())
}

/// A link that gets the socket of another one gets its guest as well.
fn swapped() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::new(way, 1, "")?;
        let mut guests = site.guests()?;
        // The first guest's link is in the bridge, and that of the second is not.
        let swapped = [
            bridge("br0", ""),
            port(&site.scratch, 0, 1, "").replace("\"vm0\"", "\"vm1\""),
            port(&site.scratch, 1, 1, "").replace("\"vm1\"", "\"vm0\"").replace("master = \"br0\"\n", ""),
        ];
        site.renew(way, &swapped.concat())?;
        assert!(!guests[0].is_closed()? && !guests[1].is_closed()?, "{}", site.log());
        let sent = |name: &str| -> Outcome<u64> {
            Ok(site.gateway.borrow().link(name)?["guest"]["queues"][1]["chains"].as_u64().ok_or("no chains")?)
        };
        let before = [sent("vm0")?, sent("vm1")?];
        assert!(guests[0].send_one(2)?);
        wait_until("the link of the first guest receives its frame", PATIENCE, || {
            sent("vm1").is_ok_and(|now| now > before[1])
        })
        .map_err(|failed| site.explain(&failed))?;
        assert_eq!(sent("vm0")?, before[0]);
    }
    Ok(())
}

/// A store that has sockets that listen for guests, but no table that tells what they are.
fn without_table(user: Option<&'static str>) -> Outcome {
    let site = Site::of_user(Way::Restart, 1, "", user)?;
    let mut guests = site.guests()?;
    let damaged: [Option<&[u8]>; 2] = [None, Some(b"[")];
    for table in damaged {
        site.terminate()?;
        assert!(!site.manager()?.stored("link-1-0")?.is_empty());
        site.manager()?.remove("links");
        if let Some(table) = table {
            site.manager()?.put("links", memory(table)?);
        }
        site.start(&site.toml)?;
        site.goes_on(&guests)?;
        exchange(&mut guests, || Ok(())).map_err(|failed| site.explain(&failed))?;
    }
    // The paths are those of sockets that listen.
    drop(guests);
    exchange(&mut site.guests()?, || Ok(())).map(drop).map_err(|failed| site.explain(&failed))?;
    // Nor has the next file a port for them.
    site.terminate()?;
    site.manager()?.remove("links");
    site.start(&bridge("br0", ""))?;
    assert!(fs::read_dir(site.scratch.file("guests"))?.next().is_none(), "{}", site.log());
    Ok(())
}

fn without_file(user: Option<&'static str>) -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::of_user(way, 1, "", user)?;
        drop(site.guests()?);
        for number in 0..2 {
            fs::remove_file(socket(&site.scratch, number))?;
        }
        site.renew(way, &site.toml)?;
        wait_until("sockets are there", PATIENCE, || (0..2).all(|number| socket(&site.scratch, number).exists()))?;
        exchange(&mut site.guests()?, || Ok(())).map(drop).map_err(|failed| site.explain(&failed))?;
    }
    Ok(())
}

/// Guests, which see no restart, have the address of the bridge in their tables of neighbours.
fn addresses() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::new(way, 1, "")?;
        let addresses = || -> Outcome<Vec<String>> {
            let address = |name: &str| -> Outcome<String> {
                Ok(site.gateway.borrow().link(name)?["lladdr"].as_str().ok_or("no address")?.to_owned())
            };
            ["br0", "vm0", "vm1"].into_iter().map(address).collect()
        };
        let before = addresses()?;
        for _ in 0..2 {
            site.renew(way, &site.toml)?;
            assert_eq!(addresses()?, before);
        }
    }
    Ok(())
}

/// QEMU shares one file with the ports of all network devices of a machine.
fn one_machine() -> Outcome {
    for way in [Way::Restart, Way::Replace] {
        let site = Site::new(way, 1, "")?;
        let sockets = [socket(&site.scratch, 0), socket(&site.scratch, 1)];
        let mut guests = FrontEnd::connect_both([&sockets[0], &sockets[1]], 1)?;
        exchange(&mut guests, || site.renew(way, &site.toml)).map_err(|failed| site.explain(&failed))?;
        site.goes_on(&guests)?;
    }
    Ok(())
}
