//! The bell, for those who can only ask. A worker leaves a question with the server and gets it back when one
//! of its topics rings, or when its time is up.
//!
//! Between two questions of a worker nobody of it listens here, so the board does: one *post* per topic with a
//! standing ear, which writes down the number of its last ring. Numbers rise over all topics; an answer says
//! how far they were (`seen`), and the next question gets at once what is higher. A post that nobody has asked
//! about for a while is taken down.
//!
//! What may have rung unheard is answered as rung: a topic whose post is younger than `seen`, and every topic
//! when `seen` is of another life of the server. A ring too many costs a look; none too few may come of this.

use crate::{App, Caller, Problem, extract::Body, keys::Scope};
use axum::{Json, extract::State};
use futures_util::future::select_all;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    limits,
    runtime::{First, Rt, first},
};
use tenure_remote::wire::{self, BELL_TOPICS_MAX, BELL_WAIT_MAX};
use tokio::sync::watch;

/// A post that nobody asked about for so long is taken down: a worker asks at least every half minute.
const STANDS: Duration = Duration::from_secs(90);
/// Posts at once. A topic beyond these has none until others are taken down: it rings by the clock.
const POSTS_MAX: usize = 16_384;

/// Posts of all topics that workers listen to.
pub(crate) struct Board {
    bell: Arc<dyn Bell>,
    rt: Rt,
    shared: Arc<Shared>,
}

struct Shared {
    /// Tells this life of the server from others.
    life: u64,
    rings: AtomicU64,
    posts: Mutex<HashMap<Topic, Arc<Post>>>,
}

struct Post {
    since: u64,
    last: watch::Sender<u64>,
    asked: AtomicBool,
}

impl Shared {
    fn posts(&self) -> MutexGuard<'_, HashMap<Topic, Arc<Post>>> {
        // Nothing panics under this lock.
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.rings.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Post {
    fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Returns nothing, and above all not the guard of what it saw: who looks at the post again under that guard
    /// waits for a ring that is being written down, which waits for the guard.
    async fn rung_since(&self, seen: u64) {
        // The sender is here.
        let _ = self.last.subscribe().wait_for(|last| *last > seen).await;
    }
}

impl Board {
    pub(crate) fn new(bell: Arc<dyn Bell>, rt: Rt) -> Self {
        let shared =
            Shared { life: rt.random(), rings: AtomicU64::new(0), posts: Mutex::default() };
        Board { bell, rt, shared: Arc::new(shared) }
    }

    fn post(&self, topic: &Topic) -> Option<Arc<Post>> {
        let mut posts = self.shared.posts();
        if let Some(post) = posts.get(topic) {
            post.asked.store(true, Ordering::SeqCst);
            return Some(post.clone());
        }
        if posts.len() >= POSTS_MAX {
            return None;
        }
        // Listening begins before the number is taken: what rings from here on is higher.
        let ear = self.bell.listen(topic.clone());
        let since = self.shared.next();
        let post =
            Arc::new(Post { since, last: watch::Sender::new(0), asked: AtomicBool::new(true) });
        posts.insert(topic.clone(), post.clone());
        let (shared, rt, topic, standing) =
            (self.shared.clone(), self.rt.clone(), topic.clone(), post.clone());
        self.rt.spawn(Box::pin(async move { stand(&shared, &rt, &topic, &standing, ear).await }));
        Some(post)
    }

    /// Waits until one of the topics has rung since `seen`.
    async fn wait(
        &self,
        topics: &[Topic],
        seen: Option<&str>,
        wait: Duration,
    ) -> (Vec<Topic>, u64) {
        let posts: Vec<_> = topics.iter().filter_map(|t| Some((t, self.post(t)?))).collect();
        // A first question has missed nothing; one of another life may have missed everything.
        let seen = match seen {
            None => self.shared.rings.load(Ordering::SeqCst),
            Some(text) => self.number(text).unwrap_or(0),
        };
        let rung = |upto: u64| {
            let heard = |p: &Post| p.since.max(p.last()) > seen;
            (posts.iter().filter(|(_, p)| heard(p)).map(|(t, _)| (*t).clone()).collect(), upto)
        };
        // The number is read before the posts: a ring in between is told twice rather than never.
        let now: (Vec<Topic>, u64) = rung(self.shared.rings.load(Ordering::SeqCst));
        if !now.0.is_empty() {
            return now;
        }
        if posts.is_empty() {
            self.rt.sleep(wait).await;
            return now;
        }
        let rings = posts.iter().map(|(_, p)| Box::pin(p.rung_since(seen)));
        first(select_all(rings), self.rt.sleep(wait)).await;
        rung(self.shared.rings.load(Ordering::SeqCst))
    }

    fn token(&self, number: u64) -> String {
        format!("{:016x}-{number:x}", self.shared.life)
    }

