//! How the cluster is reached.

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::path::PathBuf;

/// Where the cluster is, and who we are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// With the service account of the pod that this process runs in.
    pub in_cluster: bool,
    /// A kubeconfig file; none: the usual places, unless `in_cluster`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; none: the current one.
    pub context: Option<String>,
}

/// A client, whose own retries are off: whoever follows has a backoff of its own, and two multiply.
pub async fn connect(to: &Connection) -> Result<Client, String> {
    let mut config = config(to).await?;
    config.default_retry = false;
    Client::try_from(config).map_err(|e| format!("no client for the cluster: {e}"))
}

async fn config(to: &Connection) -> Result<Config, String> {
    if to.in_cluster && to.kubeconfig.is_some() {
        return Err("both an in-cluster account and a kubeconfig are named: choose one".to_owned());
    }
    if to.in_cluster {
        return Config::incluster().map_err(|e| {
            format!(
                "no in-cluster account: {e}. It needs KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT and the files \
                of the service account; outside of a cluster name a kubeconfig"
            )
        });
    }
    let options = KubeConfigOptions { context: to.context.clone(), ..Default::default() };
    match &to.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .map_err(|e| format!("the kubeconfig {} can not be read: {e}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|e| format!("the kubeconfig {} can not be used: {e}", path.display()))
        }
        None if to.context.is_some() => Config::from_kubeconfig(&options)
            .await
            .map_err(|e| format!("no usable kubeconfig: {e}")),
        None => Config::infer().await.map_err(|e| {
            format!(
                "no cluster is named: no kubeconfig in the usual places (KUBECONFIG, ~/.kube/config) and no in-cluster \
                account ({e})"
            )
        }),
    }
}
