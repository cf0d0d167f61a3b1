//! A small cluster of real processes: a store, a server on it, and whatever stands between them. What is
//! started here ends with it, and its files are removed.

use super::{
    breaks::{self, Break},
    processes::{Hand, LOOK, PATIENCE, this_program},
    proxy::Proxy,
};
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tenure::{commands::Failure, config::Settings};
use tokio::process::Command;

/// Which store a cluster stands on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The embedded one, in a directory.
    Sqlite,
    /// A PostgreSQL that is started for it, and can be killed.
    PrivatePostgres,
    /// A database of its own on somebody's PostgreSQL.
    Postgres(String),
}

impl Engine {
    /// From what was typed after `--store`.
    pub fn parse(wish: &str) -> Result<Self, Failure> {
        match wish {
            "sqlite" => Ok(Engine::Sqlite),
            "postgres" => Ok(Engine::PrivatePostgres),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Engine::Postgres(url.to_owned()))
            }
            other => Err(Failure::System(format!(
                "--store {other:?}: write sqlite, postgres (a private one is started), or postgres://USER@HOST/DATABASE \
                 (a scratch database is made there)"
            ))),
        }
    }

    /// What it is called in a report.
    pub fn name(&self) -> &'static str {
        match self {
            Engine::Sqlite => "sqlite",
            Engine::PrivatePostgres | Engine::Postgres(_) => "postgres",
        }
    }
}

/// The script that knows how to run a private PostgreSQL, carried along.
const PRIVATE_POSTGRES: &str = include_str!("../../../../scripts/private-postgres");

/// A PostgreSQL of our own.
pub struct PrivatePostgres {
    script: PathBuf,
    dir: PathBuf,
    port: u16,
    /// Where it answers.
    pub url: String,
}

impl PrivatePostgres {
    /// Starts one in a new directory under `dir`, whose parents are open to its user.
    pub async fn start(dir: &Path) -> Result<Self, Failure> {
        let script = dir.join("private-postgres");
        std::fs::write(&script, PRIVATE_POSTGRES)?;
        let mut postgres =
            PrivatePostgres { script, dir: dir.join("postgres"), port: 0, url: String::new() };
        // A port that was free a moment ago may be taken by now.
        for _ in 0..5 {
            postgres.port = free_port()?;
            match postgres.run(&["start"]).await {
                Ok(url) => {
                    postgres.url = url.trim().to_owned();
                    return Ok(postgres);
                }
                Err(Failure::System(why)) if why.contains("is taken") => {}
                Err(e) => return Err(e),
            }
        }
        Err(Failure::System("no free port for a private PostgreSQL".into()))
    }

    /// SIGKILL to every process of it. (What the kernel has in its cache survives that, unlike a power cut.)
    pub async fn kill(&self) -> Result<(), Failure> {
        self.run(&["kill"]).await.map(drop)
    }

    /// Starts it again, at the same port.
    pub async fn start_again(&self) -> Result<(), Failure> {
        self.run(&["start"]).await.map(drop)
    }

    async fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = Command::new("bash");
        command.arg(&self.script).args(words).arg(&self.dir).stdin(std::process::Stdio::null());
        if words == ["start"] {
            command.arg(self.port.to_string());
        }
        let output = command.output().await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(Failure::System(format!("a private PostgreSQL: {}", why.trim())))
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let killed = std::process::Command::new("bash")
            .arg(&self.script)
            .arg("kill")
            .arg(&self.dir)
            .stdin(std::process::Stdio::null())
            .status();
        if !killed.is_ok_and(|s| s.success()) {
            eprintln!("tenure: the PostgreSQL in {} may still run", self.dir.display());
        }
    }
}

/// Tries to remove a directory into which somebody still writes.
const REMOVALS_MAX: u32 = 100;
/// Between two of them.
const BETWEEN_REMOVALS: Duration = Duration::from_millis(20);

