//! The matrix as people read it: at a terminal, as a page for an auditor, as a table for a document, as JSON for a program.

use super::{
    matrix::{Cell, Note, Recovery, RowSeen, Verdict},
    run::Outcome,
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::fmt::Write as _;

/// Remarks of one kind that are shown for a cell at a terminal; the page and the JSON have them all.
const NOTES_MAX: usize = 3;

/// How a cell looks in a line of text: a sign, and how many cases saw it.
fn short(cell: &Cell) -> String {
    let looked = cell.held + cell.after_retry + cell.broken;
    match cell.verdict {
        Verdict::NotRun => "·".into(),
        Verdict::NotApplicable => "—".into(),
        Verdict::NotPromised => format!("○ {looked}"),
        Verdict::Held => format!("✓ {looked}"),
        Verdict::HeldAfterRetry => format!("↻ {}/{looked}", cell.after_retry),
        Verdict::Broken => format!("✗ {}/{looked}", cell.broken),
    }
}

fn seconds(recovery: Option<Recovery>) -> String {
    recovery.map_or_else(
        || "—".into(),
        |r| {
            let s = |ms: u64| ms as f64 / 1_000.0;
            format!("{:.1} / {:.1} s", s(r.median_ms), s(r.max_ms))
        },
    )
}

fn padded(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(text.chars().count());
    format!("{text}{}", " ".repeat(missing))
}

/// For a terminal.
pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    let wide = outcome.rows.iter().map(|r| r.title.chars().count()).max().unwrap_or(0).max(5);
    let heads: Vec<&str> = outcome.columns.iter().map(|c| c.title).collect();
    let widths: Vec<usize> = heads.iter().map(|h| h.chars().count().max(6)).collect();
    let line = |first: &str, cells: &[String], last: &str| {
        let cells: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, width)| padded(cell, *width)).collect();
        format!("{}  {}  {last}", padded(first, wide), cells.join("  "))
    };
    // Writing to a String can not fail.
    let owned: Vec<String> = heads.iter().map(|h| (*h).to_owned()).collect();
    let _ = writeln!(out, "{}", line("Fault", &owned, "recovery p50 / max").trim_end());
    for row in &outcome.rows {
        let cells: Vec<String> = row.cells.iter().map(short).collect();
        let stalled = row.stall.map(|s| format!(" after {}", seconds(Some(s)))).unwrap_or_default();
        let last = format!("{}{stalled}", seconds(row.recovery));
        let _ = writeln!(out, "{}", line(row.title, &cells, &last).trim_end());
    }
    let _ = writeln!(
        out,
        "\n✓ held   ↻ held after a retry (or a person's word)   ○ not promised while it lasts, held afterwards   \
         — not applicable, nothing happened   · not run   ✗ BROKEN\nNumbers are cases."
    );
    for row in &outcome.rows {
        remarks(&mut out, row);
    }
    settings(&mut out, outcome);
    let cases: u32 = outcome.rows.iter().map(|r| r.cases).sum();
    let broken = outcome.broken.map_or_else(String::new, |b| format!(", with {b} switched off"));
    let verdict = if outcome.clean { "nothing is broken" } else { "SOMETHING IS BROKEN" };
    let _ = writeln!(
        out,
        "\n{cases} cases on {}{broken}, seed {}, {:.0} s: {verdict}.",
        outcome.place, outcome.seed, outcome.seconds
    );
    if let Some(says) = unnoticed(outcome) {
        let _ = writeln!(out, "{says}");
    }
    out
}

