//! Debian's Chromium without a window, in a namespace, by its driver's HTTP.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use system::{Need, Netns, Outcome, Process, Scratch, run, unpacked, wait_until};

use super::served::PATIENCE;

pub(super) const CHROMIUM: Need = Need::Unpacked { path: "usr/lib/chromium/chromium", package: "chromium" };
pub(super) const DRIVER: Need = Need::Unpacked { path: "usr/bin/chromedriver", package: "chromium-driver" };

/// Address of the driver.
const LISTEN: &str = "127.0.0.1:9515";

/// Key of an element's id (WebDriver §11.3).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Directory for pictures of the page, which the documentation shows.
const PICTURES: &str = "FATPATH_SCREENSHOTS";

/// A browser with one page, which ends when dropped.
pub(super) struct Browser<'a> {
    host: &'a Netns,
    scratch: &'a Scratch,
    /// URL of the session.
    session: String,
    driver: Process,
}

impl<'a> Browser<'a> {
    pub(super) fn start(host: &'a Netns, scratch: &'a Scratch) -> Outcome<Self> {
        let home = scratch.file("browser");
        fs::create_dir_all(&home)?;
        let fonts = home.join("fonts.conf");
        // One font, wherever the test runs.
        fs::write(
            &fonts,
            format!(
                "<fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>",
                unpacked("usr/share/fonts/truetype/dejavu").display(),
                home.display()
            ),
        )?;
        let libraries = unpacked("usr/lib/x86_64-linux-gnu");
        let chromium = unpacked("usr/lib/chromium");
        let libraries = [libraries.clone(), libraries.join("pulseaudio"), chromium.clone()];
        let mut command = host.command(unpacked("usr/bin/chromedriver"));
        command.arg("--port=9515").env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
        command
            .env("FONTCONFIG_FILE", &fonts)
            .env("HOME", &home)
            .env("TMPDIR", &home)
            .env("TZ", "UTC")
            .env("LANG", "C");
        command.env_remove("DISPLAY").env_remove("DBUS_SESSION_BUS_ADDRESS");
        let driver = Process::spawn(&mut command, scratch)?;
        let base = format!("http://{LISTEN}");
        let mut browser = Self { host, scratch, session: base.clone(), driver };
        wait_until("the driver answers", PATIENCE, || browser.get("/status").is_ok())?;
        let options = json!({
            "binary": chromium.join("chromium"),
            "args": ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                     "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1120,900"],
        });
        let wanted = json!({
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let made = browser.post("/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        let made = made.map_err(|err| format!("{}: {}", err.message().unwrap_or_default(), browser.driver.output()))?;
        browser.session = format!("{base}/session/{}", made["sessionId"].as_str().ok_or("no session")?);
        Ok(browser)
    }

    fn curl(&self, words: &[&str], path: &str) -> Outcome<Value> {
        let mut command = self.host.command("curl");
        command.args(["--silent", "--show-error", "--max-time", "60"]).args(words);
        let answer: Value = serde_json::from_str(&run(command.arg(format!("{}{path}", self.session)))?)?;
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{path}: {error}: {}", answer["value"]["message"]).into()),
            None => Ok(answer["value"].clone()),
        }
    }

    fn get(&self, path: &str) -> Outcome<Value> {
        self.curl(&[], path)
    }

    fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.curl(&["--header", "content-type: application/json", "--data-raw", &body.to_string()], path)
    }

    /// Opens a page.
    pub(super) fn open(&self, url: &str) -> Outcome {
        self.post("/url", &json!({ "url": url })).map(drop)
    }

    /// Value that a function's body returns in the page.
    pub(super) fn script(&self, body: &str) -> Outcome<Value> {
        self.post("/execute/sync", &json!({ "script": body, "args": [] }))
    }

    /// Waits until a function's body returns what is true.
    pub(super) fn wait_for(&self, what: &str, limit: Duration, body: &str) -> Outcome {
        let mut last = String::new();
        let is_true = || match self.script(body) {
            Ok(value) => value == true,
            Err(err) => {
                last = err.message().unwrap_or_default().to_owned();
                false
            }
        };
        let waited = wait_until(what, limit, is_true);
        let shown = || self.script("return document.body.innerText").unwrap_or_default();
        waited.map_err(|err| format!("{} ({last}): {}", err.message().unwrap_or_default(), shown()).into())
    }

