//! `tenure verify`: one read-only pass over every stream; or one export, without a store.

use super::{Failure, judge, problems};
use crate::{cli, config::Settings, open::open_read_only};

/// Checks chains, heads against history, machine states against replay, and deadlines.
pub async fn run(
    settings: &Settings,
    options: &cli::Verify,
    json: bool,
) -> Result<String, Failure> {
    if let Some(file) = &options.file {
        return super::evidence::verify(file, options, json);
    }
    let store = open_read_only(settings, judge()).await?;
    let problems = problems(&*store).await;
    if json {
        println!("{}", serde_json::json!({ "intact": problems.is_empty(), "problems": problems }));
    } else {
        problems.iter().for_each(|p| println!("{p}"));
    }
    match problems.len() {
        0 if json => Ok(String::new()),
        0 => Ok("every stream is intact\n".to_owned()),
        n => Err(Failure::Found(format!(
            "{n} problems; do not write to this store before you know why"
        ))),
    }
}
