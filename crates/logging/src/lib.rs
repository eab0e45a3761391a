//! Log of a program that runs as a service: entries of the journal with fields, if standard error is the journal's, else lines of text.
//!
//! # Decides
//! - Place of the log: the journal's native socket, if `JOURNAL_STREAM` has the device and inode of standard error (systemd.exec(5)), and
//!   standard error otherwise.
//! - Fields of an entry: `MESSAGE`, `PRIORITY`, `SYSLOG_IDENTIFIER`, `FATPATH_GATEWAY`; `MESSAGE_ID` ([`id`]) of an event with the field
//!   `message_id`, and `FATPATH_NAME` for each other field `name`, as `FATPATH_LINK` and `FATPATH_REASON`. A line of text has neither
//!   `message_id` nor `link` nor `reason`, which its message says.
//! - Loss of entries: a program does not wait for a journal that is not read.
//!
//! # Leaves to others
//! Messages and levels (the programs), and their filter.
//!
//! # Limits
//! An entry above 32 KiB is sent as sealed memory (`MAX_DATAGRAM_LEN` in `journal.rs`). The first entry that finds the journal's queue full
//! waits 100 ms (`PATIENCE` there); those after it do not wait, and are counted until one fits.
//!
//! # Standards
//! No RFC. The native protocol of systemd's journal (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).
#![forbid(unsafe_code)]

pub mod id;
mod journal;
mod text;

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use journal::{Journal, JournalLayer};

/// Starts the log of `program`. `gateway`: the gateway that this process is.
///
/// # Panics
/// The process has a log already.
pub fn start(filter: EnvFilter, program: &'static str, gateway: Option<&str>) {
    match Journal::of_stderr() {
        Some(journal) => {
            tracing_subscriber::registry().with(filter).with(JournalLayer::new(journal, program, gateway)).init();
        }
        None => {
            let ansi = io::stderr().is_terminal();
            // A closed or full log destination does not end the program.
            let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi);
            log.fmt_fields(text::fields()).log_internal_errors(false).with_target(false).init();
        }
    }
}
