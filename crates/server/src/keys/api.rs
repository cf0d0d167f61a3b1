//! Keys over HTTP, for administrators. An administrator with a tenant has that tenant's keys, and no others.
//!
//! Nobody makes a key with more rights than its own: not for another tenant, and not for longer than it lives itself. The scope
//! `admin` allows everything, so it may give every scope.

use super::{Created, KIND, Key, KeyError, Listed, NewKey, Scope, State as KeyState, Terms, state};
use crate::{
    ApiCode, App, Caller, Problem,
    audit::Act,
    console_sessions,
    extract::{Named, Params},
    jobs::{
        body::{Json, Maybe, required},
        find::who,
        owned::listed as whose,
    },
    paging,
    problem::ProblemDocument,
};
use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::Duration;
use tenure_kernel::{head::Head, ids::EntityId, store::HeadFilter, time::Timestamp};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(show))
        .routes(routes!(rotate))
        .routes(routes!(revoke))
        .routes(routes!(sign_out))
}

impl From<KeyError> for Problem {
    fn from(e: KeyError) -> Self {
        let detail = e.to_string();
        match e {
            KeyError::Length(_) => {
                Problem::bad_field("name", detail).fix("give a name of 1 to 128 bytes")
            }
            KeyError::Tenant(_) => {
                Problem::bad_field("tenant", detail).fix("give the name of a tenant")
            }
            KeyError::NoScope | KeyError::Scope(_) => Problem::bad_field("scopes", detail)
                .fix("give a list of read, write, worker, collector, admin"),
            KeyError::Time { field, .. } => {
                let field = if field == "overlap_seconds" { field } else { "expires_in_seconds" };
                Problem::bad_field(field, detail).fix("give a number within these bounds")
            }
            KeyError::Unknown(id) => absent(id),
            KeyError::Ended(..) => Problem::new(StatusCode::CONFLICT, ApiCode::NotNow, detail)
                .field("id")
                .fix("POST /v1/keys makes a new one"),
            KeyError::Store(e) => e.into(),
        }
    }
}

fn absent(id: EntityId) -> Problem {
    Problem::not_found(format!("key {id}")).field("id")
}

/// A key to be made.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = NewKey)]
struct Wanted {
    /// What it is for, 1 to 128 bytes.
    #[schema(required)]
    name: Option<String>,
    /// The tenant that it reaches. Without it, the caller's; a caller without a tenant makes a key for all tenants.
    tenant: Option<String>,
    /// `read`, `write`, `worker`, `collector`, `admin`.
    #[schema(required)]
    scopes: Option<Vec<String>>,
    /// Seconds after which it ends. Without this member it ends with the key that makes it, or never.
    #[schema(minimum = 1, maximum = 316224000)]
    expires_in_seconds: Option<u64>,
    /// Who asks, for people.
    by: Option<String>,
}

/// How the secret of a key is replaced.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
struct Rotation {
    /// Seconds for which the old secret stays valid, 0 to 2592000; 0 by default.
    #[schema(maximum = 2592000)]
    overlap_seconds: Option<u64>,
    /// Who asks, for people.
    by: Option<String>,
}

/// Who asks.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = KeyAsk)]
struct Ask {
    /// Who asks, for people.
    by: Option<String>,
}

/// A key and its secret, which is shown this once.
#[derive(Serialize, ToSchema)]
struct MadeKey {
    /// Its id.
    id: String,
    /// What callers send as `Authorization: Bearer …`. Only its hash is kept.
    secret: String,
    /// When it ends by itself, in microseconds since 1970.
    #[schema(value_type = Option<i64>)]
    expires_at: Option<Timestamp>,
}

impl MadeKey {
    fn of(made: Created) -> Self {
        MadeKey { id: made.id.to_string(), secret: made.secret, expires_at: made.expires_at }
    }

    fn answer(self, status: StatusCode) -> Response {
        // No cache on the way keeps a secret.
        (status, [(header::CACHE_CONTROL, "no-store")], axum::Json(self)).into_response()
    }
}

/// What became of a request.
#[derive(Serialize, ToSchema)]
struct KeyAnswer {
    /// The key.
    id: String,
    /// `revoked` or `signed_out`.
    outcome: &'static str,
    /// Sessions of the console that ended.
    sessions: usize,
}

/// Keys, the newest first.
#[derive(Serialize, ToSchema)]
struct KeysPage {
    /// The keys, without their secrets.
    keys: Vec<Listed>,
    /// `before` of the next page; null after the last.
    next: Option<String>,
}

/// Which keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
struct Listing {
    /// Only of this tenant, for callers whose key has none.
    tenant: Option<String>,
    /// `true`: only those that can be used.
    active: Option<bool>,
    /// Goes on behind this one: `next` of the page before.
    before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    limit: Option<usize>,
}

