//! Follows a pod until it is over, keeps its log, and carries out what becomes of it.
//!
//! The loop has no phases of its own: what is done next follows from the head (made, over, stop, marked) and from the pod as
//! it was last seen, so an executor that takes over goes on where the last one was, whatever it had done.

use super::{
    live::MANAGED_BY,
    logs::{self, Log, Piece, Pieces, Read, Reading},
    making::place_of,
    run::{Go, Halt, Run},
    sight::Seen,
    told::{is_terminal, report_of},
};
use crate::{
    pod::{Begun, NewPod, PodEvent, Says, decide::tell, model::limits},
    report::{POD_REPORT, Report, labels::MANAGED_BY as MANAGED},
    verdict::{
        Departure, Gone, Verdict, is_gated, is_over, main_container, verdict, verdict_of_deleted,
    },
};
use k8s_openapi::api::core::v1::Pod;
use std::{sync::Arc, time::Duration};
use tenure_engine::{session::Hint, worker::HoldError};
use tenure_kernel::{
    ids::MailId,
    limits::clip,
    machine::Decision,
    mail::NewMail,
    outbox::{Message, Target},
    runtime::{BoxFuture, First, first},
    stream::Body,
    time::Timestamp,
};
use tokio::sync::watch;

/// An executor says that it is at it, and looks at its clocks, at least so often.
const TICK: Duration = Duration::from_secs(60);

/// What is known of a pod that is followed.
pub(super) struct Watched {
    task: tenure_kernel::ids::EntityId,
    pub at: Begun,
    pub uid: String,
    seen: watch::Receiver<Seen>,
    /// As it was last seen.
    pub pod: Option<Arc<Pod>>,
    last: Option<Verdict>,
    /// That is how it was when it was deleted.
    seen_to_end: bool,
    /// The key of the last report.
    told: Option<String>,
    /// No watch shows it: it is asked for by name.
    pub poll_at: Option<Duration>,
    log: Option<Log>,
    /// There is nothing more in its log.
    read_to_end: bool,
    /// It is not read again before.
    read_at: Duration,
    pieces: Pieces,
    /// How many were kept.
    kept: u32,
    /// When the first line that waits came.
    waits_since: Option<Duration>,
    /// The task is told again then that a gate holds the pod.
    gate_at: Duration,
    /// When it was first seen to be over.
    pub over_since: Option<Duration>,
    /// When the API server took a deletion.
    pub deleted_at: Option<Duration>,
    /// The task was told by us, after whoever had the pod before, that it is about to be taken away by force.
    pub force_told: bool,
    /// When the API server took a deletion by force.
    pub forced_at: Option<Duration>,
    /// Requests to stop it that were put off.
    pub tries: u32,
    /// One was, and its pause is over: the loop goes round at once.
    pub again: bool,
    /// The cluster refuses the mark of a stop.
    pub unmarkable: bool,
}

impl Watched {
    pub fn is_terminal(&self) -> bool {
        self.pod.as_ref().is_some_and(|p| is_terminal(p))
    }
}

/// What woke the loop.
enum Woke {
    Seen,
    Mail,
    Lost,
    Stopping,
    Line(Option<Read>),
    Clock,
}

