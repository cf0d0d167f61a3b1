//! A Kubernetes API server for tests, benchmarks and drills; never part of a server or a worker. An `expect` in here is a
//! test that can not be set up, and says why.
//!
//! No control plane can be started where the tests run, so this crate speaks its wire protocol instead: HTTP/1.1 on a
//! free loopback port, JSON, watches as lines that do not end. The real client talks to it as to the real
//! server. What it answers was observed on a real kube-apiserver, or read in its source; each
//! observed behaviour is a test in `tests/it/transcripts.rs`, named after the fact. Where the double
//! and a real server differ, the double is wrong: fix it here, do not work around it in the product.
//!
//! ```
//! use tenure_kubedouble::{Cluster, Fault, On, Times};
//!
//! let cluster = Cluster::start();                       // an empty cluster
//! cluster.add_task("default/work-1", &[("flowforge.io/workload", "true")]);
//! cluster.bind("work-1", "node-1");                     // `work-1` is `default/work-1`
//! cluster.waiting("work-1", "ImagePullBackOff", "Back-off pulling image \"work:1\"");
//! cluster.running("work-1");
//! cluster.oom("work-1");
//! assert_eq!(cluster.pod("work-1").unwrap()["status"]["phase"], "Failed");
//!
//! // The next two lists are refused; then all is well again.
//! cluster.fault(On::list("pods"), Fault::too_many_requests(1), Times::Next(2));
//! // A client: `kube::Client::try_from(kube::Config::new(cluster.url().parse()?))?`,
//! // or a process of its own with `cluster.kubeconfig(directory)`.
//! ```
//!
//! # What there is
//!
//! - **Objects** ([`Cluster`], first part): pods, nodes, events, leases, namespaces, config maps, secrets; create, get, list
//!   (selectors, pages, versions), watch (bookmarks, selectors that are entered and left), update, merge patch, `/status`,
//!   delete (grace, preconditions, propagation, finalizers), `/eviction`, `/binding`, `/log`; reviews of own access, `/version`,
//!   `/readyz`. Bodies are decoded as the types that they claim to be; names, labels and required fields
//!   are checked; defaults are set. [`Cluster::pod_security`] holds the pods of a namespace to the level `restricted`.
//! - **Everybody else in the cluster**: scheduler, kubelet, taint manager and garbage collection do what the test
//!   says: [`Cluster::bind`], [`Cluster::running`], [`Cluster::terminate`], [`Cluster::evict_pressure`],
//!   [`Cluster::node_lost`], [`Cluster::node_gone`], …; all of them are a [`Life`], except for what deletes.
//!   [`Cluster::on_create`] makes it happen by itself, [`Cluster::on_delete`] says how kubelets end what is deleted.
//! - **Faults**: [`Cluster::fault`] for requests, [`Cluster::stop_server`], [`Cluster::silence_watches`],
//!   [`Cluster::storm_of_410`], [`Cluster::distort_watches`], [`Cluster::expire_before`], … Nothing is random.
//! - **What happened**: [`Cluster::past`].
//! - **What was asked**: [`Cluster::requests`], [`Cluster::permissions_used`], [`Cluster::watches`];
//!   [`Cluster::until`] waits for any of it, with a bound, without sleeping.
//! - **Files**: [`Cluster::kubeconfig`], [`Cluster::in_cluster`] (with [`Cluster::start_tls`]).
//! - **Crowds**: [`Cluster::load_pods`] and [`Cluster::play`], without HTTP.
//! - **No server at all**: [`Cluster::unserved`] and the `ask_` functions, for a simulation that has a time of its own.
//!
//! # What there is not
//!
//! JSON patch and server-side apply (415), dry runs (400), protobuf, tables, discovery, other kinds. Strategic merge is a
//! merge patch: lists are replaced. Bodies that the real server would refuse for reasons beyond those
//! above are taken.

mod access;
mod admit;
mod clock;
mod cluster;
mod direct;
mod faults;
mod http;
mod kubelet;
mod life;
mod list;
mod logs;
mod names;
mod object;
mod play;
mod requests;
mod resource;
mod security;
mod select;
mod status;
mod store;
mod watch;

pub use access::InCluster;
pub use cluster::{Cluster, PATIENCE, Past};
pub use direct::Kind;
pub use faults::{Distortion, Fault, FaultId, On, Times};
pub use kubelet::OnDelete;
pub use life::Life;
pub use play::{Played, Step};
pub use requests::{Permission, Request};
pub use security::{PodSecurity, restricted};
pub use status::{Cause, Refusal, Wrong};
pub use watch::OpenWatch;
