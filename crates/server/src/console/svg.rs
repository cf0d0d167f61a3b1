//! The timeline as SVG: who held the job, what ran, what was waited for, and what went wrong.
//!
//! Names stand in HTML beside the drawing and positions are in percent, so that text keeps its size when the
//! window does not. Rows on both sides have the same heights, here and in the style.
//!
//! **The axis.** A job calls a tool for four milliseconds and then waits for three days. On a straight axis one of
//! the two is all there is. Where something would be too narrow to see, each stretch between two happenings gets
//! the square root of its length instead: order and overlaps stay true, the figures on the axis say the rest.

use super::text::{clock, excerpt, span};
use maud::{Markup, html};
use tenure_jobs::view::{Bar, BarKind, BarState, Lane, Lease, LeaseEnd, Mark, MarkKind, Timeline};
use tenure_kernel::time::Timestamp;

const AXIS: f64 = 24.0;
const WHO: f64 = 34.0;
const ROW: f64 = 28.0;
/// Steps that are drawn, the newest.
const LANES_MAX: usize = 80;
/// Room at the right end for what is still growing.
const WIDTH: f64 = 98.5;
/// A stretch narrower than this can not be seen.
const NARROW: f64 = 0.35;
/// The width of a letter, of a drawing a thousand pixels wide: text that does not fit is left to the tooltip.
const LETTER: f64 = 0.66;

/// Where moments stand, in percent.
struct Axis {
    knots: Vec<(i64, f64)>,
    bent: bool,
}

impl Axis {
    fn of(t: &Timeline) -> Self {
        let mut at: Vec<i64> = vec![t.from.as_micros(), t.to.as_micros()];
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for lease in &t.leases {
            spans.push((lease.from.as_micros(), lease.to.unwrap_or(t.to).as_micros()));
        }
        for bar in t.lanes.iter().flat_map(|l| &l.bars).filter(|b| b.kind != BarKind::Value) {
            spans.push((bar.from.as_micros(), bar.to.unwrap_or(t.to).as_micros()));
        }
        at.extend(spans.iter().flat_map(|(from, to)| [*from, *to]));
        at.extend(t.marks.iter().map(|m| m.at.as_micros()));
        at.sort_unstable();
        at.dedup();
        let whole = length(at[0], at[at.len() - 1]).max(1.0);
        let thin = spans.iter().filter(|(a, b)| length(*a, *b) / whole * WIDTH < NARROW).count();
        // A few slivers are fine; a drawing of slivers is not.
        let bent = thin * 3 > spans.len();
        let weight = |from: i64, to: i64| match bent {
            true => (length(from, to) / 1_000.0).sqrt() + 0.4,
            false => length(from, to),
        };
        let total: f64 = at.windows(2).map(|w| weight(w[0], w[1])).sum::<f64>().max(1e-9);
        let mut x = 0.0;
        let mut knots = vec![(at[0], 0.0)];
        for w in at.windows(2) {
            x += weight(w[0], w[1]) / total * WIDTH;
            knots.push((w[1], x));
        }
        Axis { knots, bent }
    }

    fn at(&self, t: Timestamp) -> f64 {
        let t = t.as_micros();
        let i = self.knots.partition_point(|(k, _)| *k <= t);
        match (i.checked_sub(1).map(|j| self.knots[j]), self.knots.get(i)) {
            (None, _) => 0.0,
            (Some((_, x)), None) => x,
            (Some((t0, x0)), Some((t1, x1))) => {
                x0 + (x1 - x0) * length(t0, t) / length(t0, *t1).max(1.0)
            }
        }
    }

    /// Moments worth a figure, apart from each other: knots where it is bent, even steps where it is straight.
    fn ticks(&self) -> Vec<(f64, i64)> {
        let (first, last) = (self.knots[0].0, self.knots[self.knots.len() - 1].0);
        let candidates: Vec<(f64, i64)> = match self.bent {
            true => self.knots.iter().map(|(t, x)| (*x, *t - first)).collect(),
            false => even_steps(last - first)
                .map(|d| (self.at(Timestamp::from_micros(first + d)), d))
                .collect(),
        };
        let mut ticks: Vec<(f64, i64)> = Vec::new();
        for (x, d) in candidates {
            if ticks.last().is_none_or(|(before, _)| x - before > 9.0) && x < 96.0 {
                ticks.push((x, d));
            }
        }
        ticks
    }
}

fn length(from: i64, to: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a drawing needs no more than 52 bits")]
    let length = to.saturating_sub(from).max(0) as f64;
    length
}

/// About eight steps of a round length, in microseconds.
fn even_steps(whole: i64) -> impl Iterator<Item = i64> {
    const ROUND: [i64; 21] = [
        100,
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        2_000_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        300_000_000,
        900_000_000,
        3_600_000_000,
        21_600_000_000,
        86_400_000_000,
    ];
    let step = ROUND.into_iter().find(|r| whole / r <= 9).unwrap_or(86_400_000_000);
    (0..=whole / step).take(64).map(move |i| i * step)
}

