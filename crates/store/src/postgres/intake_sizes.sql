-- Schema 6: a wish is measured when it comes, and the same input is found to be the same after its job was made.
--
-- Before, the server measured inputs when it took rows, many at once. One that Postgres can not write as text (it would have
-- more than a gigabyte) made that statement fail for all of them, and again with every tick. Now an error or a long
-- measurement is the asking transaction's own, and whoever takes rows reads only what is known to be small.

-- How long a value is as text; NULL where Postgres can not write it.
CREATE FUNCTION text_bytes(value jsonb) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN octet_length(value::text);
EXCEPTION WHEN program_limit_exceeded OR out_of_memory OR internal_error THEN
    RETURN NULL;
END $$;

-- The input's length as text. NULL: it is larger than any server takes, and is not kept.
ALTER TABLE intake ADD COLUMN input_bytes integer;

-- A trigger, so that no way into the table leaves it out. What is dropped here becomes a failed job that says so:
-- an input above the largest `server.payload_bytes_max` (16 MiB), options above 64 KiB, all of a flow's name but
-- the beginning (a name that is longer than any flow's is still longer).
CREATE FUNCTION measure_wish() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.flow := left(NEW.flow, 256);
    NEW.input_bytes := text_bytes(NEW.input);
    IF coalesce(NEW.input_bytes > 16777216, true) THEN
        NEW.input := NULL;
        NEW.input_bytes := NULL;
    END IF;
    IF coalesce(text_bytes(NEW.options) > 65536, true) THEN
        NEW.options := NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER wish_is_measured BEFORE INSERT OR UPDATE OF flow, input, options ON intake
    FOR EACH ROW EXECUTE FUNCTION measure_wish();
-- Those that wait already.
UPDATE intake SET input = input;

-- Whether a server reads both as the same number: whole ones of 64 bits as they are, all others as the next double.
CREATE FUNCTION same_number(kept numeric, given numeric) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF kept = given THEN
        RETURN true;
    END IF;
    IF scale(given) = 0 AND given BETWEEN -9223372036854775808 AND 18446744073709551615 THEN
        RETURN false;
    END IF;
    RETURN kept::float8 = given::float8;
EXCEPTION WHEN numeric_value_out_of_range THEN
    -- One of them is past all doubles, which no server reads, or so near to zero that it is read as zero.
    RETURN abs(kept) < 2.4e-324 AND abs(given) < 2.4e-324;
END $$;

-- Whether a server reads both as the same value. `kept` may have been through a server, `given` has not. No server reads
-- what is nested more deeply than this looks.
CREATE FUNCTION same_json(kept jsonb, given jsonb, deep integer DEFAULT 0) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF kept = given THEN
        RETURN true;
    END IF;
    IF jsonb_typeof(kept) <> jsonb_typeof(given) OR deep > 128 THEN
        RETURN false;
    END IF;
    CASE jsonb_typeof(kept)
        WHEN 'number' THEN
            RETURN same_number(kept::numeric, given::numeric);
        WHEN 'array' THEN
            RETURN jsonb_array_length(kept) = jsonb_array_length(given) AND NOT EXISTS (
                SELECT FROM ROWS FROM (jsonb_array_elements(kept), jsonb_array_elements(given)) AS both_of(k, g)
                WHERE NOT same_json(k, g, deep + 1));
        WHEN 'object' THEN
            RETURN (SELECT count(*) FROM jsonb_object_keys(kept)) = (SELECT count(*) FROM jsonb_object_keys(given))
                AND NOT EXISTS (
                    SELECT FROM jsonb_each(kept) AS k(name, value)
                    WHERE NOT given ? k.name OR NOT same_json(k.value, given -> k.name, deep + 1));
        ELSE
            RETURN false;
    END CASE;
END $$;

-- The job that has this key. One that is known to be of another flow or input is an error.
CREATE OR REPLACE FUNCTION job_of_key(whose text, word text, wanted text, given jsonb) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id uuid;
    told text;
    said jsonb;
BEGIN
    SELECT k.entity, convert_from(h.state, 'UTF8') INTO found_id, told
        FROM keys k JOIN heads h ON h.id = k.entity
        WHERE k.key = 'job/' || octet_length(whose) || '/' || whose || '/' || word AND h.kind = 'job';
    IF found_id IS NULL THEN
        RETURN NULL;
    END IF;
    -- A job may return the letter U+0000, which `jsonb` can not hold. No input that comes this way has it, so any
    -- other letter will do. Not the `u0000` behind a backslash that is a letter itself.
    IF strpos(told, E'\\u0000') > 0 THEN
        told := regexp_replace(told, E'(?<!\\\\)((?:\\\\\\\\)*)\\\\u0000', E'\\1\\\\ufffd', 'g');
    END IF;
    said := told::jsonb;
    -- A large input is not in the head, and one of a later run is not what was asked for.
    IF said ->> 'flow' IS DISTINCT FROM wanted
        OR (said ->> 'run' = '1' AND said ? 'input' AND NOT same_json(said -> 'input', given)) THEN
        RAISE EXCEPTION 'the key % belongs to job %, which has other input', word, found_id
            USING ERRCODE = 'TN003', HINT = 'use another key for other input';
    END IF;
    RETURN found_id;
END $$;

CREATE OR REPLACE FUNCTION submit(flow text, input jsonb DEFAULT 'null', options jsonb DEFAULT '{}') RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    allowed text[] := tenants_of_session();
    role_tenant text;
    given jsonb := coalesce(submit.input, 'null');
    named text := CASE WHEN jsonb_typeof(submit.options -> 'tenant') = 'string' THEN submit.options ->> 'tenant' END;
    whose text;
    word text;
    job uuid;
    other record;
BEGIN
    IF allowed IS NOT NULL THEN
        -- One that is not allowed is left to the server, which makes a failed job of it, for a tenant that is.
        role_tenant := CASE WHEN named = ANY(allowed) THEN named ELSE allowed[1] END;
        IF named IS NULL AND cardinality(allowed) > 1 THEN
            SELECT r.tenant INTO role_tenant FROM intake_roles r WHERE r.role = session_user;
            IF role_tenant IS NULL THEN
                RAISE EXCEPTION 'the role % may submit for several tenants: %', session_user, array_to_string(allowed, ', ')
                    USING ERRCODE = 'TN004', HINT = 'name one of them: options => ''{"tenant": …}''';
            END IF;
        END IF;
    END IF;
    whose := coalesce(role_tenant, named, 'default');
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
            -- An input that was too large to keep is not compared.
            IF other.flow IS DISTINCT FROM left(submit.flow, 256)
                OR (other.input IS NOT NULL AND NOT same_json(other.input, given)) THEN
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
