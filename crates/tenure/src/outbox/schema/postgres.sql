-- Tenure's outbox, PostgreSQL 13 or later. Run it in the schema that your program uses, as the owner of its tables.
-- Every statement may be run again.

-- One row for each job to hand over. Insert type and payload; all else has a default.
-- A row of the type tenure/complete is no job: it completes the one with its id, by the token of its claim, which is in the payload.
CREATE TABLE IF NOT EXISTS tenure_outbox (
    seq            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id             text NOT NULL DEFAULT gen_random_uuid()::text, -- the job's id
    type           text NOT NULL,
    payload        json NOT NULL DEFAULT 'null',
    queue          text NOT NULL DEFAULT 'default',
    priority       smallint NOT NULL DEFAULT 0,
    run_at         bigint,   -- milliseconds since 1970
    delay_ms       bigint,   -- from when the job is handed over
    max_attempts   integer,
    unique_key     text,
    group_key      text,     -- rows of one group are handed over in the order of their commits
    group_position bigint,   -- set by a trigger
    backoff        json,
    traceparent    text,
    tracestate     text,
    -- Kept by Tenure.
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts       integer NOT NULL DEFAULT 0,
    error          text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
CREATE INDEX IF NOT EXISTS tenure_outbox_by_group ON tenure_outbox (group_key, group_position)
    WHERE group_key IS NOT NULL;

-- Rows that could not be delivered, with the error. `tenure outbox retry` puts them back.
CREATE TABLE IF NOT EXISTS tenure_outbox_dead (
    seq            bigint PRIMARY KEY,
    id             text NOT NULL,
    type           text NOT NULL,
    payload        json NOT NULL,
    queue          text NOT NULL,
    priority       smallint NOT NULL,
    run_at         bigint,
    delay_ms       bigint,
    max_attempts   integer,
    unique_key     text,
    group_key      text,
    group_position bigint,
    backoff        json,
    traceparent    text,
    tracestate     text,
    created_at     timestamptz NOT NULL,
    attempts       integer NOT NULL,
    error          text,
    died_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How far each group has counted: the highest row of a group. Whoever inserts into a group holds its row 0 until the transaction ends.
-- A number is a row of its own and not a column that is changed: old versions of one, which a long transaction or a snapshot keeps, are all in the
-- way of the newest, and old rows are behind it.
CREATE TABLE IF NOT EXISTS tenure_outbox_groups (
    group_key text NOT NULL,
    last      bigint NOT NULL,
    PRIMARY KEY (group_key, last)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
DO $$
BEGIN
    -- Tables of an earlier version had one row for each group.
    IF (SELECT indnatts FROM pg_index WHERE indrelid = 'tenure_outbox_groups'::regclass AND indisprimary) = 1 THEN
        ALTER TABLE tenure_outbox_groups DROP CONSTRAINT tenure_outbox_groups_pkey, ADD PRIMARY KEY (group_key, last);
    END IF;
END $$;

-- Who hands the rows over: one row.
CREATE TABLE IF NOT EXISTS tenure_outbox_relay (
    only_row   smallint PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version    integer NOT NULL DEFAULT 1,
    takeover   bigint NOT NULL DEFAULT 0,
    owner      text,
    lineage    text,
    generation bigint NOT NULL DEFAULT 0,
    holder     text
);
INSERT INTO tenure_outbox_relay DEFAULT VALUES ON CONFLICT DO NOTHING;

-- 2 while the relay waits: a sequence, since its value is no row version that an old snapshot keeps alive.
CREATE SEQUENCE IF NOT EXISTS tenure_outbox_waiting;

-- What the attempt returned that has committed its effects and completed its job: a later attempt completes the job with it.
CREATE TABLE IF NOT EXISTS tenure_claim_results (
    job    text PRIMARY KEY,
    result json NOT NULL
);

-- The newest claim seen of each job, and whether its effects are committed: for fenced claims.
CREATE TABLE IF NOT EXISTS tenure_claims (
    job     text PRIMARY KEY,
    claim   bigint NOT NULL,
    done    boolean NOT NULL DEFAULT false,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE FUNCTION tenure_outbox_group() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    counted bigint;
BEGIN
    LOOP
        PERFORM FROM tenure_outbox_groups WHERE group_key = NEW.group_key AND last = 0 FOR UPDATE;
        EXIT WHEN FOUND;
        -- Waits for another one that makes it, and then for its lock.
        INSERT INTO tenure_outbox_groups (group_key, last) VALUES (NEW.group_key, 0) ON CONFLICT DO NOTHING;
    END LOOP;
    SELECT last INTO counted FROM tenure_outbox_groups WHERE group_key = NEW.group_key ORDER BY last DESC LIMIT 1;
    IF counted > 0 THEN
        DELETE FROM tenure_outbox_groups WHERE group_key = NEW.group_key AND last = counted;
    END IF;
    NEW.group_position := counted + 1;
    INSERT INTO tenure_outbox_groups (group_key, last) VALUES (NEW.group_key, NEW.group_position);
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION tenure_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Only while the relay waits: transactions that notify commit one after the other.
    IF (SELECT last_value FROM tenure_outbox_waiting) = 2 THEN
        PERFORM pg_notify('tenure_outbox', '');
    END IF;
    RETURN NULL;
END $$;

-- Submits a job in the caller's transaction and returns its id.
CREATE OR REPLACE FUNCTION tenure_submit(
    type text, payload json DEFAULT 'null', queue text DEFAULT 'default', "group" text DEFAULT NULL,
    id text DEFAULT NULL, priority integer DEFAULT 0, run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, max_attempts integer DEFAULT NULL, unique_key text DEFAULT NULL,
    backoff json DEFAULT NULL, traceparent text DEFAULT NULL, tracestate text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    -- Not read back from the table: that would need the right to read it.
    chosen text := coalesce(tenure_submit.id, gen_random_uuid()::text);
BEGIN
    INSERT INTO tenure_outbox (id, type, payload, queue, group_key, priority, run_at, delay_ms, max_attempts,
        unique_key, backoff, traceparent, tracestate)
    VALUES (chosen, tenure_submit.type, tenure_submit.payload,
        tenure_submit.queue, tenure_submit."group", tenure_submit.priority,
        (extract(epoch FROM tenure_submit.run_at) * 1000)::bigint,
        (extract(epoch FROM tenure_submit.delay) * 1000)::bigint, tenure_submit.max_attempts,
        tenure_submit.unique_key, tenure_submit.backoff, tenure_submit.traceparent, tenure_submit.tracestate);
    RETURN chosen;
END $$;

-- Whoever inserts may have another search_path.
DO $$
DECLARE signature text;
BEGIN
    FOREACH signature IN ARRAY ARRAY['tenure_outbox_group()', 'tenure_outbox_wake()',
        'tenure_submit(text, json, text, text, text, integer, timestamptz, interval, integer, text, json, text, text)']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', signature, current_schema());
    END LOOP;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'tenure_outbox'::regclass AND tgname = 'tenure_outbox_wake') THEN
        CREATE TRIGGER tenure_outbox_group BEFORE INSERT ON tenure_outbox FOR EACH ROW
            WHEN (NEW.group_key IS NOT NULL) EXECUTE FUNCTION tenure_outbox_group();
        CREATE TRIGGER tenure_outbox_wake AFTER INSERT ON tenure_outbox FOR EACH STATEMENT
            EXECUTE FUNCTION tenure_outbox_wake();
    END IF;
END $$;
