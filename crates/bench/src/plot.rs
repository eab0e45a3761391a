//! `fatpath plot`: a bar chart of throughput, as SVG, from the JSON of `fatpath demo` or `fatpath bench`.
//!
//! The chart has no size of its own in pixels but a view box, and colours for light and dark pages.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use client::{CliError, PlotArgs, print};
use serde::Deserialize;

/// Maximum length of the input in bytes.
const MAX_LEN: u64 = 16 << 20;
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

/// Draws the chart of a file, or of standard input.
///
/// # Errors
/// The file cannot be read, or is no result with throughput; the output cannot be written.
pub(crate) fn main(args: &PlotArgs) -> Result<(), CliError> {
    let name = args.file.display().to_string();
    let text = read(&args.file).map_err(|err| CliError::failed(format!("{name}: {err}")))?;
    let input: Input = serde_json::from_str(&text)
        .map_err(|err| CliError::failed(format!("{name}: not the output of `fatpath demo --json`: {err}")))?;
    let svg = chart(&input, args.title.as_deref()).map_err(|why| CliError::failed(format!("{name}: {why}")))?;
    match &args.output {
        Some(path) => std::fs::write(path, svg).map_err(|err| CliError::system(&path.display().to_string(), &err)),
        None => print(svg.as_bytes()),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file: Box<dyn Read> = if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    file.take(MAX_LEN).read_to_string(&mut text)?;
    Ok(text)
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

/// SVG of a result, highest bar first.
///
/// # Errors
/// There is nothing to draw.
fn chart(input: &Input, title: Option<&str>) -> Result<String, String> {
    let mut cases: Vec<&InputCase> =
        input.cases.iter().filter(|case| case.gbps.is_finite() && case.gbps > 0.0).collect();
    cases.sort_by(|a, b| b.gbps.total_cmp(&a.gbps));
    if cases.len() > MAX_BARS {
        return Err(format!("{} cases: a chart has at most {MAX_BARS}", cases.len()));
    }
    let most = cases.first().ok_or("it has no case with throughput")?.gbps;
    let height = TOP + ROW * cases.len() as f64 + 8.0;
    let default = match input.bench.as_str() {
        "demo" => "One TCP stream through a tunnel, Gb/s",
        _ => "Gb/s",
    };
    let rounds = input.rounds;
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="14">
<style>
text {{ fill: #1f2328 }} .bar {{ fill: #8c959f }} .fat {{ fill: #0969da }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .bar {{ fill: #6e7681 }} .fat {{ fill: #4493f8 }} }}
</style>
<text x="8" y="24" font-size="16" font-weight="bold">{title} (median of {rounds})</text>
"#,
        title = escaped(title.unwrap_or(default)),
    );
    for (row, case) in cases.iter().enumerate() {
        let (words, is_fat) = label(&case.name);
        let y = TOP + ROW * row as f64;
        let width = (case.gbps / most * LONGEST).max(1.0);
        let (base, end) = (y + BAR - 5.0, LEFT + width + 6.0);
        let class = if is_fat { "fat" } else { "bar" };
        let (left, value) = (LEFT - 8.0, figure(case.gbps));
        // Writing to a String does not fail.
        let _ = writeln!(
            svg,
            r#"<text x="{left}" y="{base}" text-anchor="end">{words}</text><rect class="{class}" x="{LEFT}" y="{y}" width="{width:.1}" height="{BAR}"/><text x="{end:.1}" y="{base}">{value}</text>"#,
            words = escaped(&words),
        );
    }
    svg += "</svg>\n";
    Ok(svg)
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

    fn input(cases: &[(&str, f64)]) -> Input {
        let cases = cases.iter().map(|&(name, gbps)| InputCase { name: name.to_owned(), gbps }).collect();
        Input { bench: "demo".to_owned(), rounds: 5, cases }
    }

    #[test]
    fn bars_are_sorted_and_proportional_to_the_longest() {
        let svg =
            chart(&input(&[("aes-gcm-256/thin", 1.34), ("veth", 40.0), ("aes-gcm-256/fat", 10.0)]), None).unwrap();
        let places = ["the wire", "fatpath, aes-gcm-256", "packet by packet"].map(|text| svg.find(text).unwrap());
        assert!(places.is_sorted(), "{svg}");
        for text in ["width=\"400.0\"", "width=\"100.0\"", ">10.0</text>", ">1.34</text>", "(median of 5)"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("class=\"fat\"").count(), 1);
    }

    #[test]
    fn names_are_text_and_nothing_to_draw_is_an_error() {
        let svg = chart(&input(&[("<script>&", 1.0)]), Some("a < b")).unwrap();
        assert!(svg.contains("&lt;script&gt;&amp;") && svg.contains("a &lt; b") && !svg.contains("<script"), "{svg}");
        assert!(chart(&input(&[]), None).is_err());
        assert!(chart(&input(&[("x", f64::NAN), ("y", 0.0)]), None).is_err());
        assert!(chart(&input(&vec![("x", 1.0); 33]), None).is_err());
    }
}
