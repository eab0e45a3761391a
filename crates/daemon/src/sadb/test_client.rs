//! Node without a thread, and one client of `NETLINK_XFRM` on it: for tests and the fuzz target, which send requests of
//! a client and check that the database agrees with the state that packets meet.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base::Instant;
use netlink::message::Messages;
use netlink::xfrm::Xfrm;
use netlink::xfrm::nums::{group, msg};
use netlink::{Error, Groups, Outbox, Session};
use nlsock::ToDaemon;
use rustix::event::{EventfdFlags, eventfd};

use super::database::{Ask, Reduce, WorkerSadb};
use crate::event_queue::{EventQueue, KernelEvent, xfrm_groups};
use crate::node::Node;
use crate::notifications;
use crate::poller::Poller;
use crate::records::SaRecord;

impl Ask for Node {
    fn call<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        what(self)
    }

    fn on_all<T: Send + 'static>(
        &mut self,
        what: impl FnOnce(&mut Node) -> Result<T, Error> + Clone + Send + 'static,
        _: Reduce<T>,
    ) -> Result<T, Error> {
        what(self)
    }
}

type NodeXfrm = Xfrm<WorkerSadb<Node>>;

/// The node and its client.
#[derive(Debug)]
pub struct Alone {
    xfrm: NodeXfrm,
    session: Session<NodeXfrm>,
    outbox: Outbox,
    queue: Arc<EventQueue>,
    /// Whether the client subscribes to notifications.
    listening: bool,
    now: Instant,
}

/// Limit of parts, above that of any dump of these tests.
const MAX_PARTS: usize = 10_000;

impl Alone {
    /// An empty node, and a client with or without privilege.
    ///
    /// # Panics
    /// The system has no descriptors left.
    pub fn new(privileged: bool) -> Self {
        let inbox = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor for the inbox");
        let node = Node::new(Poller::new(inbox).expect("a descriptor for epoll"));
        let mut session = Session::new(privileged);
        session.bind(1, 0).expect("a port without groups is for everybody");
        if privileged {
            let groups = [group::ACQUIRE, group::EXPIRE, group::SA, group::POLICY].map(|it| 1 << (it - 1));
            session.bind(1, groups.iter().sum()).expect("the groups are for who may change something");
        }
        let queue = Arc::new(EventQueue::new().expect("a descriptor for notifications"));
        let (xfrm, outbox) = (Xfrm::new(WorkerSadb(node)), Outbox::default());
        Self { xfrm, session, outbox, queue, listening: true, now: Instant::ZERO }
    }

    pub(super) fn node(&mut self) -> &mut Node {
        &mut self.xfrm.database.0
    }

    /// The database, as netlink's thread uses it.
    #[cfg(test)]
    pub(super) fn database(&mut self) -> &mut WorkerSadb<Node> {
        &mut self.xfrm.database
    }

    /// Subscribes to events, or unsubscribes.
    pub fn listen(&mut self, on: bool) {
        self.listening = on;
        self.subscribe(if on { xfrm_groups() } else { Groups::default() });
    }

    /// Adds the test to these groups.
    pub(super) fn subscribe(&mut self, groups: Groups) {
        let queue = Arc::clone(&self.queue);
        notifications::listen(self.node(), [groups, Groups::default()], queue);
    }

    /// Sends netlink messages from the client, as its socket carries them.
    pub fn send(&mut self, messages: &[u8]) {
        let datagram = [ToDaemon::Data(&[]).head().as_bytes(), messages].concat();
        self.receive(&datagram);
    }

    /// Handles a datagram from the client's socket.
    pub fn receive(&mut self, datagram: &[u8]) {
        for call in ToDaemon::calls(datagram) {
            let Some(ToDaemon::Data(messages)) = call else { continue };
            self.outbox.clear();
            let listeners = if self.listening { self.session.groups() } else { Groups::default() };
            self.session.handle(messages, &mut self.xfrm, listeners, &mut self.outbox);
        }
    }

