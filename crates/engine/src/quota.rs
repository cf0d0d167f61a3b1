//! Keeps tenants within their quotas, for a server.
//!
//! **Where it is asked.** All that creates goes through three places, and each asks here: a commit that creates an entity
//! ([`crate::pipeline::Pipeline`]: the API, workers, the SQL intake), a message that creates one ([`crate::lanes`]: children of
//! jobs and plans, schedules, batches, agents), and a value that a worker uploads or a signal that a caller sends
//! ([`QuotaKeeper::admit_bytes`]). Where a tenant has a quota, messages that create do not go with the commit that sends them
//! (`carry`): the transaction would learn too late whose they are.
//!
//! **What becomes of a refusal.** A submission is answered 429. A message goes back to its sender with the reason: a job takes it
//! for the failure of its child, a schedule and a batch note it. A row of the SQL intake waits.
//!
//! **What it costs.** Without quotas nothing. Open entities are counted when the last count says that there is no room, and not
//! more often than a tenth of the time; bytes are counted in pages, in the background, for a twentieth of the time. The counts
//! are decided upon by [`tenure_kernel::quota`].

use crate::stop::Stop;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    commit::{Commit, Expect},
    error::StoreError,
    limits,
    quota::{Account, Admission, Asked, Quota, QuotaPart, Quotas},
    runtime::Rt,
    store::Store,
    stream::Body,
};

/// The part of the time, as its inverse, that counting open entities may take.
const OPEN_SHARE: u32 = 10;
/// The same for bytes.
const BYTES_SHARE: u32 = 20;
/// The shortest pause between two counts of open entities, and of bytes.
const OPEN_PAUSE: Duration = Duration::from_millis(50);
const BYTES_PAUSE: Duration = Duration::from_secs(10);
/// Entities of which one read says the size.
const SIZES_PAGE: usize = 500;
/// Tenants that are remembered beside those with a quota of their own; then the memory starts over.
const ACCOUNTS_MAX: usize = 10_000;

/// Keeps the quotas. Cheap to share.
pub struct QuotaKeeper {
    quotas: Quotas,
    kinds: &'static [&'static str],
    store: Arc<dyn Store>,
    rt: Rt,
    books: Mutex<Books>,
    /// Held by whoever counts open entities: one at a time.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Books {
    accounts: HashMap<String, Account>,
    /// Servers that are alive, as far as was seen.
    servers: u64,
    /// When open entities were counted last, and may be counted again.
    counted_at: Option<Duration>,
    count_after: Duration,
}

/// Whether what is admitted counts from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taking {
    Room,
    Nothing,
}

/// What a tenant uses of one part of its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Whose.
    pub tenant: String,
    /// Of what.
    pub part: QuotaPart,
    /// How much; `None` where it was not counted yet, or is a speed.
    pub used: Option<u64>,
    /// How much it may be.
    pub limit: u64,
    /// What this server refused since it started.
    pub refused: u64,
}

