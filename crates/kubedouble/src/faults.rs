//! What can go wrong, switched by the test.
//!
//! Two families. A [`Fault`] meets requests that fit an [`On`], a number of times or until it is cleared. The
//! faults of watches (silence, storms, distortion) are switches of the cluster, because a watch is
//! answered long after its request.

use crate::status::Refusal;
use std::time::Duration;

/// Which requests a fault meets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct On {
    verb: Option<String>,
    resource: Option<String>,
    name: Option<String>,
}

impl On {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// A verb (`list`, `watch`, `create`, …) on a resource (`pods`, `pods/log`, `leases`, …).
    pub fn verb(verb: &str, resource: &str) -> Self {
        On { verb: Some(verb.to_owned()), resource: Some(resource.to_owned()), name: None }
    }

    /// Every verb on a resource.
    pub fn resource(resource: &str) -> Self {
        On { verb: None, resource: Some(resource.to_owned()), name: None }
    }

    /// `list` on a resource.
    pub fn list(resource: &str) -> Self {
        Self::verb("list", resource)
    }

    /// `watch` on a resource.
    pub fn watch(resource: &str) -> Self {
        Self::verb("watch", resource)
    }

    /// `create` on a resource.
    pub fn create(resource: &str) -> Self {
        Self::verb("create", resource)
    }

    /// Only for the object of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub(crate) fn fits(&self, verb: &str, resource: &str, name: Option<&str>) -> bool {
        self.verb.as_deref().is_none_or(|v| v == verb)
            && self.resource.as_deref().is_none_or(|r| r == resource)
            && self.name.as_deref().is_none_or(|n| Some(n) == name)
    }
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The server says no.
    Refuse(Refusal),
    /// Something between client and server answers, in its own words.
    Proxy {
        /// The code of the answer.
        code: u16,
        /// The page.
        body: String,
    },
    /// The connection is closed; the request has done nothing.
    Cut,
    /// The request is carried out and the connection is closed before the answer.
    AnswerLost,
    /// The answer comes, later. Other faults of the same request still happen.
    Slow(Duration),
    /// The answer never comes, and the connection stays open.
    Hang,
}

impl Fault {
    /// 429, as priority and fairness answers it.
    pub fn too_many_requests(retry_after_seconds: u32) -> Self {
        let words = "too many requests, please try again later";
        let mut refusal = Refusal::new(429, "TooManyRequests", words);
        refusal.retry_after = Some(retry_after_seconds);
        Fault::Refuse(refusal)
    }

    /// 500.
    pub fn internal_error() -> Self {
        let words = "Internal error occurred: etcdserver: request timed out";
        Fault::Refuse(Refusal::new(500, "InternalError", words))
    }

    /// 503.
    pub fn unavailable() -> Self {
        let words = "the server is currently unable to handle the request";
        Fault::Refuse(Refusal::new(503, "ServiceUnavailable", words))
    }

    /// 504, which says nothing about whether the request was carried out.
    pub fn timeout() -> Self {
        let words = "Timeout: request did not complete within the allotted timeout";
        Fault::Refuse(Refusal::new(504, "Timeout", words))
    }

    /// 403. To take a right away for good, see `Cluster::forbid`.
    pub fn forbidden() -> Self {
        Fault::Refuse(Refusal::new(403, "Forbidden", "forbidden: not allowed by the test"))
    }

    /// 403 of a quota: the request is right, there is no room.
    pub fn quota_exceeded() -> Self {
        let words = "pods \"x\" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=10, limited: pods=10";
        Fault::Refuse(Refusal::new(403, "Forbidden", words))
    }

    /// HTTP 410.
    pub fn gone() -> Self {
        let words =
            "The provided continue parameter is too old to display a consistent list result.";
        Fault::Refuse(Refusal::expired(words))
    }
}

/// For how many requests a fault stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// For the next so many that fit.
    Next(u32),
    /// Until it is cleared.
    Always,
}

/// The name of a fault, to clear it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

/// What is done to the order and the number of the events of all watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distortion {
    /// Every event comes this many times more.
    pub duplicates: u32,
    /// So many events are gathered, and then come in reversed order. 0 and 1 change nothing.
    pub reverse: usize,
}

#[derive(Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    made: u64,
    pub(crate) silent: bool,
    pub(crate) storm: Option<Refusal>,
    pub(crate) distortion: Distortion,
    pub(crate) frozen: bool,
}

struct Rule {
    id: FaultId,
    on: On,
    fault: Fault,
    times: Times,
}

impl Faults {
    pub(crate) fn add(&mut self, on: On, fault: Fault, times: Times) -> FaultId {
        self.made += 1;
        let id = FaultId(self.made);
        self.rules.push(Rule { id, on, fault, times });
        id
    }

    pub(crate) fn clear(&mut self, id: FaultId) {
        self.rules.retain(|r| r.id != id);
    }

    pub(crate) fn clear_all(&mut self) {
        self.rules.clear();
        self.silent = false;
        self.storm = None;
        self.frozen = false;
        self.distortion = Distortion::default();
    }

    /// The faults that this request meets, in the order in which they were made, up to the first that decides.
    pub(crate) fn meet(&mut self, verb: &str, resource: &str, name: Option<&str>) -> Vec<Fault> {
        let mut met = Vec::new();
        for rule in &mut self.rules {
            if !rule.on.fits(verb, resource, name) || rule.times == Times::Next(0) {
                continue;
            }
            if let Times::Next(left) = &mut rule.times {
                *left -= 1;
            }
            met.push(rule.fault.clone());
            if !matches!(rule.fault, Fault::Slow(_)) {
                break;
            }
        }
        self.rules.retain(|r| r.times != Times::Next(0));
        met
    }
}
