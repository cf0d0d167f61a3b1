-- Schema 3: retention finds what is vacant. Written when an entity becomes vacant and when it wakes, by no step.
CREATE INDEX heads_vacant ON heads (changed_at) WHERE class = 1 AND status = 'vacant';
