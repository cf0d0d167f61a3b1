//! How the store is.

use super::contents::{Contents, Rows};
use crate::health::{Open, Outbox};
use std::collections::BTreeMap;
use tenure_kernel::{
    head::lane_of,
    health::{COUNTED_MAX, Health, OUTBOX_COUNTED_MAX, ReadyCount},
    table::Class,
    time::Timestamp,
};

pub(super) fn health(rows: &Rows, all: &Contents, now: Timestamp) -> Health {
    let mut open = Open::default();
    for head in rows.heads.values().filter(|h| h.due.is_some()).take(COUNTED_MAX) {
        let is_open = head.class() == Class::Open;
        open.add(head.kind(), head.status.name(), is_open, head.changed_at);
    }
    let (open, open_is_all) = open.done();
    let mut ready: BTreeMap<&str, ReadyCount> = BTreeMap::new();
    let waiting = rows.heads.values().filter_map(|h| Some((h, h.ready_at?)));
    for (head, at) in waiting.take(COUNTED_MAX) {
        let fresh = || ReadyCount { queue: head.queue.clone(), count: 0, oldest: at };
        let queue = ready.entry(&head.queue).or_insert_with(fresh);
        queue.count += 1;
        queue.oldest = queue.oldest.min(at);
    }
    let mut outbox = Outbox::default();
    for wire in [false, true] {
        let mut posted: Vec<_> =
            rows.outbox.values().filter(|(_, p)| p.message.to.leaves() == wire).collect();
        posted.sort_by_key(|(position, _)| *position);
        for (_, p) in posted.into_iter().take(OUTBOX_COUNTED_MAX) {
            outbox.add(lane_of(p.id.source), wire, p.at);
        }
    }
    let mut sessions: BTreeMap<&str, u64> = BTreeMap::new();
    for session in rows.sessions.values().filter(|s| !s.ended && now < s.expires_at) {
        *sessions.entry(&session.role).or_default() += 1;
    }
    Health {
        now,
        pulse_at: all.pulse_at,
        judge_after: all.judge_after,
        open,
        open_is_all,
        ready: ready.into_values().collect(),
        outbox: outbox.done(),
        sessions: sessions.into_iter().map(|(role, n)| (role.to_owned(), n)).collect(),
        ..Health::default()
    }
}
