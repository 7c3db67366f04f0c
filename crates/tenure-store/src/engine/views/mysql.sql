-- What is stored, for people: who leads, which nodes there are, which daemon runs where. Only to look at. Times are
-- in UTC. Tenure makes these views beside its table if it may; else run this file there by hand.

CREATE OR REPLACE VIEW tenure_nodes AS
SELECT SUBSTRING_INDEX(`key`, '/', 1) AS namespace,
       SUBSTRING_INDEX(SUBSTRING_INDEX(`key`, '/', 3), '/', -1) AS node,
       SUBSTRING_INDEX(`key`, '/', -1) AS incarnation,
       CASE WHEN JSON_EXTRACT(session, '$.state.evicted') IS NOT NULL THEN 'evicted'
            WHEN JSON_UNQUOTE(JSON_EXTRACT(session, '$.state')) = 'alive' AND modified_at
                 + INTERVAL CAST(JSON_EXTRACT(session, '$.ttl_ms') AS SIGNED) * 1000 MICROSECOND < UTC_TIMESTAMP(6)
            THEN 'expired'
            ELSE JSON_UNQUOTE(JSON_EXTRACT(session, '$.state')) END AS state,
       JSON_UNQUOTE(JSON_EXTRACT(session, '$.address')) AS address,
       JSON_EXTRACT(session, '$.labels') AS labels,
       JSON_UNQUOTE(JSON_EXTRACT(session, '$.cluster.version')) AS version,
       CAST(JSON_EXTRACT(session, '$.ttl_ms') AS SIGNED) AS ttl_ms,
       TIMESTAMP('1970-01-01') + INTERVAL CAST(JSON_EXTRACT(session, '$.joined_at') AS SIGNED) * 1000 MICROSECOND
           AS joined_at,
       modified_at AS heard_at,
       CASE WHEN JSON_UNQUOTE(JSON_EXTRACT(session, '$.state')) = 'alive'
            THEN modified_at + INTERVAL CAST(JSON_EXTRACT(session, '$.ttl_ms') AS SIGNED) * 1000 MICROSECOND END
           AS expires_at
FROM (SELECT `key`, modified_at, CASE WHEN `key` LIKE '%/nodes/%/%' THEN CONVERT(value USING utf8mb4) END AS session
      FROM tenure_objects
      WHERE `key` LIKE '%/nodes/%/%' AND LENGTH(`key`) - LENGTH(REPLACE(`key`, '/', '')) = 3) AS objects;

CREATE OR REPLACE VIEW tenure_leaders AS
SELECT SUBSTRING_INDEX(`key`, '/', 1) AS namespace,
       SUBSTRING_INDEX(`key`, '/', -1) AS election,
       CAST(JSON_EXTRACT(lease, '$.term') AS SIGNED) AS term,
       CASE WHEN JSON_EXTRACT(lease, '$.state.held') IS NOT NULL AND COALESCE(nodes.state, '') <> 'alive' THEN 'expired'
            WHEN JSON_EXTRACT(lease, '$.state.held') IS NOT NULL THEN 'held'
            WHEN JSON_EXTRACT(lease, '$.state.reserved') IS NOT NULL THEN 'reserved'
            ELSE JSON_UNQUOTE(JSON_EXTRACT(lease, '$.state')) END AS state,
       JSON_UNQUOTE(JSON_EXTRACT(lease, '$.state.held.holder.node')) AS leader,
       JSON_UNQUOTE(JSON_EXTRACT(lease, '$.state.held.holder.incarnation')) AS incarnation,
       nodes.state AS session,
       nodes.address AS address,
       TIMESTAMP('1970-01-01') + INTERVAL CAST(JSON_EXTRACT(lease, '$.state.held.since') AS SIGNED) * 1000 MICROSECOND
           AS since,
       nodes.expires_at AS expires_at,
       JSON_UNQUOTE(JSON_EXTRACT(lease, '$.state.reserved.candidate.node')) AS reserved_for
FROM (SELECT `key`, CASE WHEN `key` LIKE '%/elections/%' THEN CONVERT(value USING utf8mb4) END AS lease
      FROM tenure_objects
      WHERE `key` LIKE '%/elections/%' AND LENGTH(`key`) - LENGTH(REPLACE(`key`, '/', '')) = 2) AS objects
LEFT JOIN tenure_nodes AS nodes
       ON nodes.namespace = SUBSTRING_INDEX(`key`, '/', 1)
      AND nodes.incarnation = CONVERT(JSON_UNQUOTE(JSON_EXTRACT(lease, '$.state.held.holder.incarnation')) USING ascii);

CREATE OR REPLACE VIEW tenure_daemons AS
SELECT SUBSTRING_INDEX(`key`, '/', 1) AS namespace,
       daemons.daemon AS daemon,
       shards.place - 1 AS shard,
       CASE WHEN JSON_EXTRACT(assignments, CONCAT('$.daemons."', daemons.daemon, '".failures."', shards.place - 1, '".count')) > 1
                 AND COALESCE(shards.state, '') <> 'revoking' THEN 'failing'
            ELSE COALESCE(shards.state, 'unassigned') END AS state,
       JSON_UNQUOTE(JSON_EXTRACT(assignments, CONCAT('$.nodes[', shards.holder, '].node'))) AS node,
       JSON_UNQUOTE(JSON_EXTRACT(assignments, CONCAT('$.nodes[', shards.holder, '].incarnation'))) AS incarnation,
       shards.generation AS generation,
       TIMESTAMP('1970-01-01') + INTERVAL shards.since * 1000 MICROSECOND AS since,
       COALESCE(JSON_EXTRACT(assignments, CONCAT('$.daemons."', daemons.daemon, '".failures."', shards.place - 1, '".count')), 0)
           AS failures,
       JSON_UNQUOTE(JSON_EXTRACT(assignments, CONCAT('$.daemons."', daemons.daemon, '".failures."', shards.place - 1, '".error')))
           AS error
FROM (SELECT `key`,
             CASE WHEN `key` LIKE '%/cluster/assignments' THEN CONVERT(value USING utf8mb4) END AS assignments
      FROM tenure_objects
      WHERE `key` LIKE '%/cluster/assignments' AND LENGTH(`key`) - LENGTH(REPLACE(`key`, '/', '')) = 2) AS objects,
     JSON_TABLE(JSON_KEYS(assignments, '$.daemons'), '$[*]' COLUMNS (daemon VARCHAR(200) PATH '$')) AS daemons,
     JSON_TABLE(JSON_EXTRACT(assignments, CONCAT('$.daemons."', daemons.daemon, '".shards')), '$[*]' COLUMNS (
         place FOR ORDINALITY,
         generation BIGINT PATH '$[0]',
         holder INT PATH '$[1]',
         state VARCHAR(20) PATH '$[2]',
         since BIGINT PATH '$[3]')) AS shards;
