//! Configuration files: TOML, and lines of `ip`. A file is accepted or refused with errors that name their lines; a file
//! with each `[[tunnel]]` replaced by the tables that it stands for is the same configuration, without the tunnels' names.

use config::Config;

/// Runs one input.
pub fn target(input: &[u8]) {
    daemon::fuzzing::check_ip_lines(input);
    let Ok(text) = std::str::from_utf8(input) else { return };
    let config = match Config::with_warnings(text, "file") {
        Ok((config, _)) => config,
        Err(findings) => {
            let errors = findings.errors();
            assert!(!errors.is_empty(), "a refusal without a reason");
            return errors.iter().for_each(|error| assert!(error.starts_with("file:"), "{error}"));
        }
    };
    if let Ok(expanded) = Config::expand_toml(text, "file", true) {
        let again = Config::from_toml(&expanded, "expanded").unwrap_or_else(|error| panic!("{error} in {}", *expanded));
        assert_eq!(again, Config { tunnels: Vec::new(), ..config });
    }
}
