//! Schedules: the calendar against an enumeration that knows nothing of it, and a year of fires with outages.

use crate::support::World as Loops;
use chrono::{DateTime, Datelike, Duration as Span, NaiveDateTime, Timelike};
use chrono_tz::Tz;
use std::{collections::BTreeSet, time::Duration};
use tenure_jobs::{
    model::NewJob,
    shared::schedule::{
        Event, Missed, Overlap, Schedule, Spec, State,
        calendar::{Calendar, Nominal},
        decide,
        model::limits,
    },
};
use tenure_kernel::{
    ids::{EntityId, MailId},
    machine::{Cx, Decision, Input, Machine},
    mail::Mail,
    outbox::Target,
    stream::Body,
    time::Timestamp,
    timers::{TimerChange, Timers},
};
use tenure_proving::dice::Dice;

fn at(text: &str) -> Timestamp {
    Timestamp::from_micros(DateTime::parse_from_rfc3339(text).unwrap().timestamp_micros())
}

fn spec(cron: &str, zone: &str) -> Spec {
    Spec {
        cron: Some(cron.into()),
        zone: zone.into(),
        flow: "report".into(),
        version: 1,
        must_end_in_ms: 3_600_000,
        takeovers_max: 5,
        ..Spec::default()
    }
}

fn times(cron: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let calendar = Calendar::of(&spec(cron, zone), Timestamp::ZERO).unwrap();
    let times = calendar.preview(at(from), count);
    times.iter().map(|t| t.to_string().replace(":00.000000Z", "Z")).collect()
}

#[test]
fn a_time_that_does_not_exist_is_the_first_moment_after_the_gap() {
    // 02:30 on 29 March 2026: the clock goes from 02:00 to 03:00, which is 01:00 UTC.
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3),
        ["2026-03-28T01:30Z", "2026-03-29T01:00Z", "2026-03-30T00:30Z"]
    );
    assert_eq!(
        times("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", 2),
        ["2026-03-08T07:00Z", "2026-03-09T06:30Z"]
    );
    // Lord Howe moves by half an hour: 02:00 becomes 02:30, at 15:30 UTC.
    assert_eq!(
        times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", 2),
        ["2026-10-03T15:30Z", "2026-10-04T15:15Z"]
    );
    // Samoa left out a whole day.
    assert_eq!(
        times("0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", 3),
        ["2011-12-29T22:00Z", "2011-12-30T10:00Z", "2011-12-30T22:00Z"]
    );
}

#[test]
fn a_time_that_exists_twice_is_the_first_of_the_two() {
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2),
        ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]
    );
    assert_eq!(
        times("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 2),
        ["2026-11-01T05:30Z", "2026-11-02T06:30Z"]
    );
    assert_eq!(
        times("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", 2),
        ["2026-04-04T14:45Z", "2026-04-05T15:15Z"]
    );
    // Asked in the middle of the second pass, the hour is over.
    assert_eq!(
        times("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", 1),
        ["2026-10-26T01:30Z"]
    );
}

#[test]
fn a_preview_says_which_times_the_clock_moves() {
    let told = |cron: &str, zone: &str, from: &str, count: usize| {
        let calendar = Calendar::of(&spec(cron, zone), Timestamp::ZERO).unwrap();
        let told = calendar.explained(at(from), count);
        // It says the same times as the schedule would have.
        let times: Vec<Timestamp> = told.iter().map(|t| t.at).collect();
        assert_eq!(times, calendar.preview(at(from), count));
        let tell = |t: &Nominal| (t.wall.clone(), t.moved_from.clone(), t.not_again_at);
        told.iter().map(tell).collect::<Vec<_>>()
    };
    let moved = |wall: &str, from: &str| (wall.to_owned(), Some(from.to_owned()), None);
    let plain = |wall: &str| (wall.to_owned(), None, None);
    let twice = |wall: &str, again: &str| (wall.to_owned(), None, Some(at(again)));
    let berlin = "Europe/Berlin";
    assert_eq!(
        told("30 2 * * *", berlin, "2026-03-28T00:00:00Z", 3),
        [
            plain("2026-03-28T02:30:00+01:00"),
            moved("2026-03-29T03:00:00+02:00", "2026-03-29T02:30:00"),
            plain("2026-03-30T02:30:00+02:00"),
        ]
    );
    // Of several that fall on one moment the first is named; the moment is the expression's own time, too.
    assert_eq!(
        told("*/30 * * * *", berlin, "2026-03-29T00:30:00Z", 2),
        [
            moved("2026-03-29T03:00:00+02:00", "2026-03-29T02:00:00"),
            plain("2026-03-29T03:30:00+02:00"),
        ]
    );
    assert_eq!(
        told("*/30 * * * *", berlin, "2026-10-25T00:00:00Z", 2),
        [
            twice("2026-10-25T02:30:00+02:00", "2026-10-25T01:30:00Z"),
            plain("2026-10-25T03:00:00+01:00"),
        ]
    );
    assert_eq!(
        told("0 12 * * *", "Pacific/Apia", "2011-12-30T00:00:00Z", 1),
        [moved("2011-12-31T00:00:00+14:00", "2011-12-30T12:00:00")]
    );
    // An interval knows no wall.
    let every = Spec { cron: None, every_ms: Some(1_800_000), ..spec("", berlin) };
    let from = at("2026-10-25T00:00:00Z");
    let beat = Calendar::of(&every, from).unwrap().explained(from, 3);
    assert!(beat.iter().all(|t| t.moved_from.is_none() && t.not_again_at.is_none()));
    assert_eq!(beat[1].wall, "2026-10-25T02:00:00+01:00");
}

