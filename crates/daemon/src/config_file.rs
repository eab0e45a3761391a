//! Reads configuration files, for `run`, `check` and `load`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use client::CliError;
use config::{Config, ConfigError, Meter};
use xfrm::SaConfig;
use zeroize::Zeroizing;

use crate::budget;
use crate::confine;
use crate::files;
use crate::ip_batch::{self, IpLines};

/// Largest buffer that is allocated at first, in bytes, whatever length the system reports.
const MAX_GUESS: u64 = 1 << 20;

/// Largest file in bytes: many times the size of a file with 100 000 SAs. The limit ends a read from an endless device.
const MAX_LEN: usize = 256 << 20;

/// Content of all configuration files together.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The TOML file, if there is one and a reload can read it.
    pub(crate) file: Option<PathBuf>,
    /// Content of the TOML file.
    pub(crate) config: Config,
    /// Warnings about the TOML file.
    pub(crate) warnings: Vec<Warning>,
    /// Lines of `ip`, which run after the TOML file is applied.
    pub(crate) lines: Vec<IpLines>,
}

/// Warning about a file that is valid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Warning {
    /// File and line; empty for a number of further warnings.
    place: String,
    text: String,
}

impl Warning {
    /// The warning as a line of `fatpath check`.
    pub fn line(&self) -> String {
        match self.place.as_str() {
            "" => self.text.clone(),
            place => format!("{place}: warning: {}", self.text),
        }
    }

    fn of(finding: &ConfigError) -> Self {
        let place = format!("{}:{}", finding.file, finding.line);
        let whole = finding.to_string();
        let text = whole.strip_prefix(&place).map(|rest| rest.trim_start_matches(": ").to_owned());
        Self { place, text: text.unwrap_or(whole) }
    }
}

impl fmt::Display for Warning {
    /// Writes the warning as in the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.text)
    }
}

/// Reads and checks the TOML file at `path`, with the progress in `meter`. Its text holds keys, and is zeroed after use.
///
/// # Errors
/// Exit code 1 if the file holds `ip` lines, 2 if it cannot be read or its content is wrong.
pub fn load(path: &Path, meter: &Meter) -> Result<(Config, Vec<Warning>), CliError> {
    load_opened(path, None, meter)
}

/// As [`load`], from a file that a client has opened, if there is one.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_opened(
    path: &Path,
    opened: Option<File>,
    meter: &Meter,
) -> Result<(Config, Vec<Warning>), CliError> {
    let content = match opened {
        Some(file) => read_file(file).map_err(|err| CliError::bad_config(format!("{}: {err}", path.display())))?,
        None => read(path)?,
    };
    if ip_batch::are_in(&content.bytes) {
        return Err(CliError::failed(ip_batch::only_at_start(&path.display().to_string())));
    }
    parse(path, &content, meter)
}

/// The TOML file at `path` with each `[[tunnel]]` replaced by the tables that it stands for.
///
/// # Errors
/// As [`load`].
pub fn expand(path: &Path, with_keys: bool) -> Result<Zeroizing<String>, CliError> {
    let name = shown(path);
    let Content { bytes, .. } = read(path)?;
    if ip_batch::are_in(&bytes) {
        return Err(CliError::failed(format!("{name}: holds lines of ip, and only TOML can be expanded.")));
    }
    let expanded = Config::expand_toml(text(&name, &bytes)?, &name, with_keys);
    expanded.map_err(|errors| CliError::bad_configs(errors.errors()))
}

/// Reads and checks files, at most one of which is TOML.
///
/// # Errors
/// As [`load`]; and exit code 1 if two files are TOML.
pub(crate) fn load_all(paths: &[PathBuf]) -> Result<Sources, CliError> {
    let mut sources = Sources::default();
    let mut toml = None;
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        return Err(CliError::failed("-c - twice: standard input is one file."));
    }
    for path in paths {
        let content = read(path)?;
        if ip_batch::are_in(&content.bytes) {
            sources.lines.push(IpLines::new(shown(path), content.bytes)?);
            continue;
        }
        if let Some(first) = toml.replace(path) {
            let (first, second) = (shown(first), shown(path));
            return Err(CliError::failed(format!("{first} and {second} are TOML, both; put them into one file.")));
        }
        (sources.config, sources.warnings) = parse(path, &content, &Meter::default())?;
        // Standard input cannot be read again by a reload.
        sources.file = Some(path.clone()).filter(|path| !is_stdin(path));
    }
    Ok(sources)
}

