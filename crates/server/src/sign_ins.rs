//! Failed sign-ins: keys and sessions that are not valid. They are counted for `/metrics`, logged and put on the audit trail once
//! in a while, and limited for each address, so that guessing costs the guesser and not the store.
//!
//! An address that failed too often is answered 429 before its key is looked up. Keys that were valid a moment ago are still
//! taken from it: behind a proxy all clients have one address, and a guesser among them must not lock the others out.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Failures are logged and recorded together for this time, except the first.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Networks whose failures are counted apart. All others share one count.
const NETWORKS_MAX: usize = 4_096;
/// Addresses that one record names.
const NAMED_MAX: usize = 20;
const MINUTE: Duration = Duration::from_secs(60);

/// How many times more failures an IPv6 site (/48) may have than one of its networks (/64). A site has 65,536 networks.
const SITE_SHARE: u32 = 8;

/// What is limited together: an IPv4 address, or the /64 that one subscriber has of IPv6, and the /48 of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    V4(u32),
    V6(u64),
    V6Site(u64),
    /// Connections whose address is not known, and networks beyond [`NETWORKS_MAX`].
    Others,
}

impl Network {
    /// The networks that an address is in.
    fn of(address: Option<IpAddr>) -> impl Iterator<Item = Self> {
        let (network, site) = match address.map(|address| address.to_canonical()) {
            Some(IpAddr::V4(v4)) => (Network::V4(v4.to_bits()), None),
            Some(IpAddr::V6(v6)) => {
                let network = (v6.to_bits() >> 64) as u64;
                (Network::V6(network), Some(Network::V6Site(network >> 16)))
            }
            None => (Network::Others, None),
        };
        [Some(network), site].into_iter().flatten()
    }

    /// How often it may fail, where one address may so often.
    fn per_minute(self, per_minute: u32) -> u32 {
        match self {
            Network::V6Site(_) => per_minute.saturating_mul(SITE_SHARE),
            _ => per_minute,
        }
    }
}

/// When a network may fail again: the moment at which all its failures are forgiven. Each failure moves it by the time that one
/// takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forgiven(Duration);

impl Forgiven {
    /// How long to wait until one more may fail, if so.
    pub(crate) fn wait(self, now: Duration, per_minute: u32) -> Option<Duration> {
        let owed = self.0.saturating_sub(now);
        (owed + MINUTE / per_minute).checked_sub(MINUTE).filter(|wait| !wait.is_zero())
    }

    pub(crate) fn failed(&mut self, now: Duration, per_minute: u32) {
        self.0 = (self.0.max(now) + MINUTE / per_minute).min(now + MINUTE);
    }

    /// Whether everything is forgiven.
    pub(crate) fn is_past(self, now: Duration) -> bool {
        self.0 <= now
    }
}

/// Failures of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// How many.
    pub count: u64,
    /// Where they came from, up to [`NAMED_MAX`] addresses.
    pub addresses: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Counted {
    networks: HashMap<Network, Forgiven>,
    /// `None` while nothing has failed for a while.
    window: Option<Failures>,
}

/// Counts failed sign-ins.
#[derive(Debug, Default)]
pub(crate) struct FailedSignIns {
    /// Failures of one address in a minute; 0 for no limit.
    per_minute: u32,
    counted: Mutex<Counted>,
    failed: AtomicU64,
    limited: AtomicU64,
}

impl FailedSignIns {
    pub(crate) fn new(per_minute: u32) -> Self {
        FailedSignIns { per_minute, ..FailedSignIns::default() }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // Nothing panics under this lock; the counts are right as far as they go.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Failures since the start: those that were looked up, and those that were refused unseen.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.failed.load(Ordering::Relaxed), self.limited.load(Ordering::Relaxed))
    }

    /// How long an address has to wait before another key is looked at, if it failed too often.
    pub(crate) fn wait(&self, address: Option<IpAddr>, now: Duration) -> Option<Duration> {
        let per_minute = Some(self.per_minute).filter(|n| *n > 0)?;
        let counted = self.counted();
        let wait = |network: Network| {
            let network = counted.known(network);
            counted.networks.get(&network)?.wait(now, network.per_minute(per_minute))
        };
        Network::of(address).filter_map(wait).max()
    }

    /// One more key was refused unseen.
    pub(crate) fn refuse(&self) {
        self.limited.fetch_add(1, Ordering::Relaxed);
    }

