//! Bar charts of throughput, as SVG, from the JSON of `fatpath demo` and `fatpath bench`.
//!
//! # Decides
//! Order, lengths and words of the bars, and colours for light and dark pages. A chart has no size of its own in pixels but a view box.
//!
//! # Leaves to others
//! Measurements and their JSON (crate `bench`), files and standard streams (`fatpath plot`), and pages (crate `see`).
//!
//! # Limits
//! 16 MiB of JSON ([`MAX_LEN`]), and 32 bars (`MAX_BARS`).
//!
//! # Standards
//! SVG 1.1. No RFC.
#![forbid(unsafe_code)]

use std::fmt::Write as _;

use serde::Deserialize;

/// Maximum length of the JSON in bytes, for readers of files.
pub const MAX_LEN: u64 = 16 << 20;
/// Maximum number of bars.
const MAX_BARS: usize = 32;

/// Width of the chart, of the texts left of the bars, and of the longest bar, in units of the view box.
const WIDTH: f64 = 780.0;
const LEFT: f64 = 290.0;
const LONGEST: f64 = 400.0;
/// Height of the heading, and of a bar with its gap.
const TOP: f64 = 44.0;
const ROW: f64 = 30.0;
const BAR: f64 = 20.0;

/// Result of a demo or a benchmark.
#[derive(Debug, Deserialize)]
struct Input {
    bench: String,
    rounds: u32,
    cases: Vec<InputCase>,
}

/// One case of it.
#[derive(Debug, Deserialize)]
struct InputCase {
    name: String,
    gbps: f64,
}

/// Chart of a result.
#[derive(Clone, Debug)]
pub struct Chart {
    title: String,
    /// Highest first.
    bars: Vec<Bar>,
}

/// Bar of a case.
#[derive(Clone, Debug)]
struct Bar {
    words: String,
    gbps: f64,
    /// Whether the case is of fat packets.
    is_fat: bool,
}

impl Chart {
    /// Chart of a result's JSON. Without a title it has one of its own.
    ///
    /// # Errors
    /// The text is no result, or there is nothing to draw.
    pub fn of_json(text: &str, title: Option<&str>) -> Result<Self, String> {
        let input: Input =
            serde_json::from_str(text).map_err(|err| format!("not the output of `fatpath demo --json`: {err}"))?;
        Self::new(&input, title)
    }

    fn new(input: &Input, title: Option<&str>) -> Result<Self, String> {
        let cases = input.cases.iter().filter(|case| case.gbps.is_finite() && case.gbps > 0.0);
        let bar = |case: &InputCase| {
            let (words, is_fat) = label(&case.name);
            Bar { words, gbps: case.gbps, is_fat }
        };
        let mut bars: Vec<Bar> = cases.map(bar).collect();
        bars.sort_by(|a, b| b.gbps.total_cmp(&a.gbps));
        match bars.len() {
            0 => return Err("it has no case with throughput".to_owned()),
            count if count > MAX_BARS => return Err(format!("{count} cases: a chart has at most {MAX_BARS}")),
            _ => {}
        }
        let default = match input.bench.as_str() {
            "demo" => "One TCP stream through a tunnel, Gb/s",
            _ => "Gb/s",
        };
        let title = format!("{} (median of {})", title.unwrap_or(default), input.rounds);
        Ok(Self { title, bars })
    }

    /// The chart as SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let most = self.bars.first().map_or(1.0, |bar| bar.gbps);
        let height = TOP + ROW * self.bars.len() as f64 + 8.0;
        let mut svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="14">
<style>
text {{ fill: #1f2328 }} .bar {{ fill: #8c959f }} .fat {{ fill: #0969da }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .bar {{ fill: #6e7681 }} .fat {{ fill: #4493f8 }} }}
</style>
<text x="8" y="24" font-size="16" font-weight="bold">{title}</text>
"#,
            title = escaped(&self.title),
        );
        for (row, bar) in self.bars.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            let width = (bar.gbps / most * LONGEST).max(1.0);
            let (base, end) = (y + BAR - 5.0, LEFT + width + 6.0);
            let class = if bar.is_fat { "fat" } else { "bar" };
            let (left, value) = (LEFT - 8.0, figure(bar.gbps));
            // Writing to a String does not fail.
            let _ = writeln!(
                svg,
                r#"<text x="{left}" y="{base}" text-anchor="end">{words}</text><rect class="{class}" x="{LEFT}" y="{y}" width="{width:.1}" height="{BAR}"/><text x="{end:.1}" y="{base}">{value}</text>"#,
                words = escaped(&bar.words),
            );
        }
        svg += "</svg>\n";
        svg
    }

    /// The chart in words, for readers that see no picture.
    #[must_use]
    pub fn text(&self) -> String {
        let bars: Vec<String> = self.bars.iter().map(|bar| format!("{}: {}", bar.words, figure(bar.gbps))).collect();
        format!("{}. {}", self.title, bars.join("; "))
    }
}

/// Words for a case on the chart, and whether it is of fat packets.
fn label(name: &str) -> (String, bool) {
    match name {
        "veth" => ("the wire, no encryption".to_owned(), false),
        "kernel-esp" => ("Linux's own ESP".to_owned(), false),
        _ => match name.rsplit_once('/') {
            Some((cipher, "fat")) => (format!("fatpath, {cipher}"), true),
            Some((cipher, "thin")) => (format!("the same, packet by packet, {cipher}"), false),
            _ => (name.to_owned(), false),
        },
    }
}

/// Formats a figure with three digits.
fn figure(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Text with the characters of XML replaced.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => {}
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(cases: &[(&str, f64)], title: Option<&str>) -> Result<Chart, String> {
        let cases = cases.iter().map(|&(name, gbps)| InputCase { name: name.to_owned(), gbps }).collect();
        Chart::new(&Input { bench: "demo".to_owned(), rounds: 5, cases }, title)
    }

    #[test]
    fn bars_are_sorted_and_proportional_to_the_longest() {
        let chart = chart(&[("aes-gcm-256/thin", 1.34), ("veth", 40.0), ("aes-gcm-256/fat", 10.0)], None).unwrap();
        let svg = chart.svg();
        let places = ["the wire", "fatpath, aes-gcm-256", "packet by packet"].map(|text| svg.find(text).unwrap());
        assert!(places.is_sorted(), "{svg}");
        for text in ["width=\"400.0\"", "width=\"100.0\"", ">10.0</text>", ">1.34</text>", "(median of 5)"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("class=\"fat\"").count(), 1);
        let words = "One TCP stream through a tunnel, Gb/s (median of 5). the wire, no encryption: 40.0; fatpath, aes-gcm-256: 10.0; \
                     the same, packet by packet, aes-gcm-256: 1.34";
        assert_eq!(chart.text(), words);
    }

    #[test]
    fn names_are_text_and_nothing_to_draw_is_an_error() {
        let svg = chart(&[("<script>&", 1.0)], Some("a < b")).unwrap().svg();
        assert!(svg.contains("&lt;script&gt;&amp;") && svg.contains("a &lt; b") && !svg.contains("<script"), "{svg}");
        assert!(chart(&[], None).is_err());
        assert!(chart(&[("x", f64::NAN), ("y", 0.0)], None).is_err());
        assert!(chart(&vec![("x", 1.0); 33], None).is_err());
        assert!(Chart::of_json("{}", None).unwrap_err().contains("not the output of `fatpath demo --json`"));
    }
}
