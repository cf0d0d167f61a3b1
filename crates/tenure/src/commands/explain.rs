//! `tenure explain`: the page about an error code, from the program itself.

use super::Failure;
use clap::Args;
use tenure_jobs::nearest::nearest;

/// Options of `explain`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The code of an error, such as disk_full; all codes without it
    pub code: Option<String>,
}

/// The page, or all codes.
pub fn run(options: &Options, json: bool) -> Result<String, Failure> {
    let codes = tenure_server::error_codes();
    let Some(code) = options.code.as_deref() else {
        return Ok(match json {
            true => format!("{}\n", serde_json::json!(codes)),
            false => codes.iter().map(|code| format!("{code}\n")).collect(),
        });
    };
    let page = tenure_server::error_page(code).ok_or_else(|| {
        let near = nearest(code, codes.iter().copied());
        let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
        Failure::System(format!(
            "there is no error code {code:?}\n        {near}`tenure explain` lists all"
        ))
    })?;
    Ok(match json {
        true => format!("{}\n", serde_json::json!({ "code": code, "page": page })),
        false => page,
    })
}