impl QuotaKeeper {
    /// Keeps these quotas; entities of these kinds count as open. `None`: there are no quotas.
    pub(crate) fn new(
        quotas: &Quotas,
        kinds: &'static [&'static str],
        store: &Arc<dyn Store>,
        rt: &Rt,
    ) -> Option<Arc<Self>> {
        if quotas.is_empty() {
            return None;
        }
        Some(Arc::new(QuotaKeeper {
            quotas: quotas.clone(),
            kinds,
            store: store.clone(),
            rt: rt.clone(),
            books: Mutex::default(),
            counting: tokio::sync::Mutex::default(),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing panics under this lock.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether entities of this kind are counted.
    pub(crate) fn counts(&self, kind: &str) -> bool {
        self.kinds.contains(&kind)
    }

    /// Admits a commit, if it creates something that is counted.
    pub(crate) async fn admit_commit(&self, commit: &Commit) -> Result<(), StoreError> {
        self.ask_for(commit, Taking::Room).await
    }

    /// Whether it would be admitted: asked before its large bodies are stored, which a refusal would leave behind.
    pub(crate) async fn has_room_for(&self, commit: &Commit) -> Result<(), StoreError> {
        self.ask_for(commit, Taking::Nothing).await
    }

    async fn ask_for(&self, commit: &Commit, taking: Taking) -> Result<(), StoreError> {
        let Expect::Absent(birth) = &commit.expect else { return Ok(()) };
        if !self.counts(birth.kind) {
            return Ok(());
        }
        let asked = Asked { entity: true, bytes: bytes_of(commit), submitted: true };
        self.admit(&birth.tenant, asked, taking).await
    }

    /// Admits what running work creates.
    pub(crate) async fn admit_child(&self, tenant: &str, bytes: usize) -> Result<(), StoreError> {
        let asked = Asked { entity: true, bytes: bytes as u64, submitted: false };
        self.admit(tenant, asked, Taking::Room).await
    }

    /// Admits bytes that come with no entity of their own.
    pub async fn admit_bytes(&self, tenant: &str, bytes: usize) -> Result<(), StoreError> {
        let asked = Asked { entity: false, bytes: bytes as u64, submitted: false };
        self.admit(tenant, asked, Taking::Room).await
    }

    /// Takes one of a tenant's submissions per second for something that creates nothing.
    pub async fn admit_rate(&self, tenant: &str) -> Result<(), StoreError> {
        let asked = Asked { entity: false, bytes: 0, submitted: true };
        self.admit(tenant, asked, Taking::Room).await
    }

    async fn admit(&self, tenant: &str, asked: Asked, taking: Taking) -> Result<(), StoreError> {
        let Some(quota) = self.quotas.of(tenant) else { return Ok(()) };
        match self.ask(tenant, quota, asked, taking, true) {
            Admission::Admitted => return Ok(()),
            Admission::Exceeded(exceeded) => return Err(exceeded.into()),
            Admission::CountFirst => self.count_open().await?,
        }
        match self.ask(tenant, quota, asked, taking, false) {
            Admission::Exceeded(exceeded) => Err(exceeded.into()),
            Admission::Admitted | Admission::CountFirst => Ok(()),
        }
    }

    fn ask(
        &self,
        tenant: &str,
        quota: &Quota,
        asked: Asked,
        taking: Taking,
        count_again: bool,
    ) -> Admission {
        let now = self.rt.mono();
        let mut books = self.books();
        let again = count_again && (books.counted_at.is_none() || now >= books.count_after);
        let servers = books.servers;
        if books.accounts.len() >= ACCOUNTS_MAX && !books.accounts.contains_key(tenant) {
            books.accounts.clear();
            books.counted_at = None;
        }
        let known = books.counted_at.is_some();
        let account = books.accounts.entry(tenant.to_owned()).or_insert_with(|| {
            let mut account = Account::default();
            // A tenant that the last count did not find has nothing open.
            if known {
                account.counted(QuotaPart::Open, 0);
            }
            account
        });
        match taking {
            Taking::Room => account.admit(tenant, quota, asked, now, servers, again),
            Taking::Nothing => account.clone().admit(tenant, quota, asked, now, servers, again),
        }
    }

    /// Counts open entities, unless somebody else has just done so.
    async fn count_open(&self) -> Result<(), StoreError> {
        let wanted = self.rt.mono();
        let _alone = self.counting.lock().await;
        let begun = self.rt.mono();
        {
            let mut books = self.books();
            if books.counted_at.is_some_and(|at| at >= wanted) {
                return Ok(());
            }
            books.accounts.values_mut().for_each(|account| account.begin(QuotaPart::Open));
        }
        let servers = self.store.live_sessions().await?;
        let counts = self.store.open_by_tenant().await?;
        let mut open: BTreeMap<String, u64> = BTreeMap::new();
        for count in counts.into_iter().filter(|c| self.counts(&c.kind)) {
            *open.entry(count.tenant).or_default() += count.count;
        }
        let now = self.rt.mono();
        let mut books = self.books();
        books.servers = servers.iter().filter(|s| s.role == "server").count() as u64;
        books.counted_at = Some(begun);
        books.count_after = now + OPEN_PAUSE.max((now - begun) * OPEN_SHARE);
        self.note(&mut books, QuotaPart::Open, &open);
        Ok(())
    }

    fn note(&self, books: &mut Books, part: QuotaPart, counts: &BTreeMap<String, u64>) {
        for tenant in counts.keys().filter(|tenant| self.quotas.of(tenant).is_some()) {
            books.accounts.entry(tenant.clone()).or_default();
        }
        for (tenant, account) in &mut books.accounts {
            account.counted(part, counts.get(tenant).copied().unwrap_or(0));
        }
    }

    /// Adds up the sizes of all entities.
    async fn count_bytes(&self) -> Result<(), StoreError> {
        self.books().accounts.values_mut().for_each(|account| account.begin(QuotaPart::Bytes));
        let (mut bytes, mut after): (BTreeMap<String, u64>, _) = (BTreeMap::new(), None);
        loop {
            let page = self.store.sizes(after, SIZES_PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            for size in page {
                *bytes.entry(size.tenant).or_default() += size.bytes;
            }
        }
        self.note(&mut self.books(), QuotaPart::Bytes, &bytes);
        Ok(())
    }

    /// Counts bytes, and how many servers there are, until asked to stop.
    pub(crate) async fn run(&self, tick: Duration, mut stop: Stop) {
        let mut bytes_after = Duration::ZERO;
        loop {
            let begun = self.rt.mono();
            let mut counted = self.count_servers().await;
            if counted.is_ok() && self.quotas.count_bytes() && begun >= bytes_after {
                counted = self.count_bytes().await;
                let now = self.rt.mono();
                bytes_after = now + BYTES_PAUSE.max((now - begun) * BYTES_SHARE);
            }
            if let Err(e) = counted {
                tracing::warn!(error = %e, "what tenants use could not be counted; the last count decides");
            }
            if stop.unless(self.rt.sleep(tick)).await.is_none() {
                return;
            }
        }
    }

    async fn count_servers(&self) -> Result<(), StoreError> {
        let sessions = self.store.live_sessions().await?;
        let servers = sessions.iter().filter(|s| s.role == "server").count() as u64;
        self.books().servers = servers;
        Ok(())
    }

    /// What tenants use, in the order of their names: one of them, or all that have a quota and are known. Open entities are
    /// counted for it, if they may be.
    pub async fn usage(&self, tenant: Option<&str>) -> Result<Vec<Usage>, StoreError> {
        let after = self.books().count_after;
        if self.rt.mono() >= after {
            self.count_open().await?;
        }
        Ok(self.known_usage(tenant))
    }

    /// The same as of the last count.
    pub fn known_usage(&self, tenant: Option<&str>) -> Vec<Usage> {
        let books = self.books();
        let known = books.accounts.keys().map(String::as_str);
        let mut tenants: Vec<&str> = match tenant {
            Some(tenant) => vec![tenant],
            None => known.chain(self.quotas.tenants()).collect(),
        };
        tenants.sort_unstable();
        tenants.dedup();
        let nothing = Account::default();
        let mut all = Vec::new();
        for tenant in tenants {
            let Some(quota) = self.quotas.of(tenant) else { continue };
            let account = books.accounts.get(tenant).unwrap_or(&nothing);
            for part in QuotaPart::ALL {
                let Some(limit) = quota.limit(part) else { continue };
                let (used, refused) = (account.used(part), account.refused(part));
                let tenant = tenant.to_owned();
                all.push(Usage { tenant, part, used, limit, refused });
            }
        }
        all
    }
}

/// The bytes that a commit brings, values included.
fn bytes_of(commit: &Commit) -> u64 {
    let values = bodies(commit).map(|body| match body {
        Body::Blob { len, .. } => *len,
        Body::Inline(_) => 0,
    });
    commit.weight() as u64 + values.sum::<u64>()
}

fn bodies(commit: &Commit) -> impl Iterator<Item = &Body> {
    let events = commit.events.iter().map(|e| &e.body);
    events.chain(commit.messages.iter().map(|m| &m.body))
}

/// Whether a body of it has to be stored before it.
pub(crate) fn has_large_bodies(commit: &Commit) -> bool {
    let large = |bytes: &[u8]| bytes.len() > limits::BODY_INLINE_BYTES_MAX;
    bodies(commit).filter_map(Body::inline).any(large)
}
