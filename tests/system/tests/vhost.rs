//! Malicious drivers of vhost-user guests, and well-behaved guests on the same bridge.

use std::fs;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, run, trial, wait_until};

use crate::bridge::{bridge, guest, tap};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING, Need::PYTHON];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("vhost/malicious_guest_is_closed_and_others_go_on", NEEDS, lies),
        trial("vhost/violation_by_a_pair_of_the_second_worker_closes_it", NEEDS, second_worker),
    ]
}

/// A malicious front end: its memory is a file, in which it writes malformed rings. The last queue is the malicious one.
const LIAR: &str = "\
import os, socket, struct, sys, time
path, lie, last = sys.argv[1:]
last = int(last)
LEN, USER = 1 << 16, 1 << 32
file = os.memfd_create('guest')
os.ftruncate(file, LEN)
front = socket.socket(socket.AF_UNIX)
front.connect(path)
def say(request, layout, *words, fds=[]):
    body = struct.pack('=' + layout, *words)
    socket.send_fds(front, [struct.pack('=III', request, 1, len(body)) + body], fds)
say(2, 'Q', 1 << 30 | 1 << 32)
say(5, 'II4Q', 1, 0, 0, LEN, USER, 0, fds=[file])
for queue in range(last + 1):
    at = USER + 0x1000 * queue
    kick, call = os.eventfd(0), os.eventfd(0)
    say(8, 'II', queue, 16)
    say(10, 'II', queue, 0)
    say(9, 'II4Q', queue, 0, at, at + 0x800, at + 0x400, 0)
    say(13, 'Q', queue, fds=[call])
    say(12, 'Q', queue, fds=[kick])
    say(18, 'II', queue, 1)
say(1, '')
front.recv(20)
def offer(addr, length, flags=0, next=0, count=1):
    os.pwrite(file, struct.pack('<QIHH', addr, length, flags, next), 0x1000 * last)
    os.pwrite(file, struct.pack('<HHH', 0, count, 0), 0x1000 * last + 0x400)
if lie == 'loop': offer(0x4000, 10, 1, 0)
if lie == 'length': offer(0x4000, 0xffffffff)
if lie == 'outside': offer(1 << 40, 100)
if lie == 'table': offer(0x4000, 10, 1, 99)
if lie == 'direction': offer(0x4000, 100, 2)
if lie == 'index': offer(0x4000, 100, count=1000)
if lie == 'buffer unmapped':
    os.ftruncate(file, 0x3000)
    offer(0x4000, 100)
if lie == 'ring unmapped':
    offer(0x4000, 100)
    os.eventfd_write(kick, 1)
    while os.pread(file, 2, 0x1802) != b'\\x01\\x00': time.sleep(0.01)
    os.ftruncate(file, 0)
if lie == 'message': say(77, 'Q', 0)
os.eventfd_write(kick, 1)
front.settimeout(10)
try: end = front.recv(1)
except ConnectionResetError: end = b''
print('closed' if end == b'' else 'open')
";

