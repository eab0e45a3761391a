//! Queueing disciplines by netlink: refusals, handles, saved state. `recorded.rs` compares the replies to `tc` with
//! Linux's.

use config::Config;
use netlink::error::errno;
use netlink::message::{Header, Messages, Writer, flag};
use netlink::rtnl::nums::*;
use netlink::rtnl::{Backend, Model, Rtnl, renumber};
use netlink::{Error, Groups, Outbox, Session, To, carry_out};
use qdisc::{Depth, Options, RateSpec, Stats, Tbf};

use crate::common::node::{RecordingBackend, check, node};
use base::PortId;

const ETH0: u32 = 2;
const ADD: u16 = flag::CREATE | flag::EXCL;
const REPLACE: u16 = flag::CREATE | flag::REPLACE;

fn request(kind: u16, flags: u16, [index, handle, parent]: [u32; 3], body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::default();
    w.message(Header { kind, flags: flag::REQUEST | flags, seq: 7, port: 0 }, |w| {
        w.fixed(&[0; 4]);
        [index, handle, parent, 0].iter().for_each(|word| w.fixed(&word.to_ne_bytes()));
        body(w);
    });
    w.into_bytes()
}

fn new(flags: u16, handle: u32, body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    request(RTM_NEWQDISC, flags, [ETH0, handle, TC_H_ROOT], body)
}

fn pfifo(w: &mut Writer) {
    w.put_str(TCA_KIND, "pfifo");
}

/// `struct tc_tbf_qopt` with the given rate, limit and buffer.
fn parms(rate: u32, limit: u32, buffer: u32) -> Vec<u8> {
    let words = [0, 0, rate, 0, 0, 0, limit, buffer, 0];
    words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect()
}

fn tbf(w: &mut Writer, options: impl FnOnce(&mut Writer)) {
    w.put_str(TCA_KIND, "tbf");
    w.nest(TCA_OPTIONS, options);
}

fn handle_of(node: &Rtnl<RecordingBackend>) -> Option<u32> {
    node.model.link(ETH0).unwrap().qdisc.map(|qdisc| qdisc.handle >> 16)
}

#[test]
fn handles_count_from_8001_and_skip_the_link_s_own() {
    let mut node = node();
    let mut make = |handle: u32| {
        carry_out(&mut node, &new(REPLACE, handle << 16, |w| w.put_str(TCA_KIND, "noqueue"))).unwrap();
        let made = handle_of(&node);
        // The next discipline replaces it.
        carry_out(&mut node, &new(REPLACE, 1 << 16, pfifo)).unwrap();
        made
    };
    assert_eq!([0, 0, 7, 0].map(&mut make), [0x8001, 0x8002, 7, 0x8003].map(Some));
    carry_out(&mut node, &new(REPLACE, 0x8004 << 16, pfifo)).unwrap();
    carry_out(&mut node, &new(ADD, 0, |w| w.put_str(TCA_KIND, "noqueue"))).unwrap();
    assert_eq!(handle_of(&node), Some(0x8005));
    check(&node);
}

