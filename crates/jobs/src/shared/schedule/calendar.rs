//! Nominal times. A cron expression speaks of the clock on the wall of a time zone, and twice a year that clock
//! jumps. The rule, for every zone and every size of jump:
//!
//! * a wall time that does not exist (the clock jumped over it) stands for the first moment after the gap;
//! * a wall time that exists twice stands for the first of the two;
//! * wall times that stand for the same moment are one time.
//!
//! So each wall time of the expression is one moment, in the same order, and `0 2 * * *` fires exactly once on every
//! day of the year. An expression such as `* * * * *` is silent while the clock shows an hour for the second time;
//! whoever wants an even beat takes an interval, or the zone UTC.
//!
//! The expression is therefore only ever asked about wall times without a zone; what they mean is decided here.

use super::model::{Spec, limits};
use chrono::{
    DateTime, Datelike as _, Duration as Span, MappedLocalTime, NaiveDateTime, Offset as _,
    SecondsFormat, TimeZone as _, Utc,
};
use chrono_tz::Tz;
use croner::{
    Cron,
    parser::{CronParser, Year},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::time::Timestamp;

/// What is wrong with a calendar, and in which field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadCalendar {
    /// The field.
    pub field: &'static str,
    /// In words.
    pub why: String,
    /// What to do.
    pub fix: &'static str,
}

fn bad(field: &'static str, why: impl Into<String>, fix: &'static str) -> BadCalendar {
    BadCalendar { field, why: why.into(), fix }
}

/// A nominal time, and what the clock on the wall has to do with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nominal {
    /// The moment.
    pub at: Timestamp,
    /// What the clock of the zone shows then, with its distance from UTC.
    pub wall: String,
    /// The wall time that is meant and does not exist on that day: the clock jumps over it, and this is the first moment
    /// after the gap. Of several, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<String>,
    /// The clock shows the same wall time again at this moment, and then it is no nominal time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_again_at: Option<Timestamp>,
}

/// The nominal times of a schedule.
#[derive(Debug)]
pub struct Calendar {
    when: When,
    zone: Tz,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

#[derive(Debug)]
enum When {
    Cron(Box<Cron>),
    Every { anchor: Timestamp, micros: i64 },
}

/// Years that can be asked about. Time zones of a farther future are anybody's guess.
const YEARS: std::ops::Range<i32> = 1970..2400;

impl Calendar {
    /// The calendar of a schedule whose intervals count from `anchor` unless it has a start of its own.
    pub fn of(spec: &Spec, anchor: Timestamp) -> Result<Self, BadCalendar> {
        let when = match (&spec.cron, spec.every_ms) {
            (Some(cron), None) => When::Cron(Box::new(parse(cron)?)),
            (None, Some(ms)) => {
                let every = Duration::from_millis(ms);
                if !(limits::EVERY_MIN..=limits::EVERY_MAX).contains(&every) {
                    let why =
                        format!("an interval of {} ms is not within 1 second and 366 days", ms);
                    return Err(bad("every_seconds", why, "give at least 1 second"));
                }
                let micros = i64::try_from(every.as_micros()).unwrap_or(i64::MAX);
                When::Every { anchor: spec.start.unwrap_or(anchor), micros }
            }
            (None, None) => {
                return Err(bad("cron", "a schedule needs times", "give cron or every_seconds"));
            }
            (Some(_), Some(_)) => {
                let why = "a schedule has either a cron expression or an interval, this has both";
                return Err(bad("every_seconds", why, "leave one of the two out"));
            }
        };
        let zone = zone(&spec.zone)?;
        if let (Some(start), Some(end)) = (spec.start, spec.end)
            && end < start
        {
            return Err(bad(
                "end",
                format!("it ends ({end}) before it starts ({start})"),
                "give a later end",
            ));
        }
        if Duration::from_millis(spec.jitter_ms) > limits::EVERY_MAX {
            return Err(bad("jitter_seconds", "a jitter is at most 366 days", "give less"));
        }
        Ok(Calendar { when, zone, start: spec.start, end: spec.end })
    }

    /// The first nominal time after this moment.
    pub fn after(&self, moment: Timestamp) -> Option<Timestamp> {
        self.next(moment).map(|(at, _)| at)
    }

    /// The first nominal time after this moment, and the wall time that stands for it, if there is one.
    fn next(&self, moment: Timestamp) -> Option<(Timestamp, Option<NaiveDateTime>)> {
        // `start` itself is a nominal time if the calendar has it.
        let moment = match self.start {
            Some(start) => moment.max(start - Duration::from_micros(1)),
            None => moment,
        };
        let (next, wall) = match &self.when {
            When::Cron(cron) => {
                let (wall, at) = cron_after(cron, self.zone, moment)?;
                (at, Some(wall))
            }
            When::Every { anchor, micros } => {
                let past = moment.as_micros().saturating_sub(anchor.as_micros());
                let steps = past.div_euclid(*micros).saturating_add(1).max(0);
                let micros = steps.checked_mul(*micros)?.checked_add(anchor.as_micros())?;
                (Timestamp::from_micros(micros), None)
            }
        };
        (self.end.is_none_or(|end| next <= end)).then_some((next, wall))
    }

    /// The next nominal times, for people.
    pub fn preview(&self, mut moment: Timestamp, count: usize) -> Vec<Timestamp> {
        let mut times = Vec::new();
        while times.len() < count
            && let Some(next) = self.after(moment)
        {
            times.push(next);
            moment = next;
        }
        times
    }

