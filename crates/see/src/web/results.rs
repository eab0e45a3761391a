//! Charts of results of `fatpath demo --json` and `fatpath bench --json`. Files are read when a page asks for them.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use hyper::{Response, StatusCode};
use plot::{Chart, MAX_LEN};
use serde_json::json;

use super::watch::one_line;
use crate::http::{Body, of_type, text};

/// Policy for a chart: an image with a style of its own.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// Number of the result in the path of its chart.
pub(super) fn place(path: &str) -> Option<usize> {
    path.strip_prefix("/results/")?.strip_suffix(".svg")?.parse().ok()
}

/// Reply with the names of the results, and the words of their charts or what is wrong with them.
pub(super) async fn list(files: Vec<PathBuf>) -> Response<Body> {
    let read = move || {
        let row = |file: &PathBuf| {
            let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            match chart_of(file) {
                Ok(chart) => json!({ "name": name, "text": chart.text() }),
                Err(why) => json!({ "name": name, "error": one_line(&why) }),
            }
        };
        files.iter().map(row).collect::<Vec<_>>()
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(rows) => of_type(StatusCode::OK, serde_json::Value::from(rows).to_string(), "application/json"),
        Err(err) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{err}\n")),
    }
}

/// Reply with a chart.
pub(super) async fn chart(file: PathBuf) -> Response<Body> {
    match tokio::task::spawn_blocking(move || chart_of(&file)).await {
        Ok(Ok(chart)) => {
            let mut response = of_type(StatusCode::OK, chart.svg(), "image/svg+xml");
            response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
            response
        }
        Ok(Err(why)) => text(StatusCode::NOT_FOUND, &format!("{}\n", one_line(&why))),
        Err(err) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{err}\n")),
    }
}

fn chart_of(file: &Path) -> Result<Chart, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_LEN).read_to_string(&mut text));
    read.map_err(|err| err.to_string())?;
    Chart::of_json(&text, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_a_chart_is_its_number() {
        assert_eq!(place("/results/12.svg"), Some(12));
        for path in ["/results/", "/results/-1.svg", "/results/../x.svg", "/results/1", "/1.svg", "/results/1.svg/"] {
            assert_eq!(place(path), None, "{path}");
        }
    }
}