#[test]
fn hostile_options_are_refused_and_change_nothing() {
    type Body = Box<dyn FnOnce(&mut Writer)>;
    let of_tbf = |options: Vec<(u16, Vec<u8>)>| -> Body {
        Box::new(move |w| tbf(w, |w| options.iter().for_each(|(kind, data)| w.put(*kind, data))))
    };
    let with = |kind: &'static str, attr: u16, data: Vec<u8>| -> Body {
        Box::new(move |w| {
            w.put_str(TCA_KIND, kind);
            w.put(attr, &data);
        })
    };
    const POLICY: &str = "Attribute failed policy validation";
    const SHORT: &str = "options are shorter than struct tc_fifo_qopt";
    let peak = [parms(1000, 9000, 9000), vec![]].concat();
    let mut low_peak = peak;
    low_peak[20..24].copy_from_slice(&500_u32.to_ne_bytes());
    let cases: Vec<(Body, i32, &str)> = vec![
        (Box::new(|_| {}), errno::ENOENT, "Specified qdisc kind is unknown"),
        (with("", TCA_OPTIONS, vec![]), errno::ENOENT, "Specified qdisc kind is unknown"),
        (Box::new(|w| w.put(TCA_KIND, &[])), errno::ERANGE, POLICY),
        (Box::new(|w| w.put(TCA_KIND, &[0xff, 0xfe])), errno::ENOENT, "Specified qdisc kind is unknown"),
        (with("pfifo", TCA_OPTIONS, vec![]), errno::EINVAL, SHORT),
        (with("bfifo", TCA_OPTIONS, vec![1, 2, 3]), errno::EINVAL, SHORT),
        (with("tbf", TCA_OPTIONS, vec![]), errno::EINVAL, "tbf: rate and limit are missing"),
        (Box::new(|w| w.put_str(TCA_KIND, "tbf")), errno::EINVAL, "tbf: options are missing"),
        (of_tbf(vec![(TCA_TBF_PARMS, vec![0; 35])]), errno::ERANGE, POLICY),
        (of_tbf(vec![(TCA_TBF_PARMS, vec![0; 36])]), errno::EINVAL, "tbf: rate is 0"),
        (of_tbf(vec![(TCA_TBF_PARMS, parms(1000, 9000, 0))]), errno::EINVAL, "tbf: burst is too small for any packet"),
        (
            of_tbf(vec![(TCA_TBF_PARMS, parms(1000, 9000, 9000)), (TCA_TBF_BURST, vec![0; 4])]),
            errno::EINVAL,
            "tbf: burst is too small for any packet",
        ),
        (
            of_tbf(vec![(TCA_TBF_PARMS, low_peak), (TCA_TBF_BURST, vec![9; 4])]),
            errno::EINVAL,
            "peakrate 500 is lower than or equals to rate 1000 !",
        ),
        (of_tbf(vec![(TCA_TBF_PARMS, parms(1000, 9000, 9000)), (TCA_TBF_RATE64, vec![0; 7])]), errno::ERANGE, POLICY),
        (with("pfifo", TCA_STAB, vec![]), errno::EOPNOTSUPP, "fatpath has no size tables of queueing disciplines"),
        (with("pfifo", TCA_RATE, vec![0; 2]), errno::EOPNOTSUPP, "fatpath has no rate estimators"),
        (with("pfifo", TCA_RATE, vec![0; 9]), errno::ERANGE, POLICY),
        (with("pfifo", TCA_INGRESS_BLOCK, vec![0; 4]), errno::EOPNOTSUPP, "Ingress block sharing is not supported"),
        (with("pfifo", TCA_EGRESS_BLOCK, vec![0; 4]), errno::EOPNOTSUPP, "Egress block sharing is not supported"),
    ];
    for (body, errno, text) in cases {
        let mut node = node();
        let refused = carry_out(&mut node, &new(REPLACE, 0, body)).unwrap_err();
        assert_eq!((refused.errno, refused.text.as_deref()), (errno, Some(text)));
        assert_eq!((handle_of(&node), node.model.has_changed()), (None, false), "{text}");
        check(&node);
    }
    let short = request(RTM_NEWQDISC, ADD, [ETH0, 0, TC_H_ROOT], pfifo);
    let mut short = short[..32].to_vec();
    short[..4].copy_from_slice(&32_u32.to_ne_bytes());
    assert_eq!(carry_out(&mut node(), &short), Err(Error::text(errno::EINVAL, "Invalid header length")));
    for index in [0, 3, u32::MAX, i32::MAX as u32] {
        let message = request(RTM_NEWQDISC, ADD, [index, 0, TC_H_ROOT], pfifo);
        assert_eq!(carry_out(&mut node(), &message), Err(Error::new(errno::ENODEV)), "{index}");
    }
}

#[test]
fn absurd_rates_and_limits_are_taken_and_shown() {
    let mut node = node();
    let body = |w: &mut Writer| {
        tbf(w, |w| {
            w.put(TCA_TBF_PARMS, &parms(u32::MAX, u32::MAX, u32::MAX));
            w.put_u64(TCA_TBF_RATE64, u64::MAX);
            w.put_u32(TCA_TBF_BURST, u32::MAX);
        });
    };
    carry_out(&mut node, &new(ADD, 0, body)).unwrap();
    node.backend.stats = Stats {
        bytes: u64::MAX,
        packets: u64::MAX,
        drops: u64::MAX,
        overlimits: u64::MAX,
        qlen: u32::MAX,
        backlog: u64::MAX,
    };
    let mut session = Session::new(false);
    session.bind(9, 0).unwrap();
    let mut outbox = Outbox::default();
    for flags in [0, flag::DUMP] {
        let message = request(RTM_GETQDISC, flags, [ETH0, 0, TC_H_ROOT], |_| {});
        outbox.clear();
        session.handle(&message, &mut node, Groups::default(), &mut outbox);
        let own = outbox.iter().flat_map(|(_, bytes)| Messages::new(bytes).collect::<Vec<_>>());
        let shown = own.filter(|message| message.header.kind == RTM_NEWQDISC).map(|message| message.bytes.to_vec());
        let [shown] = &shown.collect::<Vec<_>>()[..] else { panic!("one discipline") };
        let pkt64 = [12, 0, TCA_STATS_PKT64 as u8, 0].into_iter().chain([0xff; 8]).collect::<Vec<u8>>();
        assert!(shown.windows(12).any(|bytes| bytes == pkt64), "{shown:?}");
    }
}

#[test]
fn links_without_packets_have_no_queue() {
    let mut node = node();
    let message = request(RTM_NEWQDISC, ADD, [1, 0, TC_H_ROOT], pfifo);
    let refused = carry_out(&mut node, &message).unwrap_err();
    assert_eq!(refused.errno, errno::EOPNOTSUPP);
    let ingress = request(RTM_NEWQDISC, ADD, [ETH0, 0, TC_H_INGRESS], pfifo);
    assert_eq!(
        carry_out(&mut node, &ingress),
        Err(Error::unsupported("fatpath has no queueing disciplines at ingress"))
    );
    check(&node);
}

