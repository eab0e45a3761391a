//! `make install` and `make uninstall`, by the script that they run, below a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use system::{Need, Netns, Outcome, Scratch, fatpath, run, trial};

/// Directory of the installation below the other root.
const PREFIX: &str = "opt/path";

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Namespaces];
    vec![
        trial("install/installed_programs_run_and_uninstall_leaves_nothing", NEEDS, round_trip),
        trial("install/files_of_an_earlier_version_are_removed", &[], earlier_version),
        trial("install/full_disk_leaves_the_installed_version", NEEDS, full_disk),
        trial("install/configuration_files_stay", &[], configuration_stays),
        trial("install/wrong_variables_are_refused_by_name", &[], refused),
    ]
}

/// `scripts/install` with the tested programs, below `root`.
fn script(root: &Path, chore: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install"));
    command.arg(chore).env("DESTDIR", root).env("PREFIX", Path::new("/").join(PREFIX));
    command.env("BINDIR", fatpath().parent().expect("a program is in a directory"));
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Paths below `directory`, without it.
fn paths(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let listed = run(Command::new("find").arg(directory).args(["-mindepth", "1"]))?;
    Ok(listed.lines().map(PathBuf::from).collect())
}

fn mode(path: &Path) -> Outcome<u32> {
    let metadata = fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(metadata.permissions().mode() & 0o7777)
}

fn round_trip() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("install")?);
    let root = scratch.file("root");
    run(&mut script(&root, "install"))?;
    let prefix = root.join(PREFIX);
    for (file, wanted) in [
        ("bin/fatpath", 0o755),
        ("bin/fatpath-bench", 0o755),
        ("bin/fatpath-see", 0o755),
        ("bin/fatpath-fleet", 0o755),
        ("lib/fatpath/libfatpath_preload.so", 0o644),
        ("lib/systemd/system/fatpath@.service", 0o644),
        ("lib/systemd/system/fatpath-charon@.service", 0o644),
        ("lib/systemd/system/fatpath-fleet@.service", 0o644),
        ("lib/systemd/system/fatpath-metrics.service", 0o644),
        ("lib/systemd/system/fatpath-pair@.service", 0o644),
        ("lib/systemd/system/fatpath-web.service", 0o644),
        ("lib/sysusers.d/fatpath.conf", 0o644),
        ("lib/tmpfiles.d/fatpath.conf", 0o644),
        ("share/man/man1/fatpath-run.1", 0o644),
        ("share/man/man1/fatpath-fleet.1", 0o644),
        ("share/man/man1/fatpath-fleet-status.1", 0o644),
        ("share/man/man5/fatpath.toml.5", 0o644),
        ("share/bash-completion/completions/fatpath-fleet", 0o644),
        ("share/bash-completion/completions/fatpath", 0o644),
        ("share/zsh/site-functions/_fatpath", 0o644),
        ("share/fish/vendor_completions.d/fatpath.fish", 0o644),
        ("share/doc/fatpath/examples/tunnel-left.toml", 0o644),
    ] {
        assert_eq!(mode(&prefix.join(file))?, wanted, "{file}");
    }
    assert_eq!(mode(&root.join("etc/fatpath"))?, 0o700);
    let plugin = prefix.join("lib/wireshark/extcap/fatpath-extcap");
    assert_eq!(fs::read_link(&plugin)?, Path::new("../../../bin/fatpath-see"));
    let interfaces = run(Command::new(&plugin).arg("--extcap-interfaces").env("FATPATH_RUNDIR", scratch.path()))?;
    assert!(interfaces.starts_with("extcap {version="), "{interfaces}");
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/fatpath@.service"))?;
    assert!(unit.contains(&format!("\nExecStart=/{PREFIX}/bin/fatpath run ")), "{unit}");
    let profile = fs::read_to_string(prefix.join("share/fatpath/apparmor"))?;
    assert!(profile.contains(&format!("profile fatpath /{PREFIX}/bin/{{fatpath,fatpath-bench}} ")), "{profile}");

    let program = prefix.join("bin/fatpath");
    let version = run(Command::new(&program).arg("--version"))?;
    assert!(version.starts_with(concat!("fatpath ", env!("CARGO_PKG_VERSION"))), "{version}");
    // The library is that of the installation, which no variable names.
    let file = scratch.file("node.toml");
    fs::write(&file, "[[link]]\nname = \"lo\"\naddresses = [\"10.77.0.1/32\"]\n")?;
    let mut exec = host.command(&program);
    exec.arg("exec").arg("-c").arg(&file).args(["--", "sh", "-c", "echo $LD_PRELOAD; ip -4 -o addr show lo"]);
    let printed = run(exec.env_remove("FATPATH_PRELOAD"))?;
    assert!(printed.contains(&format!("{PREFIX}/bin/../lib/fatpath/libfatpath_preload.so")), "{printed}");
    assert!(printed.contains("10.77.0.1"), "{printed}");

    // A second installation replaces the first, and uninstalling needs no built programs.
    run(&mut script(&root, "install"))?;
    let left: Vec<PathBuf> = paths(&root)?.into_iter().filter(|path| path.ends_with(".fatpath-new")).collect();
    assert!(left.is_empty(), "{left:?}");
    run(script(&root, "uninstall").env("BINDIR", "/nonexistent"))?;
    assert!(!root.exists(), "{:?}", paths(&root)?);
    Ok(())
}

