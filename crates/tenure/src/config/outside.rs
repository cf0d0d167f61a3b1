//! Settings of what few commands touch: Kubernetes, collectors, and the Redis that collectors tell what they saw.
//!
//! They may stand in the environment under FlowForge's names, beside our own: whoever moves here from
//! FlowForge changes no manifest. Some of those names mean something else elsewhere (`NODE_NAME` is set by more than one CI
//! server), so what stands there is looked at by those alone who need it, and never stops another command.

use super::{BadConfig, KEYS, Origin, Settings, Value, problem_of};
use std::path::{Path, PathBuf};
use tenure_bell::redis::RedisOptions;
use tenure_pods::follow::Connection;

/// FlowForge's names, and ours. Our own variable has the last word.
const SEED: &[(&str, &str)] = &[
    ("FLOWFORGE_KUBERNETES_IN_CLUSTER", "kubernetes.in_cluster"),
    ("FLOWFORGE_KUBERNETES_KUBECONFIG", "kubernetes.kubeconfig"),
    ("FLOWFORGE_KUBERNETES_NAMESPACE", "kubernetes.namespace"),
    ("FLOWFORGE_REDIS_ADDRESSES", "redis.addresses"),
    ("NODE_NAME", "kubernetes.node_name"),
];

/// FlowForge's variable for a key, where there is one.
pub fn other_variable(key: &str) -> Option<&'static str> {
    SEED.iter().find(|(_, k)| *k == key).map(|(variable, _)| *variable)
}

/// Whether a key is looked at only by those who need it.
pub(super) fn is_of_few(key: &str) -> bool {
    ["kubernetes.", "redis.", "collector."].iter().any(|group| key.starts_with(group))
}

/// Takes what stands under FlowForge's names. As there, an empty one is none, and a switch may be written in several ways.
pub(super) fn from_the_seed(settings: &mut Settings, environment: &[(String, String)]) {
    for (name, value) in environment.iter().filter(|(_, value)| !value.trim().is_empty()) {
        let Some((_, key)) = SEED.iter().find(|(variable, _)| variable == name) else { continue };
        let value = match value.trim() {
            "1" | "t" | "T" | "TRUE" | "True" if *key == "kubernetes.in_cluster" => "true",
            "0" | "f" | "F" | "FALSE" | "False" if *key == "kubernetes.in_cluster" => "false",
            value => value,
        };
        let Some(key) = KEYS.iter().find(|k| k.name == *key) else { continue };
        let value = Value::new(key, value.to_owned(), Origin::Environment(name.clone()));
        settings.0.insert(key.name, value);
    }
}

/// What is wrong with a name of Kubernetes' kind.
pub(super) fn problem_of_name(name: &str, longest: usize, what: &str) -> Option<String> {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let dots = longest > 63;
    let part = |p: &str| {
        p.starts_with(edge) && p.ends_with(edge) && p.chars().all(|c| edge(c) || c == '-')
    };
    let good = name.is_empty()
        || name.len() <= longest && if dots { name.split('.').all(part) } else { part(name) };
    (!good).then(|| {
        let dots = if dots { ", with dots between such words" } else { "" };
        format!("is not {what}: at most {longest} of a-z, 0-9 and -, no - at the ends{dots}")
    })
}

/// Where Kubernetes is, and what to look at there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    /// As the service account of our pod.
    pub in_cluster: bool,
    /// The files of that account.
    pub service_account: PathBuf,
    /// By this file; `None`, and not in the cluster: where kubectl looks.
    pub kubeconfig: Option<PathBuf>,
    /// The namespace to look at; `None`: all.
    pub namespace: Option<String>,
    /// The node to look at; `None`: all.
    pub node: Option<String>,
}

impl Kubernetes {
    /// The way there.
    pub fn connection(&self) -> Connection {
        Connection {
            in_cluster: self.in_cluster,
            service_account: Some(self.service_account.clone()),
            kubeconfig: self.kubeconfig.clone(),
            context: None,
        }
    }
}

