//! A browser driven over `WebDriver`, with as much of the protocol as the tests need.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::support::{PATIENCE, client};

const VARIABLE: &str = "TENURE_TEST_CHROMEDRIVER";

/// Makes a test for each screen size (a phone, a laptop, a large screen) from functions that take a [`Browser`].
macro_rules! at_each_size {
    ($($test:ident),* $(,)?) => {
        at_each_size! { at_390, 390, 844; $($test),* }
        at_each_size! { at_1280, 1280, 900; $($test),* }
        at_each_size! { at_1920, 1920, 1080; $($test),* }
    };
    ($size:ident, $width:literal, $height:literal; $($test:ident),*) => {
        mod $size {
            $(
                #[tokio::test]
                async fn $test() {
                    if let Some(browser) = super::Browser::start($width, $height).await {
                        super::$test(browser).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use at_each_size;

/// One browser window.
pub(crate) struct Browser {
    http: Client,
    session: String,
    size: (u32, u32),
    _profile: TempDir,
}

impl Browser {
    /// A new window; `None`, with a message, if no browser was configured.
    pub(crate) async fn start(width: u32, height: u32) -> Option<Self> {
        let driver = tenure_testkit::skip::server(VARIABLE)?;
        let http = client();
        let profile = tempfile::tempdir().unwrap();
        let mut arguments: Vec<String> = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--window-size={width},{height}"));
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let answer = call(&http, Method::POST, &format!("{driver}/session"), &wanted).await;
        let id = answer["sessionId"].as_str().expect("a session has an id");
        let browser = Self {
            session: format!("{driver}/session/{id}"),
            http,
            size: (width, height),
            _profile: profile,
        };
        browser.looks(width, height, "light").await;
        Some(browser)
    }

    async fn ask(&self, path: &str, body: Value) -> Value {
        let url = format!("{}{path}", self.session);
        call(&self.http, Method::POST, &url, &body).await
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.ask("/goog/cdp/execute", body).await
    }

    /// Sets the size of the screen and its colours.
    pub(crate) async fn looks(&self, width: u32, height: u32, colours: &str) {
        let screen = json!({"width": width, "height": height, "screenWidth": width, "screenHeight": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", screen)
            .await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": colours}]});
        self.devtools("Emulation.setEmulatedMedia", media).await;
    }

    /// Sets the time zone.
    pub(crate) async fn lives_in(&self, zone: &str) {
        self.devtools("Emulation.setTimezoneOverride", json!({"timezoneId": zone}))
            .await;
    }

    /// Goes to a section, within the page if it is already open.
    pub(crate) async fn open(&self, url: &str, hash: &str) {
        self.ask("/url", json!({"url": format!("{url}/{hash}")}))
            .await;
    }

    /// The current tab.
    pub(crate) async fn tab(&self) -> String {
        let url = format!("{}/window", self.session);
        let tab = call(&self.http, Method::GET, &url, &Value::Null).await;
        tab.as_str().unwrap().to_owned()
    }

    /// Opens another tab of the same browser.
    pub(crate) async fn new_tab(&self) -> String {
        let made = self.ask("/window/new", json!({"type": "tab"})).await;
        made["handle"].as_str().unwrap().to_owned()
    }

    /// Switches to another tab.
    pub(crate) async fn switch(&self, tab: &str) {
        self.ask("/window", json!({"handle": tab})).await;
        // Each tab has its own screen settings.
        self.looks(self.size.0, self.size.1, "light").await;
    }

    /// Closes the current tab.
    pub(crate) async fn close_tab(&self) {
        let url = format!("{}/window", self.session);
        call(&self.http, Method::DELETE, &url, &Value::Null).await;
    }

    /// Goes to a blank page, so that the dashboard is not open.
    pub(crate) async fn leave(&self) {
        self.ask("/url", json!({"url": "about:blank"})).await;
    }

    /// Bytes of heap, nodes of the document, and event listeners, after garbage collection.
    pub(crate) async fn held(&self) -> [f64; 3] {
        self.devtools("Performance.enable", json!({})).await;
        for _ in 0..2 {
            self.devtools("HeapProfiler.collectGarbage", json!({}))
                .await;
        }
        let answer = self.devtools("Performance.getMetrics", json!({})).await;
        let metrics = answer["metrics"].as_array().unwrap();
        ["JSHeapUsedSize", "Nodes", "JSEventListeners"].map(|name| {
            let found = metrics.iter().find(|metric| metric["name"] == name);
            found.unwrap()["value"].as_f64().unwrap()
        })
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.ask("/execute/sync", json!({"script": script, "args": []}))
            .await
    }

    /// Runs a script that is done when it calls its argument.
    pub(crate) async fn run_async(&self, script: &str) -> Value {
        self.ask("/execute/async", json!({"script": script, "args": []}))
            .await
    }

    async fn run_with(&self, script: &str, arguments: Value) -> Value {
        self.ask(
            "/execute/sync",
            json!({"script": script, "args": arguments}),
        )
        .await
    }

    /// Waits until a script returns true.
    pub(crate) async fn until(&self, script: &str) {
        self.wait_for(script, json!([])).await;
    }

    async fn wait_for(&self, script: &str, arguments: Value) {
        let give_up = Instant::now() + PATIENCE;
        while self.run_with(script, arguments.clone()).await != json!(true) {
            if Instant::now() > give_up {
                let seen = self
                    .run("return document.body.innerText.slice(0, 3000)")
                    .await;
                panic!(
                    "{arguments} {script}\nnever came about; the page says:\n{}",
                    seen.as_str().unwrap_or("nothing")
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a part of the page shows a text.
    pub(crate) async fn shows(&self, part: &str, text: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])].some((each) => each.innerText.includes(arguments[1]))";
        self.wait_for(script, json!([part, text])).await;
    }

    /// Waits until the table row that begins with a name contains these cells, in this order.
    pub(crate) async fn row(&self, part: &str, name: &str, cells: &[&str]) {
        let script = "return [...document.querySelectorAll(`${arguments[0]} tbody tr`)].some((row) => {
            const cells = [...row.cells].map((cell) => cell.innerText.trim());
            if (cells.shift() !== arguments[1]) return false;
            return arguments[2].every((wanted) => { while (cells.length) if (cells.shift() === wanted) return true; return false; });
        })";
        self.wait_for(script, json!([part, name, cells])).await;
    }

    /// Presses the button with this label.
    pub(crate) async fn press(&self, label: &str) {
        self.press_in("body", label).await;
    }

    pub(crate) async fn press_in(&self, part: &str, label: &str) {
        let script = "const found = [...document.querySelectorAll(`${arguments[0]} button`)]
            .filter((each) => each.offsetParent && !each.disabled && each.innerText.trim() === arguments[1]).at(-1);
            found?.click(); return Boolean(found)";
        self.wait_for(script, json!([part, label])).await;
    }

    pub(crate) async fn press_named(&self, name: &str) {
        let script = "const found = document.querySelector(`button[aria-label='${arguments[0]}']`);
            found?.click(); return Boolean(found)";
        self.wait_for(script, json!([name])).await;
    }

    pub(crate) async fn fill(&self, field: &str, value: &str) {
        let script = "const found = document.querySelector(arguments[0]);
            if (found) { found.focus(); found.value = arguments[1]; } return Boolean(found)";
        self.wait_for(script, json!([field, value])).await;
    }

    /// Presses keys, as a keyboard would.
    pub(crate) async fn keys(&self, keys: &str) {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})))
            .collect();
        let actions = json!({"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]});
        self.ask("/actions", actions).await;
    }

    /// Saves the whole page as a picture; the name's ending decides the format.
    pub(crate) async fn picture(&self, name: &str) {
        let size = &self.devtools("Page.getLayoutMetrics", json!({})).await["cssContentSize"];
        let height = size["height"].as_f64().unwrap_or(800.0).min(2_400.0);
        let clip = json!({"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1});
        let (_, format) = name.rsplit_once('.').unwrap();
        let mut picture = json!({"format": format, "captureBeyondViewport": true, "clip": clip});
        if format != "png" {
            picture["quality"] = json!(80);
        }
        let data = self.devtools("Page.captureScreenshot", picture).await;
        let bytes = from_base64(data["data"].as_str().unwrap());
        let file = screenshots().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    /// Closes the window. Fails if a script failed or a call was refused.
    pub(crate) async fn end(self) {
        self.closed(&[]).await;
    }

    /// The same for tests in which some calls are refused or find no server.
    pub(crate) async fn end_after_refusals(self) {
        self.closed(&["Failed to load resource"]).await;
    }

    /// By how many pixels the page is wider than the screen. Not measured by `innerWidth`, which grows when a phone
    /// zooms out.
    pub(crate) async fn sticks_out(&self) -> i64 {
        let by = "return document.documentElement.scrollWidth - Math.min(innerWidth, screen.width)";
        self.run(by).await.as_i64().unwrap().max(0)
    }

    async fn closed(self, allowed: &[&str]) {
        assert_eq!(self.sticks_out().await, 0, "the page sticks out");
        let log = self.ask("/se/log", json!({"type": "browser"})).await;
        let bad: Vec<&str> = log
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|entry| entry["message"].as_str())
            .filter(|message| !allowed.iter().any(|allowed| message.contains(allowed)))
            .collect();
        assert!(bad.is_empty(), "the browser complains: {bad:#?}");
        call(&self.http, Method::DELETE, &self.session, &Value::Null).await;
    }
}

async fn call(http: &Client, method: Method, url: &str, body: &Value) -> Value {
    let mut request = http.request(method, url);
    if !body.is_null() {
        request = request.json(body);
    }
    let mut answer: Value = request.send().await.unwrap().json().await.unwrap();
    let value = answer["value"].take();
    assert!(
        value["error"].is_null(),
        "{}: {}",
        value["error"],
        value["message"]
    );
    value
}

/// A folder beside the build.
fn screenshots() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    let target = executable
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").exists());
    target
        .unwrap_or(executable.parent().unwrap())
        .join("screenshots")
}

fn from_base64(text: &str) -> Vec<u8> {
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for character in text.chars().take_while(|character| *character != '=') {
        let value = alphabet.find(character).expect("base64");
        bits = (bits << 6) | u32::try_from(value).unwrap();
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).unwrap());
        }
    }
    bytes
}