/// A directory that is removed with this value.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one; its name says whose it is.
    pub fn make(what: &str) -> Result<Self, Failure> {
        let name = format!("{}{what}-{:x}", breaks::SCRATCH[0], tenure::service::random());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path)?;
        // A private PostgreSQL runs as another user when we are root, and has to get through here.
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o711);
        std::fs::set_permissions(&path, open)?;
        Ok(Scratch(path.canonicalize()?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A store that this process had open when it was interrupted closes its files in threads of its own: one of them may create
        // a file between the listing of the directory and its removal.
        let mut removed = std::fs::remove_dir_all(&self.0);
        for _ in 0..REMOVALS_MAX {
            match &removed {
                Err(e) if e.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                    std::thread::park_timeout(BETWEEN_REMOVALS);
                    removed = std::fs::remove_dir_all(&self.0);
                }
                _ => break,
            }
        }
        if let Err(e) = removed {
            eprintln!("tenure: {} could not be removed: {e}", self.0.display());
        }
    }
}

/// A server on a store of its own.
pub struct Cluster {
    // In the order in which they have to go.
    server: Option<Hand>,
    between: Option<Proxy>,
    postgres: Option<PrivatePostgres>,
    _database: Option<Database>,
    sets: Vec<String>,
    listen: String,
    key: String,
    broken: Option<Break>,
    scratch: Scratch,
    starts: u32,
    clock: i64,
}

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its store.
    pub engine: Engine,
    /// Settings of all its processes, as `KEY=VALUE`.
    pub sets: Vec<String>,
    /// A protection that is switched off.
    pub broken: Option<Break>,
    /// A proxy between server and store, where that is a network.
    pub proxied: bool,
}

impl Cluster {
    /// Starts store and server.
    pub async fn start(plan: &Plan) -> Result<Self, Failure> {
        let scratch = Scratch::make(plan.engine.name())?;
        let (mut postgres, mut database) = (None, None);
        let url = match &plan.engine {
            Engine::Sqlite => format!("sqlite:{}", scratch.path().join("store").display()),
            Engine::PrivatePostgres => {
                let started = PrivatePostgres::start(scratch.path()).await?;
                let (url, made) = scratch_database(&started.url).await?;
                // It goes with its server.
                made.keep();
                postgres = Some(started);
                url
            }
            Engine::Postgres(url) => {
                let (url, made) = scratch_database(url).await?;
                database = Some(made);
                url
            }
        };
        let (url, between) = match plan.proxied && plan.engine != Engine::Sqlite {
            true => {
                let (front, proxy) = in_front_of(&url).await?;
                (front, Some(proxy))
            }
            false => (url, None),
        };
        let listen = format!("127.0.0.1:{}", free_port()?);
        let mut sets = plan.sets.clone();
        sets.push(format!("store.url={url}"));
        sets.push(format!("server.listen={listen}"));
        let key = administrators_key(&sets).await?;
        let mut cluster = Cluster {
            server: None,
            between,
            postgres,
            _database: database,
            sets,
            listen,
            key,
            broken: plan.broken,
            scratch,
            starts: 0,
            clock: 0,
        };
        cluster.start_server().await?;
        Ok(cluster)
    }

    /// Starts the server, again at the same address.
    pub async fn start_server(&mut self) -> Result<(), Failure> {
        let mut command = this_program(&["server"], &self.sets)?;
        if let Some(broken) = self.broken {
            command.env(breaks::VARIABLE, broken.name());
        }
        command.env(crate::lab_process::FLOW, "drill.server@1");
        if self.clock != 0 {
            command.env(crate::lab_process::CLOCK, self.clock.to_string());
        }
        self.starts += 1;
        let name = format!("server-{}", self.starts);
        let server = self.server.insert(Hand::start(command, self.scratch.path(), &name)?);
        let ready = format!("at http://{}", self.listen);
        let answering = async {
            while !server.said().contains(&ready) {
                if server.is_over() {
                    return false;
                }
                tokio::time::sleep(LOOK).await;
            }
            true
        };
        match tokio::time::timeout(PATIENCE, answering).await {
            Ok(true) => Ok(()),
            _ => Err(Failure::System(format!(
                "a server of the drill does not start: {}",
                server.last_words()
            ))),
        }
    }

    /// From its next start on, the clock of the server is wrong by so many seconds.
    pub fn set_clock(&mut self, wrong_by: i64) {
        self.clock = wrong_by;
    }

    /// SIGKILL to the server.
    pub async fn kill_server(&mut self) -> Result<(), Failure> {
        match self.server.as_mut() {
            Some(server) => server.kill().await,
            None => Ok(()),
        }
    }

    /// The server's process.
    pub fn server(&self) -> Option<&Hand> {
        self.server.as_ref()
    }

    /// What stands between server and store.
    pub fn between(&self) -> Option<&Proxy> {
        self.between.as_ref()
    }

