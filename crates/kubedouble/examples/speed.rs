//! How many changes of pods a second get through one watch, read by a client that only counts lines:
//! `cargo run -p tenure-kubedouble --example speed`.

use serde_json::json;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
};
use tenure_kubedouble::{Cluster, Life, Step};

const PODS: usize = 5_000;
const ROUNDS: usize = 20;

fn main() -> std::io::Result<()> {
    let cluster = Cluster::start();
    cluster.remember(PODS * ROUNDS + 1);
    cluster.load_pods((0..PODS).map(|number| {
        json!({
            "metadata": {"name": format!("p{number}"), "labels": {"flowforge.io/workload": "true"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work:1"}]},
        })
    }));
    for number in 0..PODS {
        cluster.running(&format!("p{number}"));
    }
    let mut stream = TcpStream::connect(("127.0.0.1", cluster.port()))?;
    let path = format!("/api/v1/pods?watch=true&resourceVersion={}", cluster.version());
    write!(stream, "GET {path} HTTP/1.1\r\nhost: double\r\n\r\n")?;
    cluster.until_blocking("the watch is open", |c| c.watches().len() == 1);
    let player = cluster.clone();
    let playing = std::thread::spawn(move || {
        let steps = (0..PODS * ROUNDS)
            .map(|step| Step::Live(format!("p{}", step % PODS), Life::Ready(step / PODS % 2 == 1)));
        player.play(None, steps)
    });
    let (mut events, mut bytes) = (0, 0);
    let mut line = Vec::new();
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    while events < PODS * ROUNDS && reader.read_until(b'\n', &mut line)? > 0 {
        events += usize::from(line.starts_with(b"{"));
        bytes += line.len();
        line.clear();
    }
    // It has taken its last step, or the loop would not have ended.
    let played = playing.join().expect("the player does not panic");
    // Until here somebody had to read.
    drop(cluster);
    let rate = played.steps as f64 / played.took.as_secs_f64();
    println!("{events} events, {bytes} bytes, made at {rate:.0} a second");
    Ok(())
}
