//! Which addresses a tool may connect to on behalf of a tenant.
//!
//! A tenant chooses the address of an `http` call and of its agents' model servers, and the connection is made from a machine
//! inside the operator's network. Without a check, a tenant reaches what only that machine should: services on its loopback
//! address (this server among them), the metadata service of a cloud, everything on the private network.
//!
//! - Only public unicast addresses are allowed. The setting `egress.allow` adds others, for each tenant.
//! - The check is made on the address that is connected to, after the name was resolved (`Guard::resolve`), so a name
//!   that resolves differently the second time gains nothing. Addresses in the URL are checked before the request is sent
//!   (`Guard::check_url`), because the HTTP client resolves only names. Redirects are followed by the tool, one request
//!   at a time, and each goes through the same two checks.
//! - An address that embeds an IPv4 address (`::ffff:127.0.0.1`, NAT64, 6to4) is judged by that address.
//! - The addresses at which Tenure itself listens are always refused, whatever `egress.allow` says.
//! - Proxies named in the environment are not used for these addresses. `egress.proxy` names one that makes these decisions
//!   instead; then only Tenure's own addresses are refused here.
//!
//! Addresses in the operator's own settings are not checked.

use ipnet::IpNet;
use reqwest::{
    Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, LazyLock, Mutex, PoisonError, RwLock},
};
use tenure_kernel::address::Address;

/// Stands for every tenant in `egress.allow`.
const EVERY_TENANT: &str = "*";
/// Nothing is allowed.
const NONE: &str = "none";

/// Where the tools of each tenant may connect to. The default allows public addresses alone.
#[derive(Clone, Default)]
pub struct Egress {
    allowed: Arc<BTreeMap<String, Vec<Allowed>>>,
    own: OwnListeners,
    proxy: Option<Url>,
}

impl fmt::Debug for Egress {
    /// Without the secrets of the proxy's address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxy = self.proxy.as_ref().map(|url| Address::from(url.as_str()));
        f.debug_struct("Egress")
            .field("allowed", &self.allowed)
            .field("own", &self.own)
            .field("proxy", &proxy)
            .finish()
    }
}

/// One entry of `egress.allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    /// Every port of these addresses.
    Net(IpNet),
    /// One port of one address.
    Socket(SocketAddr),
    /// One port of a host, whatever its name resolves to.
    Host(String, u16),
}

impl Allowed {
    fn read(text: &str) -> Option<Self> {
        if let Ok(net) = text.parse::<IpNet>() {
            return Some(Allowed::Net(net));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Allowed::Net(ip.into()));
        }
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Some(Allowed::Socket(socket));
        }
        let (host, port) = text.rsplit_once(':')?;
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let port = port.parse().ok().filter(|p| *p != 0)?;
        (!host.is_empty() && host.chars().all(letter))
            .then(|| Allowed::Host(host.to_ascii_lowercase(), port))
    }

    fn contains(&self, host: &str, address: SocketAddr) -> bool {
        match self {
            Allowed::Net(net) => net.contains(&address.ip()),
            Allowed::Socket(socket) => *socket == address,
            Allowed::Host(name, port) => *port == address.port() && name.eq_ignore_ascii_case(host),
        }
    }
}

