//! A timeline for a terminal: a row per tenure, a row per step, and what happened at a moment below.
//!
//! Time runs from left to right on one scale. A bar is at least one column wide, so that what took a
//! millisecond of an hour is still seen.

use super::{Bar, BarKind, BarState, LeaseEnd, Mark, MarkKind, Timeline, why::span};
use std::fmt::Write as _;
use tenure_kernel::time::Timestamp;

/// Columns below which nothing can be told apart.
const CANVAS_MIN: usize = 20;
/// The widest label.
const LABEL_MAX: usize = 28;

/// Draws a timeline within this many columns.
pub fn render_text(timeline: &Timeline, width: usize) -> String {
    let labels = timeline.lanes.iter().map(|l| format!("{} {}", l.step, l.label));
    let longest = labels.chain(timeline.leases.iter().map(|l| l.name.clone()));
    let label = longest.map(|l| l.chars().count()).max().unwrap_or(0).clamp(8, LABEL_MAX);
    let canvas = width.saturating_sub(label + 4).max(CANVAS_MIN);
    let scale = Scale { from: timeline.from, to: timeline.to, columns: canvas };
    let mut out = String::new();
    let total = span(timeline.to.since(timeline.from));
    let state = if timeline.open { "so far" } else { "in all" };
    let Timeline { id, flow, status, .. } = timeline;
    // Writing to a string has no way to fail.
    let _ = writeln!(out, "{flow}  {id}  {status}, {total} {state}");
    let _ = writeln!(out, "{} {}", " ".repeat(label), axis(timeline, canvas));
    for lease in &timeline.leases {
        let fill = if lease.end == LeaseEnd::Lost { '╌' } else { '─' };
        let mut row = vec![' '; canvas];
        let (a, b) = scale.columns(lease.from, lease.to);
        row[a..=b].fill(fill);
        row[a] = '├';
        row[b] = match lease.end {
            LeaseEnd::Open => '▸',
            LeaseEnd::Lost => '✗',
            LeaseEnd::Released | LeaseEnd::Parked | LeaseEnd::Final => '┤',
        };
        let end = match lease.end {
            LeaseEnd::Open => "",
            LeaseEnd::Lost => " lost",
            LeaseEnd::Released => " released",
            LeaseEnd::Parked => " parked",
            LeaseEnd::Final => " final",
        };
        line(&mut out, &fit(&lease.name, label), row, &format!("e{}{end}", lease.epoch), width);
    }
    for lane in &timeline.lanes {
        let mut row = vec![' '; canvas];
        for bar in &lane.bars {
            let (a, b) = scale.columns(bar.from, bar.to);
            row[a..=b].fill(glyph(bar));
        }
        let name = format!("{} {}", lane.step, lane.label);
        let tail = if lane.copied { "copied".to_owned() } else { tail(&lane.bars) };
        line(&mut out, &fit(&name, label), row, &tail, width);
    }
    for mark in &timeline.marks {
        let _ = writeln!(out, "{}", fit_end(&mark_text(mark, timeline.from), width));
    }
    out
}

struct Scale {
    from: Timestamp,
    to: Timestamp,
    columns: usize,
}

impl Scale {
    fn column(&self, at: Timestamp) -> usize {
        let whole = self.to.since(self.from).as_micros().max(1);
        let part = at.since(self.from).as_micros().min(whole);
        let last = self.columns.saturating_sub(1);
        usize::try_from(part * last as u128 / whole).unwrap_or(last)
    }

    fn columns(&self, from: Timestamp, to: Option<Timestamp>) -> (usize, usize) {
        let a = self.column(from);
        (a, self.column(to.unwrap_or(self.to)).max(a))
    }
}

fn axis(timeline: &Timeline, canvas: usize) -> String {
    let end = span(timeline.to.since(timeline.from));
    let room = canvas.saturating_sub(end.chars().count() + 1);
    format!("0{}{end}", "·".repeat(room))
}

fn glyph(bar: &Bar) -> char {
    match (bar.kind, bar.state) {
        (_, BarState::Unknown) => '?',
        (_, BarState::Failed) => '▒',
        (BarKind::Backoff, _) => '·',
        (BarKind::Wait, _) => '░',
        (BarKind::Sleep, _) => '┄',
        (BarKind::Child, _) => '▬',
        (BarKind::Value, _) => '•',
        (BarKind::Call, _) => '█',
    }
}

fn tail(bars: &[Bar]) -> String {
    let calls = bars.iter().filter(|b| b.kind == BarKind::Call).count();
    let state = match bars.last().map(|b| b.state) {
        Some(BarState::Ok) => "ok",
        Some(BarState::Failed) => "failed",
        Some(BarState::Unknown) => "unknown",
        Some(BarState::Open) => "open",
        None => "",
    };
    if calls > 1 { format!("{state} ×{calls}") } else { state.to_owned() }
}

fn mark_text(mark: &Mark, from: Timestamp) -> String {
    let sign = match mark.kind {
        MarkKind::Kill => '✗',
        MarkKind::Signal => '✉',
        MarkKind::Unknown => '?',
        MarkKind::Settled => '✓',
        MarkKind::Divergence => '≠',
        MarkKind::Attention => '!',
        MarkKind::Pause => '‖',
        MarkKind::Cancel => '×',
        MarkKind::Continued => '↻',
        MarkKind::Copied => '⎘',
        MarkKind::End => '■',
    };
    let step = mark.step.as_ref().map(|s| format!(" step {s}:")).unwrap_or_default();
    format!("  {sign} +{}{step} {}", span(mark.at.since(from)), mark.label)
}

fn line(out: &mut String, label: &str, row: Vec<char>, tail: &str, width: usize) {
    let row: String = row.into_iter().collect();
    let row = row.trim_end();
    let room = width.saturating_sub(label.chars().count() + 1 + row.chars().count() + 1);
    // What is said behind a bar goes where there is room, and is left out where there is none.
    let tail = if tail.chars().count() <= room { tail } else { "" };
    let _ = writeln!(out, "{}", format!("{label} {row} {tail}").trim_end());
}

/// Exactly so many columns.
fn fit(text: &str, columns: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.chars().count() > columns {
        true => clean.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
        false => format!("{clean:columns$}"),
    }
}

/// At most so many columns.
fn fit_end(text: &str, columns: usize) -> String {
    fit(text, columns.max(CANVAS_MIN)).trim_end().to_owned()
}
