//! What a program says, within limits. Everything is read, so that the program does not block on a full
//! pipe; not everything is kept.

use super::group::Pipes;
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Both outputs. They can be looked at while the program still writes.
pub(crate) struct Captured {
    stdout: Mutex<Kept>,
    stderr: Mutex<Kept>,
}

impl Captured {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let kept =
            |end| Mutex::new(Kept { bytes: VecDeque::new(), bytes_max, end, truncated: false });
        Captured { stdout: kept(End::Beginning), stderr: kept(End::Ending) }
    }

    /// Feeds the program and reads what it says, until both outputs end. `show` gets the last line of each
    /// piece.
    pub(crate) async fn pump(&self, pipes: Pipes, stdin: Option<&str>, show: &impl Fn(&str)) {
        let (mut input, output, errors) = pipes;
        let feed = async {
            if let (Some(pipe), Some(text)) = (&mut input, stdin) {
                // A program need not read to the end; that is no error of the call.
                let _ = pipe.write_all(text.as_bytes()).await;
            }
            // Closes it: the program sees the end.
            drop(input.take());
        };
        let read = async {
            tokio::join!(keep(output, &self.stdout, show), keep(errors, &self.stderr, show));
        };
        // A program that ended without reading must not be waited for by the feeding side: its pipe is closed with
        // it, unless a process outside of the group holds it.
        let mut feed = std::pin::pin!(feed);
        let mut read = std::pin::pin!(read);
        tokio::select! {
            () = &mut feed => read.await,
            () = &mut read => {}
        }
    }

    /// Somebody still holds the pipes, and is not listened to any longer.
    pub(crate) fn cut_off(&self) {
        lock(&self.stdout).truncated = true;
        lock(&self.stderr).truncated = true;
    }

    pub(crate) fn stdout(&self) -> MutexGuard<'_, Kept> {
        let mut kept = lock(&self.stdout);
        kept.bytes.make_contiguous();
        kept
    }

    pub(crate) fn stderr(&self) -> MutexGuard<'_, Kept> {
        let mut kept = lock(&self.stderr);
        kept.bytes.make_contiguous();
        kept
    }
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// A result begins at its beginning.
    Beginning,
    /// What went wrong is said last.
    Ending,
}

/// One output, as far as it is kept.
pub(crate) struct Kept {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    end: End,
    truncated: bool,
}

impl Kept {
    /// What is kept.
    pub(crate) fn bytes(&self) -> &[u8] {
        // Contiguous since it was handed out.
        self.bytes.as_slices().0
    }

    /// As text, whatever it is.
    pub(crate) fn text_lossy(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// Whether there was more.
    pub(crate) fn truncated(&self) -> bool {
        self.truncated
    }

    fn take_in(&mut self, piece: &[u8]) {
        let room = self.bytes_max - self.bytes.len();
        self.truncated |= piece.len() > room;
        match self.end {
            End::Beginning => self.bytes.extend(&piece[..piece.len().min(room)]),
            End::Ending => {
                let piece = &piece[piece.len().saturating_sub(self.bytes_max)..];
                let surplus = (self.bytes.len() + piece.len()).saturating_sub(self.bytes_max);
                self.bytes.drain(..surplus);
                self.bytes.extend(piece);
            }
        }
    }
}

async fn keep(pipe: Option<impl AsyncRead + Unpin>, kept: &Mutex<Kept>, show: &impl Fn(&str)) {
    let Some(mut pipe) = pipe else { return };
    let mut piece = vec![0; 16 * 1024];
    // A pipe that can not be read any more has ended.
    while let Ok(n @ 1..) = pipe.read(&mut piece).await {
        lock(kept).take_in(&piece[..n]);
        let said = String::from_utf8_lossy(&piece[..n]);
        if let Some(line) = said.lines().rfind(|line| !line.trim().is_empty()) {
            show(line);
        }
    }
}

/// Nothing in here panics while it holds the lock; if it did, what is kept would still be what was read.
fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(captured: MutexGuard<'_, Kept>) -> (String, bool) {
        (captured.text_lossy(), captured.truncated())
    }

    #[test]
    fn the_limit_and_one_past_it() {
        let captured = Captured::new(4);
        for output in [&captured.stdout, &captured.stderr] {
            lock(output).take_in(b"ab");
            lock(output).take_in(b"cd");
        }
        assert_eq!(kept(captured.stdout()), ("abcd".into(), false));
        assert_eq!(kept(captured.stderr()), ("abcd".into(), false));
        for output in [&captured.stdout, &captured.stderr] {
            lock(output).take_in(b"e");
        }
        assert_eq!(kept(captured.stdout()), ("abcd".into(), true));
        assert_eq!(kept(captured.stderr()), ("bcde".into(), true));
        lock(&captured.stderr).take_in(b"0123456789");
        assert_eq!(kept(captured.stderr()), ("6789".into(), true));
    }
}
