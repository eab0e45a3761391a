//! `fatpath show`: state and counters of a running gateway.

use client::{CliError, Client, print};
use ctl::{Reply, Request, StateKind};

use crate::cli::{ShowArgs, ShowWhat};

/// Sends the request to the gateway and prints the reply.
///
/// # Errors
/// The gateway does not reply.
pub(crate) fn main(args: &ShowArgs, what: ShowWhat, instance: &str) -> Result<(), CliError> {
    let request = match (args.sums, what) {
        (false, what) => what.into(),
        (true, ShowWhat::Sa) => Request::Show { what: StateKind::SaSums },
        (true, _) => return Err(CliError::failed("--sums: only `fatpath show sa` has sums.")),
    };
    let mut client = Client::look(instance)?;
    let Reply::Show { shown } = client.ask(&request)? else {
        return Err(client.confused());
    };
    let text = if args.json { shown.to_json() + "\n" } else { shown.to_text(args.all) };
    print(text.as_bytes())
}