/// The card with the drawing, names beside it, and what its signs mean.
pub(super) fn card(t: &Timeline) -> Markup {
    let hidden = t.lanes.len().saturating_sub(LANES_MAX);
    let lanes = &t.lanes[hidden..];
    let axis = Axis::of(t);
    let height = AXIS + WHO + ROW * rows(lanes.len()) + 4.0;
    html! {
        div.card {
            div.cap {
                h2 { "Timeline" }
                span.small.dim {
                    (clock(t.from)) " UTC + " (span(t.to.since(t.from)))
                    @if axis.bent { " · long stretches are drawn short" }
                    @if hidden > 0 { " · " (hidden) " older steps are not drawn" }
                }
            }
            div.line {
                div.names {
                    div.axis {}
                    div.who { span { "held by" } }
                    @for lane in lanes {
                        div title={ "step " (lane.step) ": " (lane.label) } { code { (lane.step) } span { (excerpt(&lane.label, 60).0) } }
                    }
                }
                svg height=(height) role="img" aria-label={ "Timeline of " (t.flow) ", " (t.status) } {
                    (hatch())
                    (grid(&axis, height, lanes.len()))
                    @for lease in &t.leases { (self::lease(&axis, lease, t.to)) }
                    @for (i, lane) in lanes.iter().enumerate() { (self::lane(&axis, lane, i, t.to)) }
                    @for mark in &t.marks { (self::mark(&axis, mark, lanes, height)) }
                    @if t.open { line.now x1=(pct(axis.at(t.to))) x2=(pct(axis.at(t.to))) y1=(AXIS) y2=(height) { title { "now" } } }
                }
            }
            (legend())
        }
    }
}

fn rows(n: usize) -> f64 {
    f64::from(u16::try_from(n).unwrap_or(u16::MAX))
}

fn pct(x: f64) -> String {
    format!("{x:.3}%")
}

fn hatch() -> Markup {
    html! {
        defs { pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
            rect width="7" height="7" fill="var(--amber-bg)" {} rect width="3" height="7" fill="var(--bar-amber)" {}
        } }
    }
}

fn grid(axis: &Axis, height: f64, lanes: usize) -> Markup {
    html! {
        @for (x, d) in axis.ticks() {
            line.grid x1=(pct(x)) x2=(pct(x)) y1=(AXIS - 5.0) y2=(height) {}
            text.t x=(pct(x)) y="14" dx="2" { @if d == 0 { "0" } @else { "+" (span(std::time::Duration::from_micros(d.unsigned_abs()))) } }
        }
        @for i in 0..=lanes {
            line.rule x1="0" x2="100%" y1=(AXIS + WHO + ROW * rows(i)) y2=(AXIS + WHO + ROW * rows(i)) {}
        }
    }
}

fn lease(axis: &Axis, lease: &Lease, now: Timestamp) -> Markup {
    let (x, end) = (axis.at(lease.from), axis.at(lease.to.unwrap_or(now)));
    let width = (end - x).max(NARROW);
    let class = match lease.end {
        LeaseEnd::Lost => "hold lost",
        LeaseEnd::Open => "hold open",
        LeaseEnd::Released | LeaseEnd::Parked | LeaseEnd::Final => "hold",
    };
    let name = format!("attempt {} · {}", lease.epoch, lease.name);
    let label = fitting(&[&name, &lease.name, &lease.epoch.to_string()], width);
    let took = lease.to.map_or_else(|| "until now".to_owned(), |to| span(to.since(lease.from)));
    html! {
        g {
            title { (name) ", " (took) @if !lease.why.is_empty() { ": " (lease.why) } }
            rect class=(class) x=(pct(x)) width=(pct(width)) y=(AXIS + 5.0) height=(WHO - 11.0) rx="4" {}
            @if let Some(label) = label { text x=(pct(x)) dx="7" y=(AXIS + 20.5) { (label) } }
        }
    }
}

/// The first of these words that fits into so many percent.
fn fitting(words: &[&str], width: f64) -> Option<String> {
    let fits = |w: &&&str| rows(w.chars().count() + 2) * LETTER < width;
    words.iter().find(fits).map(|w| (**w).to_owned())
}

fn lane(axis: &Axis, lane: &Lane, row: usize, now: Timestamp) -> Markup {
    let y = AXIS + WHO + ROW * rows(row);
    html! { @for bar in &lane.bars { (self::bar(axis, bar, y, now)) } }
}

