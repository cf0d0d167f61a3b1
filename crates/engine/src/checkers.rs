//! Reads a whole store and lists everything that is wrong with it: `tenure verify`, the demo, every conformance case,
//! the simulation and the drills use it.
//!
//! No process may write to the store meanwhile: heads, streams, mail and feed are read one after the other.

use std::collections::{BTreeMap, BTreeSet};
use tenure_kernel::{
    claims::next_page,
    error::StoreError,
    feed::Cursor,
    head::Head,
    ids::{EntityId, MailId},
    limits,
    machine::{Blobs, Machines},
    store::{HeadFilter, Store},
    stream::{Record, blobs_of},
    table::{Claimable, Class, Tables},
    time::Timestamp,
    verify,
};

const PAGE: usize = 500;

/// Everything wrong with a store, in words. Empty for a sound one.
pub async fn check_everything(
    store: &dyn Store,
    machines: &Machines,
    tables: &Tables,
) -> Vec<String> {
    let mut found = Vec::new();
    if let Err(error) = check(store, machines, tables, &mut found).await {
        found.push(format!("the store can not be read: {error}"));
    }
    found
}

async fn check(
    store: &dyn Store,
    machines: &Machines,
    tables: &Tables,
    found: &mut Vec<String>,
) -> Result<(), StoreError> {
    let now = store.now().await?;
    let mut streams: BTreeMap<EntityId, Vec<Record>> = BTreeMap::new();
    let mut boxes: BTreeSet<(EntityId, MailId)> = BTreeSet::new();
    let mut queues: BTreeMap<String, BTreeSet<(i16, String)>> = BTreeMap::new();
    let mut after = None;
    loop {
        let filter = HeadFilter { after, ..HeadFilter::default() };
        let heads = store.heads(filter, PAGE).await?;
        let Some(last) = heads.last() else { break };
        after = Some(last.id);
        for head in &heads {
            let records = stream(store, head.id).await?;
            let blobs = blobs(store, &records).await?;
            check_history(head, &records, &blobs, machines, tables, found);
            check_head(head, now, found);
            check_mail(store, head, &mut boxes, found).await?;
            check_session(store, head, found).await?;
            let queue = queues.entry(head.queue.clone()).or_default();
            if head.belongs_in_queue() {
                queue.insert((head.priority, head.tenant.clone()));
            }
            streams.insert(head.id, records);
        }
    }
    for (queue, groups) in queues {
        let ready = ready_groups(store, &queue).await?;
        if ready != groups {
            found.push(format!("queue {queue:?}: ready says {ready:?}, the heads say {groups:?}"));
        }
    }
    check_outbox(store, &streams, &boxes, found).await?;
    check_feed(store, &streams, found).await
}

/// All groups of a queue, page by page.
async fn ready_groups(
    store: &dyn Store,
    queue: &str,
) -> Result<BTreeSet<(i16, String)>, StoreError> {
    let (mut all, mut below) = (BTreeSet::new(), None);
    loop {
        let page = store.ready_groups(queue, below).await?;
        below = next_page(&page);
        all.extend(page);
        if below.is_none() {
            return Ok(all);
        }
    }
}

/// The bodies of a stream that lie beside it.
pub async fn blobs(store: &dyn Store, records: &[Record]) -> Result<Blobs, StoreError> {
    let mut found = Blobs::new();
    for digest in blobs_of(records) {
        if let Some(bytes) = store.blob(digest).await? {
            found.insert(digest, bytes);
        }
    }
    Ok(found)
}

async fn stream(store: &dyn Store, id: EntityId) -> Result<Vec<Record>, StoreError> {
    let mut records: Vec<Record> = Vec::new();
    let mut from = 1;
    loop {
        let page = store.stream(id, from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(records) };
        from = last.last() + 1;
        records.extend(page);
    }
}

/// Chains hold, heads are folds of their records, machine state is what a replay gives.
fn check_history(
    head: &Head,
    records: &[Record],
    blobs: &Blobs,
    machines: &Machines,
    tables: &Tables,
    found: &mut Vec<String>,
) {
    if let Err(fault) = verify::verify(head, records, tables) {
        found.push(format!("{}: {fault}", head.id));
    }
    let complete = records.first().is_some_and(|r| r.first == 1);
    if let Some(core) = machines.get(head.kind()).filter(|_| complete) {
        match core.replay(records, blobs) {
            Ok(state) if state == head.state => {}
            Ok(state) => found.push(format!(
                "{}: the head's state is {}, a replay gives {}",
                head.id,
                String::from_utf8_lossy(&head.state),
                String::from_utf8_lossy(&state)
            )),
            Err(why) => found.push(format!("{}: its history can not be replayed: {why}", head.id)),
        }
    }
}

