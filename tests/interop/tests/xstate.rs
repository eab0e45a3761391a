//! The library that user-mode-linux is started with: a write of only a process's first registers succeeds with it on
//! every processor.

use std::process::Command;

use interop::{Uml, XSTATE_LIBRARY};
use libtest_mimic::Trial;
use system::{Need, Netns, Outcome, run, trial};

/// A program that writes the first registers of a child back.
const TRACER: &str = env!("XSTATE_TRACER");

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("xstate/short_write_alone_is_refused", &[], || traces(None, "EFAULT, xmm0 kept, the rest kept\n")),
        trial("xstate/short_write_with_library_keeps_the_rest", &[], || {
            traces(Some(XSTATE_LIBRARY), "taken, xmm0 written, the rest kept\n")
        }),
        trial("xstate/uml_has_the_library", &[Need::Namespaces, Need::UML, Need::MODPROBE], is_in_uml),
    ]
}

fn traces(library: Option<&str>, want: &str) -> Outcome {
    let mut tracer = Command::new(TRACER);
    if let Some(library) = library {
        tracer.env("LD_PRELOAD", library);
    }
    assert_eq!(run(&mut tracer)?, want);
    Ok(())
}

fn is_in_uml() -> Outcome {
    let netns = Netns::new("near")?;
    let uml = Uml::boot(&netns, &[])?;
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", uml.id()))?;
    assert!(maps.contains(XSTATE_LIBRARY), "{maps}");
    Ok(())
}
