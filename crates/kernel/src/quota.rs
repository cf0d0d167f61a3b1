//! How much of a store a tenant may have, and the decision whether one more fits.
//!
//! The decision is made from counts that are a little old, because an exact count would be one row that every creation of a
//! tenant writes. A server counts the store ([`TenantCount`], [`EntitySize`]), adds what it has admitted since, and shares the
//! remaining room with the other servers. So one server alone keeps a quota exactly, except for creations that are on their way
//! while it counts; `n` servers that count at the same time pass it by at most `n - 1` entities.

use crate::{error::Code, ids::EntityId};
use std::{collections::BTreeMap, fmt, time::Duration};

/// What a tenant may have. `None`: no quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Open entities: jobs, turns and tasks that have not ended.
    pub open: Option<u64>,
    /// Bytes of histories, mail, evidence, states and values.
    pub bytes: Option<u64>,
    /// Submissions in a second.
    pub per_second: Option<u64>,
}

/// Quotas by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas(BTreeMap<String, Quota>);

/// The name that stands for every tenant without a quota of its own.
const EACH: &str = "*";

impl Quotas {
    /// As an operator writes them: `acme=open:1000+bytes:10GiB+per_second:50, *=open:10000`.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut quotas = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = |why: &str| {
                format!(
                    "{part:?} is no quota such as acme=open:1000+bytes:10GiB+per_second:50: {why}"
                )
            };
            let (tenant, given) =
                part.split_once('=').ok_or_else(|| bad("there is no tenant before a ="))?;
            let mut quota = Quota::default();
            for one in given.split('+').map(str::trim) {
                let (name, value) = one.split_once(':').ok_or_else(|| bad("there is no :"))?;
                let (place, most) = match name.trim() {
                    "open" => (&mut quota.open, 1_000_000_000),
                    "bytes" => (&mut quota.bytes, 1 << 53),
                    "per_second" => (&mut quota.per_second, 1_000_000),
                    _ => return Err(bad("it takes open, bytes and per_second")),
                };
                let value = amount(value.trim(), name.trim() == "bytes");
                let value = value.filter(|v| (1..=most).contains(v));
                let value =
                    value.ok_or_else(|| bad(&format!("{name} is a number from 1 to {most}")))?;
                if place.replace(value).is_some() {
                    return Err(bad(&format!("{name} is there twice")));
                }
            }
            let tenant = tenant.trim().to_owned();
            if tenant.is_empty() || quotas.insert(tenant, quota).is_some() {
                return Err(bad("a tenant is named once"));
            }
        }
        Ok(Quotas(quotas))
    }

    /// The quota of a tenant. Entities of no tenant are the server's own and have none.
    pub fn of(&self, tenant: &str) -> Option<&Quota> {
        let own = self.0.get(tenant).or_else(|| self.0.get(EACH));
        own.filter(|_| !tenant.is_empty())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any of them is about bytes.
    pub fn count_bytes(&self) -> bool {
        self.0.values().any(|quota| quota.bytes.is_some())
    }

    /// The tenants with a quota of their own.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str).filter(|tenant| *tenant != EACH)
    }
}

/// A number, for bytes with a unit if there is one.
fn amount(text: &str, is_bytes: bool) -> Option<u64> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.filter(|_| is_bytes).unwrap_or((text, 0));
    digits.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Which part of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaPart {
    /// [`Quota::open`].
    Open,
    /// [`Quota::bytes`].
    Bytes,
    /// [`Quota::per_second`].
    PerSecond,
}

impl QuotaPart {
    /// All of them.
    pub const ALL: [QuotaPart; 3] = [QuotaPart::Open, QuotaPart::Bytes, QuotaPart::PerSecond];

    /// As it is written in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            QuotaPart::Open => "open",
            QuotaPart::Bytes => "bytes",
            QuotaPart::PerSecond => "per_second",
        }
    }

    /// The error code of a creation that it refuses.
    pub const fn code(self) -> Code {
        match self {
            QuotaPart::Open => Code::QuotaOpen,
            QuotaPart::Bytes => Code::QuotaBytes,
            QuotaPart::PerSecond => Code::QuotaRate,
        }
    }
}