impl Egress {
    /// Reads the setting `egress.allow`: `acme=10.2.0.0/16+billing.internal:443, *=10.9.9.9:8080`, or `none`.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the value.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut allowed: BTreeMap<String, Vec<Allowed>> = BTreeMap::new();
        let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty() && *p != NONE);
        for part in parts {
            let (tenant, entries) = part.split_once('=').ok_or_else(|| wrong(part))?;
            let entries = entries.split('+').map(|e| Allowed::read(e.trim()));
            let entries: Option<Vec<Allowed>> = entries.collect();
            let entries = entries.filter(|e| !e.is_empty()).ok_or_else(|| wrong(part))?;
            if tenant.trim().is_empty() {
                return Err(wrong(part));
            }
            allowed.entry(tenant.trim().to_owned()).or_default().extend(entries);
        }
        Ok(Egress { allowed: Arc::new(allowed), ..Egress::default() })
    }

    /// Reads the setting `egress.proxy`: the address of an HTTP proxy, or nothing.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the value.
    pub fn read_proxy(text: &str) -> Result<Option<Url>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let url = Url::parse(text).ok().filter(|u| matches!(u.scheme(), "http" | "https"));
        match url.filter(Url::has_host) {
            Some(url) => Ok(Some(url)),
            None => {
                Err("is not the address of a proxy, such as http://proxy.internal:3128".to_owned())
            }
        }
    }

    /// Sends every request through this proxy, which decides where a tenant may connect to.
    pub fn through(mut self, proxy: Option<Url>) -> Self {
        self.proxy = proxy;
        self
    }

    /// Refuses these addresses, whatever is allowed.
    pub fn except(mut self, own: OwnListeners) -> Self {
        self.own = own;
        self
    }

    pub(crate) fn proxy(&self) -> Option<&Url> {
        self.proxy.as_ref()
    }

    /// The check for the calls of one tenant.
    pub(crate) fn guard(&self, tenant: &str) -> Guard {
        Guard { egress: self.clone(), tenant: tenant.to_owned(), refusal: Arc::default() }
    }

    fn check(&self, tenant: &str, host: &str, address: SocketAddr) -> Result<(), Refusal> {
        let address = SocketAddr::new(judged_as(address.ip()), address.port());
        let refuse =
            |why| Refusal { tenant: tenant.to_owned(), host: host.to_owned(), address, why };
        if self.own.contain(address) {
            return Err(refuse(Why::Own));
        }
        if self.proxy.is_some() {
            return Ok(());
        }
        let Some(sort) = not_public(address.ip()) else { return Ok(()) };
        let lists = [tenant, EVERY_TENANT].into_iter().filter_map(|t| self.allowed.get(t));
        match lists.flatten().any(|entry| entry.contains(host, address)) {
            true => Ok(()),
            false => Err(refuse(Why::NotPublic(sort))),
        }
    }
}

fn wrong(part: &str) -> String {
    format!(
        "has {part:?}, which is not TENANT=ADDRESS+ADDRESS; an address is a network (10.2.0.0/16), an IP address, or HOST:PORT (billing.internal:443), and the tenant * stands for all"
    )
}

/// Addresses at which this deployment listens. Clones share one list, because a port is often known only after it was bound.
#[derive(Clone, Debug, Default)]
pub struct OwnListeners(Arc<RwLock<Vec<SocketAddr>>>);

impl OwnListeners {
    /// Adds an address.
    pub fn add(&self, address: SocketAddr) {
        let address = SocketAddr::new(judged_as(address.ip()), address.port());
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(address);
    }

    fn contain(&self, target: SocketAddr) -> bool {
        let reaches = |own: &SocketAddr| {
            own.port() == target.port()
                && (own.ip() == target.ip()
                    // A connection to 0.0.0.0 goes to this machine's loopback address.
                    || (target.ip().is_unspecified() && own.ip().is_loopback())
                    || (own.ip().is_unspecified() && is_of_this_machine(target.ip())))
        };
        self.0.read().unwrap_or_else(PoisonError::into_inner).iter().any(reaches)
    }
}

/// Whether an address belongs to an interface of this machine: only then a socket can be bound to it.
fn is_of_this_machine(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The address that decides: the embedded IPv4 address, where there is one.
fn judged_as(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    match embedded(v6) {
        Some(v4) => IpAddr::V4(v4),
        None => ip,
    }
}

fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match (a, b, c, d, e, f) {
        // :: and ::1 are addresses of their own.
        (0, 0, 0, 0, 0, 0) if g == 0 && h <= 1 => None,
        // IPv4-mapped and the older IPv4-compatible addresses.
        (0, 0, 0, 0, 0, 0xffff | 0) => Some(v4(g, h)),
        // IPv4-translated.
        (0, 0, 0, 0, 0xffff, 0) => Some(v4(g, h)),
        // NAT64.
        (0x64, 0xff9b, 0, 0, 0, 0) => Some(v4(g, h)),
        // 6to4.
        (0x2002, ..) => Some(v4(b, c)),
        _ => None,
    }
}

/// Networks that are not public, and what they are.
static NOT_PUBLIC: LazyLock<Vec<(IpNet, &str)>> = LazyLock::new(|| {
    let rows = [
        ("0.0.0.0/8", "an unspecified"),
        ("10.0.0.0/8", "a private"),
        ("100.64.0.0/10", "a carrier's shared"),
        ("127.0.0.0/8", "a loopback"),
        ("169.254.0.0/16", "a link-local"),
        ("172.16.0.0/12", "a private"),
        ("192.0.0.0/24", "a reserved"),
        ("192.0.2.0/24", "a documentation"),
        ("192.88.99.0/24", "a reserved"),
        ("192.168.0.0/16", "a private"),
        ("198.18.0.0/15", "a benchmarking"),
        ("198.51.100.0/24", "a documentation"),
        ("203.0.113.0/24", "a documentation"),
        ("224.0.0.0/4", "a multicast"),
        ("240.0.0.0/4", "a reserved"),
        ("::/128", "an unspecified"),
        ("::1/128", "a loopback"),
        ("fe80::/10", "a link-local"),
        ("fc00::/7", "a private"),
        ("fec0::/10", "a private"),
        ("ff00::/8", "a multicast"),
        ("2001::/32", "a tunnel"),
        ("2001:db8::/32", "a documentation"),
        ("3fff::/20", "a documentation"),
    ];
    rows.iter().filter_map(|(net, sort)| Some((net.parse().ok()?, *sort))).collect()
});

