//! Answers of an API server, read up to a limit. Kubernetes bounds its objects; whatever answers at its address need not.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;

/// Why an answer was not read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum AnswerError {
    /// The connection broke.
    #[error("{0}")]
    Broke(String),
    /// It has more bytes than anything that an API server sends.
    #[error("an answer of more than {0} bytes")]
    TooLarge(usize),
    /// One line of it has.
    #[error("a line of more than {0} bytes")]
    LineTooLong(usize),
}

/// The whole body of an answer of at most `most` bytes.
pub(crate) async fn whole(mut body: Body, most: usize) -> Result<Bytes, AnswerError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| AnswerError::Broke(chain(&e)))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(AnswerError::TooLarge(most));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// The lines of an answer as they come. Half a line at the end is none: a watch repeats it.
pub(crate) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// No line ends before this place of the buffer.
    looked: usize,
    most: usize,
    over: bool,
}

impl Lines {
    /// Of at most `most` bytes each.
    pub(crate) fn new(body: Body, most: usize) -> Self {
        Lines { body, buffer: BytesMut::new(), looked: 0, most, over: false }
    }

    fn line(&mut self) -> Option<BytesMut> {
        let found = self.buffer[self.looked..].iter().position(|b| *b == b'\n');
        match found {
            Some(at) => {
                let line = self.buffer.split_to(self.looked + at + 1);
                self.looked = 0;
                Some(line)
            }
            None => {
                self.looked = self.buffer.len();
                None
            }
        }
    }

    /// The next line that is not empty. Nothing comes after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, AnswerError>> {
        loop {
            while let Some(line) = self.line() {
                if line.len() > self.most {
                    self.over = true;
                    self.buffer.clear();
                    return Some(Err(AnswerError::LineTooLong(self.most)));
                }
                let line = line.freeze();
                let text = line.trim_ascii();
                if !text.is_empty() {
                    return Some(Ok(line.slice_ref(text)));
                }
            }
            if self.over {
                return None;
            }
            if self.buffer.len() > self.most {
                self.over = true;
                return Some(Err(AnswerError::LineTooLong(self.most)));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(e)) => {
                    self.over = true;
                    return Some(Err(AnswerError::Broke(chain(&e))));
                }
                None => self.over = true,
            }
        }
    }
}

/// An error and what is behind it: the outermost one often says nothing.
pub(crate) fn chain(e: &(dyn std::error::Error + 'static)) -> String {
    let mut said = vec![e.to_string()];
    let mut inner = e.source();
    while let Some(e) = inner {
        let words = e.to_string();
        if !said.iter().any(|s| s.contains(&words)) {
            said.push(words);
        }
        inner = e.source();
    }
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(text: &str) -> Body {
        Body::from(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_limit() {
        assert_eq!(whole(body("12345678"), 8).await, Ok(Bytes::from_static(b"12345678")));
        assert_eq!(whole(body("123456789"), 8).await, Err(AnswerError::TooLarge(8)));
        assert_eq!(whole(body(""), 0).await, Ok(Bytes::new()));
    }

    #[tokio::test]
    async fn a_line_is_read_up_to_its_limit() {
        let read = async |text: &str| {
            let (mut lines, mut read) = (Lines::new(body(text), 8), Vec::new());
            while let Some(line) = lines.next().await {
                read.push(line.map(|l| String::from_utf8_lossy(&l).into_owned()));
            }
            read
        };
        let (a, b) = ("1234567".to_owned(), "2".to_owned());
        assert_eq!(read("1234567\n\n 2 \nhalf").await, [Ok(a), Ok(b.clone())]);
        let past = Err(AnswerError::LineTooLong(8));
        assert_eq!(read("2\n12345678\n3\n").await, [Ok(b), past.clone()]);
        assert_eq!(read("123456789").await, [past], "a line that never ends");
    }
}