/// Why something was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// Which part.
    pub part: QuotaPart,
    /// Whose quota.
    pub tenant: String,
    /// How much there is, as far as it is known.
    pub used: u64,
    /// How much there may be.
    pub limit: u64,
    /// When another try is worth it.
    pub retry_after_s: u64,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuotaExceeded { part, tenant, used, limit, .. } = self;
        match part {
            QuotaPart::Open => {
                write!(f, "tenant {tenant:?} has {used} open entities, and its quota is {limit}")
            }
            QuotaPart::Bytes => {
                write!(f, "tenant {tenant:?} stores {used} bytes, and its quota is {limit}")
            }
            QuotaPart::PerSecond => {
                write!(f, "tenant {tenant:?} submits more than its quota of {limit} in a second")
            }
        }
    }
}

impl std::error::Error for QuotaExceeded {}

/// Open entities of one kind of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantCount {
    /// Whose.
    pub tenant: String,
    /// Of which kind.
    pub kind: String,
    /// How many.
    pub count: u64,
}

/// How much of the store an entity takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntitySize {
    /// Which entity.
    pub id: EntityId,
    /// Whose.
    pub tenant: String,
    /// Bytes of its records, mail, evidence and state, and of the values that it names. A value that several entities name
    /// counts for each.
    pub bytes: u64,
}

/// What wants to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whether it is an entity that counts as open. Else only its bytes count.
    pub entity: bool,
    /// How much it brings.
    pub bytes: u64,
    /// Whether somebody outside submits it. What running work creates is not limited in speed.
    pub submitted: bool,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// There is room, and it is taken.
    Admitted,
    /// There is none.
    Exceeded(QuotaExceeded),
    /// Nobody knows: count the open entities, and ask again.
    CountFirst,
}

/// What is known of a tenant's use, on one server.
#[derive(Clone, Debug, Default)]
pub struct Account {
    open: Tally,
    bytes: Tally,
    bucket: Bucket,
    refused: [u64; QuotaPart::ALL.len()],
}

/// A count, and what was added since.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    counted: Option<u64>,
    /// Admitted since the count began.
    since: u64,
    /// Of these, what was admitted before the count that runs now began.
    before: u64,
}

impl Tally {
    fn used(&self) -> u64 {
        self.counted.unwrap_or(0).saturating_add(self.since)
    }

    fn begin(&mut self) {
        self.before = self.since;
    }

    fn counted(&mut self, count: u64) {
        self.counted = Some(count);
        self.since -= self.before.min(self.since);
        self.before = 0;
    }
}

/// Tokens for submissions. A second without any fills it.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// In thousandths, as of `at`; `None`: it is full.
    tokens: Option<(u64, Duration)>,
}

impl Bucket {
    const TOKEN: u64 = 1_000;

    /// Takes one, or says how long it takes until there is one. `rate` is in thousandths of a token in a second.
    fn take(&mut self, rate: u64, now: Duration) -> Result<(), Duration> {
        let full = rate.max(Self::TOKEN);
        let (tokens, at) = self.tokens.unwrap_or((full, now));
        let millis = u64::try_from(now.saturating_sub(at).as_millis()).unwrap_or(u64::MAX);
        let grown = tokens.saturating_add(millis.saturating_mul(rate) / 1_000).min(full);
        match grown.checked_sub(Self::TOKEN) {
            Some(left) => {
                self.tokens = Some((left, now));
                Ok(())
            }
            // The moment stays: a part of a thousandth that has grown is not forgotten by asking often.
            None => Err(Duration::from_millis((Self::TOKEN - grown) * 1_000 / rate.max(1) + 1)),
        }
    }
}

/// How long a caller waits before it asks again for open entities, and for bytes.
const OPEN_AGAIN_S: u64 = 5;
const BYTES_AGAIN_S: u64 = 60;

