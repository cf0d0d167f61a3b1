//! Small words: ages, durations, excerpts, pills.

use maud::{Markup, html};
use serde_json::Value;
use std::time::Duration;
use tenure_jobs::{
    model::Attention,
    view::{JobView, why},
};
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// How much of a value a page shows. More is a click away, at the API.
pub(super) const VALUE_CHARS_MAX: usize = 4 * 1024;
/// How much of a text a table cell shows.
pub(super) const CELL_CHARS_MAX: usize = 160;

/// A duration for people: two figures that matter, no more.
pub(super) fn span(d: Duration) -> String {
    let (s, ms) = (d.as_secs(), d.as_millis());
    match s {
        0 if ms == 0 => format!("{} µs", d.as_micros()),
        0 => format!("{ms} ms"),
        1..=59 => format!("{:.1} s", d.as_secs_f64()),
        60..=3_599 => format!("{} min {} s", s / 60, s % 60),
        3_600..=86_399 => format!("{} h {} min", s / 3_600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3_600 % 24),
    }
}

/// An age in one word; the script counts it on.
pub(super) fn age(at: Timestamp, now: Timestamp) -> Markup {
    let s = now.since(at).as_secs();
    let words = match s {
        0..=59 => format!("{s} s"),
        60..=3_599 => format!("{} min", s / 60),
        3_600..=86_399 => format!("{} h", s / 3_600),
        _ => format!("{} d", s / 86_400),
    };
    html! { time datetime=(at) title=(moment(at)) data-at=(at.as_micros() / 1_000) { (words) } }
}

/// A moment without the microseconds.
pub(super) fn moment(at: Timestamp) -> String {
    let text = at.to_string();
    let seconds = text.get(..19).unwrap_or(&text).replace('T', " ");
    format!("{seconds} UTC")
}

/// The time of day with milliseconds.
pub(super) fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(11..23).unwrap_or(&text).to_owned()
}

/// What tells one id from its neighbours: ids begin with their time, so it is the end.
pub(super) fn short(id: EntityId) -> String {
    let text = id.to_string();
    text.get(text.len().saturating_sub(8)..).unwrap_or(&text).to_owned()
}

/// A link to a job.
pub(super) fn job_link(id: EntityId) -> Markup {
    html! { a href={ "/jobs/" (id) } title=(id) { code { (short(id)) } } }
}

/// The beginning of a text, and whether something is missing.
pub(super) fn excerpt(text: &str, chars_max: usize) -> (String, bool) {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => (format!("{}…", &text[..end]), true),
        None => (text.to_owned(), false),
    }
}

/// A value as JSON, cut. Large ones are printed without indentation first: that bounds the work.
pub(super) fn json(value: &Value) -> (String, bool) {
    let plain = value.to_string();
    if plain.len() > VALUE_CHARS_MAX {
        return excerpt(&plain, VALUE_CHARS_MAX);
    }
    let pretty = serde_json::to_string_pretty(value).unwrap_or(plain);
    excerpt(&pretty, VALUE_CHARS_MAX)
}

/// A value in a box, with a way to the rest.
pub(super) fn value(value: &Value, rest: &str) -> Markup {
    let (text, cut) = json(value);
    html! {
        pre { (text) }
        @if cut { p.small.dim { "The beginning of it. " a href=(rest) { "All of it, from the API" } } }
    }
}

/// A text behind its own beginning.
pub(super) fn fold(id: &str, text: &str) -> Markup {
    let (first, cut) = excerpt(text, CELL_CHARS_MAX);
    let (all, more) = excerpt(text, VALUE_CHARS_MAX);
    html! {
        @if cut || text.contains('\n') {
            details id=(id) { summary { code { (first) } } pre { (all) } @if more { p.small.dim { "Cut; the API has all of it." } } }
        } @else { code { (first) } }
    }
}

/// What [`why`] says, for a page: the deadline stands elsewhere on it, and where the sentence has a command to
/// type there is a button.
pub(super) fn sentence(job: &JobView, now: Timestamp, chars_max: usize) -> Markup {
    let unknown = job.running.iter().find_map(|c| c.unknown.as_ref());
    match (&job.attention, unknown) {
        // Which class of tool it was and what may be said about it is on the form; why nobody knows is news.
        (Some(attention), Some(unknown)) if attention.reason == "unknown_outcome" => {
            let attention = Attention { why: unknown.clone(), ..attention.clone() };
            let job = JobView { attention: Some(attention), ..job.clone() };
            for_a_page(&why(&job, now), chars_max)
        }
        _ => for_a_page(&why(job, now), chars_max),
    }
}

