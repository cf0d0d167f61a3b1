-- Schema 2: what listings need (see listing.rs). Nothing here is written by a step: two indexes are
-- written at birth, one at the end, and one while an entity is marked for a person.
CREATE INDEX heads_kind ON heads (kind, id);
CREATE INDEX heads_tenant ON heads (tenant, kind, id);
CREATE INDEX heads_ended_as ON heads (kind, status, id) WHERE class = 2;
CREATE INDEX heads_attention ON heads (id) WHERE attention IS NOT NULL;