/// A moment may be any number of microseconds, also one for which no wall time exists.
#[test]
fn a_moment_beyond_every_year_has_no_next_time() {
    let last = DateTime::<chrono::Utc>::MAX_UTC.timestamp_micros();
    let first = DateTime::<chrono::Utc>::MIN_UTC.timestamp_micros();
    for zone in ["Pacific/Kiritimati", "Pacific/Honolulu", "UTC"] {
        let cron = Calendar::of(&spec("* * * * *", zone), Timestamp::ZERO).unwrap();
        let every = Spec { cron: None, every_ms: Some(1_000), ..spec("", zone) };
        for moment in [i64::MIN, first, first + 1, last - 1, last, i64::MAX] {
            let moment = Timestamp::from_micros(moment);
            assert_eq!(cron.explained(moment, 3), []);
            assert_eq!(cron.preview(moment, 3), []);
            let started = Spec { start: Some(moment), ..every.clone() };
            for every in [&every, &started] {
                let every = Calendar::of(every, Timestamp::ZERO).unwrap();
                assert!(every.explained(moment, 3).len() <= 3);
            }
        }
        // The years that are known begin and end as before.
        let known = |from: &str| cron.preview(at(from), 1).len();
        assert_eq!((known("1969-06-01T00:00:00Z"), known("1970-01-02T00:00:00Z")), (0, 1));
        assert_eq!((known("2399-12-30T00:00:00Z"), known("2400-01-02T00:00:00Z")), (1, 0));
    }
}

#[test]
fn zones_with_odd_offsets_and_six_fields_and_nicknames_are_understood() {
    assert_eq!(
        times("0 9 * * *", "Asia/Kathmandu", "2026-01-01T00:00:00Z", 1),
        ["2026-01-01T03:15Z"]
    );
    assert_eq!(times("@daily", "UTC", "2026-01-01T00:00:00Z", 1), ["2026-01-02T00:00Z"]);
    let calendar = Calendar::of(&spec("*/20 * * * * *", "UTC"), Timestamp::ZERO).unwrap();
    let now = at("2026-01-01T00:00:00Z");
    assert_eq!(calendar.after(now), Some(now + Duration::from_secs(20)));
}

#[test]
fn a_calendar_that_can_not_be_used_says_which_field_and_why() {
    let field = |spec: &Spec| Calendar::of(spec, Timestamp::ZERO).unwrap_err().field;
    assert_eq!(field(&spec("61 * * * *", "UTC")), "cron");
    assert_eq!(field(&spec("* * *", "UTC")), "cron");
    assert_eq!(field(&spec("0 0 * * * 1 2030", "UTC")), "cron");
    assert_eq!(field(&spec("0 0 30 2 *", "UTC")), "cron");
    assert_eq!(field(&spec("0 0 * * *", "Mars/Olympus")), "zone");
    assert_eq!(field(&Spec { cron: None, ..spec("", "UTC") }), "cron");
    assert_eq!(field(&Spec { every_ms: Some(5_000), ..spec("* * * * *", "UTC") }), "every_seconds");
    assert_eq!(
        field(&Spec { cron: None, every_ms: Some(999), ..spec("", "UTC") }),
        "every_seconds"
    );
    let ends_first = Spec {
        start: Some(at("2026-02-01T00:00:00Z")),
        end: Some(at("2026-01-01T00:00:00Z")),
        ..spec("* * * * *", "UTC")
    };
    assert_eq!(field(&ends_first), "end");
    assert!(
        Calendar::of(
            &Spec { cron: None, every_ms: Some(1_000), ..spec("", "UTC") },
            Timestamp::ZERO
        )
        .is_ok()
    );
}

