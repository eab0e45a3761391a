//! Paths that a user cannot change. An opener of root works below no directory that its gateway's user may write: a gateway that was
//! taken over would put a symbolic link there.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Symbolic links in one path at most, as in Linux (`MAXSYMLINKS`).
const MOST_LINKS: u32 = 40;

/// Bits of a mode: the directory lets its owner alone remove a file (`S_ISVTX`), and its group and others write.
const STICKY: u32 = 0o1000;
const OF_GROUP: u32 = 0o020;
const OF_OTHERS: u32 = 0o002;

/// Bits of a mode for others: they list a directory, and reach its files.
const READ: u32 = 0o004;
const SEARCH: u32 = 0o001;

/// Numbers of a user and of its group.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct UserIds {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl UserIds {
    /// Resolves the symbolic links of `path`, whose parts, and targets of links, this user cannot replace or write. In a directory with the
    /// sticky bit the user cannot replace what belongs to others.
    ///
    /// # Errors
    /// `PermissionDenied` with the part that the user can change; a part does not exist.
    pub(crate) fn beyond_reach(self, path: &Path) -> io::Result<PathBuf> {
        let parts = |path: &Path| path.components().map(|part| part.as_os_str().to_owned()).collect::<VecDeque<_>>();
        let mut left: VecDeque<OsString> = parts(&std::path::absolute(path)?);
        let (mut at, mut links) = (PathBuf::new(), 0);
        while let Some(part) = left.pop_front() {
            if matches!(Path::new(&part).components().next(), Some(Component::ParentDir)) {
                at.pop();
                continue;
            }
            let next = at.join(part);
            let found = fs::symlink_metadata(&next)?;
            self.cannot_change(&next, &found)?;
            if found.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let mut target = parts(&fs::read_link(&next)?);
                target.append(&mut left);
                left = target;
            } else {
                at = next;
            }
        }
        Ok(at)
    }

    /// Checks that this user may list the directory `path`, and reach its files.
    ///
    /// # Errors
    /// `PermissionDenied` with the directory that the user may not read; a part does not exist.
    pub(crate) fn may_list(self, path: &Path) -> io::Result<()> {
        let path = fs::canonicalize(path)?;
        for (at, takes) in path.ancestors().zip(iter::once(READ | SEARCH).chain(iter::repeat(SEARCH))) {
            let found = fs::metadata(at)?;
            let shift = match found.uid() == self.uid {
                true => 6,
                false if found.gid() == self.gid => 3,
                false => 0,
            };
            if found.mode() >> shift & takes != takes {
                let text = format!("the gateway's user {} may not read {}", self.uid, at.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
        }
        Ok(())
    }

    fn cannot_change(self, path: &Path, found: &fs::Metadata) -> io::Result<()> {
        let mode = found.mode();
        let by_group = mode & OF_GROUP != 0 && found.gid() == self.gid;
        let may_write = by_group || mode & OF_OTHERS != 0;
        let may_replace = may_write && (found.is_file() || found.is_dir() && mode & STICKY == 0);
        if found.uid() != self.uid && !may_replace {
            return Ok(());
        }
        let text = format!("the gateway's user {} may change {}", self.uid, path.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const USER: UserIds = UserIds { uid: 61_234, gid: 61_235 };

    /// A directory of its own, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("fatpath-reach-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(fs::canonicalize(path).unwrap())
        }

        fn dir(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(path: &Path) -> String {
        let refused = USER.beyond_reach(path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        refused.to_string()
    }

    #[test]
    fn path_with_links_of_others_is_resolved() {
        let dir = Dir::new("links");
        let real = dir.dir("real", 0o755);
        fs::write(real.join("file"), "").unwrap();
        symlink("real", dir.0.join("relative")).unwrap();
        symlink(real.join("file"), dir.0.join("absolute")).unwrap();
        symlink("../real/../relative/file", real.join("winding")).unwrap();
        for path in ["relative/file", "absolute", "relative/winding", "real/file", "real/../real/./file"] {
            assert_eq!(USER.beyond_reach(&dir.0.join(path)).unwrap(), real.join("file"), "{path}");
        }
        let missing = USER.beyond_reach(&real.join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        symlink("loop", dir.0.join("loop")).unwrap();
        assert_eq!(
            USER.beyond_reach(&dir.0.join("loop")).unwrap_err().raw_os_error(),
            Some(Errno::LOOP.raw_os_error())
        );
    }

    #[test]
    fn directory_that_the_user_can_write_is_refused_by_name() {
        let dir = Dir::new("dirs");
        for (name, mode, is_refused) in [
            ("own", 0o755, false),
            ("of-all", 0o777, true),
            ("sticky", 0o1777, false),
            ("of-another-group", 0o775, false),
        ] {
            let path = dir.dir(name, mode);
            fs::write(path.join("file"), "").unwrap();
            match is_refused {
                true => assert_eq!(
                    refusal(&path.join("file")),
                    format!("the gateway's user 61234 may change {}", path.display())
                ),
                false => assert_eq!(USER.beyond_reach(&path.join("file")).unwrap(), path.join("file")),
            }
        }
        // A link to what the user can change.
        symlink("of-all/file", dir.0.join("link")).unwrap();
        assert!(refusal(&dir.0.join("link")).ends_with("/of-all"));
    }

    #[test]
    fn file_that_the_user_can_write_is_refused_by_name() {
        let dir = Dir::new("files");
        let file = dir.0.join("file");
        fs::write(&file, "").unwrap();
        for (mode, is_refused) in [(0o644, false), (0o664, false), (0o666, true), (0o622, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(USER.beyond_reach(&file).is_err(), is_refused, "{mode:o}");
        }
    }

    #[test]
    fn directory_that_the_user_cannot_list_is_refused_by_name() {
        let dir = Dir::new("listed");
        let inner = dir.dir("outer/inner", 0o755);
        for (outer, own, is_refused) in [(0o711, 0o755, false), (0o755, 0o711, true), (0o700, 0o755, true)] {
            dir.dir("outer", outer);
            dir.dir("outer/inner", own);
            let found = USER.may_list(&inner);
            assert_eq!(found.is_err(), is_refused, "{outer:o} {own:o}");
            if let Err(err) = found {
                assert!(err.to_string().starts_with("the gateway's user 61234 may not read "), "{err}");
            }
        }
        assert_eq!(USER.may_list(&dir.0.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn part_that_belongs_to_the_user_is_refused_by_name() {
        let dir = Dir::new("owned");
        let sticky = dir.dir("sticky", 0o1777);
        let own = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&dir.0).unwrap());
        symlink("/etc/shadow", sticky.join("link")).unwrap();
        if own != 0 {
            // Another user than root cannot give files away.
            let user = UserIds { uid: own, gid: USER.gid };
            let refused = user.beyond_reach(&sticky.join("link")).unwrap_err().to_string();
            assert_eq!(refused, format!("the gateway's user {own} may change {}", dir.0.display()));
            return;
        }
        std::os::unix::fs::lchown(sticky.join("link"), Some(USER.uid), Some(USER.gid)).unwrap();
        assert!(refusal(&sticky.join("link")).ends_with("/sticky/link"));
        let of_group = dir.dir("of-group", 0o775);
        std::os::unix::fs::lchown(&of_group, None, Some(USER.gid)).unwrap();
        fs::write(of_group.join("file"), "").unwrap();
        assert!(refusal(&of_group.join("file")).ends_with("/of-group"));
    }
}
