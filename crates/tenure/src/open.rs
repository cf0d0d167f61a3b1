//! A store, its bell and its wire from settings.

use crate::config::{BusKind, Settings};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tenure_bell::{
    Bus, BusOptions, BusState, InProcess, PgNotify, RedisBell, Standby,
    nats::{Credentials, EventSubjects, Template},
    notify::BadBell,
};
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::outside::NoBus;
use tenure_kernel::{
    bell::Bell,
    error::StoreError,
    feed::{Cursor, Lost},
    judge::Judge,
    outbox::Wire,
    runtime::{First, Runtime as _, first},
    store::Store,
};
use tenure_store::{
    postgres::{Intake, PostgresOptions, PostgresStore},
    sqlite::SqliteStore,
};

/// A store that is open, and what goes with it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its bell.
    pub bell: Arc<dyn Bell>,
    /// Where what leaves it goes: the bus, or nowhere where there is none.
    pub wire: Arc<dyn Wire>,
    /// The bus, where there is one.
    pub bus: Option<AnyBus>,
    /// Batches that make sense at once: one for a store with one writer.
    pub flights: usize,
    /// What applications leave in the same database.
    pub intake: Option<Intake>,
}

/// A bus of either kind.
#[derive(Clone)]
pub enum AnyBus {
    /// Carries bells and events.
    Nats(Bus),
    /// Carries bells.
    Redis(RedisBell),
}

impl AnyBus {
    async fn start(options: BusOptions, kind: BusKind, local: InProcess) -> Result<Self, BadBell> {
        let clock = Arc::new(SystemClock);
        match kind {
            BusKind::Nats => Bus::start(options, local, clock).await.map(AnyBus::Nats),
            BusKind::Redis => {
                let rt = Arc::new(TokioRuntime::current());
                RedisBell::start(options, local, clock, rt).map(AnyBus::Redis)
            }
        }
    }

    /// How it is.
    pub fn state(&self) -> BusState {
        match self {
            AnyBus::Nats(bus) => bus.state(),
            AnyBus::Redis(bell) => bell.state(),
        }
    }

    async fn connected(&self) {
        match self {
            AnyBus::Nats(bus) => bus.connected().await,
            AnyBus::Redis(bell) => bell.connected().await,
        }
    }

    /// Its bell, with a database that stands in for it where there is one.
    fn bell(&self, notify: Option<PgNotify>) -> Arc<dyn Bell> {
        match (self.clone(), notify) {
            (AnyBus::Nats(bus), Some(notify)) => Arc::new(Standby::new(bus, notify)),
            (AnyBus::Redis(bell), Some(notify)) => Arc::new(Standby::new(bell, notify)),
            (AnyBus::Nats(bus), None) => Arc::new(bus),
            (AnyBus::Redis(bell), None) => Arc::new(bell),
        }
    }
}

/// The directory of a `sqlite:` URL.
pub fn sqlite_directory(url: &str) -> Option<PathBuf> {
    url.strip_prefix("sqlite:").map(PathBuf::from)
}

/// Batches on their way to Postgres at once: enough to fill the time in which one waits for its sync.
pub const POSTGRES_FLIGHTS: usize = 4;

/// The bell's channel in the database.
const CHANNEL: &str = "tenure";

/// Opens for writing, creating and migrating as needed. A bus that can not be reached costs a warning.
pub async fn open(settings: &Settings, judge: Judge) -> Result<Opened, StoreError> {
    let url = settings.address("store.url");
    let url = url.expose();
    let incarnation = TokioRuntime::current().random();
    let bad = |e: BadBell| StoreError::Refused(e.to_string());
    let local = InProcess::new();
    if let Some(dir) = sqlite_directory(url) {
        let store = SqliteStore::open(&dir, judge, Arc::new(SystemClock), incarnation)?;
        let store: Arc<dyn Store> = Arc::new(store);
        let bus = bus(settings, &store, local.clone()).await?;
        let bell: Arc<dyn Bell> = match &bus {
            Some(bus) => bus.bell(None),
            None => Arc::new(local),
        };
        return Ok(Opened { store, bell, wire: wire(&bus), bus, flights: 1, intake: None });
    }
    let options = postgres_options(settings, incarnation);
    let intake = Some(Intake::new(url, &options)?);
    let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(url, judge, options).await?);
    let notify = PgNotify::start_for(url, CHANNEL, local.clone()).map_err(bad)?;
    let bus = bus(settings, &store, local).await?;
    let bell: Arc<dyn Bell> = match &bus {
        Some(bus) => bus.bell(Some(notify)),
        None => Arc::new(notify),
    };
    Ok(Opened { store, bell, wire: wire(&bus), bus, flights: POSTGRES_FLIGHTS, intake })
}

