//! `tenure demo`: the main promise on real processes. This process plays the outside world and counts
//! what is done to it. A second process runs errands on the embedded store and is killed, with
//! SIGKILL, at the worst moment: the outside has done what it was asked, and nobody has written that
//! down yet. A third process takes over.

use super::{Failure, judge, problems};
use crate::{cli, config::Settings, open::open_read_only};
use std::{
    collections::BTreeMap,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_kernel::{
    head::Head,
    store::{HeadFilter, Store},
    table::kernel_events,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    sync::Notify,
};

/// The demo's lease: a takeover takes this long instead of the default fifteen seconds.
const LEASE_SECONDS: &str = "3";

/// What the outside has seen: per key, how often it was called and how often it did something.
#[derive(Default)]
struct Outside {
    calls: BTreeMap<String, (u32, u32)>,
    total: u32,
    /// The call whose caller is killed before it hears the answer.
    fatal: Option<u32>,
}

struct World {
    outside: Mutex<Outside>,
    struck: Notify,
}

impl World {
    fn outside(&self) -> MutexGuard<'_, Outside> {
        // Nothing panics while it holds this lock.
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs it and tells the story.
pub async fn run(options: &cli::Demo, json: bool) -> Result<String, Failure> {
    let scratch = std::env::temp_dir().join(format!("tenure-demo-{}", std::process::id()));
    let dir = options.keep.clone().unwrap_or_else(|| scratch.clone());
    let result = story(&dir, options, json).await;
    if options.keep.is_none() && scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    result
}

async fn story(dir: &Path, options: &cli::Demo, json: bool) -> Result<String, Failure> {
    let tell = |line: String| {
        if !json {
            println!("{line}");
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let steps = u32::try_from(options.errands).unwrap_or(1) * 2;
    let outside = Outside { fatal: Some(steps / 2 + 1), ..Outside::default() };
    let world = Arc::new(World { outside: Mutex::new(outside), struck: Notify::new() });
    let serving = world.clone();
    #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
    let server = tokio::task::spawn(async move { serve(listener, serving).await });

    tell(format!(
        "{} errands of two steps each; every step asks the outside world (this process) for something.",
        options.errands
    ));
    let mut first = spawn(dir, &address, options.errands)?;
    tell(format!("process {} runs them on the embedded store in {}", pid(&first), dir.display()));
    tokio::select! {
        () = world.struck.notified() => {}
        status = first.wait() => {
            return Err(Failure::Found(format!("the first process ended by itself: {status:?}")));
        }
    }
    // start_kill sends SIGKILL: no destructor, no goodbye.
    let killed = pid(&first);
    first.start_kill()?;
    first.wait().await?;
    tell(format!(
        "process {killed} was killed right after the outside did its part and before that was written down"
    ));
    let mut second = spawn(dir, &address, 0)?;
    tell(format!(
        "process {} starts on the same data and waits until the lease of the dead one ({LEASE_SECONDS} s) is over",
        pid(&second)
    ));
    let bounded = tokio::time::timeout(Duration::from_secs(120), second.wait()).await;
    let status = bounded
        .map_err(|_| Failure::Found("the errands did not end within two minutes".into()))??;
    server.abort();
    if !status.success() {
        return Err(Failure::Found(format!("the second process ended with {status}")));
    }
    report(dir, &world, json).await
}

fn pid(child: &Child) -> String {
    child.id().map_or_else(|| "?".to_owned(), |id| id.to_string())
}

fn spawn(dir: &Path, outside: &str, make: u64) -> Result<Child, Failure> {
    let sets = [
        format!("worker.lease_seconds={LEASE_SECONDS}"),
        "worker.renewal_seconds=1".to_owned(),
        "server.tick_seconds=1".to_owned(),
        "server.pulse_gap_seconds=1.8".to_owned(),
        "log.filter=warn".to_owned(),
    ];
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--store").arg(format!("sqlite:{}", dir.display()));
    sets.iter().for_each(|set| {
        command.arg("--set").arg(set);
    });
    command.args(["errands", "--outside", outside, "--make", &make.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Answers `CALL key` with `OK n`. Does something the first time it sees a key: the tool is idempotent.
async fn serve(listener: TcpListener, world: Arc<World>) {
    while let Ok((stream, _)) = listener.accept().await {
        let world = world.clone();
        #[expect(clippy::disallowed_methods, reason = "a command is process edge")]
        tokio::task::spawn(async move {
            // A caller that was killed does not hear the answer.
            let _ = answer(stream, &world).await;
        });
    }
}

async fn answer(stream: TcpStream, world: &World) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let key = line.trim().strip_prefix("CALL ").unwrap_or("").to_owned();
    let (n, fatal) = {
        let mut outside = world.outside();
        outside.total += 1;
        let fatal = outside.fatal == Some(outside.total);
        let entry = outside.calls.entry(key).or_default();
        entry.0 += 1;
        entry.1 = 1;
        (entry.0, fatal)
    };
    if fatal {
        world.struck.notify_one();
        return std::future::pending().await;
    }
    stream.get_mut().write_all(format!("OK {n}\n").as_bytes()).await
}

async fn report(dir: &Path, world: &World, json: bool) -> Result<String, Failure> {
    let flags = [format!("store.url=sqlite:{}", dir.display())];
    let settings = Settings::load(None, [], &flags)?;
    let store = open_read_only(&settings, judge()).await?;
    let filter = HeadFilter { kind: Some("errand".into()), ..HeadFilter::default() };
    let errands = store.heads(filter, 1_000).await?;
    let problems = problems(&*store).await;
    let done = errands.iter().filter(|h| h.status.name() == "done").count();
    let (calls, effects) = {
        let outside = world.outside();
        (
            outside.calls.values().map(|c| c.0).sum::<u32>(),
            outside.calls.values().map(|c| c.1).sum::<u32>(),
        )
    };
    let expected = errands.len() as u32 * 2;
    let kept = done == errands.len() && effects == expected && problems.is_empty();
    if json {
        println!(
            "{}",
            serde_json::json!({ "errands": errands.len(), "done": done, "effects_expected": expected, "effects": effects,
                "calls": calls, "problems": problems, "kept": kept })
        );
    } else {
        let lost: Vec<&Head> = errands.iter().filter(|h| h.epoch > 2).collect();
        if let Some(head) = lost.first() {
            println!("\nan errand that lost its worker, from its own history:");
            print!("{}", timeline(&*store, head).await?);
        }
        if lost.len() > 1 {
            println!("({} more were under way and went the same way)", lost.len() - 1);
        }
        println!("\n{done} of {} errands are done.", errands.len());
        println!(
            "{expected} effects were asked for, the outside world has {effects}; {calls} calls, {} of them repeated under the same key.",
            calls - effects
        );
        println!(
            "hash chains, heads, deadlines: {}",
            if problems.is_empty() { "intact".to_owned() } else { problems.join("; ") }
        );
    }
    if kept { Ok(String::new()) } else { Err(Failure::Found("the promise was not kept".into())) }
}

/// The events of an entity, with the time since its birth.
async fn timeline(store: &dyn Store, head: &Head) -> Result<String, Failure> {
    let mut out = String::new();
    for record in store.stream(head.id, 1, 10_000).await? {
        let events = record.events().map_err(|e| Failure::Found(e.to_string()))?;
        for event in events {
            let since = event.at.since(head.created_at).as_secs_f64();
            let note = match event.name.as_str() {
                kernel_events::TENURE_ENDED => "  <- the killed process was not heard for a lease",
                kernel_events::CLAIMED if event.epoch > 1 => "  <- taken over",
                "step_started" if event.epoch > 1 => {
                    "  <- again, under the same key: nobody knew whether it had happened"
                }
                _ => "",
            };
            out.push_str(&format!(
                "  {since:8.3} s  epoch {}  {}{note}\n",
                event.epoch, event.name
            ));
        }
    }
    Ok(out)
}