/// Each violation closes its connection with one log line, and two guests of other ports lose no packet.
fn lies() -> Outcome {
    let cases = [
        ("loop", "loop of descriptors"),
        ("length", "4294967295 bytes at 0x4000 outside of guest memory"),
        ("outside", "100 bytes at 0x10000000000 outside of guest memory"),
        ("table", "descriptor 99 beyond the table"),
        ("direction", "descriptor of the wrong direction"),
        ("index", "available index 1000 ahead"),
        ("buffer unmapped", "the guest's memory went away"),
        ("ring unmapped", "the guest's memory went away"),
        ("message", "message 77: "),
    ];
    let scratch = Scratch::new()?;
    let (left, right) = (Netns::new("left")?, Netns::new("right")?);
    let link = |name: &str, kind: &str| {
        let socket = scratch.file(&format!("{name}.sock"));
        format!("[[link]]\nname = \"{name}\"\nkind = \"{kind}\"\nsocket = \"{}\"\nmaster = \"br0\"\n", socket.display())
    };
    let config = |links: &[String]| [bridge("br0", ""), tap("tap0", ""), links.concat()].concat();
    let back = config(&[link("bad", "vhost-user"), link("vm0", "vhost-user")]);
    let gateway = Gateway::start(&left, &scratch, "left", &back)?;
    let _other = Gateway::start(&right, &scratch, "right", &config(&[link("vm0", "virtio-user")]))?;
    let (one, _two) = (guest("a", &left, "tap0", "10.9.0.1/24")?, guest("b", &right, "tap0", "10.9.0.2/24")?);
    one.sh("for try in $(seq 50); do ping -c 1 -W 1 10.9.0.2 >/dev/null && exit; done; exit 1")?;
    let script = scratch.file("liar.py");
    fs::write(&script, LIAR)?;
    let closed_with = |why: &str| gateway.log().matches(&format!("bad: vhost-user: connection closed: {why}")).count();
    let lie = |number: usize, (lie, why): (&str, &str)| -> Outcome {
        let before = closed_with(why);
        let printed = run(left.command("python3").arg(&script).arg(scratch.file("bad.sock")).args([lie, "1"]))?;
        assert_eq!(printed, "closed\n", "{lie}");
        let is_counted = || closed_with(why) == before + 1;
        wait_until(lie, Duration::from_secs(5), is_counted).map_err(|_| format!("{lie}: {}", gateway.log()))?;
        assert_eq!(closed_with(""), number + 1, "one line for each: {}", gateway.log());
        let state = gateway.link("bad")?;
        assert_eq!(
            (&state["guest"]["violations"], &state["guest"]["connected"]),
            (&(number + 1).into(), &false.into())
        );
        Ok(())
    };
    thread::scope(|scope| {
        // Longer than all violations, which take one second each.
        let ping = scope.spawn(|| one.sh("ping -q -i 0.02 -w 11 10.9.0.2"));
        let outcome = cases.into_iter().enumerate().try_for_each(|(number, case)| lie(number, case));
        let pinged = ping.join().map_err(|_| "ping panicked")??;
        outcome?;
        assert!(pinged.contains(" 0% packet loss"), "{pinged}");
        Ok::<_, libtest_mimic::Failed>(())
    })?;
    wait_until("the next guest can come", Duration::from_secs(5), || {
        gateway.link("bad").is_ok_and(|link| link["why_down"] == "no carrier")
    })
}

/// A violation that the second worker finds closes the connection in both, once.
fn second_worker() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("guest")?);
    let socket = scratch.file("bad.sock");
    let toml = format!(
        "[[link]]\nname = \"bad\"\nkind = \"vhost-user\"\nsocket = \"{}\"\nqueues = 2\naddresses = [\"10.9.0.1/24\"]\n\
         [worker]\ncount = 2\n",
        socket.display()
    );
    let gateway = Gateway::start(&netns, &scratch, "two", &toml)?;
    let script = scratch.file("liar.py");
    fs::write(&script, LIAR)?;
    for number in 1..=3 {
        let printed = run(netns.command("python3").arg(&script).arg(&socket).args(["outside", "3"]))?;
        assert_eq!(printed, "closed\n");
        let closed = "bad: vhost-user: connection closed: 100 bytes at 0x10000000000 outside of guest memory";
        wait_until("it is logged", Duration::from_secs(5), || gateway.log().matches(closed).count() == number)?;
        let state = gateway.link("bad")?;
        assert_eq!(state["guest"]["violations"], number, "{state}");
        assert_eq!((&state["up"], &state["guest"]["connected"]), (&false.into(), &false.into()), "{state}");
        wait_until("the next guest can come", Duration::from_secs(5), || {
            gateway.link("bad").is_ok_and(|link| link["why_down"] == "no carrier")
        })?;
    }
    Ok(())
}
