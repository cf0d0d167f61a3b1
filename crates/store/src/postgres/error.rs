//! What a Postgres error means to a caller. The one question that matters is whether something may
//! have been written; the rest is wording.

use tenure_kernel::error::StoreError;
use tenure_postgres::ConnectError;
use tokio_postgres::error::{DbError, Severity};

/// Why a transaction did not happen.
#[derive(Debug)]
pub(super) enum Fault {
    /// Nothing was written; another batch was faster, or Postgres broke a deadlock: run it again.
    Raced(String),
    /// Nothing was written; a constraint, a trigger or a value refused a row.
    Constraint(String),
    /// The connection was lost before COMMIT was sent: nothing was written.
    Disconnected(String),
    /// Everything else, in the kernel's words.
    Store(StoreError),
}

impl Fault {
    /// What was sent may have been committed, and nobody knows.
    pub(super) fn indeterminate(why: String) -> Self {
        Fault::Store(StoreError::Indeterminate(why))
    }

    /// Nothing was written, and asking again at once would take as long.
    pub(super) fn unavailable(why: String) -> Self {
        Fault::Store(StoreError::Unavailable(why))
    }

    /// For callers that do not run anything again.
    pub(super) fn into_store(self) -> StoreError {
        match self {
            Fault::Raced(why) | Fault::Disconnected(why) => StoreError::Unavailable(why),
            Fault::Constraint(why) => StoreError::refused_by_database(why),
            Fault::Store(e) => e,
        }
    }
}

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        Fault::Store(e)
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(e: tokio_postgres::Error) -> Self {
        match e.as_db_error() {
            Some(db) => of_sqlstate(db.code().code(), words(db)),
            // The driver fails to encode a parameter only if the SQL and the Rust types differ, and to
            // decode a value only if the schema is not ours; all else is the connection.
            None if e.is_closed() || is_io(&e) => Fault::Disconnected(chain(&e)),
            None => Fault::Store(StoreError::refused_by_database(chain(&e))),
        }
    }
}

impl From<ConnectError> for Fault {
    fn from(e: ConnectError) -> Self {
        match e {
            // Nothing was sent. Certificates may be right later, and trying again at once changes nothing.
            ConnectError::Tls(why) => Fault::Store(StoreError::Unavailable(why)),
            ConnectError::Postgres(e) => e.into(),
        }
    }
}

fn is_io(e: &tokio_postgres::Error) -> bool {
    std::error::Error::source(e).is_some_and(|s| s.is::<std::io::Error>())
}

/// The driver's own text names only the layer ("db error"); the reason stands behind it.
fn chain(e: &tokio_postgres::Error) -> String {
    match std::error::Error::source(e) {
        Some(source) => format!("{e}: {source}"),
        None => e.to_string(),
    }
}

fn words(db: &DbError) -> String {
    match db.constraint() {
        Some(constraint) => format!("{} ({constraint})", db.message()),
        None => db.message().to_owned(),
    }
}

fn of_sqlstate(code: &str, why: String) -> Fault {
    let why = format!("{why} [{code}]");
    match code {
        "TNR01" | "40001" | "40P01" => Fault::Raced(why),
        "53100" => Fault::Store(StoreError::DiskFull(why)),
        // Nothing of ours: the database is not there, or its role lacks a right. Somebody can change that while we wait.
        "3D000" => Fault::Store(StoreError::Unavailable(format!(
            "{why}: create the database, or name one that exists in store.url"
        ))),
        "42501" => Fault::Store(StoreError::Unavailable(format!(
            "{why}: grant the role of store.url the right, or use another role"
        ))),
        "25006" => Fault::Store(StoreError::ReadOnly(why)),
        "XX001" | "XX002" => Fault::Store(StoreError::Corrupt(why)),
        // Terminated, shutting down, crashed, starting; or our own timeout in a transaction.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Fault::Disconnected(why),
        _ => match &code[..2] {
            "08" => Fault::Disconnected(why),
            // Out of memory or connections, cancelled, not allowed in: may be better later.
            "53" | "55" | "57" | "58" | "28" => Fault::Store(StoreError::Unavailable(why)),
            // 22 is a value that the database can not hold, such as a NUL in text.
            "22" | "23" | "TN" => Fault::Constraint(why),
            _ => Fault::Store(StoreError::refused_by_database(why)),
        },
    }
}

/// What a failed COMMIT means, given that every statement before it succeeded. Only an ordinary ERROR
/// says that the transaction was rolled back; a lost connection or a dying server says nothing.
pub(super) fn of_commit(e: tokio_postgres::Error) -> Fault {
    let rolled_back =
        e.as_db_error().is_some_and(|db| db.parsed_severity() == Some(Severity::Error));
    if rolled_back {
        return e.into();
    }
    let why = e.as_db_error().map_or_else(|| chain(&e), words);
    Fault::Store(StoreError::Indeterminate(why))
}

/// What a failed statement means when COMMIT was sent right behind it, in the same round trip. If the
/// database answered the statement with an error, the COMMIT behind it committed nothing.
pub(super) fn of_pipelined(e: tokio_postgres::Error) -> Fault {
    match e.as_db_error() {
        Some(_) => e.into(),
        None => Fault::Store(StoreError::Indeterminate(chain(&e))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_sqlstate_has_its_meaning() {
        let of = |code| of_sqlstate(code, String::new());
        assert!(matches!(of("40P01"), Fault::Raced(_)));
        assert!(matches!(of("23514"), Fault::Constraint(_)));
        assert!(matches!(of("TN001"), Fault::Constraint(_)));
        assert!(matches!(of("TNR01"), Fault::Raced(_)));
        assert!(matches!(of("57P01"), Fault::Disconnected(_)));
        assert!(matches!(of("08006"), Fault::Disconnected(_)));
        assert!(matches!(of("53100"), Fault::Store(StoreError::DiskFull(_))));
        assert!(matches!(of("53300"), Fault::Store(StoreError::Unavailable(_))));
        assert!(matches!(of("25006"), Fault::Store(StoreError::ReadOnly(_))));
        assert!(matches!(of("XX001"), Fault::Store(StoreError::Corrupt(_))));
        assert!(matches!(of("42P01"), Fault::Store(StoreError::Refused(_))));
        // A database or a right that is missing is no bug, and says what to do.
        for (code, says) in [("3D000", "create the database"), ("42501", "grant the role")] {
            let Fault::Store(StoreError::Unavailable(why)) = of(code) else { panic!("{code}") };
            assert!(why.contains(says), "{why}");
        }
    }
}
