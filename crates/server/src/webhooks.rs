//! Webhooks that prove who sent them.
//!
//! A sender signs with a secret that it shares with a tenant's operator:
//!
//! ```text
//! Tenure-Signature: t=1700000000,v1=hex(HMAC-SHA256(secret, "1700000000\nJOB\nKEY\nBODY"))
//! ```
//!
//! `t` is the sender's time in seconds since 1970, `JOB` and `KEY` are those of the path (the key decoded), `BODY` is the body as
//! it is sent. The signature names the job and the key, so it is good for no other. The same webhook sent again within the window
//! changes nothing, also where the flow waits for the key again: time, key and body make the id under which the job takes it once.
//!
//! Where a tenant has a secret, every webhook of its jobs needs a signature, and with one it needs no API key. A signature that is
//! wrong, of an unknown job, or of a tenant without a secret is answered alike.

use crate::problem::{ApiCode, Problem};
use axum::http::StatusCode;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use std::{collections::BTreeMap, fmt, time::Duration};
use tenure_kernel::{ids::EntityId, stream::Hash, time::Timestamp};

/// The header with the signature.
pub(crate) const SIGNATURE: &str = "tenure-signature";
/// The name that stands for every tenant without a secret of its own.
const EACH: &str = "*";
/// Shorter secrets can be guessed.
const SECRET_BYTES_MIN: usize = 16;

/// The secrets with which webhooks are signed, by tenant. A tenant may have several: while one is replaced by another, both count.
#[derive(Clone, Default)]
pub struct WebhookSecrets {
    secrets: BTreeMap<String, Vec<Vec<u8>>>,
    /// How far the time of a signature may be from the server's.
    pub window: Duration,
}

impl fmt::Debug for WebhookSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenants: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("WebhookSecrets").field("tenants", &tenants).finish_non_exhaustive()
    }
}

impl WebhookSecrets {
    /// `acme=NAME+NAME, *=NAME`, where each `NAME` is looked up: an environment variable.
    pub fn read(
        text: &str,
        window: Duration,
        look_up: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        let mut secrets = BTreeMap::new();
        for (tenant, names) in Self::names(text)? {
            let mut values = Vec::new();
            for name in names {
                let value = look_up(&name).filter(|v| !v.is_empty());
                let value = value.ok_or_else(|| {
                    format!("the variable {name} is not set in the environment of this server")
                })?;
                if value.len() < SECRET_BYTES_MIN {
                    return Err(format!(
                        "the secret in {name} has less than {SECRET_BYTES_MIN} bytes"
                    ));
                }
                values.push(value.into_bytes());
            }
            secrets.insert(tenant, values);
        }
        Ok(WebhookSecrets { secrets, window })
    }

    /// Tenants and the names of their secrets.
    pub fn names(text: &str) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut all = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = || {
                format!(
                    "{part:?} is no tenant with a variable that holds its secret, such as acme=TENURE_WEBHOOK_ACME"
                )
            };
            let (tenant, names) = part.split_once('=').ok_or_else(bad)?;
            let names: Vec<String> = names.split('+').map(|n| n.trim().to_owned()).collect();
            let tenant = tenant.trim().to_owned();
            if tenant.is_empty() || names.iter().any(String::is_empty) {
                return Err(bad());
            }
            if all.insert(tenant, names).is_some() {
                return Err(format!("{part:?}: this tenant is there twice"));
            }
        }
        Ok(all)
    }

    /// Whether any tenant has a secret.
    pub(crate) fn any(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Whether webhooks of this tenant have to be signed.
    pub(crate) fn protect(&self, tenant: &str) -> bool {
        self.of(tenant).is_some()
    }

    fn of(&self, tenant: &str) -> Option<&Vec<Vec<u8>>> {
        self.secrets.get(tenant).or_else(|| self.secrets.get(EACH))
    }

    /// Whether this was signed for this wait, with a secret of its tenant, and not too long ago; the id of the delivery then.
    pub(crate) fn check(
        &self,
        tenant: Option<&str>,
        webhook: &Webhook<'_>,
        now: Timestamp,
    ) -> Result<Hash, Problem> {
        let signature = webhook.signature.ok_or_else(|| {
            refused("this webhook is not signed, and its tenant has a secret for webhooks")
        })?;
        let (time, codes) = parts(signature)
            .ok_or_else(|| refused("the signature is not of the form t=SECONDS,v1=HEX"))?;
        let now = now.as_micros() / 1_000_000;
        let window = i64::try_from(self.window.as_secs()).unwrap_or(i64::MAX);
        if now.abs_diff(time) > window.unsigned_abs() {
            let detail = format!(
                "the signature is of the second {time}, and the server has {now}: they may differ by {window}"
            );
            return Err(refused(&detail).fix("sign when you send, and set the clock of the sender"));
        }
        let secrets = tenant.and_then(|tenant| self.of(tenant));
        let fits = |secret: &Vec<u8>| codes.iter().any(|code| webhook.fits(secret, time, code));
        match secrets.is_some_and(|secrets| secrets.iter().any(fits)) {
            true => Ok(webhook.delivery(time)),
            false => Err(refused("the signature does not fit this webhook")),
        }
    }
}

