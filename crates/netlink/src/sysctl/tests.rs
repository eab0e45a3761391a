use config::settings::{EarlyDemux, L3mdevAccept};

use super::*;
use base::PortId;
use config::Config;

/// Node with the link eth0 of the given MTU.
fn model(mtu: u16) -> Model {
    let link = "[[link]]\nname = \"eth0\"\nkind = \"tun\"\n";
    let config = Config::from_toml(&format!("{link}mtu = {mtu}\n"), "f").unwrap();
    let mut model = Model::default();
    let now = crate::rtnl::LinkNow {
        id: PortId(2),
        host_index: Some(2),
        running: true,
        mtu: mtu.into(),
        mac: None,
        stats: Default::default(),
        carrier: [0; 2],
        queues: None,
        promiscuity: 0,
        allmulti: 0,
        bridging: None,
    };
    model.read(&config, &[PortId(2)], &[now], 2);
    model
}

fn file(name: &str) -> File {
    match find(name, &model(1500)) {
        Some(Found::File(file)) => file,
        other => panic!("{name}: {other:?}"),
    }
}

/// Settings after writing the given values to the named files, one after the other.
fn written(lines: &[(&str, &str, Result<(), i32>)]) -> Settings {
    let mut settings = Settings::default();
    for (name, text, want) in lines {
        match file(name).write(settings, text.as_bytes()) {
            Ok(Written::Settings(changed)) => {
                assert_eq!(*want, Ok(()), "{name} {text}");
                settings = changed;
                assert_eq!(file(name).read(&settings), Ok(format!("{}\n", text.trim())), "{name} {text}");
            }
            Ok(Written::ForgetPaths) => assert_eq!(*name, "ipv4/route/flush"),
            Err(errno) => assert_eq!(*want, Err(errno), "{name} {text}"),
        }
    }
    settings
}

const INVALID: Result<(), i32> = Err(errno::EINVAL);
const UNABLE: Result<(), i32> = Err(errno::EOPNOTSUPP);

#[test]
fn unchanged_setting_is_as_in_linux() {
    let usual = [
        ("core/xfrm_acq_expires", "30\n"),
        ("core/xfrm_aevent_etime", "10\n"),
        ("core/xfrm_aevent_rseqth", "2\n"),
        ("core/xfrm_larval_drop", "1\n"),
        ("ipv4/ipfrag_high_thresh", "4194304\n"),
        ("ipv4/ipfrag_low_thresh", "3145728\n"),
        ("ipv4/ipfrag_time", "30\n"),
        ("ipv4/ipfrag_max_dist", "64\n"),
        ("ipv6/ip6frag_high_thresh", "4194304\n"),
        ("ipv6/ip6frag_low_thresh", "3145728\n"),
        ("ipv6/ip6frag_time", "60\n"),
        ("ipv4/conf/all/forwarding", "1\n"),
        ("ipv6/conf/default/forwarding", "1\n"),
        ("ipv6/conf/eth0/mtu", "1500\n"),
        ("ipv4/neigh/lo/mcast_solicit", "3\n"),
    ];
    for (name, want) in usual {
        assert_eq!(file(name).read(&Settings::default()).as_deref(), Ok(want), "{name}");
    }
}

#[test]
fn low_is_not_above_high() {
    for family in ["ipv4/ipfrag", "ipv6/ip6frag"] {
        let (high, low) = (format!("{family}_high_thresh"), format!("{family}_low_thresh"));
        let settings = written(&[
            (&low, "4194305", INVALID),
            (&high, "3145727", INVALID),
            (&high, "3145728", Ok(())),
            (&low, "-1", INVALID),
            (&low, "0", Ok(())),
            (&high, "0", Ok(())),
            (&low, "1", INVALID),
            (&high, "18446744073709551615\n", Ok(())),
            (&low, "9000000", Ok(())),
        ]);
        let [v4, v6] = [settings.reassembly.v4, settings.reassembly.v6].map(|it| (it.low_thresh, it.high_thresh));
        let (set, other) = if family.starts_with("ipv4") { (v4, v6) } else { (v6, v4) };
        assert_eq!((set, other), ((9_000_000, u64::MAX), (3 << 20, 4 << 20)));
    }
}