impl Account {
    /// Whether there is room. `servers`: among how many the room is shared. `count_again`: whether a count may be asked for; else
    /// the last one decides.
    pub fn admit(
        &mut self,
        tenant: &str,
        quota: &Quota,
        asked: Asked,
        now: Duration,
        servers: u64,
        count_again: bool,
    ) -> Admission {
        match self.check(quota, asked, now, servers.max(1), count_again) {
            Ok(()) => {
                self.open.since += u64::from(asked.entity);
                self.bytes.since = self.bytes.since.saturating_add(asked.bytes);
                Admission::Admitted
            }
            Err(None) => Admission::CountFirst,
            Err(Some((part, used, retry_after_s))) => {
                self.refused[part as usize] += 1;
                let (tenant, limit) = (tenant.to_owned(), quota.limit(part).unwrap_or(0));
                Admission::Exceeded(QuotaExceeded { part, tenant, used, limit, retry_after_s })
            }
        }
    }

    /// What refuses it: the part, what is used, and when to ask again. `None`: a count may help.
    fn check(
        &mut self,
        quota: &Quota,
        asked: Asked,
        now: Duration,
        servers: u64,
        count_again: bool,
    ) -> Result<(), Option<(QuotaPart, u64, u64)>> {
        if let Some(limit) = quota.open.filter(|_| asked.entity) {
            let room = self.open.counted.map(|n| limit.saturating_sub(n).div_ceil(servers));
            if room.is_none_or(|room| self.open.since >= room) {
                let refusal = (QuotaPart::Open, self.open.used(), OPEN_AGAIN_S);
                return Err((!count_again).then_some(refusal));
            }
        }
        let bytes = self.bytes.used();
        if quota
            .bytes
            .is_some_and(|limit| asked.bytes > 0 && bytes.saturating_add(asked.bytes) > limit)
        {
            return Err(Some((QuotaPart::Bytes, bytes, BYTES_AGAIN_S)));
        }
        if let Some(limit) = quota.per_second.filter(|_| asked.submitted) {
            let rate = (limit * Bucket::TOKEN / servers).max(1);
            let taken = self.bucket.take(rate, now);
            taken.map_err(|wait| Some((QuotaPart::PerSecond, limit, wait.as_secs() + 1)))?;
        }
        Ok(())
    }

    /// A count of open entities, or of bytes, begins: what is admitted from now on may be missing in it.
    pub fn begin(&mut self, part: QuotaPart) {
        match part {
            QuotaPart::Open => self.open.begin(),
            QuotaPart::Bytes => self.bytes.begin(),
            QuotaPart::PerSecond => {}
        }
    }

    /// It has ended.
    pub fn counted(&mut self, part: QuotaPart, count: u64) {
        match part {
            QuotaPart::Open => self.open.counted(count),
            QuotaPart::Bytes => self.bytes.counted(count),
            QuotaPart::PerSecond => {}
        }
    }

    /// How much there is, as far as it is known; `None` before the first count.
    pub fn used(&self, part: QuotaPart) -> Option<u64> {
        let tally = match part {
            QuotaPart::Open => &self.open,
            QuotaPart::Bytes => &self.bytes,
            QuotaPart::PerSecond => return None,
        };
        tally.counted.map(|_| tally.used())
    }

    /// How often this part refused something.
    pub fn refused(&self, part: QuotaPart) -> u64 {
        self.refused[part as usize]
    }
}

