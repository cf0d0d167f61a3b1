//! A wire that is cut in the middle of requests and answers.

use super::support::{Outside, pipeline_to, rt, sound, start_judging, work_with};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tenure_engine::config::EngineConfig;
use tenure_kernel::runtime::{First, first};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// Passes connections on. Whoever changes the value cuts all of them, wherever they are.
async fn wire(to: SocketAddr) -> (SocketAddr, watch::Sender<u32>, Arc<AtomicUsize>) {
    let severed = Arc::new(AtomicUsize::new(0));
    let counted = severed.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (cutter, cuts) = watch::channel(0);
    rt().spawn(Box::pin(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (mut cuts, counted) = (cuts.clone(), counted.clone());
            cuts.mark_unchanged();
            rt().spawn(Box::pin(async move {
                let Ok(mut far) = TcpStream::connect(to).await else { return };
                let passed = copy_bidirectional(&mut near, &mut far);
                if let First::Left(_) = first(cuts.changed(), passed).await {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
    }));
    (at, cutter, severed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_that_is_cut_costs_time_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = start_judging(dir.path()).await;
    let (at, cutter, severed) = wire(server.at).await;
    let mut made = Vec::new();
    for _ in 0..40 {
        made.push(server.errand("t").await);
    }
    // Short, because a claim whose answer is lost waits for it.
    let config = EngineConfig::with_lease(Duration::from_secs(2));
    let outside = Outside::slow(Duration::from_millis(10));
    let worker =
        work_with(config, pipeline_to(&format!("http://{at}"), &server.operator), 4, &outside)
            .await;
    // Store and bell are cut again and again; on a slow machine a cut may find nothing to cut.
    for _ in 0..3_000 {
        rt().sleep(Duration::from_millis(23)).await;
        cutter.send_modify(|n| *n += 1);
        if severed.load(Ordering::SeqCst) > 30 {
            break;
        }
    }
    assert!(severed.load(Ordering::SeqCst) > 30, "store and bell were cut again and again");
    server.until_all_done().await;
    worker.stop().await;
    let calls = outside.calls();
    assert_eq!(calls.len(), 2 * made.len(), "every step of every errand, under its own key");
    // A step is called again only after a takeover, never because a commit was sent twice.
    for id in made {
        let head = server.store().head(id).await.unwrap().unwrap();
        let again: u32 =
            (0..2).map(|s| calls[&tenure_proving::machines::errand::key(id, s)] - 1).sum();
        assert!(
            u64::from(again) <= (head.epoch - 2) / 2,
            "{again} calls too many, epoch {}",
            head.epoch
        );
    }
    sound(&server).await;
    server.stop().await;
}
