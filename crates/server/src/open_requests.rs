//! Requests that are under way, by the key or the session of the console that they showed. When that ends, so do they: a live
//! stream, a long poll, the question of a worker. One layer around all routes does this; no handler knows of it.
//!
//! A request that is ended so is dropped as one whose client has left: every handler is made for that.

use crate::{App, Problem, console_sessions, keys, problem::ApiCode};
use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::StreamExt as _;
use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    ids::EntityId,
    runtime::{First, first},
    stream::Hash,
};
use tokio::sync::watch;

/// How long a request that is under way may take to be answered after its key has ended.
const GRACE: Duration = Duration::from_secs(1);

/// What a request showed: a key or a session, and the digest of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Credential {
    pub id: EntityId,
    pub digest: Hash,
}

impl Credential {
    /// What the headers of a request show: a key before a cookie, as the console has it.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let credential =
            |(id, secret): (EntityId, &str)| Credential { id, digest: Hash::of(secret.as_bytes()) };
        match headers.contains_key(header::AUTHORIZATION) {
            true => crate::auth::bearer(headers).ok()?.and_then(keys::split).map(credential),
            false => {
                crate::console::cookie(headers).and_then(console_sessions::split).map(credential)
            }
        }
    }
}

struct Entry {
    count: usize,
    /// It was found valid once. A cookie that was never valid here (of a server at another port, say) ends nothing.
    confirmed: bool,
    ended: watch::Sender<bool>,
}

/// All requests that are under way and showed something.
#[derive(Clone, Default)]
pub(crate) struct OpenRequests(Arc<Mutex<HashMap<Credential, Entry>>>);

/// One request. Forgotten when it is dropped.
struct OpenRequest {
    all: OpenRequests,
    credential: Credential,
    ended: watch::Receiver<bool>,
}

impl OpenRequests {
    fn entries(&self) -> MutexGuard<'_, HashMap<Credential, Entry>> {
        // Nothing panics under this lock, and what it covers is right at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, credential: Credential) -> OpenRequest {
        let mut entries = self.entries();
        let entry = entries.entry(credential).or_insert_with(|| Entry {
            count: 0,
            confirmed: false,
            ended: watch::Sender::new(false),
        });
        entry.count += 1;
        OpenRequest { all: self.clone(), credential, ended: entry.ended.subscribe() }
    }

    /// What was shown by requests under way was found valid.
    pub(crate) fn confirm(&self, credential: Credential) {
        if let Some(entry) = self.entries().get_mut(&credential) {
            entry.confirmed = true;
        }
    }

    /// What is shown by requests that are under way, and was valid.
    pub(crate) fn credentials(&self) -> Vec<Credential> {
        let entries = self.entries();
        entries.iter().filter(|(_, entry)| entry.confirmed).map(|(c, _)| *c).collect()
    }

    /// Ends all requests that showed this.
    pub(crate) fn end(&self, credential: Credential) {
        if let Some(entry) = self.entries().get(&credential) {
            entry.ended.send_replace(true);
        }
    }
}

impl OpenRequest {
    /// Returns when what was shown has ended.
    async fn ended(mut self) {
        // The sender lives in the map for as long as this entry is counted, so this ends only when it is true.
        let _ = self.ended.wait_for(|ended| *ended).await;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let mut entries = self.all.entries();
        if let Some(entry) = entries.get_mut(&self.credential) {
            entry.count -= 1;
            if entry.count == 0 {
                entries.remove(&self.credential);
            }
        }
    }
}

/// Ends a request with the key or the session that it showed.
pub(crate) async fn end_with_key(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(credential) = Credential::of(request.headers()) else {
        return next.run(request).await;
    };
    let (all, rt) = (app.auth().open_requests(), app.pipeline().rt());
    // Until a stream has taken its place: that the key was found valid is known of an entry, and goes with it.
    let _entry = all.enter(credential);
    let mut handling = pin!(next.run(request));
    let response = match first(handling.as_mut(), all.enter(credential).ended()).await {
        First::Left(response) => Some(response),
        // What is about to be answered still is: the request that revokes its own key, for one.
        First::Right(()) => match first(handling, rt.sleep(GRACE)).await {
            First::Left(response) => Some(response),
            First::Right(()) => None,
        },
    };
    let Some(response) = response else {
        let detail =
            "the key, or the session of the console, ended while the request was under way";
        return Problem::new(StatusCode::UNAUTHORIZED, ApiCode::Unauthenticated, detail)
            .field("Authorization")
            .fix("use another key, or sign in again")
            .into_response();
    };
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    let ended = all.enter(credential).ended();
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_end_with_what_they_showed_and_leave_nothing_behind() {
        let all = OpenRequests::default();
        let of = |n| Credential { id: EntityId::fixed(1, n), digest: Hash::of(b"secret") };
        let (one, two, other) = (all.enter(of(1)), all.enter(of(1)), all.enter(of(2)));
        assert_eq!(all.credentials().len(), 0, "nobody has found them valid");
        [of(1), of(2)].into_iter().for_each(|shown| all.confirm(shown));
        assert_eq!(all.credentials().len(), 2);
        all.end(of(1));
        all.end(of(3));
        one.ended().await;
        two.ended().await;
        assert_eq!(all.credentials(), [of(2)]);
        assert!(!*other.ended.borrow());
        drop(other);
        assert!(all.credentials().is_empty());
        assert!(!*all.enter(of(1)).ended.borrow(), "a new request begins anew");
    }
}
