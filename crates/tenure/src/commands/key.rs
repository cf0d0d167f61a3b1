//! `tenure key`: API keys of the store. They are made where the store is, not over HTTP: whoever can open the
//! store needs no key.

use super::{Failure, judge};
use crate::{cli, config::Settings, open::open};
use std::{fmt::Write as _, sync::Arc};
use tenure_edge::TokioRuntime;
use tenure_engine::pipeline::Pipeline;
use tenure_server::keys::{self, KeyError, NewKey, Scope};

/// Creates, lists or revokes.
pub async fn run(
    settings: &Settings,
    action: &cli::KeyAction,
    json: bool,
) -> Result<String, Failure> {
    let opened = open(settings, judge()).await?;
    let rt = Arc::new(TokioRuntime::current());
    let pipeline = Pipeline::new(opened.store, opened.bell, rt, &settings.engine());
    match action {
        cli::KeyAction::Create { name, tenant, scopes } => {
            let scopes = scopes.iter().map(|s| scope(s)).collect::<Result<Vec<_>, _>>()?;
            let wish = NewKey { name: name.clone(), tenant: tenant.clone(), scopes };
            let made = keys::create(&pipeline, wish).await.map_err(failure)?;
            Ok(match json {
                true => {
                    format!("{}\n", serde_json::json!({ "id": made.id, "secret": made.secret }))
                }
                false => format!(
                    "{}\nShown once: only its hash is kept. Its id is {}.\n",
                    made.secret, made.id
                ),
            })
        }
        cli::KeyAction::List => {
            let listed = keys::list(&pipeline).await.map_err(failure)?;
            if json {
                return Ok(format!("{}\n", serde_json::json!(listed)));
            }
            let mut out = String::new();
            for key in listed {
                // Writing to a String can not fail.
                let _ = writeln!(out, "{key:?}");
            }
            Ok(if out.is_empty() {
                "no keys; `tenure key create NAME` makes one\n".into()
            } else {
                out
            })
        }
        cli::KeyAction::Revoke { id } => {
            let id = id
                .parse()
                .map_err(|_| Failure::System(format!("{id:?} is not the id of a key")))?;
            keys::revoke(&pipeline, id).await.map_err(failure)?;
            Ok("revoked\n".to_owned())
        }
    }
}

fn scope(word: &str) -> Result<Scope, Failure> {
    match word {
        "read" => Ok(Scope::Read),
        "write" => Ok(Scope::Write),
        "worker" => Ok(Scope::Worker),
        "collector" => Ok(Scope::Collector),
        "admin" => Ok(Scope::Admin),
        other => Err(Failure::System(format!(
            "{other:?} is none of read, write, worker, collector, admin"
        ))),
    }
}

fn failure(e: KeyError) -> Failure {
    Failure::System(e.to_string())
}
