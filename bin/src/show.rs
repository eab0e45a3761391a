//! `fatpath show`: state and counters of a running gateway.

use client::{CliError, Client, print};
use ctl::Reply;

use crate::cli::{ShowArgs, ShowWhat};

/// Sends the request to the gateway and prints the reply.
///
/// # Errors
/// The gateway does not reply.
pub(crate) fn main(args: &ShowArgs, what: ShowWhat, instance: &str) -> Result<(), CliError> {
    let mut client = Client::look(instance)?;
    let Reply::Show { shown } = client.ask(&what.into())? else {
        return Err(client.confused());
    };
    let text = if args.json { shown.to_json() + "\n" } else { shown.to_text(args.all) };
    print(text.as_bytes())
}
