use std::os::unix::fs::PermissionsExt;

use super::*;

/// Boot of the machine.
const BOOT_ID: &str = "8c2f";

/// A directory of its own, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fatpath-store-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn kept(label: &str, len: usize) -> Kept {
    Kept { label: label.to_owned(), message: Zeroizing::new((0..len).map(|at| at as u8).collect()) }
}

fn name(spi: u32) -> SaName {
    let dst = if spi.is_multiple_of(2) { "192.0.2.1" } else { "2001:db8::1" };
    SaName { dst: dst.parse().unwrap(), spi, mark: xfrm::Mark { value: spi, mask: 0xff } }
}

fn state(n: u32) -> State {
    State {
        links: (0..n).map(|number| (number + 2, format!("tun{number}"))).collect(),
        route: (0..n).map(|at| kept(&format!("route {at}"), 60)).collect(),
        sas: (0..n).map(|spi| (name(spi), kept(&format!("SA {spi}"), 400))).collect(),
        xfrm: (0..n).map(|at| kept(&format!("policy {at}"), 300)).collect(),
        ila: (0..n).map(|at| kept(&format!("ILA mapping {at}"), 60)).collect(),
        settings: (0..n).map(|at| (format!("ipv4/{at}"), at.to_string())).collect(),
        checkpoints: (0..n)
            .map(|spi| (name(spi), Checkpoint { oseq: spi.into(), seq: 7, used: [1, u64::MAX] }))
            .collect(),
    }
}

/// Error of a file, with its exit code.
fn refusal(path: &Path) -> (u8, String) {
    let err = Store::open_within(path, Duration::ZERO).and_then(|store| store.read(BOOT_ID)).unwrap_err();
    (err.exit_code, err.message)
}

#[test]
fn saved_state_is_read_back_and_replaces_the_old_one() {
    let dir = Dir::new("again");
    let path = dir.file("state");
    let store = Store::open(&path).unwrap();
    assert_eq!(store.read(BOOT_ID).unwrap().state, State::default());
    for n in [3, 500, 0, 20] {
        store.replace(&state(n), Keep::Saved, BOOT_ID, 0).unwrap();
        assert_eq!(store.read(BOOT_ID).unwrap().state, state(n));
    }
    let moved = Checkpoint { oseq: 1 << 40, seq: 9, used: [5, 6] };
    store.checkpoint([(&name(4), &moved)].into_iter()).unwrap();
    assert_eq!(
        refusal(&path),
        (1, format!("{}: in use by another gateway; name another with --state.", path.display()))
    );
    drop(store);
    let mut want = state(20);
    want.checkpoints.insert(name(4), moved);
    assert_eq!(Store::open(&path).unwrap().read(BOOT_ID).unwrap().state, want);
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, dir.names()), (0o600, vec!["state".to_owned()]));
}

#[test]
fn later_state_counts_until_the_machine_is_booted() {
    let dir = Dir::new("boot");
    let store = Store::open(&dir.file("state")).unwrap();
    let found = |boot: &str| store.read(boot).unwrap();
    assert!(!found(BOOT_ID).is_of_boot && !found("").state.links.contains_key(&2));
    store.replace(&state(3), Keep::Saved, BOOT_ID, 5).unwrap();
    assert_eq!((found(BOOT_ID).is_of_boot, found(BOOT_ID).journal, found(BOOT_ID).state), (true, 5, state(3)));
    store.replace(&state(7), Keep::Later, BOOT_ID, 6).unwrap();
    let later = found(BOOT_ID);
    assert_eq!((later.is_of_boot, later.journal, later.state), (true, 6, state(7)));
    assert_eq!(later.saved_sas.len(), 3);
    // Numbers of SAs are those of both states.
    let next = found("other");
    let want = State { checkpoints: state(7).checkpoints, ..state(3) };
    assert_eq!((next.is_of_boot, next.journal, next.state), (false, 6, want));
    store.replace(&state(4), Keep::Saved, "other", 9).unwrap();
    assert_eq!((found("other").state, found(BOOT_ID).is_of_boot), (state(4), false));
}

