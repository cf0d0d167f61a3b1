//! What a worker, or a server that hands calls out, knows of limits: which there are, and the tokens it has taken ahead.
//!
//! The road not taken is to ask a limit by mail for each call: two commits and a turn of the due loop between a step and
//! the next. Here a block of tokens is one commit, and a call that finds one in memory pays nothing.

use crate::shared::{
    amend,
    limit::{
        Event, Limit, Spec, State, Token,
        book::{self, LimitBook},
        decide::{self, Take},
        desk, each,
        model::{EVERYBODY, limits::LEAD},
    },
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect},
    error::StoreError,
    ids::EntityId,
    machine::{Decision, Machine as _, decode_state, encode_state},
    stream::{Body, NewEvent},
    time::Timestamp,
};

/// How old the knowledge of which limits there are may get. A new limit counts so much later.
pub const BOOK_GOOD_FOR: Duration = Duration::from_secs(2);
/// How often a block is asked for when others are faster.
const TRIES: u32 = 16;
/// A limit that was read longer ago is read again before it is believed that there is no token: it may have been changed.
const BASE_GOOD_FOR: Duration = Duration::from_millis(500);

/// Books of tenants that a worker keeps in mind; with more it begins anew.
const BOOKS_MAX: usize = 10_000;
/// Limits whose tokens a worker keeps in mind; with more it forgets those that nobody takes from now.
const POOLS_MAX: usize = 10_000;

/// The limits that a worker knows of.
#[derive(Default)]
pub struct Limits {
    /// Those for all together.
    common: Arc<Known>,
    /// Those of tenants, where there are such.
    own: RwLock<HashMap<String, Arc<Known>>>,
    pools: Mutex<HashMap<EntityId, Arc<tokio::sync::Mutex<Pool>>>>,
}

/// What is known of one book.
#[derive(Default)]
struct Known {
    /// Whether it lists any.
    any: AtomicBool,
    /// Whether tenants have books of their own.
    tenants: AtomicBool,
    /// When the book was read last, in microseconds of this process's clock; 0 before the first look.
    read_at: AtomicU64,
    /// When to look again.
    look_at: AtomicU64,
    /// One reads, the others wait for it.
    looking: tokio::sync::Mutex<()>,
    by_tool: RwLock<HashMap<String, Listed>>,
}

/// What a book says of one tool.
#[derive(Default)]
struct Listed {
    limits: Vec<ListedLimit>,
    /// The limit for each tenant.
    each: Option<Spec>,
}

struct ListedLimit {
    tenant: String,
    id: EntityId,
    /// It holds instead of the one for each tenant.
    instead: bool,
}

/// The limits that a call has to pass.
#[derive(Default)]
pub(crate) struct Wanted {
    /// All of them.
    pub(crate) limits: Vec<EntityId>,
    /// What one of them is by the limit for each tenant: it is made so with its first use.
    pub(crate) each: Option<Spec>,
}

impl Wanted {
    /// What a book says, for calls of one tenant. Whether one of them holds instead of the one for each tenant.
    fn add(&mut self, known: &Known, tenant: &str, tool: &str) -> bool {
        if !known.any.load(Relaxed) {
            return false;
        }
        let by_tool = known.by_tool.read().unwrap_or_else(PoisonError::into_inner);
        let Some(listed) = by_tool.get(tool) else { return false };
        let mut instead = false;
        for limit in listed.limits.iter().filter(|l| l.tenant == tenant || l.tenant == EVERYBODY) {
            self.limits.push(limit.id);
            instead |= limit.instead;
        }
        if let Some(spec) = &listed.each {
            self.each = Some(each::for_tenant(spec, tenant));
        }
        instead
    }
}

/// Tokens of one limit.
#[derive(Default)]
struct Pool {
    tokens: VecDeque<Token>,
    /// How many were asked for last.
    size: u32,
    /// Some became void before anybody used them.
    wasted: bool,
    base: Option<Base>,
}

