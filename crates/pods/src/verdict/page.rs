//! The page about the table, generated from it.

use super::{
    policy::Policy,
    say::meaning,
    table::{Place, Row, TABLE, TRANSIENT},
    words::Cause,
};
use std::fmt::Write as _;

/// `docs/pods/reasons.md`.
pub fn page() -> String {
    let mut out = String::from(HEAD);
    let parts = [
        (Place::Waiting, "Waiting containers (`state.waiting.reason`)"),
        (Place::Terminated, "Ended containers (`state.terminated.reason`)"),
        (Place::Status, "The pod's own word (`status.reason`)"),
        (Place::Condition, "Condition `DisruptionTarget`, while it is `True`"),
        (Place::Rule, "Rules that no single word gives"),
    ];
    for (place, title) in parts {
        // Writing to a String can not fail, here and below.
        let _ = write!(out, "\n## {title}\n\n");
        out.push_str(
            "| rule | cause | class | retryable | waited for | |\n|---|---|---|---|---|---|\n",
        );
        for row in TABLE.iter().filter(|r| r.place == place) {
            out.push_str(&line(row));
        }
    }
    out.push_str("\n## Causes\n\n| cause | class | retryable | terminated_reason | it means that |\n|---|---|---|---|---|\n");
    for cause in Cause::ALL {
        let gone = cause.terminated_reason().map(|t| format!("{t:?}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} |",
            cause.name(),
            cause.class().name(),
            yes(cause.retryable()),
            snake(&gone),
            meaning(cause)
        );
    }
    out.push_str("\n## Texts that make a failed pull transient\n\nIn any case of letters; after `=` a word that stands alone, so that tags, ports and digests do not count.\n\n");
    let texts: Vec<String> = TRANSIENT.iter().map(|t| format!("`{t}`")).collect();
    let _ = writeln!(out, "{}", texts.join(", "));
    out
}

fn line(row: &Row) -> String {
    let defaults = Policy::default();
    let waited = row.grace.key().map_or("at once".to_owned(), |key| {
        format!("`{key}` ({} s)", defaults.grace(row).as_secs())
    });
    let waited = if row.cause.is_none() { String::new() } else { waited };
    let cause = row.cause.map_or("–".to_owned(), |c| format!("`{}`", c.name()));
    let class = row.class().map_or("", |c| c.name());
    let retryable = if row.cause.is_some() { yes(row.retryable()) } else { "" };
    let note = row.note;
    format!("| `{}` | {cause} | {class} | {retryable} | {waited} | {note} |\n", row.id)
}

fn yes(it_is: bool) -> &'static str {
    if it_is { "yes" } else { "no" }
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

const HEAD: &str = "# The reason table

Generated from `crates/pods/src/verdict/table.rs`; `TENURE_BLESS=1 cargo test -p tenure-pods --test it reasons` writes it.

Rows are looked at from the top, and the first that fits counts. Rows of `pods.reasons` are looked at before all of them; see
[explain.md](explain.md). A name with a `:` is the same word with a certain text. `tenure task explain -f pod.yaml` says which row
gave the answer for a pod.

The order in which a pod is heard: a cancel marker; the end of the main container (exit code 0 and OOM are proof, any other code
is proof only where nobody was ending the pod by then); `status.reason`; `DisruptionTarget`; init containers; silence; the main
container runs; it waits. A final answer stays for this pod; only details that were not known are added later.
";
