//! What a schedule is asked to be, what its head keeps, and what can happen to it.

use super::table::TABLE;
use crate::terms::Terms;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    table::Table,
    time::Timestamp,
};

/// Limits of a schedule, by name.
pub mod limits {
    use std::time::Duration;

    /// What is set, as JSON. It lies in the head beside the last fires.
    pub const SPEC_BYTES_MAX: usize = 10 * 1024;
    /// Fires that the head keeps.
    pub const FIRES_KEPT: usize = 20;
    /// Open jobs that are remembered, where they may not overlap. At so many nothing is fired by hand.
    pub const OPEN_MAX: usize = 16;
    /// A fire that is served later than this was missed.
    pub const LATE_AFTER: Duration = Duration::from_secs(60);
    /// Missed fires that `all` makes up for at once; the rest is counted as skipped.
    pub const CATCH_UP_MAX: usize = 100;
    /// Times that are not late and become jobs at once: a jitter longer than the interval lets many come together. The
    /// rest is counted as skipped.
    pub const FRESH_MAX: usize = 150;
    /// Nominal times that one decision looks at. After a long outage there are more decisions, not longer ones.
    pub const WALK_MAX: usize = 10_000;
    /// The shortest interval.
    pub const EVERY_MIN: Duration = Duration::from_secs(1);
    /// The longest interval, and the longest jitter.
    pub const EVERY_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);
    /// Length of a name.
    pub const NAME_BYTES_MAX: usize = 128;
}

/// What happens to times at which nobody served the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Nothing.
    Skip,
    /// One job for all of them, for the latest.
    #[default]
    Once,
    /// A job for each, the oldest first, up to [`limits::CATCH_UP_MAX`].
    All,
}

/// What happens to a time at which the job of an earlier one is still open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Its job is created all the same.
    #[default]
    Allow,
    /// It is skipped, on record.
    Skip,
}

/// What a schedule is asked to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// A cron expression; either this or `every_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// An interval, counted from `start`, or from when the schedule was first set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// The IANA time zone in which the cron expression is read.
    pub zone: String,
    /// The flow.
    pub flow: String,
    /// Its version, as it was when the schedule was set: a newer one is taken by setting it again.
    pub version: u32,
    /// The input of every job.
    #[serde(default)]
    pub input: Value,
    /// Higher is sooner.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i16,
    /// Every job ends so long after its creation.
    pub must_end_in_ms: u64,
    /// Lost workers after which a job is given up.
    pub takeovers_max: u32,
    /// When and where the jobs may run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub terms: Terms,
    /// See [`Missed`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub missed: Missed,
    /// See [`Overlap`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub overlap: Overlap,
    /// Each job begins up to so much later than its nominal time; how much follows from schedule and time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub jitter_ms: u64,
    /// No nominal time before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// No nominal time after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Timestamp>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One job that a schedule has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fire {
    /// Its nominal time; of a fire by hand, when it was asked for.
    #[serde(rename = "n")]
    pub nominal: Timestamp,
    /// When it was served.
    #[serde(rename = "a")]
    pub at: Timestamp,
    /// The job.
    #[serde(rename = "j")]
    pub job: EntityId,
    /// Somebody asked for it.
    #[serde(default, rename = "h", skip_serializing_if = "is_default")]
    pub by_hand: bool,
}

/// A job of which the end is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenJob {
    /// Which.
    #[serde(rename = "j")]
    pub job: EntityId,
    /// By then it is over, also if nobody says so.
    #[serde(rename = "u")]
    pub until: Timestamp,
}

/// What the head keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Its name, within its tenant.
    pub name: String,
    /// What it is; `None` once it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<Spec>,
    /// From when intervals count, unless `start` says otherwise.
    pub anchor: Timestamp,
    /// Every nominal time up to here is dealt with.
    pub through: Timestamp,
    /// The next nominal time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Somebody paused it.
    #[serde(skip_serializing_if = "is_default")]
    pub paused: bool,
    /// It is catching up, and one decision was not enough.
    #[serde(skip_serializing_if = "is_default")]
    pub behind: bool,
    /// Jobs of which the end is awaited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<OpenJob>,
    /// The last fires, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fires: Vec<Fire>,
    /// Jobs created.
    pub fired: u64,
    /// Nominal times that became no job.
    pub skipped: u64,
    /// How often it was removed: what was asked for under a key before is not what is asked for under it now.
    #[serde(skip_serializing_if = "is_default")]
    pub removals: u64,
}

