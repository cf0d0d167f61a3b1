//! The failure matrix: what is promised under each fault, and what was seen. Pure.
//!
//! A [`Board`] is the matrix of one kind of work. Jobs have the eleven faults and seven guarantees of the
//! failure matrix that Tenure was built for; other kinds bring boards of their own.

use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// The matrix of one kind of work.
#[derive(Debug)]
pub struct Board {
    /// Which kind.
    pub kind: &'static str,
    /// What is promised.
    pub columns: &'static [Column],
    /// What goes wrong.
    pub rows: &'static [Row],
}

/// A guarantee.
#[derive(Debug, Serialize)]
pub struct Column {
    /// Its short name.
    pub key: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it means.
    pub says: &'static str,
}

/// A fault.
#[derive(Debug)]
pub struct Row {
    /// What to type after `--fault`.
    pub key: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What the system does about it.
    pub does: &'static str,
    /// What is promised in each column.
    pub promises: &'static [Promise],
    /// Settings that the row depends on.
    pub settings: &'static [&'static str],
}

/// What is promised in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// It holds.
    Holds,
    /// It holds if whoever asked asks again.
    AfterRetry,
    /// Not while the fault lasts; afterwards it holds without anybody's help.
    NotMeanwhile,
    /// The fault does not touch it: nothing may happen.
    NotApplicable,
}

/// What one case saw of one guarantee.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Which guarantee.
    pub column: &'static str,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "seen", content = "what")]
pub enum Seen {
    /// It held.
    Held,
    /// It held after somebody asked again, or said what was true.
    AfterRetry(String),
    /// It did not hold.
    Broken(String),
}

/// Everything that one case saw.
#[derive(Clone, Debug, Default)]
pub struct Witnessed {
    /// Of the guarantees.
    pub sightings: Vec<Sighting>,
    /// From the fault to the first sign of life after it.
    pub recoveries: Vec<Duration>,
    /// How long nothing moved because something was away.
    pub stalls: Vec<Duration>,
    /// The jobs that it ran.
    pub jobs: Vec<String>,
}

impl Witnessed {
    /// One more sighting.
    pub fn saw(&mut self, column: &'static str, seen: Seen) {
        self.sightings.push(Sighting { column, seen });
    }

    /// It held if nothing is said against it.
    pub fn judged(&mut self, column: &'static str, against: Vec<String>) {
        let seen = match against.is_empty() {
            true => Seen::Held,
            false => Seen::Broken(against.join("; ")),
        };
        self.saw(column, seen);
    }

    /// What a case saw of a guarantee, all in all: the worst of it.
    pub fn of(&self, column: &str) -> Option<Seen> {
        let all = || self.sightings.iter().filter(|s| s.column == column).map(|s| &s.seen);
        let said = |pick: fn(&Seen) -> Option<&String>| {
            let words: Vec<&str> = all().filter_map(pick).map(String::as_str).collect();
            (!words.is_empty()).then(|| words.join("; "))
        };
        let broken = said(|s| if let Seen::Broken(what) = s { Some(what) } else { None });
        let again = said(|s| if let Seen::AfterRetry(what) = s { Some(what) } else { None });
        let held = all().next().map(|_| Seen::Held);
        broken.map(Seen::Broken).or(again.map(Seen::AfterRetry)).or(held)
    }

    /// Takes over what another one saw.
    pub fn and(&mut self, other: Witnessed) {
        self.sightings.extend(other.sightings);
        self.recoveries.extend(other.recoveries);
        self.stalls.extend(other.stalls);
        self.jobs.extend(other.jobs);
    }
}

/// The verdict of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nobody looked.
    NotRun,
    /// The fault does not touch it, and nothing happened.
    NotApplicable,
    /// Not promised while the fault lasts; it held afterwards.
    NotPromised,
    /// It held.
    Held,
    /// It held after somebody asked again, or said what was true.
    HeldAfterRetry,
    /// It did not hold.
    Broken,
}

impl Verdict {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::NotRun => "not run",
            Verdict::NotApplicable => "not applicable",
            Verdict::NotPromised => "not promised",
            Verdict::Held => "held",
            Verdict::HeldAfterRetry => "held after a retry",
            Verdict::Broken => "BROKEN",
        }
    }
}

/// A cell.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Which guarantee.
    pub column: &'static str,
    /// What is promised.
    pub promise: Promise,
    /// What came of it.
    pub verdict: Verdict,
    /// Cases that saw it hold.
    pub held: u32,
    /// Cases that saw it hold after a retry.
    pub after_retry: u32,
    /// Cases that saw it broken.
    pub broken: u32,
    /// What was said about it, with the cases that said it.
    pub notes: Vec<Note>,
}

/// A remark about a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Which case.
    pub case: String,
    /// What it saw; `None` for one that saw nothing.
    pub verdict: Option<Verdict>,
    /// What it says.
    pub says: String,
}

