//! Families of metrics, and their text: the classic format of Prometheus (0.0.4), or OpenMetrics 1.0.0.
//!
//! The formats differ in the name of a counter's family, in the word for a type without one, in the escaping of a help text, and in the
//! last line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Type of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Value that falls only when its gateway starts; its samples' names end in `_total`.
    Counter,
    /// Value that rises and falls.
    Gauge,
    /// Value under a name of another project, which says no type.
    Unknown,
}

/// Value of a sample.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Value {
    /// Number.
    Integer(u64),
    /// Seconds, given in nanoseconds.
    Nanos(u64),
    /// Seconds, given in milliseconds.
    Millis(u64),
}

/// Labels of a sample: name and value.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// Metrics of one name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Family {
    /// Name, of a counter without `_total`.
    pub(crate) name: String,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) samples: BTreeMap<Labels, Value>,
}

/// Text format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    /// Format 0.0.4 of Prometheus, which node_exporter's text files have.
    Classic,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Format for the value of a request's `Accept`: OpenMetrics where it is named and not refused.
    pub(crate) fn accepted(accept: &str) -> Self {
        let is_asked = accept.split(',').any(|choice| {
            let mut parts = choice.split(';').map(str::trim);
            let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("application/openmetrics-text"));
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
            is_named && weight.is_ok_and(|weight| weight > 0.0)
        });
        if is_asked { Self::OpenMetrics } else { Self::Classic }
    }

    /// Value of `Content-Type`.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Text of all families that have a sample.
    pub(crate) fn text(self, families: &[Family]) -> String {
        let mut text = String::new();
        for family in families.iter().filter(|family| !family.samples.is_empty()) {
            self.write(family, &mut text);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn write(self, family: &Family, text: &mut String) {
        let Family { name, help, kind, samples } = family;
        let end = if *kind == Kind::Counter { "_total" } else { "" };
        let own_end = if self == Self::Classic { end } else { "" };
        let kind = match (kind, self) {
            (Kind::Counter, _) => "counter",
            (Kind::Gauge, _) => "gauge",
            (Kind::Unknown, Self::Classic) => "untyped",
            (Kind::Unknown, Self::OpenMetrics) => "unknown",
        };
        let help = match self {
            Self::Classic => escaped(help, &[('\\', "\\\\"), ('\n', "\\n")]),
            Self::OpenMetrics => escaped(help, LABEL_ESCAPES),
        };
        // Writing to a string does not fail.
        let _ = write!(text, "# HELP {name}{own_end} {help}\n# TYPE {name}{own_end} {kind}\n");
        for (labels, value) in samples {
            let _ = write!(text, "{name}{end}");
            for (at, (label, value)) in labels.iter().enumerate() {
                let before = if at == 0 { '{' } else { ',' };
                let _ = write!(text, "{before}{label}=\"{}\"", escaped(value, LABEL_ESCAPES));
            }
            text.push_str(if labels.is_empty() { " " } else { "} " });
            let _ = match value {
                Value::Integer(number) => writeln!(text, "{number}"),
                Value::Nanos(nanos) => writeln!(text, "{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000),
                Value::Millis(millis) => writeln!(text, "{}.{:03}", millis / 1000, millis % 1000),
            };
        }
    }
}

/// Escapes of a label's value.
const LABEL_ESCAPES: &[(char, &str)] = &[('\\', "\\\\"), ('\n', "\\n"), ('"', "\\\"")];

fn escaped(text: &str, escapes: &[(char, &str)]) -> String {
    let mut to = String::with_capacity(text.len());
    for found in text.chars() {
        match escapes.iter().find(|(from, _)| *from == found) {
            Some((_, escape)) => to.push_str(escape),
            None => to.push(found),
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let family = |name: &str, help, kind, samples: &[(&[(&'static str, &str)], Value)]| {
            let labels = |labels: &[(&'static str, &str)]| {
                labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
            };
            let samples = samples.iter().map(|(of, value)| (labels(of), *value)).collect();
            Family { name: name.to_owned(), help, kind, samples }
        };
        vec![
            family(
                "x_bytes",
                "Bytes \"in\" C:\\.",
                Kind::Counter,
                &[
                    (&[("link", "a\"b\\c\nd"), ("reason", "é")], Value::Integer(u64::MAX)),
                    (&[("link", ""), ("reason", "y")], Value::Integer(0)),
                ],
            ),
            family("x_up", "Up.", Kind::Gauge, &[(&[], Value::Millis(1_500))]),
            family("x_none", "None.", Kind::Gauge, &[]),
            family("x_Ip_In", "In.", Kind::Unknown, &[(&[], Value::Nanos(1_000_000_001))]),
        ]
    }

    #[test]
    fn classic_text_has_the_counters_whole_name() {
        let want = "# HELP x_bytes_total Bytes \"in\" C:\\\\.\n# TYPE x_bytes_total counter\n\
                    x_bytes_total{link=\"\",reason=\"y\"} 0\n\
                    x_bytes_total{link=\"a\\\"b\\\\c\\nd\",reason=\"é\"} 18446744073709551615\n\
                    # HELP x_up Up.\n# TYPE x_up gauge\nx_up 1.500\n\
                    # HELP x_Ip_In In.\n# TYPE x_Ip_In untyped\nx_Ip_In 1.000000001\n";
        assert_eq!(Format::Classic.text(&families()), want);
    }

    #[test]
    fn open_metrics_text_has_the_familys_name_and_an_end() {
        let want = "# HELP x_bytes Bytes \\\"in\\\" C:\\\\.\n# TYPE x_bytes counter\n\
                    x_bytes_total{link=\"\",reason=\"y\"} 0\n\
                    x_bytes_total{link=\"a\\\"b\\\\c\\nd\",reason=\"é\"} 18446744073709551615\n\
                    # HELP x_up Up.\n# TYPE x_up gauge\nx_up 1.500\n\
                    # HELP x_Ip_In In.\n# TYPE x_Ip_In unknown\nx_Ip_In 1.000000001\n# EOF\n";
        assert_eq!(Format::OpenMetrics.text(&families()), want);
    }

    #[test]
    fn samples_are_the_same_in_both_formats() {
        let samples = |format: Format| {
            let text = format.text(&families());
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(samples(Format::Classic), samples(Format::OpenMetrics));
        assert_eq!(samples(Format::Classic).len(), 4);
    }

    #[test]
    fn open_metrics_is_chosen_where_accept_names_it() {
        const OF_PROMETHEUS: &str = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                                     text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, want) in [
            ("", Format::Classic),
            ("*/*", Format::Classic),
            ("text/plain;version=0.0.4", Format::Classic),
            ("application/openmetrics-text;q=0, text/plain", Format::Classic),
            ("application/openmetrics-text;q=x", Format::Classic),
            ("text/html, Application/OpenMetrics-Text; version=1.0.0", Format::OpenMetrics),
            (OF_PROMETHEUS, Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(accept), want, "{accept}");
        }
    }
}