/// The tenant that a new key is bound to.
fn tenant_of(caller: &Caller, wanted: Option<String>) -> Result<Option<String>, Problem> {
    match (&caller.tenant, wanted) {
        (None, wanted) => Ok(wanted),
        (Some(mine), wanted) if wanted.as_ref().is_none_or(|wanted| wanted == mine) => {
            Ok(Some(mine.clone()))
        }
        (Some(mine), _) => {
            let detail = format!(
                "the key that asks is of the tenant {mine:?}, and makes keys of that tenant only"
            );
            Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
                .field("tenant")
                .fix("leave the field out"))
        }
    }
}

/// A key of the caller's tenant, or any for a caller without one. What is foreign looks as what is not there.
async fn theirs(app: &App, caller: &Caller, id: EntityId) -> Result<(Head, KeyState), Problem> {
    caller.need(Scope::Admin)?;
    let head = app.pipeline().store().head(id).await?.filter(|head| head.kind() == KIND);
    let head = head.ok_or_else(|| absent(id))?;
    let state = state(&head)?;
    let is_theirs = caller.tenant.is_none() || caller.tenant == state.tenant;
    is_theirs.then_some((head, state)).ok_or_else(|| absent(id))
}

fn act(caller: &Caller, name: &str, by: Option<String>, tenant: Option<String>) -> Act {
    Act { key: caller.key, ..Act::new(name, who(caller, by)) }.tenant(tenant)
}

/// Carries out an act on keys and records it, also if the client does not wait for the answer.
async fn carry_out<T: Send + 'static, F: Future<Output = Result<T, KeyError>> + Send + 'static>(
    app: &App,
    caller: &Caller,
    act: Act,
    work: impl FnOnce(App) -> F,
) -> Result<T, Problem> {
    app.may_act(caller)?;
    let (acting, work) = (app.clone(), work(app.clone()));
    let result = app.to_the_end(async move { acting.audit().carry_out(act, work).await }).await?;
    if result.as_ref().is_err_and(|e| !matches!(e, KeyError::Store(_))) {
        app.act_was_refused(caller).await;
    }
    Ok(result?)
}

/// Keys that the caller may see, the newest first, without their secrets. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys", params(Listing),
    responses((status = 200, body = KeysPage), (status = 403, body = ProblemDocument))
)]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<Listing>,
) -> Result<axum::Json<KeysPage>, Problem> {
    caller.need(Scope::Admin)?;
    let statuses = query.active.unwrap_or(false).then(|| "active".to_owned());
    let filter = HeadFilter {
        tenant: whose(&caller, query.tenant)?,
        statuses: statuses.into_iter().collect(),
        before: paging::cursor(query.before.as_deref())?,
        ..HeadFilter::default()
    };
    let limit = paging::limit(query.limit)?;
    let (found, next) = paging::newest::<Key>(&app, filter, limit, |_| true).await?;
    let keys = found.into_iter().map(|(head, state)| super::listed(&head, state)).collect();
    Ok(axum::Json(KeysPage { keys, next: next.map(|id| id.to_string()) }))
}

/// Makes a key and shows its secret, this once. Needs the scope `admin`.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", request_body = Wanted,
    responses(
        (status = 201, description = "Only the hash of the secret is kept.", body = MadeKey),
        (status = 403, description = "It would have more rights than the key that asks.", body = ProblemDocument),
        (status = 422, body = ProblemDocument)
    )
)]
async fn create(
    State(app): State<App>,
    caller: Caller,
    Json(wanted): Json<Wanted>,
) -> Result<Response, Problem> {
    caller.need(Scope::Admin)?;
    let (name, scopes) = (required("name", wanted.name)?, required("scopes", wanted.scopes)?);
    let scopes = scopes.iter().map(|scope| scope.parse()).collect::<Result<Vec<Scope>, _>>()?;
    let tenant = tenant_of(&caller, wanted.tenant)?;
    let by = who(&caller, wanted.by.clone());
    let terms = Terms {
        expires_in: wanted.expires_in_seconds.map(Duration::from_secs),
        not_after: caller.expires_at,
        by: Some(by),
    };
    let words: Vec<_> = scopes.iter().map(|scope| scope.as_str()).collect();
    let details =
        json!({ "name": name, "scopes": words, "expires_in_seconds": wanted.expires_in_seconds });
    let act = act(&caller, "keys.create", wanted.by, tenant.clone()).target(&name).details(details);
    let made = carry_out(&app, &caller, act, |app| async move {
        super::create_with(app.pipeline(), NewKey { name, tenant, scopes }, terms).await
    });
    Ok(MadeKey::of(made.await?).answer(StatusCode::CREATED))
}

/// One key, without its secret. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/keys/{id}", tag = "keys", params(("id" = String, Path, description = "The key.")),
    responses((status = 200, body = Listed), (status = 404, body = ProblemDocument))
)]
async fn show(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
) -> Result<axum::Json<Listed>, Problem> {
    let (head, state) = theirs(&app, &caller, id).await?;
    Ok(axum::Json(super::listed(&head, state)))
}