/// A table for a document, with what it takes to repeat the run in the line above it.
pub fn markdown(outcome: &Outcome) -> String {
    let cases: u32 = outcome.rows.iter().map(|r| r.cases).sum();
    let broken: u32 = outcome.rows.iter().flat_map(|r| &r.cells).map(|c| c.broken).sum();
    let off = outcome.broken.map_or_else(String::new, |b| format!(" --break {b}"));
    let mut out = format!(
        "`tenure drill --kind {} --store {} --seed {}{off}`, version {}: {cases} cases in {:.0} s, {broken} broken.\n\n",
        outcome.kind, outcome.place, outcome.seed, outcome.version, outcome.seconds
    );
    let heads: Vec<&str> = outcome.columns.iter().map(|c| c.title).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "| fault | {} | recovery, median / longest |", heads.join(" | "));
    let _ = writeln!(out, "|---|{}---|", "---|".repeat(heads.len()));
    for row in &outcome.rows {
        let cells: Vec<String> = row.cells.iter().map(short).collect();
        let stalled = row.stall.map(|s| format!(" after {}", seconds(Some(s)))).unwrap_or_default();
        let recovery = format!("{}{stalled}", seconds(row.recovery));
        let _ = writeln!(out, "| {} | {} | {recovery} |", row.title, cells.join(" | "));
    }
    out
}

/// What a drill proves that saw nothing broken although a protection was switched off: nothing about that protection.
fn unnoticed(outcome: &Outcome) -> Option<String> {
    let broken = outcome.broken.filter(|_| outcome.clean)?;
    let rows: Vec<&str> = outcome.rows.iter().filter(|r| r.cases > 0).map(|r| r.fault).collect();
    Some(format!(
        "NOBODY NOTICED that {broken} was switched off: none of these cases depends on it ({}). This says nothing about \
         {broken}; without --fault and --only all rows are drilled.",
        rows.join(", ")
    ))
}

fn remarks(out: &mut String, row: &RowSeen) {
    let mut lines = Vec::new();
    for cell in &row.cells {
        let mut said: Vec<(&str, Verdict, Vec<&str>)> = Vec::new();
        for Note { case, verdict, says } in &cell.notes {
            let verdict = verdict.unwrap_or(cell.verdict);
            match said.iter_mut().find(|(s, v, _)| s == says && *v == verdict) {
                Some((_, _, cases)) => cases.push(case),
                None => said.push((says, verdict, vec![case])),
            }
        }
        // The worst first.
        said.sort_by_key(|(_, verdict, _)| std::cmp::Reverse(*verdict));
        let more = said.len().saturating_sub(NOTES_MAX);
        for (says, verdict, cases) in said.into_iter().take(NOTES_MAX) {
            let verdict = verdict.words();
            lines.push(format!("  {} {verdict}: {says} [{}]", cell.column, cases.join("; ")));
        }
        if more > 0 {
            lines.push(format!("  {} and {more} more (see --json)", cell.column));
        }
    }
    lines.extend(row.failed.iter().map(|n| format!("  COULD NOT BE RUN: {}: {}", n.case, n.says)));
    lines.extend(row.left_out.iter().map(|n| format!("  left out: {}: {}", n.case, n.says)));
    if !lines.is_empty() {
        let _ = writeln!(out, "\n{}\n{}", row.title, lines.join("\n"));
    }
}

fn settings(out: &mut String, outcome: &Outcome) {
    let mut all = std::collections::BTreeMap::new();
    for row in &outcome.rows {
        for (key, value) in &row.settings {
            all.entry((key, value)).or_insert_with(Vec::new).push(row.fault);
        }
    }
    let _ = writeln!(out, "\nSettings that these rows depend on, as they were:");
    for ((key, value), rows) in all {
        let of = if rows.len() == outcome.rows.len() { "all".into() } else { rows.join(", ") };
        let _ = writeln!(out, "  {key} = {value}  [{of}]");
    }
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --line: #d5dae2; --soft: #f4f6f9; --good: #13714a; --mild: #8a5a00; --bad: #b3261e; --dim: #66707d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --paper: #14181e; --line: #333b46; --soft: #1c222a; --good: #5ccb98; --mild: #e0b050; --bad: #ff8a80; --dim: #98a2b0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { border: 1px solid var(--line); padding: .45rem .6rem; text-align: left; vertical-align: top; }
thead th { background: var(--soft); } .wide { overflow-x: auto; }
.held { color: var(--good); } .held_after_retry { color: var(--mild); } .broken { color: var(--bad); font-weight: 700; } .dim, .not_applicable, .not_run, .not_promised { color: var(--dim); }
small { display: block; color: var(--dim); font-weight: 400; } code { font-size: .9em; } .verdict { font-size: 1.1rem; }
";

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NotRun => "not_run",
        Verdict::NotApplicable => "not_applicable",
        Verdict::NotPromised => "not_promised",
        Verdict::Held => "held",
        Verdict::HeldAfterRetry => "held_after_retry",
        Verdict::Broken => "broken",
    }
}

