//! `fatpath plot`: the chart of a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use client::{CliError, PlotArgs, print};
use plot::{Chart, MAX_LEN};

/// Draws the chart of a file, or of standard input.
///
/// # Errors
/// The file cannot be read, or is no result with throughput; the output cannot be written.
pub(crate) fn main(args: &PlotArgs) -> Result<(), CliError> {
    let name = args.file.display().to_string();
    let text = read(&args.file).map_err(|err| CliError::failed(format!("{name}: {err}")))?;
    let chart = Chart::of_json(&text, args.title.as_deref());
    let svg = chart.map_err(|why| CliError::failed(format!("{name}: {why}")))?.svg();
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
