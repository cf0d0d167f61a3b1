-- The embedded store. Forwards only: a change is a new numbered block in schema.rs, never an edit here.
--
-- Few dirty pages is what makes it fast: `records` is only ever appended to. A stream is a list linked
-- backwards (`prev`), entered through the head's `tail`; an index over (entity, first) would dirty one
-- more page per entity and commit, which was three quarters of all bytes written.

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE heads (
  row         INTEGER PRIMARY KEY,
  id          BLOB NOT NULL UNIQUE CHECK (length(id) = 16),
  kind        TEXT NOT NULL,
  tenant      TEXT NOT NULL,
  queue       TEXT NOT NULL,
  priority    INTEGER NOT NULL,
  lane        INTEGER NOT NULL,
  status      TEXT NOT NULL,
  class       INTEGER NOT NULL,            -- 0 open, 1 resting, 2 final
  version     INTEGER NOT NULL CHECK (version > 0),
  epoch       INTEGER NOT NULL,
  holder      BLOB,
  chain       BLOB NOT NULL,
  created_at  INTEGER NOT NULL,
  changed_at  INTEGER NOT NULL,
  mail_count  INTEGER NOT NULL,
  mail_read   INTEGER NOT NULL,
  due         INTEGER,
  must_end_by INTEGER,
  check_at    INTEGER,
  faults      INTEGER NOT NULL,
  ready_at    INTEGER,
  attention   TEXT,
  sealed      INTEGER NOT NULL,
  tail        INTEGER NOT NULL,            -- row of the newest record
  timers      BLOB NOT NULL,
  state       BLOB NOT NULL,
  -- Law 4, in the database's own words.
  CONSTRAINT open_means_due CHECK (class <> 0 OR (due IS NOT NULL AND must_end_by IS NOT NULL AND due <= must_end_by)),
  CONSTRAINT resting_owes_nothing CHECK (class <> 1 OR must_end_by IS NULL),
  CONSTRAINT final_is_quiet CHECK (class <> 2 OR (due IS NULL AND must_end_by IS NULL AND holder IS NULL AND ready_at IS NULL))
);

-- Laws 1 to 3: final is final, and neither version nor epoch runs backwards.
CREATE TRIGGER heads_guard BEFORE UPDATE ON heads
WHEN OLD.class = 2 OR NEW.version < OLD.version OR NEW.epoch < OLD.epoch
BEGIN
  SELECT RAISE(ABORT, 'heads_guard: a final head does not change, versions and epochs only rise');
END;

CREATE INDEX heads_due ON heads (due, lane) WHERE due IS NOT NULL;
-- For retention. Nothing that changes with every step is in them: an index costs a page per write.
CREATE INDEX heads_ended ON heads (changed_at) WHERE class = 2;
CREATE INDEX heads_sealed ON heads (sealed) WHERE sealed > 0;

CREATE TABLE records (
  seq       INTEGER PRIMARY KEY,           -- the order of the global feed: there is one writer
  prev      INTEGER NOT NULL,              -- the record before it of the same entity; 0 for none, -1 for one that is gone
  entity    BLOB NOT NULL,
  first     INTEGER NOT NULL,
  count     INTEGER NOT NULL CHECK (count > 0),
  commit_id BLOB NOT NULL,
  at        INTEGER NOT NULL,
  epoch     INTEGER NOT NULL,
  hash      BLOB NOT NULL,
  bytes     BLOB NOT NULL,
  -- A record in the middle of a stream that does not name the one before it would hide all of them.
  CONSTRAINT streams_are_linked CHECK (prev <> 0 OR first = 1)
);

CREATE TABLE ready (
  queue    TEXT NOT NULL,
  priority INTEGER NOT NULL,
  tenant   TEXT NOT NULL,
  ready_at INTEGER NOT NULL,
  entity   BLOB NOT NULL,
  PRIMARY KEY (queue, priority DESC, tenant, ready_at, entity)
) WITHOUT ROWID;

CREATE TABLE mail (
  entity BLOB NOT NULL,
  seq    INTEGER NOT NULL,
  id     TEXT NOT NULL,
  kind   TEXT NOT NULL,
  body   BLOB NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (entity, seq)
) WITHOUT ROWID;
CREATE UNIQUE INDEX mail_id ON mail (entity, id);

CREATE TABLE evidence (
  entity BLOB NOT NULL,
  key    TEXT NOT NULL,
  epoch  INTEGER NOT NULL,
  call   INTEGER NOT NULL,
  digest BLOB NOT NULL,
  who    TEXT NOT NULL,
  body   BLOB NOT NULL,
  at     INTEGER NOT NULL,
  PRIMARY KEY (entity, key, epoch, call, digest)
) WITHOUT ROWID;

CREATE TABLE outbox (
  position INTEGER PRIMARY KEY,
  lane     INTEGER NOT NULL,
  source   BLOB NOT NULL,
  version  INTEGER NOT NULL,
  ordinal  INTEGER NOT NULL,
  tenant   TEXT NOT NULL,
  target   INTEGER NOT NULL,               -- 0 mail, 1 create, 2 wire, 3 wake-up
  entity   BLOB,
  word     TEXT,                           -- the kind to create, or the subject on the wire
  kind     TEXT NOT NULL,
  body     BLOB NOT NULL,
  at       INTEGER NOT NULL,
  UNIQUE (source, version, ordinal)
);
-- Apart, so that a wire that is down holds nothing back but itself.
CREATE INDEX outbox_inside ON outbox (position, lane) WHERE target <> 2;
CREATE INDEX outbox_wire ON outbox (position, lane) WHERE target = 2;

CREATE TABLE keys (
  key    TEXT PRIMARY KEY,
  entity BLOB NOT NULL,
  digest BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX keys_entity ON keys (entity);

CREATE TABLE sessions (
  id         BLOB PRIMARY KEY,
  name       TEXT NOT NULL,
  role       TEXT NOT NULL,
  lease_us   INTEGER NOT NULL,
  renewed_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  holds      BLOB NOT NULL,
  ended      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE blobs (
  digest BLOB PRIMARY KEY,
  put_at INTEGER NOT NULL,
  bytes  BLOB NOT NULL                     -- last: what stands before it is read without it
);
CREATE INDEX blobs_put ON blobs (put_at, digest);

CREATE TABLE blob_refs (
  entity BLOB NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (digest, entity)
) WITHOUT ROWID;
CREATE INDEX blob_refs_entity ON blob_refs (entity);

CREATE TABLE pulse (
  one          INTEGER PRIMARY KEY CHECK (one = 1),
  last_at      INTEGER NOT NULL,
  judge_after  INTEGER NOT NULL,
  judges_until INTEGER NOT NULL
);

CREATE TABLE tallies (
  rule    TEXT PRIMARY KEY,
  fired   INTEGER NOT NULL,
  failed  INTEGER NOT NULL,
  lag_us  INTEGER NOT NULL,
  last_at INTEGER
) WITHOUT ROWID;
