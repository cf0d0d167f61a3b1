//! What each process asks of the API server: the verbs that its role grants, and no others. The manifests in
//! `deploy/kubernetes` are compared with these lists, and so is what the processes are seen to ask for in tests.

/// Verbs on a resource of an API group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resource, with its subresource.
    pub resource: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
}

const fn on(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Access {
    Access { group, resource, verbs }
}

/// A collector on a node looks, and touches nothing.
pub const COLLECTOR: &[Access] = &[on("", "pods", &["list", "watch"])];

/// The sweeper also looks at nodes, and keeps a lease so that one of several is active.
pub const SWEEPER: &[Access] = &[
    on("", "pods", &["list", "watch"]),
    on("", "nodes", &["list", "watch"]),
    on("coordination.k8s.io", "leases", &["get", "create", "update"]),
];

/// The executor makes pods, marks and deletes them, and reads their logs.
pub const EXECUTOR: &[Access] = &[
    on("", "pods", &["get", "list", "watch", "create", "patch", "delete"]),
    on("", "pods/log", &["get"]),
];
