//! Keys of SAs in the memory of the program: present while the SA exists, gone with their round keys and masks after
//! it.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use ipsec::engine::{Cipher, Library};
use libtest_mimic::Trial;
use system::{
    Gateway, Need, Netns, OUTER_V4, Outcome, Process, Scratch, Secrets, fatpath, ping_script, run, transfer, trial,
    veth, wait_until,
};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Name};
use zeroize::Zeroizing;

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun, Need::PING];

/// Time limit for a key to go after its SA.
const PATIENCE: Duration = Duration::from_secs(10);

/// Argument with which the test starts its own program to hold ciphers.
const HOLDER: &str = "hold-ciphers";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("keys/cipher_of_any_library_dropped_leaves_no_key", &[], of_ciphers),
        trial("keys/sa_of_file_removed_leaves_no_key", NEEDS, || of_sas(By::File)),
        trial("keys/sa_of_netlink_deleted_leaves_no_key", NEEDS, || of_sas(By::Netlink)),
        trial("keys/sa_saved_and_deleted_leaves_no_key", NEEDS, || of_sas(By::SavedNetlink)),
    ]
}

/// An algorithm with the lengths of its keys.
#[derive(Clone, Copy)]
enum Kind {
    Aead { name: &'static str, key_len: usize, salt_len: usize, icv_bits: u16 },
    Separate { enc: &'static str, key_len: usize, salt_len: usize, auth: &'static str, auth_len: usize },
}

/// Every algorithm of the engine, and every length of an AES key.
fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for aes in [16, 24, 32] {
        let gcm = |icv_bits| Kind::Aead { name: "rfc4106(gcm(aes))", key_len: aes + 4, salt_len: 4, icv_bits };
        let gmac = Kind::Aead { name: "rfc4543(gcm(aes))", key_len: aes + 4, salt_len: 4, icv_bits: 128 };
        let ccm = |icv_bits| Kind::Aead { name: "rfc4309(ccm(aes))", key_len: aes + 3, salt_len: 3, icv_bits };
        kinds.extend([gcm(128), gcm(96), gmac, ccm(128), ccm(64)]);
        let separate =
            |enc, salt_len, auth, auth_len| Kind::Separate { enc, key_len: aes + salt_len, salt_len, auth, auth_len };
        kinds.push(separate("cbc(aes)", 0, "hmac(sha256)", 32));
        kinds.push(separate("rfc3686(ctr(aes))", 4, "hmac(sha1)", 20));
    }
    kinds.push(Kind::Aead { name: "rfc7539esp(chacha20,poly1305)", key_len: 36, salt_len: 4, icv_bits: 128 });
    for (auth, auth_len) in [
        ("hmac(md5)", 16),
        ("hmac(sha384)", 48),
        ("hmac(sha512)", 64),
        ("hmac(rmd160)", 20),
        ("hmac(sm3)", 32),
        ("cmac(aes)", 16),
        ("cmac(aes)", 24),
        ("cmac(aes)", 32),
        ("xcbc(aes)", 16),
    ] {
        kinds.push(Kind::Separate { enc: "ecb(cipher_null)", key_len: 0, salt_len: 0, auth, auth_len });
    }
    kinds
}

impl Kind {
    /// Bytes of all keys of one SA.
    fn keys_len(self) -> usize {
        match self {
            Self::Aead { key_len, .. } => key_len,
            Self::Separate { key_len, auth_len, .. } => key_len + auth_len,
        }
    }

    /// Adds `keys` and all that is derived from them, under names that begin with `label`.
    fn add_secrets(self, label: &str, keys: &[u8], secrets: &mut Secrets) {
        let mut add = |name: &str, key: &[u8], aes: Option<usize>, hmac: bool| {
            let name = format!("{label}{name} of {} bytes", key.len());
            secrets.add_key(&name, key);
            if let Some(salt_len) = aes {
                secrets.add_aes(&name, &key[..key.len() - salt_len]);
            }
            if hmac {
                secrets.add_hmac(&name, key);
            }
        };
        match self {
            Self::Aead { name, salt_len, .. } => add(name, keys, name.contains("aes").then_some(salt_len), false),
            Self::Separate { enc, key_len, salt_len, auth, .. } => {
                let (key, auth_key) = keys.split_at(key_len);
                if key_len > 0 {
                    add(enc, key, Some(salt_len), false);
                }
                let is_hmac = auth.starts_with("hmac");
                add(auth, auth_key, (!is_hmac).then_some(0), is_hmac);
                let name = format!("{label}{auth}");
                match auth {
                    "cmac(aes)" => secrets.add_cmac(&name, auth_key),
                    "xcbc(aes)" => secrets.add_xcbc(&name, auth_key),
                    _ => {}
                }
            }
        }
    }