/// What was sent.
pub(crate) struct Webhook<'a> {
    pub(crate) job: EntityId,
    pub(crate) key: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) signature: Option<&'a str>,
}

impl Webhook<'_> {
    /// The same for the same time, key and body, however the signature is written.
    fn delivery(&self, time: i64) -> Hash {
        let head = format!("{time}\n{}\n", self.key);
        Hash::of(&[head.as_bytes(), self.body].concat())
    }

    /// Compares in a time that does not depend on where they differ.
    fn fits(&self, secret: &[u8], time: i64, code: &[u8]) -> bool {
        // A key of any length is taken.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else { return false };
        // No part but the body can hold a line end, so the parts cannot be cut in another way.
        if self.key.chars().any(char::is_control) {
            return false;
        }
        mac.update(format!("{time}\n{}\n{}\n", self.job, self.key).as_bytes());
        mac.update(self.body);
        mac.verify_slice(code).is_ok()
    }
}

/// The time and the codes of a signature. Of a scheme that is not known there may be more.
fn parts(signature: &str) -> Option<(i64, Vec<Vec<u8>>)> {
    let (mut time, mut codes) = (None, Vec::new());
    for part in signature.split(',').map(str::trim) {
        match part.split_once('=')? {
            ("t", seconds) => time = Some(seconds.parse().ok().filter(|t: &i64| *t >= 0)?),
            ("v1", code) => codes.push(bytes(code)?),
            _ => {}
        }
    }
    Some((time?, codes)).filter(|(_, codes)| !codes.is_empty())
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let even = hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    even.then(|| hex.as_bytes().chunks(2).map(pair).collect())?
}

fn refused(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, ApiCode::BadSignature, detail)
        .field("Tenure-Signature")
        .fix("sign the lines SECONDS, JOB, KEY and BODY by HMAC-SHA256 with the secret of the job's tenant, as docs/security.md shows")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef-of-acme";
    const BODY: &[u8] = b"{\"paid\":true}";

    fn secrets() -> WebhookSecrets {
        let look_up = |name: &str| match name {
            "A" => Some(SECRET.to_owned()),
            "OLD" => Some("an older secret of acme".to_owned()),
            "SHORT" => Some("short".to_owned()),
            _ => None,
        };
        let bad = |text| WebhookSecrets::read(text, Duration::from_secs(300), look_up).unwrap_err();
        assert!(bad("acme=B").contains("B is not set") && bad("acme=SHORT").contains("16"));
        for text in ["acme", "=A", "acme=", "acme=A, acme=A"] {
            assert!(!bad(text).is_empty());
        }
        WebhookSecrets::read("acme=A+OLD", Duration::from_secs(300), look_up).unwrap()
    }

    fn sign(secret: &str, text: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect()
    }

    fn check(
        tenant: &str,
        key: &str,
        body: &[u8],
        signature: &str,
        now: i64,
    ) -> Result<(), String> {
        let webhook = Webhook { job: EntityId::fixed(1, 7), key, body, signature: Some(signature) };
        let now = Timestamp::from_micros(now * 1_000_000);
        secrets().check(Some(tenant), &webhook, now).map(drop).map_err(|p| p.detail().to_owned())
    }

    #[test]
    fn what_is_signed_for_this_wait_in_time_is_taken_and_nothing_else() {
        let body = std::str::from_utf8(BODY).unwrap();
        let text = format!("1000\n{}\ngo\n{body}", EntityId::fixed(1, 7));
        let good = format!("t=1000,v1={}", sign(SECRET, &text));
        assert_eq!(check("acme", "go", BODY, &good, 1_300), Ok(()), "at the edge of the window");
        assert_eq!(check("acme", "go", BODY, &good, 700), Ok(()), "and at the other");
        let old = format!("t=1000,v1={}", sign("an older secret of acme", &text));
        assert_eq!(check("acme", "go", BODY, &old, 1_000), Ok(()), "while a secret is replaced");
        let both = format!("{old},v1={},v9=later", sign("somebody else's", &text));
        assert_eq!(check("acme", "go", BODY, &both, 1_000), Ok(()));
        for (tenant, key, body, signature, now, why) in [
            ("acme", "go", BODY, good.as_str(), 1_301, "differ by 300"),
            ("acme", "go", BODY, good.as_str(), 699, "differ by 300"),
            ("acme", "stop", BODY, good.as_str(), 1_000, "does not fit"),
            ("acme", "go", b"{}".as_slice(), good.as_str(), 1_000, "does not fit"),
            ("globex", "go", BODY, good.as_str(), 1_000, "does not fit"),
            ("acme", "go", BODY, &good.replace("t=1000", "t=1001"), 1_000, "does not fit"),
            ("acme", "go", BODY, "t=1000", 1_000, "form"),
            ("acme", "go", BODY, "v1=00", 1_000, "form"),
            ("acme", "go", BODY, "nonsense", 1_000, "form"),
            ("acme", "go", BODY, &good[..good.len() - 1], 1_000, "form"),
        ] {
            let refused = check(tenant, key, body, signature, now).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