/// Tells whether a path stands for standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Name of a file in error messages.
fn shown(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Content of a file.
#[derive(Debug)]
struct Content {
    bytes: Zeroizing<Vec<u8>>,
    /// Mode of a regular file.
    mode: Option<u32>,
}

/// Content of a file. Without a file there is no valid configuration either: exit code 2.
fn read(path: &Path) -> Result<Content, CliError> {
    let content = if is_stdin(path) {
        read_to_end(io::stdin().lock(), 0).map(|bytes| Content { bytes, mode: None })
    } else {
        files::read(path).and_then(read_file)
    };
    content.map_err(|err| {
        let is_denied = err.kind() == io::ErrorKind::PermissionDenied;
        let hint = if is_denied { confine::read_hint(path) } else { String::new() };
        CliError::bad_config(format!("{}: {err}{hint}", shown(path)))
    })
}

fn read_file(file: File) -> io::Result<Content> {
    let metadata = file.metadata()?;
    let size = metadata.len();
    let mode = metadata.is_file().then(|| metadata.permissions().mode());
    budget::admit_file(size.min(MAX_LEN as u64)).map_err(|why| io::Error::new(io::ErrorKind::OutOfMemory, why))?;
    Ok(Content { bytes: read_to_end(file, size)?, mode })
}

/// Content of a file of `size` bytes, with room for another byte; leaves no other copy of the content in memory.
fn read_to_end(mut file: impl Read, size: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let size = size.min(MAX_GUESS);
    let mut bytes = Zeroizing::new(vec![0; size as usize + 1]);
    let mut len = 0;
    loop {
        if len == bytes.len() {
            let mut larger = Zeroizing::new(vec![0; 2 * len]);
            larger[..len].copy_from_slice(&bytes);
            bytes = larger;
        }
        if len > MAX_LEN {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 256 MiB, and no configuration"));
        }
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn text<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, CliError> {
    std::str::from_utf8(bytes).map_err(|err| {
        let line = 1 + bytes[..err.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        CliError::bad_config(format!("{name}:{line}: not UTF-8 text; use a TOML file."))
    })
}

fn parse(path: &Path, Content { bytes, mode }: &Content, meter: &Meter) -> Result<(Config, Vec<Warning>), CliError> {
    let name = shown(path);
    if let Some((line, format)) = other_format(bytes) {
        return Err(CliError::bad_config(format!("{name}:{line}: this is {format}, not TOML.")));
    }
    let outcome = Config::metered(text(&name, bytes)?, &name, meter);
    let (config, found) = outcome.map_err(|errors| CliError::bad_configs(errors.errors()))?;
    let mut warnings: Vec<Warning> = others_can_read(path, *mode, &config).into_iter().collect();
    warnings.extend(found.first.iter().map(Warning::of));
    if found.more > 0 {
        warnings.push(Warning { place: String::new(), text: format!("… and {} more warnings", found.more) });
    }
    Ok((config, warnings))
}

/// Warning about a regular file with keys that other users can read.
fn others_can_read(path: &Path, mode: Option<u32>, config: &Config) -> Option<Warning> {
    let has_key = |sa: &SaConfig| !sa.algorithm.is_null();
    let mode = mode? & 0o777;
    let text = format!("its mode {mode:04o} lets other users at its keys; use chmod 600.");
    let is_open = mode & 0o077 != 0 && config.sas.iter().any(has_key);
    is_open.then(|| Warning { place: path.display().to_string(), text })
}

/// Format of a text that is another one than TOML, by its first line that is neither blank nor a comment, with the number of that line.
fn other_format(bytes: &[u8]) -> Option<(usize, &'static str)> {
    let lines = bytes.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).zip(1..);
    let (first, number) = lines.into_iter().find(|(line, _)| !matches!(line.first(), None | Some(b'#')))?;
    let key = first.split(|&byte| byte == b':').next().unwrap_or_default();
    let rest = first.get(key.len()..).unwrap_or_default();
    let is_word = !key.is_empty() && key.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
    let is_yaml = first == b"---" || first.starts_with(b"- ") || is_word && (rest == b":" || rest.starts_with(b": "));
    match first.first() {
        Some(b'{') => Some((number, "JSON")),
        Some(b'<') => Some((number, "XML")),
        _ => is_yaml.then_some((number, "YAML")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_keys_for_one_user_alone_has_no_warning() {
        let path = std::env::temp_dir().join(format!("fatpath-warnings-{}", std::process::id()));
        let sa = "[[sa]]\nsrc = \"192.0.2.1\"\ndst = \"192.0.2.2\"\nspi = 1\ndir = \"in\"\n";
        let key = "enc = { name = \"cbc(aes)\", key = \"0123456789abcdef\" }\n";
        let none = "enc = \"ecb(cipher_null)\"\n";
        let name = path.display();
        let policy = "[[policy]]\ndir = \"in\"\nsrc = \"10.0.0.0/8\"\n";
        let clear = "it has no tmpl, so its packets pass in clear; add tmpl, or action = \"block\".";
        let cases = [
            (format!("{sa}{key}"), 0o600, vec![]),
            (
                format!("{sa}{key}"),
                0o640,
                vec![format!("{name}: warning: its mode 0640 lets other users at its keys; use chmod 600.")],
            ),
            (format!("{sa}{none}"), 0o644, vec![]),
            (format!("{sa}{none}{policy}"), 0o644, vec![format!("{name}:7: warning: policy[0]: {clear}")]),
        ];
        for (text, mode, want) in cases {
            std::fs::write(&path, &text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let (_, warnings) = load(&path, &Meter::default()).unwrap();
            assert_eq!(warnings.iter().map(Warning::line).collect::<Vec<_>>(), want, "{text}");
            assert!(warnings.iter().all(|warning| !warning.to_string().contains("warning: ")));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn other_formats_are_named_and_toml_is_not_refused() {
        for (text, want) in [
            ("# x\n\nlink:\n  - name: wan\n", Some((3, "YAML"))),
            ("---\nlink:\n", Some((1, "YAML"))),
            ("- name: wan\n", Some((1, "YAML"))),
            ("{ \"link\": [] }", Some((1, "JSON"))),
            ("<node/>", Some((1, "XML"))),
            ("[[link]]\n", None),
            ("policy-default = \"a: b\"\n", None),
            ("\"a:\" = 1\n", None),
            ("", None),
        ] {
            assert_eq!(other_format(text.as_bytes()), want, "{text}");
        }
    }
}
