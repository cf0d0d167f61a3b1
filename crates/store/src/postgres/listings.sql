-- Schema 2: what listings need (see listing.rs). HOT stays as it is: kind, tenant and id never change, and
-- the status gets into an index only once it is final, through a column that is NULL until then.
ALTER TABLE heads ADD COLUMN ended_as text COLLATE "C"
    GENERATED ALWAYS AS (CASE WHEN class = 2 THEN status END) STORED;
CREATE INDEX heads_kind ON heads (kind, id);
CREATE INDEX heads_tenant ON heads (tenant, kind, id);
CREATE INDEX heads_ended_as ON heads (kind, ended_as, id) WHERE ended_as IS NOT NULL;