#[test]
fn start_and_end_bound_the_times_and_an_interval_counts_from_its_start() {
    let (start, end) = (at("2026-05-01T10:00:00Z"), at("2026-05-01T11:00:00Z"));
    let bounded = Spec {
        start: Some(start),
        end: Some(end),
        cron: None,
        every_ms: Some(1_200_000),
        ..spec("", "UTC")
    };
    let calendar = Calendar::of(&bounded, at("2026-01-01T00:00:07Z")).unwrap();
    let all = calendar.preview(at("2026-01-01T00:00:00Z"), 10);
    assert_eq!(all, [0, 20, 40, 60].map(|m| start + Duration::from_secs(m * 60)));
    let cron = Spec { every_ms: None, cron: Some("0 * * * *".into()), ..bounded };
    assert_eq!(
        Calendar::of(&cron, start).unwrap().preview(at("2026-01-01T00:00:00Z"), 10),
        [start, end]
    );
}

type Matches = fn(NaiveDateTime) -> bool;

const ZONES: [Tz; 5] = [
    Tz::Europe__Berlin,
    Tz::America__New_York,
    Tz::Australia__Lord_Howe,
    Tz::Asia__Kathmandu,
    Tz::UTC,
];

/// Expressions, and what they mean in words of this test's own.
const CRONS: [(&str, Matches); 6] = [
    ("30 2 * * *", |w| (w.hour(), w.minute()) == (2, 30)),
    ("15 1,2 * * sun", |w| {
        w.weekday().num_days_from_sunday() == 0 && [1, 2].contains(&w.hour()) && w.minute() == 15
    }),
    ("*/15 * * * *", |w| w.minute() % 15 == 0),
    ("0 0 1 * *", |w| (w.day(), w.hour(), w.minute()) == (1, 0, 0)),
    ("5 0-6/2 * 3,4,10,11 mon-fri", |w| {
        w.minute() == 5
            && [0, 2, 4, 6].contains(&w.hour())
            && [3, 4, 10, 11].contains(&w.month())
            && w.weekday().num_days_from_monday() < 5
    }),
    ("0 3 29 2 *", |w| (w.month(), w.day(), w.hour(), w.minute()) == (2, 29, 3, 0)),
];

const YEAR: (&str, &str) = ("2027-06-30T22:00:00Z", "2028-07-01T02:00:00Z");

/// Every nominal time of a year, minute by minute of the world's clock: a wall time counts when the clock on the wall
/// shows it, or something later, for the first time.
fn enumerate(zone: Tz, matches: Matches) -> BTreeSet<Timestamp> {
    let minutes = |t: Timestamp| t.as_micros() / 60_000_000;
    let wall = |minute: i64| {
        DateTime::from_timestamp(minute * 60, 0).unwrap().with_timezone(&zone).naive_local()
    };
    let (from, to) = (minutes(at(YEAR.0)), minutes(at(YEAR.1)));
    let mut seen = wall(from);
    let mut found = BTreeSet::new();
    for minute in from + 1..=to {
        let shown = wall(minute);
        let mut hit = false;
        while seen < shown {
            seen += Span::minutes(1);
            hit |= matches(seen);
        }
        if hit {
            found.insert(Timestamp::from_micros(minute * 60_000_000));
        }
    }
    found
}

#[test]
fn the_times_of_a_year_are_those_that_the_clock_on_the_wall_shows() {
    for zone in ZONES {
        for (cron, matches) in CRONS {
            let calendar = Calendar::of(&spec(cron, zone.name()), Timestamp::ZERO).unwrap();
            let (mut moment, end) = (at(YEAR.0), at(YEAR.1));
            let mut found = BTreeSet::new();
            while let Some(next) = calendar.after(moment).filter(|n| *n <= end) {
                found.insert(next);
                moment = next;
            }
            assert_eq!(found, enumerate(zone, matches), "{cron} in {zone}");
        }
    }
}

/// A schedule as its head would be: state, timers, and what it sent.
struct World {
    id: EntityId,
    state: Option<State>,
    timers: Timers,
    version: u64,
    jobs: Vec<(EntityId, NewJob)>,
}

impl World {
    fn new() -> Self {
        let id = tenure_jobs::shared::schedule::desk::id_of("acme", "nightly");
        World { id, state: None, timers: Timers::default(), version: 0, jobs: Vec::new() }
    }

    fn cx(&self, now: Timestamp) -> Cx {
        Cx { id: self.id, now, version: self.version, status: None, changed_at: None }
    }

