//! The files with which clients find the server.

use crate::support::pods;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::ListParams,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use tenure_kubedouble::Cluster;

async fn by_file(path: &std::path::Path) -> Client {
    let file = Kubeconfig::read_from(path).unwrap();
    let options = KubeConfigOptions::default();
    Client::try_from(Config::from_custom_kubeconfig(file, &options).await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_kubeconfig_leads_to_the_server() {
    let cluster = Cluster::start();
    let directory = tempfile::tempdir().unwrap();
    let client = by_file(&cluster.kubeconfig(directory.path())).await;
    assert_eq!(client.default_namespace(), "default");
    assert_eq!(client.apiserver_version().await.unwrap().minor, "35");
}

#[tokio::test]
async fn a_token_is_asked_for_and_can_be_revoked() {
    let cluster = Cluster::start();
    let directory = tempfile::tempdir().unwrap();
    let client = by_file(&cluster.kubeconfig_with_token(directory.path(), "secret")).await;
    client.apiserver_version().await.unwrap();
    let Err(kube::Error::Api(status)) = pods(&cluster).list(&ListParams::default()).await else {
        panic!("a request without a token")
    };
    assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized"));
    cluster.revoke_token("secret");
    assert!(client.apiserver_version().await.is_err());
}

#[tokio::test]
async fn tls_is_trusted_by_its_authority_and_by_nothing_else() {
    let cluster = Cluster::start_tls();
    cluster.add_task("p", &[]);
    let directory = tempfile::tempdir().unwrap();
    let client = by_file(&cluster.kubeconfig_with_token(directory.path(), "secret")).await;
    Api::<Pod>::default_namespaced(client).get("p").await.unwrap();
    let stranger = Config::new(cluster.url().parse().unwrap());
    let stranger = Client::try_from(stranger).unwrap();
    assert!(stranger.apiserver_version().await.is_err());
}

#[tokio::test]
async fn a_service_accounts_files_lead_to_the_server() {
    let cluster = Cluster::start_tls();
    let directory = tempfile::tempdir().unwrap();
    let inside = cluster.in_cluster(directory.path(), "first");
    let [(_, host), (_, port)] = inside.env();
    let mut config = Config::new(format!("https://{host}:{port}").parse().unwrap());
    config.root_cert_file = Some(inside.authority_file());
    config.auth_info = AuthInfo {
        token_file: Some(inside.token_file().to_str().unwrap().to_owned()),
        ..AuthInfo::default()
    };
    let client = Client::try_from(config).unwrap();
    client.apiserver_version().await.unwrap();
}
