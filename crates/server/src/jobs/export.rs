//! A job as one file, signed with this server's key if it has one.

use super::find::{self, who};
use crate::{
    App, Caller, Problem,
    extract::{Named, Params},
    problem::{ApiCode, ProblemDocument},
};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tenure_jobs::export::{Ask, FILE_BYTES_MAX, GatherError, gather};
use tenure_kernel::ids::EntityId;
use utoipa::IntoParams;

/// What is wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// `true`: with all descendants; else their ids and chain values.
    children: Option<bool>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Everything of a job in one file that can be checked without a store; see docs/evidence.md.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/export", tag = "jobs",
    params(("id" = String, Path, description = "The job."), Wanted),
    responses(
        (status = 200, description = "Lines of canonical JSON; `tenure verify FILE` checks them.", body = String, content_type = "application/x-ndjson"),
        (status = 404, body = ProblemDocument),
        (status = 413, description = "More than one file holds; names the limit.", body = ProblemDocument),
    )
)]
pub(super) async fn export(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Params(wanted): Params<Wanted>,
) -> Result<Response, Problem> {
    find::readable(&app, &caller, id).await?;
    let desk = super::desk(&app)?;
    let ask = Ask {
        with_children: wanted.children == Some(true),
        by: who(&caller, wanted.by),
        program: format!("tenure {}", app.options().about.version),
        signed_by: desk.signing_key().map(|key| key.public().id()),
        ..Ask::default()
    };
    let gathered = gather(app.pipeline().store(), id, ask, desk.effects()).await?;
    let export = gathered.ok_or_else(|| find::absent(id))?;
    let file = export.to_bytes(desk.signing_key());
    // Nobody could check it.
    if file.len() as u64 > FILE_BYTES_MAX {
        return Err(GatherError::TooLarge(FILE_BYTES_MAX).into());
    }
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"job-{id}.tenure\"")),
    ];
    Ok((headers, file).into_response())
}

impl From<GatherError> for Problem {
    fn from(e: GatherError) -> Self {
        match e {
            GatherError::Load(e) => e.into(),
            GatherError::TooLarge(limit) => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, ApiCode::PayloadTooLarge, e.to_string())
                    .field("children")
                    .with("limit", limit)
                    .with("setting", "EXPORT_BYTES_MAX")
                    .fix("this limit is fixed: export the children one by one")
            }
        }
    }
}