impl Run {
    /// Tends a pod that exists, to its end or until it is given back.
    pub(super) async fn tend(&mut self, new: &NewPod) -> Go {
        let Some((at, uid)) = place_of(&self.state()?) else { return Ok(()) };
        let seen = self.shop.sight.follow(&at.namespace, &at.name);
        let mut w = Watched {
            task: new.task,
            at,
            uid,
            seen,
            pod: None,
            last: None,
            seen_to_end: false,
            told: None,
            // A pod that was there before we followed it does not show in a watch until it changes.
            poll_at: Some(self.mono() + self.shop.patience.poll),
            log: None,
            read_to_end: false,
            read_at: Duration::ZERO,
            pieces: Pieces::default(),
            kept: 0,
            waits_since: None,
            gate_at: Duration::ZERO,
            over_since: None,
            deleted_at: None,
            force_told: false,
            forced_at: None,
            tries: 0,
            again: false,
            unmarkable: false,
        };
        // Whatever a watch shows already is news to us.
        w.seen.mark_changed();
        loop {
            let round = self.mono();
            self.read_mail().await?;
            if self.held.stopping() {
                self.flush_log(&mut w).await?;
                return self.give_back().await;
            }
            self.look(new, &mut w).await?;
            self.flush_if_due(&mut w).await?;
            self.come_to_an_end(&mut w).await?;
            self.carry_out_stop(new, &mut w).await?;
            if !std::mem::take(&mut w.again) {
                self.wait(&mut w, round).await?;
            }
        }
    }

    /// Takes what was seen since the last look.
    async fn look(&mut self, new: &NewPod, w: &mut Watched) -> Go {
        let polls = w.poll_at.is_some_and(|at| self.mono() >= at);
        let fresh = w.seen.has_changed().unwrap_or(true);
        let mut gone = false;
        if fresh {
            let seen = w.seen.borrow_and_update().clone();
            match seen {
                Seen::Here(pod) if pod.metadata.uid.as_deref() == Some(&w.uid) => {
                    w.poll_at = None;
                    w.pod = Some(pod);
                }
                Seen::Gone(pod) if pod.metadata.uid.as_deref() == Some(&w.uid) => {
                    // Without a deletion it only left the watch.
                    w.seen_to_end = pod.metadata.deletion_timestamp.is_some();
                    w.pod = Some(pod);
                    gone = true;
                }
                Seen::Missing(Some(pod)) if pod.metadata.uid.as_deref() == Some(&w.uid) => {
                    w.pod = Some(pod);
                    gone = true;
                }
                Seen::Here(_) | Seen::Gone(_) | Seen::Missing(_) => gone = true,
                Seen::NotYet => {}
            }
        }
        if gone || polls {
            self.confirm(new, w).await?;
        }
        // Also without news: a clock of the last verdict may have run out.
        self.judge(new, w).await
    }

    /// A watch does not show it: the API server says whether it is there.
    pub(super) async fn confirm(&mut self, new: &NewPod, w: &mut Watched) -> Go {
        match self.find(&w.at.clone()).await? {
            Some(pod) if pod.metadata.uid.as_deref() == Some(&w.uid) => {
                // What happens to it from now on a watch shows, if it still has the label by which that finds it.
                let labels = pod.metadata.labels.as_ref();
                let shown = labels.is_some_and(|l| l.get(MANAGED).is_some_and(|v| v == MANAGED_BY));
                let poll = self.shop.patience.poll;
                let pause = if shown { poll.saturating_mul(20) } else { poll };
                w.poll_at = Some(self.mono() + pause);
                w.pod = Some(Arc::new(pod));
                w.seen_to_end = false;
                Ok(())
            }
            _ => self.departed(new, w).await,
        }
    }

    /// What the pod says, and to whom that is news.
    pub(super) async fn judge(&mut self, new: &NewPod, w: &mut Watched) -> Go {
        let Some(pod) = w.pod.clone() else { return Ok(()) };
        let state = self.state()?;
        let over = is_over(&pod, &self.policy);
        if over && w.over_since.is_none() {
            w.over_since = Some(self.mono());
        }
        let v = verdict(&pod, w.last.as_ref(), self.now(), &self.policy);
        // What is over on record was told by whoever recorded it.
        if v.status.is_some() && !state.over {
            let who = self.who();
            let report = report_of(new, &pod, &v, &self.policy, false, self.now(), &who);
            self.report(w, report).await?;
        }
        if is_gated(&v) && self.mono() >= w.gate_at {
            // Well before the task loses its patience, and again: whoever takes over says it anew.
            w.gate_at = self.mono() + Duration::from_millis(self.task.times.queued_ms / 4);
            self.say(Says::Gated {}).await?;
        }
        let reads = v.started && !state.over && !state.log_cut && w.log.is_none();
        if reads && !w.read_to_end && self.mono() >= w.read_at {
            let container = main_container(&pod, &self.policy);
            let reading = Reading { at: w.at.clone(), container, since: state.log_until };
            let rt = self.held.keeper().pipeline().rt().clone();
            w.log = Some(Log::follow(self.shop.cluster.clone(), &rt, reading));
        }
        w.last = Some(v);
        Ok(())
    }

