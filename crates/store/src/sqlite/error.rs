//! SQLite's result codes as typed errors.

use rusqlite::{Error, ErrorCode};
use tenure_kernel::error::StoreError;

/// How a failed statement has to be handled.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A constraint or trigger refused a row: the guilty operation is found by running each alone.
    Constraint(String),
    /// Nothing was written; the connection is fine.
    Clean(StoreError),
    /// The file or its sync failed: what is on the disk is not known. Close and reopen; a second
    /// fsync after a failed one may report success for pages that were dropped.
    Reopen(StoreError),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        let text = e.to_string();
        let Error::SqliteFailure(failure, _) = &e else {
            return Trouble::Clean(StoreError::Corrupt(text));
        };
        match failure.code {
            ErrorCode::ConstraintViolation => Trouble::Constraint(text),
            ErrorCode::DiskFull => Trouble::Clean(StoreError::DiskFull(text)),
            ErrorCode::ReadOnly => Trouble::Clean(StoreError::ReadOnly(text)),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                Trouble::Clean(StoreError::Corrupt(text))
            }
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                Trouble::Clean(StoreError::Unavailable(text))
            }
            ErrorCode::SystemIoFailure | ErrorCode::CannotOpen | ErrorCode::PermissionDenied => {
                Trouble::Reopen(StoreError::Unavailable(text))
            }
            _ => Trouble::Clean(StoreError::refused_by_database(text)),
        }
    }
}

impl From<tenure_kernel::codec::Damaged> for Trouble {
    fn from(e: tenure_kernel::codec::Damaged) -> Self {
        Trouble::Clean(StoreError::Corrupt(e.to_string()))
    }
}

impl Trouble {
    /// As an error of a call that is over.
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Trouble::Constraint(text) => StoreError::refused_by_database(text),
            Trouble::Clean(e) | Trouble::Reopen(e) => e,
        }
    }
}
