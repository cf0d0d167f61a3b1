//! Counts what a commit of a job costs: allocations, and under callgrind instructions.
//!
//! Clients submit jobs of ten tool steps to a server and a worker in this process, on a SQLite store in a temporary
//! directory. The program runs until all jobs are completed, then prints the allocations of the measured jobs and their
//! commits. scripts/compare-counts builds it against two revisions of the repository and compares them; it is no member
//! of the workspace, so that it can be built against an older one.
//!
//! Arguments: the number of jobs, the number of clients.

use serde_json::{Value, json};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::{SystemClock, TokioRuntime, executor_of_this_process};
use tenure_engine::{
    config::EngineConfig,
    lanes::Discard,
    node::{Node, Parts},
};
use tenure_jobs::{
    Job,
    call::Call,
    catalogue::Catalogue,
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    submit::{Submission, Submitter},
};
use tenure_kernel::{judge::Judge, machine::Machines, runtime::Rt, store::Store};
use tenure_steps::{
    ctx::Ctx,
    flow::{FlowError, FlowSpec, Flows},
    tool::{ToolCtx, ToolError, ToolSpec, Tools},
};
use tenure_store::sqlite::SqliteStore;

const STEPS: u64 = 10;
/// Jobs that fill caches before the counting begins.
const WARM_UP: usize = 50;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator with the arguments as they came; only a counter is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

async fn steps(ctx: Ctx, ballast: String) -> Result<u64, FlowError> {
    for i in 0..STEPS {
        let _: Value = ctx.tool("noop", json!({ "i": i, "ballast": ballast })).await?;
    }
    Ok(STEPS)
}

async fn run(jobs: &Submitter, count: usize, clients: usize) {
    let left = Arc::new(AtomicU64::new(count as u64));
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            let (jobs, left) = (jobs.clone(), left.clone());
            tokio::spawn(async move {
                while left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                    let submission = Submission {
                        flow: "steps".into(),
                        input: json!("x".repeat(200)),
                        tenant: "bench".into(),
                        ..Submission::default()
                    };
                    let (job, ending) = jobs.submit_and_listen(submission).await.expect("accepted");
                    let ended = ending.expect("the worker is in this process").heard().await;
                    assert_eq!(ended, "completed", "job {}", job.id);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("a client does not panic");
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (count, clients) = (arguments.next().unwrap_or(500), arguments.next().unwrap_or(50));
    let dir = std::env::temp_dir().join(format!("tenure-counts-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let machines = Machines::kernel().with::<Job>().with::<Call>().with::<Catalogue>();
    let judge = || Judge::new(machines.tables());
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open(&dir, judge(), Arc::new(SystemClock), 1).expect("a store"));
    let rt: Rt = Arc::new(TokioRuntime::current());
    let config = EngineConfig { flights: 1, mute: true, ..EngineConfig::default() };
    let parts = Parts {
        store,
        bell: Arc::new(InProcess::new()),
        rt,
        machines: machines.clone(),
        config: config.clone(),
        name: "counts".into(),
        executor: executor_of_this_process(),
        wire: Arc::new(Discard),
        protect_outage: true,
    };
    let mut node = Node::start(parts).await.expect("the server starts");
    let noop = |_: ToolCtx, input: Value| async move { Ok::<_, ToolError>(input) };
    let flows = Flows::default().with(FlowSpec::new("steps", steps));
    let tools = Tools::default().with(ToolSpec::new("noop", noop).idempotent());
    let shop = Arc::new(Shop::new(flows, tools, JobOptions::default()));
    let options = CrewOptions {
        name: "counts".into(),
        executor: executor_of_this_process(),
        slots: clients * 2 + 8,
        drain: Duration::from_secs(5),
    };
    let crew = Crew::start(node.pipeline.clone(), Arc::new(config), shop, options)
        .await
        .expect("the worker starts");
    let jobs = crew.submitter(judge());
    run(&jobs, WARM_UP, clients).await;
    let before = ALLOCATIONS.load(Relaxed);
    run(&jobs, count, clients).await;
    let allocations = ALLOCATIONS.load(Relaxed) - before;
    // One commit for the submission with the first step's start, one for each end of a step.
    let commits = count as u64 * (STEPS + 1);
    println!("{}", json!({ "jobs": count, "commits": commits, "allocations": allocations }));
    node.stop().await;
    drop(std::fs::remove_dir_all(&dir));
}
