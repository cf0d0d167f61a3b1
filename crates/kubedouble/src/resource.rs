//! The kinds of objects that are served, and how a request path names them.

use serde_json::Value;

/// A kind of object.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for core.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The name in paths and in roles.
    pub plural: &'static str,
    /// The name in objects.
    pub kind: &'static str,
    /// Whether it lives in a namespace.
    pub namespaced: bool,
    /// Whether a delete waits for somebody (a kubelet) to finish it.
    pub graceful: bool,
    /// Whether it has a `/status` of its own.
    pub has_status: bool,
}

macro_rules! resource {
    ($name:ident, $doc:literal, $group:literal, $version:literal, $plural:literal, $kind:literal, $namespaced:literal, $graceful:literal, $status:literal) => {
        #[doc = $doc]
        pub static $name: Resource = Resource {
            group: $group,
            version: $version,
            plural: $plural,
            kind: $kind,
            namespaced: $namespaced,
            graceful: $graceful,
            has_status: $status,
        };
    };
}

resource!(PODS, "Pods.", "", "v1", "pods", "Pod", true, true, true);
resource!(NODES, "Nodes.", "", "v1", "nodes", "Node", false, false, true);
resource!(EVENTS, "Core events.", "", "v1", "events", "Event", true, false, false);
resource!(NAMESPACES, "Namespaces.", "", "v1", "namespaces", "Namespace", false, false, true);
resource!(CONFIG_MAPS, "Config maps.", "", "v1", "configmaps", "ConfigMap", true, false, false);
resource!(SECRETS, "Secrets.", "", "v1", "secrets", "Secret", true, false, false);
resource!(LEASES, "Leases.", "coordination.k8s.io", "v1", "leases", "Lease", true, false, false);

/// All of them.
pub static ALL: [&Resource; 7] =
    [&PODS, &NODES, &EVENTS, &NAMESPACES, &CONFIG_MAPS, &SECRETS, &LEASES];

impl Resource {
    /// `v1`, `coordination.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As messages name it: `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Reads `value` as the type that it claims to be and drops what the type does not know, as the server
    /// does when it decodes a body. The error is serde's.
    pub fn decode(&self, value: Value) -> Result<Value, serde_json::Error> {
        use k8s_openapi::api::{coordination::v1::Lease, core::v1};
        use serde::{Serialize, de::DeserializeOwned};
        fn through<T: Serialize + DeserializeOwned>(v: Value) -> Result<Value, serde_json::Error> {
            serde_json::to_value(serde_json::from_value::<T>(v)?)
        }
        match self.kind {
            "Pod" => through::<v1::Pod>(value),
            "Node" => through::<v1::Node>(value),
            "Event" => through::<v1::Event>(value),
            "Namespace" => through::<v1::Namespace>(value),
            "ConfigMap" => through::<v1::ConfigMap>(value),
            "Secret" => through::<v1::Secret>(value),
            _ => through::<Lease>(value),
        }
    }
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kind.
    pub resource: &'static Resource,
    /// The namespace, if the path has one.
    pub namespace: Option<String>,
    /// One object, or all.
    pub name: Option<String>,
    /// `status`, `log`, `eviction`, `binding`.
    pub sub: Option<String>,
}

impl Place {
    /// Reads a path; `None` where there is nothing of that name.
    pub fn parse(path: &str) -> Option<Place> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version) = match parts.as_slice() {
            ["api", version, ..] => ("", *version),
            ["apis", group, version, ..] => (*group, *version),
            _ => return None,
        };
        parts.drain(..if group.is_empty() { 2 } else { 3 });
        let mut namespace = None;
        if parts.len() >= 3 && parts[0] == "namespaces" && parts[2] != "status" {
            namespace = Some(parts[1].to_owned());
            parts.drain(..2);
        }
        let plural = *parts.first()?;
        let resource = ALL
            .into_iter()
            .find(|r| r.group == group && r.version == version && r.plural == plural)?;
        if !resource.namespaced && namespace.is_some() {
            return None;
        }
        let name = parts.get(1).map(|p| (*p).to_owned());
        if resource.namespaced && namespace.is_none() && name.is_some() {
            return None;
        }
        let sub = parts.get(2).map(|p| (*p).to_owned());
        (parts.len() <= 3).then_some(Place { resource, namespace, name, sub })
    }

    /// As roles name it: `pods`, `pods/log`.
    pub fn role_name(&self) -> String {
        match &self.sub {
            Some(sub) => format!("{}/{sub}", self.resource.plural),
            None => self.resource.plural.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_place() {
        let place = Place::parse("/api/v1/namespaces/a/pods/p/log").unwrap();
        assert_eq!(place.role_name(), "pods/log");
        assert_eq!((place.namespace.as_deref(), place.name.as_deref()), (Some("a"), Some("p")));
        let place = Place::parse("/apis/coordination.k8s.io/v1/namespaces/a/leases").unwrap();
        assert_eq!(place.resource, &LEASES);
        let place = Place::parse("/api/v1/namespaces/a").unwrap();
        assert_eq!((place.resource, place.name.as_deref()), (&NAMESPACES, Some("a")));
        assert_eq!(Place::parse("/api/v1/pods/p"), None, "a pod needs a namespace");
        assert_eq!(Place::parse("/api/v1/namespaces/a/nodes"), None);
        assert_eq!(Place::parse("/apis/apps/v1/deployments"), None);
    }
}