impl Settings {
    /// What is wrong with a setting that was not looked at when the settings were read.
    pub fn problem(&self, name: &str) -> Option<BadConfig> {
        let key = KEYS.iter().find(|k| k.name == name).filter(|k| is_of_few(k.name))?;
        let problem = problem_of(key.form, self.address(key.name).expose())?;
        let (value, origin) = (self.text(key.name).to_owned(), self.origin(key.name));
        Some(BadConfig::BadValue { origin, key: key.name, value, problem })
    }

    fn looked_at(&self, keys: &[&str]) -> Result<(), BadConfig> {
        keys.iter().find_map(|key| self.problem(key)).map_or(Ok(()), Err)
    }

    /// Whether a collector can work by its settings: only a collector asks.
    pub fn collector(&self) -> Result<(), BadConfig> {
        let keys = KEYS.iter().map(|k| k.name).filter(|k| k.starts_with("collector."));
        self.looked_at(&keys.collect::<Vec<_>>())
    }

    /// Where Redis is, for collectors and whoever listens to them.
    pub fn redis(&self) -> Result<RedisOptions, BadConfig> {
        self.looked_at(&["redis.addresses"])?;
        let name = format!("tenure, pid {}", std::process::id());
        Ok(RedisOptions { name, ..RedisOptions::new(self.address("redis.addresses")) })
    }

    /// Where Kubernetes is. Refused: what can not be, a kubeconfig that can not be read, and two ways in at once.
    pub fn kubernetes(&self) -> Result<Kubernetes, BadConfig> {
        self.looked_at(&["kubernetes.in_cluster", "kubernetes.namespace", "kubernetes.node_name"])?;
        let some = |key: &str| Some(self.text(key).to_owned()).filter(|text| !text.is_empty());
        let kubernetes = Kubernetes {
            in_cluster: self.is_on("kubernetes.in_cluster"),
            service_account: PathBuf::from(self.text("kubernetes.service_account")),
            kubeconfig: some("kubernetes.kubeconfig").map(PathBuf::from),
            namespace: some("kubernetes.namespace"),
            node: some("kubernetes.node_name"),
        };
        if let Some(file) = &kubernetes.kubeconfig {
            if kubernetes.in_cluster {
                let (inside, by_file) =
                    (self.origin("kubernetes.in_cluster"), self.origin("kubernetes.kubeconfig"));
                return Err(BadConfig::Together(format!(
                    "kubernetes.in_cluster = \"true\" ({inside}) and kubernetes.kubeconfig = {:?} ({by_file}) are two ways to \
                     the API server: leave one of them out",
                    file.display()
                )));
            }
            readable(file).map_err(|e| BadConfig::BadValue {
                origin: self.origin("kubernetes.kubeconfig"),
                key: "kubernetes.kubeconfig",
                value: file.display().to_string(),
                problem: format!("can not be read: {e}"),
            })?;
        }
        Ok(kubernetes)
    }
}

