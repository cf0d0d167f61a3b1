//! One rendering of a JSON value, whoever renders it: keys sorted, no spaces. Arguments are compared and
//! idempotency keys made from these bytes, so they must not depend on the order in which a map was
//! filled, nor on features that another crate in the build switches on in `serde_json`.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tenure_kernel::stream::Hash;

/// The canonical bytes of a value.
pub fn bytes(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    write(value, &mut out);
    out
}

/// The digest of the canonical bytes.
pub fn digest(value: &Value) -> Hash {
    Hash::of(&bytes(value))
}

/// The digest in the short form that events carry: enough to compare, half the bytes.
pub fn short_digest(value: &Value) -> String {
    hex(&Sha256::digest(bytes(value))[..16])
}

/// For an optional value in a record: a `null` that is there is a value, and not its absence.
pub fn present<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Value>, D::Error> {
    serde::Deserialize::deserialize(d).map(Some)
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by(|a, b| a.0.cmp(b.0));
            out.push(b'{');
            for (i, (key, value)) in entries.into_iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                scalar(&Value::from(key.as_str()), out);
                out.push(b':');
                write(value, out);
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        scalar_value => scalar(scalar_value, out),
    }
}

fn scalar(value: &Value, out: &mut Vec<u8>) {
    // Writing a JSON scalar to memory has no way to fail: no I/O, and keys are strings.
    serde_json::to_writer(out, value).expect("a scalar serialises");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_of_keys_does_not_matter() {
        let a: Value = serde_json::from_str(r#"{"b":[1,{"y":2,"x":null}],"a":"é\n"}"#).unwrap();
        let b: Value = serde_json::from_str(r#"{"a":"é\n","b":[1,{"x":null,"y":2}]}"#).unwrap();
        assert_eq!(bytes(&a), bytes(&b));
        assert_eq!(bytes(&a), "{\"a\":\"é\\n\",\"b\":[1,{\"x\":null,\"y\":2}]}".as_bytes());
    }

    #[test]
    fn floats_survive_a_round_trip_bit_by_bit() {
        for x in [0.1 + 0.2, 1e-300, 123_456_789.123_456_78, f64::MAX, 5e-324] {
            let again: Value = serde_json::from_slice(&bytes(&json!(x))).unwrap();
            assert_eq!(again.as_f64().map(f64::to_bits), Some(x.to_bits()));
        }
    }
}