/// What one head alone must satisfy: laws 3 and 4, and the rules about mail, timers and tenure.
pub fn check_head(head: &Head, now: Timestamp, found: &mut Vec<String>) {
    let mut expect = |holds: bool, what: &str| {
        if !holds {
            found.push(format!("{} ({:?}): {what}: {head:?}", head.id, head.status));
        }
    };
    match head.class() {
        Class::Open => {
            let due = head.due.zip(head.must_end_by).is_some_and(|(due, end)| due <= end);
            expect(due, "open, and not due by must_end_by");
        }
        Class::Resting => expect(head.must_end_by.is_none(), "resting, with must_end_by"),
        Class::Final => {
            expect(head.must_end_by.is_none() && head.due.is_none(), "final, and still due");
            expect(head.holder.is_none() && head.check_at.is_none(), "final, and still held");
            expect(head.timers.is_empty(), "final, with timers");
        }
    }
    let held = head.holder.is_some();
    expect(!held || head.status.row().claimable == Claimable::No, "held in a claimable status");
    expect(!held || head.check_at.is_some(), "held, and nobody looks at the holder");
    expect(held || head.check_at.is_none(), "not held, and a holder is looked at");
    expect(head.ready_at.is_some() == head.belongs_in_queue(), "ready_at and queue disagree");
    expect(head.mail_read <= head.mail_count, "more mail read than came");
    expect(
        head.state.len() <= limits::HEAD_STATE_BYTES_MAX && head.timers.len() <= limits::TIMERS_MAX,
        "over a limit",
    );
    if head.class() != Class::Final && !held && head.faults == 0 {
        let asleep = head.has_mail() && head.due.is_none_or(|due| due > now);
        expect(!asleep, "mail waits and nothing is due");
        let late = head.earliest().is_some_and(|e| head.due.is_none_or(|due| due > e.max(now)));
        expect(!late, "due is later than a rule");
    }
}

async fn check_mail(
    store: &dyn Store,
    head: &Head,
    boxes: &mut BTreeSet<(EntityId, MailId)>,
    found: &mut Vec<String>,
) -> Result<(), StoreError> {
    let mut after = 0;
    let mut unread = Vec::new();
    loop {
        let page = store.mail(head.id, after, PAGE).await?;
        let Some(last) = page.last() else { break };
        if page[0].seq <= after || page.windows(2).any(|w| w[0].seq >= w[1].seq) {
            found.push(format!("{}: mail is out of order", head.id));
            break;
        }
        after = last.seq;
        for mail in page {
            if mail.seq > head.mail_read {
                unread.push(mail.seq);
            }
            if !boxes.insert((head.id, mail.id.clone())) {
                found.push(format!("{}: mail {} lies there twice", head.id, mail.id.0));
            }
        }
    }
    if !unread.iter().copied().eq(head.mail_read + 1..=head.mail_count) {
        found.push(format!(
            "{}: {} mails came and {} are read, but these lie there unread: {unread:?}",
            head.id, head.mail_count, head.mail_read
        ));
    }
    Ok(())
}

async fn check_session(
    store: &dyn Store,
    head: &Head,
    found: &mut Vec<String>,
) -> Result<(), StoreError> {
    if head.kind() == tenure_kernel::sessions::WORKER.kind {
        let ended = head.class() == Class::Final;
        match store.session(head.id).await? {
            Some(row) if row.ended == ended => {}
            row => found.push(format!("{}: {:?}, but its row is {row:?}", head.id, head.status)),
        }
    }
    Ok(())
}

/// A message is in the outbox or has arrived, never both, and leaves in order per source.
async fn check_outbox(
    store: &dyn Store,
    streams: &BTreeMap<EntityId, Vec<Record>>,
    boxes: &BTreeSet<(EntityId, MailId)>,
    found: &mut Vec<String>,
) -> Result<(), StoreError> {
    let arrived: BTreeSet<&MailId> = boxes.iter().map(|(_, id)| id).collect();
    let lanes: Vec<u16> = (0..limits::LANES).collect();
    let mut posted = store.outbox(lanes.clone(), false, usize::MAX >> 33).await?;
    let within = posted.len();
    posted.extend(store.outbox(lanes, true, usize::MAX >> 33).await?);
    let mut last = BTreeMap::new();
    for (i, p) in posted.iter().enumerate() {
        if i == within {
            // A wire has an order of its own.
            last.clear();
        }
        if arrived.contains(&MailId::from(p.id)) {
            found.push(format!("message {} has arrived and is still in the outbox", p.id));
        }
        let place = (p.id.version, p.id.ordinal);
        if last.insert(p.id.source, place).is_some_and(|before| before >= place) {
            found.push(format!("message {} is out of order", p.id));
        }
        let sent = streams.get(&p.id.source).is_some_and(|records| {
            records.iter().any(|r| r.last() == p.id.version)
                || records.first().is_some_and(|r| r.first > p.id.version)
        });
        if !sent {
            found.push(format!("message {} was sent by no commit", p.id));
        }
    }
    Ok(())
}

/// The feed shows each entity's records without a gap, once, with the bytes of its stream.
async fn check_feed(
    store: &dyn Store,
    streams: &BTreeMap<EntityId, Vec<Record>>,
    found: &mut Vec<String>,
) -> Result<(), StoreError> {
    let mut next: BTreeMap<EntityId, u64> = BTreeMap::new();
    let mut after = Cursor::START;
    loop {
        let page = store.feed(after, PAGE).await?;
        if page.items.is_empty() {
            return Ok(());
        }
        after = page.next;
        for (cursor, record) in page.items {
            let expected = next.insert(record.entity, record.last() + 1);
            if expected.is_some_and(|e| e != record.first) {
                found.push(format!("feed at {cursor}: a gap before {:?}", record.first));
            }
            let stream = streams.get(&record.entity);
            let same = stream.is_some_and(|s| {
                let at = s.binary_search_by_key(&record.first, |r| r.first);
                at.is_ok_and(|i| s[i] == record)
                    || s.first().is_some_and(|r| r.first > record.first)
            });
            if !same {
                found.push(format!("feed at {cursor}: a record that no stream has"));
            }
        }
    }
}
