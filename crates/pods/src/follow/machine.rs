//! When to list, when to watch from where, and when to wait: decided from what happened, without a clock.

use super::Trouble;
use std::time::Duration;

/// The times of a follower.
#[derive(Clone, PartialEq, Debug)]
pub struct FollowPolicy {
    /// Objects per page of a list.
    pub page: u32,
    /// How long a watch may say nothing, not even a bookmark. API servers send one about every minute.
    pub silence: Duration,
    /// How long a watch lasts; a fifth more or less is drawn.
    pub watch: Duration,
    /// How often everything is listed again although all seems well; a fifth more or less is drawn.
    pub relist: Duration,
    /// The longest pause after the first failure; it doubles.
    pub pause: Duration,
    /// The longest pause after many.
    pub pause_max: Duration,
    /// A watch that was well for so long makes earlier failures forgotten.
    pub healthy: Duration,
    /// How long a single answer may take: a page, or the beginning of a watch.
    pub patience: Duration,
}

impl Default for FollowPolicy {
    fn default() -> Self {
        FollowPolicy {
            page: 500,
            silence: Duration::from_secs(90),
            watch: Duration::from_secs(290),
            relist: Duration::from_secs(600),
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
            healthy: Duration::from_secs(10),
            patience: Duration::from_secs(60),
        }
    }
}

/// A continuation that expired so often means that pages take too long for this server: then without pages.
const EXPIRED_PAGES_MAX: u32 = 2;
/// A page that failed so often is not asked for any more: a token can be one that this server will never take.
const PAGE_FAILURES_MAX: u32 = 3;
/// After every so many failures in a row there is a list instead of another watch. A server, or something between, that
/// takes lists and no watches is followed by lists then, at the pace of the pauses.
const FAILURES_PER_LIST: u32 = 3;
/// A server that ends a watch before this has not served it.
const SHORT: Duration = Duration::from_secs(1);
/// A watch whose server does not end it in time is ended here.
const WATCH_SLACK: Duration = Duration::from_secs(15);

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask for a page; without a token a new list begins.
    List {
        /// How many at most; 0: all.
        limit: u32,
        /// Behind this.
        token: Option<String>,
    },
    /// Watch from here.
    Watch {
        /// The version.
        from: String,
        /// `timeoutSeconds`.
        seconds: u32,
    },
    /// Wait.
    Pause(Duration),
}

/// What became of a step, or of the watch that stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// A page came, of a list of this version.
    Page {
        /// The version of the list.
        version: &'a str,
        /// The token of the next page.
        more: Option<&'a str>,
    },
    /// The watch stands.
    Opened,
    /// It said something.
    Heard {
        /// With this version, if it had one.
        version: Option<&'a str>,
    },
    /// It ended.
    Ended,
    /// [`Machine::deadline`] passed.
    Overdue,
    /// The step failed, or the watch broke.
    Failed(&'a Trouble),
}

/// What is told to whoever listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// Nothing.
    Nothing,
    /// With this page a list is complete: what was not on it is not there.
    ListComplete,
    /// The watch was silent for too long.
    Silent,
    /// The watch was ended as soon as it stood, and had said nothing.
    Unserved,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum At {
    /// A list is to be begun, or gone on with.
    List(Option<String>),
    /// A watch is to be opened.
    Watch,
    /// A watch stands.
    Watching { opened: Duration, ends: Duration, heard: bool },
}

/// The state of one follower.
#[derive(Clone, Debug)]
pub struct Machine {
    policy: FollowPolicy,
    at: At,
    version: String,
    pause: Option<Duration>,
    failures: u32,
    silences: u32,
    expired_pages: u32,
    page_failures: u32,
    last_heard: Duration,
    relist_at: Duration,
}

impl Machine {
    /// Begins with a list.
    pub fn new(policy: FollowPolicy) -> Self {
        Machine {
            policy,
            at: At::List(None),
            version: String::new(),
            pause: None,
            failures: 0,
            silences: 0,
            expired_pages: 0,
            page_failures: 0,
            last_heard: Duration::ZERO,
            relist_at: Duration::ZERO,
        }
    }