    /// Tells whether a cipher keeps only hashes of its keys.
    fn keeps_digests(self) -> bool {
        matches!(self, Self::Separate { key_len: 0, auth, .. } if auth.starts_with("hmac"))
    }

    /// The algorithm in the words of a file, and of `ip xfrm state`.
    fn words(self, keys: &[u8]) -> [String; 2] {
        match self {
            Self::Aead { name, icv_bits, .. } => {
                let key = hex(keys);
                [
                    format!("aead = {{ name = \"{name}\", key = \"{key}\", icv = {icv_bits} }}"),
                    format!("aead {name} {key} {icv_bits}"),
                ]
            }
            Self::Separate { enc, key_len, auth, .. } => {
                let (key, auth_key) = keys.split_at(key_len);
                let auth_key = hex(auth_key);
                let [in_file, in_line] = if key_len == 0 {
                    [format!("\"{enc}\""), "\"\"".to_owned()]
                } else {
                    [format!("{{ name = \"{enc}\", key = \"{}\" }}", hex(key)), hex(key)]
                };
                [
                    format!("enc = {in_file}\nauth = {{ name = \"{auth}\", key = \"{auth_key}\" }}"),
                    format!("enc {enc} {in_line} auth {auth} {auth_key}"),
                ]
            }
        }
    }

