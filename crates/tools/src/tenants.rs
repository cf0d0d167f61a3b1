//! For whom a tool does what not everybody may ask for.
//!
//! A job runs with the rights of its worker, and whoever may submit one decides what its tools are told. That keeps tenants
//! apart only as long as no tool reaches what belongs to all: `command` runs programs as the worker's own user, and secrets
//! lie in the worker's environment. So an operator says whose jobs may.

use std::collections::{BTreeMap, BTreeSet};

/// Everybody, in what an operator writes.
const ALL: &str = "*";
/// Nobody.
const NONE: &str = "none";

/// Some tenants, or all of them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Tenants {
    /// All of them.
    #[default]
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Tenants {
    /// `default, ops`, `*` or `none`.
    pub fn read(text: &str) -> Result<Self, String> {
        let names = || text.split(',').map(str::trim).filter(|n| !n.is_empty());
        match text.trim() {
            ALL => Ok(Tenants::All),
            NONE => Ok(Tenants::Only(BTreeSet::new())),
            _ if names().next().is_none() => Err("is empty: write none for nobody".to_owned()),
            _ => match names().find(|n| n.contains(['*', '/', ' '])) {
                Some(bad) => Err(format!("{bad:?} is no name of a tenant; * alone means all")),
                None => Ok(Tenants::Only(names().map(str::to_owned).collect())),
            },
        }
    }

    /// Whether it is one of them.
    pub fn contain(&self, tenant: &str) -> bool {
        match self {
            Tenants::All => true,
            Tenants::Only(names) => names.contains(tenant),
        }
    }
}

/// Which names which tenants may use: `default=*, acme=TENURE_SECRET_A+TENURE_SECRET_B`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Grants(BTreeMap<String, BTreeSet<String>>);

impl Grants {
    /// As an operator writes them.
    pub fn read(text: &str) -> Result<Self, String> {
        let bad = |part: &str| {
            format!(
                "{part:?} is no tenant with names of secrets, such as default=* or acme=TENURE_SECRET_A+TENURE_SECRET_B"
            )
        };
        let mut grants = BTreeMap::new();
        if text.trim() == NONE {
            return Ok(Grants(grants));
        }
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (tenant, names) = part.split_once('=').ok_or_else(|| bad(part))?;
            let names: BTreeSet<String> = names.split('+').map(|n| n.trim().to_owned()).collect();
            if tenant.trim().is_empty() || names.iter().any(String::is_empty) {
                return Err(bad(part));
            }
            if grants.insert(tenant.trim().to_owned(), names).is_some() {
                return Err(format!("{part:?}: this tenant is there twice"));
            }
        }
        Ok(Grants(grants))
    }

    /// Whether this tenant may use this name.
    pub fn allow(&self, tenant: &str, name: &str) -> bool {
        let given = [tenant, ALL].into_iter().filter_map(|t| self.0.get(t));
        given.into_iter().any(|names| names.contains(ALL) || names.contains(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_named_may_and_nobody_else() {
        let some = Tenants::read("default, ops").unwrap();
        assert!(some.contain("default") && some.contain("ops"));
        assert!(!some.contain("acme") && !some.contain(""));
        assert!(Tenants::read("*").unwrap().contain("acme"));
        assert!(!Tenants::read("none").unwrap().contain("none"));
        for bad in ["", " , ", "a*", "*, a", "a/b"] {
            assert!(Tenants::read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_tenant_uses_what_it_was_given() {
        let grants = Grants::read("default=*, acme=A+B, *=SHARED").unwrap();
        assert!(grants.allow("default", "ANY") && grants.allow("acme", "A"));
        assert!(!grants.allow("acme", "C") && !grants.allow("globex", "A"));
        assert!(grants.allow("acme", "SHARED") && grants.allow("globex", "SHARED"));
        assert!(!Grants::read("none").unwrap().allow("none", "A"));
        for bad in ["acme", "=A", "acme=", "acme=A+", "a=A, a=B"] {
            assert!(Grants::read(bad).is_err(), "{bad:?}");
        }
    }
}
