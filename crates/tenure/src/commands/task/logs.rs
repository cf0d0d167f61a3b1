//! `tenure task logs`.

use super::{Cli, Logs};
use crate::commands::{Failure, job::text::read};
use std::{io::Write as _, time::Duration};
use tenure_edge::TokioRuntime;
use tenure_kernel::runtime::Runtime as _;
use tenure_pods::view::LogPage;

/// Between two looks for more.
const PAUSE: Duration = Duration::from_millis(500);

impl Cli {
    pub(super) async fn logs(&self, o: &Logs) -> Result<String, Failure> {
        let id = self.task_id(&o.id).await?;
        let (mut from, mut attempt) = (1, o.attempt);
        loop {
            let mut query = vec![("from", from.to_string())];
            query.extend(attempt.map(|a| ("attempt", a.to_string())));
            let answer = self.api.get(&["tasks", &id, "logs"], &query).await?;
            let page: LogPage = read(answer.clone())?;
            let idle = page.text.is_empty() && page.tail.is_none() && !page.cut;
            // The log that was begun is followed, also when another attempt begins.
            (from, attempt) = (page.next, Some(page.attempt));
            let mut out = std::io::stdout().lock();
            match self.json {
                true if idle && !page.over => {}
                true => writeln!(out, "{answer}")?,
                false => {
                    out.write_all(page.text.as_bytes())?;
                    if page.cut {
                        writeln!(out, "… more was written than is kept …")?;
                    }
                    if let Some(tail) = &page.tail {
                        writeln!(out, "… the last lines:")?;
                        out.write_all(tail.as_bytes())?;
                    }
                }
            }
            out.flush()?;
            drop(out);
            if !page.more && (page.over || !o.follow) {
                return Ok(String::new());
            }
            if !page.more {
                TokioRuntime::current().sleep(PAUSE).await;
            }
        }
    }
}