    /// The same with what the clock on the wall has to do with each of them.
    pub fn explained(&self, mut moment: Timestamp, count: usize) -> Vec<Nominal> {
        let mut times = Vec::new();
        while times.len() < count
            && let Some((at, meant)) = self.next(moment)
            && let Some(nominal) = self.explain(at, meant)
        {
            times.push(nominal);
            moment = at;
        }
        times
    }

    /// Nothing for moments that are beyond every calendar.
    fn explain(&self, at: Timestamp, meant: Option<NaiveDateTime>) -> Option<Nominal> {
        let utc = DateTime::from_timestamp_micros(at.as_micros())?;
        // RFC 3339 has four digits for a year, and at the end of all years no zone has a wall time.
        if !(1..9_999).contains(&utc.year()) {
            return None;
        }
        let local = utc.with_timezone(&self.zone);
        let wall = local.to_rfc3339_opts(SecondsFormat::Secs, true);
        let (mut moved_from, mut not_again_at) = (None, None);
        match meant.map(|meant| (meant, self.zone.from_local_datetime(&meant))) {
            Some((meant, MappedLocalTime::None)) => {
                moved_from = Some(meant.format("%Y-%m-%dT%H:%M:%S").to_string());
            }
            Some((_, MappedLocalTime::Ambiguous(_, again))) => {
                not_again_at = Some(Timestamp::from_micros(again.timestamp_micros()));
            }
            Some((_, MappedLocalTime::Single(_))) | None => {}
        }
        Some(Nominal { at, wall, moved_from, not_again_at })
    }
}

fn parse(text: &str) -> Result<Cron, BadCalendar> {
    const FIX: &str = "write minute hour day month weekday, such as \"0 9 * * mon-fri\", or @daily";
    let parser = CronParser::builder().year(Year::Disallowed).build();
    let cron = parser.parse(text).map_err(|e| bad("cron", format!("{text:?}: {e}"), FIX))?;
    // One that never comes, such as the 30th of February, is a slip. Four centuries hold every kind of year, but a
    // leap day comes at the latest after eight years.
    let from = NaiveDateTime::default() + Span::days(365 * 30);
    match cron.find_next_occurrence(&from, true) {
        Ok(_) => Ok(cron),
        Err(_) => Err(bad("cron", format!("{text:?} never comes: there is no such day"), FIX)),
    }
}

/// A time zone by its name in the IANA database.
pub fn zone(name: &str) -> Result<Tz, BadCalendar> {
    const FIX: &str = "give a name such as Europe/Berlin, America/New_York or UTC";
    name.parse()
        .map_err(|_| bad("zone", format!("{name:?} is no time zone of the IANA database"), FIX))
}

/// A moment as people write it: RFC 3339.
pub fn moment(field: &'static str, text: &str) -> Result<Timestamp, BadCalendar> {
    const FIX: &str = "write it as 2026-03-29T02:30:00+01:00, or as microseconds since 1970";
    let read = DateTime::parse_from_rfc3339(text);
    read.map(|at| Timestamp::from_micros(at.timestamp_micros()))
        .map_err(|e| bad(field, format!("{text:?} is no moment: {e}"), FIX))
}

/// The first wall time that stands for a later moment than this one, and that moment.
fn cron_after(cron: &Cron, zone: Tz, moment: Timestamp) -> Option<(NaiveDateTime, Timestamp)> {
    let utc = DateTime::from_timestamp_micros(moment.as_micros())?;
    // At either end of all years the clock on the wall cannot be computed. In a zone it may show the year before or after.
    if !(YEARS.start - 1..=YEARS.end).contains(&utc.year()) {
        return None;
    }
    // No wall time before this one stands for a later moment: they stand in the same order.
    let mut wall = utc.with_timezone(&zone).naive_local();
    loop {
        wall = cron.find_next_occurrence(&wall, false).ok()?;
        if !YEARS.contains(&wall.year()) {
            return None;
        }
        let stands_for = moment_of(zone, wall);
        // While the clock shows an hour for the second time, its wall times are over.
        if stands_for > utc {
            return Some((wall, Timestamp::from_micros(stands_for.timestamp_micros())));
        }
    }
}

/// The moment that a wall time stands for.
fn moment_of(zone: Tz, wall: NaiveDateTime) -> DateTime<Utc> {
    match zone.from_local_datetime(&wall) {
        MappedLocalTime::Single(at) => at.with_timezone(&Utc),
        MappedLocalTime::Ambiguous(first, _) => first.with_timezone(&Utc),
        MappedLocalTime::None => end_of_gap(zone, wall),
    }
}

/// The first moment after the gap in which this wall time lies: the one at which the offset changes.
fn end_of_gap(zone: Tz, wall: NaiveDateTime) -> DateTime<Utc> {
    let offset = |utc: NaiveDateTime| {
        Span::seconds(i64::from(zone.offset_from_utc_datetime(&utc).fix().local_minus_utc()))
    };
    // No offset is more than a day, and no zone changes twice within three.
    let (before, after) = (offset(wall - Span::hours(30)), offset(wall + Span::hours(30)));
    let (mut low, mut high) = (wall - after, wall - before);
    while high - low > Span::seconds(1) {
        let middle = low + Span::seconds((high - low).num_seconds() / 2);
        if offset(middle) == before { low = middle } else { high = middle }
    }
    high.and_utc()
}
