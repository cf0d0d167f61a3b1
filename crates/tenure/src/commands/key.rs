//! `tenure key`: API keys. A server makes them while it runs (`Source::Server`); in a store that no server has open the
//! command makes them itself: whoever can open the store needs no key.

use super::{
    Failure,
    job::{args::Server, client::Api, fields},
    judge, machines,
};
use crate::{
    cli::{KeyAction, KeyOptions},
    config::{Origin, Settings},
    local_key,
    open::open,
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tenure_edge::TokioRuntime;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::{error::StoreError, ids::EntityId};
use tenure_server::{
    audit::{Act, AuditTrail},
    console_sessions,
    keys::{self, KeyError, NewKey, Scope, Terms},
};

/// Pages of a listing that are read.
const PAGES_MAX: usize = 100;

/// Where the keys are.
enum Source {
    Server(Api),
    Store(Pipeline),
}

/// Creates, lists, rotates or revokes.
pub async fn run(settings: &Settings, options: &KeyOptions, json: bool) -> Result<String, Failure> {
    let source = source(settings, options, json).await?;
    let by = options.by.clone();
    match &options.action {
        KeyAction::Create { name, tenant, scopes, expires_in } => {
            let scopes = scopes.iter().map(|s| scope(s)).collect::<Result<Vec<_>, _>>()?;
            let new = NewKey { name: name.clone(), tenant: tenant.clone(), scopes };
            let made = source.create(new, *expires_in, by).await?;
            Ok(shown(&made, json))
        }
        KeyAction::List => {
            let listed = source.list().await?;
            Ok(match json {
                true => format!("{}\n", Value::Array(listed)),
                false => table(&listed),
            })
        }
        KeyAction::Rotate { id, overlap } => {
            Ok(shown(&source.rotate(read_id(id)?, *overlap, by).await?, json))
        }
        KeyAction::Revoke { id } => {
            source.revoke(read_id(id)?, by).await?;
            Ok("revoked\n".to_owned())
        }
    }
}

/// The server that was named, unless the command line names a store; else the store; else the server on this machine that has the
/// store open.
async fn source(settings: &Settings, options: &KeyOptions, json: bool) -> Result<Source, Failure> {
    let names_store =
        settings.iter().any(|(key, _, origin)| key.name == "store.url" && *origin == Origin::Flag);
    let by = options.by.clone();
    let api = |server: String, api_key| Api::new(&Server { server, api_key, by }, json);
    if let Some(server) = options.at.server.clone().filter(|_| !names_store) {
        return api(server, options.at.api_key.clone()).map(Source::Server);
    }
    match open(settings, judge()).await {
        Ok(opened) => {
            let rt = Arc::new(TokioRuntime::current());
            Ok(Source::Store(Pipeline::new(opened.store, opened.bell, rt, &settings.engine())))
        }
        Err(e @ StoreError::InUse { .. }) => match local_key::server_of(settings) {
            Some((server, key)) => api(server, Some(key)).map(Source::Server),
            None => Err(Failure::System(format!(
                "{e}\n        name the server that has it open with --server URL, and an administrator's key with --api-key"
            ))),
        },
        Err(e) => Err(e.into()),
    }
}

impl Source {
    async fn create(
        &self,
        new: NewKey,
        expires_in: Option<u64>,
        by: Option<String>,
    ) -> Result<Value, Failure> {
        match self {
            Source::Server(api) => {
                let scopes: Vec<_> = new.scopes.iter().map(|scope| scope.as_str()).collect();
                let body = fields([
                    ("name", Some(json!(new.name))),
                    ("tenant", new.tenant.map(Value::from)),
                    ("scopes", Some(json!(scopes))),
                    ("expires_in_seconds", expires_in.map(Value::from)),
                    ("by", by.map(Value::from)),
                ]);
                api.post(&["keys"], &body).await
            }
            Source::Store(pipeline) => {
                let scopes: Vec<_> = new.scopes.iter().map(|scope| scope.as_str()).collect();
                let details =
                    json!({ "name": new.name, "scopes": scopes, "expires_in_seconds": expires_in });
                let act = act("keys.create", by.as_deref()).target(&new.name).details(details);
                let act = act.tenant(new.tenant.clone());
                let expires_in = expires_in.map(Duration::from_secs);
                let terms = Terms { expires_in, not_after: None, by: Some(act.by.clone()) };
                let made = keys::create_with(pipeline, new, terms);
                let made = trail(pipeline).carry_out(act, made).await.map_err(failure)?;
                Ok(json!({ "id": made.id, "secret": made.secret, "expires_at": made.expires_at }))
            }
        }
    }

    async fn list(&self) -> Result<Vec<Value>, Failure> {
        match self {
            Source::Server(api) => {
                let (mut found, mut before) = (Vec::new(), None::<String>);
                for _ in 0..PAGES_MAX {
                    let query = before.take().map(|before| ("before", before));
                    let query: Vec<_> =
                        query.into_iter().chain([("limit", "200".into())]).collect();
                    let mut answer = api.get(&["keys"], &query).await?;
                    if let Value::Array(keys) = answer["keys"].take() {
                        found.extend(keys);
                    }
                    before = answer["next"].as_str().map(str::to_owned);
                    if before.is_none() {
                        break;
                    }
                }
                // A page has the newest first, and the table the oldest.
                found.reverse();
                Ok(found)
            }
            Source::Store(pipeline) => {
                let listed = keys::list(pipeline).await.map_err(failure)?;
                Ok(listed.iter().map(|key| json!(key)).collect())
            }
        }
    }

    async fn rotate(
        &self,
        id: EntityId,
        overlap: u64,
        by: Option<String>,
    ) -> Result<Value, Failure> {
        match self {
            Source::Server(api) => {
                let body = fields([
                    ("overlap_seconds", Some(json!(overlap))),
                    ("by", by.map(Value::from)),
                ]);
                api.post(&["keys", &id.to_string(), "rotate"], &body).await
            }
            Source::Store(pipeline) => {
                let act = act("keys.rotate", by.as_deref()).target(id);
                let act = act.details(json!({ "overlap_seconds": overlap }));
                let (overlap, by) = (Duration::from_secs(overlap), act.by.clone());
                let made = keys::rotate(pipeline, id, overlap, &by);
                let made = trail(pipeline).carry_out(act, made).await.map_err(failure)?;
                Ok(json!({ "id": made.id, "secret": made.secret, "expires_at": made.expires_at }))
            }
        }
    }

    async fn revoke(&self, id: EntityId, by: Option<String>) -> Result<(), Failure> {
        match self {
            Source::Server(api) => {
                let body = fields([("by", by.map(Value::from))]);
                api.post(&["keys", &id.to_string(), "revoke"], &body).await.map(drop)
            }
            Source::Store(pipeline) => {
                let act = act("keys.revoke", by.as_deref()).target(id);
                let by = Some(act.by.clone());
                let trail = trail(pipeline);
                let revoked = trail.carry_out(act, async {
                    keys::revoke_by(pipeline, id, by).await?;
                    let why = "its key was revoked";
                    Ok(console_sessions::end_all_of(pipeline, id, why).await.map(drop)?)
                });
                revoked.await.map_err(failure)
            }
        }
    }
}

/// What the command line does in a store itself.
fn act(name: &str, by: Option<&str>) -> Act {
    Act::new(name, format!("{} (command line, in the store)", by.unwrap_or("somebody")))
}

fn trail(pipeline: &Pipeline) -> AuditTrail {
    AuditTrail::new(pipeline.clone(), &machines())
}

fn read_id(text: &str) -> Result<EntityId, Failure> {
    text.parse().map_err(|_| Failure::System(format!("{text:?} is not the id of a key")))
}

fn shown(made: &Value, json: bool) -> String {
    if json {
        return format!("{made}\n");
    }
    let text = |member: &str| made[member].as_str().unwrap_or_default().to_owned();
    let ends = made["expires_at"].as_i64().map(tenure_kernel::time::Timestamp::from_micros);
    let ends = ends.map(|end| format!(" It ends at {end}.")).unwrap_or_default();
    format!(
        "{}\nShown once: only its hash is kept. Its id is {}.{ends}\n",
        text("secret"),
        text("id")
    )
}

fn table(keys: &[Value]) -> String {
    if keys.is_empty() {
        return "no keys; `tenure key create NAME` makes one\n".into();
    }
    let text =
        |key: &Value, member: &str, none: &str| key[member].as_str().unwrap_or(none).to_owned();
    let moment = |key: &Value, member: &str| {
        let at = key[member].as_i64().map(tenure_kernel::time::Timestamp::from_micros);
        at.map_or_else(|| "never".to_owned(), crate::times::second)
    };
    let scopes = |key: &Value| {
        let scopes = key["scopes"].as_array().map_or(&[][..], Vec::as_slice);
        scopes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")
    };
    let head = ["ID", "NAME", "TENANT", "STATE", "USED", "ENDS", "SCOPES"];
    let row = |key: &Value| {
        vec![
            text(key, "id", ""),
            text(key, "name", ""),
            text(key, "tenant", "any"),
            text(key, "status", ""),
            moment(key, "last_used_at"),
            moment(key, "expires_at"),
            scopes(key),
        ]
    };
    super::table::table(&head, keys.iter().map(row))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_in_columns() {
        let key = |name: &str, tenant: Option<&str>, status: &str, used: Option<i64>| {
            json!({
                "id": EntityId::fixed(1, 1), "name": name, "tenant": tenant, "status": status,
                "scopes": ["read", "write"], "last_used_at": used, "expires_at": null,
            })
        };
        let said = table(&[
            key("scraper", None, "active", Some(1_709_210_096_000_007)),
            key("ci", Some("acme"), "revoked", None),
        ]);
        let lines: Vec<&str> = said.lines().collect();
        let ends = "  NAME     TENANT  STATE    USED                  ENDS   SCOPES";
        assert!(lines[0].starts_with("ID ") && lines[0].ends_with(ends), "{said}");
        let ends = "  scraper  any     active   2024-02-29 12:34:56Z  never  read,write";
        assert!(lines[1].ends_with(ends), "{said}");
        let ends = "  ci       acme    revoked  never                 never  read,write";
        assert!(lines[2].ends_with(ends), "{said}");
        assert!(table(&[]).contains("tenure key create"));
    }
}