fn earlier_version() -> Outcome {
    let scratch = Scratch::new()?;
    run(&mut script(scratch.path(), "install"))?;
    let prefix = scratch.path().join(PREFIX);
    let (manifest, page) = (prefix.join("lib/fatpath/installed"), prefix.join("share/man/man8/fatpath-old.8"));
    fs::create_dir_all(page.parent().expect("a page is in a directory"))?;
    fs::write(&page, "")?;
    let listed = fs::read_to_string(&manifest)?;
    let mut lines: Vec<String> = listed.lines().map(str::to_owned).collect();
    lines.push(format!("/{PREFIX}/share/man/man8/fatpath-old.8"));
    lines.sort();
    fs::write(&manifest, lines.join("\n") + "\n")?;
    run(&mut script(scratch.path(), "install"))?;
    assert!(!page.exists());
    assert_eq!(fs::read_to_string(&manifest)?, listed);
    Ok(())
}

fn full_disk() -> Outcome {
    let (scratch, host) = (Scratch::new()?, Netns::new("install")?);
    let bindir = fatpath().parent().expect("a program is in a directory");
    // The disk has room for the first version and for one of the programs of the second.
    let sizes = ["fatpath", "fatpath-bench", "fatpath-see", "fatpath-fleet", "libfatpath_preload.so"]
        .map(|name| fs::metadata(bindir.join(name)));
    let mut kib = 0;
    for size in sizes {
        kib += size?.len() / 1024;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let printed = host.sh(&format!(
        "mount -t tmpfs -o size={}k none {root}
        export DESTDIR={root} PREFIX=/usr BINDIR={bindir}
        {script} install
        cd {root}
        find . -type f -exec ls -i {{}} + | sort >/tmp/fatpath-before-$$
        ! {script} install 2>&1
        find . -type f -exec ls -i {{}} + | sort | cmp - /tmp/fatpath-before-$$ && echo unchanged
        rm /tmp/fatpath-before-$$
        usr/bin/fatpath --version",
        kib + kib / 2 + 2048,
        root = scratch.path().display(),
        bindir = bindir.display(),
        script = script.display(),
    ))?;
    assert!(printed.contains("No space left on device"), "{printed}");
    assert!(printed.contains("install: the installed version is unchanged\nunchanged\nfatpath "), "{printed}");
    Ok(())
}

fn configuration_stays() -> Outcome {
    let scratch = Scratch::new()?;
    run(&mut script(scratch.path(), "install"))?;
    let file = scratch.path().join("etc/fatpath/left.toml");
    fs::write(&file, "")?;
    let printed = run(&mut script(scratch.path(), "uninstall"))?;
    assert!(printed.contains("/etc/fatpath stays: configuration files are in it"), "{printed}");
    let mut left = paths(scratch.path())?;
    left.sort();
    assert_eq!(left, [scratch.path().join("etc"), scratch.path().join("etc/fatpath"), file]);
    Ok(())
}

fn refused() -> Outcome {
    let scratch = Scratch::new()?;
    for (name, value, wanted) in [
        ("PREFIX", "usr", "install: PREFIX=usr: not an absolute path\n"),
        ("PREFIX", "/a b", "install: PREFIX=/a b: no library can be preloaded from a path with a space or colon\n"),
        (
            "BINDIR",
            "/nowhere",
            "install: /nowhere/fatpath: missing; `make build` builds it, BINDIR names another directory\n",
        ),
    ] {
        let output = script(scratch.path(), "install").env(name, value).output()?;
        assert!(!output.status.success());
        assert_eq!(stderr(&output), wanted);
    }
    let output = script(scratch.path(), "uninstall").output()?;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("nothing is installed there by `make install`"), "{}", stderr(&output));
    assert!(paths(scratch.path())?.is_empty());
    Ok(())
}