fn postgres_options(settings: &Settings, incarnation: u64) -> PostgresOptions {
    let size = |key: &str| usize::try_from(settings.number(key)).unwrap_or(usize::MAX);
    PostgresOptions {
        writers: size("store.postgres_writers"),
        readers: size("store.postgres_readers"),
        ..PostgresOptions::new(incarnation)
    }
}

/// Without a bus that carries events nobody outside listens, by the word of whoever set none: what would leave is in the feed.
fn wire(bus: &Option<AnyBus>) -> Arc<dyn Wire> {
    match bus {
        Some(AnyBus::Nats(bus)) => Arc::new(bus.clone()),
        Some(AnyBus::Redis(_)) | None => Arc::new(NoBus),
    }
}

async fn bus(
    settings: &Settings,
    store: &Arc<dyn Store>,
    local: InProcess,
) -> Result<Option<AnyBus>, StoreError> {
    let Some(kind) = settings.bus() else { return Ok(None) };
    // What all servers of one store know, and no other store has.
    let name = format!("{:x}", incarnation(store).await?);
    let options = bus_options(settings, &name)
        .map_err(|why| StoreError::Refused(format!("the message bus: {why}")))?;
    let bus = AnyBus::start(options, kind, local).await;
    bus.map(Some).map_err(|e| StoreError::Refused(format!("the message bus: {e}")))
}

/// What the settings say about the bus.
fn bus_options(settings: &Settings, store: &str) -> Result<BusOptions, String> {
    let file = settings.text("bus.credentials_file");
    let credentials = match file {
        "" => None,
        file => Some(
            Credentials::read(Path::new(file))
                .map_err(|e| format!("bus.credentials_file = {file:?} can not be used: {e}"))?,
        ),
    };
    let template =
        |name: &str| Template::parse(settings.text(name)).map_err(|e| format!("{name} {e}"));
    Ok(BusOptions {
        event_subjects: EventSubjects {
            default: template("bus.event_subject")?,
            others: template("bus.event_subject_of_tenants")?,
        },
        reconnect_pause: settings.seconds("bus.reconnect_pause_seconds"),
        prefix: settings.text("bus.prefix").to_owned(),
        jetstream: settings.is_on("bus.jetstream"),
        credentials,
        name: format!("tenure, pid {}", std::process::id()),
        ..BusOptions::new(settings.address("bus.url"), store)
    })
}

/// Tries the bus of the settings, for `tenure doctor`; `None` where there is none.
pub async fn try_bus(settings: &Settings, patience: Duration) -> Option<Result<(), String>> {
    let kind = settings.bus()?;
    let options = match bus_options(settings, "doctor") {
        Ok(options) => options,
        Err(e) => return Some(Err(e)),
    };
    let bus = match AnyBus::start(options, kind, InProcess::new()).await {
        Ok(bus) => bus,
        Err(e) => return Some(Err(e.to_string())),
    };
    let silence = TokioRuntime::current().sleep(patience);
    Some(match first(bus.connected(), silence).await {
        First::Left(()) => Ok(()),
        First::Right(()) => {
            Err(bus.state().trouble.unwrap_or_else(|| "it does not answer".to_owned()))
        }
    })
}

/// Which life of which store this is. A cursor of another life is answered with where this one begins; the beginning
/// itself would not say it on a store with an empty feed.
async fn incarnation(store: &Arc<dyn Store>) -> Result<u64, StoreError> {
    let of_another_life = Cursor { incarnation: u64::MAX, ..Cursor::START };
    match store.feed(of_another_life, 1).await {
        Ok(page) => Ok(page.next.incarnation),
        Err(StoreError::FeedLost(
            Lost::OtherIncarnation { restart } | Lost::BelowFloor { restart },
        )) => Ok(restart.incarnation),
        Err(e) => Err(e),
    }
}

/// Opens for reading, beside whoever writes.
pub async fn open_read_only(
    settings: &Settings,
    judge: Judge,
) -> Result<Arc<dyn Store>, StoreError> {
    let url = settings.address("store.url");
    let url = url.expose();
    let incarnation = TokioRuntime::current().random();
    if let Some(dir) = sqlite_directory(url) {
        return Ok(Arc::new(SqliteStore::open_read_only(
            &dir,
            judge.tables,
            Arc::new(SystemClock),
        )?));
    }
    Ok(Arc::new(
        PostgresStore::connect_read_only(url, judge, postgres_options(settings, incarnation))
            .await?,
    ))
}
