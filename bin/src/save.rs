//! `fatpath save`: saves the state that clients have set, for the gateway's next start.

use client::{CliError, Client, print};
use ctl::{Reply, Request};

/// Makes the gateway save its state, and prints a summary.
///
/// # Errors
/// The gateway does not reply, or cannot save.
pub(crate) fn main(instance: &str) -> Result<(), CliError> {
    let mut client = Client::connect(instance)?;
    let Reply::Saved { saved } = client.ask(&Request::Save)? else { return Err(client.confused()) };
    print(format!("{instance}: {saved}\n").as_bytes())
}