/// Replaces the secret of a key. Needs the scope `admin`.
#[utoipa::path(
    post, path = "/v1/keys/{id}/rotate", tag = "keys", request_body = Rotation,
    params(("id" = String, Path, description = "The key.")),
    responses(
        (status = 200, description = "The new secret, this once.", body = MadeKey),
        (status = 403, description = "It ends later than the key that asks.", body = ProblemDocument),
        (status = 404, body = ProblemDocument),
        (status = 409, description = "The key has ended.", body = ProblemDocument),
        (status = 422, body = ProblemDocument)
    )
)]
async fn rotate(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(rotation): Maybe<Rotation>,
) -> Result<Response, Problem> {
    let (_, state) = theirs(&app, &caller, id).await?;
    // Whoever rotates a key has its new secret, and must not gain time by it.
    let longer = |end| state.expires_at.is_none_or(|theirs| theirs > end);
    if caller.key != Some(id) && caller.expires_at.is_some_and(longer) {
        let detail = "this key ends later than the key that asks, which would get its new secret";
        return Err(Problem::new(StatusCode::FORBIDDEN, ApiCode::Forbidden, detail)
            .field("id")
            .fix("use a key that does not end before it, or make a new key"));
    }
    let (seconds, by) = (rotation.overlap_seconds.unwrap_or(0), who(&caller, rotation.by.clone()));
    let act = act(&caller, "keys.rotate", rotation.by, state.tenant).target(id);
    let act = act.details(json!({ "name": state.name, "overlap_seconds": seconds }));
    let made = carry_out(&app, &caller, act, |app| async move {
        let made = super::rotate(app.pipeline(), id, Duration::from_secs(seconds), &by).await;
        app.end_refused_requests(id).await;
        made
    });
    Ok(MadeKey::of(made.await?).answer(StatusCode::OK))
}

/// Ends a key, and with it its open streams and its sessions of the console. Needs the scope `admin`.
#[utoipa::path(
    post, path = "/v1/keys/{id}/revoke", tag = "keys", request_body = Ask,
    params(("id" = String, Path, description = "The key.")),
    responses((status = 200, body = KeyAnswer), (status = 404, body = ProblemDocument))
)]
async fn revoke(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<KeyAnswer>, Problem> {
    let (_, state) = theirs(&app, &caller, id).await?;
    let by = who(&caller, ask.by.clone());
    let act = act(&caller, "keys.revoke", ask.by, state.tenant).target(id);
    let act = act.details(json!({ "name": state.name }));
    let sessions = carry_out(&app, &caller, act, |app| async move {
        super::revoke_by(app.pipeline(), id, Some(by)).await?;
        let ended = console_sessions::end_all_of(app.pipeline(), id, "its key was revoked").await;
        app.end_refused_requests(id).await;
        Ok(ended?)
    });
    let sessions = sessions.await?;
    Ok(axum::Json(KeyAnswer { id: id.to_string(), outcome: "revoked", sessions }))
}

/// Ends all sessions of the console that were opened with a key. The key stays. Needs the scope `admin`.
#[utoipa::path(
    post, path = "/v1/keys/{id}/sign-out", tag = "keys", request_body = Ask,
    params(("id" = String, Path, description = "The key.")),
    responses((status = 200, body = KeyAnswer), (status = 404, body = ProblemDocument))
)]
async fn sign_out(
    State(app): State<App>,
    caller: Caller,
    Named(id): Named<EntityId>,
    Maybe(ask): Maybe<Ask>,
) -> Result<axum::Json<KeyAnswer>, Problem> {
    let (_, state) = theirs(&app, &caller, id).await?;
    let act = act(&caller, "keys.sign_out", ask.by, state.tenant).target(id);
    let sessions = carry_out(&app, &caller, act, |app| async move {
        let why = "an administrator ended it";
        let ended = console_sessions::end_all_of(app.pipeline(), id, why).await;
        app.end_refused_requests(id).await;
        Ok(ended?)
    });
    let sessions = sessions.await?;
    Ok(axum::Json(KeyAnswer { id: id.to_string(), outcome: "signed_out", sessions }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_bound_to_the_tenant_of_the_key_that_makes_it() {
        let caller = |tenant: Option<&str>| Caller {
            tenant: tenant.map(str::to_owned),
            scopes: vec![Scope::Admin],
            key: None,
            expires_at: None,
        };
        let asked =
            |mine, wanted: Option<&str>| tenant_of(&caller(mine), wanted.map(str::to_owned));
        assert_eq!(asked(None, None).unwrap(), None);
        assert_eq!(asked(None, Some("acme")).unwrap().as_deref(), Some("acme"));
        for wanted in [None, Some("acme")] {
            assert_eq!(asked(Some("acme"), wanted).unwrap().as_deref(), Some("acme"));
        }
        assert_eq!(
            asked(Some("acme"), Some("globex")).unwrap_err().status(),
            StatusCode::FORBIDDEN
        );
    }
}
