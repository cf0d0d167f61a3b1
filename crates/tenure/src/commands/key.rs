//! `tenure key`: API keys of the store. They are made where the store is, not over HTTP: whoever can open the
//! store needs no key.

use super::{Failure, judge};
use crate::{cli, config::Settings, open::open};
use std::{fmt::Write as _, sync::Arc};
use tenure_edge::TokioRuntime;
use tenure_engine::pipeline::Pipeline;
use tenure_server::keys::{self, KeyError, Listed, NewKey, Scope};

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
            Ok(table(&listed))
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

fn table(keys: &[Listed]) -> String {
    if keys.is_empty() {
        return "no keys; `tenure key create NAME` makes one\n".into();
    }
    let tenant = |k: &Listed| k.tenant.clone().unwrap_or_else(|| "any".into());
    let state = |k: &Listed| if k.active { "active" } else { "revoked" };
    let scopes = |k: &Listed| k.scopes.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(",");
    let head = ["ID", "NAME", "TENANT", "STATE", "SCOPES"].map(str::to_owned);
    let rows = keys
        .iter()
        .map(|k| [k.id.to_string(), k.name.clone(), tenant(k), state(k).to_owned(), scopes(k)]);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();
    let wide = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let (a, b, c, d) = (wide(0), wide(1), wide(2), wide(3));
    let mut out = String::new();
    for [id, name, tenant, state, scopes] in &rows {
        // Writing to a String can not fail.
        let _ = writeln!(out, "{id:a$}  {name:b$}  {tenant:c$}  {state:d$}  {scopes}");
    }
    out
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
    use tenure_kernel::{ids::EntityId, time::Timestamp};

    #[test]
    fn keys_stand_in_columns() {
        let key = |n, name: &str, tenant: Option<&str>, active| Listed {
            id: EntityId::fixed(1, n),
            name: name.into(),
            tenant: tenant.map(str::to_owned),
            scopes: vec![Scope::Read, Scope::Write],
            active,
            created_at: Timestamp::ZERO,
        };
        let said = table(&[key(1, "scraper", None, true), key(2, "ci", Some("acme"), false)]);
        let lines: Vec<&str> = said.lines().collect();
        assert!(
            lines[0].starts_with("ID ") && lines[0].ends_with("  NAME     TENANT  STATE    SCOPES")
        );
        assert!(lines[1].ends_with("  scraper  any     active   read,write"), "{said}");
        assert!(lines[2].ends_with("  ci       acme    revoked  read,write"), "{said}");
        assert!(table(&[]).contains("tenure key create"));
    }
}
