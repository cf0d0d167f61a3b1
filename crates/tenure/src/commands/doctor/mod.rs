//! `tenure doctor`: looks at a live deployment in one read-only pass, and says in words what is wrong and what to do.
//!
//! | room | what it does |
//! |---|---|
//! | `findings` | what was looked at: plain data, no verdicts |
//! | `gather` | fills it, from a store that was opened for reading, and from a server where one is named |
//! | `chains` | the streams that are checked: a sample, or all |
//! | `places` | where directories lie: what keeps them over a restart |
//! | `server` | what only a running server knows, from its `/metrics` |
//! | `diagnose` | pure: findings in, diagnoses out; the thresholds |
//! | `alive`, `kept`, `people`, `settings`, `security` | one function for each promise that is looked at |
//! | `text` | for a person at three in the morning: the worst first |
//!
//! It writes nothing: no session, no pulse, no key. What it reads is bounded, whatever the history, unless `--all`.

mod alive;
mod chains;
mod diagnose;
mod findings;
mod gather;
mod kept;
mod people;
mod places;
mod security;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod text;

pub use diagnose::{Diagnosis, Verdict, diagnose};
pub use findings::Findings;

use super::{Failure, table::plural};
use crate::{cli::Doctor, config::Settings, terminal};
use serde_json::json;

/// Looks, says what it found, and fails if something is wrong.
pub async fn run(settings: &Settings, options: &Doctor, json: bool) -> Result<String, Failure> {
    let findings = gather::gather(settings, options).await?;
    let mut diagnoses = diagnose(&findings);
    // A stable sort: within a verdict the order of the checks stays.
    diagnoses.sort_by_key(|d| std::cmp::Reverse(d.verdict));
    let count = |v: Verdict| diagnoses.iter().filter(|d| d.verdict == v).count();
    let (wrong, warnings) = (count(Verdict::Wrong), count(Verdict::Warning));
    if json {
        let report = json!({
            "store": findings.store,
            "at": findings.health.now.to_string(),
            "wrong": wrong,
            "warnings": warnings,
            "diagnoses": diagnoses,
        });
        terminal::line(&report);
    } else {
        terminal::print(&text::report(&findings, &diagnoses));
    }
    match (wrong, warnings) {
        (0, 0) => Ok(String::new()),
        (0, _) if !options.strict => Ok(String::new()),
        (0, n) => {
            Err(Failure::Found(format!("{}, and --strict counts them", plural(n, "warning"))))
        }
        (n, _) => Err(Failure::Found(format!("{} wrong", plural(n, "thing")))),
    }
}

/// `1 thing waits`, `2 things wait`.
fn waits(n: u64, what: &str) -> String {
    format!("{} wait{}", plural(n, what), if n == 1 { "s" } else { "" })
}
