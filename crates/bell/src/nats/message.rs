//! What an event looks like on the bus. Pure: everything in a message follows from the row in the outbox, so that one
//! that goes out twice is the same twice.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tenure_kernel::{ids::MessageId, outbox::Posted, stream::Body};

/// The header by which subscribers, and a JetStream, know a repetition.
pub const ID: &str = "Nats-Msg-Id";

/// A message as it is published, but for the prefix of its subject.
pub(super) struct Outbound {
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) payload: Vec<u8>,
}

impl Outbound {
    pub(super) fn of(subject: &str, posted: &Posted) -> Self {
        let payload = match &posted.message.body {
            Body::Inline(bytes) => bytes.clone(),
            // Large bodies stay in the store: a bus has small messages, and a limit that we do not set.
            Body::Blob { digest, len } => {
                let body = serde_json::json!({ "body_in_store": digest.to_string(), "bytes": len });
                body.to_string().into_bytes()
            }
        };
        let body = serde_json::from_slice(&payload).unwrap_or(Value::Null);
        Outbound { headers: headers(subject, posted, &body), payload }
    }
}

fn headers(subject: &str, posted: &Posted, body: &Value) -> Vec<(&'static str, String)> {
    let field = |names: &[&str]| {
        let found = names.iter().find_map(|n| body.get(n))?;
        match found {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    };
    let all = [
        (ID, Some(posted.id.to_string())),
        ("traceparent", Some(traceparent(field(&["trace"]).as_deref(), posted.id))),
        ("Tenure-Tenant", Some(posted.tenant.clone())),
        ("CG-Agent-Id", field(&["agent_id"]).or_else(|| agent_of(subject).map(str::to_owned))),
        ("CG-Turn-Id", field(&["turn_id", "agent_turn_id"])),
        ("CG-Turn-Epoch", field(&["turn_epoch"])),
        ("CG-Channel-Id", field(&["channel_id"])),
        ("CG-Step-Id", field(&["step_id"])),
        ("CG-Timestamp", Some(posted.at.to_string())),
        ("CG-Msg-Type", Some(posted.message.kind.to_string())),
    ];
    let present = all.into_iter().filter_map(|(name, value)| Some((name, value?)));
    // A header is one line of text; what is not belongs into the body, where it is anyway.
    present.filter(|(_, v)| !v.is_empty() && v.chars().all(|c| (' '..='~').contains(&c))).collect()
}

/// `evt.agent.<id>.task` is about that agent.
pub(super) fn agent_of(subject: &str) -> Option<&str> {
    subject.strip_prefix("evt.agent.")?.split('.').next()
}

/// The W3C context of a message: the one that the body names, or one that follows from the message: all messages of
/// one source are then one trace.
fn traceparent(trace: Option<&str>, id: MessageId) -> String {
    if let Some(given) = trace.filter(|t| is_traceparent(t)) {
        return given.to_owned();
    }
    let own = id.source.uuid().simple().to_string();
    let trace = trace.filter(|t| is_hex(t, 32)).unwrap_or(&own);
    let hash = Sha256::digest(id.to_string());
    let span: String = hash[..8].iter().map(|b| format!("{b:02x}")).collect();
    format!("00-{trace}-{span}-01")
}

fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], ["00", trace, span, flags] if is_hex(trace, 32) && is_hex(span, 16) && flags.len() == 2
        && flags.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// So many lower-case hexadecimal digits, not all of them zero.
fn is_hex(text: &str, len: usize) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == len && text.bytes().all(digit) && text.bytes().any(|b| b != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::{
        ids::EntityId,
        outbox::{Message, Target},
        stream::Hash,
        time::Timestamp,
    };

    const SUBJECT: &str = "evt.agent.a-7.task";

    fn posted(body: Body) -> Posted {
        let id = MessageId { source: EntityId::fixed(7, 7), version: 9, ordinal: 1 };
        let message = Message { to: Target::Wire(SUBJECT.into()), kind: "task".into(), body };
        Posted { id, tenant: "acme".into(), message, at: Timestamp::ZERO }
    }

    fn header(out: &Outbound, name: &str) -> Option<String> {
        out.headers.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone())
    }

    #[test]
    fn a_message_says_who_it_is_and_says_the_same_twice() {
        let body = serde_json::json!({ "agent_id": "a-7", "turn_id": "t-1", "turn_epoch": 4, "status": "success" });
        let row = posted(Body::json(&body));
        let out = Outbound::of(SUBJECT, &row);
        assert_eq!(out.payload, row.message.body.inline().unwrap());
        assert_eq!(header(&out, ID), Some(row.id.to_string()));
        for (name, value) in [
            ("Tenure-Tenant", "acme"),
            ("CG-Agent-Id", "a-7"),
            ("CG-Turn-Id", "t-1"),
            ("CG-Turn-Epoch", "4"),
            ("CG-Timestamp", "1970-01-01T00:00:00.000000Z"),
            ("CG-Msg-Type", "task"),
        ] {
            assert_eq!(header(&out, name).as_deref(), Some(value), "{name}");
        }
        assert_eq!(Outbound::of(SUBJECT, &row).headers, out.headers);
    }

    #[test]
    fn fields_that_are_missing_or_no_line_of_text_are_no_headers() {
        let out = Outbound::of(SUBJECT, &posted(Body::Inline(b"not json".to_vec())));
        assert_eq!(header(&out, "CG-Agent-Id").as_deref(), Some("a-7"), "the subject says it");
        assert_eq!((header(&out, "CG-Turn-Id"), header(&out, "CG-Turn-Epoch")), (None, None));
        let sly = serde_json::json!({ "turn_id": "x\r\nNats-Msg-Id: y", "turn_epoch": [1] });
        let out = Outbound::of(SUBJECT, &posted(Body::json(&sly)));
        assert_eq!((header(&out, "CG-Turn-Id"), header(&out, "CG-Turn-Epoch")), (None, None));
    }

    #[test]
    fn a_trace_is_taken_over_or_made_of_the_source() {
        let made = |trace: Value| {
            let body = Body::json(&serde_json::json!({ "trace": trace }));
            header(&Outbound::of(SUBJECT, &posted(body)), "traceparent").unwrap()
        };
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(made(given.into()), given);
        let adopted = made("4bf92f3577b34da6a3ce929d0e0e4736".into());
        assert!(
            adopted.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && is_traceparent(&adopted)
        );
        let own = made(Value::Null);
        assert!(
            own.contains(&EntityId::fixed(7, 7).uuid().simple().to_string())
                && is_traceparent(&own)
        );
        let zero = format!("00-{}-00f067aa0ba902b7-00", "0".repeat(32));
        assert_eq!(made(zero.into()), own, "a context that is none");
        assert_eq!(made("00-nonsense".into()), own);
    }

    #[test]
    fn a_large_body_stays_in_the_store_and_the_message_names_it() {
        let digest = Hash::of(b"large");
        let out = Outbound::of(SUBJECT, &posted(Body::Blob { digest, len: 5 }));
        let payload: Value = serde_json::from_slice(&out.payload).unwrap();
        assert_eq!(payload["body_in_store"], digest.to_string());
        assert_eq!(payload["bytes"], 5);
    }
}
