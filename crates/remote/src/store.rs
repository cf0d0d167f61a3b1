//! A store at the other end of a wire.

use crate::{
    client::{ANSWER, Ask, BadAddress, Http, Intent, Servers, absent, succeeded, whole},
    tls::ClientTls,
    wire::{self, PAGE_MAX, Page, Unreadable, Words},
};
use reqwest::{Method, StatusCode};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::{RawValue, to_raw_value};
use std::{sync::Arc, time::Duration};
use tenure_kernel::{
    claims::{ClaimAnswer, ClaimRequest},
    error::StoreError,
    evidence::Evidence,
    feed::{Cursor, FeedPage},
    head::Head,
    health::Health,
    housekeeping::{Pulse, PulseRequest, Retired},
    ids::{EntityId, MessageId, SessionId},
    limits,
    mail::Mail,
    outbox::{DeliveryAnswer, Posted},
    rules::Tallies,
    runtime::BoxFuture,
    sessions::Session,
    store::{Answer, HeadFilter, KeyRange, Op, Store},
    stream::{Hash, Record},
    table::Tables,
    time::Timestamp,
};

/// Bytes of operations in one request, after which another is made. A batch is no transaction of its
/// own: each operation is decided alone, and asking again for all of them is safe, so it may be cut.
const REQUEST_BYTES: usize = 4 * 1024 * 1024;

/// A store that speaks the worker protocol. Does what a worker needs, and refuses the rest. Clones share
/// their connections.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    http: Http,
    words: Words,
}

impl RemoteStore {
    /// Speaks to the server at `base_url`, for example `http://127.0.0.1:7777`. `tables` are those of the
    /// machines this worker knows: an entity of another kind can not be read.
    pub fn new(base_url: &str, api_key: Option<&str>, tables: Tables) -> Result<Self, BadAddress> {
        RemoteStore::with_tls(base_url, api_key, &ClientTls::default(), tables)
    }

    /// The same with certificates of one's own.
    pub fn with_tls(
        base_url: &str,
        api_key: Option<&str>,
        tls: &ClientTls,
        tables: Tables,
    ) -> Result<Self, BadAddress> {
        Ok(RemoteStore::at(&Http::new(base_url, api_key, tls)?, tables))
    }

    /// Speaks to these servers.
    pub fn at(servers: &Servers, tables: Tables) -> Self {
        RemoteStore { http: servers.clone(), words: Words::new(tables) }
    }

    async fn send(&self, ops: Vec<Box<RawValue>>) -> Result<Vec<wire::Answer>, StoreError> {
        #[derive(Serialize)]
        struct Written {
            ops: Vec<Box<RawValue>>,
        }
        let n = ops.len();
        let path = "v1/worker/apply";
        let answer: wire::ApplyAnswer =
            self.http.post(path, &Written { ops }, Intent::Write, ANSWER, &self.words).await?;
        if answer.answers.len() != n {
            let got = answer.answers.len();
            return Err(StoreError::Refused(format!("{got} answers to {n} operations")));
        }
        Ok(answer.answers)
    }

    /// Reads pages until there are `limit` items or no more.
    async fn pages<T: DeserializeOwned, K>(
        &self,
        limit: usize,
        path: impl Fn(Option<&K>, usize) -> String,
        item: impl Fn(T) -> Result<K, Unreadable>,
    ) -> Result<Vec<K>, StoreError> {
        let mut all: Vec<K> = Vec::new();
        while all.len() < limit {
            let want = (limit - all.len()).min(PAGE_MAX);
            let page: Option<Page<T>> = self.http.get(&path(all.last(), want), &self.words).await?;
            // Something that is not there has no mail, as in every store.
            let Some(page) = page else { break };
            let (got, more) = (page.items.len(), page.more);
            for one in page.items {
                all.push(item(one).map_err(unreadable)?);
            }
            // A page may be cut by its bytes; only the server knows.
            if got == 0 || !(more || got == want) {
                break;
            }
        }
        Ok(all)
    }
}

fn unreadable(e: Unreadable) -> StoreError {
    StoreError::Refused(format!("the server's answer can not be read: {e}"))
}

fn written<T>(value: &T) -> Result<Box<RawValue>, StoreError>
where
    T: Serialize,
{
    to_raw_value(value).map_err(|e| StoreError::Refused(format!("can not be written: {e}")))
}

