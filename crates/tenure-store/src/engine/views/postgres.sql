-- What is stored, for people: who leads, which nodes there are, which daemon runs where. Only to look at.
-- Tenure makes these views in the schema of its table if it may; else run this file there by hand.

CREATE OR REPLACE VIEW tenure_nodes AS
SELECT split_part(key, '/', 1) AS namespace,
       split_part(key, '/', 3) AS node,
       split_part(key, '/', 4) AS incarnation,
       CASE WHEN session #> '{state,evicted}' IS NOT NULL THEN 'evicted'
            WHEN session ->> 'state' = 'alive' AND expires_at < clock_timestamp() THEN 'expired'
            ELSE session ->> 'state' END AS state,
       session ->> 'address' AS address,
       session -> 'labels' AS labels,
       session #>> '{cluster,version}' AS version,
       (session ->> 'ttl_ms')::bigint AS ttl_ms,
       to_timestamp((session ->> 'joined_at')::bigint / 1000.0) AS joined_at,
       modified_at AS heard_at,
       CASE WHEN session ->> 'state' = 'alive' THEN expires_at END AS expires_at
FROM (SELECT key, modified_at, session,
             modified_at + (session ->> 'ttl_ms')::bigint * interval '1 millisecond' AS expires_at
      FROM (SELECT key, modified_at, CASE WHEN key LIKE '%/nodes/%/%' THEN convert_from(value, 'UTF8')::jsonb END AS session
            FROM tenure_objects
            WHERE key LIKE '%/nodes/%/%' AND length(key) - length(replace(key, '/', '')) = 3) AS rows) AS objects;

CREATE OR REPLACE VIEW tenure_leaders AS
SELECT split_part(key, '/', 1) AS namespace,
       split_part(key, '/', 3) AS election,
       (lease ->> 'term')::bigint AS term,
       CASE WHEN lease #> '{state,held}' IS NOT NULL AND nodes.state IS DISTINCT FROM 'alive' THEN 'expired'
            WHEN lease #> '{state,held}' IS NOT NULL THEN 'held'
            WHEN lease #> '{state,reserved}' IS NOT NULL THEN 'reserved'
            ELSE lease ->> 'state' END AS state,
       lease #>> '{state,held,holder,node}' AS leader,
       lease #>> '{state,held,holder,incarnation}' AS incarnation,
       nodes.state AS session,
       nodes.address AS address,
       to_timestamp((lease #>> '{state,held,since}')::bigint / 1000.0) AS since,
       nodes.expires_at AS expires_at,
       lease #>> '{state,reserved,candidate,node}' AS reserved_for
FROM (SELECT key, CASE WHEN key LIKE '%/elections/%' THEN convert_from(value, 'UTF8')::jsonb END AS lease
      FROM tenure_objects
      WHERE key LIKE '%/elections/%' AND length(key) - length(replace(key, '/', '')) = 2) AS objects
LEFT JOIN tenure_nodes AS nodes
       ON nodes.namespace = split_part(key, '/', 1)
      AND nodes.incarnation = lease #>> '{state,held,holder,incarnation}';

CREATE OR REPLACE VIEW tenure_daemons AS
SELECT split_part(key, '/', 1) AS namespace,
       daemon,
       (place - 1)::integer AS shard,
       CASE WHEN (definition #>> ARRAY['failures', (place - 1)::text, 'count'])::integer > 1
                 AND shard ->> 2 IS DISTINCT FROM 'revoking' THEN 'failing'
            WHEN shard ->> 2 IS NULL THEN 'unassigned'
            ELSE shard ->> 2 END AS state,
       assignments #>> ARRAY['nodes', shard ->> 1, 'node'] AS node,
       assignments #>> ARRAY['nodes', shard ->> 1, 'incarnation'] AS incarnation,
       (shard ->> 0)::bigint AS generation,
       to_timestamp((shard ->> 3)::bigint / 1000.0) AS since,
       coalesce((definition #>> ARRAY['failures', (place - 1)::text, 'count'])::integer, 0) AS failures,
       definition #>> ARRAY['failures', (place - 1)::text, 'error'] AS error
FROM (SELECT key, CASE WHEN key LIKE '%/cluster/assignments' THEN convert_from(value, 'UTF8')::jsonb END AS assignments
      FROM tenure_objects
      WHERE key LIKE '%/cluster/assignments' AND length(key) - length(replace(key, '/', '')) = 2) AS objects
CROSS JOIN LATERAL jsonb_each(assignments -> 'daemons') AS daemons (daemon, definition)
CROSS JOIN LATERAL jsonb_array_elements(definition -> 'shards') WITH ORDINALITY AS shards (shard, place);
