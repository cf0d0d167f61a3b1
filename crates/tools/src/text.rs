//! Bytes from outside as something that can stand in JSON.

use base64::Engine as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bytes stand in a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// As the JSON that it was.
    Json,
    /// As text.
    Text,
    /// It was not UTF-8.
    Base64,
}

/// As text if it is text. Where it was cut, half a character at the end does not make it binary.
pub(crate) fn text_or_base64(bytes: &[u8], cut: bool) -> (String, Encoding) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), Encoding::Text),
        // `error_len` is none when the input ends in the middle of a character.
        Err(e) if cut && e.error_len().is_none() => {
            (String::from_utf8_lossy(&bytes[..e.valid_up_to()]).into_owned(), Encoding::Text)
        }
        Err(_) => (base64::engine::general_purpose::STANDARD.encode(bytes), Encoding::Base64),
    }
}

/// The beginning of a text, for an error: on one line, and not long.
pub(crate) fn excerpt(text: &str, chars_max: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The end of a text, where programs say what went wrong.
pub(crate) fn tail(text: &str, chars_max: usize) -> String {
    let line = one_line(text);
    let chars = line.chars().count();
    match line.char_indices().nth(chars.saturating_sub(chars_max)) {
        Some((start, _)) if start > 0 => format!("…{}", &line[start..]),
        _ => line,
    }
}

fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_control() || c.is_whitespace())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_character_at_a_cut_is_no_binary() {
        let bytes = "aé".as_bytes();
        assert_eq!(text_or_base64(&bytes[..2], true), ("a".into(), Encoding::Text));
        assert_eq!(text_or_base64(&bytes[..2], false).1, Encoding::Base64);
        assert_eq!(text_or_base64(&[0xff, b'a'], true).1, Encoding::Base64);
    }

    #[test]
    fn excerpts_are_cut_between_characters_and_lie_on_one_line() {
        assert_eq!(excerpt("a\n\tb\u{1b}c", 10), "a b c");
        assert_eq!(excerpt("äöü", 2), "äö…");
        assert_eq!(excerpt("äöü", 3), "äöü");
        assert_eq!(tail("äöü", 2), "…öü");
        assert_eq!(tail("äöü", 3), "äöü");
        assert_eq!(tail("", 3), "");
    }
}
