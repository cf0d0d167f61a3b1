-- Schema 3: jobs that applications ask for in transactions of their own. See docs/transactional-submission.md.
--
-- A row is a wish that is owed a job: a server makes it and removes the row. The id is given here, so that making it
-- twice makes one job. What is wrong with a wish is found by the server and becomes a failed job: this function
-- refuses nothing but a key that is known to belong to something else.
CREATE TABLE intake (
    id uuid PRIMARY KEY,
    at bigint NOT NULL,
    -- A wish that could not be served now is left for later, so that others are not.
    not_before bigint NOT NULL DEFAULT 0,
    tries integer NOT NULL DEFAULT 0,
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C",
    -- The tenant that the asking role is bound to, if it is.
    bound text COLLATE "C",
    asked_by text NOT NULL,
    flow text,
    input jsonb,
    options jsonb,
    UNIQUE (tenant, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Roles that may submit for one tenant only. A role that is not listed may name any.
CREATE TABLE intake_roles (
    role text PRIMARY KEY,
    tenant text NOT NULL CHECK (tenant <> '' AND tenant NOT LIKE '%/%' AND octet_length(tenant) <= 128)
);

-- A time-ordered UUID (version 7), as all ids of entities are.
CREATE FUNCTION new_id() RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    b bytea := uuid_send(gen_random_uuid());
BEGIN
    b := overlay(b PLACING substring(int8send(moment() / 1000) FROM 3) FROM 1 FOR 6);
    RETURN encode(set_byte(b, 6, (get_byte(b, 6) & 15) | 112), 'hex')::uuid;
END $$;

-- The job that has this key. One that is known to be of another flow or input is an error.
CREATE FUNCTION job_of_key(whose text, word text, wanted text, given jsonb) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id uuid;
    said jsonb;
BEGIN
    SELECT k.entity, convert_from(h.state, 'UTF8')::jsonb INTO found_id, said
        FROM keys k JOIN heads h ON h.id = k.entity
        WHERE k.key = 'job/' || octet_length(whose) || '/' || whose || '/' || word AND h.kind = 'job';
    IF found_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- A large input is not in the head, and one of a later run is not what was asked for.
    IF said ->> 'flow' IS DISTINCT FROM wanted
        OR (said ->> 'run' = '1' AND said ? 'input' AND said -> 'input' IS DISTINCT FROM given) THEN
        RAISE EXCEPTION 'the key % belongs to job %, which has other input', word, found_id
            USING ERRCODE = 'TN003', HINT = 'use another key for other input';
    END IF;
    RETURN found_id;
END $$;

CREATE FUNCTION submit(flow text, input jsonb DEFAULT 'null', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    role_tenant text := (SELECT r.tenant FROM intake_roles r WHERE r.role = session_user);
    given jsonb := coalesce(submit.input, 'null');
    whose text;
    word text;
    job uuid;
    other record;
BEGIN
    whose := coalesce(role_tenant,
        CASE WHEN jsonb_typeof(submit.options -> 'tenant') = 'string' THEN submit.options ->> 'tenant' END, 'default');
    IF octet_length(whose) > 128 THEN
        whose := 'default';
    END IF;
    IF jsonb_typeof(submit.options -> 'key') = 'string'
        AND octet_length(submit.options ->> 'key') BETWEEN 1 AND 255 THEN
        word := submit.options ->> 'key';
        job := job_of_key(whose, word, submit.flow, given);
    END IF;
    -- Whoever loses a race for a key finds the winner's row, or its job.
    FOR i IN 1..3 LOOP
        IF job IS NOT NULL THEN
            RETURN job;
        END IF;
        INSERT INTO intake (id, at, tenant, key, bound, asked_by, flow, input, options)
            VALUES (new_id(), moment(), whose, word, role_tenant, session_user, submit.flow, given,
                coalesce(submit.options, '{}'))
            ON CONFLICT DO NOTHING RETURNING id INTO job;
        IF job IS NOT NULL THEN
            PERFORM pg_notify('tenure', 'intake');
            IF word IS NULL THEN
                RETURN job;
            END IF;
            -- The job of an earlier row may have been made, and the row removed, since the first look.
            SELECT job_of_key(whose, word, submit.flow, given) AS id INTO other;
            IF other.id IS NOT NULL AND other.id <> job THEN
                DELETE FROM intake t WHERE t.id = job;
                RETURN other.id;
            END IF;
            RETURN job;
        END IF;
        SELECT t.id, t.flow, t.input INTO other FROM intake t WHERE t.tenant = whose AND t.key = word;
        IF other.id IS NOT NULL THEN
            IF other.flow IS DISTINCT FROM submit.flow OR other.input IS DISTINCT FROM given THEN
                RAISE EXCEPTION 'the key % belongs to job %, which has other input', word, other.id
                    USING ERRCODE = 'TN003', HINT = 'use another key for other input';
            END IF;
            RETURN other.id;
        END IF;
        job := job_of_key(whose, word, submit.flow, given);
    END LOOP;
    RAISE EXCEPTION 'somebody else submits under the key % right now', word
        USING ERRCODE = 'serialization_failure', HINT = 'run the transaction again';
END $$;

-- It runs with the rights of the store's owner: nothing that a caller can create may be found before ours.
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION submit(text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema());
END $$;
REVOKE ALL ON FUNCTION submit(text, jsonb, jsonb) FROM PUBLIC;
