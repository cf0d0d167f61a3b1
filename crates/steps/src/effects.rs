//! Where a result lies before it counts. In the same store (the default) the effect and the events that
//! name it are one commit, and nothing can lie between them. A separate store keeps the two phases:
//! the effect is durable first, and a worker that dies before the events is caught up from it.

use serde_json::Value;
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Names one effect: key, epoch and call number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectName<'a> {
    /// The idempotency key.
    pub key: &'a str,
    /// Under which epoch.
    pub epoch: u64,
    /// Which call.
    pub call: u32,
}

/// A separate effect store. Write-once per (key, epoch, call number).
pub trait Effects: Send + Sync {
    /// Makes an effect durable. The same again is fine; another result under the same name is an error.
    fn put(&self, name: EffectName<'_>, result: &Value) -> io::Result<()>;
    /// An effect, if it is there.
    fn get(&self, name: EffectName<'_>) -> io::Result<Option<Value>>;
}

/// A directory with a file per effect.
pub struct Directory(PathBuf);

impl Directory {
    /// Creates it if it is missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Results of tools are for nobody else on this machine.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Directory(path.to_owned()))
    }

    fn file(&self, name: EffectName<'_>) -> io::Result<PathBuf> {
        if name.key.is_empty() || !name.key.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a key is hexadecimal"));
        }
        Ok(self.0.join(format!("{}.{}.{}.json", name.key, name.epoch, name.call)))
    }
}

impl Effects for Directory {
    fn put(&self, name: EffectName<'_>, result: &Value) -> io::Result<()> {
        let path = self.file(name)?;
        let bytes = crate::canonical::bytes(result);
        if !path.exists() {
            // A draft of its own per process; a link never replaces, so two writers can not both win.
            let draft = path.with_extension(format!("draft-{}", std::process::id()));
            let mut options = fs::OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            io::Write::write_all(&mut file, &bytes)?;
            file.sync_all()?;
            let linked = fs::hard_link(&draft, &path);
            fs::remove_file(&draft)?;
            fs::File::open(&self.0)?.sync_all()?;
            match linked {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                Err(_) | Ok(()) => {}
            }
        }
        if fs::read(&path)? == bytes {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "another result is recorded for this call",
        ))
    }

    fn get(&self, name: EffectName<'_>) -> io::Result<Option<Value>> {
        match fs::read(self.file(name)?) {
            Ok(bytes) => Ok(Some(tenure_kernel::stored::from_slice(&bytes)?)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_effect_is_written_once_per_key_epoch_and_call() {
        let dir = tempfile::tempdir().unwrap();
        let effects = Directory::open(dir.path()).unwrap();
        let name = EffectName { key: "00ff", epoch: 3, call: 1 };
        let result = json!({"b": 1, "a": 0.1});
        effects.put(name, &result).unwrap();
        effects.put(name, &result).unwrap();
        assert_eq!(effects.put(name, &json!(2)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        effects.put(EffectName { epoch: 5, ..name }, &json!(2)).unwrap();
        assert_eq!(effects.get(name).unwrap(), Some(result));
        assert_eq!(effects.get(EffectName { call: 2, ..name }).unwrap(), None);
        assert!(effects.put(EffectName { key: "../x", ..name }, &json!(1)).is_err());
    }
}