    /// The number of a token of this life.
    fn number(&self, token: &str) -> Option<u64> {
        let (life, number) = token.split_once('-')?;
        let same = u64::from_str_radix(life, 16).ok()? == self.shared.life;
        same.then(|| u64::from_str_radix(number, 16).ok()).flatten()
    }
}

/// Writes down rings until nobody asks any more.
async fn stand(shared: &Shared, rt: &Rt, topic: &Topic, post: &Post, mut ear: Box<dyn Ear>) {
    loop {
        match first(ear.heard(), rt.sleep(STANDS)).await {
            First::Left(()) => {
                // Taken while the post is locked: who has read this number finds it at the post.
                post.last.send_modify(|last| *last = shared.next());
            }
            First::Right(()) => {
                let mut posts = shared.posts();
                let asked = post.asked.swap(false, Ordering::SeqCst);
                if !asked && post.last.receiver_count() == 0 {
                    posts.remove(topic);
                    return;
                }
            }
        }
    }
}

/// Waits until one of the topics rings: `queue/<name>` or `session/<id>`. The answer is empty when the time is up.
#[utoipa::path(
    post, path = "/v1/worker/bell", tag = "worker", request_body = wire::BellRequest,
    responses((status = 200, body = wire::BellAnswer))
)]
pub(super) async fn bell(
    State(app): State<App>,
    caller: Caller,
    Body(request): Body<wire::BellRequest>,
) -> Result<Json<wire::BellAnswer>, Problem> {
    caller.need(Scope::Worker)?;
    if request.topics.len() > BELL_TOPICS_MAX {
        let detail = format!("{} topics, the limit is {BELL_TOPICS_MAX}", request.topics.len());
        return Err(Problem::bad_field("topics", detail).fix("listen to fewer topics"));
    }
    let mut topics = Vec::with_capacity(request.topics.len());
    for (i, text) in request.topics.iter().enumerate() {
        topics.push(topic(&app, &caller, text, &format!("topics[{i}]")).await?);
    }
    let wait = Duration::from_millis(request.wait_ms).min(BELL_WAIT_MAX);
    let board = app.board();
    // While it asks, jobs can be laid out for it.
    let _listens = app.tray().listens(caller.tenant.as_ref(), &topics);
    let waited = board.wait(&topics, request.seen.as_deref(), wait);
    // A server that stops lets go of those who wait; they ask the next one.
    let (rung, number) = match first(waited, app.closing()).await {
        First::Left(answer) => answer,
        First::Right(()) => (Vec::new(), 0),
    };
    let rung = rung.iter().map(Topic::to_string).collect();
    Ok(Json(wire::BellAnswer { rung, seen: board.token(number) }))
}

async fn topic(app: &App, caller: &Caller, text: &str, field: &str) -> Result<Topic, Problem> {
    let fix = "listen to queue/<name> or session/<id>";
    match Topic::parse(text) {
        Some(Topic::Queue(name)) if name.len() <= limits::NAME_BYTES_MAX => Ok(Topic::Queue(name)),
        Some(Topic::Session(id)) => match app.identities().is_session_of(app, caller, id).await? {
            true => Ok(Topic::Session(id)),
            false => Err(Problem::not_found(format!("session {id}")).field(field)),
        },
        _ => Err(Problem::bad_field(field, format!("{text:?} is nothing to listen to")).fix(fix)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tenure_bell::InProcess;
    use tenure_edge::TokioRuntime;

    /// A whole server stood still for ever: a worker was told of a ring, and looked at the post once more under the
    /// guard that came with it, while the next ring waited to be written down.
    #[test]
    fn who_looks_while_it_rings_without_a_break_is_answered() {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(4).enable_all().build().unwrap();
        let (answered, done) = mpsc::channel();
        let enough = Arc::new(AtomicBool::new(false));
        let until = enough.clone();
        runtime.spawn(async move {
            let bell: Arc<dyn Bell> = Arc::new(InProcess::default());
            let rt: Rt = Arc::new(TokioRuntime::current());
            let board = Arc::new(Board::new(bell.clone(), rt.clone()));
            let topics = [Topic::Queue("a".into()), Topic::Queue("b".into())];
            let rung = topics.clone();
            std::thread::spawn(move || {
                while !until.load(Ordering::SeqCst) {
                    rung.iter().for_each(|t| bell.ring(t.clone()));
                }
            });
            for _ in 0..3 {
                let (board, answered, topics) = (board.clone(), answered.clone(), topics.clone());
                rt.spawn(Box::pin(async move {
                    let mut seen = None;
                    for _ in 0..2_000 {
                        let wait = Duration::from_secs(600);
                        let (rung, number) = board.wait(&topics, seen.as_deref(), wait).await;
                        assert!(!rung.is_empty(), "it rings all the time");
                        seen = Some(board.token(number));
                    }
                    answered.send(()).unwrap();
                }));
            }
        });
        let all = (0..3).all(|_| done.recv_timeout(Duration::from_secs(60)).is_ok());
        enough.store(true, Ordering::SeqCst);
        // Where it stands still, waiting for its threads would stand still as well.
        runtime.shutdown_background();
        assert!(all, "somebody was never answered");
    }
}
