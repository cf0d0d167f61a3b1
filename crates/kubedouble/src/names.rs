//! Which names, labels and values an API server takes.

const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const KEY_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn lower(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

fn dns_label(text: &str) -> bool {
    text.starts_with(lower) && text.ends_with(lower) && text.chars().all(|c| lower(c) || c == '-')
}

fn wordlike(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}

/// What is wrong with the name of a container or a namespace.
pub(crate) fn label_problem(name: &str) -> Option<String> {
    if name.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    (!dns_label(name)).then(|| LABEL_RULE.to_owned())
}

/// What is wrong with the name of an object.
pub(crate) fn subdomain_problem(name: &str) -> Option<String> {
    if name.len() > 253 {
        return Some("must be no more than 253 characters".to_owned());
    }
    (!name.split('.').all(dns_label)).then(|| SUBDOMAIN_RULE.to_owned())
}

/// What is wrong with the value of a label.
pub(crate) fn label_value_problem(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some("must be no more than 63 characters".to_owned());
    }
    (!value.is_empty() && !wordlike(value)).then(|| VALUE_RULE.to_owned())
}

/// What is wrong with the key of a label or an annotation, or with the name of a finalizer.
pub(crate) fn key_problem(key: &str) -> Option<String> {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(p, n)| (Some(p), n));
    if let Some(prefix) = prefix
        && let Some(problem) = subdomain_problem(prefix)
    {
        return Some(format!("prefix part {problem}"));
    }
    if name.len() > 63 {
        return Some("name part must be no more than 63 characters".to_owned());
    }
    (!wordlike(name)).then(|| KEY_RULE.to_owned())
}

/// Whether this could be the key of a label.
pub(crate) fn qualified_name(key: &str) -> bool {
    key_problem(key).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_their_limits() {
        assert_eq!(label_problem(&"a".repeat(63)), None);
        assert!(label_problem(&"a".repeat(64)).is_some());
        assert_eq!(subdomain_problem(&"a".repeat(253)), None);
        assert!(subdomain_problem(&"a".repeat(254)).is_some());
        for bad in ["", "-a", "a-", "A", "a_b", "a..b", "a/b"] {
            assert!(subdomain_problem(bad).is_some(), "{bad}");
        }
        assert_eq!(label_value_problem(""), None);
        assert_eq!(label_value_problem("A_b.c-1"), None);
        assert!(label_value_problem("a b").is_some());
        assert!(label_value_problem("a/b").is_some());
        assert_eq!(key_problem("flowforge.io/task-id"), None);
        assert!(key_problem("flowforge.io/").is_some());
        assert!(key_problem("Flow/x").is_some());
    }
}
