//! How the cluster is reached.
//!
//! Inside of a cluster, by the files of the pod's service account. The token among them is replaced every hour or so, and the old one is
//! good only for a while, so it is read for every request: requests are few, and the file is in memory. kube's own in-cluster
//! account knows one directory only, and keeps a token for a minute.

use http::{HeaderValue, Request, header::AUTHORIZATION};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig},
};
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Where a pod finds the files of its service account.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Where the cluster is, and who we are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// With the service account of the pod that this process runs in.
    pub in_cluster: bool,
    /// The directory of its files `token`, `ca.crt` and `namespace`; none: [`SERVICE_ACCOUNT`].
    pub service_account: Option<PathBuf>,
    /// A kubeconfig file; none: the usual places, unless `in_cluster`.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; none: the current one.
    pub context: Option<String>,
}

/// A client, whose own retries are off: whoever follows has a backoff of its own, and two multiply.
pub async fn connect(to: &Connection) -> Result<Client, String> {
    if to.in_cluster && to.kubeconfig.is_some() {
        return Err("both an in-cluster account and a kubeconfig are named: choose one".to_owned());
    }
    let directory = to.service_account.as_deref().unwrap_or(Path::new(SERVICE_ACCOUNT));
    if to.in_cluster {
        return inside(directory).map_err(|why| {
            format!("no in-cluster account: {why}; outside of a cluster name a kubeconfig")
        });
    }
    let options = KubeConfigOptions { context: to.context.clone(), ..Default::default() };
    let mut config = match &to.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .map_err(|e| format!("the kubeconfig {} can not be read: {e}", path.display()))?;
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|e| format!("the kubeconfig {} can not be used: {e}", path.display()))?
        }
        None if to.context.is_some() => Config::from_kubeconfig(&options)
            .await
            .map_err(|e| format!("no usable kubeconfig: {e}"))?,
        None => match Config::from_kubeconfig(&options).await {
            Ok(config) => config,
            Err(e) => {
                return inside(directory).map_err(|why| {
                    format!(
                        "no cluster is named: no kubeconfig in the usual places (KUBECONFIG, ~/.kube/config: {e}) and no \
                        in-cluster account ({why})"
                    )
                });
            }
        },
    };
    config.default_retry = false;
    Client::try_from(config).map_err(|e| format!("no client for the cluster: {e}"))
}

/// A client with the service account whose files are in this directory.
fn inside(directory: &Path) -> Result<Client, String> {
    let variable = |name: &str| {
        std::env::var(name).map_err(|_| format!("{name} is not set, as it is in every pod"))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = match host.parse() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host,
    };
    let url = format!("https://{host}:{port}");
    let url = url.parse().map_err(|e| {
        format!("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT make {url}, which is no address: {e}")
    })?;
    let mut config = Config::new(url);
    config.default_retry = false;
    config.default_namespace = read(&directory.join("namespace"))?;
    let authority = directory.join("ca.crt");
    let name = authority.display().to_string();
    if !read(&authority)?.contains("-----BEGIN CERTIFICATE-----") {
        return Err(format!("{name} has no certificate in it"));
    }
    // Nobody else is trusted; the file is read now, and again now and then.
    config.root_cert = Some(Vec::new());
    config.root_cert_file = Some(authority);
    let token = Token::read(directory.join("token"))?;
    let builder = ClientBuilder::try_from(config)
        .map_err(|e| format!("no client for the cluster, with {name}: {e}"))?;
    Ok(builder.with_layer(&token).build())
}

fn read(file: &Path) -> Result<String, String> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| format!("{name} can not be read: {e}"))?;
    let text = text.trim();
    if text.is_empty() { Err(format!("{name} is empty")) } else { Ok(text.to_owned()) }
}

/// Puts the token in a file on every request, as the file is then.
#[derive(Clone)]
struct Token {
    file: Arc<Path>,
    /// For when the file can not be read for once.
    last: Arc<Mutex<HeaderValue>>,
}

impl Token {
    fn read(file: PathBuf) -> Result<Token, String> {
        let last = Arc::new(Mutex::new(header(&file)?));
        Ok(Token { file: file.into(), last })
    }

    fn now(&self) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match header(&self.file) {
            Ok(read) => *last = read,
            Err(why) => tracing::warn!(%why, "going on with the last token that was read"),
        }
        last.clone()
    }
}

fn header(file: &Path) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::try_from(format!("Bearer {}", read(file)?))
        .map_err(|_| format!("{} is no token: no header can be made of it", file.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

impl<S> Layer<S> for Token {
    type Service = WithToken<S>;

    fn layer(&self, inner: S) -> WithToken<S> {
        WithToken { inner, token: self.clone() }
    }
}

struct WithToken<S> {
    inner: S,
    token: Token,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for WithToken<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        request.headers_mut().insert(AUTHORIZATION, self.token.now());
        self.inner.call(request)
    }
}
