-- What is stored, for people: who leads, which nodes there are, which daemon runs where. Only to look at. Times are
-- in UTC. In words that SQLite 3.38 knows: people look with what their system has.

CREATE VIEW IF NOT EXISTS tenure_nodes AS
SELECT substr(key, 1, instr(key, '/') - 1) AS namespace,
       json_extract(session, '$.node') AS node,
       json_extract(session, '$.incarnation') AS incarnation,
       CASE WHEN json_type(session, '$.state.evicted') IS NOT NULL THEN 'evicted'
            WHEN json_extract(session, '$.state') = 'alive'
                 AND modified_at + json_extract(session, '$.ttl_ms') < (julianday('now') - 2440587.5) * 86400000 THEN 'expired'
            ELSE json_extract(session, '$.state') END AS state,
       json_extract(session, '$.address') AS address,
       json_extract(session, '$.labels') AS labels,
       json_extract(session, '$.cluster.version') AS version,
       json_extract(session, '$.ttl_ms') AS ttl_ms,
       strftime('%Y-%m-%d %H:%M:%f', json_extract(session, '$.joined_at') / 1000.0, 'unixepoch') AS joined_at,
       strftime('%Y-%m-%d %H:%M:%f', modified_at / 1000.0, 'unixepoch') AS heard_at,
       CASE WHEN json_extract(session, '$.state') = 'alive'
            THEN strftime('%Y-%m-%d %H:%M:%f', (modified_at + json_extract(session, '$.ttl_ms')) / 1000.0, 'unixepoch') END
           AS expires_at
FROM (SELECT key, modified_at, CASE WHEN key LIKE '%/nodes/%/%' THEN CAST(value AS TEXT) END AS session
      FROM tenure_objects
      WHERE key LIKE '%/nodes/%/%' AND length(key) - length(replace(key, '/', '')) = 3);

CREATE VIEW IF NOT EXISTS tenure_leaders AS
SELECT substr(key, 1, instr(key, '/') - 1) AS namespace,
       substr(key, instr(key, '/elections/') + length('/elections/')) AS election,
       json_extract(lease, '$.term') AS term,
       CASE WHEN json_type(lease, '$.state.held') IS NOT NULL AND coalesce(nodes.state, '') <> 'alive' THEN 'expired'
            WHEN json_type(lease, '$.state.held') IS NOT NULL THEN 'held'
            WHEN json_type(lease, '$.state.reserved') IS NOT NULL THEN 'reserved'
            ELSE json_extract(lease, '$.state') END AS state,
       json_extract(lease, '$.state.held.holder.node') AS leader,
       json_extract(lease, '$.state.held.holder.incarnation') AS incarnation,
       nodes.state AS session,
       nodes.address AS address,
       strftime('%Y-%m-%d %H:%M:%f', json_extract(lease, '$.state.held.since') / 1000.0, 'unixepoch') AS since,
       nodes.expires_at AS expires_at,
       json_extract(lease, '$.state.reserved.candidate.node') AS reserved_for
FROM (SELECT key, CASE WHEN key LIKE '%/elections/%' THEN CAST(value AS TEXT) END AS lease
      FROM tenure_objects
      WHERE key LIKE '%/elections/%' AND length(key) - length(replace(key, '/', '')) = 2)
LEFT JOIN tenure_nodes AS nodes
       ON nodes.namespace = substr(key, 1, instr(key, '/') - 1)
      AND nodes.incarnation = json_extract(lease, '$.state.held.holder.incarnation');

CREATE VIEW IF NOT EXISTS tenure_daemons AS
SELECT substr(objects.key, 1, instr(objects.key, '/') - 1) AS namespace,
       daemons.key AS daemon,
       shards.key AS shard,
       CASE WHEN json_extract(daemons.value, '$.failures."' || shards.key || '".count') > 1
                 AND coalesce(json_extract(shards.value, '$[2]'), '') <> 'revoking' THEN 'failing'
            ELSE coalesce(json_extract(shards.value, '$[2]'), 'unassigned') END AS state,
       json_extract(assignments, '$.nodes[' || json_extract(shards.value, '$[1]') || '].node') AS node,
       json_extract(assignments, '$.nodes[' || json_extract(shards.value, '$[1]') || '].incarnation') AS incarnation,
       json_extract(shards.value, '$[0]') AS generation,
       strftime('%Y-%m-%d %H:%M:%f', json_extract(shards.value, '$[3]') / 1000.0, 'unixepoch') AS since,
       coalesce(json_extract(daemons.value, '$.failures."' || shards.key || '".count'), 0) AS failures,
       json_extract(daemons.value, '$.failures."' || shards.key || '".error') AS error
FROM (SELECT key, CASE WHEN key LIKE '%/cluster/assignments' THEN CAST(value AS TEXT) END AS assignments
      FROM tenure_objects
      WHERE key LIKE '%/cluster/assignments' AND length(key) - length(replace(key, '/', '')) = 2) AS objects,
     json_each(assignments, '$.daemons') AS daemons,
     json_each(daemons.value, '$.shards') AS shards;
