//! Follows the events of a job or a turn as they come. A stream that is cut is taken up behind the last event seen.

use super::{client::Api, text};
use crate::{commands::Failure, terminal};
use reqwest::{Method, Response};
use serde_json::Value;
use std::time::Duration;
use tenure_edge::TokioRuntime;
use tenure_jobs::view::EventView;
use tenure_kernel::runtime::Runtime as _;

/// How often a lost stream is taken up again before the server counts as gone.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);
/// The largest event that is read: a body has at most a blob of 16 MiB, which may be longer as JSON within JSON.
const EVENT_BYTES_MAX: usize = 128 * 1024 * 1024;

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
    let mut blocks = Blocks::default();
    // A stream that breaks is taken up again by the caller.
    while let Ok(Some(bytes)) = response.chunk().await {
        blocks.rest.extend_from_slice(&bytes);
        while let Some(block) = blocks.next(EVENT_BYTES_MAX)? {
            if let Some(status) = block_of(&String::from_utf8_lossy(&block), next, json)? {
                return Ok(Some(status));
            }
        }
    }
    Ok(None)
}

/// Cuts a stream of server-sent events where they end.
#[derive(Default)]
struct Blocks {
    rest: Vec<u8>,
    /// No event ends before this place of the rest.
    looked: usize,
}

impl Blocks {
    /// The next event that is there as a whole; an error once more than `most` bytes hold none.
    fn next(&mut self, most: usize) -> Result<Option<Vec<u8>>, Failure> {
        let end = self.rest[self.looked..].windows(2).position(|w| w == b"\n\n");
        let whole = end.map_or(self.rest.len(), |at| self.looked + at + 2);
        if whole > most {
            return Err(Failure::System(format!(
                "the server sends an event of more than {most} bytes, and no Tenure server does; is this the address of one?"
            )));
        }
        // The last byte may be the first half of an end.
        self.looked = if end.is_some() { 0 } else { self.rest.len().saturating_sub(1) };
        Ok(end.map(|_| self.rest.drain(..whole).collect()))
    }
}

fn block_of(block: &str, next: &mut u64, json: bool) -> Result<Option<String>, Failure> {
    let field = |name: &str| block.lines().find_map(|l| l.strip_prefix(name)).map(str::trim_start);
    let Some(data) = field("data:") else { return Ok(None) };
    let data: Value = tenure_kernel::stored::from_slice(data.as_bytes())
        .map_err(|e| Failure::System(format!("an event can not be read: {e}")))?;
    match field("event:") {
        Some("end") => Ok(Some(data["status"].as_str().unwrap_or("over").to_owned())),
        Some("closing") => Ok(None),
        _ => {
            *next = data["version"].as_u64().unwrap_or(*next).saturating_add(1);
            let line = match json {
                true => format!("{data}\n"),
                false => text::event(&text::read::<EventView>(data)?),
            };
            terminal::print(&line);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_where_they_end_and_have_a_limit() {
        let mut blocks = Blocks::default();
        let mut cut = Vec::new();
        for byte in b"a: 1\nb\n\nc\n\n\n\n" {
            blocks.rest.push(*byte);
            cut.extend(blocks.next(9).unwrap());
        }
        assert_eq!(cut.concat(), b"a: 1\nb\n\nc\n\n\n\n");
        assert_eq!(cut.len(), 3);
        let mut at = Blocks { rest: b"1234567\n\nrest".to_vec(), looked: 0 };
        assert_eq!(at.next(9).unwrap().as_deref(), Some(&b"1234567\n\n"[..]));
        assert_eq!(at.next(9).unwrap(), None);
        let mut past = Blocks { rest: b"12345678\n\n".to_vec(), looked: 0 };
        assert!(past.next(9).unwrap_err().to_string().contains("more than 9 bytes"));
        let mut endless = Blocks { rest: vec![b'x'; 9], looked: 0 };
        assert_eq!(endless.next(9).unwrap(), None);
        endless.rest.push(b'x');
        assert!(endless.next(9).is_err());
    }
}
