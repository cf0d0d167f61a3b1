//! Standard output and standard error. What a command prints holds data of others (names, errors, results of tools), and a terminal obeys
//! control characters in it: such text could move the cursor, change the title of the window, or show a command that was never run. Everything is
//! therefore printed through here, and the crate has no other `print!` (lints of Clippy).

use std::{
    borrow::Cow,
    fmt::{Display, Write as _},
    io::{self, IsTerminal as _, Write as _},
};

/// The text with control characters and characters that reverse the direction of writing as `\\uXXXX`, which means the same in JSON. New lines and tabs
/// stay.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        match is_control(c) {
            // Writing to a String cannot fail.
            true => drop(write!(cleaned, "\\u{:04x}", u32::from(c))),
            false => cleaned.push(c),
        }
    }
    Cow::Owned(cleaned)
}

fn is_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        _ => c.is_control(),
    }
}

/// Prints to standard output. A reader that has gone is no failure.
pub fn print(text: &dyn Display) {
    let text = text.to_string();
    let mut out = io::stdout().lock();
    let _ = out.write_all(clean(&text).as_bytes()).and_then(|()| out.flush());
}

/// Prints a line to standard output.
pub fn line(text: &dyn Display) {
    print(&format_args!("{text}\n"));
}

/// Prints to standard error.
pub fn print_error(text: &dyn Display) {
    let text = text.to_string();
    let mut out = io::stderr().lock();
    let _ = out.write_all(clean(&text).as_bytes()).and_then(|()| out.flush());
}

/// Prints a line to standard error.
pub fn error_line(text: &dyn Display) {
    print_error(&format_args!("{text}\n"));
}

/// Gives bytes to a file or a program as they are; a terminal gets them as text.
pub fn print_raw(bytes: &[u8]) -> io::Result<()> {
    if io::stdout().is_terminal() {
        print(&String::from_utf8_lossy(bytes));
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_nothing_that_it_would_obey() {
        assert_eq!(clean("plain äöü\n\tend\n"), "plain äöü\n\tend\n");
        let hostile = "\u{1b}]0;title\u{7}\u{1b}[2J\r\u{8}\u{9b}31m\u{7f}\u{202e}";
        let cleaned = clean(hostile);
        assert!(!cleaned.contains(is_control), "{cleaned:?}");
        assert_eq!(
            cleaned,
            "\\u001b]0;title\\u0007\\u001b[2J\\u000d\\u0008\\u009b31m\\u007f\\u202e"
        );
        let json = serde_json::to_string(&hostile).unwrap();
        let read: String = serde_json::from_str(&clean(&json)).unwrap();
        assert_eq!(read, hostile, "JSON keeps its meaning");
    }
}
