//! `tenure job bulk`: shows what would be done to many jobs, asks, and has it done.

use super::{Cli, args, fields, input, text};
use crate::{
    commands::{Failure, table::plural},
    terminal,
};
use serde_json::{Value, json};
use std::{fmt::Write as _, io::IsTerminal as _};
use tenure_edge::SystemClock;
use tenure_jobs::view::JobView;
use tenure_kernel::runtime::Clock as _;

impl Cli {
    pub(super) async fn bulk(&self, o: &args::Bulk) -> Result<String, Failure> {
        let ago = |seconds: Option<u64>| {
            let now = SystemClock.now();
            let at = |s: u64| now - std::time::Duration::from_secs(s);
            seconds.map(|s| json!(at(s).as_micros()))
        };
        let text = |t: &Option<String>| t.as_ref().map(|t| json!(t));
        let filter = fields([
            ("flow", text(&o.flow)),
            ("status", text(&o.status)),
            ("tenant", text(&o.tenant)),
            ("attention", o.attention.then_some(json!(true))),
            ("reason", text(&o.reason)),
            ("created_before", ago(o.older_than)),
            ("created_after", ago(o.newer_than)),
        ]);
        let body = fields([
            ("action", Some(json!(o.action))),
            ("filter", Some(filter)),
            ("preview", Some(json!(true))),
            ("why", text(&o.why)),
            ("key", text(&o.key)),
            ("payload", o.payload.as_deref().map(|p| input(Some(p))).transpose()?),
            ("early", o.early.then_some(json!(true))),
            ("step", text(&o.step)),
            ("verdict", text(&o.verdict)),
            ("result", o.result.as_deref().map(|p| input(Some(p))).transpose()?),
            ("note", text(&o.note)),
            ("version", o.flow_version.map(Value::from)),
        ]);
        let preview = self.api.post(&["jobs", "bulk"], &body).await?;
        if o.preview {
            return Ok(self.say(&preview, || shown(&preview)));
        }
        if preview["count"] == 0 {
            return Ok(self.say(&preview, || format!("{}Nothing to do.\n", shown(&preview))));
        }
        if !o.yes && !agreed(&preview)? {
            return Err(Failure::Found("nothing was done".to_owned()));
        }
        let order = fields([("token", Some(preview["token"].clone())), ("by", text(&self.by))]);
        let made = self.api.post(&["jobs", "bulk"], &order).await?;
        self.made(made, o.wait).await
    }
}

/// Asks whoever sits there.
fn agreed(preview: &Value) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        terminal::print_error(&shown(preview));
        return Err(Failure::System(
            "nobody can be asked here: give --yes to do it, or --preview to look only".to_owned(),
        ));
    }
    terminal::print_error(&format_args!("{}Do it? Type yes: ", shown(preview)));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

/// A preview in words.
fn shown(preview: &Value) -> String {
    let mut out = String::new();
    let (count, action) = (&preview["count"], preview["action"].as_str().unwrap_or(""));
    let least = if preview["exact"] == true { "" } else { "at least " };
    // Writing to a String can not fail.
    let _ = writeln!(
        out,
        "{action}: {least}{} of tenant {}",
        plural(count.as_u64().unwrap_or(0), "job"),
        preview["tenant"].as_str().unwrap_or("")
    );
    let jobs = preview["first"].as_array().into_iter().flatten();
    for job in jobs.filter_map(|j| text::read::<JobView>(j.clone()).ok()) {
        let _ = writeln!(out, "  {}  {}@{}  {}", job.id, job.flow, job.version, job.status);
    }
    if count.as_u64().unwrap_or(0) > preview["first"].as_array().map_or(0, Vec::len) as u64 {
        let _ = writeln!(out, "  …");
    }
    for (why, n) in preview["skipped"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "  skipped: {n} ({why})");
    }
    out
}
