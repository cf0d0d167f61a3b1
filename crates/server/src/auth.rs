//! Who calls, and what they may do.
//!
//! A caller with a key is who the key says: its tenant and its scopes apply. A caller without one is refused, unless it is a
//! program or a browser on this machine. Such a caller gets what a developer needs at a desk: the tenant `default`, and the
//! scopes `read`, `write` and `worker`. It never gets `admin`, another tenant, or keys. It is taken for local only if
//!
//! - the connection comes from a loopback address, and the server listens at one;
//! - the `Host` header names a loopback host: a web page that resolves its own name to 127.0.0.1 names another;
//! - the request is not of HTTP/1.0, and no header shows that a proxy forwarded the request (`Forwarded`, `X-Forwarded-*`, `X-Real-IP`, `Via`): a proxy on this machine connects from
//!   a loopback address, for everybody outside;
//! - the setting `server.require_keys` is off. A proxy that adds no such header cannot be recognised, so whoever runs one
//!   sets it. It is also on where jobs of any tenant may run programs (`tools.command_tenants`): a program runs on this machine.
//!
//! On any other address every request needs a key, and the server does not start while there is none.
//!
//! A key or a session of the console that was found valid is believed for a few seconds. What is open then ends with it: see
//! `open_requests`. What is not valid is counted and limited: see `sign_ins`.

use crate::{
    App,
    audit::{Act, LookedUp},
    console_sessions,
    keys::{self, Scope},
    open_requests::{Credential, OpenRequests},
    problem::{ApiCode, Problem},
    sign_ins::{FailedSignIns, WINDOW},
};
use axum::{
    extract::{ConnectInfo, FromRequestParts},
    http::{HeaderMap, HeaderName, StatusCode, Version, header, request::Parts},
};
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    runtime::{First, first},
    stream::Hash,
    time::Timestamp,
};
use tenure_listener::Connection;
use tenure_remote::wire::BEARER;

pub use tenure_kernel::tenant::DEFAULT as DEFAULT_TENANT;
const SEND_KEY: &str = "send the header Authorization: Bearer tnr_…";
/// A key that was found valid is believed for this time: a revocation in another process takes effect within it.
const BELIEVED: Duration = Duration::from_secs(3);
/// While the store does not answer, a key that was valid is believed for this long: a scraper then learns that the store is away.
/// Nobody gains much by it, because whatever reads or writes the store fails.
const BELIEVED_WITHOUT_STORE: Duration = Duration::from_secs(600);
/// Keys that are remembered.
const REMEMBERED_MAX: usize = 1_024;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose entities they reach; `None` for everybody's (a key without a tenant).
    pub tenant: Option<String>,
    /// What they may do.
    pub scopes: Vec<Scope>,
    /// Which key they showed, or signed in to the console with.
    pub key: Option<EntityId>,
    /// When that key ends by itself.
    pub expires_at: Option<Timestamp>,
}

impl Caller {
    /// Somebody on this machine, without a key.
    pub fn local() -> Self {
        let scopes = vec![Scope::Read, Scope::Write, Scope::Worker];
        Caller { tenant: Some(DEFAULT_TENANT.to_owned()), scopes, key: None, expires_at: None }
    }

    /// Whether this is allowed. `admin` allows everything.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin)
    }

    /// Insists on a scope.
    pub fn need(&self, scope: Scope) -> Result<(), Problem> {
        if self.may(scope) {
            return Ok(());
        }
        let has: Vec<_> = self.scopes.iter().map(|s| s.as_str()).collect();
        let who = if self.key.is_some() { "the key" } else { "a caller without a key" };
        let detail = format!("this needs the scope {scope}; {who} has {}", has.join(", "));
        Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("Authorization")
            .fix(match self.key {
                Some(_) => format!("use a key with the scope {scope}"),
                None => format!(
                    "send a key with the scope {scope}; the server on this machine keeps one in admin.key in its data directory"
                ),
            }))
    }

    /// Whether what belongs to this tenant is theirs to see.
    pub fn sees(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|mine| mine == tenant)
    }
}