/// A limit as it was when this worker saw it last.
struct Base {
    version: u64,
    epoch: u64,
    state: State,
    /// The store's time then, and when that was on this process's clock.
    time: (Timestamp, Duration),
}

impl Base {
    async fn read(pipeline: &Pipeline, id: EntityId) -> Result<Option<Self>, StoreError> {
        let at = pipeline.store().now().await?;
        let time = (at, pipeline.rt().mono());
        let Some(head) = pipeline.store().head(id).await? else { return Ok(None) };
        let state =
            decode_state::<Limit>(&head.state).map_err(|e| StoreError::Corrupt(e.to_string()))?;
        Ok(Some(Base { version: head.version, epoch: head.epoch, state, time }))
    }

    /// The same of one that may follow from the limit for each tenant: then it does from now on.
    async fn follow(
        pipeline: &Pipeline,
        id: EntityId,
        each: Option<&Spec>,
    ) -> Result<Option<Self>, StoreError> {
        let base = Self::read(pipeline, id).await?;
        let Some(each) = each.filter(|each| each.id() == id) else { return Ok(base) };
        if base.as_ref().is_some_and(|base| each::is_followed(&base.state, each)) {
            return Ok(base);
        }
        amend::<Limit, StoreError>(pipeline, id, &each.tenant, |state, cx| {
            Ok(each::follow(state, each, cx.now).map_or_else(Decision::default, Decision::event))
        })
        .await?;
        Self::read(pipeline, id).await
    }

    /// Whether the limit for each tenant, if this follows from it, is newer.
    fn is_behind(&self, id: EntityId, each: Option<&Spec>) -> bool {
        each.is_some_and(|each| !each::is_followed(&self.state, each) && each.id() == id)
    }
}

impl Known {
    /// Makes sure that what is known is good enough. `whose` book it is.
    async fn know(self: &Arc<Self>, pipeline: &Pipeline, whose: &str) -> Result<(), StoreError> {
        let now = micros(pipeline.rt().mono());
        let look = |now| look(self.read_at.load(Relaxed), self.look_at.load(Relaxed), now);
        let seen = look(now);
        if seen == Look::First {
            let _one = self.looking.lock().await;
            if look(now) == Look::First {
                self.look_at.store(now + micros(BOOK_GOOD_FOR), Relaxed);
                self.refresh(pipeline, whose).await?;
            }
        }
        if seen == Look::Beside {
            self.look_at.store(now + micros(BOOK_GOOD_FOR), Relaxed);
            let (known, pipeline) = (self.clone(), pipeline.clone());
            let (rt, whose) = (pipeline.rt().clone(), whose.to_owned());
            rt.spawn(Box::pin(async move {
                if let Err(e) = known.refresh(&pipeline, &whose).await {
                    tracing::debug!(error = %e, "which limits there are can not be read now");
                }
            }));
        }
        Ok(())
    }

    /// Looks into the book.
    async fn refresh(&self, pipeline: &Pipeline, whose: &str) -> Result<(), StoreError> {
        // From before the read: what is set while it runs may not be in it.
        let began = micros(pipeline.rt().mono()).max(1);
        let head = pipeline.store().head(book::id_of(whose)).await?;
        let book = match head {
            Some(head) => decode_state::<LimitBook>(&head.state)
                .map_err(|e| StoreError::Corrupt(e.to_string()))?,
            None => book::Book::default(),
        };
        let mut known: HashMap<String, Listed> = HashMap::new();
        for entry in book.limits {
            let instead = book.instead.contains(&entry);
            let book::Entry { tool, tenant } = entry;
            let id = desk::id_of(&tenant, &tool);
            known.entry(tool).or_default().limits.push(ListedLimit { tenant, id, instead });
        }
        for (tool, spec) in book.each {
            known.entry(tool).or_default().each = Some(spec);
        }
        self.any.store(!known.is_empty(), Relaxed);
        self.tenants.store(book.tenants, Relaxed);
        *self.by_tool.write().unwrap_or_else(PoisonError::into_inner) = known;
        self.read_at.fetch_max(began, Relaxed);
        Ok(())
    }
}