/// What can happen to a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Somebody set it, for the first time or anew.
    ScheduleSet {
        /// Its name.
        name: String,
        /// What it is from now on.
        spec: Box<Spec>,
        /// Times up to here are not its own.
        at: Timestamp,
        /// The next nominal time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<Timestamp>,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Jobs that are open stay known, also while they may overlap; older events forgot them then.
        #[serde(default, skip_serializing_if = "is_default")]
        keeps_open: bool,
    },
    /// Nominal times have come.
    ScheduleFired {
        /// Those that became jobs.
        fires: Vec<Fire>,
        /// Those that were missed and became none.
        #[serde(default, skip_serializing_if = "is_default")]
        missed: u64,
        /// Those at which an earlier job was still open.
        #[serde(default, skip_serializing_if = "is_default")]
        overlapped: u64,
        /// Up to here every nominal time is dealt with.
        through: Timestamp,
        /// The next one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<Timestamp>,
        /// There are more that have come: looked at next.
        #[serde(default, skip_serializing_if = "is_default")]
        behind: bool,
        /// By when the last of the jobs is over, where their end is awaited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// Somebody wanted a job now. The calendar goes on as before.
    ScheduleFiredByHand {
        /// The job.
        fire: Fire,
        /// See [`Event::ScheduleFired`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It creates nothing until it is resumed.
    SchedulePaused {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It goes on. Times that passed meanwhile were not missed: somebody wanted it so.
    ScheduleResumed {
        /// From when on.
        at: Timestamp,
        /// The next nominal time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<Timestamp>,
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It is gone, unless somebody sets it again.
    ScheduleRemoved {
        /// Who.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// How often it was removed by now; older events do not say.
        #[serde(default, skip_serializing_if = "is_default")]
        removals: u64,
    },
    /// A job has ended, or could not be created.
    ScheduledJobEnded {
        /// Which.
        job: EntityId,
        /// How; `not_created` where it could not be.
        status: String,
        /// Why it could not be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        why: Option<String>,
    },
    /// Mail came that changes nothing.
    ScheduleMailNoted {
        /// What, and why it changes nothing.
        what: String,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Schedule;

impl Machine for Schedule {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::ScheduleSet { .. } => "schedule_set",
            Event::ScheduleFired { .. } => "schedule_fired",
            Event::ScheduleFiredByHand { .. } => "schedule_fired_by_hand",
            Event::SchedulePaused { .. } => "schedule_paused",
            Event::ScheduleResumed { .. } => "schedule_resumed",
            Event::ScheduleRemoved { .. } => "schedule_removed",
            Event::ScheduledJobEnded { .. } => "scheduled_job_ended",
            Event::ScheduleMailNoted { .. } => "schedule_mail_noted",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::ScheduleSet { name, spec, at, next, keeps_open, .. } => {
                state.name.clone_from(name);
                if state.anchor == Timestamp::ZERO {
                    state.anchor = *at;
                }
                state.spec = Some((**spec).clone());
                state.through = state.through.max(*at);
                (state.next, state.behind) = (*next, false);
                if spec.overlap == Overlap::Allow && !keeps_open {
                    state.open.clear();
                }
            }
            Event::ScheduleFired {
                fires,
                missed,
                overlapped,
                through,
                next,
                behind,
                until,
                ..
            } => {
                state.skipped += missed + overlapped;
                state.through = *through;
                (state.next, state.behind) = (*next, *behind);
                fires.iter().for_each(|fire| state.fire(*fire, *until));
            }
            Event::ScheduleFiredByHand { fire, until, .. } => state.fire(*fire, *until),
            Event::SchedulePaused { .. } => (state.paused, state.next) = (true, None),
            Event::ScheduleResumed { at, next, .. } => {
                (state.paused, state.behind) = (false, false);
                state.through = state.through.max(*at);
                state.next = *next;
            }
            Event::ScheduleRemoved { removals, .. } => {
                state.removals = *removals;
                (state.spec, state.next, state.paused) = (None, None, false);
                state.behind = false;
                state.open.clear();
                state.fires.clear();
            }
            Event::ScheduledJobEnded { job, .. } => state.open.retain(|o| o.job != *job),
            Event::ScheduleMailNoted { .. } => {}
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        super::decide::decide(state, input, cx)
    }
}

impl State {
    fn fire(&mut self, fire: Fire, until: Option<Timestamp>) {
        self.fired += 1;
        self.fires.push(fire);
        if self.fires.len() > limits::FIRES_KEPT {
            self.fires.remove(0);
        }
        if let Some(until) = until {
            self.open.retain(|o| o.job != fire.job && o.until > fire.at);
            self.open.push(OpenJob { job: fire.job, until });
            // Only in histories from before fires by hand were refused.
            if self.open.len() > limits::OPEN_MAX {
                self.open.remove(0);
            }
        }
    }

    /// Jobs of earlier fires that are open, as far as is known.
    pub fn open_at(&self, now: Timestamp) -> impl Iterator<Item = EntityId> {
        self.open.iter().filter(move |o| o.until > now).map(|o| o.job)
    }
}