/// A sentence for a page. Commands of ours become the words that stand on the buttons.
pub(super) fn for_a_page(text: &str, chars_max: usize) -> Markup {
    let text = match text.rsplit_once("; it ends ") {
        Some((says, end)) if end.ends_with(" at the latest.") => format!("{says}."),
        _ => text.to_owned(),
    };
    let text = match text.rsplit_once(": say so with `tenure") {
        Some((says, _)) => format!("{says}."),
        None => text,
    };
    let verb = |command: &str| -> String {
        let ours = ["tenure job ", "tenure task ", "tenure turn ", "tenure agent "];
        let rest = ours.iter().find_map(|prefix| command.strip_prefix(prefix));
        let first = rest.and_then(|rest| rest.split(' ').next());
        // There is no button that asks why: it is what a page says by itself.
        first.filter(|verb| *verb != "why").unwrap_or(command).to_owned()
    };
    let (mut parts, mut left) = (Vec::new(), chars_max);
    for (i, part) in text.split('`').enumerate().filter(|(_, part)| !part.is_empty()) {
        let is_command = i % 2 == 1;
        let part = if is_command { verb(part) } else { part.to_owned() };
        let (shown, cut) = excerpt(&part, left);
        parts.push((is_command, shown));
        left = left.saturating_sub(part.chars().count());
        if cut {
            break;
        }
    }
    html! { @for (is_command, part) in &parts { @if *is_command { b { (part) } } @else { (part) } } }
}

/// A status with a sign and a word, so that colour is never alone.
pub(super) fn pill(status: &str, big: bool) -> Markup {
    // Tasks have their statuses in capitals, as the systems before them; on a page they would shout.
    let shown = status.to_ascii_lowercase();
    let sign = match shown.as_str() {
        "queued" | "pending" => "○",
        "running" => "▶",
        "waiting" => "◷",
        "parked" => "‖",
        "retrying" => "↻",
        "attention" => "!",
        "cancelling" | "undoing" => "…",
        "dispatched" => "◌",
        "suspended" => "◷",
        "idle" => "○",
        "completed" | "success" | "succeeded" => "✓",
        "partial" => "◐",
        "timeout" => "⏱",
        "failed" => "✕",
        "cancelled" | "canceled" | "removed" => "⊘",
        _ => "·",
    };
    html! { span.pill.big[big].(word(status)) { span aria-hidden="true" { (sign) } (shown) } }
}

/// A status as a class name: only what the machine's table knows is one.
fn word(status: &str) -> &str {
    let known = tenure_jobs::model::TABLE.statuses.iter().find(|s| s.name == status);
    // Agents, turns and tasks look like the jobs that they resemble.
    let alike = match status {
        "PENDING" | "QUEUED" => Some("queued"),
        "RUNNING" => Some("running"),
        "RETRYING" => Some("retrying"),
        "SUCCEEDED" => Some("completed"),
        "FAILED" => Some("failed"),
        "CANCELED" => Some("cancelled"),
        "dispatched" | "idle" | "removed" => Some("queued"),
        "suspended" => Some("waiting"),
        "success" => Some("completed"),
        "partial" => Some("retrying"),
        "timeout" => Some("failed"),
        "canceled" => Some("cancelled"),
        _ => None,
    };
    known.map(|s| s.name).or(alike).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_say_two_figures_that_matter() {
        let said = |ms: u64| span(Duration::from_millis(ms));
        assert_eq!((said(4), said(3_080)), ("4 ms".into(), "3.1 s".into()));
        assert_eq!((said(125_000), said(90_061_000)), ("2 min 5 s".into(), "1 d 1 h".into()));
    }

    #[test]
    fn an_excerpt_cuts_between_characters_and_says_so() {
        assert_eq!(excerpt("äöü", 3), ("äöü".to_owned(), false));
        assert_eq!(excerpt("äöü", 2), ("äö…".to_owned(), true));
        let long = Value::String("x".repeat(1_000_000));
        let (text, cut) = json(&long);
        assert!(cut && text.chars().count() == VALUE_CHARS_MAX + 1);
    }

    #[test]
    fn a_sentence_has_verbs_for_commands_and_no_deadline() {
        let why = "Waits for a decision: `tenure job approve 01 k` or `tenure job reject 01 k`; it ends tomorrow at the latest.";
        let html = for_a_page(why, 200).into_string();
        assert_eq!(html, "Waits for a decision: <b>approve</b> or <b>reject</b>.");
        assert_eq!(
            for_a_page("a<b>`tenure worker`", 99).into_string(),
            "a&lt;b&gt;<b>tenure worker</b>"
        );
        assert_eq!(
            for_a_page("`tenure task replay` orders it, `tenure task why 01` says", 99)
                .into_string(),
            "<b>replay</b> orders it, <b>tenure task why 01</b> says"
        );
        assert_eq!(for_a_page("abcdef", 3).into_string(), "abc…");
    }

    #[test]
    fn a_status_that_nobody_knows_is_no_class() {
        let html = pill("x\" onclick=\"y", false).into_string();
        assert!(html.contains("class=\"pill other\"") && !html.contains("\" onclick"), "{html}");
    }
}