    fn commit(&mut self, decision: Decision<Event>, now: Timestamp, fired: bool) -> Vec<Event> {
        if fired {
            self.timers.change(&TimerChange::clear(decide::FIRE), now);
        }
        let mut state = self.state.take().unwrap_or_default();
        decision.events.iter().for_each(|e| Schedule::apply(&mut state, e));
        // The head holds what its JSON holds.
        let bytes = serde_json::to_vec(&state).unwrap();
        assert!(bytes.len() < 16 * 1024);
        assert_eq!(serde_json::from_slice::<State>(&bytes).unwrap(), state);
        self.state = Some(state);
        self.version += decision.events.len() as u64;
        decision.timers.iter().for_each(|t| self.timers.change(t, now));
        for message in decision.messages {
            let Target::Create { id, .. } = message.to else { panic!("a schedule only creates") };
            let new = serde_json::from_slice(message.body.inline().unwrap()).unwrap();
            self.jobs.push((id, new));
        }
        decision.events
    }

    fn set(&mut self, spec: Spec, now: Timestamp) -> Vec<Event> {
        let decision =
            decide::set(self.state.as_ref(), "nightly", spec, None, &self.cx(now)).unwrap();
        self.commit(decision, now, false)
    }

    fn decide(&self, input: &Input<'_>, now: Timestamp) -> Decision<Event> {
        Schedule::decide(self.state.as_ref(), input, &self.cx(now)).unwrap()
    }

    fn next_timer(&self) -> Option<Timestamp> {
        self.timers.earliest()
    }
}

/// What a service did, as the oracle has to see it.
struct Service {
    now: Timestamp,
    fired: Vec<Timestamp>,
    missed: u64,
}

fn fired(events: &[Event]) -> (Vec<Timestamp>, u64) {
    let mut all = (Vec::new(), 0);
    for event in events {
        if let Event::ScheduleFired { fires, missed, .. } = event {
            all.0.extend(fires.iter().map(|f| f.nominal));
            all.1 += missed;
        }
    }
    all
}

/// A year of the loop, with outages, late services, decisions that are made and lost, and changes of the schedule.
fn live(zone: Tz, cron: &str, missed: Missed, dice: &mut Dice) -> (World, Vec<Service>) {
    let mut world = World::new();
    let (mut now, end) = (at(YEAR.0), at(YEAR.1));
    world.set(Spec { missed, ..spec(cron, zone.name()) }, now);
    let mut services = Vec::new();
    while let Some(timer) = world.next_timer().filter(|t| *t <= end) {
        now = now.max(timer);
        now = match dice.below(12) {
            // A long outage, a short one, a slow round; mostly on time.
            0 => now + Duration::from_secs(dice.below(40 * 24 * 3_600)),
            1 => now + Duration::from_secs(dice.below(8 * 3_600)),
            2 => now + Duration::from_secs(dice.below(180)),
            _ => now + Duration::from_millis(dice.below(5_000)),
        };
        if now > end {
            break;
        }
        let decision = world.decide(&Input::Timer(decide::FIRE), now);
        let decision = match dice.below(6) {
            0 => {
                // The server dies before it commits; another one decides later, and names the same jobs.
                let later = now + Duration::from_secs(dice.below(30));
                let again = world.decide(&Input::Timer(decide::FIRE), later);
                let ids = |d: &Decision<Event>| -> BTreeSet<_> {
                    d.messages.iter().map(|m| format!("{:?}", m.to)).collect()
                };
                if missed == Missed::All {
                    assert!(
                        ids(&decision).is_subset(&ids(&again))
                            || decision.messages.len() >= limits::CATCH_UP_MAX
                    );
                }
                now = later;
                again
            }
            1 => {
                // Somebody changes the input while fires are due.
                let input = serde_json::json!(dice.below(1_000_000));
                let spec = Spec { missed, input, ..spec(cron, zone.name()) };
                let events = world.set(spec, now);
                let (fired, missed) = fired(&events);
                services.push(Service { now, fired, missed });
                continue;
            }
            _ => decision,
        };
        let events = world.commit(decision, now, true);
        let (fired, missed) = fired(&events);
        services.push(Service { now, fired, missed });
    }
    (world, services)
}

