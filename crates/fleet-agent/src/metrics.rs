//! Metrics of an agent, in the classic text format of Prometheus (0.0.4), which node_exporter's textfile collector reads.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fleet::{Hold, Refusal};

use crate::control::ReportText;

/// Mode of the file, whatever the umask is: node_exporter is another user.
const MODE: u32 = 0o644;

/// Text of the metrics of the agent of `instance`; without a report the agent does not answer.
pub(crate) fn text(instance: &str, report: Option<&ReportText>) -> String {
    let mut text = Text { gateway: instance, text: String::new() };
    text.one("up", "1 if the agent answers.", u64::from(report.is_some()));
    let Some(report) = report else { return text.text };
    text.one("gateway_connected", "1 if the agent has its gateway.", u64::from(report.gateway));
    text.one("store_connected", "1 if a member of etcd answers.", u64::from(report.member.is_some()));
    if let Some(ms) = report.answer_age_ms {
        let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
        text.one("store_answer_age_seconds", "Time since the last answer of etcd.", seconds);
    }
    text.one("revision", "Highest revision of etcd that the agent has seen.", report.revision);
    if let Some(behind) = report.behind {
        text.one("behind_revisions", "Revisions of etcd that the agent has not seen.", behind);
    }
    text.one("nodes", "Known nodes.", report.nodes as u64);
    text.one("tasks", "Known tasks.", report.tasks as u64);
    text.one("networks", "Known networks of VRFs.", report.networks as u64);
    text.one("missing_vrfs", "VRFs with networks that the gateway does not have.", report.missing_vrfs.len() as u64);
    text.one("mappings", "Mappings in the gateway.", report.mappings as u64);
    text.one("routes", "Routes in the gateway.", report.routes as u64);
    text.one("withdrawals_waiting", "Withdrawals that wait.", report.withdrawals as u64);
    let holds = Hold::ALL.map(|hold| (hold.name(), u64::from(report.held_by.as_deref() == Some(hold.name()))));
    text.many("withdrawals_held", "1 if withdrawals are held for this reason.", &holds);
    let refusals = Refusal::ALL.map(|refusal| {
        let count = report.refused_objects.get(refusal.name()).copied().unwrap_or(0);
        (refusal.name(), count as u64)
    });
    text.many("refused_objects", "Keys of etcd that are left alone for this reason.", &refusals);
    text.one("refused_operations", "Operations that the gateway refuses.", report.refused_by_gateway as u64);
    if let Some(bytes) = report.store_bytes {
        text.one("store_size_bytes", "Size of the database of the member of etcd.", bytes);
    }
    text.one("store_quota_bytes", "Quota of that size, as the agent's file has it.", report.store_quota_bytes);
    text.text
}

struct Text<'a> {
    gateway: &'a str,
    text: String,
}

impl Text<'_> {
    fn one(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, help);
        let _ = writeln!(self.text, "fatpath_fleet_{name}{{gateway=\"{}\"}} {value}", self.gateway);
    }

    fn many(&mut self, name: &str, help: &str, values: &[(&str, u64)]) {
        self.head(name, help);
        for (reason, value) in values {
            let gateway = self.gateway;
            let _ = writeln!(self.text, "fatpath_fleet_{name}{{gateway=\"{gateway}\",reason=\"{reason}\"}} {value}");
        }
    }

    fn head(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP fatpath_fleet_{name} {help}\n# TYPE fatpath_fleet_{name} gauge");
    }
}

/// Replaces the file of an instance in `dir` as a whole: a reader has the old text or the new one.
///
/// # Errors
/// The directory does not exist, or is not writable.
pub(crate) fn write_file(dir: &Path, instance: &str, text: &str) -> io::Result<()> {
    let name = format!("fatpath-fleet-{instance}.prom");
    // The new file is never one that another user has put there.
    let new = dir.join(format!("{name}.{:016x}", RandomState::new().build_hasher().finish()));
    let mut file = File::create_new(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.set_permissions(Permissions::from_mode(MODE)));
    let replaced = written.and_then(|()| fs::rename(&new, dir.join(name)));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_help_type_and_gateway() {
        let report = ReportText {
            member: Some("http://10.0.0.1:2379".to_owned()),
            answer_age_ms: Some(1_050),
            behind: Some(7),
            store_bytes: Some(123),
            held_by: Some(Hold::Mass.name().to_owned()),
            refused_objects: [("malformed".to_owned(), 3)].into(),
            ..ReportText::default()
        };
        let text = text("left", Some(&report));
        for line in [
            "fatpath_fleet_up{gateway=\"left\"} 1",
            "fatpath_fleet_store_connected{gateway=\"left\"} 1",
            "fatpath_fleet_gateway_connected{gateway=\"left\"} 0",
            "fatpath_fleet_store_answer_age_seconds{gateway=\"left\"} 1.050",
            "fatpath_fleet_behind_revisions{gateway=\"left\"} 7",
            "fatpath_fleet_withdrawals_held{gateway=\"left\",reason=\"mass\"} 1",
            "fatpath_fleet_withdrawals_held{gateway=\"left\",reason=\"no-meta\"} 0",
            "fatpath_fleet_refused_objects{gateway=\"left\",reason=\"malformed\"} 3",
            "fatpath_fleet_refused_objects{gateway=\"left\",reason=\"overlap\"} 0",
            "fatpath_fleet_store_size_bytes{gateway=\"left\"} 123",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split('{').next().unwrap();
            assert!(text.contains(&format!("# HELP {name} ")) && text.contains(&format!("# TYPE {name} gauge\n")));
        }
        assert!(super::text("left", None).ends_with("fatpath_fleet_up{gateway=\"left\"} 0\n"));
    }

    #[test]
    fn file_is_replaced_and_nothing_else_is_left() {
        let dir = std::env::temp_dir().join(format!("fatpath-fleet-metrics-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        write_file(&dir, "left", "one\n").unwrap();
        write_file(&dir, "left", "two\n").unwrap();
        let path = dir.join("fatpath-fleet-left.prom");
        assert_eq!(fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
        assert!(write_file(&dir, "left", "").is_err());
    }
}