/// What to do about the limit book before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// It is known well enough.
    No,
    /// What was known a moment ago is good enough while it is read anew beside the work.
    Beside,
    /// It was never read, or so long ago that a limit which was set meanwhile would be passed over: a worker
    /// that had nothing to do for an hour knows what was an hour ago.
    First,
}

fn look(read_at: u64, look_at: u64, now: u64) -> Look {
    if read_at == 0 || now.saturating_sub(read_at) >= 2 * micros(BOOK_GOOD_FOR) {
        Look::First
    } else if now >= look_at {
        Look::Beside
    } else {
        Look::No
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

impl Limits {
    /// Looks into the common book, and forgets what it knew of the tenants' own.
    pub async fn refresh(&self, pipeline: &Pipeline) -> Result<(), StoreError> {
        self.own.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.common.refresh(pipeline, EVERYBODY).await
    }

    fn own(&self, tenant: &str) -> Arc<Known> {
        if let Some(known) = self.own.read().unwrap_or_else(PoisonError::into_inner).get(tenant) {
            return known.clone();
        }
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        if own.len() >= BOOKS_MAX {
            own.clear();
        }
        own.entry(tenant.to_owned()).or_default().clone()
    }

    /// The limits that a call of this tool has to pass. Costs a look at two numbers where there are none at all.
    pub(crate) async fn of(
        &self,
        pipeline: &Pipeline,
        tenant: &str,
        tool: &str,
    ) -> Result<Wanted, StoreError> {
        self.common.know(pipeline, EVERYBODY).await?;
        let mut wanted = Wanted::default();
        let mut instead = wanted.add(&self.common, tenant, tool);
        if self.common.tenants.load(Relaxed) {
            let own = self.own(tenant);
            own.know(pipeline, tenant).await?;
            instead |= wanted.add(&own, tenant, tool);
        }
        wanted.each = wanted.each.filter(|_| !instead);
        wanted.limits.extend(wanted.each.as_ref().map(Spec::id));
        Ok(wanted)
    }

    /// How a limit stands, as of now: whether there is a token for this one, and when the next one is good. `None`: the
    /// limit is gone.
    pub(crate) async fn look(
        &self,
        pipeline: &Pipeline,
        id: EntityId,
        each: Option<&Spec>,
        who: (&str, bool),
    ) -> Result<Option<(bool, Timestamp)>, StoreError> {
        let Some(base) = Base::follow(pipeline, id, each).await? else { return Ok(None) };
        let (state, now) = (&base.state, base.time.0);
        let Some(wish) = decide::take(state, 1, who, now) else { return Ok(None) };
        let room = wish != Take::Full || self.pool(id).lock().await.has(now);
        Ok(decide::free_at(state, now).map(|at| (room, at)))
    }

    fn pool(&self, id: EntityId) -> Arc<tokio::sync::Mutex<Pool>> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= POOLS_MAX {
            pools.retain(|_, pool| Arc::strong_count(pool) > 1);
        }
        pools.entry(id).or_default().clone()
    }

    /// One token of a limit for a tenant, good now or soon; `in_turn` as in [`decide::take`].
    pub(crate) async fn take(
        &self,
        pipeline: &Pipeline,
        id: EntityId,
        each: Option<&Spec>,
        who: (&str, bool),
    ) -> Result<Got, StoreError> {
        let pool = self.pool(id);
        let mut pool = pool.lock().await;
        for round in 0..TRIES {
            let Some(now) = pool.now(pipeline, id, each).await? else { return Ok(Got::Gone) };
            if let Some(token) = pool.pop(now) {
                return Ok(Got::Token { token, good_in: token.from.since(now) });
            }
            match pool.take_block(pipeline, id, who, now).await? {
                Block::Taken => {}
                Block::None if pool.is_fresh(pipeline) => {
                    let free = pool.base.as_ref().and_then(|b| decide::free_at(&b.state, now));
                    return Ok(Got::Full { free_in: free.unwrap_or(now).since(now) });
                }
                Block::None => pool.base = None,
                Block::Gone => {
                    pool.base = None;
                    return Ok(Got::Gone);
                }
                Block::Raced => pool.others_were_faster(pipeline, round).await,
            }
        }
        Err(StoreError::Unavailable(format!("too many take tokens of limit {id} at once")))
    }

    /// A place at the end of a tenant's line: about when its turn comes. `None`: the limit is gone.
    pub(crate) async fn join(
        &self,
        pipeline: &Pipeline,
        id: EntityId,
        each: Option<&Spec>,
        tenant: &str,
    ) -> Result<Option<Timestamp>, StoreError> {
        let pool = self.pool(id);
        let mut pool = pool.lock().await;
        for round in 0..TRIES {
            let Some(now) = pool.now(pipeline, id, each).await? else { return Ok(None) };
            let joined = pool.base.as_ref().and_then(|base| decide::join(&base.state, tenant, now));
            let Some((event, at)) = joined else {
                pool.base = None;
                return Ok(None);
            };
            match pool.write(pipeline, id, &event).await? {
                true => return Ok(Some(at)),
                false => pool.others_were_faster(pipeline, round).await,
            }
        }
        Err(StoreError::Unavailable(format!("too many stand in the line of limit {id} at once")))
    }

    /// Leave for one call that begins now, by all limits that it has to pass.
    pub(crate) async fn leave(
        &self,
        pipeline: &Pipeline,
        tenant: &str,
        tool: &str,
    ) -> Result<Leave, StoreError> {
        let Wanted { limits, each } = self.of(pipeline, tenant, tool).await?;
        if limits.is_empty() {
            return Ok(Leave::Unlimited);
        }
        let mut tokens = Vec::new();
        for id in limits {
            // Who takes calls has its line in their queue.
            let later = match self.take(pipeline, id, each.as_ref(), (tenant, true)).await? {
                Got::Gone => continue,
                Got::Full { free_in } => free_in.saturating_sub(LEAD).max(BASE_GOOD_FOR),
                Got::Token { token, good_in } => {
                    tokens.push(token);
                    match good_in.is_zero() {
                        true => continue,
                        false => good_in,
                    }
                }
            };
            self.put_back(tokens).await;
            return Ok(Leave::In(later));
        }
        Ok(Leave::Now(tokens))
    }

    /// Tokens that nobody used: the next one may, while they are good.
    pub(crate) async fn put_back(&self, tokens: Vec<Token>) {
        for token in tokens.into_iter().rev() {
            self.pool(token.limit).lock().await.tokens.push_front(token);
        }
    }
}

/// What a limit had to say to a wish for a token.
#[derive(Debug)]
pub(crate) enum Got {
    /// One, good in so long.
    Token { token: Token, good_in: Duration },
    /// None within the horizon; the next one is good in so long.
    Full { free_in: Duration },
    /// The limit is gone.
    Gone,
}

/// Whether a call may begin now.
#[derive(Debug)]
pub(crate) enum Leave {
    /// No limit is in its way.
    Unlimited,
    /// It may, with these.
    Now(Vec<Token>),
    /// Not before so long from now.
    In(Duration),
}

/// What became of a wish for a block.
enum Block {
    Taken,
    None,
    /// The limit was removed.
    Gone,
    /// Others were faster.
    Raced,
}

impl Pool {
    fn pop(&mut self, now: Timestamp) -> Option<Token> {
        while let Some(token) = self.tokens.pop_front() {
            if token.until >= now {
                return Some(token);
            }
            self.wasted = true;
        }
        None
    }

    /// Whether there is one.
    fn has(&self, now: Timestamp) -> bool {
        self.tokens.iter().any(|token| token.until >= now)
    }

    /// The store's time, with the limit known as it was a moment ago. `None`: there is none.
    async fn now(
        &mut self,
        pipeline: &Pipeline,
        id: EntityId,
        each: Option<&Spec>,
    ) -> Result<Option<Timestamp>, StoreError> {
        if self.base.as_ref().is_none_or(|base| base.is_behind(id, each)) {
            self.base = Base::follow(pipeline, id, each).await?;
        }
        let now = |base: &Base| base.time.0 + pipeline.rt().mono().saturating_sub(base.time.1);
        Ok(self.base.as_ref().map(now))
    }

    fn is_fresh(&self, pipeline: &Pipeline) -> bool {
        let age = |base: &Base| pipeline.rt().mono().saturating_sub(base.time.1);
        self.base.as_ref().is_some_and(|base| age(base) <= BASE_GOOD_FOR)
    }

    /// Others want the same row: not all again at the same moment.
    async fn others_were_faster(&mut self, pipeline: &Pipeline, round: u32) {
        self.base = None;
        let pause = pipeline.rt().random() % (1_000 * u64::from(round + 1));
        pipeline.rt().sleep(Duration::from_micros(pause)).await;
    }

    async fn take_block(
        &mut self,
        pipeline: &Pipeline,
        id: EntityId,
        who: (&str, bool),
        now: Timestamp,
    ) -> Result<Block, StoreError> {
        let Some(base) = &self.base else { return Ok(Block::Raced) };
        // As many as are wanted, found out by doubling; those who did not use them all begin anew.
        let size = if self.wasted { 1 } else { self.size.saturating_mul(2).max(1) };
        let (event, tokens) = match decide::take(&base.state, size, who, now) {
            None => return Ok(Block::Gone),
            Some(Take::Full) => return Ok(Block::None),
            Some(Take::Given(event, tokens)) => (event, tokens),
        };
        if !self.write(pipeline, id, &event).await? {
            return Ok(Block::Raced);
        }
        (self.size, self.wasted) = (u32::try_from(tokens.len()).unwrap_or(1), false);
        self.tokens = tokens.into();
        Ok(Block::Taken)
    }

    /// Writes on the version that was read. Whether nobody was faster.
    async fn write(
        &mut self,
        pipeline: &Pipeline,
        id: EntityId,
        event: &Event,
    ) -> Result<bool, StoreError> {
        let Some(base) = &self.base else { return Ok(false) };
        let mut state = base.state.clone();
        Limit::apply(&mut state, event);
        let expect = Expect::Nobody { epoch: base.epoch, version: base.version };
        let events = vec![NewEvent::new(Limit::name(event), Body::json(event))];
        let mut commit = Commit::new(pipeline.commit_id(), id, expect, events);
        commit.state = Some(encode_state::<Limit>(&state));
        match pipeline.commit(commit).await? {
            CommitAnswer::Committed(done) => {
                let time = (done.at, pipeline.rt().mono());
                self.base = Some(Base { version: done.version, epoch: done.epoch, state, time });
                Ok(true)
            }
            CommitAnswer::Refused(why) => Err(StoreError::Refused(why.to_string())),
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_that_is_too_old_is_read_before_it_is_believed() {
        let good = micros(BOOK_GOOD_FOR);
        assert_eq!(look(0, 0, 5), Look::First, "never read");
        assert_eq!(look(1, 1 + good, good), Look::No);
        assert_eq!(look(1, 1 + good, 1 + good), Look::Beside);
        assert_eq!(look(1, 1 + 2 * good, 2 * good), Look::No, "it is being read");
        // Nobody called anything for an hour, or the store did not answer.
        assert_eq!(look(1, 1 + good, 1 + 2 * good), Look::First);
        assert_eq!(look(1, 1 + 3 * good, 1 + 2 * good), Look::First);
    }
}
