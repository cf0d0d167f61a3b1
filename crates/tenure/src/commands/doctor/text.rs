//! The report for people: what is wrong first, each with what to do; then what is fine, one line each.

use super::{
    diagnose::{Diagnosis, Verdict},
    findings::Findings,
    plural,
};
use std::fmt::Write as _;

/// Lines are folded at this width.
const WIDTH: usize = 100;
const INDENT: &str = "                     ";

/// The report. `diagnoses` are in the order in which they are told.
pub(super) fn report(findings: &Findings, diagnoses: &[Diagnosis]) -> String {
    let mut out = format!("{} at {}\n\n", findings.store, findings.health.now);
    for d in diagnoses {
        let verdict = match d.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Wrong => "WRONG",
        };
        // Writing to a string does not fail.
        let _ = writeln!(out, "{verdict:<8} {:<11} {}", d.check, folded(&d.says));
        for step in &d.remedy {
            let _ = writeln!(out, "{INDENT}- {}", folded(step).replace('\n', "\n  "));
        }
        if let (true, Some(page)) = (d.verdict != Verdict::Ok, d.page) {
            let _ = writeln!(out, "{INDENT}see docs/operations.md#{page}");
        }
    }
    let count = |v: Verdict| diagnoses.iter().filter(|d| d.verdict == v).count();
    let (wrong, warnings) = (count(Verdict::Wrong), count(Verdict::Warning));
    let _ = writeln!(
        out,
        "\n{wrong} wrong, {}, {} fine",
        plural(warnings, "warning"),
        count(Verdict::Ok)
    );
    out
}

/// Breaks a text at spaces and lets what follows stand under its beginning.
fn folded(text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH - INDENT.len() {
            out.push('\n');
            out.push_str(INDENT);
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_folded_and_long_words_are_not_cut() {
        let text = format!("{} {}", "word ".repeat(30).trim(), "x".repeat(200));
        let folded = folded(&text);
        assert!(folded.lines().count() >= 3, "{folded}");
        assert!(folded.contains(&"x".repeat(200)));
        assert_eq!(folded.split_whitespace().count(), 31);
    }
}