/// A server that would be open to everybody.
#[derive(Debug, thiserror::Error)]
pub enum NotProtected {
    /// Nobody could call, and everybody would try.
    #[error(
        "{0} can be reached from outside, and there is no API key: make one (`tenure key create`), or listen on 127.0.0.1"
    )]
    NoKey(SocketAddr),
    /// Nobody knows.
    #[error("whether there is an API key could not be found out: {0}")]
    Store(#[from] StoreError),
}

/// Where a request comes from, as far as that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    peer: Option<SocketAddr>,
    is_http_10: bool,
}

impl Origin {
    pub(crate) fn of(parts: &Parts) -> Self {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        Origin { peer, is_http_10: parts.version <= Version::HTTP_10 }
    }

    /// The address of the other end, which may be a proxy.
    pub(crate) fn address(self) -> Option<IpAddr> {
        self.peer.map(|peer| peer.ip().to_canonical())
    }

    /// The other end, if it may be local. If it is not known nobody is: the listener did not note it, or the
    /// request is of HTTP/1.0. Browsers and HTTP libraries have not sent that for decades, and nginx does, to whatever it stands
    /// in front of, unless it is told otherwise.
    fn local_peer(self) -> Option<SocketAddr> {
        self.peer.filter(|_| !self.is_http_10)
    }
}

/// Decides who calls.
#[derive(Default)]
pub struct Auth {
    required: AtomicBool,
    remembered: Mutex<HashMap<EntityId, Remembered>>,
    failed: FailedSignIns,
    open: OpenRequests,
}

#[derive(Debug)]
struct Remembered {
    /// What was shown. The same id and secret as something else are nothing.
    kind: Shown,
    /// Of the secret that was shown: the secret itself is not kept.
    digest: Hash,
    caller: Caller,
    until: Duration,
}

/// What a caller shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Key,
    Session,
}

impl Auth {
    /// One that looks at so many keys of one address that are not valid in a minute; 0 for no limit.
    pub(crate) fn new(failures_per_minute: u32) -> Self {
        Auth { failed: FailedSignIns::new(failures_per_minute), ..Auth::default() }
    }

    /// Refuses an address that can be reached from outside while there is no key; else insists on one from
    /// now on. Called with the address that is really bound.
    pub async fn protect(&self, at: SocketAddr, pipeline: &Pipeline) -> Result<(), NotProtected> {
        if at.ip().is_loopback() {
            return Ok(());
        }
        self.required.store(true, Ordering::SeqCst);
        if keys::any_active(pipeline).await? { Ok(()) } else { Err(NotProtected::NoKey(at)) }
    }

    /// Insists on keys, wherever the server listens.
    pub fn require(&self) {
        self.required.store(true, Ordering::SeqCst);
    }