fn cell(cell: &Cell) -> Markup {
    let looked = cell.held + cell.after_retry + cell.broken;
    html! {
        td {
            span class=(class(cell.verdict)) { (cell.verdict.words()) }
            @match cell.verdict {
                Verdict::NotRun => {},
                Verdict::Broken => small { (cell.broken) " of " (looked) " cases" },
                Verdict::HeldAfterRetry => small { (cell.after_retry) " of " (looked) " cases with a retry" },
                _ => small { (looked) " cases" },
            }
        }
    }
}

fn when(at: i64) -> String {
    // Days since 1970 to a date, by the proleptic Gregorian calendar.
    let (days, rest) = (at.div_euclid(86_400), at.rem_euclid(86_400));
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3_600, rest % 3_600 / 60)
}

/// Who saw it.
fn witnesses(kind: &str) -> &'static str {
    match kind {
        "pods" => {
            "by a cluster of the drill's own that remembers its pods, by somebody who listened to the channel, and from the \
             histories of the tasks."
        }
        _ => {
            "by a counting server that plays the outside world, and from the histories of the jobs, whose hash chains were \
             verified."
        }
    }
}

/// A page that stands on its own, to be sent to somebody.
pub fn page(outcome: &Outcome) -> String {
    let cases: u32 = outcome.rows.iter().map(|r| r.cases).sum();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Failure drill of " (outcome.kind) " · Tenure" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Failure drill of " (outcome.kind) }
                p.verdict {
                    @if outcome.clean { span.held { "Nothing is broken." } } @else { span.broken { "Something is broken." } }
                    " " (cases) " cases were played with real processes on " code { (outcome.place) } "."
                }
                @if let Some(broken) = outcome.broken {
                    p.broken { "The protection " code { (broken) } " was switched off on purpose"
                        @if outcome.clean { "." } @else { ": this page shows that the drill notices." } }
                    @if let Some(says) = unnoticed(outcome) { p.broken { (says) } }
                }
                p.dim {
                    "Tenure " (outcome.version) ", begun " (when(outcome.at)) ", " (format!("{:.0}", outcome.seconds)) " s, seed "
                    (outcome.seed) ", " (outcome.rounds) " round(s). What is shown was observed: " (witnesses(outcome.kind))
                }
                div.wide { (matrix(outcome)) }
                h2 { "What the columns mean" }
                table {
                    tbody { @for column in outcome.columns { tr { th { (column.title) } td { (column.says) } } } }
                }
                h2 { "What was said" }
                @for row in &outcome.rows { (row_remarks(row)) }
                h2 { "Settings that the rows depend on, as they were" }
                table {
                    tbody {
                        @for row in &outcome.rows {
                            tr {
                                th { (row.title) }
                                td { @for (key, value) in &row.settings { code { (key) " = " (value) } br; } }
                            }
                        }
                    }
                }
            }
        }
    };
    page.into_string()
}

fn matrix(outcome: &Outcome) -> Markup {
    html! {
        table {
            thead {
                tr { th { "Fault" } @for column in outcome.columns { th { (column.title) } } th { "Recovery" } }
            }
            tbody {
                @for row in &outcome.rows {
                    tr {
                        th { (row.title) small { (row.does) } }
                        @for c in &row.cells { (cell(c)) }
                        td {
                            (seconds(row.recovery))
                            @if let Some(r) = row.recovery { small { "median / longest of " (r.count) } }
                            @if row.stall.is_some() { small { "after " (seconds(row.stall)) " in which nothing moved" } }
                        }
                    }
                }
            }
        }
    }
}

