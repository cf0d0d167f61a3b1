//! Bytes on the wire: verbatim where they are JSON, base64 where they are not.

use super::Unreadable;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::value::RawValue;
use tenure_kernel::{
    ids::CommitId,
    stream::{self, Hash},
};
use utoipa::{PartialSchema, ToSchema, openapi::RefOr, openapi::schema::Schema};

/// Some bytes. Exactly one field is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bytes {
    /// The bytes are this JSON text, character for character.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json: Option<Box<RawValue>>,
    /// The bytes are not JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl Bytes {
    /// For the wire.
    pub fn of(bytes: &[u8]) -> Self {
        match verbatim(bytes) {
            Some(json) => Bytes { json: Some(json), base64: None },
            None => Bytes { json: None, base64: Some(STANDARD.encode(bytes)) },
        }
    }

    /// As they were.
    pub fn read(self) -> Result<Vec<u8>, Unreadable> {
        match (self.json, self.base64) {
            (Some(json), None) => Ok(Box::<str>::from(json).into_boxed_bytes().into_vec()),
            (None, Some(text)) => decode(&text),
            _ => Err(Unreadable::new("json", "give either json or base64")),
        }
    }
}

/// The text, if it comes back from the wire as exactly these bytes: JSON without anything around it.
/// A lone `null` does not, because an absent field is read the same way.
fn verbatim(bytes: &[u8]) -> Option<Box<RawValue>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let json = RawValue::from_string(text.to_owned()).ok()?;
    (json.get() == text && text != "null").then_some(json)
}

fn decode(text: &str) -> Result<Vec<u8>, Unreadable> {
    STANDARD.decode(text).map_err(|e| Unreadable::new("base64", e.to_string()))
}

/// A body: in place, or the name of a blob. Exactly one field is there.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// See [`Bytes::json`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub json: Option<Box<RawValue>>,
    /// See [`Bytes::base64`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Larger ones are blobs, put before they are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<Blob>,
}

/// The name of a blob.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Blob {
    /// SHA-256 of the bytes.
    pub digest: Digest,
    /// How many there are.
    pub len: u64,
}

impl Body {
    /// For the wire.
    pub fn of(body: &stream::Body) -> Self {
        match body {
            stream::Body::Inline(bytes) => {
                let Bytes { json, base64 } = Bytes::of(bytes);
                Body { json, base64, blob: None }
            }
            stream::Body::Blob { digest, len } => {
                Body { blob: Some(Blob { digest: Digest(*digest), len: *len }), ..Body::default() }
            }
        }
    }

    /// As it was.
    pub fn read(self) -> Result<stream::Body, Unreadable> {
        match self {
            Body { json: None, base64: None, blob: Some(Blob { digest, len }) } => {
                Ok(stream::Body::Blob { digest: digest.0, len })
            }
            Body { json, base64, blob: None } => {
                Bytes { json, base64 }.read().map(stream::Body::Inline)
            }
            _ => Err(Unreadable::new("blob", "give one of json, base64 and blob")),
        }
    }
}

/// A SHA-256 value in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(pub Hash);

/// The id of a commit: sixteen bytes in hexadecimal, chosen by whoever commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitName(pub CommitId);

impl std::str::FromStr for Digest {
    type Err = Unreadable;
    fn from_str(text: &str) -> Result<Self, Unreadable> {
        unhex(text).map(|bytes| Digest(Hash(bytes)))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(|e: Unreadable| D::Error::custom(e.why))
    }
}

impl Serialize for CommitName {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0.0)))
    }
}

impl<'de> Deserialize<'de> for CommitName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let bytes = unhex(&text).map_err(|e| D::Error::custom(e.why))?;
        Ok(CommitName(CommitId(bytes)))
    }
}

fn unhex<const N: usize>(text: &str) -> Result<[u8; N], Unreadable> {
    let bad = || Unreadable::new("hex", format!("{} hexadecimal digits are needed", 2 * N));
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(bad());
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
    }
    Ok(out)
}

impl PartialSchema for Digest {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl ToSchema for Digest {}

impl PartialSchema for CommitName {
    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl ToSchema for CommitName {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through text and back.
    fn travel(bytes: &[u8]) -> (String, Vec<u8>) {
        let text = serde_json::to_string(&Bytes::of(bytes)).unwrap();
        let back: Bytes = serde_json::from_str(&text).unwrap();
        (text, back.read().unwrap())
    }

    #[test]
    fn json_travels_as_it_is_written_and_anything_else_as_base64() {
        let verbatim = [r#"{"a" : 1.0, "a":1e999}"#, "[]", "\"\\ud800\"", "true", "-0"];
        for text in verbatim {
            let (wire, back) = travel(text.as_bytes());
            assert_eq!(wire, format!("{{\"json\":{text}}}"));
            assert_eq!(back, text.as_bytes());
        }
        for other in [&b""[..], b"null", b" {}", b"{}\n", b"{", b"\xff\xfe", b"{}{}"] {
            let (wire, back) = travel(other);
            assert!(wire.starts_with("{\"base64\""), "{wire}");
            assert_eq!(back, other);
        }
    }

    #[test]
    fn a_body_that_is_nothing_or_two_things_is_refused() {
        for bad in ["{}", r#"{"json":1,"base64":""}"#, r#"{"json":null}"#] {
            assert!(serde_json::from_str::<Bytes>(bad).unwrap().read().is_err(), "{bad}");
        }
        assert!("zz".parse::<Digest>().is_err() && "ä".repeat(32).parse::<Digest>().is_err());
    }
}
