//! Ed25519 keys in their usual files (PEM), and what is signed.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ed25519_dalek::{
    Signer as _, VerifyingKey,
    pkcs8::{
        DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
        spki::der::pem::LineEnding,
    },
};
use std::fmt;
use tenure_kernel::stream::Hash;
use tenure_steps::canonical::hex;

/// What every signature begins with, so that it can never be taken for one over something else.
const DOMAIN: &[u8] = b"tenure-export signature, version 1\n";

/// A key that can not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadKey(String);

/// Signs exports.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public().id())
    }
}

impl SigningKey {
    /// From 32 random bytes; the caller brings them (law 7).
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        SigningKey(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// From a PEM file with a PKCS#8 private key.
    pub fn from_pem(text: &str) -> Result<Self, BadKey> {
        ed25519_dalek::SigningKey::from_pkcs8_pem(text.trim())
            .map(SigningKey)
            .map_err(|e| BadKey(format!("this is no Ed25519 private key in PEM form: {e}")))
    }

    /// As a PEM file. Keep it to yourself.
    pub fn to_pem(&self) -> Result<String, BadKey> {
        let pem = self.0.to_pkcs8_pem(LineEnding::LF);
        pem.map(|p| p.to_string()).map_err(|e| BadKey(e.to_string()))
    }

    /// The half that others may have.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a file of which this is the digest and the number of lines.
    pub(super) fn sign(&self, digest: Hash, lines: u64) -> String {
        BASE64_STANDARD.encode(self.0.sign(&message(digest, lines)).to_bytes())
    }
}

/// Checks signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// From a PEM file or 64 hexadecimal digits.
    pub fn from_text(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        if text.starts_with("-----BEGIN PRIVATE") {
            return Err(BadKey(
                "this is the private key: give the public one, and keep this".into(),
            ));
        }
        if text.starts_with("-----BEGIN") {
            return VerifyingKey::from_public_key_pem(text)
                .map(PublicKey)
                .map_err(|e| BadKey(format!("this is no Ed25519 public key in PEM form: {e}")));
        }
        let bytes = bytes32(text).ok_or_else(|| {
            BadKey("a public key is a PEM file or 64 hexadecimal digits".to_owned())
        })?;
        VerifyingKey::from_bytes(&bytes)
            .map(PublicKey)
            .map_err(|_| BadKey("these digits are no Ed25519 public key".to_owned()))
    }

    /// As a PEM file.
    pub fn to_pem(&self) -> Result<String, BadKey> {
        self.0.to_public_key_pem(LineEnding::LF).map_err(|e| BadKey(e.to_string()))
    }

    /// 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        hex(self.0.as_bytes())
    }

    /// What it is called: the digest of its bytes.
    pub fn id(&self) -> String {
        Hash::of(self.0.as_bytes()).to_string()
    }

    /// Strict: no second form of a signature counts, nor a key of small order.
    pub(super) fn agrees(&self, digest: Hash, lines: u64, signature: &str) -> bool {
        let Ok(bytes) = BASE64_STANDARD.decode(signature) else { return false };
        let Ok(bytes) = <[u8; 64]>::try_from(bytes) else { return false };
        let signature = ed25519_dalek::Signature::from_bytes(&bytes);
        self.0.verify_strict(&message(digest, lines), &signature).is_ok()
    }
}

fn message(digest: Hash, lines: u64) -> Vec<u8> {
    [DOMAIN, &digest.0, &lines.to_be_bytes()].concat()
}

/// 32 bytes from 64 hexadecimal digits.
pub(super) fn bytes32(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_files() {
        let key = SigningKey::from_seed(&[7; 32]);
        let again = SigningKey::from_pem(&key.to_pem().unwrap()).unwrap();
        assert_eq!(again.public(), key.public());
        let public = key.public();
        assert_eq!(PublicKey::from_text(&public.to_pem().unwrap()), Ok(public));
        assert_eq!(PublicKey::from_text(&format!(" {}\n", public.hex())), Ok(public));
        assert_eq!(public.id().len(), 64);
    }

    #[test]
    fn a_private_key_is_not_taken_for_a_public_one_nor_shown() {
        let key = SigningKey::from_seed(&[7; 32]);
        let e = PublicKey::from_text(&key.to_pem().unwrap()).unwrap_err().to_string();
        assert!(e.contains("private"), "{e}");
        assert!(!format!("{key:?}").contains(&hex(&[7; 32])));
        for bad in [
            "",
            "zz",
            &"g".repeat(64),
            "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----",
        ] {
            assert!(PublicKey::from_text(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_signature_is_for_one_digest_and_one_length() {
        let key = SigningKey::from_seed(&[1; 32]);
        let (a, b) = (Hash::of(b"a"), Hash::of(b"b"));
        let signed = key.sign(a, 3);
        assert!(key.public().agrees(a, 3, &signed));
        assert!(!key.public().agrees(b, 3, &signed));
        assert!(!key.public().agrees(a, 4, &signed));
        assert!(!SigningKey::from_seed(&[2; 32]).public().agrees(a, 3, &signed));
    }
}
