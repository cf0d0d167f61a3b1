//! `tenure task logs`.

use super::{Cli, Logs};
use crate::{
    commands::{Failure, job::text::read},
    terminal,
};
use std::time::Duration;
use tenure_edge::TokioRuntime;
use tenure_kernel::runtime::Runtime as _;
use tenure_pods::view::LogPage;

/// Between two looks for more.
const PAUSE: Duration = Duration::from_millis(500);

impl Cli {
    pub(super) async fn logs(&self, o: &Logs) -> Result<String, Failure> {
        let id = self.task_id(&o.id).await?;
        let (mut from, mut attempt, mut told) = (1, o.attempt, None);
        loop {
            let mut query = vec![("from", from.to_string())];
            query.extend(attempt.map(|a| ("attempt", a.to_string())));
            let answer = self.api.get(&["tasks", &id, "logs"], &query).await?;
            let page: LogPage = read(answer.clone())?;
            // An empty answer is no empty log while the log cannot be read.
            let unread = page.trouble.as_ref().map(|why| {
                let n = page.attempt;
                format!("the log of attempt {n} cannot be read: {why}; `kubectl logs` may have it")
            });
            let idle = page.text.is_empty() && page.tail.is_none() && !page.cut;
            let idle = idle && unread == told;
            // The log that was begun is followed, also when another attempt begins.
            (from, attempt) = (page.next, Some(page.attempt));
            match self.json {
                true if idle && !page.over => {}
                true => terminal::line(&answer),
                false => {
                    terminal::print_raw(page.text.as_bytes())?;
                    if page.cut {
                        terminal::line(&"… more was written than is kept …");
                    }
                    if let Some(tail) = &page.tail {
                        terminal::line(&"… the last lines:");
                        terminal::print_raw(tail.as_bytes())?;
                    }
                }
            }
            if !page.more && (page.over || !o.follow) {
                return unread.map_or(Ok(String::new()), |why| Err(Failure::System(why)));
            }
            if unread != told {
                if let Some(why) = &unread {
                    terminal::error_line(why);
                }
                told = unread;
            }
            if !page.more {
                TokioRuntime::current().sleep(PAUSE).await;
            }
        }
    }
}