impl Quota {
    /// The limit of a part.
    pub fn limit(&self, part: QuotaPart) -> Option<u64> {
        match part {
            QuotaPart::Open => self.open,
            QuotaPart::Bytes => self.bytes,
            QuotaPart::PerSecond => self.per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Asked = Asked { entity: true, bytes: 10, submitted: true };

    fn quota(text: &str) -> Quota {
        *Quotas::read(&format!("t={text}")).unwrap().of("t").unwrap()
    }

    fn part_of(admission: &Admission) -> Option<QuotaPart> {
        match admission {
            Admission::Exceeded(e) => Some(e.part),
            _ => None,
        }
    }

    #[test]
    fn quotas_are_read_and_what_is_wrong_is_named() {
        let quotas = Quotas::read("acme=open:5+bytes:2KiB+per_second:3, *=open:7").unwrap();
        let acme = Quota { open: Some(5), bytes: Some(2_048), per_second: Some(3) };
        assert_eq!(quotas.of("acme"), Some(&acme));
        assert_eq!(quotas.of("globex").unwrap().open, Some(7));
        assert_eq!(quotas.of(""), None, "the server's own entities");
        assert!(quotas.count_bytes() && Quotas::read(" ").unwrap().is_empty());
        for bad in [
            "acme",
            "=open:1",
            "a=open",
            "a=open:0",
            "a=open:x",
            "a=size:1",
            "a=open:1GiB",
            "a=open:1+open:2",
            "a=open:1, a=open:2",
            "a=per_second:1000001",
            "a=bytes:99999999TiB",
        ] {
            assert!(Quotas::read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn open_entities_up_to_the_limit_and_not_one_more() {
        let (quota, mut account) = (quota("open:3"), Account::default());
        let uncounted = account.admit("t", &quota, JOB, Duration::ZERO, 1, true);
        assert_eq!(uncounted, Admission::CountFirst, "nothing was counted yet");
        account.begin(QuotaPart::Open);
        account.counted(QuotaPart::Open, 1);
        let mut ask = |count_again| account.admit("t", &quota, JOB, Duration::ZERO, 1, count_again);
        assert_eq!((ask(true), ask(true)), (Admission::Admitted, Admission::Admitted));
        assert_eq!(ask(true), Admission::CountFirst, "some may have ended");
        let Admission::Exceeded(e) = ask(false) else { panic!() };
        assert_eq!((e.part, e.used, e.limit), (QuotaPart::Open, 3, 3));
        assert_eq!(account.refused(QuotaPart::Open), 1);
    }

    #[test]
    fn what_is_admitted_while_a_count_runs_is_not_forgotten() {
        let (quota, mut account) = (quota("open:10"), Account::default());
        account.counted(QuotaPart::Open, 0);
        account.admit("t", &quota, JOB, Duration::ZERO, 1, false);
        account.begin(QuotaPart::Open);
        account.admit("t", &quota, JOB, Duration::ZERO, 1, false);
        account.counted(QuotaPart::Open, 1);
        assert_eq!(account.used(QuotaPart::Open), Some(2));
    }

    #[test]
    fn servers_share_the_room_and_pass_the_limit_by_less_than_one_each() {
        for servers in 1..=7 {
            let quota = quota("open:10");
            let admitted: u64 = (0..servers)
                .map(|_| {
                    let mut account = Account::default();
                    account.counted(QuotaPart::Open, 4);
                    let mut ask =
                        || account.admit("t", &quota, JOB, Duration::ZERO, servers, false);
                    std::iter::from_fn(|| (ask() == Admission::Admitted).then_some(1)).sum::<u64>()
                })
                .sum();
            assert!((6..6 + servers).contains(&admitted), "{servers}: {admitted}");
        }
    }

    #[test]
    fn bytes_and_speed_are_limited_and_children_are_not_limited_in_speed() {
        let (quota, mut account) = (quota("bytes:30+per_second:2"), Account::default());
        let second = Duration::from_secs(1);
        let child = Asked { submitted: false, ..JOB };
        assert_eq!(account.admit("t", &quota, JOB, second, 1, false), Admission::Admitted);
        assert_eq!(account.admit("t", &quota, JOB, second, 1, false), Admission::Admitted);
        let third = account.admit("t", &quota, JOB, second, 1, false);
        assert_eq!(part_of(&third), Some(QuotaPart::PerSecond));
        assert_eq!(account.admit("t", &quota, child, second, 1, false), Admission::Admitted);
        let full = account.admit("t", &quota, child, second, 1, false);
        assert_eq!(part_of(&full), Some(QuotaPart::Bytes));
        account.begin(QuotaPart::Bytes);
        account.counted(QuotaPart::Bytes, 5);
        let half_a_second_later = second + Duration::from_millis(500);
        let again = account.admit("t", &quota, JOB, half_a_second_later, 1, false);
        assert_eq!(again, Admission::Admitted, "a token has grown");
    }
}
