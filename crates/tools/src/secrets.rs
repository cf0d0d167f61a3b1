//! Secrets are named in arguments and looked up when a call is made, because arguments are recorded for
//! ever: history holds the name, the wire the value.
//!
//! Arguments may come from a plan that an agent proposed. If any variable of the worker's environment could
//! be named, `http` would be a way to send the database's password anywhere. So only names with the prefix
//! [`SECRET_PREFIX`] can be used, and those the operator has allowed one by one; and where a worker serves several tenants,
//! each of them only what it was given.
//!
//! What goes out may come back: servers echo headers, programs print their environment. Values that
//! were used in a call are therefore taken out of its errors and results (`Redactor`). This is a net under the
//! rope and not a promise: a secret that comes back encoded is not recognised.

use crate::tenants::Grants;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};
use tenure_steps::tool::ToolError;

/// Environment variables that begin with this may be named in arguments.
pub const SECRET_PREFIX: &str = "TENURE_SECRET_";

/// Shorter values are not taken out of texts: they would be found where they are not.
const REDACT_BYTES_MIN: usize = 6;

/// Where secrets are looked up, and which may be.
#[derive(Clone, Default)]
pub struct Secrets {
    allowed: BTreeSet<String>,
    /// What each tenant may name; `None`: all that may be named at all.
    given: Option<Grants>,
    /// Instead of the environment.
    fixed: Option<Arc<BTreeMap<String, String>>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl Secrets {
    /// Also this name, without the prefix.
    pub fn allow(mut self, name: &str) -> Self {
        self.allowed.insert(name.to_owned());
        self
    }

    /// Each tenant names what it was given, and nothing else.
    pub fn given(mut self, grants: Grants) -> Self {
        self.given = Some(grants);
        self
    }

    /// From here instead of from the environment: for tests, and for operators with a vault.
    pub fn fixed(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Secrets { fixed: Some(Arc::new(values.into_iter().collect())), ..Secrets::default() }
    }

    /// A secret that arguments of a tenant's job name.
    pub(crate) fn named(&self, tenant: &str, name: &str) -> Result<String, ToolError> {
        if !name.starts_with(SECRET_PREFIX) && !self.allowed.contains(name) {
            return Err(ToolError::Permanent(format!(
                "the secret {name} may not be used here: its name has to begin with {SECRET_PREFIX}, or the \
                 operator has to allow it"
            )));
        }
        if self.given.as_ref().is_some_and(|given| !given.allow(tenant, name)) {
            return Err(ToolError::Permanent(format!(
                "jobs of tenant {tenant:?} may not use the secret {name}: the operator gives secrets to tenants \
                 (tools.secrets)"
            )));
        }
        self.configured(name)
    }

    /// A secret that the operator named in the configuration.
    pub(crate) fn configured(&self, name: &str) -> Result<String, ToolError> {
        let value = match &self.fixed {
            Some(values) => values.get(name).cloned(),
            None => std::env::var(name).ok(),
        };
        value.filter(|v| !v.is_empty()).ok_or_else(|| {
            ToolError::Permanent(format!(
                "the secret {name} is not set in the environment of this worker"
            ))
        })
    }
}

/// A text in arguments, or the name of a secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Text {
    /// As it stands. It is recorded.
    Plain(String),
    /// Looked up when the call is made. Only the name is recorded.
    Secret {
        /// The name of an environment variable of the worker.
        secret: String,
        /// Goes in front of the value: `"Bearer "`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        prefix: String,
    },
}

impl Text {
    /// What it stands for. A secret is noted, so that it can be taken out of what comes back.
    pub(crate) fn resolve(
        &self,
        secrets: &Secrets,
        tenant: &str,
        redactor: &mut Redactor,
    ) -> Result<String, ToolError> {
        match self {
            Text::Plain(text) => Ok(text.clone()),
            Text::Secret { secret, prefix } => {
                let value = secrets.named(tenant, secret)?;
                redactor.hide(&value, secret);
                Ok(format!("{prefix}{value}"))
            }
        }
    }

    /// Whether it names a secret.
    pub(crate) fn is_secret(&self) -> bool {
        matches!(self, Text::Secret { .. })
    }
}

/// Takes the secrets of one call out of texts.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Vec<(String, String)>);

impl Redactor {
    /// From now on, this name instead of this value.
    pub(crate) fn hide(&mut self, value: &str, name: &str) {
        if value.len() >= REDACT_BYTES_MIN {
            self.0.push((value.to_owned(), format!("[secret {name}]")));
            // As it would stand inside of JSON, if that is something else.
            let quoted = serde_json::Value::from(value).to_string();
            let inside = &quoted[1..quoted.len() - 1];
            if inside != value {
                self.0.push((inside.to_owned(), format!("[secret {name}]")));
            }
            // The longest first: one secret may be a part of another.
            self.0.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
        }
    }

    /// The text without them.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prefixed_or_allowed_names_are_looked_up() {
        let all = ["TENURE_SECRET_A", "GITHUB_TOKEN", "DATABASE_URL"];
        let secrets = Secrets::fixed(all.map(|n| (n.to_owned(), format!("value of {n}"))))
            .allow("GITHUB_TOKEN");
        assert_eq!(secrets.named("t", "TENURE_SECRET_A"), Ok("value of TENURE_SECRET_A".into()));
        assert_eq!(secrets.named("t", "GITHUB_TOKEN"), Ok("value of GITHUB_TOKEN".into()));
        let refused = secrets.named("t", "DATABASE_URL").map_err(|e| e.to_string());
        assert!(refused.is_err_and(|e| e.contains("DATABASE_URL") && e.contains(SECRET_PREFIX)));
        assert!(matches!(secrets.named("t", "TENURE_SECRET_B"), Err(ToolError::Permanent(_))));
        let apart = secrets.given(Grants::read("acme=TENURE_SECRET_A").unwrap());
        assert!(apart.named("acme", "TENURE_SECRET_A").is_ok());
        let refused = apart.named("globex", "TENURE_SECRET_A").map_err(|e| e.to_string());
        assert!(refused.is_err_and(|e| e.contains("globex") && e.contains("tools.secrets")));
        assert!(apart.named("acme", "GITHUB_TOKEN").is_err(), "allowed to be named, not given");
    }

    #[test]
    fn a_secret_inside_another_does_not_uncover_it() {
        let mut redactor = Redactor::default();
        redactor.hide("hunter", "A");
        redactor.hide("hunter22", "B");
        redactor.hide("abcde", "SHORT");
        assert_eq!(redactor.clean("hunter22 hunter abcde"), "[secret B] [secret A] abcde");
    }

    #[test]
    fn a_secret_is_found_inside_json() {
        let mut redactor = Redactor::default();
        redactor.hide("pass\"word", "A");
        assert_eq!(redactor.clean("pass\"word"), "[secret A]");
        assert_eq!(redactor.clean(r#"{"p":"pass\"word"}"#), r#"{"p":"[secret A]"}"#);
    }
}
