//! Trace of one packet: plain values, serialised as JSON and displayed as a block of lines.

use std::fmt::{self, Display, Formatter};

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<String>,
    /// Details, as a table and a prefix, a next hop, or the reason for a drop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Addresses, ports and protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Bytes.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gso: Option<TraceGso>,
    /// Whether the packet is a fragment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
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

    /// Serialises the trace as one line of JSON.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl Display for PacketTrace {
    /// Writes a block: the packet's number and flow, and a line for each step, with the time since the first one.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let flow = self.steps.iter().find_map(|step| step.flow.as_deref());
        writeln!(f, "packet {}{}{}", self.packet, if flow.is_some() { ": " } else { "" }, flow.unwrap_or_default())?;
        let first = self.steps.first().map_or(0.0, |step| step.time);
        for step in &self.steps {
            let words = [Some(step.step.as_str()), step.dev.as_deref(), step.detail.as_deref()];
            let words: Vec<&str> = words.into_iter().flatten().collect();
            write!(f, "  {:.6}  {:<48}", step.time - first, words.join(" "))?;
            write!(f, " len {} head {} slots {} children {}", step.len, step.head, step.slots, step.children)?;
            write!(f, " truesize {} csum {}", step.truesize, step.csum)?;
            if let Some(TraceGso { kind, size, segs }) = &step.gso {
                write!(f, " gso {kind} {segs}x{size}")?;
            }
            writeln!(f, "{}", if step.fragment { " fragment" } else { "" })?;
        }
        Ok(())
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
        let text = trace.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "packet 7: 10.1.0.1:1 > 10.2.0.1:2 tcp");
        assert!(lines[1].starts_with("  0.000000  input lan "), "{text}");
        assert!(lines[1].ends_with("len 3052 head 52 slots 1 children 0 truesize 4096 csum partial gso tcp4 3x1000"));
        assert!(lines[2].starts_with("  0.000250  drop no-route ") && lines[2].ends_with(" fragment"), "{text}");
    }
}
