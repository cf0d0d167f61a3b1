//! The byte form of records. Small on purpose: length-prefixed fields and variable-length integers,
//! written once and never rewritten, so that the bytes in a database are the bytes that were hashed.

use crate::{ids::EntityId, time::Timestamp};

/// Appends fields to a buffer.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }

    /// A variable-length unsigned integer, seven bits per byte, lowest first.
    pub fn uint(&mut self, mut v: u64) {
        while v >= 0x80 {
            self.0.push((v as u8) | 0x80);
            v >>= 7;
        }
        self.0.push(v as u8);
    }

    /// A length-prefixed byte string.
    pub fn bytes(&mut self, v: &[u8]) {
        self.uint(v.len() as u64);
        self.0.extend_from_slice(v);
    }

    /// Sixteen bytes.
    pub fn id(&mut self, v: EntityId) {
        self.0.extend_from_slice(v.as_bytes());
    }

    /// Eight bytes, big-endian.
    pub fn time(&mut self, v: Timestamp) {
        self.0.extend_from_slice(&v.as_micros().to_be_bytes());
    }
}

/// The bytes do not have the form that [`Writer`] gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stored bytes are damaged: field at byte {at} cannot be read")]
pub struct Damaged {
    /// Where reading stopped.
    pub at: usize,
}

/// Takes fields from a buffer, in the order they were written.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Whether everything was read.
    pub fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// How many bytes were not read yet.
    pub fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// `n` raw bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Damaged> {
        let end = self.at.checked_add(n).ok_or(Damaged { at: self.at })?;
        let slice = self.bytes.get(self.at..end).ok_or(Damaged { at: self.at })?;
        self.at = end;
        Ok(slice)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Damaged> {
        Ok(self.take(1)?[0])
    }

    /// See [`Writer::uint`].
    pub fn uint(&mut self) -> Result<u64, Damaged> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.u8()?;
            // The tenth byte has room for one bit; more would be lost and the bytes not canonical.
            if shift == 63 && b > 1 {
                return Err(Damaged { at: self.at });
            }
            v |= u64::from(b & 0x7f) << shift;
            if b < 0x80 {
                return Ok(v);
            }
        }
        Err(Damaged { at: self.at })
    }

    /// See [`Writer::bytes`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let n = usize::try_from(self.uint()?).map_err(|_| Damaged { at: self.at })?;
        self.take(n)
    }

    /// A length-prefixed UTF-8 string.
    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        let at = self.at;
        std::str::from_utf8(self.bytes()?).map_err(|_| Damaged { at })
    }

    /// See [`Writer::id`].
    pub fn id(&mut self) -> Result<EntityId, Damaged> {
        let mut b = [0u8; 16];
        b.copy_from_slice(self.take(16)?);
        Ok(EntityId::from_bytes(b))
    }

    /// See [`Writer::time`].
    pub fn time(&mut self) -> Result<Timestamp, Damaged> {
        let mut b = [0u8; 8];
        b.copy_from_slice(self.take(8)?);
        Ok(Timestamp::from_micros(i64::from_be_bytes(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_round_trip(n: u64, b: Vec<u8>, t: i64, id: [u8; 16]) {
            let mut w = Writer::default();
            w.uint(n);
            w.bytes(&b);
            w.time(Timestamp::from_micros(t));
            w.id(EntityId::from_bytes(id));
            let mut r = Reader::new(&w.0);
            prop_assert_eq!(r.uint(), Ok(n));
            prop_assert_eq!(r.bytes(), Ok(&b[..]));
            prop_assert_eq!(r.time(), Ok(Timestamp::from_micros(t)));
            prop_assert_eq!(r.id(), Ok(EntityId::from_bytes(id)));
            prop_assert!(r.is_done());
        }

        #[test]
        fn arbitrary_bytes_never_panic(b: Vec<u8>) {
            let mut r = Reader::new(&b);
            while r.uint().is_ok() && r.bytes().is_ok() && !r.is_done() {}
        }
    }
}
