//! Files and standard input, up to a limit: a path may name a device, or a pipe that never ends.

use super::Failure;
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The largest file that a command takes as input. No server takes a request that is larger
/// (`server.payload_bytes_max` is at most this).
pub const INPUT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The text of a file of at most [`INPUT_BYTES_MAX`] bytes; of standard input where the path is `-`.
pub fn read(path: &Path) -> Result<String, Failure> {
    read_up_to(path, INPUT_BYTES_MAX)
}

/// The same with another limit.
pub fn read_up_to(path: &Path, most: u64) -> Result<String, Failure> {
    let stdin = path == Path::new("-");
    let read = match stdin {
        true => text(io::stdin().lock(), most),
        false => File::open(path).map_err(|e| e.to_string()).and_then(|file| text(file, most)),
    };
    read.map_err(|why| match stdin {
        true => Failure::System(format!("standard input can not be read: {why}")),
        false => Failure::System(format!("{} can not be read: {why}", path.display())),
    })
}

/// UTF-8 of at most `most` bytes, or what is wrong in words.
pub fn text(from: impl Read, most: u64) -> Result<String, String> {
    let bytes = at_most(from, most).map_err(|e| e.to_string())?;
    let too_large = || format!("it has more than {most} bytes, the most that is read");
    String::from_utf8(bytes.ok_or_else(too_large)?).map_err(|e| format!("it is not UTF-8: {e}"))
}

/// All that there is; `None` where that is more. Not by the file's length: a pipe has none.
pub fn at_most(from: impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|b| b.len() as u64 <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        assert_eq!(at_most(&b"1234"[..], 4).unwrap(), Some(b"1234".to_vec()));
        assert_eq!(at_most(&b"12345"[..], 4).unwrap(), None);
        assert_eq!(at_most(io::repeat(0), 4).unwrap(), None);
        assert_eq!(text(&b"1234"[..], 4).unwrap(), "1234");
        assert!(text(&b"12345"[..], 4).unwrap_err().contains("more than 4 bytes"));
        assert!(text(&b"\xff"[..], 4).unwrap_err().contains("UTF-8"));
        let endless = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(endless.contains(&INPUT_BYTES_MAX.to_string()), "{endless}");
    }
}
