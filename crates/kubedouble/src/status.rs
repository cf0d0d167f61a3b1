//! `Status` objects: how an API server says no.
//!
//! Clients look at `reason` and `code` and, for some refusals, at `details`; people look at `message`. All are
//! worded as the real server words them, since programs out there match on the words too.

use crate::resource::Resource;
use serde_json::{Value, json};

/// A refusal, on its way to be an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The HTTP status code, also inside of the object.
    pub code: u16,
    /// The machine's word for it, such as `AlreadyExists`.
    pub reason: String,
    /// The words for people.
    pub message: String,
    /// What it is about.
    pub details: Option<Value>,
    /// The token with which an expired listing may go on, inconsistently.
    pub continuation: Option<String>,
    /// The `Retry-After` header.
    pub retry_after: Option<u32>,
}

impl Refusal {
    /// A refusal without details.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Refusal {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            details: None,
            continuation: None,
            retry_after: None,
        }
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = json!(resource.group);
        }
        self.details = Some(details);
        self
    }

    /// 404: no such object.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message).about(resource, name)
    }

    /// 409: the name is taken.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(409, "AlreadyExists", message).about(resource, name)
    }

    /// 409: a precondition or a version did not hold.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// 422: these fields are wrong.
    pub fn invalid(resource: &Resource, name: &str, causes: &[Cause]) -> Self {
        let texts: Vec<String> = causes.iter().map(Cause::text).collect();
        let list = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} {name:?} is invalid: {list}", resource.kind);
        let mut refusal = Self::new(422, "Invalid", message);
        let causes: Vec<Value> = causes
            .iter()
            .map(|c| json!({"reason": c.kind.reason(), "message": c.short(), "field": c.field}))
            .collect();
        refusal.details = Some(json!({"name": name, "kind": resource.kind, "causes": causes}));
        refusal
    }

    /// 400: the request itself makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 410: a version that the server has forgotten.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 410, as a watch says it.
    pub fn too_old(version: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {version} ({oldest})"))
    }

    /// 401: nobody we know.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: may not.
    pub fn forbidden(
        user: &str,
        verb: &str,
        resource: &str,
        group: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Self {
        let place = match namespace {
            Some(namespace) => format!("in the namespace {namespace:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let plural = resource.split('/').next().unwrap_or_default();
        let what = if name.is_empty() { plural.to_owned() } else { format!("{plural} {name:?}") };
        let message = format!(
            "{what} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}"
        );
        let mut refusal = Self::new(403, "Forbidden", message);
        refusal.details = Some(json!({"name": name, "kind": plural}));
        refusal
    }

    /// The object as it is sent.
    pub fn body(&self) -> Value {
        let mut metadata = json!({});
        if let Some(token) = &self.continuation {
            metadata["continue"] = json!(token);
        }
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = json!(self.reason);
        }
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = json!(seconds);
        }
        if let Some(details) = details {
            body["details"] = details;
        }
        body
    }
}

/// One wrong field.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Where: `spec.containers[0].image`.
    pub field: String,
    /// In which way it is wrong.
    pub kind: Wrong,
    /// More words.
    pub detail: String,
}

/// The ways in which a field can be wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    /// It must be there.
    Required,
    /// This value can not be.
    Invalid(Value),
    /// It may not be set, or not changed.
    Forbidden,
    /// Not one of the values that there are.
    NotSupported(String),
}

impl Wrong {
    fn reason(&self) -> &'static str {
        match self {
            Wrong::Required => "FieldValueRequired",
            Wrong::Invalid(_) => "FieldValueInvalid",
            Wrong::Forbidden => "FieldValueForbidden",
            Wrong::NotSupported(_) => "FieldValueNotSupported",
        }
    }
}

impl Cause {
    /// A field that must be there.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Cause { field: field.into(), kind: Wrong::Required, detail: detail.to_owned() }
    }

    /// A field with an impossible value.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl Into<String>) -> Self {
        Cause { field: field.into(), kind: Wrong::Invalid(value.clone()), detail: detail.into() }
    }

    /// A field that may not be what it is to be.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Cause { field: field.into(), kind: Wrong::Forbidden, detail: detail.to_owned() }
    }

    fn short(&self) -> String {
        let kind = match &self.kind {
            Wrong::Required => "Required value".to_owned(),
            Wrong::Invalid(value) => format!("Invalid value: {value}"),
            Wrong::Forbidden => "Forbidden".to_owned(),
            Wrong::NotSupported(value) => format!("Unsupported value: {value:?}"),
        };
        if self.detail.is_empty() { kind } else { format!("{kind}: {}", self.detail) }
    }

    fn text(&self) -> String {
        format!("{}: {}", self.field, self.short())
    }
}