fn bar(axis: &Axis, bar: &Bar, y: f64, now: Timestamp) -> Markup {
    let (x, end) = (axis.at(bar.from), axis.at(bar.to.unwrap_or(now)));
    let width = (end - x).max(NARROW);
    let kind = match bar.kind {
        BarKind::Call => "call",
        BarKind::Backoff => "backoff",
        BarKind::Wait => "wait",
        BarKind::Sleep => "sleep",
        BarKind::Child => "child",
        BarKind::Value => "value",
    };
    let state = match bar.state {
        BarState::Open => "open",
        BarState::Ok => "ok",
        BarState::Failed => "failed",
        BarState::Unknown => "unknown",
    };
    let took = match bar.to {
        Some(to) => span(to.since(bar.from)),
        None => format!("{} so far", span(now.since(bar.from))),
    };
    let (label, _) = excerpt(&bar.label, 300);
    let inside = match (bar.kind, bar.state) {
        (BarKind::Backoff, _) | (_, BarState::Unknown) => None,
        _ => fitting(&[&format!("{label} · {took}"), &label, &took], width),
    };
    html! {
        g {
            title { (label) ": " (state) ", " (took) @if let Some(epoch) = bar.epoch { ", attempt " (epoch) } }
            @if bar.kind == BarKind::Value {
                circle.dot cx=(pct(x)) cy=(y + ROW / 2.0) r="3.5" {}
            } @else {
                rect class={ "bar " (kind) " " (state) } x=(pct(x)) width=(pct(width)) y=(y + 5.0) height=(ROW - 10.0) rx="3" {}
                @if let Some(inside) = inside { text.inbar x=(pct(x)) dx="6" y=(y + 18.0) { (inside) } }
            }
        }
    }
}

/// Marks of a step stand in its row, others in the row of holders; a lost worker cuts through all of them.
fn mark(axis: &Axis, mark: &Mark, lanes: &[Lane], height: f64) -> Markup {
    let x = axis.at(mark.at);
    let (label, _) = excerpt(&mark.label, 300);
    let said = format!("{label}, {} UTC", clock(mark.at));
    if mark.kind == MarkKind::Kill {
        // The flag turns round where it would leave the drawing.
        let (anchor, dx) = if x > 80.0 { ("end", "-5") } else { ("start", "5") };
        return html! {
            g {
                title { (said) }
                line.kill x1=(pct(x)) x2=(pct(x)) y1=(AXIS - 2.0) y2=(height) {}
                text.flag x=(pct(x)) dx=(dx) y=(height - 6.0) text-anchor=(anchor) { "✕ worker lost" }
            }
        };
    }
    let row = mark.step.as_ref().and_then(|s| lanes.iter().position(|l| l.step == *s));
    let y = match row {
        Some(row) => AXIS + WHO + ROW * rows(row) + ROW / 2.0,
        None => AXIS + 5.0 + (WHO - 11.0) / 2.0,
    };
    let class = match mark.kind {
        MarkKind::Kill | MarkKind::Signal => "mark signal",
        MarkKind::Unknown => "mark unknown",
        MarkKind::Settled => "mark settled",
        MarkKind::Divergence => "mark divergence",
        MarkKind::Attention => "mark attention",
        MarkKind::Pause => "mark pause",
        MarkKind::Cancel => "mark cancel",
        MarkKind::Continued => "mark continued",
        MarkKind::Copied => "mark copied",
        MarkKind::End => "mark end",
    };
    html! {
        // A nested drawing has its own corner, so that a shape in pixels can stand at a place in percent.
        svg x=(pct(x)) y=(y) overflow="visible" width="1" height="1" {
            g { title { (said) }
                @match mark.kind {
                    MarkKind::Settled | MarkKind::End => { circle class=(class) r="6" {} }
                    MarkKind::Unknown | MarkKind::Attention | MarkKind::Divergence => { path class=(class) d="M0 -7 L7 6 L-7 6 Z" {} }
                    _ => { path class=(class) d="M0 -7 L7 0 L0 7 L-7 0 Z" {} }
                }
            }
        }
    }
}

fn legend() -> Markup {
    let swatch = |class: &str, word: &str| {
        html! { span { svg aria-hidden="true" { rect class={ "bar " (class) } x="0.5" y="0.5" width="17" height="9" rx="2" {} } (word) } }
    };
    html! {
        div.legend {
            (swatch("call ok", "call")) (swatch("call failed", "failed")) (swatch("call unknown", "unknown effect"))
            (swatch("call open", "running")) (swatch("wait ok", "wait")) (swatch("sleep ok", "sleep"))
            (swatch("backoff", "pause before a retry")) (swatch("child ok", "child job"))
            span { svg aria-hidden="true" { path.mark d="M9 0 L14 5 L9 10 L4 5 Z" {} } "signal" }
            span { svg aria-hidden="true" { circle.mark.settled cx="9" cy="5" r="5" {} } "settled" }
            span { svg aria-hidden="true" { line.kill x1="9" x2="9" y1="0" y2="10" {} } "worker lost" }
        }
    }
}