    /// The PostgreSQL that can be killed.
    pub fn postgres(&self) -> Option<&PrivatePostgres> {
        self.postgres.as_ref()
    }

    /// Whether its store is a database with a clock of its own.
    pub fn has_database(&self) -> bool {
        !self.sets.iter().any(|s| s.starts_with("store.url=sqlite:"))
    }

    /// Where the server listens, without a scheme.
    pub fn listen(&self) -> &str {
        &self.listen
    }

    /// A key with every scope for every tenant. All processes of a drill use it: a caller without a key sees one tenant alone.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Room for files of whatever belongs to it.
    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    /// The settings of its server.
    pub fn settings(&self) -> Result<Settings, Failure> {
        Ok(Settings::load(None, [], &self.sets)?)
    }

    /// Ends it in order.
    pub async fn end(mut self) -> Result<(), Failure> {
        self.kill_server().await
    }
}

/// Makes a key in the store before a server has it.
async fn administrators_key(sets: &[String]) -> Result<String, Failure> {
    let mut command =
        this_program(&["key", "create", "drill", "--scope", "admin", "--json"], sets)?;
    let output = command.stdin(Stdio::null()).output().await?;
    let made = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
    made.and_then(|made| made["secret"].as_str().map(str::to_owned)).ok_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        Failure::System(format!("no key could be made for the drill: {}", why.trim()))
    })
}

/// A port that was free a moment ago, below those that the system gives to connections: a server that is
/// started again must find it free.
pub fn free_port() -> Result<u16, Failure> {
    for _ in 0..100 {
        // The remainder fits.
        let port = 10_000 + (tenure::service::random() % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Failure::System("a hundred ports of this machine are taken".into()))
}

/// A database on somebody's server, dropped with this value, whatever happens.
struct Database {
    server: String,
    name: String,
    kept: bool,
}

impl Database {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let (server, sql) =
            (self.server.clone(), format!("DROP DATABASE {} WITH (FORCE)", self.name));
        // A thread of its own: this one may belong to a runtime, which must not be blocked on.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(Failure::from)?.block_on(execute(&server, &sql))
        });
        if !matches!(dropping.join(), Ok(Ok(()))) {
            eprintln!("tenure: the scratch database {} could not be dropped", self.name);
        }
    }
}

async fn scratch_database(server: &str) -> Result<(String, Database), Failure> {
    let name = format!("{}{:x}", breaks::SCRATCH[1], tenure::service::random());
    execute(server, &format!("CREATE DATABASE {name}")).await?;
    let url = with_database(server, &name)?;
    Ok((url, Database { server: server.to_owned(), name, kept: false }))
}

/// The same server, another database.
fn with_database(server: &str, name: &str) -> Result<String, Failure> {
    let mut url = parse(server)?;
    url.set_path(&format!("/{name}"));
    Ok(url.into())
}

fn parse(url: &str) -> Result<reqwest::Url, Failure> {
    reqwest::Url::parse(url)
        .map_err(|e| Failure::System(format!("--store: this is not the URL of a database ({e})")))
}

async fn in_front_of(url: &str) -> Result<(String, Proxy), Failure> {
    let mut front = parse(url)?;
    let host = front.host_str().unwrap_or("127.0.0.1").to_owned();
    let proxy = Proxy::open(format!("{host}:{}", front.port().unwrap_or(5432))).await?;
    let (host, port) = proxy.address().rsplit_once(':').map_or_else(Default::default, |(h, p)| {
        (h.to_owned(), p.parse::<u16>().unwrap_or_default())
    });
    let moved = front.set_host(Some(&host)).is_ok() && front.set_port(Some(port)).is_ok();
    match moved {
        true => Ok((front.into(), proxy)),
        false => Err(Failure::System("--store: a URL without a host".into())),
    }
}

async fn execute(url: &str, sql: &str) -> Result<(), Failure> {
    let bad = |e: tokio_postgres::Error| {
        let said = e.as_db_error().map_or_else(|| e.to_string(), |d| d.message().to_owned());
        Failure::System(format!("PostgreSQL refused {sql:?}: {said}"))
    };
    let (client, connection) =
        tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(bad)?;
    let statement = async {
        let done = client.batch_execute(sql).await;
        drop(client);
        done
    };
    let (_, done) = tokio::join!(connection, statement);
    done.map_err(bad)
}