fn row_remarks(row: &RowSeen) -> Markup {
    let notes: Vec<_> =
        row.cells.iter().flat_map(|c| c.notes.iter().map(move |n| (c, n))).collect();
    html! {
        @if !notes.is_empty() || !row.failed.is_empty() || !row.left_out.is_empty() {
            h3 { (row.title) }
            ul {
                @for (cell, note) in &notes {
                    li { span class=(class(note.verdict.unwrap_or(cell.verdict))) { (cell.column) } ": " (note.says) small { (note.case) } }
                }
                @for note in &row.failed { li.broken { "could not be run: " (note.says) small { (note.case) } } }
                @for note in &row.left_out { li.dim { "left out: " (note.says) small { (note.case) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::{
        jobs::{BOARD, column, row},
        matrix::{Finished, Seen, Told, Witnessed},
    };

    fn outcome() -> Outcome {
        let mut witnessed = Witnessed::default();
        witnessed.saw(column::STEP_RUNS, Seen::AfterRetry("a person said <yes>".into()));
        witnessed.saw(column::TOOL_ONCE, Seen::Broken("twice".into()));
        witnessed.recoveries.push(std::time::Duration::from_millis(1_250));
        let finished =
            [Finished { case: "a case".into(), row: row::AFTER_TOOL, told: Told::Saw(witnessed) }];
        let rows = BOARD.fill(&finished, |key| format!("value of {key}"));
        Outcome {
            kind: "jobs",
            clean: false,
            place: "sqlite".into(),
            version: "0",
            at: 1_763_226_166,
            seconds: 3.0,
            seed: 1,
            rounds: 1,
            broken: None,
            columns: BOARD.columns,
            rows,
        }
    }

    #[test]
    fn the_table_of_a_document_has_a_cell_for_each_column_and_says_how_to_repeat_the_run() {
        let table = markdown(&outcome());
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[0].starts_with("`tenure drill --kind jobs --store sqlite --seed 1`, version 0")
        );
        assert!(lines[0].contains("1 broken"), "{}", lines[0]);
        let bars = lines[2].matches('|').count();
        assert_eq!(bars, BOARD.columns.len() + 3);
        assert!(lines[2..].iter().all(|line| line.matches('|').count() == bars), "{table}");
        assert!(table.contains("✗ 1/1"), "{table}");
        assert!(table.contains("1.2 / 1.2 s") || table.contains("1.3 / 1.3 s"), "{table}");
    }

    #[test]
    fn the_text_has_the_cells_the_remarks_and_the_settings() {
        let text = text(&outcome());
        for part in [
            "↻ 1/1",
            "✗ 1/1",
            "a person said <yes> [a case]",
            "1.2 / 1.2 s",
            "BROKEN",
            "worker.lease_seconds = value of worker.lease_seconds",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
    }

    #[test]
    fn a_protection_whose_absence_nobody_noticed_is_named() {
        let noticed = Outcome { broken: Some("mail"), ..outcome() };
        assert!(!text(&noticed).contains("NOBODY NOTICED"));
        let unnoticed = Outcome { clean: true, ..noticed };
        let says = text(&unnoticed);
        assert!(says.contains("NOBODY NOTICED that mail was switched off"), "{says}");
        assert!(says.contains("(crash-after-tool)"), "{says}");
        let page = page(&unnoticed);
        assert!(page.contains("NOBODY NOTICED") && !page.contains("shows that the drill notices"));
    }

    #[test]
    fn the_page_escapes_what_cases_say_and_stands_on_its_own() {
        let page = page(&outcome());
        assert!(page.contains("a person said &lt;yes&gt;"));
        assert!(!page.contains("src=") && !page.contains("href="), "nothing is fetched");
        assert!(page.contains("2025-11-15 17:02 UTC"), "{page}");
    }
}
