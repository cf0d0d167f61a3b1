-- Schema 1 of the Postgres store. Runs once, with search_path on the store's own schema. Forwards
-- only: a change is a further file, never an edit of this one.
--
-- Moments are microseconds since 1970 as bigint: what the hash chain covers must come back bit by bit.
-- Text compares as bytes (COLLATE "C"): key order must not change with the operating system's locale.
--
-- HOT is what the speed of heads rests on: an update that changes no column of ANY index (predicates
-- of partial indexes count too) touches no index at all. So nothing that changes with every step may
-- appear in an index of heads: not version, changed_at, status, class or holder.

CREATE TABLE meta (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    schema_version bigint NOT NULL,
    incarnation bigint NOT NULL,
    -- System identifier and timeline of the cluster: another one means that the store was restored.
    cluster text NOT NULL,
    -- The last position of the feed from which something has been removed.
    floor_tx bigint NOT NULL DEFAULT 0,
    floor_ord integer NOT NULL DEFAULT 0
);

CREATE TABLE heads (
    id uuid PRIMARY KEY,
    version bigint NOT NULL CHECK (version > 0),
    epoch bigint NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    mail_count bigint NOT NULL,
    mail_read bigint NOT NULL,
    sealed bigint NOT NULL,
    due bigint,
    must_end_by bigint,
    check_at bigint,
    ready_at bigint,
    -- changed_at of a final head, and only of a final one: retention finds them by it.
    ended_at bigint,
    faults integer NOT NULL,
    -- 0 open, 1 resting, 2 final
    class smallint NOT NULL,
    priority smallint NOT NULL,
    lane smallint NOT NULL,
    holder uuid,
    kind text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    status text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    attention text,
    chain bytea NOT NULL,
    timers bytea NOT NULL,
    state bytea NOT NULL,
    CONSTRAINT open_means_due CHECK (class <> 0
        OR (due IS NOT NULL AND must_end_by IS NOT NULL AND due <= must_end_by)),
    CONSTRAINT resting_owes_nothing CHECK (class <> 1 OR must_end_by IS NULL),
    CONSTRAINT final_is_over CHECK (class <> 2
        OR (due IS NULL AND must_end_by IS NULL AND holder IS NULL)),
    CONSTRAINT ended_means_final CHECK ((class = 2) = (ended_at IS NOT NULL)),
    CONSTRAINT class_is_known CHECK (class BETWEEN 0 AND 2),
    CONSTRAINT mail_is_read_once_come CHECK (mail_read <= mail_count),
    CONSTRAINT held_is_not_ready CHECK (holder IS NULL OR ready_at IS NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX heads_due ON heads (lane, due) WHERE due IS NOT NULL;
CREATE INDEX heads_ended ON heads (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX heads_attention ON heads (id) WHERE attention IS NOT NULL;
CREATE INDEX heads_sealed ON heads (id) WHERE sealed > 0;

-- The second guard behind the judge. The condition stands in WHEN: it costs no function call.
CREATE FUNCTION refuse_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.class = 2 THEN
        RAISE EXCEPTION 'entity % is final and does not change', OLD.id USING ERRCODE = 'TN001';
    END IF;
    RAISE EXCEPTION 'entity %: version % and epoch % do not go back to % and %',
        OLD.id, OLD.version, OLD.epoch, NEW.version, NEW.epoch USING ERRCODE = 'TN002';
END $$;
CREATE TRIGGER heads_guard BEFORE UPDATE ON heads FOR EACH ROW
    WHEN (OLD.class = 2 OR NEW.version < OLD.version OR NEW.epoch < OLD.epoch)
    EXECUTE FUNCTION refuse_head();

-- Called when a statement did not change as many rows as it should have: another batch was faster.
CREATE FUNCTION raced(what text) RETURNS integer LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'another batch changed % first', what USING ERRCODE = 'TNR01';
END $$;

-- The store's time.
CREATE FUNCTION moment() RETURNS bigint LANGUAGE sql VOLATILE
    RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

CREATE TABLE records (
    -- Transaction and place in it: the order of the feed.
    tx bigint NOT NULL,
    first bigint NOT NULL,
    at bigint NOT NULL,
    epoch bigint NOT NULL,
    ord integer NOT NULL,
    count integer NOT NULL CHECK (count > 0),
    entity uuid NOT NULL,
    commit_id uuid NOT NULL,
    hash bytea NOT NULL,
    bytes bytea NOT NULL,
    PRIMARY KEY (entity, first)
);
CREATE INDEX records_feed ON records (tx, ord);

-- What the rows of a batch travel in: see compose.rs. A state or timers of NULL stay as they are.
CREATE TYPE head_change AS (
    id uuid, was_version bigint, was_epoch bigint, status text, class smallint, version bigint,
    epoch bigint, holder uuid, chain bytea, changed_at bigint, mail_count bigint, mail_read bigint,
    due bigint, must_end_by bigint, check_at bigint, faults integer, ready_at bigint, ended_at bigint,
    attention text, sealed bigint, timers bytea, state bytea
);
CREATE TYPE head_birth AS (
    id uuid, status text, class smallint, version bigint, epoch bigint, holder uuid, chain bytea,
    changed_at bigint, mail_count bigint, mail_read bigint, due bigint, must_end_by bigint,
    check_at bigint, faults integer, ready_at bigint, ended_at bigint, attention text, sealed bigint,
    timers bytea, state bytea, kind text, tenant text, queue text, priority smallint, lane smallint,
    created_at bigint
);
CREATE TYPE new_record AS (
    entity uuid, first bigint, count integer, commit_id uuid, at bigint, epoch bigint, hash bytea,
    bytes bytea, ord integer
);

CREATE TABLE mail (
    entity uuid NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (entity, seq),
    UNIQUE (entity, id)
);

CREATE TABLE evidence (
    n bigint GENERATED ALWAYS AS IDENTITY,
    entity uuid NOT NULL,
    epoch bigint NOT NULL,
    at bigint NOT NULL,
    call bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    who text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (entity, key, epoch, call, digest)
);

-- In order per source: (at, version, ordinal) rises with every commit of it. A sequence would say the
-- same and cost more.
CREATE TABLE outbox (
    source uuid NOT NULL,
    version bigint NOT NULL,
    at bigint NOT NULL,
    ordinal integer NOT NULL,
    lane smallint NOT NULL,
    -- 0 mail, 1 create, 2 wire
    target smallint NOT NULL CHECK (target BETWEEN 0 AND 2),
    -- It leaves on a wire (a wake-up does not): apart, so that a wire that is down holds nothing back but itself.
    wire boolean NOT NULL,
    target_id uuid,
    -- The kind of what is created, or the wire's subject.
    target_name text COLLATE "C",
    tenant text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (source, version, ordinal)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
CREATE INDEX outbox_order ON outbox (lane, wire, at);

CREATE TABLE keys (
    key text COLLATE "C" PRIMARY KEY,
    entity uuid NOT NULL,
    digest bytea NOT NULL
);
CREATE INDEX keys_entity ON keys (entity);

-- Narrow, and its key is the claim order. A row is written only under the lock of its head.
CREATE TABLE ready (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    ready_at bigint NOT NULL,
    entity uuid NOT NULL,
    PRIMARY KEY (queue, priority, tenant, ready_at, entity)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE TABLE sessions (
    id uuid PRIMARY KEY,
    lease_us bigint NOT NULL,
    renewed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    ended boolean NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    holds bytea NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE sessions ALTER COLUMN holds SET STORAGE EXTERNAL;

CREATE TABLE blobs (
    digest bytea PRIMARY KEY,
    at bigint NOT NULL,
    bytes bytea NOT NULL
);

CREATE TABLE blob_refs (
    entity uuid NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (entity, digest)
);
CREATE INDEX blob_refs_digest ON blob_refs (digest);

CREATE TABLE pulse (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_at bigint,
    judge_after bigint NOT NULL,
    judges_until bigint NOT NULL
);
INSERT INTO pulse (last_at, judge_after, judges_until) VALUES (NULL, 0, 0);

CREATE TABLE tallies (
    rule text COLLATE "C" PRIMARY KEY,
    fired bigint NOT NULL,
    failed bigint NOT NULL,
    lag_max_us bigint NOT NULL,
    last_at bigint
);