#[test]
fn through_a_year_with_outages_no_time_is_lost_or_doubled_under_any_policy() {
    for (z, zone) in ZONES.into_iter().enumerate() {
        for (c, (cron, matches)) in CRONS.into_iter().enumerate() {
            let nominal = enumerate(zone, matches);
            for (p, policy) in [Missed::Skip, Missed::Once, Missed::All].into_iter().enumerate() {
                let seed = (z * 100 + c * 10 + p) as u64;
                let (world, services) = live(zone, cron, policy, &mut Dice(seed));
                let what = format!("{cron} in {zone} under {policy:?}");
                check(&nominal, &services, policy, &what);
                let ids: BTreeSet<_> = world.jobs.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids.len(), world.jobs.len(), "{what}: a job twice");
                let said: usize = services.iter().map(|s| s.fired.len()).sum();
                assert_eq!(world.jobs.len(), said, "{what}: what is on record is what was created");
                for (id, new) in &world.jobs {
                    let of = new.scheduled.as_ref().unwrap();
                    assert_eq!(*id, decide::job_of(world.id, of.nominal), "{what}");
                }
            }
        }
    }
}

/// The rules of the policies, said over again.
fn check(nominal: &BTreeSet<Timestamp>, services: &[Service], policy: Missed, what: &str) {
    let minute = Duration::from_secs(60);
    let mut left = nominal.iter().copied().peekable();
    for service in services {
        let mut come = Vec::new();
        while let Some(next) = left.next_if(|n| *n <= service.now) {
            come.push(next);
        }
        let fresh: Vec<_> = come.iter().copied().filter(|n| *n + minute >= service.now).collect();
        let expected = match policy {
            Missed::Skip => fresh,
            Missed::Once if fresh.is_empty() => come.last().copied().into_iter().collect(),
            Missed::Once => fresh,
            Missed::All => {
                let late = come.iter().filter(|n| !fresh.contains(n)).copied();
                late.take(100).chain(fresh.iter().copied()).collect()
            }
        };
        assert_eq!(service.fired, expected, "{what} at {}", service.now);
        assert_eq!(service.fired.len() as u64 + service.missed, come.len() as u64, "{what}");
    }
}

#[test]
fn after_an_outage_longer_than_one_decision_the_count_is_still_exact() {
    for policy in [Missed::Skip, Missed::Once, Missed::All] {
        let mut world = World::new();
        let start = at("2026-01-01T00:00:00Z");
        world.set(
            Spec { cron: None, every_ms: Some(1_000), missed: policy, ..spec("", "UTC") },
            start,
        );
        let now = start + Duration::from_secs(25_000) + Duration::from_millis(300);
        let (mut jobs, mut missed, mut rounds) = (Vec::new(), 0, 0);
        while world.next_timer().is_some_and(|t| t <= now) {
            let decision = world.decide(&Input::Timer(decide::FIRE), now);
            let (fires, lost) = fired(&world.commit(decision, now, true));
            jobs.extend(fires);
            missed += lost;
            rounds += 1;
        }
        assert_eq!((jobs.len() as u64 + missed, rounds), (25_000, 3), "{policy:?}");
        let nth = |n: u64| start + Duration::from_secs(n);
        match policy {
            Missed::Skip | Missed::Once => {
                assert_eq!(jobs, (24_941..=25_000).map(nth).collect::<Vec<_>>())
            }
            Missed::All => {
                assert_eq!(jobs, (1..=100).chain(24_941..=25_000).map(nth).collect::<Vec<_>>())
            }
        }
        assert_eq!(world.state.as_ref().map(|s| s.skipped), Some(missed));
    }
}

fn ended(job: EntityId, seq: u64) -> Mail {
    let body = Body::json(&serde_json::json!({ "job": job, "status": "completed" }));
    let (kind, at) = (decide::JOB_ENDED.to_owned(), Timestamp::ZERO);
    Mail { seq, id: MailId(format!("{job}/9/0")), kind, body, at }
}

#[test]
fn where_jobs_may_not_overlap_a_time_is_skipped_while_one_is_open() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    let every =
        Spec { cron: None, every_ms: Some(60_000), overlap: Overlap::Skip, ..spec("", "UTC") };
    world.set(every, start);
    let minute = |n: u64| start + Duration::from_secs(60 * n);
    let fire = |world: &mut World, n: u64| {
        let decision = world.decide(&Input::Timer(decide::FIRE), minute(n));
        fired(&world.commit(decision, minute(n), true)).0.len()
    };
    assert_eq!(fire(&mut world, 1), 1);
    assert_eq!(world.jobs[0].1.terms.tell, Some(world.id), "its end will be told");
    assert_eq!((fire(&mut world, 2), fire(&mut world, 3)), (0, 0));
    assert_eq!(world.state.as_ref().unwrap().skipped, 2);
    let mail = [ended(world.jobs[0].0, 1)];
    let decision = world.decide(&Input::Mail(&mail), minute(3));
    world.commit(decision, minute(3), false);
    assert_eq!(fire(&mut world, 4), 1);
    // Nobody ever says that the second has ended: when it must have, the schedule goes on.
    assert_eq!(fire(&mut world, 5), 0);
    assert_eq!(fire(&mut world, 4 + 60 + 11), 1);
}

