-- Tenure's outbox, MySQL 8.0.16 or MariaDB 10.3, or later. Every statement may be run again.

-- One row for each job to hand over. Insert type and payload; all else has a default.
-- A row of the type tenure/complete is no job: it completes the one with its id, by the token of its claim, which is in the payload.
CREATE TABLE IF NOT EXISTS tenure_outbox (
    seq            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id             VARCHAR(200) NOT NULL DEFAULT (UUID()),
    type           VARCHAR(200) NOT NULL,
    payload        LONGTEXT NOT NULL DEFAULT ('null') CHECK (JSON_VALID(payload)),
    queue          VARCHAR(200) NOT NULL DEFAULT 'default',
    priority       SMALLINT NOT NULL DEFAULT 0,
    run_at         BIGINT,
    delay_ms       BIGINT,
    max_attempts   INT,
    unique_key     VARCHAR(200),
    group_key      VARCHAR(200),
    group_position BIGINT,
    backoff        TEXT CHECK (backoff IS NULL OR JSON_VALID(backoff)),
    traceparent    VARCHAR(200),
    tracestate     TEXT,
    created_at     DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    attempts       INT NOT NULL DEFAULT 0,
    error          TEXT,
    INDEX tenure_outbox_by_group (group_key, group_position),
    -- A group needs its place in it: see tenure_outbox_groups. Blanks at the end would make two groups one.
    CHECK ((group_key IS NULL) = (group_position IS NULL) AND (group_key IS NULL OR group_key NOT LIKE '% '))
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Rows that could not be delivered, with the error. `tenure outbox retry` puts them back.
CREATE TABLE IF NOT EXISTS tenure_outbox_dead (
    seq            BIGINT NOT NULL PRIMARY KEY,
    id             VARCHAR(200) NOT NULL,
    type           VARCHAR(200) NOT NULL,
    payload        LONGTEXT NOT NULL,
    queue          VARCHAR(200) NOT NULL,
    priority       SMALLINT NOT NULL,
    run_at         BIGINT,
    delay_ms       BIGINT,
    max_attempts   INT,
    unique_key     VARCHAR(200),
    group_key      VARCHAR(200),
    group_position BIGINT,
    backoff        TEXT,
    traceparent    VARCHAR(200),
    tracestate     TEXT,
    created_at     DATETIME(6) NOT NULL,
    attempts       INT NOT NULL,
    error          TEXT,
    died_at        DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How far each group has counted. Whoever inserts into a group first counts here, in the same transaction:
--   INSERT INTO tenure_outbox_groups (group_key, last) VALUES ('order-7', LAST_INSERT_ID(1))
--       ON DUPLICATE KEY UPDATE last = LAST_INSERT_ID(last + 1);
--   INSERT INTO tenure_outbox (type, payload, group_key, group_position)
--       VALUES ('mail', '{}', 'order-7', LAST_INSERT_ID());
CREATE TABLE IF NOT EXISTS tenure_outbox_groups (
    group_key VARCHAR(200) NOT NULL PRIMARY KEY,
    last      BIGINT NOT NULL
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who hands the rows over: one row.
CREATE TABLE IF NOT EXISTS tenure_outbox_relay (
    only_row   SMALLINT NOT NULL DEFAULT 1 PRIMARY KEY CHECK (only_row = 1),
    version    INT NOT NULL DEFAULT 1,
    takeover   BIGINT NOT NULL DEFAULT 0,
    owner      VARCHAR(500),
    lineage    VARCHAR(64),
    generation BIGINT NOT NULL DEFAULT 0,
    holder     VARCHAR(300)
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT IGNORE INTO tenure_outbox_relay (only_row) VALUES (1);

-- What the attempt returned that has committed its effects and completed its job: a later attempt completes the job with it.
CREATE TABLE IF NOT EXISTS tenure_claim_results (
    job    VARCHAR(300) NOT NULL PRIMARY KEY,
    result LONGTEXT NOT NULL
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The newest claim seen of each job, and whether its effects are committed: for fenced claims.
CREATE TABLE IF NOT EXISTS tenure_claims (
    job     VARCHAR(300) NOT NULL PRIMARY KEY,
    claim   BIGINT NOT NULL,
    done    BOOLEAN NOT NULL DEFAULT FALSE,
    seen_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
