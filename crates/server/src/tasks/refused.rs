//! What the refusals of the desk are over HTTP. 404 for what is not there, 409 for what does not fit where the task
//! stands, 413 for what is too large, 422 for what makes no sense.

use crate::{Problem, problem::ApiCode};
use axum::http::StatusCode;
use tenure_pods::desk::DeskError;

fn conflict(code: ApiCode, e: &impl ToString) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, e.to_string())
}

impl From<DeskError> for Problem {
    fn from(e: DeskError) -> Self {
        let e = match e {
            DeskError::Store(e) => return e.into(),
            other => other,
        };
        match &e {
            DeskError::NoTask(id) => Problem::not_found(format!("task {id}")).field("id"),
            DeskError::TaskOver { task, status } => conflict(ApiCode::TaskOver, &e)
                .field("id")
                .with("task", task.to_string())
                .with("task_status", status.clone())
                .fix("final is final; POST /v1/tasks/{id}/replay orders a failed or cancelled one once more"),
            DeskError::NotNow { task, status, fix, .. } => conflict(ApiCode::NotNow, &e)
                .field("id")
                .with("task", task.to_string())
                .with("task_status", status.clone())
                .fix(*fix),
            DeskError::OtherInput(task) => conflict(ApiCode::OtherInput, &e)
                .field("key")
                .with("task", task.to_string())
                .fix("use another key, or another task_id, for something else"),
            DeskError::Bad { field, fix, .. } => {
                Problem::bad_field(field.clone(), e.to_string()).fix(*fix)
            }
            DeskError::NotAllowed { field, fix, .. } => {
                Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, e.to_string())
                    .field(field.clone())
                    .fix(*fix)
            }
            DeskError::TooLarge { field, name, found, max, .. } => {
                let code = ApiCode::PayloadTooLarge;
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, code, e.to_string())
                    .field(*field)
                    .with("limit", *max)
                    .with("found", *found)
                    .with("setting", *name)
                    .fix("this limit is fixed: put large content into a ConfigMap or an image, and name it")
            }
            DeskError::Store(e) => {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, e.code(), e.to_string())
            }
        }
    }
}