    /// A word to the task that needs no record here.
    pub(super) async fn say(&mut self, says: Says) -> Go {
        let Some(Message { to: Target::Mail(to), kind, body }) = tell(&self.state()?, says) else {
            return Ok(());
        };
        let id = MailId(format!("pod/{}/{}/{}", self.held.id(), kind, self.now().as_micros()));
        self.held.keeper().pipeline().mail(NewMail { to, id, kind, body }).await?;
        Ok(())
    }

    fn who(&self) -> String {
        format!("executor {}", self.held.keeper().id())
    }

    /// Tells the task. Durable when it returns; told once per key, however often it is said.
    async fn report(&mut self, w: &mut Watched, report: Report) -> Go {
        let key = report.key();
        if w.told.as_ref() == Some(&key) {
            return Ok(());
        }
        let mail = NewMail {
            to: w.task,
            id: report.mail_id(),
            kind: POD_REPORT.into(),
            body: Body::json(&report),
        };
        let answer = self.held.keeper().pipeline().mail(mail).await?;
        tracing::debug!(pod = %w.at.name, %key, ?answer, "told the task");
        self.shop.counts.reports.add(1);
        w.told = Some(key);
        Ok(())
    }

    /// Nothing of it runs any more: the rest of its log, and the record of that.
    async fn come_to_an_end(&mut self, w: &mut Watched) -> Go {
        let Some(since) = w.over_since else { return Ok(()) };
        if self.state()?.over {
            return Ok(());
        }
        let started = w.last.as_ref().is_some_and(|v| v.started);
        let mut unread = false;
        if let Some(log) = &w.log {
            log.ends();
        }
        if started && !w.read_to_end && !self.state()?.log_cut {
            if self.mono() < since + self.shop.patience.log_end {
                return Ok(());
            }
            unread = true;
        }
        if let Some(mut log) = w.log.take() {
            let mut full = Vec::new();
            while let Ok(read) = log.lines.try_recv() {
                match read {
                    Read::Line(line) => full.extend(w.pieces.push(line)),
                    // It was read on behind that.
                    Read::Trouble(_) => {}
                    Read::End => w.read_to_end = true,
                }
            }
            self.keep(w, full).await?;
            if w.read_to_end {
                unread = false;
                self.read_through(w).await?;
            }
        }
        if unread {
            self.log_unread(w, "its log did not end in time after the end of the container")
                .await?;
        }
        self.flush_log(w).await?;
        let tail = self.tail(w).await?;
        self.record(Decision::event(PodEvent::PodOver { tail })).await
    }

    /// The last lines of a log that was longer than what is kept.
    async fn tail(&mut self, w: &Watched) -> Go<String> {
        let state = self.state()?;
        let Some(pod) = w.pod.as_ref().filter(|_| state.log_cut) else { return Ok(String::new()) };
        let container = main_container(pod, &self.policy);
        let cluster = self.shop.cluster.clone();
        let tail = async { Ok(logs::tail(&*cluster, &w.at, container, state.log_until).await) };
        Ok(self.ask(tail).await.ok().flatten().unwrap_or_default())
    }

