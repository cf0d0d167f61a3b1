//! In which namespaces a tenant's pods may be made.
//!
//! The right to make pods is the executor's, and the cluster cannot see for which tenant the executor asks. So what keeps
//! tenants apart there is decided before a task is written. A tenant has the namespaces that an operator gave it; a tenant
//! that was given none has the executor's default namespace alone. A task that names no namespace is made in the
//! executor's default namespace, so the same rule holds for it.

use crate::execute::make::is_dns_label;
use std::collections::BTreeMap;

/// The tenant of those who have none.
pub const NOBODYS: &str = "default";

/// Every namespace.
const ANY: &str = "*";

/// Who may have pods where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    own: String,
    of: BTreeMap<String, Vec<String>>,
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
            let names: Vec<String> = names.split('+').map(|n| n.trim().to_owned()).collect();
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

    /// The namespace for a task of this tenant that names none, where it may not be the executor's default.
    pub fn default_of(&self, tenant: &str) -> Option<&str> {
        self.problem(tenant, None)?;
        self.of.get(tenant)?.first().map(String::as_str)
    }

    /// Why a tenant may not have pods there; without a name, in the executor's default namespace.
    pub fn problem(&self, tenant: &str, namespace: Option<&str>) -> Option<String> {
        let own = Some(self.own.as_str()).filter(|own| !own.is_empty());
        let may = match self.of.get(tenant) {
            Some(names) => match namespace.or(own) {
                _ if names.iter().any(|n| n == ANY) => true,
                Some(asked) => names.iter().any(|n| n == asked),
                // Nobody told this process which namespace that is.
                None => false,
            },
            None => namespace.is_none() || namespace == own,
        };
        (!may).then(|| match namespace {
            Some(named) => format!("tenant {tenant:?} may not have pods in namespace {named:?}"),
            None => format!(
                "tenant {tenant:?} may not have pods in the executor's default namespace, and the task names no other"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_what_it_was_given_and_without_a_word_the_common_one() {
        let who = Namespaces::read("jobs", "acme=ml+ml-dev, beta=*, gamma=jobs+x").unwrap();
        let may = |tenant: &str, namespace| who.problem(tenant, namespace).is_none();
        assert!(may("acme", Some("ml")) && may("acme", Some("ml-dev")));
        assert!(!may("acme", Some("jobs")) && !may("acme", Some("kube-system")));
        assert!(may("beta", Some("kube-system")) && may("beta", None));
        assert!(may("other", Some("jobs")) && !may("other", Some("ml")) && may("other", None));
        assert!(may(NOBODYS, Some("jobs")) && !may(NOBODYS, Some("ml")), "a tenant like others");
        assert!(may("gamma", None), "the executor's default namespace is one of its own");
        assert!(!Namespaces::default().problem("acme", Some("ml")).unwrap().is_empty());
    }

    #[test]
    fn a_task_that_names_no_namespace_is_bound_like_one_that_does() {
        let who = Namespaces::read("jobs", "acme=ml+ml-dev, beta=*").unwrap();
        assert!(who.problem("acme", None).is_some(), "it would land beside the executor's secrets");
        assert_eq!(who.default_of("acme"), Some("ml"));
        assert_eq!((who.default_of("beta"), who.default_of("other")), (None, None));
        // A server that was not told the executor's namespace does not guess that it is one of the tenant's.
        let untold = Namespaces::read("", "acme=ml").unwrap();
        assert!(untold.problem("acme", None).is_some());
        assert!(untold.problem("other", None).is_none());
    }

    #[test]
    fn what_can_not_be_read_says_so() {
        for bad in ["acme", "=ml", "acme=", "acme=my team", "acme=a, acme=b"] {
            assert!(Namespaces::read("", bad).is_err(), "{bad}");
        }
    }
}
