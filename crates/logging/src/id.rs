//! `MESSAGE_ID`s: numbers of events that are alerted on, the same in each version (sd_journal_print(3)).

/// A link has failed, or has lost its carrier.
pub const LINK_DOWN: &str = "95653d955ff14e3390e85c4bb86a7f29";
/// A link is up again, or has a carrier again.
pub const LINK_UP: &str = "d76ffa8c610a4e03990b25ab3fd789ec";
/// An SA refuses more packets than it receives: wrong ICVs or repeated packets. The reason is that of the drops.
pub const SA_REFUSES: &str = "51917f36454d47db809be78e80895027";
/// An SA was removed, or has expired.
pub const SA_REMOVED: &str = "2f72abac81354cd3b15076190be39bbf";
/// A reload was refused, and nothing has changed.
pub const NOT_RELOADED: &str = "b86db5f3db634da7836283390a42ee56";
/// The state or sequence numbers cannot be written.
pub const NOT_SAVED: &str = "349b3ff63c064390b8a6d06d584f8387";
/// Threads, such as a worker, do not answer the watchdog.
pub const THREADS_SILENT: &str = "27016553de2d462a958a99a68e15841b";
/// The gateway ends, as a thread of it has.
pub const FAILED: &str = "edc17bdd8ab64ce7a7afd5044062abc0";
/// A restriction of the process cannot be set, or was left out.
pub const SANDBOX_INCOMPLETE: &str = "5857ad91c6294e8e9b94a76d4b5c2efd";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_128_bits_each_and_differ() {
        let all = [
            LINK_DOWN,
            LINK_UP,
            SA_REFUSES,
            SA_REMOVED,
            NOT_RELOADED,
            NOT_SAVED,
            THREADS_SILENT,
            FAILED,
            SANDBOX_INCOMPLETE,
        ];
        let mut sorted = all.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        for id in all {
            assert!(id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{id}");
        }
    }
}
