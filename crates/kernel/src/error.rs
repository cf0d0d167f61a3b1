//! Errors that a user can meet. Each has a stable code, and each code a page in `docs/errors/` that
//! says what happened and what to do. Whether trying again can help is part of the type.

use std::fmt;

/// A stable name for what went wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Code {
    /// A value in the configuration is not usable.
    BadConfig,
    /// A flow or a tool has a JSON schema that is not accepted.
    BadSchema,
    /// The store holds bytes that can not be right.
    Corrupt,
    /// Another process has the data directory open for writing.
    DataDirectoryInUse,
    /// The disk or the quota is full.
    DiskFull,
    /// A feed cursor can not be continued.
    FeedLost,
    /// A commit's fate is not known.
    Indeterminate,
    /// A limit was passed.
    LimitPassed,
    /// The database schema is newer than the program.
    NewerSchema,
    /// There is no such entity.
    NotFound,
    /// A tenant stores as many bytes as it may.
    QuotaBytes,
    /// A tenant has as many open entities as it may.
    QuotaOpen,
    /// A tenant submits faster than it may.
    QuotaRate,
    /// The database takes no writes.
    ReadOnly,
    /// The database refused something the kernel allowed.
    Refused,
    /// Another tenure has begun.
    StaleAttempt,
    /// The store can not be reached.
    StoreUnavailable,
    /// Another commit came first.
    VersionConflict,
}

impl Code {
    /// Every code, in alphabetical order.
    pub const ALL: [Code; 18] = [
        Code::BadConfig,
        Code::BadSchema,
        Code::Corrupt,
        Code::DataDirectoryInUse,
        Code::DiskFull,
        Code::FeedLost,
        Code::Indeterminate,
        Code::LimitPassed,
        Code::NewerSchema,
        Code::NotFound,
        Code::QuotaBytes,
        Code::QuotaOpen,
        Code::QuotaRate,
        Code::ReadOnly,
        Code::Refused,
        Code::StaleAttempt,
        Code::StoreUnavailable,
        Code::VersionConflict,
    ];

    /// The code as text; also the name of its page.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::BadConfig => "bad_config",
            Code::BadSchema => "bad_schema",
            Code::Corrupt => "corrupt",
            Code::DataDirectoryInUse => "data_directory_in_use",
            Code::DiskFull => "disk_full",
            Code::FeedLost => "feed_lost",
            Code::Indeterminate => "indeterminate",
            Code::LimitPassed => "limit_passed",
            Code::NewerSchema => "newer_schema",
            Code::NotFound => "not_found",
            Code::QuotaBytes => "quota_bytes",
            Code::QuotaOpen => "quota_open",
            Code::QuotaRate => "quota_rate",
            Code::ReadOnly => "read_only",
            Code::Refused => "refused",
            Code::StaleAttempt => "stale_attempt",
            Code::StoreUnavailable => "store_unavailable",
            Code::VersionConflict => "version_conflict",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written; try again later.
    #[error("the store can not be reached: {0}")]
    Unavailable(String),
    /// The connection was lost in the middle: written or not, nobody can say. Ask again with the same
    /// commit ids.
    #[error("the connection was lost while committing; ask again with the same commit id: {0}")]
    Indeterminate(String),
    /// Nothing was written; free some space.
    #[error("the disk is full; free space and the store goes on by itself: {0}")]
    DiskFull(String),
    /// Nothing was written: a standby, or a file system mounted read-only.
    #[error("the database takes no writes: {0}")]
    ReadOnly(String),
    /// Stored bytes are damaged.
    #[error("stored data can not be right: {0}")]
    Corrupt(String),
    /// The schema is from a newer program.
    #[error(
        "the database has schema {found}, this program knows {known}: use a newer program, it migrates forwards only"
    )]
    NewerSchema {
        /// In the database.
        found: i64,
        /// In the program.
        known: i64,
    },
    /// Another process writes to the data directory.
    #[error(
        "another process has {path} open for writing (pid {pid}): stop it first, or choose another data directory"
    )]
    InUse {
        /// The data directory.
        path: String,
        /// Who has it.
        pid: String,
    },
    /// Too large.
    #[error("{what} is {actual}, the limit is {limit}")]
    Limit {
        /// What was measured.
        what: &'static str,
        /// How much.
        actual: usize,
        /// How much it may be.
        limit: usize,
    },
    /// A flow or a tool cannot be registered with its JSON schema. The text says which, why, and what to do.
    #[error("{0}")]
    BadSchema(String),
    /// A store, a machine or a bus refused it, and says why. Repeating it does not help. See
    /// [`Self::refused_by_database`].
    #[error("{0}")]
    Refused(String),
    /// A tenant has as much as it may. Nothing was written.
    #[error(transparent)]
    Quota(#[from] crate::quota::QuotaExceeded),
    /// The feed can not be continued.
    #[error(transparent)]
    FeedLost(#[from] crate::feed::Lost),
}

impl StoreError {
    /// A database refused a row that the kernel allowed. A bug.
    pub fn refused_by_database(why: impl std::fmt::Display) -> Self {
        StoreError::Refused(format!("the database refused a statement: {why}"))
    }

    /// Its code.
    pub fn code(&self) -> Code {
        match self {
            StoreError::Unavailable(_) => Code::StoreUnavailable,
            StoreError::Indeterminate(_) => Code::Indeterminate,
            StoreError::DiskFull(_) => Code::DiskFull,
            StoreError::ReadOnly(_) => Code::ReadOnly,
            StoreError::Corrupt(_) => Code::Corrupt,
            StoreError::NewerSchema { .. } => Code::NewerSchema,
            StoreError::InUse { .. } => Code::DataDirectoryInUse,
            StoreError::Limit { .. } => Code::LimitPassed,
            StoreError::BadSchema(_) => Code::BadSchema,
            StoreError::Refused(_) => Code::Refused,
            StoreError::Quota(exceeded) => exceeded.part.code(),
            StoreError::FeedLost(_) => Code::FeedLost,
        }
    }

    /// Whether the same call can succeed later, unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            StoreError::Unavailable(_)
                | StoreError::Indeterminate(_)
                | StoreError::DiskFull(_)
                | StoreError::ReadOnly(_)
                | StoreError::Quota(_)
        )
    }
}
