//! Store errors on the wire: a member of the problem that a server answers with.

use super::Words;
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    error::StoreError,
    feed,
    quota::{QuotaExceeded, QuotaPart},
};
use utoipa::ToSchema;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoreFault {
    /// Nothing was written; try again later.
    Unavailable(String),
    /// Written or not, nobody can say; ask again with the same ids.
    Indeterminate(String),
    /// Nothing was written; space is needed.
    DiskFull(String),
    /// Nothing was written; the database takes no writes.
    ReadOnly(String),
    /// Stored bytes are damaged.
    Corrupt(String),
    /// The schema is from a newer program.
    NewerSchema {
        /// In the database.
        found: i64,
        /// In the program.
        known: i64,
    },
    /// Another process writes to the data directory.
    InUse {
        /// The data directory.
        path: String,
        /// Who has it.
        pid: String,
    },
    /// Too large.
    Limit {
        /// What was measured.
        what: String,
        /// How much.
        actual: usize,
        /// How much it may be.
        limit: usize,
    },
    /// Not allowed.
    Refused(String),
    /// A tenant has as much as it may.
    Quota {
        /// `open`, `bytes` or `per_second`.
        part: String,
        /// Whose.
        tenant: String,
        /// How much there is.
        used: u64,
        /// How much there may be.
        limit: u64,
        /// When another try is worth it.
        retry_after_s: u64,
    },
    /// The feed can not be continued.
    FeedLost {
        /// By retention; else the store has another life.
        by_retention: bool,
        /// Where to start anew.
        restart: String,
    },
}

impl StoreFault {
    /// For the wire.
    pub fn of(e: &StoreError) -> Self {
        match e {
            StoreError::Unavailable(why) => StoreFault::Unavailable(why.clone()),
            StoreError::Indeterminate(why) => StoreFault::Indeterminate(why.clone()),
            StoreError::DiskFull(why) => StoreFault::DiskFull(why.clone()),
            StoreError::ReadOnly(why) => StoreFault::ReadOnly(why.clone()),
            StoreError::Corrupt(why) => StoreFault::Corrupt(why.clone()),
            StoreError::NewerSchema { found, known } => {
                StoreFault::NewerSchema { found: *found, known: *known }
            }
            StoreError::InUse { path, pid } => {
                StoreFault::InUse { path: path.clone(), pid: pid.clone() }
            }
            StoreError::Limit { what, actual, limit } => {
                StoreFault::Limit { what: (*what).to_owned(), actual: *actual, limit: *limit }
            }
            StoreError::BadSchema(why) | StoreError::Refused(why) => {
                StoreFault::Refused(why.clone())
            }
            StoreError::Quota(e) => StoreFault::Quota {
                part: e.part.as_str().to_owned(),
                tenant: e.tenant.clone(),
                used: e.used,
                limit: e.limit,
                retry_after_s: e.retry_after_s,
            },
            StoreError::FeedLost(lost) => {
                let (by_retention, restart) = match lost {
                    feed::Lost::OtherIncarnation { restart } => (false, restart),
                    feed::Lost::BelowFloor { restart } => (true, restart),
                };
                StoreFault::FeedLost { by_retention, restart: restart.to_string() }
            }
        }
    }

    /// As it was. A cursor that can not be read leads to the beginning of the feed.
    pub fn read(self, words: &Words) -> StoreError {
        match self {
            StoreFault::Unavailable(why) => StoreError::Unavailable(why),
            StoreFault::Indeterminate(why) => StoreError::Indeterminate(why),
            StoreFault::DiskFull(why) => StoreError::DiskFull(why),
            StoreFault::ReadOnly(why) => StoreError::ReadOnly(why),
            StoreFault::Corrupt(why) => StoreError::Corrupt(why),
            StoreFault::NewerSchema { found, known } => StoreError::NewerSchema { found, known },
            StoreFault::InUse { path, pid } => StoreError::InUse { path, pid },
            StoreFault::Limit { what, actual, limit } => {
                StoreError::Limit { what: words.keep(&what), actual, limit }
            }
            StoreFault::Refused(why) => StoreError::Refused(why),
            StoreFault::Quota { part, tenant, used, limit, retry_after_s } => {
                let known = QuotaPart::ALL.into_iter().find(|p| p.as_str() == part);
                let part = known.unwrap_or(QuotaPart::Open);
                StoreError::Quota(QuotaExceeded { part, tenant, used, limit, retry_after_s })
            }
            StoreFault::FeedLost { by_retention, restart } => {
                let restart = restart.parse().unwrap_or(feed::Cursor::START);
                StoreError::FeedLost(match by_retention {
                    true => feed::Lost::BelowFloor { restart },
                    false => feed::Lost::OtherIncarnation { restart },
                })
            }
        }
    }
}
