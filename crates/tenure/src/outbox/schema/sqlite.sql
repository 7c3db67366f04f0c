-- Tenure's outbox, SQLite 3.37 or later. Every statement may be run again.

-- One row for each job to hand over. Insert type and payload; all else has a default.
-- A row of the type tenure/complete is no job: it completes the one with its id, by the token of its claim, which is in the payload.
CREATE TABLE IF NOT EXISTS tenure_outbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    type           TEXT NOT NULL,
    payload        TEXT NOT NULL DEFAULT 'null' CHECK (json_valid(payload)),
    queue          TEXT NOT NULL DEFAULT 'default',
    priority       INTEGER NOT NULL DEFAULT 0,
    run_at         INTEGER,
    delay_ms       INTEGER,
    max_attempts   INTEGER,
    unique_key     TEXT,
    group_key      TEXT,
    group_position INTEGER,
    backoff        TEXT CHECK (backoff IS NULL OR json_valid(backoff)),
    traceparent    TEXT,
    tracestate     TEXT,
    created_at     REAL NOT NULL DEFAULT (julianday('now')),
    attempts       INTEGER NOT NULL DEFAULT 0,
    error          TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS tenure_outbox_by_group ON tenure_outbox (group_key, group_position)
    WHERE group_key IS NOT NULL;

-- Rows that could not be delivered, with the error. `tenure outbox retry` puts them back.
CREATE TABLE IF NOT EXISTS tenure_outbox_dead (
    seq            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL,
    type           TEXT NOT NULL,
    payload        TEXT NOT NULL,
    queue          TEXT NOT NULL,
    priority       INTEGER NOT NULL,
    run_at         INTEGER,
    delay_ms       INTEGER,
    max_attempts   INTEGER,
    unique_key     TEXT,
    group_key      TEXT,
    group_position INTEGER,
    backoff        TEXT,
    traceparent    TEXT,
    tracestate     TEXT,
    created_at     REAL NOT NULL,
    attempts       INTEGER NOT NULL,
    error          TEXT,
    died_at        REAL NOT NULL DEFAULT (julianday('now'))
) STRICT;

-- How far each group has counted.
CREATE TABLE IF NOT EXISTS tenure_outbox_groups (
    group_key TEXT NOT NULL PRIMARY KEY,
    last      INTEGER NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS tenure_outbox_group AFTER INSERT ON tenure_outbox WHEN NEW.group_key IS NOT NULL
BEGIN
    INSERT INTO tenure_outbox_groups (group_key, last) VALUES (NEW.group_key, 1)
        ON CONFLICT (group_key) DO UPDATE SET last = last + 1;
    UPDATE tenure_outbox SET group_position =
        (SELECT last FROM tenure_outbox_groups WHERE group_key = NEW.group_key) WHERE seq = NEW.seq;
END;

-- Who hands the rows over: one row.
CREATE TABLE IF NOT EXISTS tenure_outbox_relay (
    only_row   INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version    INTEGER NOT NULL DEFAULT 1,
    takeover   INTEGER NOT NULL DEFAULT 0,
    owner      TEXT,
    lineage    TEXT,
    generation INTEGER NOT NULL DEFAULT 0,
    holder     TEXT
) STRICT;
INSERT OR IGNORE INTO tenure_outbox_relay (only_row) VALUES (1);

-- What the attempt returned that has committed its effects and completed its job: a later attempt completes the job with it.
CREATE TABLE IF NOT EXISTS tenure_claim_results (
    job    TEXT NOT NULL PRIMARY KEY,
    result TEXT NOT NULL
) STRICT;

-- The newest claim seen of each job, and whether its effects are committed: for fenced claims.
CREATE TABLE IF NOT EXISTS tenure_claims (
    job     TEXT NOT NULL PRIMARY KEY,
    claim   INTEGER NOT NULL,
    done    INTEGER NOT NULL DEFAULT 0,
    seen_at REAL NOT NULL DEFAULT (julianday('now'))
) STRICT;
