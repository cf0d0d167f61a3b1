//! What one `statx` says about an entry.

/// The type of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum EntryType {
    /// The file system did not say, or named a type that this version does not know.
    #[default]
    Unknown = 0,
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link. It is never followed.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A block device.
    Block = 6,
    /// A character device.
    Character = 7,
}

impl EntryType {
    /// The type with this number.
    pub fn from_number(number: u8) -> Option<EntryType> {
        Some(match number {
            0 => EntryType::Unknown,
            1 => EntryType::File,
            2 => EntryType::Directory,
            3 => EntryType::Symlink,
            4 => EntryType::Fifo,
            5 => EntryType::Socket,
            6 => EntryType::Block,
            7 => EntryType::Character,
            _ => return None,
        })
    }

    /// The word that answers and the command line use.
    pub fn word(self) -> &'static str {
        match self {
            EntryType::Unknown => "unknown",
            EntryType::File => "file",
            EntryType::Directory => "directory",
            EntryType::Symlink => "symlink",
            EntryType::Fifo => "fifo",
            EntryType::Socket => "socket",
            EntryType::Block => "block",
            EntryType::Character => "character",
        }
    }
}

/// One state of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Facts {
    /// File, directory, …
    pub entry_type: EntryType,
    /// The twelve permission bits.
    pub mode: u16,
    /// Bytes; of a directory whatever the file system says, which the tree does not keep.
    pub size: u64,
    /// Nanoseconds since 1970. Programs set it freely: it is shown, and orders nothing but states of one inode.
    pub mtime: i64,
    /// Nanoseconds since 1970. The storage sets it with every change of the inode.
    pub ctime: i64,
    /// The inode number. File systems use the number of a deleted file again at once.
    pub inode: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Facts {
    /// Whether both are the same state: type, size, mtime, ctime and inode. Owner and mode are left out, because root
    /// squash and id mapping differ between hosts; a real change of them changes the ctime.
    pub fn is_same_state(&self, other: &Facts) -> bool {
        let size = |f: &Facts| if f.entry_type == EntryType::Directory { 0 } else { f.size };
        self.entry_type == other.entry_type
            && size(self) == size(other)
            && self.mtime == other.mtime
            && self.ctime == other.ctime
            && self.inode == other.inode
    }

    /// Whether both are the same object: a change of type or inode is a replacement.
    pub fn is_same_object(&self, other: &Facts) -> bool {
        self.entry_type == other.entry_type && self.inode == other.inode
    }
}
