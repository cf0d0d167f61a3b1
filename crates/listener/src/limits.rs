//! How many connections there may be, how long each may wait for its peer, and which is closed for a new one.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

/// What a listener permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections_max: usize,
    /// Connections from one address at once.
    pub per_address_max: usize,
    /// Connections at once on which nobody has shown a valid key.
    pub unauthenticated_max: usize,
    /// Connections of one tenant at once.
    pub per_tenant_max: usize,
    /// How long the head of a request may take; on a new connection with its TLS handshake.
    pub header: Duration,
    /// How long a body may take, and one second more for each [`BODY_BYTES_PER_SECOND`] that came.
    pub body: Duration,
    /// How long a connection may be without a request, or without taking any byte of an answer.
    pub idle: Duration,
}

/// A body that comes slower than this, after [`Limits::body`], is given up.
pub const BODY_BYTES_PER_SECOND: u64 = 512;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 8_192,
            per_address_max: 4_096,
            unauthenticated_max: 1_024,
            per_tenant_max: 2_048,
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(120),
        }
    }
}

impl Limits {
    /// The same in a process that may have this many files open. A quarter of them, and at least 64, are not for
    /// connections; one address, one tenant and peers without a key leave room for others.
    pub fn within(self, files: u64) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let most = files.saturating_sub((files / 4).max(64)).max(8);
        let connections_max = self.connections_max.min(most);
        Limits {
            connections_max,
            per_address_max: self.per_address_max.min((connections_max / 4 * 3).max(1)),
            unauthenticated_max: self.unauthenticated_max.min((connections_max / 2).max(1)),
            per_tenant_max: self.per_tenant_max.min((connections_max / 2).max(1)),
            ..self
        }
    }

    /// How many files a process needs to be able to open for these connections.
    pub fn files(&self) -> u64 {
        let connections = u64::try_from(self.connections_max).unwrap_or(u64::MAX);
        // As much again as `within` keeps for other purposes, rounded up.
        connections.saturating_add(connections / 3).saturating_add(128)
    }

    /// How often deadlines are looked at.
    pub fn sweep_every(&self) -> Duration {
        let shortest = self.header.min(self.idle);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Until when a body has to be there that began to be waited for at `since` and of which this many bytes came.
    pub fn body_until(&self, since: Duration, received: u64) -> Duration {
        since
            .saturating_add(self.body)
            .saturating_add(Duration::from_secs(received / BODY_BYTES_PER_SECOND))
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// The first request: nothing of the peer has been answered yet.
    Fresh = 0,
    /// The next request, of which nothing has come.
    Idle = 1,
    /// The rest of a head.
    Head = 2,
    /// The rest of a body.
    Body = 3,
    /// The server.
    Serving = 4,
}

impl Stage {
    pub(crate) fn from_u8(value: u8) -> Self {
        match value {
            0 => Stage::Fresh,
            1 => Stage::Idle,
            2 => Stage::Head,
            3 => Stage::Body,
            _ => Stage::Serving,
        }
    }
}

/// One connection, as decisions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub id: u64,
    /// From [`address`].
    pub address: IpAddr,
    /// What it waits for.
    pub stage: Stage,
    /// Since when.
    pub since: Duration,
    /// Since when the peer takes nothing of what was sent to it.
    pub blocked: Option<Duration>,
    /// Whether a request on it had a valid key, or needed none.
    pub authenticated: bool,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    /// The head of a request, or the TLS handshake, did not come in time.
    Header,
    /// There was no request for too long.
    Idle,
    /// The peer did not take an answer.
    Blocked,
}

impl Standing {
    /// Whether the connection has waited for its peer for too long. A body has its own deadline, which answers 408.
    pub fn overdue(&self, limits: &Limits, now: Duration) -> Option<Overdue> {
        let past = |since: Duration, most: Duration| now.saturating_sub(since) >= most;
        if self.blocked.is_some_and(|since| past(since, limits.idle)) {
            return Some(Overdue::Blocked);
        }
        match self.stage {
            Stage::Fresh | Stage::Head => {
                past(self.since, limits.header).then_some(Overdue::Header)
            }
            Stage::Idle => past(self.since, limits.idle).then_some(Overdue::Idle),
            Stage::Body | Stage::Serving => None,
        }
    }

    /// Whether it may be closed in favour of a new one: nothing that the server does for it is lost.
    fn may_go(&self) -> bool {
        match self.authenticated {
            true => self.stage == Stage::Idle,
            false => self.stage != Stage::Serving || self.blocked.is_some(),
        }
    }
}

/// The limit that a new connection meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// [`Limits::connections_max`].
    Total,
    /// [`Limits::per_address_max`].
    Address,
    /// [`Limits::unauthenticated_max`].
    Unauthenticated,
}

/// The numbers that a new connection is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// All connections.
    pub total: usize,
    /// Those from the address of the new one.
    pub same_address: usize,
    /// Those without a key.
    pub unauthenticated: usize,
}

impl Limits {
    /// The limit that another connection would pass.
    pub fn met(&self, counts: Counts) -> Option<Met> {
        if counts.same_address >= self.per_address_max {
            return Some(Met::Address);
        }
        if counts.total >= self.connections_max {
            return Some(Met::Total);
        }
        (counts.unauthenticated >= self.unauthenticated_max).then_some(Met::Unauthenticated)
    }
}