#[test]
fn a_change_serves_what_has_come_and_keeps_what_was_dealt_with() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    world.set(spec("0 * * * *", "UTC"), start);
    // The loop was away over one o'clock; somebody sets another calendar meanwhile.
    let now = start + Duration::from_secs(3_600 + 30);
    let events = world.set(spec("30 * * * *", "UTC"), now);
    assert_eq!(fired(&events).0, [start + Duration::from_secs(3_600)]);
    assert_eq!(world.next_timer(), Some(start + Duration::from_secs(5_400)));
    // Setting the same again changes nothing.
    assert!(world.set(spec("30 * * * *", "UTC"), now).is_empty());
    // Back to the first within the same hour: one o'clock does not come a second time.
    assert!(fired(&world.set(spec("0 * * * *", "UTC"), now)).0.is_empty());
    assert_eq!(world.next_timer(), Some(start + Duration::from_secs(7_200)));
}

/// The times behind those that one decision looks at go with the calendar; the job for all of them does not.
#[test]
fn a_pause_or_a_change_after_more_missed_times_than_one_decision_reaches_still_makes_up_once() {
    let seconds = |n: usize| Duration::from_secs(n as u64);
    for missed in [limits::WALK_MAX, limits::WALK_MAX + 1, 3 * limits::WALK_MAX] {
        for paused in [true, false] {
            let mut world = World::new();
            let start = at("2026-01-01T00:00:00Z");
            let every = Spec { cron: None, every_ms: Some(1_000), ..spec("", "UTC") };
            world.set(Spec { end: Some(start + seconds(missed)), ..every.clone() }, start);
            let now = start + seconds(missed) + Duration::from_secs(3_600);
            let events = match paused {
                true => {
                    let state = world.state.clone().unwrap();
                    let decision = decide::pause(&state, None, &world.cx(now)).unwrap();
                    world.commit(decision, now, false)
                }
                false => world.set(every, now),
            };
            let last = missed.min(limits::WALK_MAX);
            assert_eq!(fired(&events).0, [start + seconds(last)], "{missed}, {paused}");
        }
    }
}

fn by_hand(world: &mut World, key: &str, now: Timestamp) -> Result<EntityId, decide::NotFired> {
    let state = world.state.clone().unwrap();
    let (job, decision) = decide::fire_by_hand(&state, Some(key), None, &world.cx(now))?;
    world.commit(decision, now, false);
    Ok(job)
}

#[test]
fn a_job_that_is_open_is_never_forgotten_where_jobs_may_not_overlap() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    let every =
        Spec { cron: None, every_ms: Some(60_000), overlap: Overlap::Skip, ..spec("", "UTC") };
    world.set(every.clone(), start);
    let minute = |n: u64| start + Duration::from_secs(60 * n);
    let ends = |world: &mut World, job, now| {
        let decision = world.decide(&Input::Mail(&[ended(job, 1)]), now);
        world.commit(decision, now, false);
    };
    let fire = |world: &mut World, n: u64| {
        let decision = world.decide(&Input::Timer(decide::FIRE), minute(n));
        fired(&world.commit(decision, minute(n), true)).0.len()
    };
    let fired_by_hand: Vec<EntityId> = (0..limits::OPEN_MAX)
        .map(|n| by_hand(&mut world, &format!("k{n}"), start).unwrap())
        .collect();
    assert_eq!(by_hand(&mut world, "one more", start), Err(decide::NotFired::TooManyOpen));
    assert_eq!(by_hand(&mut world, "k0", start), Ok(fired_by_hand[0]), "it is there already");
    for job in &fired_by_hand[1..] {
        ends(&mut world, *job, start);
    }
    assert_eq!(fire(&mut world, 1), 0, "the first is still open");
    // That jobs may overlap for a while does not make it forget.
    world.set(Spec { overlap: Overlap::Allow, ..every.clone() }, minute(1));
    assert_eq!(fire(&mut world, 2), 1);
    world.set(every, minute(2));
    assert_eq!(fire(&mut world, 3), 0, "the first is still open");
    ends(&mut world, fired_by_hand[0], minute(3));
    assert_eq!(fire(&mut world, 4), 1);
}

