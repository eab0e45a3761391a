//! Lines of a client of the control socket, and of a gateway to its client. A request or a reply that is understood is
//! the same after it was written and read again; names of files and filters of traces are checked.

use ctl::{Reply, Request, procfs};

/// Runs one input.
pub fn target(input: &[u8]) {
    for line in input.split(|&byte| byte == b'\n') {
        // The gateway reads lines of text, and closes a connection with other bytes.
        let Ok(line) = std::str::from_utf8(line) else { return };
        if let Ok(request) = Request::from_line(line) {
            assert_eq!(Request::from_line(request.to_line().trim_end()), Ok(request.clone()));
            match request {
                Request::StatFile { name } => _ = procfs::shows(&name),
                Request::Trace { filter, .. } => _ = daemon::fuzzing::check_trace_filter(&filter),
                _ => {}
            }
        }
        if let Ok(reply) = Reply::from_line(line) {
            assert_eq!(Reply::from_line(reply.to_line().trim_end()).map(|again| again.to_line()), Ok(reply.to_line()));
            if let Reply::Show { shown } = reply {
                assert!(!shown.to_json().is_empty());
                drop(shown.to_text(true));
            }
        }
    }
}