/// How long it took until something went on.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// How many were measured.
    pub count: usize,
    /// The median.
    pub median_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

impl Recovery {
    fn of(mut all: Vec<Duration>) -> Option<Self> {
        all.sort_unstable();
        let (median, max) = (all.get(all.len() / 2)?, all.last()?);
        let ms = |d: &Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Some(Recovery { count: all.len(), median_ms: ms(median), max_ms: ms(max) })
    }
}

/// A row as it came out.
#[derive(Clone, Debug, Serialize)]
pub struct RowSeen {
    /// Which fault.
    pub fault: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What the system does about it.
    pub does: &'static str,
    /// Its cells, in the order of the columns.
    pub cells: Vec<Cell>,
    /// Cases that were run.
    pub cases: u32,
    /// From the fault, or its end, to the first sign of life after it.
    pub recovery: Option<Recovery>,
    /// How long nothing moved because something was away.
    pub stall: Option<Recovery>,
    /// The settings that it depends on, as they were.
    pub settings: BTreeMap<String, String>,
    /// Cases that could not be run, and why.
    pub failed: Vec<Note>,
    /// Cases that were left out, and why.
    pub left_out: Vec<Note>,
}

/// What became of one case.
#[derive(Clone, Debug)]
pub enum Told {
    /// It ran.
    Saw(Witnessed),
    /// Something that has nothing to do with the promises went wrong.
    Failed(String),
    /// It can not be run here.
    LeftOut(String),
}

/// One case that is over.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its name.
    pub case: String,
    /// Its row.
    pub row: &'static str,
    /// What became of it.
    pub told: Told,
}

impl Board {
    /// The matrix as it came out. `settings` gives the value of a setting.
    pub fn fill(&self, finished: &[Finished], settings: impl Fn(&str) -> String) -> Vec<RowSeen> {
        let mut rows: Vec<RowSeen> =
            self.rows.iter().map(|row| self.row(row, finished, &settings)).collect();
        rows.retain(|r| r.cases > 0 || !r.failed.is_empty() || !r.left_out.is_empty());
        rows
    }

    fn row(&self, row: &Row, finished: &[Finished], settings: &impl Fn(&str) -> String) -> RowSeen {
        let mine = || finished.iter().filter(|f| f.row == row.key);
        let saw = || {
            mine().filter_map(|f| match &f.told {
                Told::Saw(witnessed) => Some((&f.case, witnessed)),
                _ => None,
            })
        };
        let cell = |(column, promise): (&Column, &Promise)| {
            let mut cell = Cell::new(column.key, *promise);
            for (case, witnessed) in saw() {
                if let Some(seen) = witnessed.of(column.key) {
                    cell.take(case, &seen);
                }
            }
            cell.close();
            cell
        };
        let notes = |pick: fn(&Told) -> Option<&String>| {
            let note = |f: &Finished| {
                pick(&f.told).map(|says| Note {
                    case: f.case.clone(),
                    verdict: None,
                    says: says.clone(),
                })
            };
            mine().filter_map(note).collect::<Vec<_>>()
        };
        let recoveries = saw().flat_map(|(_, w)| w.recoveries.iter().copied()).collect();
        RowSeen {
            fault: row.key,
            title: row.title,
            does: row.does,
            cells: self.columns.iter().zip(row.promises).map(cell).collect(),
            cases: u32::try_from(saw().count()).unwrap_or(u32::MAX),
            recovery: Recovery::of(recoveries),
            stall: Recovery::of(saw().flat_map(|(_, w)| w.stalls.iter().copied()).collect()),
            settings: row.settings.iter().map(|s| ((*s).to_owned(), settings(s))).collect(),
            failed: notes(|told| match told {
                Told::Failed(why) => Some(why),
                _ => None,
            }),
            left_out: notes(|told| match told {
                Told::LeftOut(why) => Some(why),
                _ => None,
            }),
        }
    }
}

impl Cell {
    fn new(column: &'static str, promise: Promise) -> Self {
        let (held, after_retry, broken) = (0, 0, 0);
        let (verdict, notes) = (Verdict::NotRun, Vec::new());
        Cell { column, promise, verdict, held, after_retry, broken, notes }
    }

    fn take(&mut self, case: &str, seen: &Seen) {
        let (verdict, says) = match seen {
            Seen::Held => {
                self.held += 1;
                return;
            }
            Seen::AfterRetry(says) => {
                self.after_retry += 1;
                (Verdict::HeldAfterRetry, says)
            }
            Seen::Broken(says) => {
                self.broken += 1;
                (Verdict::Broken, says)
            }
        };
        let (case, verdict, says) = (case.to_owned(), Some(verdict), says.clone());
        self.notes.push(Note { case, verdict, says });
    }