    /// Forgets what it believed of a key and its sessions, or of a session: after it was changed in this process. What it believes of
    /// others stays: an address that failed too often is let in by that alone.
    pub fn forget(&self, changed: EntityId) {
        self.remembered().retain(|id, known| *id != changed && known.caller.key != Some(changed));
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<EntityId, Remembered>> {
        // Nothing panics under this lock; what is remembered is only a shortcut.
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is under way.
    pub(crate) fn open_requests(&self) -> &OpenRequests {
        &self.open
    }

    /// Keys that were not valid, and keys that were refused unseen because their address had failed too often.
    pub(crate) fn failed_sign_ins(&self) -> (u64, u64) {
        self.failed.totals()
    }

    fn without_key(
        &self,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Result<Caller, Problem> {
        if self.required.load(Ordering::SeqCst) {
            return Err(unauthenticated("this server needs an API key", SEND_KEY));
        }
        if !peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback()) {
            let detail = "a request from another machine, or of HTTP/1.0 as proxies send it, needs an API key";
            return Err(unauthenticated(detail, SEND_KEY));
        }
        if let Some(header) = forwarded(headers) {
            let detail = format!(
                "a request that a proxy forwarded needs an API key, and this one has the header {header}"
            );
            return Err(unauthenticated(&detail, SEND_KEY));
        }
        if !names_this_machine(headers) {
            let detail = "a request without a key has to name this machine, and its Host header names another";
            return Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
                .field("Host")
                .fix("call 127.0.0.1 or localhost, or send a key"));
        }
        Ok(Caller::local())
    }

    /// Whose key this is, if that was known and believed at this moment.
    fn recall(&self, kind: Shown, shown: Credential, at: Duration) -> Option<Caller> {
        let remembered = self.remembered();
        // Both are digests of secrets: how long this comparison takes tells nothing about either.
        let is_it = |k: &&Remembered| k.kind == kind && k.digest == shown.digest && at < k.until;
        let known = remembered.get(&shown.id).filter(is_it)?;
        Some(known.caller.clone())
    }

    fn remember(
        &self,
        kind: Shown,
        shown: Credential,
        caller: &Caller,
        now: Duration,
        left: Option<Duration>,
    ) {
        let until = now + left.map_or(BELIEVED, |left| left.min(BELIEVED));
        let mut remembered = self.remembered();
        if remembered.len() >= REMEMBERED_MAX
            && let Some(oldest) = remembered.iter().min_by_key(|(_, k)| k.until).map(|(id, _)| *id)
        {
            remembered.remove(&oldest);
        }
        let known = Remembered { kind, digest: shown.digest, caller: caller.clone(), until };
        remembered.insert(shown.id, known);
    }

    async fn check(
        &self,
        kind: Shown,
        shown: Credential,
        pipeline: &Pipeline,
    ) -> Result<Option<Caller>, Problem> {
        let now = pipeline.rt().mono();
        if let Some(known) = self.recall(kind, shown, now) {
            self.open.confirm(shown);
            return Ok(Some(known));
        }
        let found = match look_up(kind, shown, pipeline).await {
            Ok(found) => found,
            Err(e) if e.is_transient() => {
                let since = now.saturating_sub(BELIEVED_WITHOUT_STORE);
                return self.recall(kind, shown, since).map(Some).ok_or_else(|| e.into());
            }
            Err(e) => return Err(e.into()),
        };
        let Some(found) = found else {
            self.remembered().remove(&shown.id);
            return Ok(None);
        };
        if found.is_use_stale {
            let (pipeline, id, now) = (pipeline.clone(), found.key, found.now);
            let rt = pipeline.rt().clone();
            rt.spawn(Box::pin(async move { keys::used(&pipeline, id, now).await }));
        }
        let left = found.caller.expires_at.map(|end| end.since(found.now));
        self.remember(kind, shown, &found.caller, now, left);
        self.open.confirm(shown);
        Ok(Some(found.caller))
    }

    /// Whether what a request showed when it began is still valid. While the store does not answer, it is.
    async fn is_valid(&self, shown: Credential, pipeline: &Pipeline) -> bool {
        for kind in [Shown::Key, Shown::Session] {
            if !matches!(look_up(kind, shown, pipeline).await, Ok(None)) {
                return true;
            }
        }
        false
    }
}

/// What the store says about something that was shown.
struct Found {
    caller: Caller,
    key: EntityId,
    now: Timestamp,
    is_use_stale: bool,
}

/// `None`: it is not valid.
async fn look_up(
    kind: Shown,
    shown: Credential,
    pipeline: &Pipeline,
) -> Result<Option<Found>, StoreError> {
    let store = pipeline.store();
    let (Some(head), now) = (store.head(shown.id).await?, store.now().await?) else {
        return Ok(None);
    };
    let key = match kind {
        Shown::Key => keys::verify_digest(&head, shown.digest, now),
        Shown::Session => match console_sessions::verify(&head, shown.digest, now) {
            // A session is as good as the secret that it was opened with: it ends when that is rotated.
            Some((key, opened_with)) => {
                let head = store.head(key).await?;
                head.and_then(|head| keys::verify_hex(&head, &opened_with, now))
            }
            None => None,
        },
    };
    Ok(key.map(|key| Found {
        key: key.id,
        now,
        is_use_stale: keys::is_use_stale(key.last_used_at, now),
        caller: Caller {
            tenant: key.tenant,
            scopes: key.scopes,
            key: Some(key.id),
            expires_at: key.expires_at,
        },
    }))
}

impl App {
    /// Who sent these headers from there: by key, or as somebody on this machine.
    pub(crate) async fn caller(
        &self,
        headers: &HeaderMap,
        origin: Origin,
    ) -> Result<Caller, Problem> {
        match bearer(headers)? {
            Some(key) => self.by(Shown::Key, keys::split(key), origin).await,
            None => self.auth().without_key(headers, origin.local_peer()),
        }
    }

