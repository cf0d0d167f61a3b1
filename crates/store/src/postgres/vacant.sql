-- Schema 5: retention finds what is vacant. HOT stays as it is: the column is NULL, and so in no index, until an entity
-- becomes vacant.
ALTER TABLE heads ADD COLUMN vacant_since bigint
    GENERATED ALWAYS AS (CASE WHEN class = 1 AND status = 'vacant' THEN changed_at END) STORED;
CREATE INDEX heads_vacant ON heads (vacant_since) WHERE vacant_since IS NOT NULL;
