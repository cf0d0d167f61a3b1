//! Channel binding (`tls-server-end-point`, RFC 5929): SCRAM proves to each side that both see the same certificate. Nobody in the middle can
//! then pass a login on, even where certificates are not checked.

use sha2::{Digest as _, Sha256, Sha384, Sha512};

/// The digest of a certificate by the hash of its own signature; nothing where that hash is not known.
pub(crate) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(match hash_of(signature_algorithm(certificate)?)? {
        Hash::Sha256 => Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// By object identifiers as DER has them. MD5 and SHA-1 count as SHA-256.
fn hash_of(algorithm: &[u8]) -> Option<Hash> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04];
    if let Some(kind) = algorithm.strip_prefix(RSA) {
        return match kind {
            [4 | 5 | 11] => Some(Hash::Sha256),
            [12] => Some(Hash::Sha384),
            [13] => Some(Hash::Sha512),
            _ => None,
        };
    }
    match algorithm.strip_prefix(ECDSA)? {
        [1] | [3, 2] => Some(Hash::Sha256),
        [3, 3] => Some(Hash::Sha384),
        [3, 4] => Some(Hash::Sha512),
        _ => None,
    }
}

/// `Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, … }, … }`
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    let (inside, _) = value(certificate, SEQUENCE)?;
    let (_, rest) = value(inside, SEQUENCE)?;
    let (algorithm, _) = value(rest, SEQUENCE)?;
    Some(value(algorithm, OBJECT_IDENTIFIER)?.0)
}

/// The contents of the DER value with this tag at the beginning, and what follows it.
fn value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b)), rest)
        }
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    #[test]
    fn the_hash_of_the_signature_is_used() {
        let CertifiedKey { cert, .. } = generate_simple_self_signed(["h".to_owned()]).unwrap();
        let der = cert.der();
        // rcgen signs with ECDSA and SHA-256.
        assert_eq!(end_point(der), Some(Sha256::digest(der).to_vec()));
    }

    #[test]
    fn anything_else_has_no_binding() {
        let CertifiedKey { cert, .. } = generate_simple_self_signed(["h".to_owned()]).unwrap();
        for length in 0..cert.der().len().min(400) {
            let _ = end_point(&cert.der()[..length]);
        }
        assert_eq!(end_point(b""), None);
        assert_eq!(end_point(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(end_point(&[0x30, 0x80]), None);
    }
}