    /// Who a session of the console belongs to.
    pub(crate) async fn signed_in(&self, cookie: &str, origin: Origin) -> Result<Caller, Problem> {
        self.by(Shown::Session, console_sessions::split(cookie), origin).await
    }

    async fn by(
        &self,
        kind: Shown,
        split: Option<(EntityId, &str)>,
        origin: Origin,
    ) -> Result<Caller, Problem> {
        let (auth, now) = (self.auth(), self.pipeline().rt().mono());
        let shown =
            split.map(|(id, secret)| Credential { id, digest: Hash::of(secret.as_bytes()) });
        if let Some(wait) = auth.failed.wait(origin.address(), now) {
            let recently = now.saturating_sub(BELIEVED_WITHOUT_STORE);
            if shown.is_none_or(|shown| auth.recall(kind, shown, recently).is_none()) {
                auth.failed.refuse();
                return Err(too_many(wait));
            }
        }
        let found = match shown {
            Some(shown) => auth.check(kind, shown, self.pipeline()).await?,
            None => None,
        };
        found.ok_or_else(|| {
            if auth.failed.failed(origin.address(), now) {
                self.record_failures(origin);
            }
            match kind {
                Shown::Key => unauthenticated(
                    "this API key is not valid: unknown, mistyped, expired or revoked",
                    "`tenure key create` makes a new one",
                ),
                Shown::Session => unauthenticated("the session is over", "sign in again"),
            }
        })
    }

    /// Records the first failed sign-in for a while at once, and those of the next minute together.
    fn record_failures(&self, origin: Origin) {
        let (app, from) = (self.clone(), origin.address().map(|address| address.to_string()));
        tracing::warn!(from, "an API key or a session that is not valid was shown");
        self.pipeline().rt().spawn(Box::pin(async move {
            let act = |details| Act::new("sign_ins.failed", "somebody unknown").details(details);
            let count_one = serde_json::json!({ "count": 1 });
            app.note(Act { from, ..act(count_one) }).await;
            first(app.pipeline().rt().sleep(WINDOW), app.closing()).await;
            let failures = app.auth().failed.close_window();
            if failures.count > 0 {
                tracing::warn!(count = failures.count, from = ?failures.addresses, "more of them, in a minute");
                let (count, from) = (failures.count, failures.addresses);
                app.note(act(serde_json::json!({ "count": count, "from": from }))).await;
            }
        }));
    }

    /// Puts something on the audit trail that cannot be refused any more.
    pub(crate) async fn note(&self, act: Act) {
        let name = act.act.clone();
        if let Err(e) = self.audit().note(act).await {
            tracing::error!(act = name, error = %e, "an act is not on the audit trail");
        }
    }

    /// Ends requests of a key or a session that was changed in this process, if it is not valid any more. Changes in other processes
    /// are found every few seconds.
    pub(crate) async fn end_refused_requests(&self, changed: EntityId) {
        self.auth().forget(changed);
        self.look_after_requests().await;
    }

    async fn look_after_requests(&self) {
        let open = self.auth().open_requests();
        for shown in open.credentials() {
            if !self.auth().is_valid(shown, self.pipeline()).await {
                self.auth().remembered().remove(&shown.id);
                open.end(shown);
            }
        }
    }