#[test]
fn discipline_goes_with_its_link() {
    let mut node = node();
    carry_out(&mut node, &new(ADD, 0, pfifo)).unwrap();
    let mut w = Writer::default();
    w.message(Header { kind: RTM_DELLINK, flags: flag::REQUEST, ..Header::default() }, |w| {
        w.fixed(&[0; 4]);
        w.fixed(&ETH0.to_ne_bytes());
        w.fixed(&[0; 8]);
    });
    carry_out(&mut node, w.as_bytes()).unwrap();
    assert!(node.backend.qdisc_stats().unwrap().is_empty());
    check(&node);
}

#[test]
fn qdisc_events_name_the_old_and_the_new_qdisc() {
    let mut node = node();
    let mut session = Session::new(true);
    session.bind(9, 1 << (RTNLGRP_TC - 1)).unwrap();
    let mut notified = |flags: u16, handle: u32, kind: u16| {
        let message = request(kind, flags, [ETH0, handle, TC_H_ROOT], |w| {
            if kind == RTM_NEWQDISC {
                pfifo(w);
            }
        });
        let mut outbox = Outbox::default();
        session.handle(&message, &mut node, session.groups(), &mut outbox);
        let group = |to: To| matches!(to, To::Group { group: RTNLGRP_TC, .. });
        let events = outbox.iter().filter(|(to, _)| group(*to)).flat_map(|(_, bytes)| Messages::new(bytes));
        let handle = |payload: &[u8]| u32::from_ne_bytes(payload[8..12].try_into().unwrap()) >> 16;
        events.map(|event| (event.header.kind, event.header.flags, handle(event.payload()))).collect::<Vec<_>>()
    };
    assert_eq!(notified(ADD, 1 << 16, RTM_NEWQDISC), [(RTM_DELQDISC, 0, 0), (RTM_NEWQDISC, flag::REPLACE, 1)]);
    assert_eq!(notified(0, 1 << 16, RTM_NEWQDISC), [(RTM_NEWQDISC, 0, 1)]);
    assert_eq!(notified(ADD, 1 << 16, RTM_NEWQDISC), []);
    assert_eq!(notified(REPLACE, 2 << 16, RTM_NEWQDISC), [(RTM_DELQDISC, 0, 1), (RTM_NEWQDISC, flag::REPLACE, 2)]);
    assert_eq!(notified(0, 0, RTM_DELQDISC), [(RTM_DELQDISC, 0, 2)]);
}

#[test]
fn saved_discipline_has_the_same_depths_and_new_link_number() {
    for (attr, want) in
        [(Some(1514), Depth::Bytes(1514)), (None, Depth::Time(std::time::Duration::from_nanos(64 * 77)))]
    {
        let mut first = node();
        let body = |w: &mut Writer| {
            tbf(w, |w| {
                w.put(TCA_TBF_PARMS, &parms(1_000_000_000, 9000, 77));
                attr.iter().for_each(|burst| w.put_u32(TCA_TBF_BURST, *burst));
            });
        };
        carry_out(&mut first, &new(ADD, 5 << 16, body)).unwrap();
        let mut saved = first.saved().unwrap().into_iter().find(|saved| saved.noun == "qdisc").unwrap();
        assert_eq!(saved.label, "qdisc tbf dev eth0");
        renumber(&mut saved.message, |old| Some(old).filter(|&old| old == ETH0), |_| false).unwrap();
        let mut second = node();
        carry_out(&mut second, &saved.message).unwrap();
        let [first, second] = [&first, &second].map(|node| node.model.link(ETH0).unwrap().qdisc.unwrap());
        assert_eq!(first, second);
        let Some(Options::Tbf(Tbf { rate, burst, limit: 9000, .. })) = second.options else { panic!("{second:?}") };
        assert_eq!((rate, burst), (RateSpec { rate: 1_000_000_000, ..RateSpec::default() }, want));
        assert_eq!(renumber(&mut saved.message, |_| None, |_| false), Err(ETH0));
    }
}

#[test]
fn discipline_of_the_file_keeps_its_handle_over_a_reload() {
    let toml = |qdisc: &str| {
        let text = format!("[[link]]\nname = \"eth0\"\nkind = \"packet\"\ninterface = \"eth0\"\n{qdisc}");
        Config::from_toml(&text, "f").unwrap()
    };
    let now = node().backend.links().unwrap();
    let mut model = Model::default();
    let mut handle = |qdisc: &str| {
        model.read(&toml(qdisc), &[PortId(ETH0)], &now, ETH0);
        assert!(!model.has_changed());
        model.link(ETH0).unwrap().qdisc.map(|qdisc| qdisc.handle >> 16)
    };
    assert_eq!(handle("qdisc = { kind = \"pfifo\" }"), Some(0x8001));
    assert_eq!(handle("qdisc = { kind = \"pfifo\", limit = 7 }"), Some(0x8001));
    assert_eq!(handle("qdisc = { kind = \"bfifo\", limit = 7000 }"), Some(0x8002));
    assert_eq!(handle(""), None);
}