    fn close(&mut self) {
        let looked = self.held + self.after_retry + self.broken > 0;
        self.verdict = match self.promise {
            _ if self.broken > 0 => Verdict::Broken,
            _ if !looked => Verdict::NotRun,
            Promise::NotApplicable => Verdict::NotApplicable,
            Promise::NotMeanwhile => Verdict::NotPromised,
            // Even one that needed help where none should be needed is shown as such.
            Promise::Holds | Promise::AfterRetry if self.after_retry > 0 => Verdict::HeldAfterRetry,
            Promise::Holds | Promise::AfterRetry => Verdict::Held,
        };
    }
}

/// Whether a matrix shows nothing that should not be: no broken cell, and no case that could not be run.
pub fn is_clean(rows: &[RowSeen]) -> bool {
    rows.iter().all(|r| r.failed.is_empty() && r.cells.iter().all(|c| c.verdict != Verdict::Broken))
}

/// Whether everything was looked at that can be looked at here. What was left out of a row is said there.
pub fn is_whole(rows: &[RowSeen]) -> bool {
    let played = |r: &&RowSeen| r.left_out.is_empty();
    rows.iter().filter(played).all(|r| r.cells.iter().all(|c| c.verdict != Verdict::NotRun))
}

#[cfg(test)]
mod tests {
    use super::*;

    static BOARD: Board = Board {
        kind: "test",
        columns: &[
            Column { key: "a", title: "A", says: "" },
            Column { key: "b", title: "B", says: "" },
        ],
        rows: &[
            Row {
                key: "one",
                title: "One",
                does: "",
                promises: &[Promise::Holds, Promise::NotApplicable],
                settings: &["x"],
            },
            Row {
                key: "two",
                title: "Two",
                does: "",
                promises: &[Promise::NotMeanwhile, Promise::AfterRetry],
                settings: &[],
            },
        ],
    };

    fn case(row: &'static str, seen: &[(&'static str, Seen)]) -> Finished {
        let mut witnessed = Witnessed::default();
        seen.iter().for_each(|(column, seen)| witnessed.saw(column, seen.clone()));
        Finished { case: format!("case of {row}"), row, told: Told::Saw(witnessed) }
    }

    fn verdicts(finished: &[Finished]) -> Vec<Vec<Verdict>> {
        let rows = BOARD.fill(finished, |_| "1".into());
        rows.iter().map(|r| r.cells.iter().map(|c| c.verdict).collect()).collect()
    }

    #[test]
    fn a_cell_is_what_the_worst_case_saw() {
        let held = case("one", &[("a", Seen::Held), ("b", Seen::Held)]);
        let again = case("one", &[("a", Seen::AfterRetry("asked twice".into()))]);
        let broken = case("one", &[("b", Seen::Broken("it moved".into()))]);
        let one = std::slice::from_ref(&held);
        assert_eq!(verdicts(one), [[Verdict::Held, Verdict::NotApplicable]]);
        let two = [held.clone(), again.clone()];
        assert_eq!(verdicts(&two), [[Verdict::HeldAfterRetry, Verdict::NotApplicable]]);
        let all = [held, again, broken];
        assert_eq!(verdicts(&all), [[Verdict::HeldAfterRetry, Verdict::Broken]]);
        let rows = BOARD.fill(&all, |_| "1".into());
        assert!(!is_clean(&rows));
        assert_eq!(rows[0].cells[1].notes[0].says, "it moved");
        assert_eq!(rows[0].settings["x"], "1");
    }

    #[test]
    fn a_case_counts_once_however_often_it_looked() {
        let seen = [("a", Seen::Held), ("a", Seen::Broken("x".into())), ("a", Seen::Held)];
        let rows = BOARD.fill(&[case("one", &seen)], |_| String::new());
        let cell = &rows[0].cells[0];
        assert_eq!((cell.held, cell.broken, cell.verdict), (0, 1, Verdict::Broken));
    }

    #[test]
    fn what_is_not_promised_is_still_broken_when_it_does_not_come_back() {
        let stalled = case("two", &[("a", Seen::Held)]);
        assert_eq!(verdicts(&[stalled]), [[Verdict::NotPromised, Verdict::NotRun]]);
        let lost = case("two", &[("a", Seen::Broken("never went on".into()))]);
        assert_eq!(verdicts(&[lost]), [[Verdict::Broken, Verdict::NotRun]]);
    }

    #[test]
    fn a_case_that_could_not_be_run_is_no_success() {
        let failed =
            Finished { case: "x".into(), row: "one", told: Told::Failed("no port".into()) };
        let rows = BOARD.fill(&[failed], |_| String::new());
        assert!(!is_clean(&rows));
        let left =
            Finished { case: "x".into(), row: "one", told: Told::LeftOut("not here".into()) };
        assert!(is_clean(&BOARD.fill(&[left], |_| String::new())));
    }

    #[test]
    fn recovery_is_median_and_maximum() {
        let r = Recovery::of([3, 1, 9].map(Duration::from_millis).to_vec()).unwrap();
        assert_eq!((r.count, r.median_ms, r.max_ms), (3, 3, 9));
        assert!(Recovery::of(Vec::new()).is_none());
    }
}