fn query(pairs: &[(&str, &str)]) -> String {
    // Texts always encode.
    serde_urlencoded::to_string(pairs).unwrap_or_default()
}

/// What a server alone does: said at once, so that its neighbours in the batch are not held up.
fn not_for_workers(op: &Op) -> Answer {
    match op {
        Op::Deliver(_) => {
            Answer::Deliver(DeliveryAnswer::Refused("a worker does not deliver".into()))
        }
        _ => Answer::Touch(false),
    }
}

fn refused<'a, T: Send + 'a>(what: &str) -> BoxFuture<'a, Result<T, StoreError>> {
    let why = format!("a worker does not {what}: that is the server's");
    Box::pin(async move { Err(StoreError::Refused(why)) })
}

impl Store for RemoteStore {
    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            let mut answers: Vec<Option<Answer>> = Vec::with_capacity(ops.len());
            let (mut batch, mut bytes) = (Vec::new(), 0);
            let mut got = Vec::new();
            for op in ops.iter() {
                let Some(op) = wire::Op::of(op) else {
                    answers.push(Some(not_for_workers(op)));
                    continue;
                };
                answers.push(None);
                let op = written(&op)?;
                if !batch.is_empty() && bytes + op.get().len() > REQUEST_BYTES {
                    got.extend(self.send(std::mem::take(&mut batch)).await?);
                    bytes = 0;
                }
                bytes += op.get().len();
                batch.push(op);
            }
            if !batch.is_empty() {
                got.extend(self.send(batch).await?);
            }
            let mut got = got.into_iter();
            for answer in answers.iter_mut().filter(|a| a.is_none()) {
                // `send` has counted them.
                let one = got.next().unwrap_or(wire::Answer::Busy);
                *answer = Some(one.read(&self.words).map_err(unreadable)?);
            }
            Ok(answers.into_iter().flatten().collect())
        })
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<ClaimAnswer, StoreError>> {
        Box::pin(async move {
            let body = wire::ClaimRequest::of(&request);
            let path = "v1/worker/claim";
            let answer: wire::ClaimAnswer =
                self.http.post(path, &body, Intent::Write, ANSWER, &self.words).await?;
            answer.read(&self.words).map_err(unreadable)
        })
    }

    fn ready_groups(
        &self,
        queue: &str,
        below: Option<i16>,
    ) -> BoxFuture<'_, Result<Vec<(i16, String)>, StoreError>> {
        let below = below.map(|b| b.to_string());
        let mut asked = vec![("queue", queue)];
        asked.extend(below.as_deref().map(|b| ("below", b)));
        let path = format!("v1/worker/ready?{}", query(&asked));
        Box::pin(async move {
            let answer: Option<wire::ReadyAnswer> = self.http.get(&path, &self.words).await?;
            let groups = answer.map(|a| a.groups).unwrap_or_default();
            Ok(groups.into_iter().map(|g| (g.priority, g.tenant)).collect())
        })
    }

    fn ready_queues(
        &self,
        _after: &str,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        refused("list queues")
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        Box::pin(async move {
            let answer: Option<wire::NowAnswer> =
                self.http.get("v1/worker/now", &self.words).await?;
            let gone = || StoreError::Refused("the server has no time".into());
            answer.map(|a| a.now).ok_or_else(gone)
        })
    }

    fn head(&self, id: EntityId) -> BoxFuture<'_, Result<Option<Head>, StoreError>> {
        Box::pin(async move {
            let path = format!("v1/worker/entities/{id}");
            let head: Option<wire::Head> = self.http.get(&path, &self.words).await?;
            head.map(|h| h.read(&self.words)).transpose().map_err(unreadable)
        })
    }

    fn heads(
        &self,
        _filter: HeadFilter,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        refused("list entities")
    }

    fn keys(
        &self,
        _range: KeyRange,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(String, EntityId)>, StoreError>> {
        refused("look up keys")
    }

    fn due(
        &self,
        _lanes: Vec<u16>,
        _overdue: Duration,
        _limit: usize,
    ) -> BoxFuture<'_, Result<(Timestamp, Vec<Head>), StoreError>> {
        refused("serve what is due")
    }

    fn latest_due(
        &self,
        _lanes: Vec<u16>,
        _by: Timestamp,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Head>, StoreError>> {
        refused("serve what is due")
    }

    fn next_due(
        &self,
        _lanes: Vec<u16>,
    ) -> BoxFuture<'_, Result<(Timestamp, Option<Timestamp>), StoreError>> {
        refused("serve what is due")
    }

    fn mail(
        &self,
        entity: EntityId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Mail>, StoreError>> {
        let path = move |last: Option<&Mail>, n: usize| {
            let after = last.map_or(after, |m| m.seq);
            format!("v1/worker/entities/{entity}/mail?after={after}&limit={n}")
        };
        Box::pin(async move { self.pages(limit, path, wire::Mail::read).await })
    }

    fn stream(
        &self,
        entity: EntityId,
        from: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Record>, StoreError>> {
        let path = move |last: Option<&Record>, n: usize| {
            let from = last.map_or(from, |r| r.last() + 1);
            format!("v1/worker/entities/{entity}/stream?from={from}&limit={n}")
        };
        Box::pin(async move { self.pages(limit, path, wire::Record::read).await })
    }

    fn outbox(
        &self,
        _lanes: Vec<u16>,
        _wire: bool,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Posted>, StoreError>> {
        refused("deliver messages")
    }

    fn outbox_has(&self, _id: MessageId) -> BoxFuture<'_, Result<bool, StoreError>> {
        refused("look into the outbox")
    }

    fn feed(&self, _after: Cursor, _limit: usize) -> BoxFuture<'_, Result<FeedPage, StoreError>> {
        refused("read the feed")
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        Box::pin(async move {
            let path = format!("v1/worker/sessions/{id}");
            let session: Option<wire::Session> = self.http.get(&path, &self.words).await?;
            Ok(session.map(wire::Session::read))
        })
    }

    fn live_sessions(&self) -> BoxFuture<'_, Result<Vec<Session>, StoreError>> {
        refused("look at the sessions of others")
    }

    fn evidence(&self, entity: EntityId) -> BoxFuture<'_, Result<Vec<Evidence>, StoreError>> {
        Box::pin(async move {
            let path = format!("v1/worker/entities/{entity}/evidence");
            let page: Option<Page<wire::Evidence>> = self.http.get(&path, &self.words).await?;
            let items = page.map(|p| p.items).unwrap_or_default();
            items.into_iter().map(|e| e.read().map_err(unreadable)).collect()
        })
    }

    fn put_blob(&self, bytes: Vec<u8>) -> BoxFuture<'_, Result<Hash, StoreError>> {
        Box::pin(async move {
            if bytes.len() > limits::BLOB_BYTES_MAX {
                let (what, limit) = ("blob in bytes", limits::BLOB_BYTES_MAX);
                return Err(StoreError::Limit { what, actual: bytes.len(), limit });
            }
            let digest = Hash::of(&bytes);
            let body = Some(("application/octet-stream", bytes));
            let ask = Ask { method: Method::PUT, path: "v1/worker/blobs", timeout: ANSWER, body };
            // The same bytes twice are one blob: a lost answer is no more than an absent store.
            let response = self.http.send(ask, Intent::Read).await?;
            succeeded(response, Intent::Read, &self.words).await?;
            Ok(digest)
        })
    }

    fn blob(&self, digest: Hash) -> BoxFuture<'_, Result<Option<Vec<u8>>, StoreError>> {
        Box::pin(async move {
            let path = format!("v1/worker/blobs/{digest}");
            let ask = Ask { method: Method::GET, path: &path, timeout: ANSWER, body: None };
            let response = self.http.send(ask, Intent::Read).await?;
            if response.status() == StatusCode::NOT_FOUND {
                return absent(response).await;
            }
            let response = succeeded(response, Intent::Read, &self.words).await?;
            let bytes = whole(response, limits::BLOB_BYTES_MAX, Intent::Read).await?;
            if Hash::of(&bytes) != digest {
                return Err(StoreError::Corrupt(format!("blob {digest} came with other bytes")));
            }
            Ok(Some(bytes))
        })
    }

    fn pulse(&self, _request: PulseRequest) -> BoxFuture<'_, Result<Pulse, StoreError>> {
        refused("leave a pulse")
    }

    fn tallies(&self) -> BoxFuture<'_, Result<Tallies, StoreError>> {
        refused("count what the rules did")
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, StoreError>> {
        refused("examine the store")
    }

    fn retire(
        &self,
        _ended_before: Timestamp,
        _limit: usize,
    ) -> BoxFuture<'_, Result<Retired, StoreError>> {
        refused("remove anything")
    }
}