    /// Reads a part of the client's dump.
    pub fn read(&mut self) {
        self.outbox.clear();
        self.session.continue_dump(&mut self.xfrm, &mut self.outbox);
    }

    /// Advances the clock, and expires objects.
    pub fn pass(&mut self, time: Duration) {
        self.let_pass(time);
        self.events();
    }

    pub(super) fn let_pass(&mut self, time: Duration) {
        self.now = self.now.max(self.node().now()) + time;
        let now = self.now;
        notifications::run_timers(self.node(), now);
    }

    /// Notifications of events so far.
    pub(super) fn events(&mut self) -> Vec<KernelEvent> {
        notifications::publish(self.node());
        self.queue.take().xfrm.events
    }

    /// Checks that each SA and policy has its request, and that dumps show each of them once.
    ///
    /// # Panics
    /// An object has no request, or a dump differs.
    pub fn check(&mut self) {
        while self.session.is_dumping() {
            self.read();
        }
        let Node { datapath, .. } = self.node();
        let (sas, larvae, policies) =
            (datapath.ipsec.sad().len(), datapath.ipsec.sad().larvae().count(), datapath.ipsec.spd().len());
        let has_record = |sa: &ipsec::Sa| sa.request::<SaRecord>().is_some();
        assert!(datapath.ipsec.sad().iter().all(has_record), "an SA without its request");
        assert_eq!(self.dump(msg::GET_SA, msg::NEW_SA), sas + larvae, "SAs in a dump");
        assert_eq!(self.dump(msg::GET_POLICY, msg::NEW_POLICY), policies, "policies in a dump");
    }

    /// Number of different messages in a dump.
    fn dump(&mut self, ask: u16, each: u16) -> usize {
        const REQUEST_DUMP: u16 = 0x301;
        let len: u32 = 16;
        let mut request = len.to_ne_bytes().to_vec();
        request.extend([ask, REQUEST_DUMP].iter().flat_map(|word| word.to_ne_bytes()));
        request.extend([0; 8]);
        self.send(&request);
        let (mut shown, mut count) = (HashSet::new(), 0);
        for _ in 0..MAX_PARTS {
            for (_, bytes) in self.outbox.iter() {
                let found = Messages::new(bytes).filter(|message| message.header.kind == each);
                found.for_each(|message| {
                    count += 1;
                    shown.insert(message.payload().to_vec());
                });
            }
            if !self.session.is_dumping() {
                assert_eq!(shown.len(), count, "messages of {each:#x}, and different ones");
                return count;
            }
            self.read();
        }
        panic!("a dump of {ask:#x} does not end");
    }