    /// The pod is not there any more.
    async fn departed(&mut self, new: &NewPod, w: &mut Watched) -> Go {
        let state = self.state()?;
        if let Some(pod) = w.pod.clone().filter(|_| !state.over) {
            let (last, now) = (w.last.as_ref(), self.now());
            let left = verdict_of_deleted(&pod, Gone::Missing, last, now, &self.policy, None);
            if let Departure::Ended(v) = left {
                let mut report = report_of(new, &pod, &v, &self.policy, true, now, &self.who());
                let known = last.is_some_and(Verdict::is_final) || is_over(&pod, &self.policy);
                report.inferred = !known && !w.seen_to_end;
                self.report(w, report).await?;
            }
        }
        self.flush_log(w).await?;
        // What we took away has not ended by that; only what was seen to end has.
        let ended = state.over || w.pod.as_ref().is_some_and(|pod| is_over(pod, &self.policy));
        let unproven = state.forced && !ended;
        let how = match (state.marked, w.deleted_at.is_some() || state.stop.is_some()) {
            _ if unproven => {
                "its object was taken away by force; nobody has seen its containers end"
            }
            (true, _) | (_, true) => "it was deleted",
            _ => "it is not there any more, and nobody here deleted it",
        };
        let mut events = Vec::new();
        if !self.state()?.over {
            events.push(PodEvent::PodOver { tail: String::new() });
        }
        events.push(PodEvent::PodCleared { how: how.into() });
        self.finish(events, Some(Says::Gone { how: how.into(), unproven })).await
    }

    // ---- the log ----

    async fn take_line(&mut self, w: &mut Watched, read: Option<Read>) -> Go {
        let line = match read {
            Some(Read::Line(line)) => line,
            Some(Read::Trouble(why)) => return self.log_unread(w, &why).await,
            Some(Read::End) => return self.read_through(w).await,
            None => {
                w.log = None;
                w.read_at = self.mono() + self.shop.patience.pause;
                return self.flush_log(w).await;
            }
        };
        let mut full = w.pieces.push(line);
        let mut end = false;
        while let Some(Ok(next)) = w.log.as_mut().map(|l| l.lines.try_recv()) {
            match next {
                Read::Line(line) => full.extend(w.pieces.push(line)),
                Read::Trouble(why) => {
                    let full = std::mem::take(&mut full);
                    self.keep(w, full).await?;
                    self.log_unread(w, &why).await?;
                }
                Read::End => end = true,
            }
            if full.len() > 8 || end {
                break;
            }
        }
        w.waits_since = (!w.pieces.is_empty()).then(|| w.waits_since.unwrap_or(self.mono()));
        self.keep(w, full).await?;
        if end {
            self.read_through(w).await?;
        }
        Ok(())
    }

    /// Its log was read to its end: whatever stood in the way before does not any more, also where nothing was left to be read.
    async fn read_through(&mut self, w: &mut Watched) -> Go {
        w.log = None;
        w.read_to_end = true;
        self.flush_log(w).await?;
        let state = self.state()?;
        if state.log_trouble.is_none() || state.over {
            return Ok(());
        }
        // Of nothing that was read, whoever takes over reads everything.
        let until = state.log_until.unwrap_or(Timestamp::ZERO);
        let nothing = PodEvent::LogAppended { text: String::new(), until, cut: false };
        self.record(Decision::event(nothing)).await
    }

    /// Why its log cannot be read, once, until something is read again.
    async fn log_unread(&mut self, w: &mut Watched, why: &str) -> Go {
        self.flush_log(w).await?;
        let state = self.state()?;
        if state.log_trouble.is_some() || state.over {
            return Ok(());
        }
        let why = clip(why, limits::WORDS_BYTES_MAX).to_owned();
        self.record(Decision::event(PodEvent::LogUnread { why })).await
    }

    async fn flush_if_due(&mut self, w: &mut Watched) -> Go {
        let due = w.waits_since.map(|since| since + logs::patience(w.kept));
        match due.is_some_and(|due| self.mono() >= due) {
            true => self.flush_log(w).await,
            false => Ok(()),
        }
    }

