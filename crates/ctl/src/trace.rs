//! Trace of one packet: plain values, serialised as JSON and formatted as a block of lines.

use serde::{Deserialize, Serialize};

/// Steps of one packet, in order. The steps after a wait are in another trace with the same number, if the command
/// still runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PacketTrace {
    /// Number of the packet.
    pub packet: u16,
    /// Steps.
    pub steps: Vec<TraceStep>,
}

/// Step of a packet.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TraceStep {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Stage or hook, as `input`, `hook pre-routing` or `drop`.
    pub step: String,
    /// Link or VRF of the step, if any.
    #[serde(default)]
    pub dev: Option<String>,
    /// Details, as a table and a prefix, a next hop, an SA, or the reason for a drop.
    #[serde(default)]
    pub detail: Option<String>,
    /// Addresses, ports and protocol.
    #[serde(default)]
    pub flow: Option<String>,
    /// Bytes; 0 for a packet that the ciphers have dropped, and so the values below.
    pub len: usize,
    /// Bytes in the head.
    pub head: usize,
    /// Page slots.
    pub slots: usize,
    /// Child packets.
    pub children: usize,
    /// Memory charged, in bytes.
    pub truesize: usize,
    /// Checksum state: `none`, `unnecessary`, `complete` or `partial`.
    pub csum: String,
    /// Segmentation, if the packet is a super-packet.
    #[serde(default)]
    pub gso: Option<TraceGso>,
    /// Whether the packet is a fragment.
    #[serde(default)]
    pub fragment: bool,
}

/// Segmentation of a super-packet.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TraceGso {
    /// `tcp4`, `tcp6` or `udp`.
    pub kind: String,
    /// Payload bytes of a segment.
    pub size: u16,
    /// Segments.
    pub segs: u16,
}

impl PacketTrace {
    /// Parses one line of JSON.
    ///
    /// # Errors
    /// Error of the JSON parser, if the line is no trace.
    pub fn from_line(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }

    /// Formats the trace as a block: the packet's number and flow, and a line for each step, with the seconds since the
    /// first one; if `verbose`, also with the packet's geometry.
    #[must_use]
    pub fn to_text(&self, verbose: bool) -> String {
        let flow = self.steps.iter().find_map(|step| step.flow.as_deref());
        let mut text =
            format!("packet {}{}{}\n", self.packet, if flow.is_some() { ": " } else { "" }, flow.unwrap_or_default());
        let first = self.steps.first().map_or(0.0, |step| step.time);
        for step in &self.steps {
            let words = [Some(step.step.as_str()), step.dev.as_deref(), step.detail.as_deref()];
            let words: Vec<&str> = words.into_iter().flatten().collect();
            let geometry = if verbose { step.geometry() } else { String::new() };
            let line = format!("  {:.6}  {:<48} {geometry}", step.time - first, words.join(" "));
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Serialises the trace as one line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl TraceStep {
    /// Geometry as text; empty for a packet that the ciphers have dropped.
    fn geometry(&self) -> String {
        let Self { len, head, slots, children, truesize, csum, gso, fragment, .. } = self;
        if *len == 0 {
            return String::new();
        }
        let gso =
            gso.as_ref().map_or_else(String::new, |TraceGso { kind, size, segs }| format!(" gso {kind} {segs}x{size}"));
        let fragment = if *fragment { " fragment" } else { "" };
        format!(
            "len {len} head {head} slots {slots} children {children} truesize {truesize} csum {csum}{gso}{fragment}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_reads_as_a_block_and_survives_json() {
        let step = TraceStep {
            time: 100.5,
            step: "input".to_owned(),
            dev: Some("lan".to_owned()),
            detail: None,
            flow: Some("10.1.0.1:1 > 10.2.0.1:2 tcp".to_owned()),
            len: 3052,
            head: 52,
            slots: 1,
            children: 0,
            truesize: 4096,
            csum: "partial".to_owned(),
            gso: Some(TraceGso { kind: "tcp4".to_owned(), size: 1000, segs: 3 }),
            fragment: false,
        };
        let drop = TraceStep {
            time: 100.500_25,
            step: "drop".to_owned(),
            dev: None,
            detail: Some("no-route".to_owned()),
            gso: None,
            fragment: true,
            ..step.clone()
        };
        let trace = PacketTrace { packet: 7, steps: vec![step, drop] };
        assert_eq!(PacketTrace::from_line(trace.to_line().trim_end()).unwrap(), trace);
        let text = trace.to_text(true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "packet 7: 10.1.0.1:1 > 10.2.0.1:2 tcp");
        assert!(lines[1].starts_with("  0.000000  input lan "), "{text}");
        assert!(lines[1].ends_with("len 3052 head 52 slots 1 children 0 truesize 4096 csum partial gso tcp4 3x1000"));
        assert!(lines[2].starts_with("  0.000250  drop no-route ") && lines[2].ends_with(" fragment"), "{text}");
        let brief = "packet 7: 10.1.0.1:1 > 10.2.0.1:2 tcp\n  0.000000  input lan\n  0.000250  drop no-route\n";
        assert_eq!(trace.to_text(false), brief);
    }

    #[test]
    fn json_of_a_step_has_all_fields() {
        let step = TraceStep {
            time: 1.0,
            step: "drop".to_owned(),
            dev: None,
            detail: None,
            flow: None,
            len: 0,
            head: 0,
            slots: 0,
            children: 0,
            truesize: 0,
            csum: "none".to_owned(),
            gso: None,
            fragment: false,
        };
        assert_eq!(step.geometry(), "");
        let line = PacketTrace { packet: 1, steps: vec![step] }.to_line();
        let want = r#"{"packet":1,"steps":[{"time":1.0,"step":"drop","dev":null,"detail":null,"flow":null,"len":0,"head":0,"slots":0,"children":0,"truesize":0,"csum":"none","gso":null,"fragment":false}]}"#;
        assert_eq!(line.trim_end(), want);
    }
}
