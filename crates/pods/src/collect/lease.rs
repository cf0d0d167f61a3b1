//! Of several collectors for one cluster, the one that speaks.
//!
//! A `Lease`, as Kubernetes' own controllers hold it: whoever renews it holds it; who sees it unchanged for as long as it lasts takes it. Each
//! counts with its own clock from when it last saw a change, so that clocks need not agree. It only saves work: reports are
//! idempotent, so two who speak for a moment do no harm, and one who can not ask (no rights, API server away) goes on as it was, which
//! at the start is to speak.

use crate::follow::Trouble;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff,
};
use kube::{Api, Client, api::PostParams};
use std::{sync::Mutex, sync::PoisonError, time::Duration};
use tenure_kernel::{
    runtime::{BoxFuture, Rt},
    time::Timestamp,
};

/// Which lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseOptions {
    /// In which namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are: unique.
    pub holder: String,
    /// How long it lasts without being renewed.
    pub lasts: Duration,
}

/// Says who speaks.
pub trait Election: Send + Sync {
    /// Asks, and renews; whether we speak.
    fn stand(&self, now: Timestamp) -> BoxFuture<'_, bool>;
    /// How often to ask.
    fn every(&self) -> Duration;
    /// Lets go.
    fn leave(&self, now: Timestamp) -> BoxFuture<'_, ()>;
}

/// A `Lease` in the cluster.
pub struct KubeLease {
    api: Api<Lease>,
    options: LeaseOptions,
    rt: Rt,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    speaks: bool,
    asked: bool,
    /// What the lease looked like, and since when.
    mark: Option<(String, Duration)>,
    trouble: Option<String>,
}

/// What to do about a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Renew,
    Take,
    Wait,
}

impl KubeLease {
    /// Over this client.
    pub fn new(client: Client, options: LeaseOptions, rt: Rt) -> Self {
        let api = Api::namespaced(client, &options.namespace);
        KubeLease { api, options, rt, seen: Mutex::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, now: Timestamp) -> bool {
        let patience = self.rt.sleep(self.options.lasts / 2);
        let tried = match tenure_kernel::runtime::first(self.attempt(now), patience).await {
            tenure_kernel::runtime::First::Left(tried) => tried,
            tenure_kernel::runtime::First::Right(()) => Err("no answer in time".to_owned()),
        };
        let mut seen = self.seen();
        match tried {
            Ok(speaks) => {
                if speaks != seen.speaks || !seen.asked {
                    let lease = &self.options.name;
                    tracing::info!(lease, speaks, "who speaks was decided");
                }
                (seen.speaks, seen.asked, seen.trouble) = (speaks, true, None);
            }
            Err(why) => {
                if seen.trouble.as_ref() != Some(&why) {
                    tracing::warn!(lease = self.options.name, %why, "the lease can not be asked; going on as before");
                    seen.trouble = Some(why);
                }
                if !seen.asked {
                    seen.speaks = true;
                }
            }
        }
        seen.speaks
    }

    async fn attempt(&self, now: Timestamp) -> Result<bool, String> {
        let found = self.api.get_opt(&self.options.name).await.map_err(words)?;
        let Some(mut lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.options.name.clone()),
                    namespace: Some(self.options.namespace.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.spec(None, now)),
            };
            return match self.api.create(&PostParams::default(), &lease).await {
                Ok(_) => Ok(true),
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                Err(e) => Err(words(e)),
            };
        };
        let decided = self.decide(lease.spec.as_ref(), self.rt.mono());
        if decided == Move::Wait {
            return Ok(false);
        }
        lease.spec = Some(self.spec(lease.spec.as_ref(), now));
        lease.metadata.managed_fields = None;
        // With the version that was read: whoever was faster wins.
        match self.api.replace(&self.options.name, &PostParams::default(), &lease).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(decided == Move::Renew),
            Err(e) => Err(words(e)),
        }
    }

    fn decide(&self, spec: Option<&LeaseSpec>, now: Duration) -> Move {
        let holder = spec.and_then(|s| s.holder_identity.as_deref()).unwrap_or("");
        if holder == self.options.holder {
            return Move::Renew;
        }
        if holder.is_empty() {
            return Move::Take;
        }
        let renewed = spec.and_then(|s| s.renew_time.as_ref()).map(|t| t.0.to_string());
        let mark = format!("{holder}/{}", renewed.unwrap_or_default());
        let theirs =
            spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        let lasts = theirs.map_or(self.options.lasts, Duration::from_secs).max(self.options.lasts);
        let mut seen = self.seen();
        match &seen.mark {
            Some((before, since)) if *before == mark => {
                if now.saturating_sub(*since) >= lasts {
                    Move::Take
                } else {
                    Move::Wait
                }
            }
            _ => {
                seen.mark = Some((mark, now));
                Move::Wait
            }
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
        let ours = before.and_then(|b| b.holder_identity.as_deref()) == Some(&self.options.holder);
        let transitions = before.and_then(|b| b.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.options.holder.clone()),
            lease_duration_seconds: i32::try_from(self.options.lasts.as_secs().max(1)).ok(),
            acquire_time: if ours {
                before.and_then(|b| b.acquire_time.clone())
            } else {
                micro(now)
            },
            renew_time: micro(now),
            lease_transitions: Some(transitions + i32::from(!ours && before.is_some())),
            ..LeaseSpec::default()
        }
    }

    async fn let_go(&self, now: Timestamp) {
        let Ok(Some(mut lease)) = self.api.get_opt(&self.options.name).await else { return };
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref());
        if holder != Some(&self.options.holder) {
            return;
        }
        let mut spec = self.spec(lease.spec.as_ref(), now);
        spec.holder_identity = Some(String::new());
        lease.spec = Some(spec);
        lease.metadata.managed_fields = None;
        // Not done: the next one waits until it has lapsed.
        let _ = self.api.replace(&self.options.name, &PostParams::default(), &lease).await;
    }
}

fn micro(now: Timestamp) -> Option<MicroTime> {
    jiff::Timestamp::from_microsecond(now.as_micros()).ok().map(MicroTime)
}

fn words(e: kube::Error) -> String {
    match e {
        kube::Error::Api(s) => {
            let (code, why) = (s.code, s.message);
            Trouble::of_answer(code, None, why, "get, create or update", "leases").to_string()
        }
        e => e.to_string(),
    }
}

impl Election for KubeLease {
    fn stand(&self, now: Timestamp) -> BoxFuture<'_, bool> {
        Box::pin(self.ask(now))
    }

    fn every(&self) -> Duration {
        self.options.lasts / 3
    }

    fn leave(&self, now: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(self.let_go(now))
    }
}