/// What an address is, if it is not a public unicast one.
fn not_public(ip: IpAddr) -> Option<&'static str> {
    if let Some((_, sort)) = NOT_PUBLIC.iter().find(|(net, _)| net.contains(&ip)) {
        return Some(sort);
    }
    match ip {
        IpAddr::V4(_) => None,
        // 2000::/3 is all that is assigned for global unicast.
        IpAddr::V6(v6) => (v6.segments()[0] & 0xe000 != 0x2000).then_some("a reserved"),
    }
}

/// Why a connection is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    tenant: String,
    host: String,
    address: SocketAddr,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Own,
    NotPublic(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { tenant, host, address, why } = self;
        write!(f, "tenant {tenant:?} may not connect to {host}")?;
        if *host != address.ip().to_string() {
            write!(f, " ({})", address.ip())?;
        }
        match why {
            Why::Own => write!(f, " port {}: Tenure itself listens there", address.port()),
            Why::NotPublic(sort) => write!(
                f,
                ": it is {sort} address; the operator can allow it with the setting egress.allow = {tenant}={address}"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Checks the addresses of one call.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    egress: Egress,
    tenant: String,
    /// Why a name was refused: the HTTP client shows only that there was no connection.
    refusal: Arc<Mutex<Option<Refusal>>>,
}

impl Guard {
    /// Checks an address that needs no name resolution.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn check_url(&self, url: &Url) -> Result<(), String> {
        let Some(port) = url.port_or_known_default() else { return Ok(()) };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        // The parser has turned every spelling of an address (0x7f.1, 2130706433) into the usual one.
        let Ok(ip) = host.parse::<IpAddr>() else { return Ok(()) };
        let checked = self.egress.check(&self.tenant, host, SocketAddr::new(ip, port));
        checked.map_err(|refusal| refusal.to_string())
    }

    /// Why a name was refused since this was asked last.
    pub(crate) fn take_refusal(&self) -> Option<String> {
        let taken = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.map(|refusal| refusal.to_string())
    }

    /// The addresses of a name to which this tenant may connect.
    async fn resolve(self, name: String, port: u16) -> Result<Vec<SocketAddr>, BoxError> {
        let found: Vec<SocketAddr> =
            tokio::net::lookup_host((name.as_str(), port)).await?.collect();
        // The proxy's own address is the operator's.
        if self.egress.proxy.as_ref().and_then(Url::host_str) == Some(&name) {
            return Ok(found);
        }
        let (mut fine, mut refused) = (Vec::new(), None);
        for address in found {
            match self.egress.check(&self.tenant, &name, address) {
                Ok(()) => fine.push(address),
                Err(refusal) => refused = Some(refusal),
            }
        }
        match refused {
            Some(refusal) if fine.is_empty() => {
                let mut kept = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
                *kept = Some(refusal.clone());
                Err(refusal.into())
            }
            _ => Ok(fine),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

tokio::task_local! {
    /// The check of the call that this task makes, and the port that it connects to.
    pub(crate) static GUARD: (Guard, u16);
}

/// Resolves names for an HTTP client whose requests are sent within [`GUARD`]. Without it nothing is resolved.
pub(crate) struct GuardedResolver;

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = GUARD.try_with(Clone::clone);
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let (guard, port) = guard.map_err(|_| "this call has no egress check".to_owned())?;
            let addresses = guard.resolve(name, port).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(egress: &Egress, url: &str) -> Result<(), String> {
        egress.guard("acme").check_url(&Url::parse(url).unwrap())
    }

    #[test]
    fn every_spelling_of_an_inner_address_is_refused() {
        let egress = Egress::default();
        for inner in [
            "http://127.0.0.1/",
            "http://127.9.9.9:8080/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://0.0.0.0:7777/",
            "http://10.1.2.3/",
            "http://172.31.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://100.64.0.1/",
            "http://224.0.0.1/",
            "http://255.255.255.255/",
            "http://[::]/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::127.0.0.1]/",
            "http://[::ffff:0:127.0.0.1]/",
            "http://[64:ff9b::10.0.0.1]/",
            "http://[2002:7f00:1::]/",
            "http://[fe80::1]/",
            "http://[fd00::1]/",
            "http://[ff02::1]/",
            "http://[4000::1]/",
        ] {
            let refused = check(&egress, inner).unwrap_err();
            assert!(refused.contains("egress.allow"), "{inner}: {refused}");
        }
        for public in ["http://1.1.1.1/", "http://[2606:4700::1111]/", "http://[::ffff:1.1.1.1]/"] {
            check(&egress, public).unwrap();
        }
    }

    #[test]
    fn every_row_of_the_table_is_a_network() {
        assert_eq!(NOT_PUBLIC.len(), 24);
    }

    #[test]
    fn a_tenant_reaches_what_it_was_allowed_and_nothing_else() {
        let text = "acme=10.2.0.0/16+127.0.0.1:9000+[::1]:9000, *=192.168.7.7";
        let egress = Egress::read(text).unwrap();
        for fine in [
            "http://10.2.3.4/",
            "http://127.0.0.1:9000/",
            "http://[::1]:9000",
            "http://192.168.7.7",
        ] {
            check(&egress, fine).unwrap();
        }
        for refused in ["http://10.3.0.1/", "http://127.0.0.1:9001/", "http://192.168.7.8/"] {
            assert!(check(&egress, refused).is_err(), "{refused}");
        }
        let other = egress.guard("globex").check_url(&Url::parse("http://10.2.3.4/").unwrap());
        assert!(other.unwrap_err().contains("egress.allow = globex=10.2.3.4:80"));
    }

    #[test]
    fn what_is_not_an_entry_is_refused() {
        for bad in [
            "acme",
            "acme=",
            "=10.0.0.0/8",
            "acme=10.0.0.0/40",
            "acme=host",
            "acme=a b:80",
            "acme=h:0",
        ] {
            assert!(Egress::read(bad).is_err(), "{bad:?}");
        }
        for fine in ["", "none", "acme=host.internal:80", "*=::1+10.0.0.1"] {
            assert!(Egress::read(fine).is_ok(), "{fine:?}");
        }
        assert!(Egress::read_proxy("proxy:3128").is_err() && Egress::read_proxy("").is_ok());
    }

    #[test]
    fn our_own_listeners_are_refused_even_where_everything_is_allowed() {
        let own = OwnListeners::default();
        let egress = Egress::read("*=0.0.0.0/0+::/0").unwrap().except(own.clone());
        check(&egress, "http://127.0.0.1:7777/").unwrap();
        own.add("127.0.0.1:7777".parse().unwrap());
        for ours in
            ["http://127.0.0.1:7777/", "http://0.0.0.0:7777/", "http://[::ffff:127.0.0.1]:7777/"]
        {
            let refused = check(&egress, ours).unwrap_err();
            assert!(refused.contains("Tenure itself listens there"), "{refused}");
        }
        check(&egress, "http://127.0.0.1:7778/").unwrap();
        own.add("0.0.0.0:8888".parse().unwrap());
        for ours in ["http://127.0.0.1:8888/", "http://127.3.3.3:8888/", "http://[::1]:8888/"] {
            assert!(check(&egress, ours).is_err(), "{ours}");
        }
        check(&egress, "http://10.255.255.1:8888/").unwrap();
        let handed_over = egress.through(Some(Url::parse("http://proxy:3128").unwrap()));
        assert!(check(&handed_over, "http://127.0.0.1:7777/").is_err());
        check(&handed_over, "http://10.0.0.1/").unwrap();
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_resolves_to() {
        let local = "localhost".to_owned();
        let guard = Egress::default().guard("acme");
        let refused = guard.clone().resolve(local.clone(), 80).await.unwrap_err();
        assert!(refused.to_string().contains("it is a loopback address"), "{refused}");
        assert!(guard.take_refusal().unwrap().contains("localhost"));
        assert_eq!(guard.take_refusal(), None);
        let named = Egress::read("acme=LocalHost:80").unwrap();
        assert!(!named.guard("acme").resolve(local.clone(), 80).await.unwrap().is_empty());
        assert!(named.guard("acme").resolve(local.clone(), 81).await.is_err());
        assert!(named.guard("globex").resolve(local, 80).await.is_err());
    }
}