    /// Tells whether there is no SA, larval SA or policy.
    pub fn is_empty(&mut self) -> bool {
        let ipsec = &self.node().datapath.ipsec;
        ipsec.sad().is_empty() && ipsec.spd().len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use base::Prefix;
    use config::Config;
    use netlink::message::flag;
    use netlink::xfrm::layout::{self, LifetimeCfg, PolicyInfo};
    use netlink::xfrm::{Database, Event, Policy};

    use super::*;
    use crate::apply::apply;
    use crate::planner::Planner;
    use netlink::xfrm::convert;

    const RECORDED: &str = include_str!("../../../../crates/netlink/tests/recordings/xfrm_requests.txt");

    fn recorded() -> Vec<Vec<u8>> {
        let byte = |hex: &str, at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
        lines.map(|hex| (0..hex.len()).step_by(2).map(|at| byte(hex, at)).collect()).collect()
    }

    /// Next number of a pseudo-random sequence.
    fn next(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % below
    }

    #[test]
    fn database_agrees_with_ipsec_after_mutated_requests() {
        let recorded = recorded();
        assert!(recorded.len() > 50, "{}", recorded.len());
        for seed in 0..300 {
            let mut state = seed;
            let mut alone = Alone::new(true);
            for _ in 0..200 {
                let mut request = recorded[next(&mut state, recorded.len())].clone();
                for _ in 0..next(&mut state, 4) {
                    let at = next(&mut state, request.len());
                    request[at] = next(&mut state, 256) as u8;
                }
                alone.send(&request);
                match next(&mut state, 20) {
                    0 => alone.pass(Duration::from_secs(next(&mut state, 300) as u64)),
                    1 => alone.listen(next(&mut state, 2) == 0),
                    2 => alone.read(),
                    _ => {}
                }
            }
            alone.check();
        }
    }

    /// SPI of an SA in a dump's message: behind a selector and an address.
    fn spi_shown(payload: &[u8]) -> u32 {
        u32::from_be_bytes(payload[72..76].try_into().unwrap())
    }

    #[test]
    fn dump_of_100k_sas_has_each_stable_sa_once_under_churn() {
        const STABLE: u32 = 100_000;
        const FIRST_OTHER: u32 = 0x8000_0000;
        const OTHERS: u32 = 20_000;
        let is_added = |request: &Vec<u8>| {
            let mut alone = Alone::new(true);
            alone.send(request);
            alone.node().datapath.ipsec.sad().len() == 1
        };
        let known = recorded().into_iter().find(is_added).unwrap();
        let mut alone = Alone::new(true);
        alone.session.set_recv_len(32 << 10);
        let add = |alone: &mut Alone, spi: u32| {
            let mut request = known.clone();
            request[88..92].copy_from_slice(&spi.to_be_bytes());
            alone.send(&request);
        };
        let remove = |alone: &mut Alone, spi: u32| {
            let mut request = 40_u32.to_ne_bytes().to_vec();
            request.extend([msg::DEL_SA, 5].iter().flat_map(|word| word.to_ne_bytes()));
            request.extend([0; 8]);
            // The address, the SPI, the family and the protocol, ESP.
            request.extend_from_slice(&known[72..88]);
            request.extend(spi.to_be_bytes());
            request.extend_from_slice(&known[228..230]);
            request.extend([50, 0]);
            alone.send(&request);
        };
        for n in 0..STABLE {
            add(&mut alone, 0x1000 + n);
            if n % (STABLE / OTHERS) == 0 {
                add(&mut alone, FIRST_OTHER + n / (STABLE / OTHERS));
            }
        }
        let len = |alone: &mut Alone| alone.node().datapath.ipsec.sad().len() as u32;
        assert_eq!(len(&mut alone), STABLE + OTHERS);
        let mut ask = 16_u32.to_ne_bytes().to_vec();
        ask.extend([msg::GET_SA, 0x301].iter().flat_map(|word| word.to_ne_bytes()));
        ask.extend([0; 8]);
        let (mut seen, mut parts, mut state, mut next_new) = (vec![0_u8; STABLE as usize], 0, 1, FIRST_OTHER + OTHERS);
        let mut others = HashSet::new();
        alone.send(&ask);
        loop {
            for (_, bytes) in alone.outbox.iter() {
                for message in Messages::new(bytes) {
                    assert!(!message.header.has(flag::DUMP_INTR), "Linux says that of no dump of SAs");
                    if message.header.kind != msg::NEW_SA {
                        continue;
                    }
                    match spi_shown(message.payload()) {
                        other @ FIRST_OTHER.. => assert!(others.insert(other), "{other:#x} twice"),
                        stable => seen[(stable - 0x1000) as usize] += 1,
                    }
                }
            }
            if !alone.session.is_dumping() {
                break;
            }
            parts += 1;
            for _ in 0..8 {
                // One of the initial SAs is removed, perhaps at the dump's position, and one is added.
                remove(&mut alone, FIRST_OTHER + next(&mut state, OTHERS as usize) as u32);
                add(&mut alone, next_new);
                next_new += 1;
            }
            alone.read();
        }
        assert!(parts > 1000 && next_new - FIRST_OTHER > OTHERS + 8000, "{parts} parts");
        assert!(seen.iter().all(|&times| times == 1), "{:?}", seen.iter().position(|&times| times != 1));
        assert!(others.iter().all(|&spi| spi < FIRST_OTHER + OTHERS), "what comes while a dump lasts is not in it");
        assert!(!others.is_empty() && len(&mut alone) > STABLE + OTHERS, "{}", others.len());
    }

    #[test]
    fn read_only_client_changes_nothing() {
        let mut alone = Alone::new(false);
        for request in recorded() {
            alone.send(&request);
            assert!(alone.is_empty());
        }
    }

    /// A policy for a destination with the octet `third`, with a lifetime of a minute.
    fn policy(third: u8) -> Policy {
        let sel = layout::Selector {
            prefixlen_d: 24,
            ..convert::wire_selector(
                &xfrm::Selector::new(Prefix::ANY_V4, Prefix::new(Ipv4Addr::new(10, 0, third, 0).into(), 24).unwrap()),
                0,
            )
        };
        let lft = LifetimeCfg { hard_add_expires_seconds: 60, ..LifetimeCfg::INFINITE };
        Policy { info: PolicyInfo { sel, lft, dir: 1, ..PolicyInfo::default() }, ..Policy::default() }
    }

    /// Numbers of policies and of SAs whose expiry was notified, each with its own limit.
    fn ended(events: &[KernelEvent]) -> (usize, usize) {
        let policies = events.iter().filter(|events| match events {
            KernelEvent::Xfrm(Event::PolicyExpire { policy, hard: true }) => {
                policy.info.lft.hard_add_expires_seconds == 60
            }
            _ => false,
        });
        let sas = events.iter().filter(|events| match events {
            KernelEvent::Xfrm(Event::Expire { info, hard: true, .. }) => info.lft.hard_add_expires_seconds == 60,
            _ => false,
        });
        (policies.count(), sas.count())
    }

    #[test]
    fn policies_that_expire_together_are_each_notified() {
        let mut alone = Alone::new(true);
        alone.listen(true);
        for third in 0..=u8::MAX {
            alone.xfrm.database.add_policy(Box::new(policy(third)), false).unwrap();
        }
        alone.let_pass(Duration::ZERO);
        alone.let_pass(Duration::from_secs(61));
        assert_eq!(ended(&alone.events()), (256, 0));
        alone.check();
    }

    #[test]
    fn policy_added_in_place_of_an_expired_one_stays() {
        let mut alone = Alone::new(true);
        alone.listen(true);
        for _ in 0..3 {
            alone.xfrm.database.add_policy(Box::new(policy(1)), false).unwrap();
            alone.let_pass(Duration::ZERO);
            alone.let_pass(Duration::from_secs(61));
        }
        alone.xfrm.database.add_policy(Box::new(policy(1)), false).unwrap();
        assert_eq!(ended(&alone.events()), (3, 0));
        assert_eq!(alone.node().datapath.ipsec.spd().len(), 1);
        alone.check();
    }

    #[test]
    fn expiry_of_configured_objects_is_notified_without_a_dump() {
        for subscribed_before in [false, true] {
            let limit = "limit = { time-hard = 60 }\n";
            let file = format!(
                "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 1\nenc = \"ecb(cipher_null)\"\n{limit}\
                 [[policy]]\ndir = \"out\"\ndst = \"10.0.0.0/8\"\n{limit}"
            );
            let (_, plan) = Planner::default().plan(Config::from_toml(&file, "f").unwrap()).unwrap();
            let mut alone = Alone::new(true);
            if subscribed_before {
                alone.listen(true);
            }
            apply(alone.node(), plan).unwrap();
            alone.listen(true);
            alone.let_pass(Duration::ZERO);
            alone.let_pass(Duration::from_secs(61));
            assert_eq!(ended(&alone.events()), (1, 1), "subscribed before: {subscribed_before}");
            alone.check();
        }
    }
}
