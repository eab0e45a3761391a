//! Many SAs by `ip -batch`: the same lines in a Linux kernel and on a gateway, in alternating parts, so that other load
//! of the machine slows both. A kernel under user-mode-linux is slow, so it only gets the first lines. The times are
//! printed and not compared: the cost of a system call there differs by processor.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use interop::Uml;
use libtest_mimic::Trial;
use system::{Gateway, Need, Netns, Outcome, Scratch, fatpath, run, trial};

const NEEDS: &[Need] = &[Need::Namespaces, Need::UML, Need::MODPROBE];

/// Number of SAs, number of SAs that Linux gets too, and number of SAs added at once.
const COUNT: u32 = 100_000;
const SHARED: u32 = 10_000;
const PART: u32 = 2_000;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("fatpath/a_hundred_thousand_sas_are_loaded_and_counted", NEEDS, load)]
}

fn load() -> Outcome {
    let (scratch, netns) = (Scratch::new()?, Netns::new("near")?);
    let mut linux = Uml::boot(&netns, &[])?;
    let _gateway = Gateway::start(&netns, &scratch, "near", "")?;
    let ip = |words: &[&str]| {
        let mut command = Command::new(fatpath());
        command.args(["ip", "--instance", "near"]).args(words).env("FATPATH_RUNDIR", scratch.path());
        run(&mut command)
    };
    let load_ours = |lines: &str| -> Outcome<Duration> {
        let file = scratch.file("batch");
        fs::write(&file, lines)?;
        let start = Instant::now();
        ip(&["-batch", &file.display().to_string()])?;
        Ok(start.elapsed())
    };
    let (mut of_linux, mut of_ours) = (Duration::ZERO, Duration::ZERO);
    for first in (0..SHARED).step_by(PART as usize) {
        let lines: String = (first..first + PART).map(line).collect();
        linux.put("batch", lines.as_bytes())?;
        let start = Instant::now();
        linux.sh("ip -batch batch")?;
        of_linux += start.elapsed();
        of_ours += load_ours(&lines)?;
    }
    println!("{SHARED} SAs by ip -batch: Linux under user-mode-linux {of_linux:.2?}, fatpath {of_ours:.2?}");
    let more = load_ours(&(SHARED..COUNT).map(line).collect::<String>())?;
    println!("{COUNT} SAs by ip -batch: fatpath {:.1?}", of_ours + more);
    let counts = [linux.sh("ip xfrm state count")?, ip(&["xfrm", "state", "count"])?];
    let counted = counts.each_ref().map(|printed| printed.trim());
    assert_eq!(counted, [format!("SAD count {SHARED}"), format!("SAD count {COUNT}")]);
    Ok(())
}

/// An SA that has its own peer, SPI and key. Linux searches among all SAs between the same addresses.
fn line(number: u32) -> String {
    let spi = 0x1000 + number;
    let [_, a, b, c] = number.to_be_bytes();
    format!(
        "xfrm state add src 10.8.0.1 dst 10.{}.{b}.{c} proto esp spi {spi:#x} reqid 7 mode tunnel \
         aead rfc4106(gcm(aes)) 0x{number:072x} 128\n",
        100 + a
    )
}