    /// The algorithm for the engine.
    fn algorithm(self, keys: &[u8]) -> Algorithm {
        match self {
            Self::Aead { name, icv_bits, .. } => {
                let name = Aead::by_name(name).expect("an AEAD");
                Algorithm::aead(name, keys.to_vec().into(), icv_bits)
            }
            Self::Separate { enc, key_len, auth, .. } => {
                let (key, auth_key) = keys.split_at(key_len);
                let auth = AuthConfig::new(Auth::by_name(auth).expect("a code"), auth_key.to_vec().into(), 96);
                Algorithm::separate(Enc::by_name(enc).expect("a cipher"), key.to_vec().into(), Some(auth))
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Random keys for one SA of each kind, concatenated.
fn fresh_keys() -> Outcome<Vec<u8>> {
    let mut keys = vec![0; kinds().into_iter().map(Kind::keys_len).sum()];
    fs::File::open("/dev/urandom")?.read_exact(&mut keys)?;
    Ok(keys)
}

/// Each kind with its part of `keys`.
fn with_keys(keys: &[u8]) -> impl Iterator<Item = (Kind, &[u8])> {
    let mut left = keys;
    kinds().into_iter().map(move |kind| {
        let (own, behind) = left.split_at(kind.keys_len());
        left = behind;
        (kind, own)
    })
}

/// Prefix of the names of one SA's secrets.
fn label(direction: usize, at: usize) -> String {
    format!("[{direction} {at}] ")
}

fn secrets_of(all: &[&[u8]]) -> Secrets {
    let mut secrets = Secrets::new();
    for (direction, keys) in all.iter().enumerate() {
        for (at, (kind, own)) in with_keys(keys).enumerate() {
            kind.add_secrets(&label(direction, at), own, &mut secrets);
        }
    }
    secrets
}

/// Fails unless a piece of each SA's secrets is found for all kinds that are `expected` to have one in memory.
/// Otherwise the search after the deletion could not fail.
fn assert_all_found(pid: u32, secrets: &Secrets, directions: usize, expected: impl Fn(Kind) -> bool) -> Outcome {
    let found = secrets.find_in(pid)?;
    for direction in 0..directions {
        for (at, _) in kinds().into_iter().enumerate().filter(|(_, kind)| expected(*kind)) {
            let label = label(direction, at);
            assert!(
                found.iter().any(|piece| piece.starts_with(&label)),
                "no trace of {label}in:\n{}",
                found.join("\n")
            );
        }
    }
    Ok(())
}

/// Fails if a piece of the secrets is still found when the time limit has passed.
fn assert_none_found(what: &str, pid: u32, secrets: &Secrets) -> Outcome {
    let mut found = Vec::new();
    wait_until("no key is left", PATIENCE, || {
        found = secrets.find_in(pid).unwrap_or_else(|error| vec![format!("{error:?}")]);
        found.is_empty()
    })
    .map_err(|_| format!("{what}: {} pieces of keys are left:\n{}", found.len(), found.join("\n")).into())
}

/// A process that holds ciphers of every kind and library, and has used them on several threads.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        // Without a failure the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn of_ciphers() -> Outcome {
    let keys = fresh_keys()?;
    let this = std::env::current_exe()?;
    let child = Command::new(this).arg(HOLDER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut holder = Holder(child);
    let pid = holder.0.id();
    let mut input = holder.0.stdin.take().ok_or("no standard input")?;
    let mut printed = BufReader::new(holder.0.stdout.take().ok_or("no standard output")?).lines();
    let mut wait_for = |word: &str| -> Outcome {
        let line = printed.next().ok_or("the holder has ended")??;
        if line == word { Ok(()) } else { Err(format!("{line}, not {word}").into()) }
    };
    input.write_all(&keys)?;
    wait_for("used")?;
    let secrets = secrets_of(&[&keys]);
    assert_all_found(pid, &secrets, 1, |kind| !kind.keeps_digests())?;
    input.write_all(b"x")?;
    wait_for("dropped")?;
    assert_none_found("ciphers", pid, &secrets)
}

/// Runs as the process of a [`Holder`] if the arguments select that, and returns whether they did.
pub(crate) fn held() -> bool {
    if std::env::args().nth(1).as_deref() != Some(HOLDER) {
        return false;
    }
    hold().expect("the test that has started this waits");
    true
}

/// Makes ciphers of the keys on standard input, uses them, and drops them when another byte comes. Ends with standard
/// input.
fn hold() -> io::Result<()> {
    const THREADS: usize = 3;
    let mut keys = Zeroizing::new(vec![0; kinds().into_iter().map(Kind::keys_len).sum()]);
    let input = io::stdin();
    // Without the buffer of the standard library, in which the keys would stay.
    let read = |mut to: &mut [u8]| -> io::Result<()> {
        while !to.is_empty() {
            match rustix::io::read(&input, &mut *to)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => to = &mut to[len..],
            }
        }
        Ok(())
    };
    read(&mut keys)?;
    let algorithms: Vec<Algorithm> = with_keys(&keys).map(|(kind, own)| kind.algorithm(own)).collect();
    let make = |library: &Library| algorithms.iter().map(|it| Cipher::with_library(it, *library)).collect();
    let ciphers: Result<Vec<Vec<Cipher>>, _> = Library::ALL.iter().map(make).collect();
    let ciphers: Vec<Cipher> = ciphers.expect("lengths that there are").into_iter().flatten().collect();
    drop((algorithms, keys));
    let ciphers = Arc::new(ciphers);
    let used = Arc::new(Barrier::new(THREADS + 1));
    for number in 0..THREADS {
        let (ciphers, used) = (Arc::clone(&ciphers), Arc::clone(&used));
        thread::spawn(move || {
            ciphers.iter().for_each(|cipher| use_cipher(cipher, number as u64));
            drop(ciphers);
            used.wait();
            // The thread stays, with its stack, until the process ends.
            loop {
                thread::park();
            }
        });
    }
    used.wait();
    println!("used");
    read(&mut [0])?;
    drop(Arc::into_inner(ciphers).expect("no thread has them any more"));
    println!("dropped");
    read(&mut [0]).or(Ok(()))
}

/// Seals and opens packets of several lengths, and has one refused that is forged.
fn use_cipher(cipher: &Cipher, number: u64) {
    for (index, text_len) in (0..).zip([16, 64, 1408, 9008, 65_008]) {
        let mut packet = vec![0; cipher.overhead() + text_len];
        packet[..8].copy_from_slice(&[0, 0, 0x10, 0, 0, 0, 0, index]);
        cipher.seal(&mut packet, (number << 8 | u64::from(index)).to_be_bytes(), Some(1));
        let mut elsewhere = packet.clone();
        let mut forged = packet.clone();
        if cipher.opens_elsewhere() {
            let pieces = packet.chunks(100);
            cipher.open_from(pieces, &mut elsewhere, Some(1)).expect("authentic");
        }
        cipher.open(&mut packet, Some(1)).expect("authentic");
        *forged.last_mut().expect("longer than nothing") ^= 1;
        cipher.open(&mut forged, Some(1)).expect_err("forged");
    }
}

/// Ways to add SAs.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The configuration file; deleted by a reload without them.
    File,
    /// `ip xfrm`, while `ip xfrm monitor` listens.
    Netlink,
    /// `ip xfrm`; the gateway saves its state with the SAs, and again after their deletion.
    SavedNetlink,
}

/// A host with a gateway. Programs end before their namespaces.
struct Node<'a> {
    gateway: Gateway,
    monitor: Option<Process>,
    netns: &'a Netns,
    scratch: &'a Scratch,
    own: u8,
    by: By,
}

impl<'a> Node<'a> {
    fn start(netns: &'a Netns, scratch: &'a Scratch, own: u8, by: By, keys: &[&[u8]; 2]) -> Outcome<Self> {
        let (name, peer) = (format!("n{own}"), 3 - own);
        netns.sh(&format!("ip addr add {}/24 dev wan0", OUTER_V4[usize::from(own) - 1]))?;
        let toml = match by {
            By::File => Self::config(own) + &Self::sas(own, keys)[0],
            By::Netlink | By::SavedNetlink => Self::config(own),
        };
        let mut command = netns.command("sh");
        let state = match by {
            By::SavedNetlink => format!("--state {}", scratch.file(&format!("{name}.state")).display()),
            By::File | By::Netlink => String::new(),
        };
        command.args(["-c", &format!("exec \"$0\" \"$@\" {state}")]).arg(fatpath());
        let gateway = Gateway::start_under(command, scratch, &name, &toml)?;
        let mut node = Self { gateway, monitor: None, netns, scratch, own, by };
        if by != By::File {
            let mut command = node.fatpath(&["exec", "--instance", &name, "--", "ip", "xfrm", "monitor"]);
            node.monitor = Some(Process::spawn(&mut command, scratch)?);
            node.ip(&Self::sas(own, keys)[1])?;
            run(&mut node.fatpath(&["ip", "--instance", &name, "xfrm", "state"]))?;
            node.save()?;
        }
        let mut script = "ip link set tun0 mtu 1400 up\n".to_owned();
        for at in 0..kinds().len() {
            let _ = writeln!(script, "ip addr add 10.{own}.{at}.1/24 dev tun0");
            let _ = writeln!(script, "ip route add 10.{peer}.{at}.0/24 dev tun0 src 10.{own}.{at}.1");
        }
        netns.sh(&script)?;
        Ok(node)
    }

