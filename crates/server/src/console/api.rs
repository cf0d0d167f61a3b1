//! What a button does is what the API does: a form becomes the body of a request, and the handler of that request is called with
//! it. So both are read, checked, refused and recorded alike.

use crate::{
    Problem,
    extract::{self, Params},
    jobs::submit::Waiting,
};
use axum::{http::header, response::Response};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::HashMap;
use tenure_kernel::{depth, ids::EntityId};

/// Who presses a button, beside the key they have shown.
const CONSOLE: &str = "console";

/// The fields of a form.
pub(super) struct Fields(HashMap<String, String>);

impl Fields {
    /// Reads what a browser sent.
    pub(super) fn read(body: &[u8]) -> Self {
        Fields(form_urlencoded::parse(body).into_owned().collect())
    }

    /// A field that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }

    /// The body of a request with these fields as text. Those that are empty are left out.
    pub(super) fn body(&self, names: &[&str]) -> Body {
        let mut body = Body(Map::new()).with("by", CONSOLE);
        for name in names {
            if let Some(text) = self.text(name) {
                body = body.with(name, text);
            }
        }
        body
    }

    /// A field that holds JSON.
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>, Problem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        depth::read_input(text.as_bytes()).map(Some).map_err(|e| {
            Problem::bad_field(name, format!("the {name} is not JSON that can be used: {e}"))
                .fix("text is written in double quotes, and nothing is null")
        })
    }

    /// A field that holds a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u32>, Problem> {
        let number = self.text(name).map(|text| {
            text.parse()
                .map_err(|_| Problem::bad_field(name, format!("{name} = {text:?} is no number")))
        });
        number.transpose()
    }

    /// A box that may be ticked.
    pub(super) fn is_ticked(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }
}

/// The body of a request.
pub(super) struct Body(Map<String, Value>);

impl Body {
    /// With one more member.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// With one more member, if there is one.
    pub(super) fn with_some(self, name: &str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// As the API reads it.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, Problem> {
        extract::parse(Value::Object(self.0).to_string().as_bytes())
    }
}

/// A press does not wait for the end of what it begins.
pub(super) fn at_once() -> Params<Waiting> {
    Params(Waiting::default())
}

/// What an answer says was made.
pub(super) fn made(answer: &Response) -> Option<EntityId> {
    let location = answer.headers().get(header::LOCATION)?.to_str().ok()?;
    location.rsplit('/').next()?.parse().ok()
}
