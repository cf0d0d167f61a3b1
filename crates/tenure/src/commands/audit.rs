//! `tenure audit`: administrative acts as JSON lines, from a server or from a store.

use super::{
    Failure,
    job::{args::Server, client::Api, text::read},
    judge,
};
use crate::{cli::ServerOrStore, config::Settings, open::open_read_only};
use clap::Args;
use std::fmt::Write as _;
use tenure_jobs::shared::schedule::calendar;
use tenure_server::audit::{AuditFilter, AuditPage, page};

/// Acts that are read at once.
const PAGE: usize = 200;

/// Options of `audit`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where the trail is.
    #[command(flatten)]
    pub at: ServerOrStore,
    /// Only acts whose name begins so, such as keys. or jobs.cancel
    #[arg(long, value_name = "NAME")]
    pub act: Option<String>,
    /// Only of those whose name contains this, or who showed the key of this id
    #[arg(long, value_name = "NAME")]
    pub who: Option<String>,
    /// Only on this: the id of a job or a key, the name of a limit
    #[arg(long, value_name = "ID")]
    pub target: Option<String>,
    /// Only of this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only from this time on, as 2026-03-01T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// How many at most
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub limit: u32,
}

/// Prints them. Its lines are JSON with and without `--json`.
pub async fn run(settings: &Settings, options: &Options, json: bool) -> Result<String, Failure> {
    let source = match &options.at.server {
        Some(server) => {
            let (server, api_key) = (server.clone(), options.at.api_key.clone());
            Source::Server(Api::new(&Server { server, api_key, by: None }, json)?)
        }
        None => Source::Store(open_read_only(settings, judge()).await?, filter(options)?),
    };
    let (mut lines, mut left) = (String::new(), options.limit as usize);
    let mut before = None;
    loop {
        let page = source.page(options, before.take(), left.min(PAGE)).await?;
        for act in page.acts.iter().take(left) {
            let line = serde_json::to_string(act).map_err(|e| Failure::System(e.to_string()))?;
            // Writing to a String cannot fail.
            let _ = writeln!(lines, "{line}");
        }
        left = left.saturating_sub(page.acts.len());
        before = page.next;
        if left == 0 || before.is_none() {
            return Ok(lines);
        }
    }
}

enum Source {
    Server(Api),
    Store(std::sync::Arc<dyn tenure_kernel::store::Store>, AuditFilter),
}

impl Source {
    async fn page(
        &self,
        options: &Options,
        before: Option<String>,
        limit: usize,
    ) -> Result<AuditPage, Failure> {
        match self {
            Source::Store(store, filter) => page(store, filter, before.as_deref(), limit)
                .await
                .map_err(|problem| Failure::System(problem.detail().to_owned())),
            Source::Server(api) => {
                let given = [
                    ("act", &options.act),
                    ("by", &options.who),
                    ("target", &options.target),
                    ("tenant", &options.tenant),
                    ("since", &options.since),
                    ("until", &options.until),
                    ("before", &before),
                ];
                let given = given.into_iter().filter_map(|(name, v)| Some((name, v.clone()?)));
                let query: Vec<_> = given.chain([("limit", limit.to_string())]).collect();
                read(api.get(&["audit"], &query).await?)
            }
        }
    }
}

fn filter(options: &Options) -> Result<AuditFilter, Failure> {
    let moment = |name: &'static str, text: &Option<String>| {
        let read = |text: &String| calendar::moment(name, text);
        let bad = |e: calendar::BadCalendar| Failure::System(e.to_string());
        text.as_ref().map(read).transpose().map_err(bad)
    };
    Ok(AuditFilter {
        tenant: options.tenant.clone(),
        act: options.act.clone(),
        by: options.who.clone(),
        target: options.target.clone(),
        since: moment("since", &options.since)?,
        until: moment("until", &options.until)?,
    })
}
