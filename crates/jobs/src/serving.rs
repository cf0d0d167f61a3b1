//! Which live worker serves which ready queue. A worker says it once, in the first event of its session; the row that
//! it renews stays as small as it was.

use crate::terms::{Serves, UNNAMED};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use tenure_kernel::{error::StoreError, ids::SessionId, sessions::Session, store::Store};

/// The member of a session's first event.
pub const MEMBER: &str = "serves";
/// Live sessions that are looked at. Those that only take calls are among them: what a session is stands in its first
/// event.
pub const LOOKED_AT_MAX: usize = 5_000;
/// Sessions whose first events are read at once.
const AT_ONCE: usize = 32;
/// Bytes of flow names that a session says. A worker with more says none, and is taken for one of any flow: that it
/// is there is never hidden.
const FLOWS_BYTES_MAX: usize = 8 * 1024;

/// What a worker says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// Its queues; `default` is the unnamed one.
    pub queues: Vec<String>,
    /// What it can.
    #[serde(default)]
    pub can: Vec<String>,
    /// Its flows with their versions; `None` if there are too many to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Vec<String>>,
}

/// A ready queue, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// The name of the queue, if it has one.
    pub queue: Option<&'a str>,
    /// What is needed.
    pub needs: Vec<&'a str>,
}

/// Takes the name of a ready queue apart behind `flow@version`; `None` if it is another flow's.
pub fn parts<'a>(ready: &'a str, flow: &str) -> Option<Parts<'a>> {
    let rest = ready.strip_prefix(flow)?;
    let mut words = rest.split('+');
    let queue = match words.next()? {
        "" => None,
        named => Some(named.strip_prefix('/')?),
    };
    Some(Parts { queue, needs: words.collect() })
}

/// `flow@version` of a ready queue. No flow has a slash or a plus behind its version, and the version is a number.
pub fn flow_of(ready: &str) -> &str {
    let Some(at) = ready.rfind('@') else { return ready };
    let digits = ready[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
    &ready[..at + 1 + digits]
}

/// Whether a ready queue is one of jobs, by its name: calls of tools and turns of agents stand in queues of other names.
pub fn is_of_jobs(ready: &str) -> bool {
    let flow = flow_of(ready);
    let rest = &ready[flow.len()..];
    let others = [crate::call::QUEUE, tenure_kernel::wakeup::QUEUE];
    flow.ends_with(|last: char| last.is_ascii_digit())
        && flow.contains('@')
        && (rest.is_empty() || rest.starts_with(['/', '+']))
        && !others.iter().any(|other| ready.starts_with(other))
}

impl Serving {
    /// What a worker with these flows says.
    pub fn new(serves: &Serves, flows: impl Iterator<Item = String>) -> Self {
        let (queues, can) = serves.words();
        let flows: Vec<String> = flows.collect();
        let fits = flows.iter().map(|f| f.len() + 3).sum::<usize>() <= FLOWS_BYTES_MAX;
        Serving { queues, can, flows: fits.then_some(flows) }
    }

    /// Whether it looks into this ready queue.
    pub fn covers(&self, ready: &str) -> bool {
        let flow = flow_of(ready);
        let known = self.flows.as_ref().is_none_or(|flows| flows.iter().any(|f| f == flow));
        let fits = |parts: Parts<'_>| {
            let queue = parts.queue.unwrap_or(UNNAMED);
            self.queues.iter().any(|q| q == queue)
                && parts.needs.iter().all(|need| self.can.iter().any(|c| c == need))
        };
        known && parts(ready, flow).is_some_and(fits)
    }
}

/// A live session that may run jobs.
#[derive(Clone, Debug)]
pub struct Hand {
    /// Which.
    pub session: SessionId,
    /// Who, for people.
    pub name: String,
    /// Whose jobs it takes; empty for everybody's.
    pub tenant: String,
    /// What it said; `None` for a worker of an older release, of which anything may be true.
    pub serving: Option<Serving>,
}

impl Hand {
    /// Whether it may take a job of this queue and tenant, as far as anybody can tell.
    pub fn takes(&self, ready: &str, tenant: &str) -> bool {
        (self.tenant.is_empty() || self.tenant == tenant)
            && self.serving.as_ref().is_none_or(|s| s.covers(ready))
    }
}