    /// One more key was not valid. Whether it is the first for a while, and opens a window.
    pub(crate) fn failed(&self, address: Option<IpAddr>, now: Duration) -> bool {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut counted = self.counted();
        if self.per_minute > 0 {
            counted.make_room(now);
            for network in Network::of(address) {
                let network = counted.known(network);
                let per_minute = network.per_minute(self.per_minute);
                counted.networks.entry(network).or_default().failed(now, per_minute);
            }
        }
        let opens = counted.window.is_none();
        let window = counted.window.get_or_insert_default();
        if !opens {
            window.count += 1;
            let name =
                address.map_or_else(|| "unknown".to_owned(), |a| a.to_canonical().to_string());
            let is_named =
                window.addresses.contains_key(&name) || window.addresses.len() < NAMED_MAX;
            let name = if is_named { name } else { "others".to_owned() };
            *window.addresses.entry(name).or_default() += 1;
        }
        opens
    }

    /// Closes the window: what failed in it behind the first.
    pub(crate) fn close_window(&self) -> Failures {
        self.counted().window.take().unwrap_or_default()
    }
}

impl Counted {
    fn known(&self, network: Network) -> Network {
        match self.networks.contains_key(&network) || self.networks.len() < NETWORKS_MAX {
            true => network,
            false => Network::Others,
        }
    }

    fn make_room(&mut self, now: Duration) {
        if self.networks.len() >= NETWORKS_MAX {
            self.networks.retain(|_, forgiven| !forgiven.is_past(now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn an_address_may_fail_so_often_in_a_minute_and_no_more() {
        let failures = FailedSignIns::new(10);
        let (mallory, alice) = (address("192.0.2.1"), address("192.0.2.2"));
        let start = Duration::from_secs(1_000);
        for n in 0..10 {
            assert_eq!(failures.wait(mallory, start), None, "{n}");
            failures.failed(mallory, start);
        }
        let wait = failures.wait(mallory, start).expect("it failed too often");
        assert!(wait <= Duration::from_secs(6), "{wait:?}");
        assert_eq!(failures.wait(alice, start), None);
        assert_eq!(failures.wait(mallory, start + wait), None, "one more after the wait");
        failures.failed(mallory, start + wait);
        assert!(failures.wait(mallory, start + wait).is_some(), "and only one");
        assert_eq!(failures.wait(mallory, start + wait + MINUTE), None);
        assert_eq!(failures.totals(), (11, 0));
    }

    #[test]
    fn an_ipv6_subscriber_is_one_network_and_a_mapped_address_is_ipv4() {
        let failures = FailedSignIns::new(2);
        let now = Duration::from_secs(1_000);
        let fail = |text: &str| failures.failed(address(text), now);
        let waits = |text: &str| failures.wait(address(text), now).is_some();
        fail("2001:db8::1");
        fail("2001:db8::ffff");
        assert!(waits("2001:db8::2") && !waits("2001:db8:0:1::1"));
        fail("::ffff:192.0.2.1");
        fail("192.0.2.1");
        assert!(waits("::ffff:192.0.2.1") && !waits("192.0.2.2"));
    }

    #[test]
    fn a_site_of_ipv6_fails_less_often_than_all_its_networks() {
        let failures = FailedSignIns::new(2);
        let now = Duration::from_secs(1_000);
        let all = 2 * SITE_SHARE;
        for n in 0..all {
            let one = address(&format!("2001:db8:7:{n:x}::1"));
            assert_eq!(failures.wait(one, now), None, "{n}");
            failures.failed(one, now);
        }
        let wait = failures.wait(address("2001:db8:7:ffff::1"), now).expect("the site waits");
        assert!(wait <= MINUTE / all, "{wait:?}");
        assert_eq!(failures.wait(address("2001:db8:8::1"), now), None, "another site");
    }

    #[test]
    fn a_window_counts_all_but_its_first_and_memory_is_bounded() {
        let failures = FailedSignIns::new(5);
        let now = Duration::from_secs(5);
        let all = u32::try_from(NETWORKS_MAX).unwrap() * 2;
        let opened = (0..all).filter(|n| failures.failed(Some(IpAddr::V4((*n).into())), now));
        assert_eq!(opened.count(), 1);
        assert!(failures.counted().networks.len() <= NETWORKS_MAX + 2);
        assert!(
            failures.wait(Some(IpAddr::V4((all + 1).into())), now).is_some(),
            "the rest shares"
        );
        let window = failures.close_window();
        assert_eq!(window.count, u64::from(all) - 1);
        assert!(window.addresses.len() <= NAMED_MAX + 1);
        assert_eq!(window.addresses.values().sum::<u64>(), window.count);
        assert_eq!(failures.close_window(), Failures::default());
        assert!(failures.failed(None, now + MINUTE), "another window");
        assert!(failures.counted().networks.len() < 5, "what is forgiven is forgotten");
    }

    #[test]
    fn without_a_limit_nothing_is_refused() {
        let failures = FailedSignIns::new(0);
        for _ in 0..1_000 {
            failures.failed(None, MINUTE);
        }
        assert_eq!(failures.wait(None, MINUTE), None);
    }
}
