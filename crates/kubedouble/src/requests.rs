//! Every request, written down, so that a test can say which verbs on which resources were needed.

use std::collections::BTreeSet;

/// One request that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The verb that a role would have to allow: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`. The HTTP method in small letters for what is not an object.
    pub verb: String,
    /// The API group; empty for core.
    pub group: String,
    /// As a role names it: `pods`, `pods/log`. Empty for what is not an object (`/version`).
    pub resource: String,
    /// The namespace, if there was one.
    pub namespace: Option<String>,
    /// The object's name, if there was one.
    pub name: Option<String>,
    /// The path.
    pub path: String,
    /// The parameters, as they came.
    pub query: Vec<(String, String)>,
    /// The body, if it was JSON.
    pub body: Option<serde_json::Value>,
    /// The code of the answer; nothing while there is none, and where the answer was lost.
    pub code: Option<u16>,
}

impl Request {
    /// A parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// A permission: API group, resource, verb.
pub type Permission = (String, String, String);

#[derive(Default)]
pub(crate) struct Requests {
    seen: Vec<Request>,
    forgotten: usize,
}

impl Requests {
    /// Notes a request; the number is for `answered`.
    pub(crate) fn note(&mut self, request: Request) -> usize {
        self.seen.push(request);
        self.forgotten + self.seen.len() - 1
    }

    pub(crate) fn answered(&mut self, number: usize, code: u16) {
        let at = number.checked_sub(self.forgotten);
        if let Some(request) = at.and_then(|at| self.seen.get_mut(at)) {
            request.code = Some(code);
        }
    }

    pub(crate) fn all(&self) -> &[Request] {
        &self.seen
    }

    pub(crate) fn forget(&mut self) {
        self.forgotten += self.seen.len();
        self.seen.clear();
    }

    pub(crate) fn permissions(&self) -> BTreeSet<Permission> {
        let objects = self.seen.iter().filter(|r| !r.resource.is_empty());
        objects.map(|r| (r.group.clone(), r.resource.clone(), r.verb.clone())).collect()
    }
}
