//! Where Redis is. Everything that can never work is refused here, in words.

use crate::nats::Credentials;
use redis::{Client, ConnectionInfo, IntoConnectionInfo as _, io::tcp::TcpSettings};
use tenure_kernel::address::Address;

const FORM: &str = "give HOST:PORT or redis://USER:PASSWORD@HOST:PORT/DB (rediss:// for TLS), several with commas between them";

/// What a connection to Redis is told.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where the servers are: `HOST:PORT`, `redis://…` or `rediss://…`, several with commas between them. They are nodes
    /// of one cluster, or a primary and its replicas: the first is taken through which everybody is reached.
    pub addresses: Address,
    /// What proves who we are, at addresses that do not say it themselves.
    pub credentials: Option<Credentials>,
    /// Who we are, for people who look at the server (`CLIENT LIST`).
    pub name: String,
}

impl RedisOptions {
    /// The usual ones for these servers.
    pub fn new(addresses: impl Into<Address>) -> Self {
        RedisOptions { addresses: addresses.into(), credentials: None, name: "tenure".to_owned() }
    }

    pub(super) fn servers(&self) -> Result<Vec<Server>, String> {
        let credentials = match &self.credentials {
            None => None,
            Some(Credentials::Password(user, password)) => Some((Some(user), password)),
            Some(Credentials::Token(password)) => Some((None, password)),
            Some(Credentials::Jwt(_)) => {
                return Err("a .creds file proves nothing to Redis: give one line with USER:PASSWORD or a password".into());
            }
        };
        let servers = self.addresses.expose().split(',').map(|address| {
            let mut info = parse(address.trim())?;
            let theirs = info.redis_settings();
            if let Some((user, password)) = credentials.filter(|_| theirs.password().is_none()) {
                let mut ours = theirs.clone().set_password(password);
                if let Some(user) = user {
                    ours = ours.set_username(user);
                }
                info = info.set_redis_settings(ours);
            }
            let shown = info.addr().to_string();
            // A publish is one small packet, and its answer is waited for.
            let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
            let client =
                Client::open(info).map_err(|e| format!("is no address of a Redis: {e}"))?;
            Ok(Server { client, shown })
        });
        servers.collect()
    }
}

/// One of the servers. Not shown with its secrets.
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) shown: String,
}

/// Whether these can be servers; else why not.
pub fn check_addresses(addresses: &str) -> Result<(), String> {
    RedisOptions::new(addresses).servers().map(|_| ())
}

/// Whether this is the address of a bus that is Redis. Others say what is wrong with it.
pub fn is_redis(url: &str) -> bool {
    let first = url.split(',').next().unwrap_or_default().trim();
    ["redis://", "rediss://"].iter().any(|s| first.starts_with(s))
}

/// Whether these can be the servers of a bus; else why not. There every address names its scheme.
pub fn check_url(url: &str) -> Result<(), String> {
    if let Some(other) = url.split(',').find(|address| !is_redis(address)) {
        let other = Address::from(other.trim());
        return Err(format!(
            "has an address ({other}) that is none of a Redis: give redis://HOST:PORT or rediss://HOST:PORT, several with commas between them"
        ));
    }
    check_addresses(url)
}

fn parse(address: &str) -> Result<ConnectionInfo, String> {
    let bad = |why: &str| format!("is no address of a Redis: {why}; {FORM}");
    let full = match address.split_once("://") {
        Some(("redis" | "rediss", _)) => address.to_owned(),
        Some((scheme, _)) => return Err(bad(&format!("{scheme}:// is not its scheme"))),
        None if address.is_empty() => return Err(bad("one is empty")),
        None if address.contains(['@', '/', '?', '#']) => {
            return Err(bad("an address with more than HOST:PORT needs its redis://"));
        }
        None => format!("redis://{address}"),
    };
    let url = redis::parse_redis_url(&full).ok_or_else(|| bad("host or port can not be read"))?;
    if url.host_str().is_none_or(str::is_empty) {
        return Err(bad("it names no host"));
    }
    if url.port() == Some(0) {
        return Err(bad("there is no port 0"));
    }
    // The client would take `#insecure` to mean that nobody looks at the certificate.
    if url.fragment().is_some() || url.query().is_some() {
        return Err(bad("nothing may follow the database's number"));
    }
    full.as_str().into_connection_info().map_err(|e| bad(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(addresses: &str) -> Vec<String> {
        let servers = RedisOptions::new(addresses).servers().unwrap();
        servers.into_iter().map(|s| s.shown).collect()
    }

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_url_and_there_may_be_several() {
        assert_eq!(shown("127.0.0.1:6379,10.0.0.2:7000"), ["127.0.0.1:6379", "10.0.0.2:7000"]);
        assert_eq!(shown(" redis.svc , [::1]:1 "), ["redis.svc:6379", "::1:1"]);
        assert_eq!(shown("rediss://u:p%40w@h/3"), ["h:6379"]);
    }

    #[test]
    fn addresses_that_can_not_work_are_refused_with_what_to_do() {
        let bad = [
            "",
            "h,",
            ",h",
            "h:99999",
            "h:x",
            "h:0",
            ":6379",
            "http://h",
            "nats://h",
            "u:p@h",
            "h/3",
            "redis://",
            "redis://h/three",
            "rediss://h#insecure",
            "redis://h?protocol=resp3",
            "0.0.0.0:6379",
        ];
        for bad in bad {
            let said = check_addresses(bad).unwrap_err();
            assert!(said.contains("is no address of a Redis"), "{bad}: {said}");
            assert!(said.contains("HOST:PORT"), "{bad}: {said}");
        }
    }

    #[test]
    fn a_bus_names_its_scheme_and_is_one_kind_of_thing() {
        assert!(is_redis("redis://h") && is_redis(" rediss://h,h") && !is_redis("nats://h"));
        assert_eq!(check_url("redis://h, rediss://g:1/2"), Ok(()));
        for mixed in ["redis://h,nats://g", "redis://h,g:6379", "redis://h,"] {
            assert!(check_url(mixed).unwrap_err().contains("redis://HOST:PORT"), "{mixed}");
        }
    }

    #[test]
    fn credentials_stand_in_where_an_address_has_none() {
        let with = |credentials| RedisOptions {
            credentials: Some(credentials),
            ..RedisOptions::new("h,redis://me:mine@g")
        };
        let logins = |options: RedisOptions| -> Vec<(Option<String>, Option<String>)> {
            let text = |t: Option<&str>| t.map(str::to_owned);
            let of = |s: &Server| {
                let settings = s.client.get_connection_info().redis_settings().clone();
                (text(settings.username()), text(settings.password()))
            };
            options.servers().unwrap().iter().map(of).collect()
        };
        let some = |t: &str| Some(t.to_owned());
        let own = (some("me"), some("mine"));
        let both = logins(with(Credentials::Password("u".into(), "p".into())));
        assert_eq!(both, [(some("u"), some("p")), own.clone()]);
        assert_eq!(logins(with(Credentials::Token("t".into()))), [(None, some("t")), own]);
        let refused = with(Credentials::Jwt("x".into())).servers().err().unwrap();
        assert!(refused.contains("USER:PASSWORD"), "{refused}");
    }
}
