//! Bodies of requests, which have to come in time, and of answers, whose end is the end of a request.

use crate::{connections::Connection, limits::Stage};
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tenure_kernel::runtime::BoxFuture;

/// The body of a request came too slowly, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body did not come in time: {received} bytes of it came")]
pub struct BodyTooSlow {
    /// Bytes that came.
    pub received: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request. It fails with [`BodyTooSlow`] at the deadline of [`Limits::body_until`](crate::Limits::body_until).
pub(crate) struct RequestBody {
    inner: Incoming,
    connection: Arc<Connection>,
    all: crate::Connections,
    received: u64,
    /// Since the handler waits for the peer for the first time, and a timer. Most bodies come with their head and need none.
    waits: Option<(Duration, BoxFuture<'static, ()>)>,
}

impl RequestBody {
    pub(crate) fn new(
        inner: Incoming,
        connection: Arc<Connection>,
        all: crate::Connections,
    ) -> Self {
        RequestBody { inner, connection, all, received: 0, waits: None }
    }

    /// Ready when the deadline has passed.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (limits, rt) = (self.all.limits(), self.all.rt());
        let (since, timer) = self.waits.get_or_insert_with(|| (rt.mono(), rt.sleep(limits.body)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let left = limits.body_until(*since, self.received).saturating_sub(rt.mono());
            if left.is_zero() {
                return Poll::Ready(());
            }
            *timer = rt.sleep(left);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let waited = self.waits.is_some();
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Pending => {
                if self.connection.stage() == Stage::Serving {
                    self.connection.enter(Stage::Body);
                }
                ready!(self.poll_late(cx));
                let received = self.received;
                Poll::Ready(Some(Err(BodyTooSlow { received }.into())))
            }
            Poll::Ready(frame) => {
                if waited {
                    self.connection.enter(Stage::Serving);
                }
                if let Some(Ok(frame)) = &frame {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    self.received += u64::try_from(bytes).unwrap_or(u64::MAX);
                }
                Poll::Ready(frame.map(|f| f.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer: when it is dropped, the connection waits for the next request.
pub(crate) struct AnswerBody {
    pub(crate) inner: axum::body::Body,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.connection.enter(Stage::Idle);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
