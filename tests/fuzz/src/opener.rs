//! Messages of a gateway to its openers, one in each line: whatever a gateway that was taken over sends, no order about a
//! device, a route or an address of others is admitted, and the kernel is asked for what was judged.

/// Runs one input.
pub fn target(input: &[u8]) {
    for message in input.split(|&byte| byte == b'\n') {
        daemon::fuzzing::judge_order(message);
    }
}

#[cfg(test)]
mod tests {
    use daemon::fuzzing::judge_order;

    #[test]
    fn orders_of_the_corpus_are_orders() {
        let orders = include_bytes!("../../../fuzz/corpus/opener/orders");
        for order in orders.split(|&byte| byte == b'\n').filter(|order| !order.is_empty()) {
            assert!(judge_order(order), "{}", String::from_utf8_lossy(order));
        }
    }
}
