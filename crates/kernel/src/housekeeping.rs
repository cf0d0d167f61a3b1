//! What keeps a store healthy over years: the pulse, retention, and sealed segments.

use crate::{
    head::Head,
    rules::Tallies,
    stream::{Body, NewEvent},
    table::{Class, kernel_events},
    time::Timestamp,
};
use std::time::Duration;

/// A sign of life that the due loop leaves in the store with every round.
#[derive(Clone, Debug)]
pub struct PulseRequest {
    /// A silence longer than this was an outage.
    pub gap: Duration,
    /// For so long after an outage no holder is judged.
    pub lease: Duration,
    /// What the rules did since the last pulse.
    pub tallies: Tallies,
}

/// What the store knows about its own outages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// The store's time.
    pub now: Timestamp,
    /// No holder is judged before this moment.
    pub judge_after: Timestamp,
    /// This pulse found an outage.
    pub outage: Option<Duration>,
}

impl Pulse {
    /// The pure rule, for stores to call inside their transaction.
    pub fn next(
        last: Option<Timestamp>,
        judge_after: Timestamp,
        now: Timestamp,
        req: &PulseRequest,
    ) -> Pulse {
        let silence = last.map_or(Duration::ZERO, |l| now.since(l));
        let outage = (silence > req.gap).then_some(silence);
        // Of the time before the first pulse ever nothing is known: sessions may be older than that.
        let defer = outage.is_some() || last.is_none();
        let judge_after = if defer { judge_after.max(now + req.lease) } else { judge_after };
        Pulse { now, judge_after, outage }
    }
}

/// What retention removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// Whole entities, final or vacant.
    pub entities: u64,
    /// Records of sealed segments.
    pub records: u64,
    /// Blobs that nothing names any more.
    pub blobs: u64,
}

/// Whether retention may remove an entity that last changed before a moment. `sends`: something of it lies in the outbox.
/// The memory store asks this; the databases say the same in SQL, under the lock of the head's row.
///
/// What is *vacant* may get mail at any moment, which changes the head only by a counter. So it leaves only with all its
/// mail read, and the store that is about to remove it holds the lock that a sender needs: mail is there before and keeps it,
/// or comes after and finds nobody. `vacancy` is the protection of that name.
pub fn may_leave(head: &Head, before: Timestamp, sends: bool, vacancy: bool) -> bool {
    let old = head.changed_at < before;
    match head.class() {
        Class::Final => old && !sends,
        Class::Resting if head.is_vacant() => {
            let quiet = !sends && !head.has_mail() && head.attention.is_none();
            old && head.holder.is_none() && (quiet || !vacancy)
        }
        Class::Open | Class::Resting => false,
    }
}

/// Before which moment a blob must have been put that retention may remove because nothing names it.
pub fn blobs_before(ended_before: Timestamp, now: Timestamp) -> Timestamp {
    ended_before.max(now - crate::limits::UNNAMED_BLOB_AGE_MAX)
}

/// The epoch before the first event of an entity. Zero, unless its kind comes again under the same id: then each life
/// begins at the moment of its birth, in microseconds. An earlier one had ended before that, so whoever has seen it has
/// another epoch, and nothing it decided then is taken for a decision about this one, whatever the version is.
pub fn first_epoch(comes_again: bool, born_at: Timestamp) -> u64 {
    match comes_again {
        true => u64::try_from(born_at.as_micros()).unwrap_or(0),
        false => 0,
    }
}

/// The event that seals a segment: it repeats state and chain value, so that everything before it can
/// be archived and the rest still be checked.
///
/// The state stands in it as the JSON that it is. As a quoted string a state near its limit could grow
/// past the limit of a body, and the entity could never be sealed.
pub fn seal(head: &Head) -> NewEvent {
    let state = crate::stored::from_slice::<serde_json::Value>(&head.state)
        .unwrap_or_else(|_| String::from_utf8_lossy(&head.state).into());
    let body = serde_json::json!({
        "previous": head.chain.to_string(),
        "version": head.version,
        "status": head.status.name(),
        "state": state,
    });
    NewEvent::new(kernel_events::SEALED, Body::json(&body))
}

/// Whether an entity has written enough since its last seal.
pub fn wants_seal(head: &Head, segment_events: u64) -> bool {
    head.version - head.sealed >= segment_events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_without_a_name_is_kept_for_a_day_however_long_entities_are_kept() {
        let (day, now) = (crate::limits::UNNAMED_BLOB_AGE_MAX, Timestamp::from_micros(1 << 50));
        assert_eq!(blobs_before(now - 30 * day, now), now - day);
        assert_eq!(blobs_before(now, now), now, "and no longer than entities");
    }

    #[test]
    fn an_outage_defers_judgement_by_one_lease_and_a_steady_pulse_does_not() {
        let req = PulseRequest {
            gap: Duration::from_secs(12),
            lease: Duration::from_secs(15),
            tallies: Tallies::new(),
        };
        let t = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let steady = Pulse::next(Some(t(100)), t(0), t(105), &req);
        assert_eq!((steady.judge_after, steady.outage), (t(0), None));
        let late = Pulse::next(Some(t(100)), t(0), t(400), &req);
        assert_eq!((late.judge_after, late.outage), (t(415), Some(Duration::from_secs(300))));
        let first_ever = Pulse::next(None, t(0), t(5), &req);
        assert_eq!((first_ever.judge_after, first_ever.outage), (t(20), None));
    }
}
