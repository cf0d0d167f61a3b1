//! Server-sent events, as far as model servers use them: `data:` lines, ended by an empty line.

/// Cuts a stream of bytes into the data of its events. Pieces may end anywhere, also inside a character.
#[derive(Default)]
pub(crate) struct Events {
    line: Vec<u8>,
    data: Option<String>,
}

impl Events {
    /// The events that this piece completes.
    pub(crate) fn take_in(&mut self, piece: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for &byte in piece {
            if byte != b'\n' {
                self.line.push(byte);
                continue;
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            complete.extend(self.end_of_line());
            self.line.clear();
        }
        complete
    }

    fn end_of_line(&mut self) -> Option<String> {
        if self.line.is_empty() {
            return self.data.take();
        }
        // Everything else is a comment (servers send them to keep a connection open) or a field we do not use.
        if let Some(data) = self.line.strip_prefix(b"data:") {
            let data = String::from_utf8_lossy(data.strip_prefix(b" ").unwrap_or(data));
            match &mut self.data {
                Some(before) => {
                    before.push('\n');
                    before.push_str(&data);
                }
                None => self.data = Some(data.into_owned()),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_may_end_anywhere() {
        let stream =
            ": hello\r\n\r\ndata: {\"a\": \"é\"}\r\n\r\nevent: x\ndata:1\ndata: 2\n\ndata: open";
        let whole = Events::default().take_in(stream.as_bytes());
        assert_eq!(whole, ["{\"a\": \"é\"}", "1\n2"]);
        let mut events = Events::default();
        let bytewise: Vec<_> = stream.bytes().flat_map(|b| events.take_in(&[b])).collect();
        assert_eq!(bytewise, whole);
    }
}