#[test]
fn file_made_by_many_at_once_belongs_to_one_and_keeps_its_data() {
    let dir = Dir::new("many");
    for round in 0..8 {
        let path = dir.file(&format!("state{round}"));
        let stores: Vec<_> = std::thread::scope(|scope| {
            let each: Vec<_> = (0..4).map(|_| scope.spawn(|| Store::open_within(&path, Duration::ZERO))).collect();
            each.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (had, refused): (Vec<_>, Vec<_>) = stores.into_iter().partition(Result::is_ok);
        for err in refused.into_iter().filter_map(Result::err) {
            assert_eq!(
                err.message,
                format!("{}: in use by another gateway; name another with --state.", path.display())
            );
        }
        assert_eq!(had.len(), 1);
        had[0].as_ref().unwrap().replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
        drop(had);
        assert_eq!(Store::open(&path).unwrap().read(BOOT_ID).unwrap().state, state(3));
        assert_eq!(dir.names().len(), round + 1);
    }
}

#[test]
fn file_of_a_gateway_that_is_ending_is_waited_for() {
    let dir = Dir::new("ending");
    let path = dir.file("state");
    let ending = Store::open(&path).unwrap();
    ending.replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
    let begun = Instant::now();
    let opened = std::thread::scope(|scope| {
        let next = scope.spawn(|| Store::open(&path));
        std::thread::sleep(Duration::from_millis(300));
        drop(ending);
        next.join().unwrap()
    });
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(opened.unwrap().read(BOOT_ID).unwrap().state, state(3));
}

#[test]
fn unknown_file_is_refused_with_a_remedy() {
    let dir = Dir::new("none");
    let path = dir.file("state");
    let cases: [(&[u8], &str); 3] = [
        (b"", "it is empty"),
        (b"[[link]]\nname = \"tun0\"\n", ""),
        (&[b"SQLite format 3\0".as_slice(), &[0; 8000]].concat(), ""),
    ];
    for (bytes, why) in cases {
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let (code, error) = refusal(&path);
        assert!(code == 2 && error.contains("no state that can be restored") && error.contains(why), "{error}");
        assert!(error.contains("Move the file away") && fs::read(&path).unwrap() == bytes, "{error}");
    }
    // Another program's database, and one of a future version.
    let other = dir.file("other");
    drop(Database::create(&other).unwrap());
    fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(refusal(&other), (2, error) if error.contains("fatpath")));
    let newer = dir.file("newer");
    let store = Store::open(&newer).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(FATPATH).unwrap().insert("format", FORMAT + 1).unwrap();
    write.commit().unwrap();
    drop(store);
    let wanted = "format 6, and this version supports 5";
    assert!(matches!(refusal(&newer), (2, error) if error.contains(wanted)));
    assert!(
        matches!(crate::store::check_state(&newer), Err(err) if err.exit_code == 2 && err.message.contains(wanted))
    );
}

#[test]
fn copy_of_an_open_file_is_read() {
    let dir = Dir::new("copy");
    let path = dir.file("state");
    let store = Store::open(&path).unwrap();
    store.replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(refusal(&path), (1, error) if error.contains("in use by another gateway")));
    assert_eq!(Store::open_copy(&path).unwrap().read(BOOT_ID).unwrap().state, state(3));
    crate::store::check_state(&path).unwrap();
    assert!(fs::read(&path).unwrap() == before, "the file is unchanged");
    assert!(crate::store::check_state(&dir.file("none")).is_err() && dir.names() == ["state"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(crate::store::check_state(&path).unwrap_err().message.contains("other users have access"));
}

#[test]
fn a_file_of_the_first_version_has_no_settings() {
    let dir = Dir::new("first");
    let store = Store::open(&dir.file("state")).unwrap();
    store.replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(FATPATH).unwrap().insert("format", FIRST_FORMAT).unwrap();
    write.delete_table(SAVED.settings).unwrap();
    write.delete_table(SAVED.ila).unwrap();
    write.commit().unwrap();
    drop(store);
    let store = Store::open(&dir.file("state")).unwrap();
    assert_eq!(store.read(BOOT_ID).unwrap().state, State { settings: BTreeMap::new(), ila: Vec::new(), ..state(3) });
    store.replace(&state(4), Keep::Saved, BOOT_ID, 0).unwrap();
    assert_eq!((store.read(BOOT_ID).unwrap().state, store.format().unwrap()), (state(4), FORMAT));
}

#[test]
fn file_of_fourth_version_has_the_same_tables() {
    let dir = Dir::new("fourth");
    let store = Store::open(&dir.file("state")).unwrap();
    store.replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(FATPATH).unwrap().insert("format", 4).unwrap();
    write.commit().unwrap();
    drop(store);
    let store = Store::open(&dir.file("state")).unwrap();
    assert_eq!(store.read(BOOT_ID).unwrap().state, state(3));
    store.replace(&state(4), Keep::Saved, BOOT_ID, 0).unwrap();
    assert_eq!((store.read(BOOT_ID).unwrap().state, store.format().unwrap()), (state(4), FORMAT));
}

#[test]
fn file_of_second_version_has_settings_and_no_mappings() {
    let dir = Dir::new("second");
    let store = Store::open(&dir.file("state")).unwrap();
    store.replace(&state(3), Keep::Saved, BOOT_ID, 0).unwrap();
    let write = store.database().unwrap().begin_write().unwrap();
    write.open_table(FATPATH).unwrap().insert("format", FORMAT_WITHOUT_ILA).unwrap();
    write.delete_table(SAVED.ila).unwrap();
    write.commit().unwrap();
    drop(store);
    let store = Store::open(&dir.file("state")).unwrap();
    assert_eq!(store.read(BOOT_ID).unwrap().state, State { ila: Vec::new(), ..state(3) });
    store.replace(&state(4), Keep::Saved, BOOT_ID, 0).unwrap();
    assert_eq!((store.read(BOOT_ID).unwrap().state, store.format().unwrap()), (state(4), FORMAT));
}

#[test]
fn file_with_access_for_others_is_refused() {
    let dir = Dir::new("others");
    let path = dir.file("state");
    drop(Store::open(&path).unwrap());
    for mode in [0o640, 0o604, 0o620, 0o666] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(refusal(&path), (1, error) if error.contains("other users have access")), "{mode:o}");
    }
    assert!(matches!(refusal(&dir.0), (1, _)));
    assert!(matches!(refusal(&dir.file("no/such/directory")), (1, _)));
}