    async fn flush_log(&mut self, w: &mut Watched) -> Go {
        let pieces = w.pieces.flush();
        w.waits_since = None;
        self.keep(w, pieces).await
    }

    async fn keep(&mut self, w: &mut Watched, pieces: Vec<Piece>) -> Go {
        for Piece { text, until } in pieces {
            let state = self.state()?;
            if state.log_cut || state.over {
                w.log = None;
                return Ok(());
            }
            let room = limits::LOG_BYTES_MAX.saturating_sub(state.log_bytes);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let kept = clip(&text, room).to_owned();
            let cut = kept.len() < text.len() || kept.len() == room;
            self.shop.counts.log_bytes.add(kept.len() as u64);
            w.kept = w.kept.saturating_add(1);
            self.record(Decision::event(PodEvent::LogAppended { text: kept, until, cut })).await?;
        }
        Ok(())
    }

    // ---- waiting ----

    /// When the loop has to look again by itself. Clocks that had run out when this round began were looked at in it.
    fn wake_in(&self, w: &Watched, round: Duration) -> Duration {
        let now = self.mono();
        let patience = self.shop.patience;
        let at = |t: Timestamp| now + t.since(self.now());
        let state = self.state().unwrap_or_default();
        let clocks = [
            w.last.as_ref().and_then(|v| v.next_check_at).map(at),
            w.waits_since.map(|since| since + logs::patience(w.kept)),
            w.over_since.filter(|_| !state.over).map(|since| since + patience.log_end),
            w.over_since
                .filter(|_| state.over && state.stop.is_some() && !w.is_terminal())
                .map(|since| since + patience.linger),
            w.poll_at,
            w.last.as_ref().filter(|v| is_gated(v)).map(|_| w.gate_at),
            Some(w.read_at),
            w.deleted_at.map(|since| since + super::stopping::ASK_AGAIN),
            w.deleted_at.map(|since| since + super::stopping::HELD_BY_OTHERS),
            self.force_due(&state, w).map(at),
            w.forced_at.map(|since| since + super::stopping::HELD_BY_OTHERS),
        ];
        let ahead = clocks.into_iter().flatten().filter(|at| *at > round);
        let next = ahead.min().unwrap_or(Duration::MAX);
        next.saturating_sub(now).min(TICK)
    }

    async fn wait(&mut self, w: &mut Watched, round: Duration) -> Go {
        let rt = self.held.keeper().pipeline().rt().clone();
        let nap: BoxFuture<'static, ()> = rt.sleep(self.wake_in(w, round));
        let stopping = self.held.until_stopping();
        let woke = {
            let Watched { seen, log, .. } = &mut *w;
            let line = async {
                match log {
                    Some(log) => log.lines.recv().await,
                    None => std::future::pending().await,
                }
            };
            let seen = async {
                if seen.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                // The loop looks at it, not we.
                seen.mark_changed();
            };
            let world = first(seen, line);
            let us = first(self.held.wait_for_mail(), first(stopping, nap));
            match first(us, world).await {
                First::Left(First::Left(Hint::Lost)) => Woke::Lost,
                First::Left(First::Left(_)) => Woke::Mail,
                First::Left(First::Right(First::Left(()))) => Woke::Stopping,
                First::Left(First::Right(First::Right(()))) => Woke::Clock,
                First::Right(First::Left(())) => Woke::Seen,
                First::Right(First::Right(line)) => Woke::Line(line),
            }
        };
        self.held.keeper().progress(self.held.id());
        match woke {
            Woke::Lost => Err(Halt::Hold(HoldError::Lost)),
            Woke::Mail => self.take_mail().await,
            Woke::Line(line) => self.take_line(w, line).await,
            Woke::Clock | Woke::Seen | Woke::Stopping => Ok(()),
        }
    }
}