    /// Ends requests with their keys until the server stops.
    pub(crate) async fn watch_requests(&self) {
        while let First::Right(()) =
            first(self.closing(), self.pipeline().rt().sleep(BELIEVED)).await
        {
            self.look_after_requests().await;
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let caller = match LookedUp::of(parts) {
            Some(caller) => caller?,
            None => app.caller(&parts.headers, Origin::of(parts)).await?,
        };
        note_authenticated(parts, &caller)?;
        Ok(caller)
    }
}

/// Tells the listener whose this connection is: it counts no longer as one that nobody has shown a key on, but as one of the
/// caller's tenant.
pub(crate) fn note_authenticated(parts: &Parts, caller: &Caller) -> Result<(), Problem> {
    let connection = parts.extensions.get::<Arc<Connection>>();
    match connection.is_none_or(|connection| connection.authenticated(caller.tenant.as_deref())) {
        true => Ok(()),
        false => {
            let detail = "the tenant has as many connections as the server allows one tenant";
            Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, ApiCode::TooManyConnections, detail)
                .field("connection")
                .fix("use fewer connections, each for more requests")
                .retry_after_s(1))
        }
    }
}

/// Whether the browser's connection is encrypted: here, or at a proxy in front that says so. A caller who says so falsely
/// only gets a cookie that is sent less often.
pub(crate) fn is_encrypted(parts: &Parts) -> bool {
    let here = parts.extensions.get::<Arc<Connection>>().is_some_and(|c| c.is_tls());
    here || parts.headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https")
}

fn too_many(wait: Duration) -> Problem {
    let detail = "too many keys from this address were not valid";
    Problem::new(StatusCode::TOO_MANY_REQUESTS, ApiCode::TooManyFailures, detail)
        .field("Authorization")
        .fix("wait for as long as Retry-After says, and send a key that is valid")
        .retry_after_s(wait.as_secs() + 1)
}

/// A header that only a proxy adds.
fn forwarded(headers: &HeaderMap) -> Option<&str> {
    let added = |name: &&str| {
        matches!(*name, "forwarded" | "via" | "x-real-ip") || name.starts_with("x-forwarded")
    };
    headers.keys().map(HeaderName::as_str).find(added)
}

pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let key = value.to_str().ok().and_then(|v| v.strip_prefix(BEARER)).map(str::trim);
    key.map(Some)
        .ok_or_else(|| unauthenticated("the Authorization header is not a bearer token", SEND_KEY))
}

fn unauthenticated(detail: &str, fix: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, ApiCode::Unauthenticated, detail)
        .field("Authorization")
        .fix(fix)
}

/// A request without the header comes from a program, not from a browser.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let host = host.to_str().unwrap_or("");
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_without_a_key_is_local_only_from_here_and_unforwarded() {
        let auth = Auth::default();
        let here = Some(SocketAddr::from(([127, 0, 0, 1], 50_000)));
        let mapped = Some("[::ffff:127.0.0.1]:5".parse().unwrap());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, "localhost:7777".parse().unwrap());
        let local = auth.without_key(&headers, here).unwrap();
        assert_eq!(local.tenant.as_deref(), Some("default"));
        assert!(
            local.may(Scope::Worker) && !local.may(Scope::Admin) && !local.may(Scope::Collector)
        );
        assert!(auth.without_key(&headers, mapped).is_ok());
        for elsewhere in [None, Some(SocketAddr::from(([10, 0, 0, 7], 50_000)))] {
            let refused = auth.without_key(&headers, elsewhere).unwrap_err();
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        }
        for added in ["forwarded", "via", "x-forwarded-for", "X-Forwarded-Host", "x-real-ip"] {
            let mut headers = headers.clone();
            headers.insert(HeaderName::try_from(added).unwrap(), "x".parse().unwrap());
            let refused = auth.without_key(&headers, here).unwrap_err();
            assert_eq!(refused.status(), StatusCode::UNAUTHORIZED, "{added}");
        }
        auth.require();
        assert!(auth.without_key(&headers, here).is_err());
    }

    #[test]
    fn only_loopback_names_are_this_machine() {
        let names = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            names_this_machine(&headers)
        };
        for fine in ["localhost", "LOCALHOST:80", "127.0.0.1:7777", "127.9.9.9", "[::1]:80"] {
            assert!(names(fine), "{fine}");
        }
        for foreign in ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "[fe80::1]", ""]
        {
            assert!(!names(foreign), "{foreign}");
        }
    }
}
