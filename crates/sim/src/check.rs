//! What must be true of a store's whole content, at any moment and when everything has come to rest.

use crate::oracle::Seen;
use std::collections::BTreeMap;
use tenure_kernel::{
    feed::Cursor,
    head::Head,
    ids::{EntityId, MessageId},
    machine::{Blobs, Machines},
    outbox::Target,
    store::Store,
    stream::{Hash, Record, blobs_of},
    table::Class,
    verify,
};
use tenure_store::memory::{Contents, MemoryStore};

/// At any moment.
pub fn always(contents: &Contents, machines: &Machines) -> Result<(), String> {
    let tables = machines.tables();
    for (id, head) in &contents.rows.heads {
        let records = contents.streams.get(id).map_or(&[][..], Vec::as_slice);
        let records: Vec<Record> = records.iter().map(|r| Record::clone(r)).collect();
        verify::verify(head, &records, &tables).map_err(|fault| fault.to_string())?;
        replayed(head, &records, contents, machines)?;
        mail(head, contents)?;
        if head.class() == Class::Open && (head.due.is_none() || head.due > head.must_end_by) {
            return Err(format!("{id}: open and not due"));
        }
        let in_queue = head.belongs_in_queue();
        if in_queue != head.ready_at.is_some() {
            return Err(format!("{id}: stands in the queue wrongly"));
        }
    }
    Ok(())
}

fn replayed(
    head: &Head,
    records: &[Record],
    contents: &Contents,
    machines: &Machines,
) -> Result<(), String> {
    if records.first().is_none_or(|r| r.first != 1) {
        return Ok(());
    }
    let kind = head.kind();
    let machine = machines.get(kind).ok_or_else(|| format!("no machine of kind {kind}"))?;
    let lying =
        |digest: Hash| contents.blobs.get(&digest).map(|(bytes, _)| (digest, bytes.clone()));
    let blobs: Blobs = blobs_of(records).into_iter().filter_map(lying).collect();
    let state = machine.replay(records, &blobs).map_err(|e| format!("{}: {e}", head.id))?;
    if state != head.state {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (head_says, history) = (text(&head.state), text(&state));
        let id = head.id;
        return Err(format!("{id}: the head's state is {head_says}, its history says {history}"));
    }
    Ok(())
}

fn mail(head: &Head, contents: &Contents) -> Result<(), String> {
    let id = head.id;
    let box_of = contents.mail.get(&id).map_or(&[][..], Vec::as_slice);
    let last = box_of.last().map_or(0, |m| m.seq);
    if last != head.mail_count && !box_of.is_empty() {
        return Err(format!("{id}: counts {} mails and has {last}", head.mail_count));
    }
    let gap = box_of.windows(2).find(|w| w[1].seq != w[0].seq + 1);
    match gap {
        Some(w) => Err(format!("{id}: mail {} follows mail {}", w[1].seq, w[0].seq)),
        None => Ok(()),
    }
}

/// When faults have stopped and time has gone on.
pub fn at_rest(contents: &Contents, seen: &Seen) -> Result<(), String> {
    for (id, head) in &contents.rows.heads {
        let status = head.status.name();
        if head.class() == Class::Open {
            let due = head.due;
            return Err(format!("{id}: {} still {status} (due {due:?}): it hangs", head.kind()));
        }
        if head.class() != Class::Final && head.has_mail() {
            let (read, count) = (head.mail_read, head.mail_count);
            return Err(format!("{id}: {status}, has covered {read} of {count} mails"));
        }
    }
    if let Some(id) = contents.rows.outbox.keys().next() {
        return Err(format!("message {id} was never delivered"));
    }
    for (to, mail) in &seen.accepted {
        let there = contents.mail.get(to).is_some_and(|m| m.iter().any(|m| m.id == *mail));
        if !there {
            return Err(format!("{to}: mail {mail:?} was accepted and is not there"));
        }
    }
    messages(contents, seen)
}

/// Every message arrives exactly once, and those of one source in order.
fn messages(contents: &Contents, seen: &Seen) -> Result<(), String> {
    let mut places: BTreeMap<(EntityId, &str), u64> = BTreeMap::new();
    for (entity, mail) in &contents.mail {
        for m in mail {
            if places.insert((*entity, &m.id.0), m.seq).is_some() {
                return Err(format!("{entity}: mail {} is there twice", m.id.0));
            }
        }
    }
    let mut last: BTreeMap<(EntityId, EntityId), (u64, MessageId)> = BTreeMap::new();
    for (id, posted) in &seen.posted {
        match seen.taken.get(id) {
            Some(1) => {}
            Some(n) => return Err(format!("message {id} was taken {n} times")),
            None => return Err(format!("message {id} was never taken")),
        }
        let Target::Mail(to) = posted.message.to else { continue };
        let name = id.to_string();
        let Some(place) = places.get(&(to, name.as_str())).copied() else {
            // Final targets answer so; nothing is owed to them.
            let over = contents.rows.heads.get(&to).is_none_or(|h| h.class() == Class::Final);
            if over || seen.had(to, &name) {
                continue;
            }
            return Err(format!("message {id} is not in the box of {to}"));
        };
        if let Some((before, earlier)) = last.insert((id.source, to), (place, *id))
            && before > place
        {
            return Err(format!("message {id} overtook {earlier}"));
        }
    }
    Ok(())
}

/// The feed has everything that the streams have, once, in order per entity; above its floor, if retention has raised it.
pub async fn feed(store: &MemoryStore) -> Result<(), String> {
    let mut cursor = Cursor::START;
    let mut next: BTreeMap<EntityId, u64> = BTreeMap::new();
    let whole = store.inspect(|contents| contents.feed_floor == 0);
    loop {
        let page = store.feed(cursor, 100).await.map_err(|e| e.to_string())?;
        for (_, record) in &page.items {
            let expected =
                next.entry(record.entity).or_insert(if whole { 1 } else { record.first });
            if record.first != *expected {
                let (entity, first) = (record.entity, record.first);
                return Err(format!("the feed shows version {first} of {entity}, not {expected}"));
            }
            *expected = record.last() + 1;
        }
        if page.items.is_empty() {
            break;
        }
        cursor = page.next;
    }
    store.inspect(|contents| {
        for (id, head) in &contents.rows.heads {
            let shown = next.get(id).copied();
            if shown != Some(head.version + 1) && (whole || shown.is_some()) {
                return Err(format!("the feed does not show all of {id}"));
            }
        }
        Ok(())
    })
}