    /// Text of an element.
    pub(super) fn text(&self, selector: &str) -> Outcome<String> {
        let text = self.script(&format!("return document.querySelector({}).textContent", json!(selector)))?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    fn element(&self, selector: &str) -> Outcome<String> {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }))?;
        Ok(found[ELEMENT].as_str().ok_or(format!("no {selector}"))?.to_owned())
    }

    /// Clicks on an element, as a user does.
    pub(super) fn click(&self, selector: &str) -> Outcome {
        let element = self.element(selector)?;
        self.post(&format!("/element/{element}/click"), &json!({})).map(drop)
    }

    /// Types into an element.
    pub(super) fn write(&self, selector: &str, text: &str) -> Outcome {
        let element = self.element(selector)?;
        self.post(&format!("/element/{element}/value"), &json!({ "text": text })).map(drop)
    }

    /// Presses a key of WebDriver's table.
    pub(super) fn press(&self, key: char) -> Outcome {
        let steps = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        self.post("/actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": steps }] })).map(drop)
    }

    /// Sends a command of the browser's own protocol.
    pub(super) fn devtools(&self, command: &str, params: &Value) -> Outcome<Value> {
        self.post("/goog/cdp/execute", &json!({ "cmd": command, "params": params }))
    }

    /// Sets the size of the page's view, and the scheme of colours that the user prefers.
    pub(super) fn view(&self, size: [u32; 2], scheme: &str) -> Outcome {
        let [width, height] = size;
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics)?;
        let features = json!([
            { "name": "prefers-color-scheme", "value": scheme }, { "name": "prefers-reduced-motion", "value": "reduce" }
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features })).map(drop)
    }

    /// Takes a picture of an element, and writes it to the directory that the environment names.
    pub(super) fn picture(&self, name: &str, selector: &str) -> Outcome<usize> {
        let script = format!(
            "const it = document.querySelector({}).getBoundingClientRect();
             return {{ x: it.x + scrollX, y: it.y + scrollY, width: it.width, height: Math.min(it.height, innerHeight), scale: 1 }}",
            json!(selector)
        );
        let clip = self.script(&script)?;
        let params = json!({ "format": "png", "clip": clip, "captureBeyondViewport": true });
        let taken = self.devtools("Page.captureScreenshot", &params)?;
        let encoded = self.scratch.file("picture.base64");
        fs::write(&encoded, taken["data"].as_str().ok_or("no picture")?)?;
        let directory = std::env::var_os(PICTURES).map_or_else(|| self.scratch.path().to_owned(), PathBuf::from);
        let file = directory.join(format!("{name}.png"));
        let mut command = Command::new("sh");
        run(command.args(["-ec", "base64 --decode \"$0\" >\"$1\""]).arg(&encoded).arg(&file))?;
        let bytes = fs::read(&file)?;
        if bytes.starts_with(b"\x89PNG\r\n") { Ok(bytes.len()) } else { Err("the picture is no PNG".into()) }
    }

    /// Checks that the page has asked for nothing but what `origin` serves, and has logged no error.
    pub(super) fn check_logs(&self, origin: &str) -> Outcome {
        let log = |kind: &str| -> Outcome<Vec<Value>> {
            let entries = self.post("/se/log", &json!({ "type": kind }))?;
            Ok(entries.as_array().ok_or(format!("no log: {entries}"))?.clone())
        };
        let console = log("browser")?;
        assert!(console.is_empty(), "{console:?}");
        let mut count = 0;
        for entry in log("performance")? {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap_or_default())?;
            let message = &message["message"];
            if message["method"] == "Network.requestWillBeSent" {
                let url = message["params"]["request"]["url"].as_str().unwrap_or_default();
                assert!(url.starts_with(origin) || url.starts_with("data:,"), "{url}");
                count += 1;
            }
        }
        assert!(count >= 4, "{count} requests");
        Ok(())
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // The driver ends the browser; if it has ended, so has the browser.
        let _ = self.curl(&["--request", "DELETE"], "");
    }
}
