//! A tab of a real Chromium, driven over its debugging protocol: JSON over a WebSocket. Just enough of both, so
//! that no dependency is needed for a few clicks.

use crate::support::{Guarded, fast, service};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tenure_proving::patience;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// One page of a browser.
pub struct Tab {
    /// What the page's console or the browser's log complained about.
    pub complaints: Vec<String>,
    socket: TcpStream,
    next: u64,
    _browser: Guarded,
}

impl Tab {
    /// Starts a browser, unless this is a fast check: that has none.
    pub async fn unless_fast(profile: &Path) -> Option<Self> {
        if fast() {
            println!("the browser is skipped: this is a fast check");
            return None;
        }
        Some(Self::open(&service("TENURE_TEST_CHROMIUM"), profile).await)
    }

    /// Goes to a page that is kept up to date, and waits until it is.
    pub async fn go_live(&mut self, url: &str) {
        self.go(url).await;
        self.until("document.getElementById('live').dataset.state === 'live'").await;
    }

    /// Starts a browser with an empty page.
    pub async fn open(chromium: &str, profile: &Path) -> Self {
        let mut browser = Command::new(chromium);
        browser
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
            .args(["--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut browser = Guarded(browser.spawn().expect("Chromium starts"));
        let stderr = browser.0.stderr.take().expect("it is piped");
        let (send, receive) = tokio::sync::oneshot::channel();
        // Read to its end: a browser whose log nobody reads stops when the pipe is full.
        std::thread::spawn(move || {
            let mut send = Some(send);
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(at) = line.strip_prefix("DevTools listening on ws://")
                    && let Some(send) = send.take()
                {
                    let _ = send.send(at.split('/').next().unwrap_or("").to_owned());
                }
            }
        });
        let at = timeout(PATIENCE, receive).await.expect("in time").expect("it says where");
        let pages = reqwest::get(format!("http://{at}/json/list")).await.expect("it answers");
        let pages = pages.text().await.expect("text");
        let pages: Value = serde_json::from_str(&pages).expect("JSON");
        let page = pages.as_array().expect("a list").iter().find(|p| p["type"] == "page");
        let url = page.expect("a page")["webSocketDebuggerUrl"].as_str().expect("its address");
        let path = url.splitn(4, '/').nth(3).expect("a path");
        let socket = shake_hands(&at, path).await;
        let mut tab = Tab { complaints: Vec::new(), socket, next: 0, _browser: browser };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            tab.call(domain, json!({})).await;
        }
        tab.size(1_280, 900).await;
        tab
    }

    /// Sets the window.
    pub async fn size(&mut self, width: u32, height: u32) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Goes to an address and waits until it is loaded.
    pub async fn go(&mut self, url: &str) {
        let _ = self.call("Page.navigate", json!({ "url": url })).await;
        self.until(&format!(
            "location.href.startsWith({}) && document.readyState === 'complete'",
            json!(url)
        ))
        .await;
    }

    /// The value of an expression.
    pub async fn eval(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.call("Runtime.evaluate", asked).await["result"]["value"].clone()
    }

    /// Waits until an expression is true. A page that is just being left has no answer.
    pub async fn until(&mut self, expression: &str) {
        patience::found(expression, async || {
            if self.eval(&format!("!!({expression})")).await == json!(true) {
                return Ok(());
            }
            let page = self.eval("document.body.innerText").await;
            Err((self.complaints.clone(), page.as_str().unwrap_or("").to_owned()))
        })
        .await;
    }

    /// Presses the mouse where an element is, as a person does.
    pub async fn click(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()",
            json!(selector)
        );
        let place = self.eval(&place).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Keeps a picture of the page for whoever asked for one with `TENURE_TEST_PICTURES`, a directory.
    pub async fn picture(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("TENURE_TEST_PICTURES").map(PathBuf::from) else { return };
        std::fs::create_dir_all(&dir).expect("a directory for pictures");
        for (width, height, scheme) in
            [(1_280, 1_000, "light"), (1_280, 1_000, "dark"), (400, 900, "light")]
        {
            let media =
                json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            self.call("Emulation.setEmulatedMedia", media).await;
            self.save(&dir.join(format!("{name}-{width}-{scheme}.png")), width, height).await;
        }
        self.call("Emulation.setEmulatedMedia", json!({ "features": [] })).await;
    }

    /// Saves a picture.
    pub async fn save(&mut self, path: &Path, width: u32, height: u32) {
        self.size(width, height).await;
        self.eval("scrollTo(0, 0)").await;
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png" })).await;
        let bytes = decoded(shot["data"].as_str().expect("a picture"));
        std::fs::write(path, bytes).expect("the picture is written");
        self.size(1_280, 900).await;
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let text = json!({ "id": id, "method": method, "params": params }).to_string();
        write_frame(&mut self.socket, text.as_bytes()).await;
        loop {
            let message = timeout(PATIENCE, read_message(&mut self.socket)).await;
            let message: Value =
                serde_json::from_slice(&message.expect("an answer in time")).expect("JSON");
            if message["id"] == id {
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        let bad = match message["method"].as_str().unwrap_or("") {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => params["type"] == "error",
            "Log.entryAdded" => params["entry"]["level"] == "error",
            _ => false,
        };
        if bad {
            self.complaints.push(params.to_string());
        }
    }
}

async fn shake_hands(at: &str, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(at).await.expect("it listens");
    let hello = format!(
        "GET /{path} HTTP/1.1\r\nHost: {at}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    socket.write_all(hello.as_bytes()).await.expect("it hears");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.expect("it answers"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    socket
}

/// A masked text frame; the mask is zero, which is a mask like any other.
async fn write_frame(socket: &mut TcpStream, text: &[u8]) {
    let mut frame = vec![0x81];
    match u16::try_from(text.len()) {
        Ok(n) if n < 126 => frame.push(0x80 | n.to_be_bytes()[1]),
        Ok(n) => {
            frame.push(0x80 | 126);
            frame.extend(n.to_be_bytes());
        }
        Err(_) => {
            frame.push(0x80 | 127);
            frame.extend((text.len() as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text);
    socket.write_all(&frame).await.expect("it hears");
}

/// A whole message, of as many frames as it has.
async fn read_message(socket: &mut TcpStream) -> Vec<u8> {
    let mut message = Vec::new();
    loop {
        let (first, second) = (
            socket.read_u8().await.expect("the browser is there"),
            socket.read_u8().await.expect("the browser is there"),
        );
        let length = match second & 0x7f {
            126 => u64::from(socket.read_u16().await.expect("a length")),
            127 => socket.read_u64().await.expect("a length"),
            n => u64::from(n),
        };
        let mut part = vec![0; usize::try_from(length).expect("it fits")];
        socket.read_exact(&mut part).await.expect("all of it");
        // Pings and closes are not for us: the browser is on this machine and ends with the test.
        if first & 0x0f <= 2 {
            message.extend(part);
            if first & 0x80 != 0 {
                return message;
            }
        }
    }
}

fn decoded(base64: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> =
        base64.bytes().filter(|c| *c != b'=').map(|c| u32::from(value(c))).collect();
    let mut bytes = Vec::new();
    for four in digits.chunks(4) {
        let bits = four.iter().enumerate().fold(0, |bits, (i, d)| bits | d << (18 - 6 * i));
        bytes.extend(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}
