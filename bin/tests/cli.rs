//! The command line from a shell: output on either stream, and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ctl::state::{CounterState, CountersState, DropState};
use ctl::{Reply, Request, Shown, StateKind};

const GOOD: &str = r#"
[[link]]
name = "tun0"
kind = "tun"

[[link]]
name = "wan"
kind = "udp"
bind = "192.0.2.1:4500"

[[route]]
to = "10.2.0.0/24"
dev = "wan"
"#;

/// Temporary directory, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        // Not in the target directory: a socket's path has at most 107 bytes.
        let dir = std::env::temp_dir().join(format!("fatpath-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn fatpath(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
        command.args(args).env("FATPATH_RUNDIR", &self.0).output().unwrap()
    }

    /// Gateway that replies to each request of one client with the next of `replies`.
    fn gateway(&self, instance: &str, replies: Vec<Vec<u8>>) -> JoinHandle<Vec<Request>> {
        let listener = UnixListener::bind(self.0.join(format!("{instance}.sock"))).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            let mut requests = Vec::new();
            for reply in replies {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                requests.push(Request::from_line(line.trim_end()).unwrap());
                stream.write_all(&reply).unwrap();
            }
            requests
        })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Asserts exit code, standard output and standard error.
#[track_caller]
fn assert_output(output: &Output, code: i32, stdout: &str, stderr: &str) {
    let got = (output.status.code(), String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(got, (Some(code), stdout.into(), stderr.into()));
}

#[test]
fn check_counts_what_is_in_a_good_file() {
    let dir = Dir::new("check");
    let file = dir.file("gw.toml", GOOD);
    let want = format!("{file}: 2 links, 1 route, 0 SAs, 0 policies: ok\n");
    assert_output(&dir.fatpath(&["check", "-c", &file]), 0, &want, "");
}

#[test]
fn check_prints_each_error_and_each_warning_in_a_line() {
    let dir = Dir::new("findings");
    let link = |name: &str, mtu| format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\nmtu = {mtu}\n");
    let file = dir.file("gw.toml", [link("a", 7), link("b", 8)].concat());
    let error =
        |line, n, mtu| format!("Error: {file}:{line}: link[{n}].mtu: {mtu} is out of range; use 68 to 65535.\n");
    for command in ["check", "run"] {
        assert_output(&dir.fatpath(&[command, "-c", &file]), 2, "", &[error(4, 0, 7), error(8, 1, 8)].concat());
    }
    let many: String = (0..25).map(|n| link(&format!("l{n}"), 9)).collect();
    let output = dir.fatpath(&["check", "-c", &dir.file("many.toml", many)]);
    let lines: Vec<String> = String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
    assert_eq!((lines.len(), lines[20].as_str()), (21, "… and 5 more"), "{lines:?}");
    let bridge = "[[link]]\nname = \"br0\"\nkind = \"bridge\"\n[[link]]\nname = \"p\"\nkind = \"tap\"\nmaster = \"br0\"\nport = { pvid = 5 }\n";
    let file = dir.file("bridge.toml", bridge);
    let warning =
        format!("{file}:4: warning: link[1]: its VLANs have no effect, as br0 has no vlan-filtering = true.\n");
    let counted = format!("{file}: 2 links, 0 routes, 0 SAs, 0 policies: ok\n");
    assert_output(&dir.fatpath(&["check", "-c", &file]), 0, &counted, &warning);
}

#[test]
fn check_expands_tunnels_with_keys_only_on_request() {
    let dir = Dir::new("expand");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tunnel-left.toml");
    let file = dir.file("left.toml", fs::read(example).unwrap());
    let expand = |more: &[&str]| {
        let output = dir.fatpath(&[&["check", "-c", &file, "--expand"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (hidden, whole) = (expand(&[]), expand(&["--with-keys"]));
    assert!(!hidden.contains("00112233") && whole.contains("00112233") && !whole.contains("[[tunnel]]"), "{hidden}");
    let refused = dir.fatpath(&["check", "-c", &dir.file("hidden.toml", hidden)]);
    assert!(refused.status.code() == Some(2) && String::from_utf8_lossy(&refused.stderr).contains("was left out"));
    let accepted = dir.fatpath(&["check", "-c", &dir.file("whole.toml", whole)]);
    assert!(
        String::from_utf8_lossy(&accepted.stdout).ends_with("2 links, 5 routes, 2 SAs, 6 policies: ok\n"),
        "{accepted:?}"
    );
    assert_eq!(dir.fatpath(&["check", "-c", &file, "--with-keys"]).status.code(), Some(1));
}

#[test]
fn genkey_prints_a_new_key_of_the_ciphers_length() {
    let dir = Dir::new("genkey");
    let key = |args: &[&str]| {
        let output = dir.fatpath(&[&["genkey"], args].concat());
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let keys = [key(&[]), key(&[]), key(&["--cipher", "hmac(sha256)"])];
    for (key, bytes) in keys.iter().zip([36, 36, 32]) {
        let digits = key.strip_prefix("0x").and_then(|key| key.strip_suffix('\n')).unwrap();
        assert!(digits.len() == 2 * bytes && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{key}");
    }
    assert_ne!(keys[0], keys[1]);
    let refused = dir.fatpath(&["genkey", "--cipher", "aes"]);
    assert_eq!(refused.status.code(), Some(0));
    let refused = dir.fatpath(&["genkey", "--cipher", "rot13"]);
    assert!(
        refused.status.code() == Some(1) && String::from_utf8_lossy(&refused.stderr).contains("use rfc4106(gcm(aes))")
    );
}

#[test]
fn a_bad_configuration_is_one_line_and_exit_code_2() {
    let dir = Dir::new("bad");
    let cases: [(&[u8], &str); 9] = [
        (
            b"[link]\nname = \"a\"\n[link]\nname = \"b\"\n",
            ":3: link: given twice; begin each with [[link]], two brackets.",
        ),
        (b"link:\n  - name: a\n", ":1: this is YAML, not TOML."),
        (
            b"connections {\n}\n",
            ":1: \"connections\": neither TOML nor a line of ip, which is about link, address, route, rule, neighbour or xfrm",
        ),
        (b"ip link add a type tun\n", ":1: \"ip\": leave out this word; a line is what follows it"),
        (
            b"[[link]]\nname = \"office-berlin-wan0\"\nkind = \"tun\"\n",
            ":2: link[0].name: \"office-berlin-wan0\" has 18 bytes, and a name of a link at most 15.",
        ),
        (b"[[link]]\nname = \"a\"\nkind = \"tun\"\nmtu = 7\n", ":4: link[0].mtu: 7 is out of range; use 68 to 65535."),
        (b"[[link]]\nname = \"a\nkind = \"tun\"\n", ":2: invalid basic string, expected `\"`."),
        (
            b"[[route]]\nto = \"10.0.0.1/8\"\n",
            ":2: route[0].to: Invalid prefix 10.0.0.1/8: host bits set; use 10.0.0.0/8.",
        ),
        (b"# \xe4\n# \n", ":1: not UTF-8 text; use a TOML file."),
    ];
    for (text, want) in cases {
        let file = dir.file("gw.toml", text);
        let want = format!("Error: {file}{want}\n");
        for command in ["check", "run"] {
            assert_output(&dir.fatpath(&[command, "-c", &file]), 2, "", &want);
        }
    }
}

#[test]
fn a_file_that_cannot_be_read_is_exit_code_2() {
    let dir = Dir::new("unreadable");
    let output = dir.fatpath(&["check", "-c", "/nowhere/gw.toml"]);
    assert_output(&output, 2, "", "Error: /nowhere/gw.toml: No such file or directory (os error 2)\n");
    let output = dir.fatpath(&["check", "-c", "/dev/zero"]);
    assert_output(&output, 2, "", "Error: /dev/zero: it is longer than 256 MiB, and no configuration\n");
}

#[test]
fn configuration_comes_from_standard_input() {
    let dir = Dir::new("stdin");
    let check = |args: &[&str], text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
        let command = command.args(args).env("FATPATH_RUNDIR", &dir.0).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A program that refuses its arguments does not read.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        child.wait_with_output().unwrap()
    };
    assert_output(&check(&["check", "-c", "-"], GOOD), 0, "-: 2 links, 1 route, 0 SAs, 0 policies: ok\n", "");
    let wrong = check(&["check", "-c", "-"], "x = 1\n");
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && text.starts_with("Error: standard input:1: x"), "{wrong:?}");
    assert_output(
        &check(&["check", "-c", "-", "-c", "-"], ""),
        1,
        "",
        "Error: -c - twice: standard input is one file.\n",
    );
    let want = "Error: -c -: the gateway reads the file itself, and again at each SIGHUP; name a file.\n";
    assert_output(&check(&["load", "-c", "-"], GOOD), 1, "", want);
}

#[test]
fn base64_key_is_named_so() {
    let dir = Dir::new("base64");
    let sa = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 0x1000\nmode = \"tunnel\"\nreqid = 1\n";
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIj";
    let file =
        dir.file("gw.toml", format!("{sa}aead = {{ name = \"rfc4106(gcm(aes))\", key = \"{key}\", icv = 128 }}\n"));
    let output = dir.fatpath(&["check", "-c", &file]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let want = "in hexadecimal behind 0x; this is base64, of which `base64 -d | xxd -p -c 0` makes hexadecimal";
    assert!(output.status.code() == Some(2) && text.contains(want) && !text.contains(key), "{text}");
}

#[test]
fn missing_directory_of_a_guests_socket_is_named() {
    let dir = Dir::new("vhost");
    let socket = dir.0.join("none/red.sock");
    let text = format!("[[link]]\nname = \"red0\"\nkind = \"vhost-user\"\nsocket = \"{}\"\n", socket.display());
    let output = dir.fatpath(&["run", "-c", &dir.file("gw.toml", text)]);
    let none = dir.0.join("none");
    let want = format!(
        "Error: red0: bind: No such file or directory ({}: no directory; `install -d -m 700 {}` makes it)\n",
        socket.display(),
        none.display()
    );
    assert_output(&output, 1, "", &want);
}

#[test]
fn program_that_cannot_be_executed_is_named_so() {
    let dir = Dir::new("not-executable");
    let [script, library] = ["script", "library.so"].map(|name| dir.file(name, "#!/bin/sh\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
    command.args(["exec", "--", &script]).env("FATPATH_RUNDIR", &dir.0).env("FATPATH_PRELOAD", library);
    let want = format!("Error: {script}: not executable; `chmod +x` makes it so.\n");
    assert_output(&command.output().unwrap(), 1, "", &want);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
    command.args(["exec", "--", "/tmp"]).env("FATPATH_RUNDIR", &dir.0);
    assert_output(&command.output().unwrap(), 1, "", "Error: /tmp: a directory, not a program.\n");
    let want = "Error: ip tunnel: fatpath has no such tunnels; `ip xfrm` makes those of ESP.\n";
    assert_output(&dir.fatpath(&["ip", "tunnel", "add", "gre0", "mode", "gre"]), 1, "", want);
}

#[test]
fn a_wrong_command_line_is_one_line_and_exit_code_1() {
    let dir = Dir::new("usage");
    let cases: &[(&[&str], &str)] = &[
        (&["frobnicate"], "Error: unrecognized subcommand 'frobnicate'; try --help.\n"),
        (
            &["show", "linkz"],
            "Error: invalid value 'linkz' for '[WHAT]' [possible values: links, routes, neighbours, fdb, pmtus, sa, policies, \
             counters, drops, fragments, host, ila, flows, workers, summary, memory, sandbox] tip: a similar value exists: 'links'; try --help.\n",
        ),
        (
            &["show", "Interfaces"],
            "Error: invalid value 'Interfaces' for '[WHAT]' [possible values: links, routes, neighbours, fdb, pmtus, sa, policies, \
             counters, drops, fragments, host, ila, flows, workers, summary, memory, sandbox] tip: a similar value exists: 'links'; try --help.\n",
        ),
        (
            &["run", "left.toml"],
            "Error: invalid value 'left.toml' for '[FILE]': a file is named with -c: -c left.toml; try --help.\n",
        ),
        (
            &["check", "left.toml"],
            "Error: invalid value 'left.toml' for '[FILE]': a file is named with -c: -c left.toml; try --help.\n",
        ),
        (&["-i", "left", "check", "-c", "x"], "Error: -i left: this command is about no gateway; leave it out.\n"),
        (&["-i", "left", "show", "links", "-i", "right"], "Error: -i left and -i right: use one name.\n"),
        (
            &["ip", "link", "--instance", "left"],
            "Error: --instance: it goes before ip's own words: fatpath -i NAME ip ...\n",
        ),
        (
            &["ip", "-n", "x", "--instance=left"],
            "Error: --instance=left: it goes before ip's own words: fatpath -i NAME ip ...\n",
        ),
        (&["help", "rain"], "Error: unrecognized subcommand 'rain'; try --help.\n"),
        (&["check"], "Error: the following required arguments were not provided: --config <FILE>; try --help.\n"),
        (
            &["show", "links", "--instance", "../x"],
            "Error: invalid value '../x' for '--instance <NAME>': use 1 to 64 letters, digits, '-', '_' and '.', \
             beginning with no dot; try --help.\n",
        ),
        (
            &["bench", "rot13"],
            "Error: invalid value 'rot13' for '<NAME>' [possible values: esp, forward, ila, vhost, vrf, trunk, reassembly, shards, workers]; try --help.\n",
        ),
        (
            &["demo", "--seconds", "0"],
            "Error: invalid value '0' for '--seconds <SECONDS>': 0 is not in 1..=3600; try --help.\n",
        ),
    ];
    for (args, want) in cases {
        assert_output(&dir.fatpath(args), 1, "", want);
    }
}

/// Copy of the program in a directory without `fatpath-bench`, as a command; its `PATH` is `empty` in that directory.
fn alone(dir: &Dir, args: &[&str]) -> (PathBuf, Command) {
    let program = dir.0.join("fatpath");
    install(env!("CARGO_BIN_EXE_fatpath"), &program);
    let mut command = Command::new(&program);
    command.args(args).env("PATH", dir.0.join("empty"));
    (program, command)
}

/// Stand-in for `fatpath-bench` at `place`, which prints `name`, its arguments and the path of `fatpath` from its
/// environment.
fn stand_in(dir: &Dir, place: &Path, name: &str) {
    let text = format!("#!/bin/sh\necho {name} \"$@\"\necho \"$FATPATH_PROGRAM\" >&2\nexit 7\n");
    install(dir.file(name, text), &place.join("fatpath-bench"));
}

/// Copies a program in another process: a file that a concurrent test's child has open for writing cannot be executed.
fn install(from: impl AsRef<Path>, to: &Path) {
    let status = Command::new("install").args(["-D", "-m", "755"]).arg(from.as_ref()).arg(to).status().unwrap();
    assert!(status.success(), "{}", to.display());
}

#[test]
fn missing_bench_program_is_one_line_with_a_remedy() {
    let dir = Dir::new("no-bench");
    let want = "Error: fatpath-bench is neither beside fatpath nor in PATH; install the package fatpath-bench, or build it with `cargo build --release -p fatpath-bench`.\n";
    for args in [&["demo"][..], &["bench", "esp"]] {
        assert_output(&alone(&dir, args).1.output().unwrap(), 1, "", want);
    }
    // The command line is still documented and checked.
    let output = alone(&dir, &["demo", "--help"]).1.output().unwrap();
    assert!(
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("Usage: fatpath demo"),
        "{output:?}"
    );
    let output = alone(&dir, &["demo", "--peers", "--rr"]).1.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn missing_metrics_program_is_one_line_with_a_remedy() {
    let dir = Dir::new("no-see");
    let want = "Error: fatpath-see is neither beside fatpath nor in PATH; install the package fatpath-see, or build it with `cargo build --release -p fatpath-see`.\n";
    for args in [&["metrics", "-i", "a", "-i", "b"][..], &["top", "--once"], &["web", "--results", "a.json"]] {
        assert_output(&alone(&dir, args).1.output().unwrap(), 1, "", want);
    }
    for wrong in [
        &["metrics", "--listen", "9847"][..],
        &["metrics", "-i", "a.view"],
        &["metrics", "--interval", "1"],
        &["web", "--listen", "192.0.2.1:9848"],
        &["web", "--listen", "localhost"],
        &["web", "--listen", "[::1]:1", "--socket", "/s"],
    ] {
        let output = alone(&dir, wrong).1.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("fatpath-see"), "{output:?}");
    }
}

#[test]
fn bench_program_gets_the_same_words_and_gives_its_exit_code() {
    let dir = Dir::new("bench");
    let (program, mut command) = alone(&dir, &["bench", "esp", "--only", "a b", "--json"]);
    let output = format!("{}\n", program.display());
    stand_in(&dir, &dir.0.join("empty"), "path");
    assert_output(&command.output().unwrap(), 7, "path bench esp --only a b --json\n", &output);
    // A program in the directory of `fatpath` takes precedence.
    stand_in(&dir, &dir.0, "beside");
    assert_output(&command.output().unwrap(), 7, "beside bench esp --only a b --json\n", &output);
}

#[test]
fn help_is_printed_on_request() {
    let dir = Dir::new("help");
    let help = dir.fatpath(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in [
        "run",
        "check",
        "save",
        "show",
        "status",
        "try",
        "doctor",
        "explain",
        "demo",
        "bench",
        "capture",
        "monitor",
        "completions",
        "man",
    ] {
        assert!(String::from_utf8_lossy(&help.stdout).contains(&format!("\n  {word} ")), "{word}: {help:?}");
    }
    assert_output(&dir.fatpath(&["--version"]), 0, concat!("fatpath ", env!("FATPATH_VERSION"), "\n"), "");
}

#[test]
fn command_that_is_missing_is_status() {
    let dir = Dir::new("no-command");
    let want = "Error: no gateway is running; start one with `fatpath run -c FILE`.\n";
    for args in [&[][..], &["status"], &["show"]] {
        assert_output(&dir.fatpath(args), 3, "", want);
    }
}

#[test]
fn help_command_prints_what_the_option_prints() {
    let dir = Dir::new("help-command");
    for command in ["show", "ip"] {
        let help = dir.fatpath(&["help", command]);
        assert_eq!(help.status.code(), Some(0), "{help:?}");
        assert!(String::from_utf8_lossy(&help.stdout).contains(&format!("Usage: fatpath {command}")), "{help:?}");
    }
    let [by_command, by_option] = ["help", "--help"].map(|word| dir.fatpath(&[word]).stdout);
    assert_eq!(String::from_utf8_lossy(&by_command), String::from_utf8_lossy(&by_option));
}

#[test]
fn instance_is_named_anywhere_or_by_the_environment() {
    let dir = Dir::new("instance");
    let cases: &[(&[&str], &str)] = &[
        (&["-i", "left", "show", "drops"], ""),
        (&["show", "-i", "left", "drops"], ""),
        (&["show", "drops", "-ileft"], ""),
        (&["--instance", "left", "show", "drops", "-i", "left"], ""),
        (&["show", "drops"], "left"),
        (&["show", "drops", "-i", "left"], "right"),
    ];
    for (args, variable) in cases {
        let gateway = dir.gateway("left", vec![Reply::Show { shown: Shown::Drops(vec![]) }.to_line().into_bytes()]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
        command.args(*args).env("FATPATH_RUNDIR", &dir.0).env_remove("FATPATH_INSTANCE");
        if !variable.is_empty() {
            command.env("FATPATH_INSTANCE", variable);
        }
        assert_output(&command.output().unwrap(), 0, "", "");
        assert_eq!(gateway.join().unwrap(), [Request::Show { what: StateKind::Drops }], "{args:?}");
        fs::remove_file(dir.0.join("left.sock")).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
    command.args(["show", "drops"]).env("FATPATH_RUNDIR", &dir.0).env("FATPATH_INSTANCE", "../x");
    let want = "Error: FATPATH_INSTANCE=../x: use 1 to 64 letters, digits, '-', '_' and '.', beginning with no dot.\n";
    assert_output(&command.output().unwrap(), 1, "", want);
}

#[test]
fn instance_of_ip_comes_before_the_words_of_ip() {
    let dir = Dir::new("ip-instance");
    // Without a gateway the error has the name that was understood. `-iec` is ip's own.
    let cases: &[(&[&str], &str)] = &[
        (&["-i", "left", "ip", "-iec", "link"], "left"),
        (&["ip", "--instance", "left", "link"], "left"),
        (&["ip", "-iec", "link"], "default"),
        (&["exec", "-i", "left", "true"], "left"),
        (&["exec", "true", "-i", "left"], "default"),
    ];
    // The library is looked for first; any file does.
    let library = dir.file("library.so", "");
    for (args, name) in cases {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
        command
            .args(*args)
            .env("FATPATH_RUNDIR", &dir.0)
            .env("FATPATH_PRELOAD", &library)
            .env_remove("FATPATH_INSTANCE");
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(&format!("no gateway named {name} is running")), "{args:?}: {error}");
    }
    for args in [["ip", "link", "-i", "left"], ["ip", "-4", "addr", "-i"]] {
        let want = "Error: -i: it goes before ip's own words: fatpath -i NAME ip ...\n";
        assert_output(&dir.fatpath(&args), 1, "", want);
    }
    // Short for `-iec`, also behind an option with a value.
    let output = dir.fatpath(&["ip", "-f", "inet", "-i", "link"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("goes before"), "{output:?}");
}

#[test]
fn show_without_a_gateway_names_its_socket_and_how_to_start_one() {
    let dir = Dir::new("nobody");
    let socket = dir.0.join("site1.sock");
    let want = format!(
        "Error: {}: no gateway named site1 is running; start one with `fatpath run -c FILE --instance site1`.\n",
        socket.display()
    );
    assert_output(&dir.fatpath(&["show", "links", "--instance", "site1"]), 1, "", &want);
    // A stale socket of a killed gateway.
    drop(UnixListener::bind(&socket).unwrap());
    assert_output(&dir.fatpath(&["show", "links", "--instance", "site1"]), 1, "", &want);
}

#[test]
fn show_prints_text_or_json() {
    let dir = Dir::new("show");
    let counter = |name: &str, value| CounterState { name: name.to_owned(), value };
    let counters = vec![counter("IpInReceives", 7), counter("IpInHdrErrors", 0)];
    let counters = Shown::Counters(CountersState { counters, ..CountersState::default() });
    let drops = Shown::Drops(vec![DropState { link: None, reason: "NoRoute".to_owned(), count: 2 }]);
    let none = Shown::Links(Vec::new());
    let cases: &[(&[&str], StateKind, &Shown, &str)] = &[
        (&["show", "counters"], StateKind::Counters, &counters, "IpInReceives                    7\n"),
        (
            &["show", "drops", "--json"],
            StateKind::Drops,
            &drops,
            "[{\"link\":null,\"reason\":\"NoRoute\",\"count\":2}]\n",
        ),
        (
            &["show", "drops"],
            StateKind::Drops,
            &drops,
            "NoRoute                         2                        No route leads to the destination\n",
        ),
        (&["show", "links"], StateKind::Links, &none, ""),
    ];
    for (n, (args, what, shown, want)) in cases.iter().enumerate() {
        let instance = format!("i{n}");
        let reply = Reply::Show { shown: (*shown).clone() };
        let gateway = dir.gateway(&instance, vec![reply.to_line().into_bytes()]);
        let args = [args, &["--instance", instance.as_str()][..]].concat();
        assert_output(&dir.fatpath(&args), 0, want, "");
        assert_eq!(gateway.join().unwrap(), [Request::Show { what: *what }]);
    }
}

#[test]
fn error_of_the_gateway_is_printed_in_its_words() {
    let dir = Dir::new("refused");
    let refused = Reply::Error { message: "no link is named lan; links are tun0, wan".to_owned() };
    let cases = [
        (refused.to_line(), "Error: no link is named lan; links are tun0, wan\n".to_owned()),
        (String::new(), format!("Error: {}/i1.sock: the gateway ended before it answered\n", dir.0.display())),
        (
            Reply::Pong { version: "9".to_owned(), pid: 1 }.to_line(),
            format!(
                "Error: {}/i2.sock: the answer is to another question; are both of the same version?\n",
                dir.0.display()
            ),
        ),
    ];
    for (n, (reply, want)) in cases.into_iter().enumerate() {
        let instance = format!("i{n}");
        let gateway = dir.gateway(&instance, vec![reply.into_bytes()]);
        assert_output(&dir.fatpath(&["capture", "lan", "--instance", &instance]), 1, "", &want);
        assert_eq!(gateway.join().unwrap(), [Request::Capture { link: "lan".to_owned(), after_gro: false }]);
    }
}

/// A pcapng block of `kind` with `body`.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, body, &len].concat()
}

#[test]
fn a_capture_goes_to_a_file_or_to_a_pipe_by_whole_blocks() {
    let dir = Dir::new("capture");
    let section = block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    let whole = [section, block(1, &[0; 8]), block(6, &[1; 40])].concat();
    let cut = &block(6, &[2; 40])[..20];
    let stream = [Reply::Capturing.to_line().as_bytes(), &whole, cut].concat();
    let file = dir.0.join("wan.pcapng").display().to_string();
    for (instance, args) in [("file", &["-w", file.as_str(), "--after-gro"][..]), ("pipe", &[])] {
        let gateway = dir.gateway(instance, vec![stream.clone()]);
        let output = dir.fatpath(&[&["capture", "wan", "--instance", instance], args].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "1 packet captured\n");
        let written = if instance == "file" { fs::read(Path::new(&file)).unwrap() } else { output.stdout };
        assert_eq!(written, whole);
        let after_gro = instance == "file";
        assert_eq!(gateway.join().unwrap(), [Request::Capture { link: "wan".to_owned(), after_gro }]);
    }
}

#[test]
fn capture_and_monitor_end_with_their_reader() {
    let dir = Dir::new("reader");
    for (instance, args, reply) in
        [("c", &["capture", "wan"][..], Reply::Capturing), ("m", &["monitor"], Reply::Monitoring)]
    {
        let listener = UnixListener::bind(dir.0.join(format!("{instance}.sock"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fatpath"));
        command.args(args).args(["--instance", instance]).env("FATPATH_RUNDIR", &dir.0);
        let mut client = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        lines.read_line(&mut String::new()).unwrap();
        stream.write_all(reply.to_line().as_bytes()).unwrap();
        drop(client.stdout.take());
        let ended = lines.read_line(&mut String::new());
        if ended.is_err() {
            let _ = client.kill();
        }
        assert_eq!((ended.ok(), client.wait().unwrap().code()), (Some(0), Some(0)), "{instance}");
    }
}

#[test]
fn every_shell_gets_its_completions() {
    let dir = Dir::new("completions");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = dir.fatpath(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success()
                && script.contains("fatpath")
                && script.contains("capture")
                && script.contains("udp-fragments"),
            "{shell}"
        );
    }
}

#[test]
fn every_command_has_a_man_page() {
    let dir = Dir::new("man");
    assert_output(&dir.fatpath(&["man", &dir.0.display().to_string()]), 0, "", "");
    for page in [
        "fatpath",
        "fatpath-run",
        "fatpath-check",
        "fatpath-save",
        "fatpath-show",
        "fatpath-demo",
        "fatpath-bench",
        "fatpath-capture",
        "fatpath-metrics",
        "fatpath-web",
    ] {
        let text = fs::read_to_string(dir.0.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!dir.0.join("fatpath-help.1").exists());
    let text = fs::read_to_string(dir.0.join("fatpath-show.1")).unwrap();
    assert!(text.contains("FATPATH_INSTANCE") && text.contains("instance"), "{text}");
    let output = dir.fatpath(&["man", "/nowhere"]);
    assert_output(&output, 1, "", "Error: /nowhere: No such file or directory (os error 2)\n");
}
