//! The files of one tree. The only place of this crate that touches a file system, and never a watched one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
};

/// What the log and the snapshots need of a file system. Names have no slash.
pub trait Disk {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// All bytes of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Adds bytes to a file, which it creates if it is not there. On an error some of them may be there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Makes the bytes of a file durable.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Cuts a file off.
    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()>;
    /// Gives a file another name, in the place of a file that has it.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync_directory(&mut self) -> io::Result<()>;
}

/// A directory of the server. Names of files are sensitive: nobody but the server's user reads it.
#[derive(Debug)]
pub struct DirectoryDisk {
    directory: PathBuf,
    /// The file that was written to last.
    open: Option<(String, File)>,
}

impl DirectoryDisk {
    /// Opens a directory, which it creates with mode 0700 if it is not there.
    pub fn open(directory: PathBuf) -> io::Result<DirectoryDisk> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(DirectoryDisk { directory, open: None })
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        let is_open = self.open.as_ref().is_some_and(|(open, _)| open == name);
        if !is_open {
            let path = self.directory.join(name);
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
            self.open = Some((name.to_owned(), file));
        }
        self.open.as_mut().map(|(_, file)| file).ok_or_else(|| io::Error::other("not open"))
    }
}

impl Disk for DirectoryDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            // Names of ours are ASCII; others are not ours.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.directory.join(name))
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        let synced = self.file(name)?.sync_data();
        if synced.is_err() {
            self.open = None;
        }
        synced
    }

    fn truncate(&mut self, name: &str, length: u64) -> io::Result<()> {
        self.file(name)?.set_len(length)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.open = None;
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if self.open.as_ref().is_some_and(|(open, _)| open == name) {
            self.open = None;
        }
        fs::remove_file(self.directory.join(name))
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}