    /// What to do now. While a watch stands there is nothing to do but to listen to it.
    pub fn next(&mut self, random: u64) -> Option<Step> {
        if let Some(pause) = self.pause.take()
            && !pause.is_zero()
        {
            return Some(Step::Pause(pause));
        }
        match &self.at {
            At::List(token) => {
                let limit =
                    if self.expired_pages > EXPIRED_PAGES_MAX { 0 } else { self.policy.page };
                Some(Step::List { limit, token: token.clone() })
            }
            At::Watch => {
                let lasts = about(self.policy.watch, random).max(Duration::from_secs(1));
                let seconds = u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX);
                Some(Step::Watch { from: self.version.clone(), seconds })
            }
            At::Watching { .. } => None,
        }
    }

    /// Until when the watch that stands may go on without another word.
    pub fn deadline(&self) -> Option<Duration> {
        match self.at {
            At::Watching { ends, .. } => {
                Some(ends.min(self.relist_at).min(self.last_heard + self.policy.silence))
            }
            _ => None,
        }
    }

    /// Something happened.
    pub fn saw(&mut self, outcome: Outcome<'_>, now: Duration, random: u64) -> Note {
        match outcome {
            Outcome::Page { version, more } => return self.page(version, more, now, random),
            Outcome::Opened => {
                let ends = now + self.policy.watch * 6 / 5 + WATCH_SLACK;
                self.at = At::Watching { opened: now, ends, heard: false };
                self.last_heard = now;
            }
            Outcome::Heard { version } => self.heard(version, now),
            Outcome::Ended => return self.ended(now, random),
            Outcome::Overdue => return self.overdue(now),
            Outcome::Failed(trouble) => self.failed(trouble, now, random),
        }
        Note::Nothing
    }

    fn page(&mut self, version: &str, more: Option<&str>, now: Duration, random: u64) -> Note {
        self.last_heard = now;
        self.page_failures = 0;
        if let Some(token) = more.filter(|t| !t.is_empty()) {
            self.at = At::List(Some(token.to_owned()));
            return Note::Nothing;
        }
        self.version = version.to_owned();
        self.at = At::Watch;
        self.expired_pages = 0;
        self.silences = 0;
        self.relist_at = now + about(self.policy.relist, random);
        Note::ListComplete
    }

    fn heard(&mut self, version: Option<&str>, now: Duration) {
        if let Some(version) = version.filter(|v| !v.is_empty()) {
            version.clone_into(&mut self.version);
        }
        self.last_heard = now;
        self.silences = 0;
        if let At::Watching { opened, heard, .. } = &mut self.at {
            *heard = true;
            if now.saturating_sub(*opened) >= self.policy.healthy {
                self.failures = 0;
            }
        }
    }

    /// Every watch ends. One that ends at once and has said nothing was not served.
    fn ended(&mut self, now: Duration, random: u64) -> Note {
        let short = match self.at {
            At::Watching { opened, heard, .. } => {
                !heard && now.saturating_sub(opened) < SHORT.min(self.policy.healthy)
            }
            _ => true,
        };
        if short {
            self.count_failure(random);
        } else {
            self.silences = 0;
        }
        self.watch_again(now);
        if short { Note::Unserved } else { Note::Nothing }
    }

    /// After a watch another one, unless it is time for a list: one that fails each time would put it off for ever.
    fn watch_again(&mut self, now: Duration) {
        let failing = self.failures > 0 && self.failures.is_multiple_of(FAILURES_PER_LIST);
        let list = failing || now >= self.relist_at;
        self.at = if list { At::List(None) } else { At::Watch };
    }

    fn overdue(&mut self, now: Duration) -> Note {
        let At::Watching { .. } = self.at else { return Note::Nothing };
        if now >= self.relist_at {
            self.at = At::List(None);
            return Note::Nothing;
        }
        if now < self.last_heard + self.policy.silence {
            // The server forgot to end it.
            self.at = At::Watch;
            return Note::Nothing;
        }
        self.silences += 1;
        self.at = if self.silences > 1 { At::List(None) } else { At::Watch };
        Note::Silent
    }

    fn failed(&mut self, trouble: &Trouble, now: Duration, random: u64) {
        if let At::Watching { opened, heard, .. } = self.at
            && heard
            && now.saturating_sub(opened) >= self.policy.healthy
        {
            self.failures = 0;
        }
        match trouble {
            Trouble::Expired(_) => {
                if matches!(self.at, At::List(Some(_))) {
                    self.expired_pages += 1;
                }
                self.at = At::List(None);
                self.page_failures = 0;
                self.failures += 1;
                // Once is normal. A storm of them is a list each, for a server that has trouble enough.
                if self.failures > 1 {
                    self.pause = Some(self.backoff(self.failures - 1, random));
                }
                return;
            }
            _ => self.count_failure(random),
        }
        match self.at {
            At::List(None) => {}
            At::List(Some(_)) => self.page_failed(trouble),
            At::Watch | At::Watching { .. } => self.watch_again(now),
        }
        if let Trouble::Throttled { after: Some(after), .. } = trouble {
            // Not all at once: up to half as long again.
            let pause = *after + fraction(*after / 2, random);
            self.pause = self.pause.max(Some(pause));
        }
    }

    /// A page that could not be read is asked for again and the list goes on, but not for ever.
    fn page_failed(&mut self, trouble: &Trouble) {
        self.page_failures += 1;
        let refused = matches!(trouble, Trouble::Strange(_));
        if refused || self.page_failures >= PAGE_FAILURES_MAX {
            self.page_failures = 0;
            self.at = At::List(None);
            // Who has too much to do would not be helped by a list without pages.
            if !matches!(trouble, Trouble::Throttled { .. }) {
                self.expired_pages += 1;
            }
        }
    }

    fn count_failure(&mut self, random: u64) {
        self.failures = self.failures.saturating_add(1);
        self.pause = Some(self.backoff(self.failures, random));
    }

    /// Full jitter: anything between nothing and a ceiling that doubles.
    fn backoff(&self, failures: u32, random: u64) -> Duration {
        let doubled = self.policy.pause.saturating_mul(1 << failures.saturating_sub(1).min(20));
        let ceiling = doubled.min(self.policy.pause_max);
        // Not quite nothing, or a refused connection is tried in a circle.
        fraction(ceiling, random).max(ceiling / 20)
    }
}

