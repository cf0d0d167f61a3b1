//! How requests are read, so that everything wrong with one is said in the same way: which field, where,
//! and what to do.

use crate::{
    App,
    objects::Objects,
    problem::{ApiCode, Problem},
};
use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeOwned, Visitor},
    forward_to_deserialize_any,
};
use std::{cell::Cell, str::FromStr};
use tenure_kernel::depth;
use tenure_listener::BodyTooSlow;

/// A JSON body. Reads it strictly: right content type, valid JSON, right fields.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        need_json(request.headers())?;
        let bytes = raw(request, app).await?;
        parse(&bytes).map(Body)
    }
}

/// Refuses a request whose content type is not JSON. This is also what keeps a web page from posting here unasked: browsers ask
/// first for this type.
pub fn need_json(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok());
    if kind.is_some_and(is_json) {
        return Ok(());
    }
    let found = kind.unwrap_or("none");
    let detail = format!("the content type is {found}; this takes application/json");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ApiCode::UnsupportedMediaType, detail)
        .field("Content-Type")
        .fix("send the header Content-Type: application/json"))
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Reads JSON and says where it stopped.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.trim_ascii_start().starts_with(b"[") && wants_object::<T>() {
        // Read into a struct a list would be its fields in the order of the code, whatever anybody meant by it.
        let detail = "the body is a list, and this takes an object with named members";
        return Err(Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadJson, detail)
            .field("body")
            .fix("send one {…} as /v1/openapi.json has it; many things are many requests"));
    }
    depth::check_input_text(bytes).map_err(|e| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            ApiCode::BadJson,
            format!("the body cannot be used: {e}"),
        )
        .field("body")
        .with("limit", e.max)
        .fix("send deeply nested content as text, or a reference to it")
    })?;
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(Objects(&mut json)).map_err(|e| {
        let path = e.path().to_string();
        bad_json(e.inner(), Some(path).filter(|p| p != "."))
    })?;
    json.end().map_err(|e| bad_json(&e, None))?;
    Ok(value)
}

/// Whether a type is read from an object: found out by letting it ask.
fn wants_object<'de, T: Deserialize<'de>>() -> bool {
    let asked = Cell::new(false);
    drop(T::deserialize(Asked(&asked)));
    asked.get()
}

/// Gives nothing, and notes what is asked for.
struct Asked<'a>(&'a Cell<bool>);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("there is nothing here"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.set(true);
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

fn bad_json(e: &serde_json::Error, path: Option<String>) -> Problem {
    use serde_json::error::Category;
    let (line, column) = (e.line(), e.column());
    let (status, fix) = match e.classify() {
        Category::Data => (StatusCode::UNPROCESSABLE_ENTITY, "see /v1/openapi.json for the form"),
        Category::Eof => (StatusCode::BAD_REQUEST, "the body ends too early: send all of it"),
        _ => (StatusCode::BAD_REQUEST, "the body is not JSON: check it at the position given"),
    };
    Problem::new(status, ApiCode::BadJson, e.to_string())
        .with("line", line)
        .with("column", column)
        .fix(fix)
        .field(path.unwrap_or_else(|| "body".to_owned()))
}

/// The bytes of a body, up to the limit of the route.
pub async fn raw(request: Request, app: &App) -> Result<Bytes, Problem> {
    let declared = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    let declared = declared.map(str::to_owned);
    Bytes::from_request(request, app).await.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let size = declared.map_or_else(String::new, |n| format!(" of {n} bytes"));
            return Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                ApiCode::PayloadTooLarge,
                format!("the body{size} is larger than this server takes here"),
            )
            .field("Content-Length")
            .fix("put large content into blobs and name them, or send less at once");
        }
        if let Some(slow) = too_slow(&rejection) {
            return Problem::new(StatusCode::REQUEST_TIMEOUT, ApiCode::BadJson, slow.to_string())
                .field("body")
                .fix("send the whole body without long pauses; server.body_timeout_seconds says how long it may take");
        }
        Problem::new(rejection.status(), ApiCode::BadJson, rejection.body_text())
            .fix("the body did not arrive in full: send it again")
    })
}

fn too_slow(rejection: &(dyn std::error::Error + 'static)) -> Option<BodyTooSlow> {
    let mut cause = Some(rejection);
    while let Some(inner) = cause {
        if let Some(slow) = inner.downcast_ref::<BodyTooSlow>() {
            return Some(*slow);
        }
        cause = inner.source();
    }
    None
}

/// The parameters after the question mark.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or("");
        if let Some((name, _)) = form(query).find(|(_, value)| value.contains('\0')) {
            return Err(nul(name));
        }
        let pairs = serde_urlencoded::Deserializer::new(form(query));
        serde_path_to_error::deserialize(pairs).map(Params).map_err(|e| {
            let path = Some(e.path().to_string()).filter(|p| p != ".");
            let detail = format!("the query {query:?} can not be used: {}", e.inner());
            let problem = Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail)
                .fix("see /v1/openapi.json for the parameters of this path");
            problem.field(path.unwrap_or_else(|| "query".to_owned()))
        })
    }
}

/// No name has a NUL, and no store can look for one.
fn nul(field: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, "the value has a NUL character (%00)")
        .field(field)
        .fix("leave it out")
}

fn form(query: &str) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.as_bytes())
}

/// The one variable part of a path: an id or a digest.
pub struct Named<T>(pub T);

impl<T> FromRequestParts<App> for Named<T>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let bad = |detail: String| {
            Problem::new(StatusCode::BAD_REQUEST, ApiCode::BadField, detail)
                .field("id")
                .fix("use the id exactly as this API gave it")
        };
        let Path(text) =
            Path::<String>::from_request_parts(parts, app).await.map_err(|e| bad(e.body_text()))?;
        if text.contains('\0') {
            return Err(nul("id"));
        }
        text.parse().map(Named).map_err(|e| bad(format!("{text:?} can not be read: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Two {
        name: String,
        n: u32,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Cover(Two);

    #[test]
    fn a_list_is_no_object_and_is_fine_where_a_list_is_meant() {
        for list in ["[\"a\",1]", " \n[]", "[", "[{\"name\":\"a\"}]"] {
            let refused = parse::<Two>(list.as_bytes()).unwrap_err();
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{list}");
            assert!(parse::<Cover>(list.as_bytes()).is_err(), "{list}");
            assert!(parse::<Option<Two>>(list.as_bytes()).is_err(), "{list}");
        }
        let (name, n) = ("a".to_owned(), 1);
        assert_eq!(parse::<Two>(b"{\"name\":\"a\",\"n\":1}").unwrap(), Two { name, n });
        assert_eq!(parse::<Vec<u32>>(b"[1,2]").unwrap(), [1, 2]);
        assert_eq!(parse::<(u32, u32)>(b"[1,2]").unwrap(), (1, 2));
        assert_eq!(parse::<Value>(b"[1]").unwrap(), serde_json::json!([1]));
    }
}