#[test]
fn times_that_pass_in_a_pause_are_not_missed_and_a_removed_schedule_can_be_set_again() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    world.set(Spec { missed: Missed::All, ..spec("0 * * * *", "UTC") }, start);
    let hour = |n: u64| start + Duration::from_secs(3_600 * n);
    let half = Duration::from_secs(1_800);
    let state = world.state.clone().unwrap();
    let decision = decide::pause(&state, None, &world.cx(hour(1) - half)).unwrap();
    world.commit(decision, hour(1) - half, false);
    assert_eq!(world.next_timer(), None);
    let state = world.state.clone().unwrap();
    let (job, by_hand) = decide::fire_by_hand(&state, Some("k"), None, &world.cx(hour(2))).unwrap();
    world.commit(by_hand, hour(2), false);
    let state = world.state.clone().unwrap();
    let (again, nothing) =
        decide::fire_by_hand(&state, Some("k"), None, &world.cx(hour(3))).unwrap();
    assert!(again == job && nothing.events.is_empty(), "the same key is the same job");
    let decision = decide::resume(&state, None, &world.cx(hour(5) + half)).unwrap();
    world.commit(decision, hour(5) + half, false);
    assert_eq!(world.next_timer(), Some(hour(6)));
    let decision = decide::remove(world.state.as_ref().unwrap(), None);
    world.commit(decision, hour(5) + half, false);
    assert_eq!((world.next_timer(), world.jobs.len()), (None, 1));
    let events = world.set(spec("0 * * * *", "UTC"), hour(7) + half);
    assert!(fired(&events).0.is_empty());
    assert_eq!(world.next_timer(), Some(hour(8)));
    // It is another schedule now, and a key of the first one names nothing of it.
    let state = world.state.clone().unwrap();
    let (anew, by_hand) =
        decide::fire_by_hand(&state, Some("k"), None, &world.cx(hour(7))).unwrap();
    assert!(anew != job && by_hand.events.len() == 1, "a new job under the same key");
    world.commit(by_hand, hour(7) + half, false);
    let state = world.state.clone().unwrap();
    let (again, nothing) =
        decide::fire_by_hand(&state, Some("k"), None, &world.cx(hour(7))).unwrap();
    assert!(again == anew && nothing.events.is_empty());
}

#[test]
fn jitter_moves_a_job_and_never_its_nominal_time() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    world.set(Spec { jitter_ms: 600_000, ..spec("0 * * * *", "UTC") }, start);
    let mut delays = BTreeSet::new();
    for n in 1..=50u64 {
        let nominal = start + Duration::from_secs(3_600 * n);
        let timer = world.next_timer().unwrap();
        assert!(timer >= nominal && timer <= nominal + Duration::from_secs(600));
        delays.insert(timer.since(nominal));
        let decision = world.decide(&Input::Timer(decide::FIRE), timer);
        assert_eq!(fired(&world.commit(decision, timer, true)), (vec![nominal], 0));
    }
    assert!(delays.len() > 40);
}

/// Every ten seconds with a jitter of ten minutes: moments are not in the order of the times.
#[test]
fn with_a_jitter_longer_than_the_interval_no_time_on_time_is_missed() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    let every = Spec { cron: None, every_ms: Some(10_000), ..spec("", "UTC") };
    world.set(Spec { jitter_ms: 600_000, missed: Missed::Skip, ..every }, start);
    let mut served = Vec::new();
    for _ in 0..200 {
        let now = world.next_timer().unwrap();
        let decision = world.decide(&Input::Timer(decide::FIRE), now);
        let (fires, missed) = fired(&world.commit(decision, now, true));
        assert_eq!(missed, 0, "nobody was late");
        served.extend(fires);
    }
    let expected = (1..=served.len() as u64).map(|n| start + Duration::from_secs(10 * n));
    assert_eq!(served, expected.collect::<Vec<_>>());
}

#[test]
fn a_pause_or_a_change_between_a_time_and_its_jitter_does_not_lose_it() {
    let start = at("2026-01-01T00:00:00Z");
    let hourly = Spec { jitter_ms: 1_800_000, missed: Missed::Skip, ..spec("0 * * * *", "UTC") };
    let mut tried = 0;
    for paused in [true, false] {
        let mut world = World::new();
        world.set(hourly.clone(), start);
        // More than the minute after which a time is late, and before its moment.
        let (nominal, timer) = (1..)
            .map(|n| start + Duration::from_secs(3_600 * n))
            .find_map(|nominal| {
                let timer = world.next_timer().unwrap();
                if timer.since(nominal) > Duration::from_secs(600) {
                    return Some((nominal, timer));
                }
                let decision = world.decide(&Input::Timer(decide::FIRE), timer);
                world.commit(decision, timer, true);
                None
            })
            .unwrap();
        let now = nominal + Duration::from_secs(120);
        assert!(now < timer);
        tried += 1;
        let events = if paused {
            let decision =
                decide::pause(world.state.as_ref().unwrap(), None, &world.cx(now)).unwrap();
            world.commit(decision, now, false)
        } else {
            world.set(Spec { priority: 1, ..hourly.clone() }, now)
        };
        assert_eq!(fired(&events), (vec![nominal], 0), "paused: {paused}");
    }
    assert_eq!(tried, 2);
}