/// A file of `n` entries, closed.
fn bytes_of(dir: &Dir, n: u32) -> Vec<u8> {
    let path = dir.file("whole");
    let store = Store::open(&path).unwrap();
    store.replace(&state(n), Keep::Saved, BOOT_ID, 0).unwrap();
    drop(store);
    fs::read(&path).unwrap()
}

/// Whether the file is refused with the usual error, or has its old content.
fn is_whole_or_refused(path: &Path, bytes: &[u8], n: u32) -> bool {
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    match Store::open(path).and_then(|store| store.read(BOOT_ID)) {
        Ok(read) => read.state == state(n),
        Err(err) => err.exit_code == 2 && err.message.contains("no state that can be restored"),
    }
}

#[test]
fn truncated_file_is_refused_or_whole() {
    let dir = Dir::new("cut");
    let whole = bytes_of(&dir, 200);
    let path = dir.file("cut");
    for len in (1..whole.len()).step_by(whole.len() / 61) {
        assert!(is_whole_or_refused(&path, &whole[..len], 200), "{len} of {}", whole.len());
    }
}

#[test]
fn damaged_file_is_refused_or_whole() {
    let dir = Dir::new("damaged");
    let whole = bytes_of(&dir, 200);
    let path = dir.file("damaged");
    let mut random = 1_u64;
    for _ in 0..150 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = whole.clone();
        // Half of them in the first two pages, where the database's own structure begins.
        let range = if random & 1 == 0 { 8192 } else { bytes.len() };
        let at = (random >> 20) as usize % range;
        bytes[at] ^= (random >> 8) as u8 | 1;
        assert!(is_whole_or_refused(&path, &bytes, 200), "byte {at}");
    }
}

#[test]
fn name_in_the_file_belongs_to_the_sa() {
    for spi in [0, 1, 2, u32::MAX] {
        let bytes = name(spi).to_bytes();
        assert_eq!(SaName::from_bytes(&bytes), Some(name(spi)));
        assert_eq!(SaName::from_bytes(&bytes[1..]), None);
        assert_eq!(SaName::from_bytes(&[&[5], &bytes[1..]].concat()), None);
    }
}

#[test]
fn closed_file_is_open_to_another_gateway() {
    let dir = Dir::new("closed");
    let path = dir.file("x.state");
    let mut store = Store::open(&path).unwrap();
    store.replace(&state(3), Keep::Later, BOOT_ID, 1).unwrap();
    assert!(Store::open_within(&path, Duration::ZERO).is_err());
    store.close();
    assert!(store.replace(&state(0), Keep::Later, BOOT_ID, 2).is_err(), "nothing is written any more");
    let next = Store::open_within(&path, Duration::ZERO).unwrap();
    assert_eq!(next.read(BOOT_ID).unwrap().state, state(3));
}