/// A part of `whole`, by chance.
fn fraction(whole: Duration, random: u64) -> Duration {
    let parts = u32::try_from(random % 1_001).unwrap_or(0);
    whole * parts / 1_000
}

/// A fifth more or less.
fn about(whole: Duration, random: u64) -> Duration {
    whole * 4 / 5 + fraction(whole * 2 / 5, random)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn listed(machine: &mut Machine, version: &str, now: Duration) {
        let note = machine.saw(Outcome::Page { version, more: None }, now, 500);
        assert_eq!(note, Note::ListComplete);
    }

    fn watching(now: Duration) -> Machine {
        let mut machine = Machine::new(FollowPolicy::default());
        assert_eq!(machine.next(0), Some(Step::List { limit: 500, token: None }));
        listed(&mut machine, "10", now);
        assert!(
            matches!(machine.next(500), Some(Step::Watch { from, seconds: 290 }) if from == "10")
        );
        machine.saw(Outcome::Opened, now, 0);
        assert_eq!(machine.next(0), None);
        machine
    }

    #[test]
    fn pages_are_asked_for_one_after_the_other() {
        let mut machine = Machine::new(FollowPolicy::default());
        let page = Outcome::Page { version: "5", more: Some("t1") };
        assert_eq!(machine.saw(page, S, 0), Note::Nothing);
        assert_eq!(machine.next(0), Some(Step::List { limit: 500, token: Some("t1".into()) }));
        listed(&mut machine, "5", S);
        assert!(matches!(machine.next(0), Some(Step::Watch { .. })));
    }

    #[test]
    fn a_page_that_expired_begins_the_list_anew_and_in_the_end_without_pages() {
        let mut machine = Machine::new(FollowPolicy::default());
        let mut limits = Vec::new();
        for _ in 0..4 {
            while let Some(Step::Pause(_)) = machine.next(0) {}
            match machine.next(0) {
                Some(Step::List { limit, token: None }) => limits.push(limit),
                other => panic!("{other:?}"),
            }
            machine.saw(Outcome::Page { version: "5", more: Some("t1") }, S, 0);
            machine.saw(Outcome::Failed(&Trouble::Expired("old".into())), S, 0);
        }
        assert_eq!(limits, [500, 500, 500, 0]);
    }

    #[test]
    fn a_page_that_failed_is_asked_for_again() {
        let mut machine = Machine::new(FollowPolicy::default());
        machine.saw(Outcome::Page { version: "5", more: Some("t1") }, S, 0);
        machine.saw(Outcome::Failed(&Trouble::Away("x".into())), S, 1000);
        assert_eq!(machine.next(0), Some(Step::Pause(Duration::from_millis(500))));
        assert_eq!(machine.next(0), Some(Step::List { limit: 500, token: Some("t1".into()) }));
    }

    #[test]
    fn a_page_that_is_refused_begins_the_list_anew_and_in_the_end_without_pages() {
        let mut machine = Machine::new(FollowPolicy::default());
        let strange = Trouble::Strange("HTTP 400: continue key is not valid".into());
        let mut limits = Vec::new();
        for _ in 0..4 {
            while let Some(Step::Pause(_)) = machine.next(0) {}
            match machine.next(0) {
                Some(Step::List { limit, token: None }) => limits.push(limit),
                other => panic!("{other:?}"),
            }
            machine.saw(Outcome::Page { version: "5", more: Some("t1") }, S, 0);
            machine.saw(Outcome::Failed(&strange), S, 0);
        }
        assert_eq!(limits, [500, 500, 500, 0]);
    }

    #[test]
    fn a_page_that_fails_each_time_is_not_asked_for_for_ever() {
        let mut machine = Machine::new(FollowPolicy::default());
        machine.saw(Outcome::Page { version: "5", more: Some("t1") }, S, 0);
        let mut asked = Vec::new();
        for _ in 0..4 {
            while let Some(Step::Pause(_)) = machine.next(0) {}
            match machine.next(0) {
                Some(Step::List { token, .. }) => asked.push(token),
                other => panic!("{other:?}"),
            }
            let away = Trouble::Away("HTTP 500: future revision".into());
            machine.saw(Outcome::Failed(&away), S, 0);
        }
        let t1 = Some("t1".to_owned());
        assert_eq!(asked, [t1.clone(), t1.clone(), t1, None]);
    }

    /// What a follower does while watches come to nothing and lists are answered.
    fn lists_under(each: impl Fn(&mut Machine, Duration), until: Duration) -> Vec<Duration> {
        let mut machine = Machine::new(FollowPolicy::default());
        let (mut now, mut lists) = (Duration::ZERO, Vec::new());
        while now < until {
            match machine.next(1000) {
                Some(Step::Pause(pause)) => now += pause,
                Some(Step::List { .. }) => {
                    lists.push(now);
                    machine.saw(Outcome::Page { version: "7", more: None }, now, 500);
                }
                Some(Step::Watch { .. }) => each(&mut machine, now),
                None => panic!("it listens to a watch that does not stand"),
            }
        }
        lists
    }

    #[test]
    fn a_server_that_takes_lists_and_no_watches_is_followed_by_lists() {
        let refused = |m: &mut Machine, now| {
            m.saw(Outcome::Failed(&Trouble::Away("x".into())), now, 1000);
        };
        let closed = |m: &mut Machine, now| {
            m.saw(Outcome::Opened, now, 0);
            assert_eq!(m.saw(Outcome::Ended, now, 1000), Note::Unserved);
        };
        for lists in [lists_under(refused, 1_000 * S), lists_under(closed, 1_000 * S)] {
            let longest = lists.windows(2).map(|w| w[1] - w[0]).max().unwrap();
            assert!(longest <= 3 * FollowPolicy::default().pause_max, "{lists:?}");
        }
    }

    #[test]
    fn watches_that_end_and_break_do_not_put_off_the_list_that_is_due() {
        for broken in [false, true] {
            let mut machine = watching(S);
            for at in 1..100 {
                let now = at * 20 * S;
                machine.saw(Outcome::Heard { version: Some("17") }, now, 0);
                match broken {
                    true => machine.saw(Outcome::Failed(&Trouble::Away("x".into())), now, 0),
                    false => machine.saw(Outcome::Ended, now, 0),
                };
                while let Some(Step::Pause(_)) = machine.next(0) {}
                if let Some(Step::List { token: None, .. }) = machine.next(0) {
                    assert!(now >= 480 * S || broken, "{now:?}");
                    assert!(now <= 720 * S, "{now:?}");
                    break;
                }
                assert!(now < 720 * S, "no list in time");
                machine.saw(Outcome::Opened, now, 0);
            }
        }
    }

    #[test]
    fn a_watch_that_ended_goes_on_from_the_last_version_at_once() {
        let mut machine = watching(S);
        machine.saw(Outcome::Heard { version: Some("17") }, 20 * S, 0);
        machine.saw(Outcome::Heard { version: None }, 21 * S, 0);
        machine.saw(Outcome::Ended, 290 * S, 0);
        assert!(matches!(machine.next(0), Some(Step::Watch { from, .. }) if from == "17"));
    }

    #[test]
    fn watches_that_end_at_once_are_not_opened_in_a_circle() {
        let mut machine = watching(S);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            machine.saw(Outcome::Ended, S, 1000);
            match machine.next(1000) {
                Some(Step::Pause(pause)) => pauses.push(pause),
                other => panic!("{other:?}"),
            }
            machine.saw(Outcome::Opened, S, 0);
        }
        assert_eq!(pauses[0], Duration::from_millis(500));
        assert_eq!(pauses.last(), Some(&(30 * S)), "capped");
    }

    #[test]
    fn the_first_410_lists_at_once_and_a_storm_of_them_backs_off() {
        let mut machine = watching(S);
        let old = Trouble::Expired("old".into());
        machine.saw(Outcome::Failed(&old), 2 * S, 1000);
        assert_eq!(machine.next(1000), Some(Step::List { limit: 500, token: None }));
        let mut pauses = Vec::new();
        for _ in 0..8 {
            listed(&mut machine, "20", 2 * S);
            machine.saw(Outcome::Opened, 2 * S, 0);
            machine.saw(Outcome::Failed(&old), 2 * S, 1000);
            match machine.next(1000) {
                Some(Step::Pause(pause)) => pauses.push(pause.as_millis()),
                other => panic!("{other:?}"),
            }
            assert!(matches!(machine.next(0), Some(Step::List { .. })));
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        // Well for a while: the next one counts as the first.
        listed(&mut machine, "30", 3 * S);
        machine.saw(Outcome::Opened, 3 * S, 0);
        machine.saw(Outcome::Heard { version: Some("31") }, 20 * S, 0);
        machine.saw(Outcome::Failed(&old), 21 * S, 1000);
        assert_eq!(machine.next(1000), Some(Step::List { limit: 500, token: None }));
    }

    #[test]
    fn a_silent_watch_is_opened_anew_and_after_a_second_silence_everything_is_listed() {
        let mut machine = watching(S);
        assert_eq!(machine.deadline(), Some(91 * S));
        assert_eq!(machine.saw(Outcome::Overdue, 91 * S, 0), Note::Silent);
        assert!(matches!(machine.next(0), Some(Step::Watch { from, .. }) if from == "10"));
        machine.saw(Outcome::Opened, 91 * S, 0);
        assert_eq!(machine.saw(Outcome::Overdue, 181 * S, 0), Note::Silent);
        assert!(matches!(machine.next(0), Some(Step::List { token: None, .. })));
    }

    #[test]
    fn a_bookmark_is_a_sign_of_life() {
        let mut machine = watching(S);
        machine.saw(Outcome::Overdue, 91 * S, 0);
        machine.next(0);
        machine.saw(Outcome::Opened, 91 * S, 0);
        machine.saw(Outcome::Heard { version: Some("11") }, 150 * S, 0);
        assert_eq!(machine.deadline(), Some(240 * S));
        assert_eq!(machine.saw(Outcome::Overdue, 240 * S, 0), Note::Silent);
        assert!(matches!(machine.next(0), Some(Step::Watch { .. })), "the first silence again");
    }

    #[test]
    fn everything_is_listed_again_now_and_then() {
        let mut machine = watching(S);
        let mut now = S;
        while machine.deadline() > Some(now) && now < 10_000 * S {
            now += 30 * S;
            machine.saw(Outcome::Heard { version: Some("11") }, now, 0);
            if now >= 301 * S && machine.deadline() == Some(now) {
                break;
            }
            if machine.deadline().is_some_and(|d| d <= now) {
                machine.saw(Outcome::Overdue, now, 0);
                match machine.next(500) {
                    Some(Step::List { token: None, .. }) => break,
                    Some(Step::Watch { .. }) => {
                        machine.saw(Outcome::Opened, now, 0);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!((480 * S..=740 * S).contains(&now), "{now:?}");
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it() {
        let mut machine = watching(S);
        let busy = Trouble::Throttled { after: Some(8 * S), why: String::new() };
        machine.saw(Outcome::Failed(&busy), 2 * S, 0);
        assert_eq!(machine.next(0), Some(Step::Pause(8 * S)));
        machine.saw(Outcome::Failed(&busy), 2 * S, 1000);
        assert_eq!(machine.next(0), Some(Step::Pause(12 * S)), "not all at once");
    }

    proptest! {
        /// Whatever happens in whatever order: there is always something to do or a moment to wake at, versions come from
        /// what was heard, and no pause is longer than what a server may ask for.
        #[test]
        fn it_never_stands_still(events in proptest::collection::vec((0u8..9, any::<u64>(), 0u64..200), 1..200)) {
            let mut machine = Machine::new(FollowPolicy::default());
            let mut now = S;
            for (what, random, later) in events {
                now += Duration::from_secs(later);
                let expired = Trouble::Expired("x".into());
                let away = Trouble::Away("x".into());
                let busy = Trouble::Throttled { after: Some(300 * S), why: String::new() };
                let outcome = match what {
                    0 => Outcome::Page { version: "1", more: None },
                    1 => Outcome::Page { version: "1", more: Some("t") },
                    2 => Outcome::Opened,
                    3 => Outcome::Heard { version: Some("2") },
                    4 => Outcome::Ended,
                    5 => Outcome::Overdue,
                    6 => Outcome::Failed(&expired),
                    7 => Outcome::Failed(&away),
                    _ => Outcome::Failed(&busy),
                };
                machine.saw(outcome, now, random);
                match machine.next(random) {
                    None => prop_assert!(machine.deadline().is_some()),
                    Some(Step::Pause(pause)) => prop_assert!(pause <= 450 * S),
                    Some(Step::Watch { seconds, .. }) => prop_assert!((232..=348).contains(&seconds)),
                    Some(Step::List { .. }) => {}
                }
            }
        }
    }
}