#[test]
fn a_time_that_is_on_time_becomes_a_job_however_many_were_missed() {
    let mut world = World::new();
    let start = at("2026-01-01T00:00:00Z");
    world.set(Spec { missed: Missed::All, ..spec("* * * * *", "UTC") }, start);
    let now = start + Duration::from_secs(300 * 60);
    let decision = world.decide(&Input::Timer(decide::FIRE), now);
    let (fires, missed) = fired(&world.commit(decision, now, true));
    assert_eq!(fires.len(), limits::CATCH_UP_MAX + 2, "two are at most a minute late");
    assert_eq!((fires[0], *fires.last().unwrap()), (start + Duration::from_secs(60), now));
    assert_eq!(fires.len() as u64 + missed, 300);
}

async fn listen(
    ctx: tenure_steps::Ctx,
    _: serde_json::Value,
) -> Result<u32, tenure_steps::FlowError> {
    let _: serde_json::Value = ctx.wait_signal("go").await?;
    Ok(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_real_loops_a_time_is_skipped_until_the_earlier_job_has_said_its_end() {
    use tenure_jobs::{drive::JobOptions, shared::schedule::desk::Schedules};
    use tenure_steps::{
        flow::{FlowSpec, Flows},
        tool::Tools,
    };
    let flows = Flows::default().with(FlowSpec::new("listen", listen));
    let loops = Loops::start(flows, Tools::default(), JobOptions::default()).await;
    let schedules = Schedules(loops.node.pipeline.clone());
    let often = Spec {
        cron: None,
        every_ms: Some(1_000),
        flow: "listen".into(),
        overlap: Overlap::Skip,
        ..spec("", "UTC")
    };
    schedules.set("t", "often", often, None).await.unwrap();
    let shown = async || schedules.show("t", "often", 0).await.unwrap();
    // The first has waited through at least one more time.
    let skipped = async || {
        let shown = shown().await;
        assert!(shown.fired <= 1, "two at once");
        (shown.skipped > 0).then(|| shown.fires[0].job)
    };
    let job = loops.place.find(skipped).await.expect("one is skipped");
    loops.until(job, "parked").await;
    loops.signal(job, "go", serde_json::json!(1)).await;
    loops.until(job, "completed").await;
    let next = async || {
        let fired = shown().await.fired;
        assert!(fired <= 2, "two at once");
        fired == 2
    };
    loops.place.until("the next one runs", next).await;
    loops.check().await;
}

/// One visit serves the mail and then the timer: what gets mail all the time comes to its timers too.
#[tokio::test(flavor = "multi_thread")]
async fn mail_does_not_starve_the_timers_of_what_rests() {
    use tenure_engine::serve::{Served, Server};
    use tenure_jobs::{drive::JobOptions, shared::schedule::desk::Schedules};
    use tenure_steps::{
        flow::{FlowSpec, Flows},
        tool::Tools,
    };
    let flows = Flows::default().with(FlowSpec::new("listen", listen));
    let mut loops = Loops::start(flows, Tools::default(), JobOptions::default()).await;
    loops.node.stop().await;
    let schedules = Schedules(loops.node.pipeline.clone());
    let hourly = Spec { flow: "listen".into(), ..spec("0 * * * *", "UTC") };
    schedules.set("t", "busy", hourly, None).await.unwrap();
    let id = tenure_jobs::shared::schedule::desk::id_of("t", "busy");
    loops.mail(id, "chatter", "1", Body::json(&1)).await;
    let head = loops.head(id).await;
    let timer = head.timers.iter().next().unwrap().at;
    let server = Server {
        pipeline: loops.node.pipeline.clone(),
        machines: loops.machines.clone(),
        config: std::sync::Arc::new(crate::support::config()),
    };
    let served = server.serve(&head, timer, timer).await.unwrap();
    assert!(matches!(served, Served::Fired { rule: "mail_waiting", .. }), "{served:?}");
    assert_eq!(loops.count(id, "schedule_mail_noted").await, 1);
    assert_eq!(loops.count(id, "schedule_fired").await, 1);
    assert!(loops.head(id).await.timers.iter().all(|t| t.at > timer), "and it is set anew");
}
