//! Who calls, and what they may do.
//!
//! On a loopback address no key is needed: whoever reaches it is on this machine. Two traps are closed. A key
//! that is presented is checked all the same, and its tenant applies. And a request without a key must name a
//! loopback host: a web page that resolves its own name to 127.0.0.1, or a proxy that publishes the port, names
//! another.
//!
//! On any other address every request needs a key, and the server does not start while there is none.

use crate::{
    App,
    keys::{self, Scope},
    problem::{ApiCode, Problem},
};
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{error::StoreError, ids::EntityId, stream::Hash};
use tenure_remote::wire::BEARER;

/// A key that was found valid is believed for so long: a revocation takes effect within it.
const BELIEVED: Duration = Duration::from_secs(3);
/// Keys that are remembered.
const REMEMBERED_MAX: usize = 1_024;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Whose entities they reach; `None` for everybody's (a key without a tenant, or loopback without a key).
    pub tenant: Option<String>,
    /// What they may do.
    pub scopes: Vec<Scope>,
    /// Which key they showed.
    pub key: Option<EntityId>,
}

impl Caller {
    /// Somebody on this machine, without a key.
    pub fn local() -> Self {
        Caller { tenant: None, scopes: Scope::ALL.to_vec(), key: None }
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
        let detail = format!("this needs the scope {scope}; the key has {}", has.join(", "));
        Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("Authorization")
            .fix(format!("use a key with the scope {scope}")))
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

/// Decides who calls.
#[derive(Debug, Default)]
pub struct Auth {
    required: AtomicBool,
    remembered: Mutex<HashMap<EntityId, Remembered>>,
}

#[derive(Debug)]
struct Remembered {
    /// Of the secret that was shown: the secret itself is not kept.
    digest: Hash,
    caller: Caller,
    until: Duration,
}

impl Auth {
    /// Refuses an address that can be reached from outside while there is no key; else insists on one from
    /// now on. Called with the address that is really bound.
    pub async fn protect(&self, at: SocketAddr, pipeline: &Pipeline) -> Result<(), NotProtected> {
        if at.ip().is_loopback() {
            return Ok(());
        }
        self.required.store(true, Ordering::SeqCst);
        if keys::any_active(pipeline).await? { Ok(()) } else { Err(NotProtected::NoKey(at)) }
    }

    /// Insists on keys.
    pub(crate) fn require(&self) {
        self.required.store(true, Ordering::SeqCst);
    }

    /// Forgets what it believed: after a revocation in this process.
    pub fn forget(&self) {
        self.remembered().clear();
    }

    fn remembered(&self) -> std::sync::MutexGuard<'_, HashMap<EntityId, Remembered>> {
        // Nothing panics under this lock; what is remembered is only a shortcut.
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sent these headers.
    pub async fn caller(
        &self,
        headers: &HeaderMap,
        pipeline: &Pipeline,
    ) -> Result<Caller, Problem> {
        match bearer(headers)? {
            Some(key) => self.check(key, pipeline).await,
            None if self.required.load(Ordering::SeqCst) => Err(unauthenticated(
                "this server is reachable from outside and needs an API key",
                "send the header Authorization: Bearer tnr_…",
            )),
            None if !names_this_machine(headers) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                ApiCode::Forbidden,
                "a request without a key has to name this machine, and its Host header names another",
            )
            .field("Host")
            .fix("call 127.0.0.1 or localhost, or send a key")),
            None => Ok(Caller::local()),
        }
    }

    async fn check(&self, key: &str, pipeline: &Pipeline) -> Result<Caller, Problem> {
        let refused = || {
            unauthenticated(
                "this API key is not valid: unknown, mistyped or revoked",
                "`tenure key create` makes a new one",
            )
        };
        let (id, secret) = keys::split(key).ok_or_else(refused)?;
        let (now, digest) = (pipeline.rt().mono(), Hash::of(secret.as_bytes()));
        if let Some(known) = self.remembered().get(&id)
            // Both are digests of secrets: how long this comparison takes tells nothing about either.
            && known.digest == digest
            && now < known.until
        {
            return Ok(known.caller.clone());
        }
        let head = pipeline.store().head(id).await?;
        let key = head.and_then(|head| keys::verify(&head, secret)).ok_or_else(refused)?;
        let caller = Caller { tenant: key.tenant, scopes: key.scopes, key: Some(id) };
        let mut remembered = self.remembered();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(id, Remembered { digest, caller: caller.clone(), until: now + BELIEVED });
        Ok(caller)
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        app.auth().caller(&parts.headers, app.pipeline()).await
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let key = value.to_str().ok().and_then(|v| v.strip_prefix(BEARER)).map(str::trim);
    key.map(Some).ok_or_else(|| {
        unauthenticated(
            "the Authorization header is not a bearer token",
            "send the header Authorization: Bearer tnr_…",
        )
    })
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