/// The connection to close for a new one: of those without a key before those with one, of the address that has the most of
/// them, the oldest. `candidates` are the connections that share the limit, oldest first.
pub fn victim(candidates: impl Iterator<Item = Standing>) -> Option<u64> {
    let all: Vec<Standing> = candidates.filter(Standing::may_go).collect();
    let strangers = all.iter().any(|c| !c.authenticated);
    let class = || all.iter().filter(|c| c.authenticated != strangers);
    let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
    class().for_each(|c| *of_address.entry(c.address).or_default() += 1);
    let most = of_address.values().copied().max()?;
    class().find(|c| of_address.get(&c.address) == Some(&most)).map(|c| c.id)
}

/// What counts as one address: an IPv4 address, or the 64 bits of an IPv6 address that a provider gives to one customer.
pub fn address(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => {
            let bits = u128::from(v6) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(bits))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(id: u64, address: [u8; 4], stage: Stage, authenticated: bool) -> Standing {
        Standing { id, address: address.into(), stage, since: S, blocked: None, authenticated }
    }

    #[test]
    fn only_what_waits_for_its_peer_has_a_deadline() {
        let limits = Limits { header: 2 * S, idle: 5 * S, ..Limits::default() };
        let one = |stage| at(1, [1; 4], stage, false);
        for (stage, after, expected) in [
            (Stage::Fresh, 3, Some(Overdue::Header)),
            (Stage::Fresh, 2, None),
            (Stage::Head, 3, Some(Overdue::Header)),
            (Stage::Idle, 3, None),
            (Stage::Idle, 6, Some(Overdue::Idle)),
            (Stage::Body, 1_000, None),
            (Stage::Serving, 1_000_000, None),
        ] {
            assert_eq!(one(stage).overdue(&limits, after * S), expected, "{stage:?} {after}");
        }
        let blocked = Standing { blocked: Some(S), ..one(Stage::Serving) };
        assert_eq!(blocked.overdue(&limits, 6 * S), Some(Overdue::Blocked));
        assert_eq!(blocked.overdue(&limits, 5 * S), None);
    }

    #[test]
    fn a_body_may_be_slow_but_not_drip() {
        let limits = Limits { body: 30 * S, ..Limits::default() };
        assert_eq!(limits.body_until(S, 0), 31 * S);
        assert_eq!(limits.body_until(S, 511), 31 * S);
        assert_eq!(limits.body_until(S, 64 * 1024 * 1024), (31 + 131_072) * S);
    }

    #[test]
    fn a_new_connection_takes_the_place_of_a_stranger_that_waits() {
        let (attacker, other) = ([9, 9, 9, 9], [1, 1, 1, 1]);
        let all = [
            at(1, other, Stage::Head, false),
            at(2, other, Stage::Idle, true),
            at(3, attacker, Stage::Serving, false),
            at(4, attacker, Stage::Body, false),
            at(5, attacker, Stage::Fresh, false),
            at(6, other, Stage::Serving, true),
        ];
        assert_eq!(victim(all.into_iter()), Some(4), "of the address that has the most");
        assert_eq!(victim(all[..3].iter().copied()), Some(1), "a stranger before a caller");
        assert_eq!(victim(all[1..3].iter().copied()), Some(2), "then an idle caller");
        assert_eq!(victim([all[2], all[5]].into_iter()), None, "nobody who is served");
        let deaf = Standing { blocked: Some(S), ..all[2] };
        assert_eq!(victim([deaf].into_iter()), Some(3));
    }

    #[test]
    fn limits_fit_the_files_that_a_process_may_open() {
        let small = Limits::default().within(1_024);
        assert_eq!((small.connections_max, small.per_address_max), (768, 576));
        assert_eq!((small.unauthenticated_max, small.per_tenant_max), (384, 384));
        let large = Limits::default();
        assert_eq!(large.within(large.files()), large);
        assert_eq!(large.within(u64::MAX), large);
        let tiny = large.within(0);
        assert!(
            tiny.connections_max > 0 && tiny.per_address_max > 0 && tiny.unauthenticated_max > 0
        );
    }

    #[test]
    fn each_limit_is_met_by_itself() {
        let limits = Limits::default().within(1_024);
        let met = |total, same_address, unauthenticated| {
            limits.met(Counts { total, same_address, unauthenticated })
        };
        assert_eq!(met(767, 575, 383), None);
        assert_eq!(met(768, 0, 0), Some(Met::Total));
        assert_eq!(met(768, 576, 0), Some(Met::Address));
        assert_eq!(met(400, 0, 384), Some(Met::Unauthenticated));
    }

    #[test]
    fn neighbours_in_ipv6_are_one_address() {
        let ip = |text: &str| address(text.parse().unwrap());
        assert_eq!(ip("2001:db8:1:2:3::4"), ip("2001:db8:1:2:ffff::1"));
        assert_ne!(ip("2001:db8:1:2::1"), ip("2001:db8:1:3::1"));
        assert_eq!(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
        assert_ne!(ip("10.0.0.1"), ip("10.0.0.2"));
    }
}
