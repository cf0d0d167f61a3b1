//! TLS with a real PostgreSQL: every `sslmode`, wrong names, wrong authorities, certificates of clients, and a server without TLS.

use super::{
    db::{TestDb, judge, url},
    faults::OwnPostgres,
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use std::path::Path;
use tenure_bell::{PgNotify, conformance};
use tenure_kernel::{error::StoreError, store::Store as _};
use tenure_postgres::{ConnectError, Connector};
use tenure_store::postgres::PostgresStore;

/// A certificate authority.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for hosts, of a client with this common name, and its private key.
    fn signs(&self, hosts: &[&str], name: &str) -> (String, String) {
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Who gets in how.
const HBA: &str = "host      all  tenure     127.0.0.1/32  trust
hostssl   all  certified  127.0.0.1/32  cert
hostssl   all  bound      127.0.0.1/32  scram-sha-256
hostnossl all  clear      127.0.0.1/32  trust
";

/// A server for `localhost` with TLS, and files for its clients.
struct TlsPostgres {
    server: OwnPostgres,
    files: tempfile::TempDir,
}

impl TlsPostgres {
    fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(files.path().join(name), text).unwrap();
        let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
        let (certificate, key) = ours.signs(&["localhost"], "server");
        write("server.crt", &certificate);
        write("server.key", &key);
        write("root.crt", &ours.pem);
        write("pg_hba.conf", HBA);
        write("other.crt", &theirs.pem);
        let (certificate, key) = ours.signs(&[], "certified");
        write("client.crt", &certificate);
        write("client.key", &key);
        let server = OwnPostgres::start_with(Some(files.path()));
        TlsPostgres { server, files }
    }

    /// An address. `@NAME` stands for a file.
    fn address(&self, user: &str, host: &str, query: &str) -> String {
        let query = query.replace('@', &format!("{}/", self.files.path().display()));
        format!("postgres://{user}@{host}:{}/tenure?{query}", self.server.port)
    }
}

/// How the connection is encrypted, by the server's word: the version of TLS, or nothing.
async fn encrypted(address: &str) -> Result<Option<String>, String> {
    let connector = Connector::parse(address).map_err(|e| e.to_string())?;
    let (client, connection) = connector.connect().await.map_err(|e| match e {
        ConnectError::Tls(why) => why,
        ConnectError::Postgres(e) => format!("not TLS: {e:?}"),
    })?;
    #[expect(clippy::disallowed_methods, reason = "a test's own task")]
    let driver = tokio::spawn(connection);
    let ask = "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let row = client.query_one(ask, &[]).await.unwrap();
    drop(client);
    driver.await.unwrap().unwrap();
    Ok(row.get(0))
}

fn by_tls(answer: Result<Option<String>, String>) -> bool {
    matches!(&answer, Ok(Some(version)) if version.starts_with("TLSv1."))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mode_encrypts_and_verifies_what_it_says() {
    let postgres = TlsPostgres::start();
    let ask = |user: &str, host: &str, query: &str| {
        let address = postgres.address(user, host, query);
        async move { encrypted(&address).await }
    };
    assert_eq!(ask("tenure", "127.0.0.1", "sslmode=disable").await, Ok(None));
    for query in [
        "",
        "sslmode=prefer",
        "sslmode=require",
        // With a root certificate, these check too.
        "sslmode=prefer&sslrootcert=@root.crt",
        "sslmode=require&sslrootcert=@root.crt",
        "sslmode=verify-ca&sslrootcert=@root.crt",
        // The very certificate of the server.
        "sslmode=verify-ca&sslrootcert=@server.crt",
    ] {
        let answer = ask("tenure", "127.0.0.1", query).await;
        assert!(by_tls(answer.clone()), "{query}: {answer:?}");
    }
    let full = "sslmode=verify-full&sslrootcert=@root.crt";
    assert!(by_tls(ask("tenure", "localhost", full).await));
    let refused = |answer: Result<Option<String>, String>, words: &[&str]| {
        let said = answer.expect_err("no connection");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    refused(ask("tenure", "127.0.0.1", full).await, &["127.0.0.1", "subjectAltName"]);
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert=@other.crt");
        let said = ask("tenure", "localhost", &query).await;
        refused(said, &["not signed by", "other.crt", mode]);
    }
    let absent = ask("tenure", "localhost", "sslmode=verify-ca&sslrootcert=@absent.crt").await;
    refused(absent, &["sslrootcert=", "absent.crt cannot be used"]);
    let empty = ask("tenure", "localhost", "sslmode=verify-ca&sslrootcert=@pg_hba.conf").await;
    refused(empty, &["no certificate in PEM format"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_prove_who_they_are_and_the_pool_and_the_bell_use_tls() {
    let postgres = TlsPostgres::start();
    let admin = TestDb::at(postgres.address("tenure", "127.0.0.1", "sslmode=disable")).await;
    let roles = "CREATE ROLE certified LOGIN; CREATE ROLE bound LOGIN PASSWORD 'hunter2'; \
                 CREATE ROLE clear LOGIN";
    admin.plain.batch_execute(roles).await.unwrap();
    // A certificate of a client.
    let mine = "sslmode=verify-full&sslrootcert=@root.crt&sslcert=@client.crt&sslkey=@client.key";
    let certified = postgres.address("certified", "localhost", mine);
    assert!(by_tls(encrypted(&certified).await));
    let without = postgres.address("certified", "localhost", "sslmode=require");
    let said = encrypted(&without).await.unwrap_err();
    assert!(said.contains("certificate"), "{said}");
    let not_a_pair = mine.replace("client.key", "server.key");
    let said = encrypted(&postgres.address("certified", "localhost", &not_a_pair)).await;
    assert!(said.unwrap_err().contains("do not belong together"));
    // SCRAM with channel binding, which the driver requires here.
    let bound = "sslmode=require&channel_binding=require";
    assert!(by_tls(encrypted(&postgres.address("bound:hunter2", "127.0.0.1", bound)).await));
    // A user that is let in without TLS alone.
    let clear = |query: &str| encrypted_owned(postgres.address("clear", "127.0.0.1", query));
    assert_eq!(clear("sslmode=prefer").await, Ok(None));
    assert!(clear("sslmode=require").await.is_err());

    // The store and the bell.
    let full = "sslmode=verify-full&sslrootcert=@root.crt";
    let url = postgres.address("tenure", "localhost", full);
    let store = PostgresStore::connect(&url, judge(), admin.options()).await.unwrap();
    store.now().await.unwrap();
    let (here, there) =
        (PgNotify::start(&url, "rings").unwrap(), PgNotify::start(&url, "rings").unwrap());
    here.connected().await;
    there.connected().await;
    conformance::across(&here, &there).await;
    let clear = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                 WHERE application_name LIKE 'tenure%' AND NOT ssl";
    assert_eq!(admin.ask(clear).await, 0, "every connection is encrypted");
    let tls = clear.replace("NOT ssl", "ssl");
    assert!(admin.ask(&tls).await >= 3, "the store's and both bells'");

    // An authority that is not ours: refused at once, and not tried again for as long as patience lasts.
    let wrong = postgres.address("tenure", "localhost", "sslmode=require&sslrootcert=@other.crt");
    let refused = PostgresStore::connect(&wrong, judge(), admin.options()).await.err();
    assert!(
        matches!(&refused, Some(StoreError::Unavailable(why)) if why.contains("not signed by")),
        "{refused:?}"
    );
}

async fn encrypted_owned(address: String) -> Result<Option<String>, String> {
    encrypted(&address).await
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_required() {
    let with = |query: &str| format!("{}?{query}", url());
    for query in ["sslmode=disable", "sslmode=prefer", "application_name=x"] {
        assert_eq!(encrypted(&with(query)).await, Ok(None), "{query}");
    }
    let files = tempfile::tempdir().unwrap();
    let root = files.path().join("root.crt");
    std::fs::write(&root, Authority::new("ours").pem).unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert={}", Path::display(&root));
        let said = encrypted(&with(&query)).await.unwrap_err();
        assert!(said.contains("does not offer TLS") && said.contains(mode), "{said}");
    }
}
