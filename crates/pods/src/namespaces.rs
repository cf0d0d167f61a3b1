//! In which namespaces a tenant's pods may be made.
//!
//! The right to make pods is the executor's, and the cluster can not see for whom it asks. So what keeps tenants apart there is
//! decided here, before a task is written: a tenant has the namespaces that an operator gave it, and without a word the one
//! in which executors make pods whose task names none. Keys without a tenant are the operator's own, and free.

use crate::execute::make::is_dns_label;
use std::collections::{BTreeMap, BTreeSet};

/// The tenant of those who have none.
pub const NOBODYS: &str = "default";

/// Every namespace.
const ANY: &str = "*";

/// Who may have pods where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    own: String,
    of: BTreeMap<String, BTreeSet<String>>,
}

impl Namespaces {
    /// `acme=ml+ml-dev, beta=*`, and the namespace for everybody (empty: none that could be named).
    pub fn read(own: &str, text: &str) -> Result<Self, String> {
        let bad = |part: &str| {
            format!("{part:?} is no tenant with its namespaces, such as acme=ml+ml-dev or beta=*")
        };
        let mut of = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (tenant, names) = part.split_once('=').ok_or_else(|| bad(part))?;
            let names: BTreeSet<String> = names.split('+').map(|n| n.trim().to_owned()).collect();
            let tenant = tenant.trim().to_owned();
            if tenant.is_empty() || names.iter().any(|n| n != ANY && !is_dns_label(n)) {
                return Err(bad(part));
            }
            if of.insert(tenant, names).is_some() {
                return Err(format!("{part:?}: this tenant is there twice"));
            }
        }
        Ok(Namespaces { own: own.to_owned(), of })
    }

    /// Whether the work of a tenant is bound at all, where nobody knows whose key asked for it.
    pub fn binds(&self, tenant: &str) -> bool {
        tenant != NOBODYS || self.of.contains_key(tenant)
    }

    /// Why a tenant may not have pods there.
    pub fn problem(&self, tenant: &str, namespace: Option<&str>) -> Option<String> {
        let namespace = namespace?;
        let may = match self.of.get(tenant) {
            Some(names) => names.contains(ANY) || names.contains(namespace),
            None => namespace == self.own,
        };
        (!may).then(|| format!("tenant {tenant:?} may not have pods in namespace {namespace:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_what_it_was_given_and_without_a_word_the_common_one() {
        let who = Namespaces::read("jobs", "acme=ml+ml-dev, beta=*").unwrap();
        let may = |tenant: &str, namespace| who.problem(tenant, namespace).is_none();
        assert!(may("acme", Some("ml")) && may("acme", Some("ml-dev")) && may("acme", None));
        assert!(!may("acme", Some("jobs")) && !may("acme", Some("kube-system")));
        assert!(may("beta", Some("kube-system")));
        assert!(may("other", Some("jobs")) && !may("other", Some("ml")));
        assert!(who.binds("acme") && who.binds("other") && !who.binds(NOBODYS));
        assert!(Namespaces::read("", "default=work").unwrap().binds(NOBODYS));
        assert!(!Namespaces::default().problem("acme", Some("ml")).unwrap().is_empty());
    }

    #[test]
    fn what_can_not_be_read_says_so() {
        for bad in ["acme", "=ml", "acme=", "acme=my team", "acme=a, acme=b"] {
            assert!(Namespaces::read("", bad).is_err(), "{bad}");
        }
    }
}
