//! The writer: one thread, one connection, one transaction per batch.
//!
//! Because there is exactly one writer per file (the data directory is locked), heads that were just
//! written can be kept in memory and need not be read again. The update still compares version and
//! epoch in its own `WHERE`: a wrong cache is refused by the statement that would have written, and
//! the batch is decided again from the file.

use super::{
    error::Trouble,
    file,
    rows::{self, Placed, body_bytes, class_number, count, micros, run},
    schema,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    batch::{self, Facts, HeadWrite, Needs, Peek, Writes},
    error::StoreError,
    ids::{EntityId, MessageId},
    judge::Judge,
    runtime::Clock,
    store::{Answer, Op},
    stream::{Hash, Record},
    table::Class,
    time::Timestamp,
};

/// Heads kept in memory. Past this the cache starts afresh before the next transaction: simple, and a
/// miss costs one read.
const CACHED_HEADS_MAX: usize = 100_000;

/// Pages in the write-ahead log after which the checkpointer is told. Small enough that the log soon
/// has its full size and is then overwritten in place: a sync of a growing file costs three times as
/// much, because the file system has to record the growth as well.
const CHECKPOINT_PAGES: u32 = 4_000;

/// How long the end of a store waits for reads that are under way.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// How long the log's restart waits for reads that are under way; they mostly take less than one.
const RESTART_PATIENCE: Duration = Duration::from_millis(5);

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) judge: Judge,
    clock: Arc<dyn Clock>,
    file: PathBuf,
    incarnation: u64,
    cache: HashMap<EntityId, Placed>,
    cached_max: usize,
    next_seq: i64,
    /// Pages in the write-ahead log after the last commit.
    log: Arc<AtomicU32>,
    /// Pages at which the log is to be started over. Raised when a reader was in the way.
    restart_at: u32,
    broken: bool,
    /// Nothing is written any more.
    closed: bool,
    /// Up to which digest retention has looked at blobs.
    pub(super) blobs_after: [u8; 32],
}

impl Writer {
    pub(super) fn open(
        file: PathBuf,
        judge: Judge,
        clock: Arc<dyn Clock>,
        incarnation: u64,
    ) -> Result<Self, StoreError> {
        let log = Arc::new(AtomicU32::new(0));
        let has_log = file::log_of(&file).exists();
        let conn = schema::open_writer(&file, incarnation, &log)?;
        let was_open = schema::note_open(&conn).map_err(Trouble::into_error)?;
        if was_open && !has_log {
            tracing::warn!(
                file = %file.display(),
                "the database was open for writing when this file was left, and its log (-wal) is not beside it: what was only in \
                 the log is missing. Was the file copied from a running server? `tenure backup` makes a complete copy. \
                 The store has a new incarnation"
            );
            schema::begin_incarnation(&conn, incarnation).map_err(Trouble::into_error)?;
            schema::note_open(&conn).map_err(Trouble::into_error)?;
        }
        let mut writer = Writer {
            conn,
            judge,
            clock,
            file,
            incarnation,
            cache: HashMap::new(),
            cached_max: CACHED_HEADS_MAX,
            next_seq: 0,
            log,
            restart_at: CHECKPOINT_PAGES,
            broken: false,
            closed: false,
            blobs_after: [0; 32],
        };
        writer.next_seq = writer.newest_record().map_err(Trouble::into_error)?;
        Ok(writer)
    }

    fn newest_record(&self) -> Result<i64, Trouble> {
        // The floor too: retention may have removed the newest record, whose number is never reused.
        let newest: Option<i64> =
            self.conn.query_row("SELECT max(seq) FROM records", [], |r| r.get(0))?;
        Ok(newest.unwrap_or(0).max(schema::meta(&self.conn, "feed_floor")?) + 1)
    }

