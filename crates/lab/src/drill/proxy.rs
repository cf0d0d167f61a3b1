//! A bad network: a TCP proxy on loopback that passes, holds, swallows, half-closes or cuts.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
};

/// What it does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Passes them on.
    Clear,
    /// Keeps them, in order, and passes them on when it clears up: a partition that heals.
    Held,
    /// Takes them and throws them away; connections stay open.
    Swallowed,
    /// Requests pass; instead of an answer the line is closed from the other side.
    HalfClosed,
    /// Connections are cut, and new ones too.
    Cut,
}

/// A proxy in front of one address. Gone when dropped.
pub struct Proxy {
    address: SocketAddr,
    weather: Arc<watch::Sender<Weather>>,
    passed: Arc<AtomicU64>,
    listening: AbortHandle,
}

/// How long the far side is kept after the near side has gone: a request that is on its way arrives all the
/// same, as it does on a real network.
const LINGER: Duration = Duration::from_secs(3);

impl Proxy {
    /// In front of `target`.
    pub async fn open(target: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let weather = Arc::new(watch::Sender::new(Weather::Clear));
        let passed = Arc::new(AtomicU64::new(0));
        let (sky, count) = (weather.clone(), passed.clone());
        #[expect(clippy::disallowed_methods, reason = "the proxy is process edge")]
        let listening = tokio::spawn(async move {
            // Lines end with the proxy.
            let mut lines = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                while lines.try_join_next().is_some() {}
                lines.spawn(line(near, target.clone(), sky.subscribe(), count.clone()));
            }
        });
        Ok(Proxy { address, weather, passed, listening: listening.abort_handle() })
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// From now on.
    pub fn turn(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Bytes that came from the near side so far, whatever became of them.
    pub fn heard(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn line(
    near: TcpStream,
    target: String,
    mut weather: watch::Receiver<Weather>,
    heard: Arc<AtomicU64>,
) {
    // A new connection waits for its other side as long as bytes do.
    if weather.wait_for(|w| *w != Weather::Held).await.is_err() {
        return;
    }
    if *weather.borrow() == Weather::Cut {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let there = pump(near_read, far_write, weather.clone(), Some(heard));
    let back = pump(far_read, near_write, weather.clone(), None);
    let cut = async {
        // The sender going away is a cut as well.
        let _ = weather.wait_for(|w| *w == Weather::Cut).await;
    };
    tokio::select! {
        () = cut => {}
        () = async { tokio::join!(there, back); } => {}
    }
}

/// One direction. `heard` counts, and marks the direction of requests.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    heard: Option<Arc<AtomicU64>>,
) {
    let mut bytes = vec![0u8; 64 * 1024];
    loop {
        let read = match from.read(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        if let Some(heard) = &heard {
            heard.fetch_add(read as u64, Ordering::SeqCst);
        }
        if weather.wait_for(|w| *w != Weather::Held).await.is_err() {
            return;
        }
        let now = *weather.borrow();
        match (now, heard.is_some()) {
            (Weather::Swallowed, _) => continue,
            (Weather::HalfClosed, false) => return,
            _ => {}
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
    if heard.is_some() {
        tokio::time::sleep(LINGER).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::outside::{Outside, ask};

    async fn world() -> (Outside, Proxy) {
        let outside = Outside::open().await.unwrap();
        let proxy = Proxy::open(outside.address()).await.unwrap();
        (outside, proxy)
    }

    #[tokio::test]
    async fn clear_weather_passes_and_a_cut_refuses() {
        let (outside, proxy) = world().await;
        assert_eq!(ask(&proxy.address(), "ACT k it").await.unwrap(), ["OK", "1"]);
        assert!(proxy.heard() > 0);
        proxy.turn(Weather::Cut);
        assert!(ask(&proxy.address(), "ACT k it").await.is_err());
        assert_eq!(outside.count("it"), 1);
    }

    #[tokio::test]
    async fn what_was_held_arrives_when_it_clears_up() {
        let (outside, proxy) = world().await;
        proxy.turn(Weather::Held);
        let address = proxy.address();
        let asked = async { ask(&address, "ACT k it").await };
        let cleared = async {
            tokio::task::yield_now().await;
            assert_eq!(outside.count("it"), 0);
            proxy.turn(Weather::Clear);
        };
        assert_eq!(tokio::join!(asked, cleared).0.unwrap(), ["OK", "1"]);
    }

    #[tokio::test]
    async fn a_half_closed_line_does_it_and_says_nothing() {
        let (outside, proxy) = world().await;
        proxy.turn(Weather::HalfClosed);
        assert!(ask(&proxy.address(), "ACT k it").await.is_err());
        assert_eq!(outside.count("it"), 1);
    }

    #[tokio::test]
    async fn what_is_swallowed_does_not_arrive() {
        let (outside, proxy) = world().await;
        proxy.turn(Weather::Swallowed);
        let address = proxy.address();
        let mut asked = Box::pin(ask(&address, "ACT k it"));
        let heard = async {
            while proxy.heard() == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { _ = &mut asked => panic!("answered"), () = heard => {} }
        assert_eq!(outside.count("it"), 0);
    }
}
