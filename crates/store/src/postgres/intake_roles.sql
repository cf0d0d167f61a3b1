-- Schema 4: a role submits for the tenants of all roles that it is a member of, and for nobody else's.
--
-- Before, only the name of the session's own role was looked up, and a role that was not listed could name any tenant: a
-- login that was added to a bound group, or renamed, was bound to nothing. Now what is not listed is `default` alone. A row
-- with the tenant `*` allows any. Whoever has the rights of the store's owner can write what they like anyway, and is
-- bound only by a row of their own.
CREATE FUNCTION tenants_of_session() RETURNS text[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    listed text[];
BEGIN
    -- Not `pg_has_role`: to that, a superuser is a member of everything.
    WITH RECURSIVE mine(role) AS (
        SELECT p.oid FROM pg_catalog.pg_roles p WHERE p.rolname = session_user
        UNION
        SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN mine ON m.member = mine.role
    )
    SELECT array_agg(DISTINCT r.tenant ORDER BY r.tenant) INTO listed
        FROM mine JOIN pg_catalog.pg_roles p ON p.oid = mine.role JOIN intake_roles r ON r.role = p.rolname;
    IF '*' = ANY(listed) OR (listed IS NULL AND pg_has_role(session_user, current_user, 'MEMBER')) THEN
        RETURN NULL;
    END IF;
    RETURN coalesce(listed, ARRAY['default']);
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