#[test]
fn each_number_has_linuxs_bounds_and_then_this_nodes() {
    let settings = written(&[
        ("ipv4/ipfrag_time", "20\n", Ok(())),
        ("ipv4/ipfrag_time", "0", Ok(())),
        ("ipv4/ipfrag_time", "2147483", Ok(())),
        ("ipv4/ipfrag_time", "99999999999", INVALID),
        ("ipv4/ipfrag_time", "-1", UNABLE),
        ("ipv4/ipfrag_time", "ten", INVALID),
        ("ipv6/ip6frag_time", "7", Ok(())),
        ("ipv4/ipfrag_max_dist", "-1", INVALID),
        ("ipv4/ipfrag_max_dist", "2147483648", INVALID),
        ("ipv4/ipfrag_max_dist", "2147483647", Ok(())),
        ("core/xfrm_acq_expires", "165", Ok(())),
        ("core/xfrm_acq_expires", "0", UNABLE),
        ("core/xfrm_acq_expires", "2147483648", INVALID),
        ("core/xfrm_aevent_etime", "-1", INVALID),
        ("core/xfrm_aevent_etime", "4294967296", INVALID),
        ("core/xfrm_aevent_etime", "4294967295", Ok(())),
        ("core/xfrm_aevent_rseqth", "0", Ok(())),
        ("core/xfrm_larval_drop", "2", UNABLE),
        ("core/xfrm_larval_drop", "0", Ok(())),
        ("ipv4/ip_forward", "1", Ok(())),
        ("ipv4/ip_forward", "0", UNABLE),
        ("ipv4/ip_forward", "", INVALID),
        ("ipv4/ip_default_ttl", "64", Ok(())),
        ("ipv4/ip_default_ttl", "255", UNABLE),
        ("ipv4/ip_default_ttl", "256", INVALID),
        ("ipv4/ip_default_ttl", "0", INVALID),
        ("ipv4/route/flush", "any", Ok(())),
        ("ipv4/ip_early_demux", "0", Ok(())),
        ("ipv4/tcp_early_demux", "255", Ok(())),
        ("ipv4/tcp_early_demux", "256", INVALID),
        ("ipv4/udp_early_demux", "-1", INVALID),
        ("ipv4/tcp_l3mdev_accept", "1", Ok(())),
        ("ipv4/udp_l3mdev_accept", "2", INVALID),
        ("ipv4/raw_l3mdev_accept", "1", Ok(())),
        ("ipv4/raw_l3mdev_accept", "0", UNABLE),
        ("vrf/strict_mode", "1", Ok(())),
        ("vrf/strict_mode", "-1", INVALID),
        ("ipv6/conf/eth0/mtu", "1500", Ok(())),
        ("ipv6/conf/eth0/mtu", "1501", INVALID),
        ("ipv6/conf/eth0/mtu", "1279", INVALID),
        ("ipv6/conf/eth0/mtu", "1400", UNABLE),
        ("fatpath/max_routes", "100000", Ok(())),
        ("fatpath/max_routes", "-1", INVALID),
        ("fatpath/max_sas", "2147483647", Ok(())),
        ("fatpath/max_sas", "2147483648", INVALID),
        ("fatpath/max_policies", "3", Ok(())),
        ("fatpath/max_policies", "0", Ok(())),
        ("fatpath/max_neighbours", "4", Ok(())),
        ("fatpath/max_neighbours", "x", INVALID),
        ("fatpath/max_mappings", "5", Ok(())),
    ]);
    let limits = |timeout_secs| config::model::FragLimits { timeout_secs, ..Settings::default().reassembly.v4 };
    let want = Settings {
        reassembly: config::model::ReassemblyConfig {
            v4: limits(2_147_483),
            v6: limits(7),
            max_distance: i32::MAX as u32,
            ..Default::default()
        },
        xfrm: config::model::XfrmOptions {
            larval_drop: false,
            acq_expires: 165,
            aevent_rseqth: 0,
            aevent_etime: u32::MAX,
        },
        early_demux: EarlyDemux { ip: 0, tcp: 255, udp: 1 },
        l3mdev_accept: L3mdevAccept { tcp: true, udp: false },
        vrf_strict_mode: true,
        path_hash: Default::default(),
        tables: config::model::TableLimits {
            routes: 100_000,
            sas: i32::MAX as u32,
            policies: 0,
            neighbours: 4,
            mappings: 5,
        },
    };
    assert_eq!(settings, want);
}

#[test]
fn a_file_that_changes_sets_what_it_changes() {
    let settings = |keys: &str| Settings::of(&Config::from_toml(keys, "f").unwrap());
    let set = written(&[
        ("ipv4/ipfrag_time", "20", Ok(())),
        ("ipv6/ip6frag_high_thresh", "9000000", Ok(())),
        ("ipv6/ip6frag_low_thresh", "8000000", Ok(())),
        ("core/xfrm_acq_expires", "165", Ok(())),
    ]);
    let (old, same) = (settings(""), settings("[[link]]\nname = \"x\"\nkind = \"tun\"\n"));
    assert_eq!(reloaded(set, &old, &same), set);
    let new = settings("[reassembly]\npolicy = \"linux\"\nip6frag_high_thresh = 7000000\n[ipsec]\nacq-expires = 9\n");
    let mut want = set;
    want.reassembly.policy = config::model::Eviction::Linux;
    (want.reassembly.v6.high_thresh, want.reassembly.v6.low_thresh) = (7_000_000, 7_000_000);
    want.xfrm.acq_expires = 9;
    assert_eq!(reloaded(set, &old, &new), want);
    assert_eq!(reloaded(want, &new, &old).xfrm.acq_expires, 30);
}

