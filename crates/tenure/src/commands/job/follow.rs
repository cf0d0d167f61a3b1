//! Follows the events of a job or a turn as they come. A stream that is cut is taken up behind the last event seen.

use super::{client::Api, text};
use crate::commands::Failure;
use reqwest::{Method, Response};
use serde_json::Value;
use std::{io::Write as _, time::Duration};
use tenure_edge::TokioRuntime;
use tenure_jobs::view::EventView;
use tenure_kernel::runtime::Runtime as _;

/// How often a lost stream is taken up again before the server counts as gone.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// Prints events until the job ends.
pub async fn follow(api: &Api, id: &str, from: u64, json: bool) -> Result<String, Failure> {
    follow_stream(api, &["jobs", id, "events"], "job", from, json).await
}

/// Prints the events at a path until what they are about ends.
pub async fn follow_stream(
    api: &Api,
    path: &[&str],
    what: &str,
    from: u64,
    json: bool,
) -> Result<String, Failure> {
    let (mut next, mut tries) = (from, 0);
    loop {
        let before = next;
        let opened = open(api, path, next).await;
        let ended = match opened {
            Ok(response) => read(response, &mut next, json).await?,
            // The first answer says what is wrong; later, the server may only be restarting.
            Err(e) if before == from && tries == 0 => return Err(e),
            Err(e) if tries >= TRIES => return Err(e),
            Err(_) => None,
        };
        if let Some(status) = ended {
            return Ok(if json { String::new() } else { format!("the {what} is {status}\n") });
        }
        tries = if next > before { 1 } else { tries + 1 };
        TokioRuntime::current().sleep(PAUSE).await;
    }
}

async fn open(api: &Api, path: &[&str], from: u64) -> Result<Response, Failure> {
    let request = api
        .request(Method::GET, path)
        .query(&[("from", from.to_string())])
        .header("accept", "text/event-stream");
    api.send(request).await
}

/// Reads one stream; the final status if it came to that.
async fn read(
    mut response: Response,
    next: &mut u64,
    json: bool,
) -> Result<Option<String>, Failure> {
    let mut rest = Vec::new();
    // A stream that breaks is taken up again by the caller.
    while let Ok(Some(bytes)) = response.chunk().await {
        rest.extend_from_slice(&bytes);
        while let Some(end) = rest.windows(2).position(|w| w == b"\n\n") {
            let block: Vec<u8> = rest.drain(..end + 2).collect();
            if let Some(status) = block_of(&String::from_utf8_lossy(&block), next, json)? {
                return Ok(Some(status));
            }
        }
    }
    Ok(None)
}

fn block_of(block: &str, next: &mut u64, json: bool) -> Result<Option<String>, Failure> {
    let field = |name: &str| block.lines().find_map(|l| l.strip_prefix(name)).map(str::trim_start);
    let Some(data) = field("data:") else { return Ok(None) };
    let data: Value = serde_json::from_str(data)
        .map_err(|e| Failure::System(format!("an event can not be read: {e}")))?;
    match field("event:") {
        Some("end") => Ok(Some(data["status"].as_str().unwrap_or("over").to_owned())),
        Some("closing") => Ok(None),
        _ => {
            *next = data["version"].as_u64().unwrap_or(*next) + 1;
            let line = match json {
                true => format!("{data}\n"),
                false => text::event(&text::read::<EventView>(data)?),
            };
            let mut out = std::io::stdout().lock();
            out.write_all(line.as_bytes())?;
            out.flush()?;
            Ok(None)
        }
    }
}
