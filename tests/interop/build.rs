//! Compiles the library that user-mode-linux is started with, and the program that tests it.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    compile("XSTATE_LIBRARY", "src/xstate.c", "xstate.so", &["-shared", "-fPIC"]);
    compile("XSTATE_TRACER", "tests/xstate_tracer.c", "xstate_tracer", &[]);
}

/// Compiles the C file `source` to `name`, whose path the tests get in the environment variable `variable`.
fn compile(variable: &str, source: &str, name: &str, options: &[&str]) {
    println!("cargo::rerun-if-changed={source}");
    let out = Path::new(&env::var_os("OUT_DIR").expect("Cargo sets it")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror"]).args(options).arg("-o").arg(&out).arg(source);
    let status = cc.status().unwrap_or_else(|error| panic!("cc: {error}: install a C compiler"));
    assert!(status.success(), "{cc:?}: {status}");
    println!("cargo::rustc-env={variable}={}", out.display());
}
