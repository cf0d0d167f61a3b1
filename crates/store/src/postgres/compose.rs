//! Many rows in one parameter: an array of a composite type, in Postgres's binary form.
//!
//! Road not taken: one array per column and `unnest` of them all. Postgres then runs a set-returning
//! function per column, each with a store of its own: with the twenty-two columns of a head that was a
//! fifth of the time of its update.

use super::rows::big;
use std::error::Error;
use tenure_kernel::{ids::EntityId, time::Timestamp};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, private::BytesMut, to_sql_checked};

/// Rows of a composite type, field by field in its order.
#[derive(Debug)]
pub(super) struct Rows {
    fields: i32,
    rows: i32,
    /// Where the length of the current row stands.
    open: usize,
    bytes: Vec<u8>,
}

impl Rows {
    /// No rows yet, of this many fields each.
    pub(super) fn new(fields: i32) -> Self {
        Rows { fields, rows: 0, open: 0, bytes: Vec::new() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> i64 {
        i64::from(self.rows)
    }

    /// Starts a row, after the one before is complete.
    pub(super) fn row(&mut self) -> &mut Self {
        self.close();
        self.rows += 1;
        self.open = self.bytes.len();
        self.int(0);
        self.int(self.fields);
        self
    }

    fn close(&mut self) {
        if self.rows > 0 {
            let length = length(self.bytes.len() - self.open - 4);
            self.bytes[self.open..self.open + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    /// No more rows.
    pub(super) fn finish(mut self) -> Self {
        self.close();
        self
    }

    fn int(&mut self, n: i32) {
        self.bytes.extend_from_slice(&n.to_be_bytes());
    }

    fn field(&mut self, of: &Type, value: Option<&[u8]>) -> &mut Self {
        self.bytes.extend_from_slice(&of.oid().to_be_bytes());
        self.int(value.map_or(-1, |v| length(v.len())));
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self
    }

    pub(super) fn id(&mut self, id: EntityId) -> &mut Self {
        self.field(&Type::UUID, Some(id.as_bytes()))
    }

    pub(super) fn id_opt(&mut self, id: Option<EntityId>) -> &mut Self {
        self.field(&Type::UUID, id.as_ref().map(|id| &id.as_bytes()[..]))
    }

    pub(super) fn uuid(&mut self, bytes: [u8; 16]) -> &mut Self {
        self.field(&Type::UUID, Some(&bytes))
    }

    pub(super) fn count(&mut self, n: u64) -> &mut Self {
        self.field(&Type::INT8, Some(&big(n).to_be_bytes()))
    }

    pub(super) fn time(&mut self, t: Timestamp) -> &mut Self {
        self.field(&Type::INT8, Some(&t.as_micros().to_be_bytes()))
    }

    pub(super) fn time_opt(&mut self, t: Option<Timestamp>) -> &mut Self {
        let micros = t.map(|t| t.as_micros().to_be_bytes());
        self.field(&Type::INT8, micros.as_ref().map(|m| &m[..]))
    }

    pub(super) fn int4(&mut self, n: i32) -> &mut Self {
        self.field(&Type::INT4, Some(&n.to_be_bytes()))
    }

    pub(super) fn int2(&mut self, n: i16) -> &mut Self {
        self.field(&Type::INT2, Some(&n.to_be_bytes()))
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.field(&Type::TEXT, Some(text.as_bytes()))
    }

    pub(super) fn text_opt(&mut self, text: Option<&str>) -> &mut Self {
        self.field(&Type::TEXT, text.map(str::as_bytes))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.field(&Type::BYTEA, Some(bytes))
    }

    pub(super) fn bytes_opt(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        self.field(&Type::BYTEA, bytes)
    }
}

/// Batches are closed at a few megabytes; Postgres itself refuses what is too long.
fn length(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl ToSql for Rows {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Kind::Array(element) = ty.kind() else { return Err("not an array".into()) };
        let dimensions = i32::from(self.rows > 0);
        out.extend_from_slice(&dimensions.to_be_bytes());
        out.extend_from_slice(&0_i32.to_be_bytes());
        out.extend_from_slice(&element.oid().to_be_bytes());
        if self.rows > 0 {
            out.extend_from_slice(&self.rows.to_be_bytes());
            out.extend_from_slice(&1_i32.to_be_bytes());
            out.extend_from_slice(&self.bytes);
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(ty.kind(), Kind::Array(t) if matches!(t.kind(), Kind::Composite(_)))
    }

    to_sql_checked!();
}