/// Live sessions that may run jobs.
#[derive(Clone, Debug, Default)]
pub struct Hands {
    /// Those that were found.
    pub hands: Vec<Hand>,
    /// Whether all sessions were looked at. Where not, that nobody was found says nothing.
    pub all: bool,
}

impl Hands {
    /// So many of them; `None` where nobody was found and not all were looked at.
    pub fn count(&self, which: impl Fn(&Hand) -> bool) -> Option<u64> {
        let found = self.hands.iter().filter(|h| which(h)).count() as u64;
        (self.all || found > 0).then_some(found)
    }
}

/// Live sessions that may run jobs. Workers that only have tools for calls are none.
pub async fn hands(store: &Arc<dyn Store>) -> Result<Hands, StoreError> {
    let mut live = store.live_sessions().await?;
    let all = live.len() <= LOOKED_AT_MAX;
    live.truncate(LOOKED_AT_MAX);
    let mut hands = Vec::new();
    for some in live.chunks(AT_ONCE) {
        let read = some.iter().map(|session| hand(store, session.clone()));
        hands.extend(try_join_all(read).await?.into_iter().flatten());
    }
    Ok(Hands { hands, all })
}

async fn hand(store: &Arc<dyn Store>, session: Session) -> Result<Option<Hand>, StoreError> {
    let records = store.stream(session.id, 1, 1).await?;
    let opened = records.first().and_then(|r| r.events().ok()?.into_iter().next());
    let body: Value = opened
        .and_then(|e| tenure_kernel::stored::from_slice(e.body.inline()?).ok())
        .unwrap_or_default();
    let serving = serde_json::from_value(body[MEMBER].clone()).ok();
    if serving.is_none() && (session.role != "worker" || is_for_others(&body)) {
        return Ok(None);
    }
    let tenant = store.head(session.id).await?.map(|h| h.tenant).unwrap_or_default();
    Ok(Some(Hand { session: session.id, name: session.name, tenant, serving }))
}

/// Whether a session says in its first event that it takes calls of tools, turns of agents or tasks. Workers of older releases
/// that run jobs say nothing.
fn is_for_others(opened: &Value) -> bool {
    ["tools", "targets", "clusters"].iter().any(|member| !opened[member].is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::ready_queue;
    use serde_json::json;

    #[test]
    fn sessions_for_calls_turns_and_tasks_run_no_jobs() {
        for other in ["tools", "targets", "clusters"] {
            assert!(is_for_others(&json!({ "name": "w", (other): ["x"] })), "{other}");
        }
        assert!(!is_for_others(&json!({ "name": "w", "role": "worker", "lease_ms": 1 })));
    }

    #[test]
    fn a_worker_is_counted_exactly_where_it_looks() {
        let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let serves = Serves::new(own(&["default", "night"]), own(&["gpu", "big"])).unwrap();
        let flows = ["a.b@1", "c/d+e@12"];
        let serving = Serving::new(&serves, flows.iter().map(|f| (*f).to_owned()));
        let looked: Vec<String> =
            serves.of_flow("a.b", 1).into_iter().chain(serves.of_flow("c/d+e", 12)).collect();
        for (flow, version) in [("a.b", 1), ("a.b", 2), ("c/d+e", 12), ("c/d+e", 1), ("x", 1)] {
            for queue in [None, Some("night"), Some("day")] {
                for needs in [&[][..], &["big"], &["big", "gpu"], &["disk"], &["big", "disk"]] {
                    let ready = ready_queue(flow, version, queue, &own(needs));
                    assert_eq!(serving.covers(&ready), looked.contains(&ready), "{ready}");
                    let parts = parts(&ready, flow_of(&ready)).unwrap();
                    assert_eq!((parts.queue, parts.needs.as_slice()), (queue, needs));
                }
            }
        }
    }

    #[test]
    fn a_worker_with_too_many_flows_to_say_is_not_hidden() {
        let many = (0..2_000).map(|n| format!("flow-{n}@1"));
        let serving = Serving::new(&Serves::default(), many);
        assert!(serving.flows.is_none() && serving.covers("flow-7@1"));
        assert!(!serving.covers("flow-7@1+gpu"));
    }
}