#[test]
fn settings_of_programs_are_saved_and_restored() {
    let settings = |keys: &str| Settings::of(&Config::from_toml(keys, "f").unwrap());
    let (usual, file) = (Settings::default(), settings("[reassembly]\nipfrag_time = 9\n"));
    assert_eq!(saved(&usual, &usual).count() + saved(&file, &file).count(), 0);
    // Only one order of the two thresholds is valid.
    for (low, high) in [("8000000", "9000000"), ("10", "20")] {
        let mut set = file;
        for (setting, text) in [
            (Setting::LowThresh(settings::Family::V4), "0"),
            (Setting::HighThresh(settings::Family::V4), high),
            (Setting::LowThresh(settings::Family::V4), low),
            (Setting::Time(settings::Family::V4), "7"),
            (Setting::LarvalDrop, "0"),
        ] {
            assert_eq!(setting.write(&mut set, text.as_bytes()), Ok(()));
        }
        let of_programs: Vec<_> = saved(&set, &file).collect();
        let names: Vec<_> = of_programs.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["core/xfrm_larval_drop", "ipv4/ipfrag_high_thresh", "ipv4/ipfrag_low_thresh"]);
        let each = || of_programs.iter().map(|(name, text)| (*name, &**text));
        let want = Settings {
            reassembly: config::model::ReassemblyConfig {
                v4: config::model::FragLimits { timeout_secs: 9, ..set.reassembly.v4 },
                ..set.reassembly
            },
            ..set
        };
        assert_eq!(restored(file, each()), Ok((want, [3, 0])));
        let other = settings("[ipsec]\nacq-expires = 7\nlarval-drop = false\n");
        assert_eq!(restored(other, each()).map(|(now, count)| (now.xfrm, count)), Ok((other.xfrm, [2, 1])));
    }
    let bad = |name, text| restored(usual, [(name, text)].into_iter()).map(|_| ());
    assert_eq!(bad("ipv4/ipfrag_time", "x"), Err(("ipv4/ipfrag_time", errno::EINVAL)));
    assert_eq!(bad("core/xfrm_acq_expires", "0"), Err(("core/xfrm_acq_expires", errno::EOPNOTSUPP)));
    assert_eq!(bad("ipv4/ip_forward", "1"), Err(("ipv4/ip_forward", errno::ENOENT)));
}

#[test]
fn unknown_file_is_not_found() {
    let model = model(1500);
    for name in
        ["ipv4/tcp_rmem", "ipv4/conf/eth1/forwarding", "ipv4/conf/eth0", "ipv4/neigh/all", "x", "/", "ipv4/", "//"]
    {
        let is_there = matches!(find(name, &model), Some(Found::Dir));
        assert_eq!(
            (find(name, &model).is_some(), is_there),
            (name == "ipv4/conf/eth0", name == "ipv4/conf/eth0"),
            "{name}"
        );
    }
    for under in ["ipv4/ip_forward/x", "ipv6/conf/all/mtu", "ipv4/neigh/eth0/gc_thresh3", "core/xfrm_aevent"] {
        assert!(find(under, &model).is_none(), "{under}");
    }
    assert_eq!(find("", &model).map(Found::mode), Some(0o40555));
    assert_eq!(find("ipv4/ip_forward", &model).map(Found::mode), Some(0o100_644));
    assert_eq!(file("ipv4/route/flush").read(&Settings::default()), Err(errno::EACCES));
    assert_eq!(find("ipv4/conf/all/mc_forwarding", &model).map(Found::mode), Some(0o100_444));
}

#[test]
fn listed_files_are_found_and_found_files_listed() {
    let model = model(1500);
    let names = |dir: &str| {
        let all = list(dir, "", usize::MAX, &model).unwrap();
        // Listing one name at a time gives the same names.
        let (mut one, mut last) = (Vec::new(), String::new());
        while let Some(next) = list(dir, &last, 1, &model).unwrap().pop() {
            last.clone_from(&next.0);
            one.push(next);
        }
        assert_eq!(all, one, "{dir}");
        all
    };
    assert_eq!(names(""), ["core", "fatpath", "ipv4", "ipv6", "vrf"].map(|name| (name.to_owned(), true)));
    let conf: Vec<_> = names("ipv6/conf").into_iter().map(|(name, _)| name).collect();
    assert_eq!(conf, ["all", "default", "eth0", "lo"]);
    let mut dirs = vec![String::new()];
    let mut files = 0;
    while let Some(dir) = dirs.pop() {
        for (name, is_dir) in names(&dir) {
            let path = format!("{dir}/{name}");
            let path = path.trim_start_matches('/').to_owned();
            match find(&path, &model) {
                Some(Found::Dir) if is_dir => dirs.push(path),
                Some(Found::File(_)) if !is_dir => files += 1,
                other => panic!("{path}: {other:?}"),
            }
        }
    }
    let each = |entry: &Entry| match entry.name.split('/').find(|part| part.starts_with('{')) {
        Some(CONF) => 4,
        Some(NEIGH) => 3,
        Some(LINK) => 2,
        _ => 1,
    };
    assert_eq!(files, ENTRIES.iter().map(each).sum::<usize>());
    assert!(list("ipv4/ip_forward", "", 1, &model).is_none() && list("ipv4/x", "", 1, &model).is_none());
}