    fn fatpath(&self, words: &[&str]) -> Command {
        let mut command = Command::new(fatpath());
        command.args(words).env("FATPATH_RUNDIR", self.scratch.path());
        command
    }

    /// Carries out lines of `ip`.
    fn ip(&self, lines: &str) -> Outcome {
        let (name, file) = (format!("n{}", self.own), self.scratch.file("lines"));
        fs::write(&file, lines)?;
        run(self.fatpath(&["ip", "--instance", &name, "-batch"]).arg(&file)).map(drop)
    }

    fn save(&self) -> Outcome {
        match self.by {
            By::SavedNetlink => run(&mut self.fatpath(&["save", "--instance", &format!("n{}", self.own)])).map(drop),
            By::File | By::Netlink => Ok(()),
        }
    }

    /// Deletes all SAs in the way in which they were added.
    fn delete_sas(&mut self) -> Outcome {
        if self.by == By::File {
            self.gateway.reload(&Self::config(self.own))?;
        } else {
            self.ip("xfrm state deleteall\nxfrm policy deleteall\n")?;
        }
        self.gateway
            .wait_until("the SAs are gone", |gateway| gateway.show("sa --json").is_ok_and(|sas| sas.trim() == "[]"))?;
        self.save()
    }

    /// The configuration without SAs and policies.
    fn config(own: u8) -> String {
        let (peer, [this, other]) = (3 - own, Self::ends(own));
        format!(
            "[[link]]\nname = \"tun0\"\nkind = \"tun\"\nmtu = 1400\naddresses = [\"10.{own}.255.254/16\"]\n\
             [[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"{this}:4500\"\n\
             [[route]]\nto = \"{other}/32\"\ndev = \"wan\"\n\
             [[route]]\nto = \"10.{peer}.0.0/16\"\ndev = \"wan\"\n\
             [crypto]\nworkers = 2\n"
        )
    }

