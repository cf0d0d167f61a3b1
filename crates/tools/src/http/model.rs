//! A request and an answer, as flows write and read them.

use crate::{secrets::Text, text::Encoding};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Method {
    #[default]
    #[serde(alias = "get")]
    Get,
    #[serde(alias = "head")]
    Head,
    #[serde(alias = "options")]
    Options,
    #[serde(alias = "post")]
    Post,
    #[serde(alias = "put")]
    Put,
    #[serde(alias = "patch")]
    Patch,
    #[serde(alias = "delete")]
    Delete,
}

impl Method {
    /// Whether it asks for nothing to be changed.
    pub(crate) fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Options => "OPTIONS",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }

    pub(crate) fn as_reqwest(self) -> reqwest::Method {
        match self {
            Method::Get => reqwest::Method::GET,
            Method::Head => reqwest::Method::HEAD,
            Method::Options => reqwest::Method::OPTIONS,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        }
    }
}

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpInput {
    /// GET unless given.
    #[serde(default)]
    pub method: Method,
    /// http or https.
    pub url: String,
    /// A value is a text, or `{"secret": "NAME", "prefix": "Bearer "}` for one that is looked up when the call is made.
    #[serde(default)]
    pub headers: BTreeMap<String, Text>,
    /// Added to the address.
    #[serde(default)]
    pub query: BTreeMap<String, Scalar>,
    /// A text is sent as it is, anything else as JSON.
    #[serde(default)]
    pub body: Option<Body>,
    /// Statuses that count as a result; any 2xx unless given.
    #[serde(default)]
    pub expect_status: Option<Statuses>,
}

/// The body of a request.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Body(pub Value);

/// A value in a query.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// A text.
    Text(String),
    /// A number.
    Number(serde_json::Number),
    /// True or false.
    Bool(bool),
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scalar::Text(v) => v.fmt(f),
            Scalar::Number(v) => v.fmt(f),
            Scalar::Bool(v) => v.fmt(f),
        }
    }
}

/// One status or several.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Statuses {
    /// One.
    One(u16),
    /// Several.
    Many(Vec<u16>),
}

impl Statuses {
    pub(crate) fn as_slice(&self) -> &[u16] {
        match self {
            Statuses::One(status) => std::slice::from_ref(status),
            Statuses::Many(statuses) => statuses,
        }
    }
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HttpOutput {
    /// Its status.
    pub status: u16,
    /// Its headers; several of one name are joined by a comma.
    pub headers: BTreeMap<String, String>,
    /// Its body: JSON, text, or bytes as base64.
    pub body: Value,
    /// Which of them.
    pub body_encoding: Encoding,
    /// There was more of it. What is cut is never JSON.
    pub truncated: bool,
}