fn readable(file: &Path) -> Result<(), String> {
    let opened = std::fs::File::open(file).and_then(|f| f.metadata()).map_err(|e| e.to_string())?;
    if opened.is_dir() { Err("it is a directory".to_owned()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(env: &[(&str, &str)], flags: &[&str]) -> Settings {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
        Settings::load(None, env, &flags).unwrap()
    }

    #[test]
    fn without_a_word_everything_is_as_the_seed_has_it() {
        let settings = load(&[], &[]);
        assert_eq!(settings.redis().unwrap().addresses.expose(), "127.0.0.1:6379");
        let nothing = Kubernetes {
            in_cluster: false,
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            kubeconfig: None,
            namespace: None,
            node: None,
        };
        assert_eq!(settings.kubernetes(), Ok(nothing));
    }

    #[test]
    fn the_seeds_variables_are_read_and_ours_has_the_last_word() {
        let settings = load(
            &[
                ("TENURE_KUBERNETES_NAMESPACE", "ours"),
                ("FLOWFORGE_KUBERNETES_NAMESPACE", "theirs"),
                ("FLOWFORGE_REDIS_ADDRESSES", "10.0.0.1:6379,10.0.0.2:6379"),
                ("FLOWFORGE_KUBERNETES_IN_CLUSTER", "True"),
                ("FLOWFORGE_KUBERNETES_KUBECONFIG", ""),
                ("NODE_NAME", "node-7.zone-a"),
            ],
            &[],
        );
        let expected = Kubernetes {
            in_cluster: true,
            service_account: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
            kubeconfig: None,
            namespace: Some("ours".into()),
            node: Some("node-7.zone-a".into()),
        };
        assert_eq!(settings.kubernetes(), Ok(expected));
        assert_eq!(settings.redis().unwrap().addresses.expose(), "10.0.0.1:6379,10.0.0.2:6379");
        let from = |key: &str| settings.origin(key).to_string();
        assert_eq!(from("redis.addresses"), "environment FLOWFORGE_REDIS_ADDRESSES");
        assert_eq!(from("kubernetes.node_name"), "environment NODE_NAME");
        assert_eq!(from("kubernetes.namespace"), "environment TENURE_KUBERNETES_NAMESPACE");
        assert_eq!(from("kubernetes.kubeconfig"), "default", "an empty one is none");
        let flagged = load(&[("NODE_NAME", "a")], &["kubernetes.node_name=b"]);
        assert_eq!(flagged.kubernetes().unwrap().node.as_deref(), Some("b"));
    }

    #[test]
    fn every_variable_of_the_seed_sets_a_key() {
        for (variable, key) in SEED {
            assert!(KEYS.iter().any(|k| k.name == *key) && is_of_few(key), "{variable}");
            assert_eq!(other_variable(key), Some(*variable));
        }
    }

    #[test]
    fn what_few_need_stops_nobody_else_and_is_refused_when_it_is_needed() {
        let bad = load(
            &[
                ("FLOWFORGE_KUBERNETES_IN_CLUSTER", "perhaps"),
                ("FLOWFORGE_REDIS_ADDRESSES", "redis://u:s3cret@h:0"),
            ],
            &[],
        );
        let said = bad.kubernetes().unwrap_err().to_string();
        assert!(said.contains("FLOWFORGE_KUBERNETES_IN_CLUSTER"), "{said}");
        assert!(said.contains("kubernetes.in_cluster = \"perhaps\" is neither true nor false"));
        let said = bad.redis().unwrap_err().to_string();
        assert!(said.contains("redis.addresses") && said.contains("HOST:PORT"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
        let bad = load(&[("TENURE_COLLECTOR_DRAIN_SECONDS", "-1")], &["collector.mode=sideways"]);
        let said = bad.collector().unwrap_err().to_string();
        let expected =
            "environment TENURE_COLLECTOR_DRAIN_SECONDS: collector.drain_seconds = \"-1\"";
        assert!(said.starts_with(expected), "{said}");
        assert!(bad.redis().is_ok() && bad.problem("collector.mode").is_some());
        assert_eq!(load(&[], &[]).collector(), Ok(()));
        for name in ["Upper", "-a", "a-", "a_b", "a.b", &"a".repeat(64)] {
            let said = load(&[("FLOWFORGE_KUBERNETES_NAMESPACE", name)], &[]).kubernetes();
            assert!(said.unwrap_err().to_string().contains("name of a namespace"), "{name}");
        }
        for name in ["Jenkins Node", "a..b", &"a".repeat(254)] {
            let said = load(&[("NODE_NAME", name)], &[]).kubernetes();
            assert!(said.unwrap_err().to_string().contains("name of a node"), "{name}");
        }
    }

    #[test]
    fn a_kubeconfig_is_a_file_that_can_be_read_and_the_only_way_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let with = |path: &Path, more: &[&str]| {
            let path = format!("kubernetes.kubeconfig={}", path.display());
            let flags: Vec<&str> =
                [path.as_str()].into_iter().chain(more.iter().copied()).collect();
            load(&[], &flags).kubernetes()
        };
        let said = with(&file, &[]).unwrap_err().to_string();
        assert!(
            said.contains("kubernetes.kubeconfig") && said.contains("can not be read"),
            "{said}"
        );
        assert!(with(dir.path(), &[]).unwrap_err().to_string().contains("directory"));
        std::fs::write(&file, "apiVersion: v1\n").unwrap();
        assert_eq!(with(&file, &[]).unwrap().kubeconfig.as_deref(), Some(&*file));
        let said = with(&file, &["kubernetes.in_cluster=true"]).unwrap_err().to_string();
        assert!(said.contains("two ways") && said.contains("command line"), "{said}");
    }
}