    /// The store's time: the same clock that the reads ask.
    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Runs `work` in a transaction. After a failed write or sync the connection is closed, never
    /// retried in place, and the next call opens a new one.
    pub(super) fn transaction<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        if self.closed {
            let why = StoreError::Unavailable("the store is closed".into());
            return Err(Trouble::Clean(why));
        }
        if self.broken {
            self.reopen()?;
        }
        // Only here: within a transaction the cache holds what it has written and not yet committed.
        if self.cache.len() >= self.cached_max {
            self.cache.clear();
        }
        run(&self.conn, "BEGIN IMMEDIATE", &[])?;
        let result = work(self).and_then(|value| match run(&self.conn, "COMMIT", &[]) {
            Ok(_) => Ok(value),
            // The commit frame may have reached the disk before the sync failed.
            Err(Trouble::Reopen(e)) => {
                Err(Trouble::Reopen(StoreError::Indeterminate(e.to_string())))
            }
            Err(other) => Err(other),
        });
        if let Err(trouble) = &result {
            self.cache.clear();
            // A rollback that fails leaves nothing worth keeping either.
            let rolled_back = self.conn.is_autocommit() || run(&self.conn, "ROLLBACK", &[]).is_ok();
            self.broken = matches!(trouble, Trouble::Reopen(_)) || !rolled_back;
        }
        result
    }

    /// Whether the log is long enough to be started over.
    pub(super) fn log_is_long(&mut self) -> bool {
        let pages = self.log.load(Ordering::Relaxed);
        // Shorter than at the last try: SQLite has started it over by itself.
        if pages < self.restart_at - CHECKPOINT_PAGES {
            self.restart_at = CHECKPOINT_PAGES;
        }
        pages >= self.restart_at
    }

    /// Copies what the checkpointer has not, and starts the log over. Short reads are waited for, a
    /// long one (a backup) is not: every write waits behind this one. Then the log grows, and the next
    /// try comes when it has grown by as much again.
    pub(super) fn restart_log(&mut self) {
        let restart = |conn: &Connection| {
            conn.busy_timeout(RESTART_PATIENCE)?;
            conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |r| r.get::<_, i64>(0))
        };
        let done = restart(&self.conn);
        if let Err(e) = self.conn.busy_timeout(schema::WRITER_PATIENCE) {
            tracing::warn!(error = %e, "the writer's patience could not be restored");
            self.distrust();
        }
        if let Ok(0) = done {
            self.log.store(0, Ordering::Relaxed);
            self.restart_at = CHECKPOINT_PAGES;
            return;
        }
        let pages = self.log.load(Ordering::Relaxed);
        self.restart_at = pages.saturating_add(CHECKPOINT_PAGES);
        match done {
            Err(e) => tracing::warn!(error = %e, "a checkpoint did not finish"),
            Ok(_) => tracing::debug!(pages, "a reader keeps the log from starting over"),
        }
    }

    /// Copies the whole log into the file, so that the file alone is the store, and writes nothing from then on.
    pub(super) fn close(&mut self) -> Result<(), StoreError> {
        if self.closed {
            return Ok(());
        }
        let leave = |w: &mut Self| {
            run(&w.conn, "UPDATE meta SET value = 0 WHERE name = ?1", &[&schema::OPEN])
        };
        self.transaction(leave).map_err(Trouble::into_error)?;
        self.closed = true;
        let empty = |conn: &Connection| {
            conn.busy_timeout(CLOSE_PATIENCE)?;
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get::<_, i64>(0))
        };
        match empty(&self.conn).map_err(|e| Trouble::from(e).into_error())? {
            0 => Ok(()),
            _ => {
                tracing::warn!(file = %self.file.display(), "somebody reads the database: what was written last is in its log (-wal)");
                Ok(())
            }
        }
    }

    /// Something went wrong that nobody can judge: close and reopen before the next write.
    pub(super) fn distrust(&mut self) {
        self.broken = true;
    }

    fn reopen(&mut self) -> Result<(), Trouble> {
        tracing::warn!(file = %self.file.display(), "reopening the database after a failed write");
        self.conn =
            schema::open_writer(&self.file, self.incarnation, &self.log).map_err(Trouble::Clean)?;
        self.cache.clear();
        self.next_seq = self.newest_record()?;
        self.broken = false;
        Ok(())
    }

    /// A batch. A row that the database refuses is found by running each operation alone.
    pub(super) fn apply(&mut self, ops: &[Op]) -> Result<Vec<Answer>, StoreError> {
        match self.transaction(|w| w.batch(ops)) {
            Ok(answers) => Ok(answers),
            Err(Trouble::Constraint(why)) => {
                tracing::error!(%why, ops = ops.len(), "the database refused what the kernel allowed");
                self.isolate(ops, why)
            }
            Err(trouble) => Err(trouble.into_error()),
        }
    }

    /// Runs every operation alone.
    fn isolate(&mut self, ops: &[Op], why: String) -> Result<Vec<Answer>, StoreError> {
        if let [op] = ops {
            return match batch::refused_by_the_database(op, &why) {
                Some(answer) => Ok(vec![answer]),
                None => Err(StoreError::refused_by_database(why)),
            };
        }
        let mut answers = Vec::with_capacity(ops.len());
        for (i, op) in ops.iter().enumerate() {
            match self.transaction(|w| w.batch(std::slice::from_ref(op))) {
                Ok(one) => answers.extend(one),
                // An operation whose answers have no word for this stays where it is: sent again
                // alone, it fails as an error.
                Err(Trouble::Constraint(why)) => {
                    answers.push(batch::refused_by_the_database(op, &why).unwrap_or(Answer::Busy));
                }
                // Some of the others are committed by now, so the call as a whole is neither.
                Err(trouble) if i > 0 => {
                    return Err(StoreError::Indeterminate(trouble.into_error().to_string()));
                }
                Err(trouble) => return Err(trouble.into_error()),
            }
        }
        Ok(answers)
    }

    fn batch(&mut self, ops: &[Op]) -> Result<Vec<Answer>, Trouble> {
        let mut facts = self.facts(&batch::needs(ops))?;
        let (mut answers, writes) = batch::plan(&self.judge, &mut facts, ops);
        for (i, entity, first) in batch::suspected_repeats(ops, &answers) {
            if let Some(record) = self.record_at(entity, first)? {
                let head = self.cache.get(&entity).map(|p| &p.head);
                batch::settle_repeat(&self.judge, &ops[i], &mut answers[i], &record, head);
            }
        }
        self.write(writes, facts.now)?;
        Ok(answers)
    }

    fn record_at(&mut self, entity: EntityId, first: u64) -> Result<Option<Record>, Trouble> {
        let Some(placed) = self.placed(entity)? else { return Ok(None) };
        let walked = rows::walk_back(&self.conn, placed.tail, |r| r.first <= first)?;
        Ok(walked.into_iter().map(|(_, r)| r).next_back().filter(|r| r.first == first))
    }

    pub(super) fn placed(&mut self, id: EntityId) -> Result<Option<Placed>, Trouble> {
        if let Some(placed) = self.cache.get(&id) {
            return Ok(Some(placed.clone()));
        }
        let loaded = rows::load_head(&self.conn, &self.judge.tables, id)?;
        if let Some(placed) = &loaded {
            self.remember(placed.clone());
        }
        Ok(loaded)
    }

    /// Where a head's row and its newest record are, without copying the head.
    fn place(&mut self, id: EntityId) -> Result<Option<(i64, i64)>, Trouble> {
        if let Some(placed) = self.cache.get(&id) {
            return Ok(Some((placed.row, placed.tail)));
        }
        Ok(self.placed(id)?.map(|p| (p.row, p.tail)))
    }

    fn remember(&mut self, placed: Placed) {
        self.cache.insert(placed.head.id, placed);
    }

    /// What is over is hardly ever asked for again, and would crowd out what is not.
    fn wrote(&mut self, placed: Placed) {
        match placed.head.class() {
            Class::Final => self.forget(placed.head.id),
            Class::Open | Class::Resting => self.remember(placed),
        }
    }

    fn facts(&mut self, needs: &Needs) -> Result<Facts, Trouble> {
        let mut facts = Facts { now: self.now(), ..Facts::default() };
        facts.heads.reserve(needs.heads.len());
        for id in &needs.heads {
            if !self.cache.contains_key(id) {
                self.placed(*id)?;
            }
            if let Some(placed) = self.cache.get(id) {
                facts.heads.insert(*id, placed.head.clone());
            }
        }
        for id in &needs.peeks {
            if let Some(Placed { head, .. }) = self.placed(*id)? {
                let peek =
                    Peek { epoch: head.epoch, holder: head.holder, has_mail: head.has_mail() };
                facts.peeks.insert(*id, peek);
            }
        }
        let conn = &self.conn;
        for (entity, id) in &needs.mail {
            let mut q = conn.prepare_cached("SELECT 1 FROM mail WHERE entity = ?1 AND id = ?2")?;
            if q.exists((entity.as_bytes(), &id.0))? {
                facts.mail.insert((*entity, id.clone()));
            }
        }
        for key in &needs.evidence {
            let (entity, name, epoch, call, digest) = key;
            let mut q = conn.prepare_cached(
                "SELECT 1 FROM evidence WHERE entity = ?1 AND key = ?2 AND epoch = ?3 AND call = ?4 AND digest = ?5",
            )?;
            if q.exists((entity.as_bytes(), name, count(*epoch), call, digest.0))? {
                facts.evidence.insert(key.clone());
            }
            if !facts.evidence_counts.contains_key(entity) {
                let mut q =
                    conn.prepare_cached("SELECT count(*) FROM evidence WHERE entity = ?1")?;
                let count: i64 = q.query_row([entity.as_bytes()], |r| r.get(0))?;
                facts.evidence_counts.insert(*entity, usize::try_from(count).unwrap_or(usize::MAX));
            }
        }
        for key in &needs.keys {
            let mut q = conn.prepare_cached("SELECT entity, digest FROM keys WHERE key = ?1")?;
            let found =
                q.query_row([key], |r| Ok((rows::entity(r, 0)?, rows::hash(r, 1)?))).optional()?;
            if let Some(found) = found {
                facts.keys.insert(key.clone(), found);
            }
        }
        for id in &needs.outbox {
            if outbox_has(conn, *id)? {
                facts.outbox.insert(*id);
            }
        }
        for source in &needs.sources {
            let mut q = conn.prepare_cached(WAITING)?;
            if q.exists([source.as_bytes()])? {
                facts.waiting.insert(*source);
            }
        }
        if !needs.sessions.is_empty() {
            let mut q = conn.prepare_cached("SELECT judge_after, judges_until FROM pulse")?;
            let pair = |r: &rusqlite::Row<'_>| Ok((rows::time(r.get(0)?), rows::time(r.get(1)?)));
            facts.judging = q.query_row([], pair).optional()?;
        }
        for id in &needs.sessions {
            let mut q = conn.prepare_cached(SESSION_BY_ID)?;
            if let Some(session) = q.query_row([id.as_bytes()], rows::session).optional()? {
                facts.sessions.insert(*id, session);
            }
        }
        Ok(facts)
    }

    pub(super) fn write(&mut self, writes: Writes, now: Timestamp) -> Result<(), Trouble> {
        let mut tails: HashMap<EntityId, i64> = HashMap::with_capacity(writes.records.len());
        for record in &writes.records {
            let seq = self.append(record, tails.get(&record.entity).copied())?;
            tails.insert(record.entity, seq);
        }
        for (id, head) in writes.heads {
            self.write_head(id, head, tails.get(&id).copied())?;
        }
        let conn = &self.conn;
        for (entity, mail) in &writes.mail {
            let mut q = conn.prepare_cached("INSERT INTO mail (entity, seq, id, kind, body, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
            let bytes = body_bytes(&mail.body);
            q.execute(params![
                entity.as_bytes(),
                count(mail.seq),
                mail.id.0,
                mail.kind,
                bytes,
                mail.at.as_micros()
            ])?;
        }
        for e in &writes.evidence {
            let mut q = conn.prepare_cached("INSERT INTO evidence (entity, key, epoch, call, digest, who, body, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
            q.execute(params![
                e.entity.as_bytes(),
                e.key,
                count(e.epoch),
                e.call,
                e.digest().0,
                e.who,
                body_bytes(&e.body),
                now.as_micros()
            ])?;
        }
        for p in &writes.posted {
            let (target, entity, word) = rows::target_columns(&p.message.to);
            let mut q = conn.prepare_cached("INSERT INTO outbox (lane, source, version, ordinal, tenant, target, entity, word, kind, body, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)")?;
            let lane = tenure_kernel::head::lane_of(p.id.source);
            q.execute(params![
                lane,
                p.id.source.as_bytes(),
                count(p.id.version),
                p.id.ordinal,
                p.tenant,
                target,
                entity,
                word,
                p.message.kind,
                body_bytes(&p.message.body),
                p.at.as_micros()
            ])?;
        }
        for id in &writes.delivered {
            run(
                conn,
                "DELETE FROM outbox WHERE source = ?1 AND version = ?2 AND ordinal = ?3",
                &[id.source.as_bytes(), &count(id.version), &id.ordinal],
            )?;
        }
        for (key, entity) in &writes.keys {
            run(
                conn,
                "INSERT INTO keys (key, entity, digest) VALUES (?1, ?2, ?3)",
                &[&key.key, entity.as_bytes(), &key.digest.0],
            )?;
        }
        for s in &writes.opened {
            let lease = count(u64::try_from(s.lease.as_micros()).unwrap_or(u64::MAX));
            let (renewed, expires) = (s.renewed_at.as_micros(), s.expires_at.as_micros());
            run(
                conn,
                "INSERT INTO sessions (id, name, role, lease_us, renewed_at, expires_at, holds, ended) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)",
                &[
                    s.id.as_bytes(),
                    &s.name,
                    &s.role,
                    &lease,
                    &renewed,
                    &expires,
                    &rows::holds_bytes(&s.holds),
                ],
            )?;
        }
        for (id, expires_at, holds) in &writes.renewed {
            run(
                conn,
                "UPDATE sessions SET renewed_at = ?2, expires_at = ?3, holds = ?4 WHERE id = ?1 AND ended = 0",
                &[
                    id.as_bytes(),
                    &now.as_micros(),
                    &expires_at.as_micros(),
                    &rows::holds_bytes(holds),
                ],
            )?;
        }
        for id in &writes.ended {
            run(conn, "UPDATE sessions SET ended = 1 WHERE id = ?1", &[id.as_bytes()])?;
        }
        for (entity, digest) in &writes.blobs {
            run(
                conn,
                "INSERT OR IGNORE INTO blob_refs (entity, digest) VALUES (?1, ?2)",
                &[entity.as_bytes(), &digest.0],
            )?;
        }
        Ok(())
    }

    fn append(&mut self, record: &Record, earlier: Option<i64>) -> Result<i64, Trouble> {
        let seq = self.next_seq;
        let prev = match earlier {
            Some(seq) => seq,
            None if record.first == 1 => 0,
            // Without it everything before this record could not be found again.
            None => {
                let tail =
                    self.place(record.entity)?.map(|(_, tail)| tail).filter(|tail| *tail != 0);
                tail.ok_or_else(|| {
                    let (entity, first) = (record.entity, record.first);
                    let why = format!("nothing comes before version {first} of {entity}");
                    Trouble::Clean(StoreError::Corrupt(why))
                })?
            }
        };
        let mut q = self.conn.prepare_cached("INSERT INTO records (seq, prev, entity, first, count, commit_id, at, epoch, hash, bytes) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
        q.execute(params![
            seq,
            prev,
            record.entity.as_bytes(),
            count(record.first),
            record.count,
            record.commit.0,
            record.at.as_micros(),
            count(record.epoch),
            record.hash.0,
            record.bytes
        ])?;
        self.next_seq += 1;
        Ok(seq)
    }

    /// Inserts or updates one head. The update has several forms: naming `due` or `sealed` makes SQLite
    /// rewrite its index entry even where the value stays, and it mostly stays.
    fn write_head(
        &mut self,
        id: EntityId,
        write: HeadWrite,
        tail: Option<i64>,
    ) -> Result<(), Trouble> {
        let h = &write.after;
        let holder = h.holder.map(|s| *s.as_bytes());
        let class = class_number(h.class());
        let timers = h.timers.to_bytes();
        let before = write.before.as_ref();
        let ready_before = before.and_then(|b| b.ready_at);
        if ready_before != h.ready_at {
            self.move_ready(h, ready_before)?;
        }
        let Some(before) = before else {
            let tail = tail.unwrap_or(0);
            let mut q = self.conn.prepare_cached("INSERT INTO heads (id, kind, tenant, queue, priority, lane, status, class, version, epoch, holder, chain, created_at, changed_at, mail_count, mail_read, due, must_end_by, check_at, faults, ready_at, attention, sealed, tail, timers, state) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)")?;
            let row = q.insert(params![
                id.as_bytes(),
                h.kind(),
                h.tenant,
                h.queue,
                h.priority,
                h.lane(),
                h.status.name(),
                class,
                count(h.version),
                count(h.epoch),
                holder,
                h.chain.0,
                h.created_at.as_micros(),
                h.changed_at.as_micros(),
                count(h.mail_count),
                count(h.mail_read),
                micros(h.due),
                micros(h.must_end_by),
                micros(h.check_at),
                h.faults,
                micros(h.ready_at),
                h.attention,
                count(h.sealed),
                tail,
                timers,
                h.state
            ])?;
            drop(q);
            self.wrote(Placed { head: write.after, row, tail });
            return Ok(());
        };
        let (row, old_tail) = self
            .place(id)?
            .ok_or_else(|| Trouble::Clean(StoreError::Corrupt(format!("no row of head {id}"))))?;
        let tail = tail.unwrap_or(old_tail);
        let (version, epoch) = (count(before.version), count(before.epoch));
        let (due_moves, seal_moves) = (before.due != h.due, before.sealed != h.sealed);
        macro_rules! update {
            ($moving:literal) => {
                concat!(
                    "UPDATE heads SET status = ?2, class = ?3, version = ?4, epoch = ?5, holder = ?6, chain = ?7, changed_at = ?8, mail_count = ?9, mail_read = ?10, must_end_by = ?11, check_at = ?12, faults = ?13, ready_at = ?14, attention = ?15, tail = ?16, timers = ?17, state = ?18",
                    $moving,
                    " WHERE row = ?1 AND version = ?19 AND epoch = ?20"
                )
            };
        }
        let sql = match (seal_moves, due_moves) {
            (false, false) => update!(""),
            (false, true) => update!(", due = ?22"),
            (true, false) => update!(", sealed = ?21"),
            (true, true) => update!(", sealed = ?21, due = ?22"),
        };
        let mut q = self.conn.prepare_cached(sql)?;
        let due = micros(h.due);
        let mut all: Vec<&dyn rusqlite::ToSql> = Vec::with_capacity(22);
        let (name, changed, mail_count, mail_read) =
            (h.status.name(), h.changed_at.as_micros(), count(h.mail_count), count(h.mail_read));
        let (must, check, ready, sealed) =
            (micros(h.must_end_by), micros(h.check_at), micros(h.ready_at), count(h.sealed));
        let (new_version, new_epoch) = (count(h.version), count(h.epoch));
        all.extend([
            &row as &dyn rusqlite::ToSql,
            &name,
            &class,
            &new_version,
            &new_epoch,
            &holder,
            &h.chain.0,
            &changed,
            &mail_count,
            &mail_read,
            &must,
            &check,
            &h.faults,
            &ready,
            &h.attention,
            &tail,
            &timers,
            &h.state,
            &version,
            &epoch,
        ]);
        // Bound by number: the last of them needs the one before it.
        if seal_moves || due_moves {
            all.push(&sealed);
        }
        if due_moves {
            all.push(&due);
        }
        let changed_rows = q.execute(&all[..])?;
        drop(q);
        if changed_rows != 1 {
            return Err(Trouble::Clean(StoreError::Unavailable(format!(
                "head {id} moved under the batch"
            ))));
        }
        self.wrote(Placed { head: write.after, row, tail });
        Ok(())
    }

    fn move_ready(
        &self,
        head: &tenure_kernel::head::Head,
        before: Option<Timestamp>,
    ) -> Result<(), Trouble> {
        let id = head.id.as_bytes();
        if let Some(at) = before {
            run(
                &self.conn,
                "DELETE FROM ready WHERE queue = ?1 AND priority = ?2 AND tenant = ?3 AND ready_at = ?4 AND entity = ?5",
                &[&head.queue, &head.priority, &head.tenant, &at.as_micros(), id],
            )?;
        }
        if let Some(at) = head.ready_at {
            run(
                &self.conn,
                "INSERT INTO ready (queue, priority, tenant, ready_at, entity) VALUES (?1, ?2, ?3, ?4, ?5)",
                &[&head.queue, &head.priority, &head.tenant, &at.as_micros(), id],
            )?;
        }
        Ok(())
    }

    /// Forgets a head that was changed or removed behind the cache's back.
    pub(super) fn forget(&mut self, id: EntityId) {
        self.cache.remove(&id);
    }

    /// See [`super::SqliteStore::limit_cache`].
    pub(super) fn limit_cache(&mut self, heads: usize) {
        self.cached_max = heads;
    }

    /// See [`super::SqliteStore::limit_pages`].
    pub(super) fn limit_pages(&mut self, pages: u32) -> Result<(), StoreError> {
        let set = self.conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
        set.map_err(|e| Trouble::from(e).into_error())
    }

    /// Stores a blob's bytes.
    pub(super) fn put_blob(&mut self, bytes: &[u8]) -> Result<Hash, StoreError> {
        let digest = Hash::of(bytes);
        let put = |w: &mut Self| {
            let now = w.now().as_micros();
            let sql = "INSERT INTO blobs (digest, bytes, put_at) VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at";
            run(&w.conn, sql, &[&digest.0, &bytes, &now])
        };
        self.transaction(put).map_err(Trouble::into_error)?;
        Ok(digest)
    }
}

/// A session by id.
pub(super) const SESSION_BY_ID: &str = "SELECT id, name, role, lease_us, renewed_at, expires_at, holds, ended FROM sessions WHERE id = ?1";

/// Whether something of a source waits that does not leave the store. By the unique index of the source: the partial one
/// is in the order of the line.
pub(super) const WAITING: &str = "SELECT 1 FROM outbox WHERE source = ?1 AND +target <> 2";

/// Whether an outbox row is there.
pub(super) fn outbox_has(conn: &Connection, id: MessageId) -> Result<bool, Trouble> {
    let mut q = conn.prepare_cached(
        "SELECT 1 FROM outbox WHERE source = ?1 AND version = ?2 AND ordinal = ?3",
    )?;
    Ok(q.exists((id.source.as_bytes(), count(id.version), id.ordinal))?)
}
