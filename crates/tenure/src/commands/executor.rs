//! `tenure executor`: makes and tends the pods of tasks in a cluster, for a server in another process.

use super::Failure;
use crate::{
    Program,
    config::Settings,
    probes::{self, Said},
    service::{asked_to_end, reach},
    terminal,
};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use tenure_kernel::address::Address;
use tenure_pods::execute::ExecutorState;

/// Options of `executor`. Most are settings, too; see `tenure config`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The server's address; several of one deployment with commas: the next is asked when one does not answer
    #[arg(
        long,
        env = "TENURE_SERVER",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7777"
    )]
    pub server: String,
    /// An API key with the scope `worker`, where the server needs one
    #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// The name of the cluster, as tasks say it [setting: pods.cluster; default: tasks that say nothing]
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// Where pods are made whose task says nothing [setting: kubernetes.namespace; default: that of the kubeconfig]
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How the cluster is reached [default: the usual places]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The cluster is reached with the service account of this pod
    #[arg(long)]
    pub in_cluster: bool,
    /// Pods at once [setting: pods.executor_slots]
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,
    /// Where /healthz, /readyz and /metrics are answered [setting: pods.executor_listen]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
}

impl Options {
    /// The same as settings, for `Settings::load`.
    pub fn flags(&self) -> Vec<String> {
        let given = [
            ("pods.cluster", self.cluster.clone()),
            ("kubernetes.namespace", self.namespace.clone()),
            ("kubernetes.kubeconfig", self.kubeconfig.as_ref().map(|p| p.display().to_string())),
            ("kubernetes.in_cluster", self.in_cluster.then(|| "true".to_owned())),
            ("pods.executor_slots", self.slots.map(|n| n.to_string())),
            ("pods.executor_listen", self.listen.clone()),
        ];
        given.into_iter().filter_map(|(k, v)| Some(format!("{k}={}", v?))).collect()
    }
}

/// Runs until asked to end.
pub async fn run(
    program: &Program,
    settings: &Settings,
    options: &Options,
    json: bool,
) -> Result<String, Failure> {
    let (pipeline, config) = reach(settings, &options.server, options.api_key.as_deref())?;
    let rt = pipeline.rt().clone();
    let probes = probes::listen(settings, "pods.executor_listen", rt.clone()).await?;
    let url = probes.url.clone();
    let mut executor = crate::executor::start(program, pipeline, config, settings).await?;
    let look = executor.watcher();
    rt.spawn(Box::pin(probes::serve(probes, move || said(look()))));
    let (server, cluster) = (Address::from(&options.server), settings.text("pods.cluster"));
    let slots = settings.number("pods.executor_slots");
    if json {
        let line = json!({
            "server": server, "cluster": cluster, "slots": slots, "pid": std::process::id(),
            "listen": url,
        });
        terminal::line(&line);
    } else {
        let named =
            if cluster.is_empty() { String::new() } else { format!(" of cluster {cluster}") };
        terminal::line(&format_args!(
            "tenure: an executor{named} for {server} with room for {slots} pods, at {url} (Ctrl-C ends it)"
        ));
    }
    asked_to_end().await?;
    tracing::info!("asked to end; pods run on, and the next executor adopts them");
    executor.stop().await;
    Ok(String::new())
}

/// What it answers at /readyz and /metrics.
fn said((state, numbers): (ExecutorState, String)) -> Said {
    let how = json!({
        "ready": state.ready,
        "why_not": state.not_ready,
        "server": { "up": state.server_up },
        "api_server": { "up": state.api_up, "trouble": state.api_trouble,
            "age_seconds": state.api_age.map(|a| a.as_secs_f64()) },
        "slots": { "all": state.slots, "used": state.slots_used },
    });
    Said { ready: state.ready, how, numbers }
}
