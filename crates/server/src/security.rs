//! Who may use a route, as the OpenAPI document says it. The handlers ask for the same scopes, and
//! `tests/it/sweep.rs` tries every route as every kind of caller and compares.

use crate::keys::Scope;
use utoipa::openapi::{
    OpenApi,
    path::Operation,
    security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
};

/// The name of the only scheme.
const API_KEY: &str = "api_key";
const ABOUT: &str = "An API key (`tnr_…`) as a bearer token. The names beside a route are scopes, any of which is enough; the \
    scope `admin` allows everything. A caller on the server's own machine may have `read`, `write` and `worker` without a key: \
    see docs/security.md.";

/// Who may use a route.
enum Needs {
    /// Nobody is asked who they are.
    Nothing,
    /// Any caller that is known.
    Caller,
    /// A caller with one of these scopes.
    Scope(&'static [Scope]),
}

fn needs(reads: bool, template: &str) -> Needs {
    match template {
        "/healthz" | "/readyz" => Needs::Nothing,
        "/v1/whoami" | "/errors/{code}" => Needs::Caller,
        "/v1/tasks/reports" => Needs::Scope(&[Scope::Collector, Scope::Write]),
        "/v1/tasks/budgets/{tenant}" if !reads => Needs::Scope(&[Scope::Admin]),
        "/v1/audit" => Needs::Scope(&[Scope::Admin]),
        admin if admin.starts_with("/v1/keys") || admin.starts_with("/v1/blocks") => {
            Needs::Scope(&[Scope::Admin])
        }
        "/v1/calls/{call}" if reads => Needs::Scope(&[Scope::Read, Scope::Worker]),
        "/v1/plans/check" | "/v1/calendars/preview" => Needs::Scope(&[Scope::Read]),
        "/v1/turns/{id}/step"
        | "/v1/turns/{id}/finish"
        | "/v1/turns/{id}/fail"
        | "/v1/turns/{id}/release" => Needs::Scope(&[Scope::Worker]),
        worker if worker.starts_with("/v1/worker/") => Needs::Scope(&[Scope::Worker]),
        call if call.starts_with("/v1/calls/") || call.starts_with("/v1/turns/sessions") => {
            Needs::Scope(&[Scope::Worker])
        }
        _ if reads => Needs::Scope(&[Scope::Read]),
        _ => Needs::Scope(&[Scope::Write]),
    }
}

/// Writes the scheme, and the scopes of every route, into the document.
pub(crate) fn describe(api: &mut OpenApi) {
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(ABOUT));
    let components = api.components.get_or_insert_default();
    components.add_security_scheme(API_KEY, SecurityScheme::Http(scheme.build()));
    for (template, item) in &mut api.paths.paths {
        let operations = [
            (true, &mut item.get),
            (true, &mut item.head),
            (false, &mut item.put),
            (false, &mut item.post),
            (false, &mut item.delete),
            (false, &mut item.patch),
        ];
        for (reads, operation) in operations {
            if let Some(operation) = operation {
                require(operation, &needs(reads, template));
            }
        }
    }
}

fn require(operation: &mut Operation, needs: &Needs) {
    let key = |scopes: &[&str]| SecurityRequirement::new(API_KEY, scopes.iter().copied());
    operation.security = Some(match needs {
        Needs::Nothing => Vec::new(),
        Needs::Caller => vec![key(&[])],
        Needs::Scope(scopes) => scopes.iter().map(|scope| key(&[scope.as_str()])).collect(),
    });
}