    fn ends(own: u8) -> [&'static str; 2] {
        if own == 1 { OUTER_V4 } else { [OUTER_V4[1], OUTER_V4[0]] }
    }

    /// SAs of all kinds in both directions with policies, as text of a file and as lines of `ip`. The first of `keys`
    /// protect packets from the first end.
    fn sas(own: u8, keys: &[&[u8]; 2]) -> [String; 2] {
        let [mut file, mut lines] = [String::new(), String::new()];
        for (from, keys) in (1..).zip(keys) {
            let (to, [src, dst]) = (3 - from, Self::ends(from));
            for (at, (kind, own_keys)) in with_keys(keys).enumerate() {
                let (spi, reqid) = (0x1000 * u32::from(from) + at as u32, at + 1);
                let [in_file, in_line] = kind.words(own_keys);
                let _ = write!(
                    file,
                    "[[sa]]\nsrc = \"{src}\"\ndst = \"{dst}\"\nspi = {spi:#x}\nmode = \"tunnel\"\nreqid = {reqid}\n\
                     replay-window = 64\n{in_file}\nencap = {{ type = \"espinudp\", sport = 4500, dport = 4500 }}\n"
                );
                let _ = writeln!(
                    lines,
                    "xfrm state add src {src} dst {dst} proto esp spi {spi:#x} reqid {reqid} mode tunnel replay-window 64 \
                     {in_line} encap espinudp 4500 4500 0.0.0.0"
                );
                let directions: &[&str] = if from == own { &["out"] } else { &["in", "fwd"] };
                for dir in directions {
                    let (inner_src, inner_dst) = (format!("10.{from}.{at}.0/24"), format!("10.{to}.{at}.0/24"));
                    let _ = write!(
                        file,
                        "[[policy]]\ndir = \"{dir}\"\nsrc = \"{inner_src}\"\ndst = \"{inner_dst}\"\ntmpl = [{{ src = \"{src}\", \
                         dst = \"{dst}\", proto = \"esp\", mode = \"tunnel\", reqid = {reqid} }}]\n"
                    );
                    let _ = writeln!(
                        lines,
                        "xfrm policy add dir {dir} src {inner_src} dst {inner_dst} tmpl src {src} dst {dst} proto esp \
                         reqid {reqid} mode tunnel"
                    );
                }
            }
        }
        [file, lines]
    }
}

fn of_sas(by: By) -> Outcome {
    let (scratch, [forth, back]) = (Scratch::new()?, [fresh_keys()?, fresh_keys()?]);
    let keys = [&forth[..], &back[..]];
    let (a, b) = (Netns::new("a")?, Netns::new("b")?);
    veth((&a, "wan0"), (&b, "wan0"))?;
    let mut nodes = [Node::start(&a, &scratch, 1, by, &keys)?, Node::start(&b, &scratch, 2, by, &keys)?];
    for at in 0..kinds().len() {
        let (near, far) = (format!("10.1.{at}.1").parse()?, format!("10.2.{at}.1").parse()?);
        nodes[0].netns.sh(&ping_script(far, &[56, 8000]))?;
        transfer(&a, (&b, far), 256 << 10)?;
        transfer(&b, (&a, near), 256 << 10)?;
    }
    let secrets = secrets_of(&keys);
    for node in &nodes {
        assert_all_found(node.gateway.id(), &secrets, keys.len(), |_| true)?;
    }
    for node in &mut nodes {
        node.delete_sas()?;
        assert_none_found(&format!("gateway {}", node.own), node.gateway.id(), &secrets)?;
    }
    Ok(())
}
