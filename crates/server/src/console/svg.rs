//! The timeline as SVG: who held the job, what ran, what was waited for, and what went wrong.
//!
//! Names stand in HTML beside the drawing and positions are in percent, so that text keeps its size when the
//! window does not. Rows on both sides have the same heights, here and in the style.

use super::{
    axis::{Axis, NARROW},
    text::{clock, excerpt, span},
};
use maud::{Markup, html};
use tenure_jobs::view::{Bar, BarKind, BarState, Lane, Lease, LeaseEnd, Mark, MarkKind, Timeline};
use tenure_kernel::time::Timestamp;

const AXIS: f64 = 24.0;
const WHO: f64 = 34.0;
const ROW: f64 = 28.0;
/// Below the rows, where a worker was lost.
const FLAG: f64 = 19.0;
/// Steps that are drawn, the newest.
const LANES_MAX: usize = 80;
/// The width of a letter, of a drawing a thousand pixels wide: text that does not fit is left to the tooltip.
const LETTER: f64 = 0.66;

/// The card with the drawing, names beside it, and what its signs mean.
pub(super) fn card(t: &Timeline) -> Markup {
    let hidden = t.lanes.len().saturating_sub(LANES_MAX);
    let lanes = &t.lanes[hidden..];
    let axis = Axis::of(t);
    let killed = t.marks.iter().any(|m| m.kind == MarkKind::Kill);
    let foot = if killed { FLAG } else { 4.0 };
    let height = AXIS + WHO + ROW * rows(lanes.len()) + foot;
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
                    @for (i, lane) in lanes.iter().enumerate() { (self::lane(&axis, lane, i, t)) }
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
        defs {
            pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect width="7" height="7" fill="var(--amber-bg)" {} rect width="3" height="7" fill="var(--bar-amber)" {}
            }
            pattern id="was" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect width="3" height="7" fill="var(--bar-amber)" {}
            }
        }
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
            @if let Some(label) = label { text.inhold x=(pct(x)) dx="7" y=(AXIS + 20.5) { (label) } }
        }
    }
}

/// The first of these words that fits into so many percent.
fn fitting(words: &[&str], width: f64) -> Option<String> {
    let fits = |w: &&&str| rows(w.chars().count() + 2) * LETTER < width;
    words.iter().find(fits).map(|w| (**w).to_owned())
}

fn lane(axis: &Axis, lane: &Lane, row: usize, t: &Timeline) -> Markup {
    let y = AXIS + WHO + ROW * rows(row);
    let unknown = |bar: &Bar| {
        let during = |m: &&Mark| bar.from <= m.at && m.at <= bar.to.unwrap_or(t.to);
        let of_it = |m: &&Mark| m.kind == MarkKind::Unknown && m.step.as_ref() == Some(&lane.step);
        bar.kind == BarKind::Call && t.marks.iter().filter(during).any(|m| of_it(&m))
    };
    html! { @for bar in &lane.bars { (self::bar(axis, bar, y, t.to, unknown(bar))) } }
}

/// `was_unknown`: nobody knew for a while how it ended. Its colour says how it did, its stripes that it was so.
fn bar(axis: &Axis, bar: &Bar, y: f64, now: Timestamp, was_unknown: bool) -> Markup {
    let (x, end) = (axis.at(bar.from), axis.at(bar.to.unwrap_or(now)));
    let width = (end - x).max(NARROW);
    let (kind, state) = (kind(bar.kind), state(bar.state));
    let took = match bar.to {
        Some(to) => span(to.since(bar.from)),
        None => format!("{} so far", span(now.since(bar.from))),
    };
    let (label, _) = excerpt(&bar.label, 300);
    let inside = match (bar.kind, bar.state) {
        (BarKind::Backoff, _) | (_, BarState::Unknown) => None,
        _ if was_unknown => None,
        (BarKind::Call, BarState::Ok) => fitting(&[&took], width),
        _ => fitting(&[&format!("{label} · {took}"), &label, &took], width),
    };
    let striped = was_unknown && bar.state != BarState::Unknown;
    html! {
        g {
            title { (label) ": " (state) ", " (took) @if let Some(epoch) = bar.epoch { ", attempt " (epoch) } @if striped { "; nobody knew for a while" } }
            @if bar.kind == BarKind::Value {
                circle.dot cx=(pct(x)) cy=(y + ROW / 2.0) r="3.5" {}
            } @else {
                rect class={ "bar " (kind) " " (state) } x=(pct(x)) width=(pct(width)) y=(y + 5.0) height=(ROW - 10.0) rx="3" {}
                @if let Some(inside) = inside { text.inbar x=(pct(x)) dx="6" y=(y + 18.0) { (inside) } }
                @if striped { rect.was x=(pct(x)) width=(pct(width)) y=(y + 5.0) height=(ROW - 10.0) rx="3" {} }
            }
        }
    }
}

fn kind(kind: BarKind) -> &'static str {
    match kind {
        BarKind::Call => "call",
        BarKind::Backoff => "backoff",
        BarKind::Wait => "wait",
        BarKind::Sleep => "sleep",
        BarKind::Child => "child",
        BarKind::Value => "value",
    }
}

fn state(state: BarState) -> &'static str {
    match state {
        BarState::Open => "open",
        BarState::Ok => "ok",
        BarState::Failed => "failed",
        BarState::Unknown => "unknown",
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
                text.flag x=(pct(x)) dx=(dx) y=(height - 5.0) text-anchor=(anchor) { "✕ worker lost" }
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
            span { svg aria-hidden="true" { rect.bar.call.ok x="0.5" y="0.5" width="17" height="9" rx="2" {} rect.was x="0.5" y="0.5" width="17" height="9" rx="2" {} } "unknown for a while" }
            (swatch("call open", "running")) (swatch("wait ok", "wait")) (swatch("sleep ok", "sleep"))
            (swatch("backoff", "pause before a retry")) (swatch("child ok", "child job"))
            span { svg aria-hidden="true" { path.mark d="M9 0 L14 5 L9 10 L4 5 Z" {} } "signal" }
            span { svg aria-hidden="true" { circle.mark.settled cx="9" cy="5" r="5" {} } "settled" }
            span { svg aria-hidden="true" { line.kill x1="9" x2="9" y1="0" y2="10" {} } "worker lost" }
        }
    }
}
