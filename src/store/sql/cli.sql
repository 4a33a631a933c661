-- The statements of the operator's commands. What they promise: a read touches an index or a bounded window, never a whole
-- table that grows with traffic; a change is fenced by the status that was read in the same transaction. Statuses stand as
-- literals, because a partial index is used only then. Column names decide the form in which a value is shown: *_at and
-- *_until are instants.

-- name: event.row
SELECT seq, event_id, event_type, aggregate_type, aggregate_id, aggregate_version, schema_version, status, attempts, failures,
       tries, waits_for, route, next_attempt_at, created_at, claimed_at, published_at, sent_at, lease_until, sent_by,
       (SELECT label FROM consign_members WHERE member = sent_by) AS sent_by_label, broker_part, broker_pos, last_error,
       first_failed_at, last_failed_at, expires_at, priority, tenant, traceparent, correlation_id, causation_id,
       length(CAST(payload AS BLOB)) AS payload_size,
       CASE WHEN json_valid(CAST(payload AS TEXT)) AND json_type(CAST(payload AS TEXT)) = 'object'
            THEN (SELECT json_group_array(key) FROM (SELECT key FROM json_each(CAST(payload AS TEXT)) LIMIT 100)) END AS payload_keys
FROM outbox_events WHERE event_id = ?1;

-- name: event.line
SELECT seq, event_id, event_type, aggregate_type, aggregate_id, aggregate_version, status, attempts, failures, waits_for,
       next_attempt_at, created_at, sent_at, last_error
FROM outbox_events WHERE seq = ?1;

-- name: event.payload
SELECT payload FROM outbox_events WHERE event_id = ?1;

-- name: event.consumers
WITH RECURSIVE c(name) AS (
  SELECT min(consumer_name) FROM consumer_inbox
  UNION ALL
  SELECT (SELECT min(consumer_name) FROM consumer_inbox WHERE consumer_name > name) FROM c WHERE name IS NOT NULL LIMIT 1000)
SELECT i.consumer_name, i.state, i.verdict, i.received_at, i.processed_at, i.attempts, i.duplicates, i.error
FROM c JOIN consumer_inbox i ON i.consumer_name = c.name AND i.event_id = ?1;

-- name: find.key
WITH RECURSIVE t(name) AS (
  SELECT min(aggregate_type) FROM outbox_events
  UNION ALL
  SELECT (SELECT min(aggregate_type) FROM outbox_events WHERE aggregate_type > name) FROM t WHERE name IS NOT NULL LIMIT 1000)
SELECT e.seq FROM t JOIN outbox_events e ON e.aggregate_type = t.name AND e.aggregate_id = ?1
ORDER BY e.aggregate_type, e.aggregate_version, e.seq LIMIT ?2;

-- name: find.id
SELECT seq FROM outbox_events WHERE event_id = ?1;

-- name: find.trace
SELECT seq FROM (SELECT seq, traceparent, correlation_id, causation_id FROM outbox_events ORDER BY seq DESC LIMIT ?3)
WHERE correlation_id = ?1 OR causation_id = ?1 OR traceparent = ?1 OR substr(traceparent, 4, 32) = ?1
ORDER BY seq LIMIT ?2;

-- name: window.bounds
SELECT (SELECT seq FROM outbox_events ORDER BY seq DESC LIMIT 1) AS last_seq,
       (SELECT created_at FROM outbox_events ORDER BY seq DESC LIMIT 1) AS last_at,
       (SELECT created_at FROM (SELECT seq, created_at FROM outbox_events ORDER BY seq DESC LIMIT ?1) ORDER BY seq LIMIT 1) AS first_at,
       (SELECT count(*) FROM (SELECT 1 FROM outbox_events LIMIT ?1)) AS rows_looked_at;

-- name: list.newest
SELECT seq FROM outbox_events ORDER BY seq DESC LIMIT ?1;

-- name: list.pending
SELECT seq FROM outbox_events WHERE status = 'pending' ORDER BY next_attempt_at, seq LIMIT ?1;

-- name: list.sending
SELECT seq FROM outbox_events WHERE status = 'sending' ORDER BY lease_until LIMIT ?1;

-- name: list.unknown
SELECT seq FROM outbox_events WHERE status = 'unknown' ORDER BY next_attempt_at, seq LIMIT ?1;

-- name: list.waiting
SELECT seq FROM outbox_events WHERE status = 'waiting' ORDER BY aggregate_type, aggregate_id, aggregate_version, seq LIMIT ?1;

-- name: list.failed
SELECT seq FROM outbox_events WHERE status = 'failed' ORDER BY seq LIMIT ?1;

-- name: list.held
SELECT seq FROM outbox_events WHERE status = 'held' ORDER BY seq LIMIT ?1;

-- name: list.strange
SELECT seq FROM outbox_events
WHERE status NOT IN ('pending', 'sending', 'sent', 'unknown', 'waiting', 'failed', 'held', 'cancelled') ORDER BY seq LIMIT ?1;

-- name: list.sent
SELECT seq FROM (SELECT seq, status FROM outbox_events ORDER BY seq DESC LIMIT ?2) WHERE status = 'sent' ORDER BY seq DESC LIMIT ?1;

-- name: list.cancelled
SELECT seq FROM (SELECT seq, status FROM outbox_events ORDER BY seq DESC LIMIT ?2) WHERE status = 'cancelled'
ORDER BY seq DESC LIMIT ?1;

-- name: trace.attempts
SELECT a.side, a.consumer_name, a.at AS at_at, a.kind, a.attempt, a.member,
       (SELECT label FROM consign_members m WHERE m.member = a.member) AS member_label, a.planned_at, a.started_at, a.code, a.error
FROM consign_attempts a WHERE a.event_id = ?1 ORDER BY a.seq LIMIT 10000;

-- name: trace.inbox
WITH RECURSIVE c(name) AS (
  SELECT min(consumer_name) FROM consumer_inbox
  UNION ALL
  SELECT (SELECT min(consumer_name) FROM consumer_inbox WHERE consumer_name > name) FROM c WHERE name IS NOT NULL LIMIT 1000)
SELECT i.consumer_name, i.state, i.verdict, i.received_at, i.processed_at, i.result, i.event_type, i.entity_version, i.attempts,
       i.duplicates, i.last_duplicate_at, i.error, i.broker_part, i.broker_pos, i.lease_until,
       w.status AS work_status, w.next_attempt_at, w.waits_for, w.failures, w.last_error AS work_error, w.created_at AS parked_at
FROM c JOIN consumer_inbox i ON i.consumer_name = c.name AND i.event_id = ?1
LEFT JOIN consign_work w ON w.kind = 'delivery' AND w.consumer_name = i.consumer_name AND w.event_id = i.event_id;

-- name: trace.dead
SELECT id, consumer_name, class, code, error, event_type, attempts, failures, dead_at, state
FROM consign_dead_letters WHERE event_id = ?1 ORDER BY id LIMIT 1000;

-- name: trace.audit
SELECT at AS at_at, actor, action, reason, before, after FROM consign_audit WHERE target = ?1 ORDER BY seq LIMIT 1000;

-- name: trace.queue
SELECT pos, subscription, part, event_type, published_at, deliveries, delivered_at, lease_until, acked_at
FROM consign_queue WHERE event_id = ?1 ORDER BY pos LIMIT 1000;

-- name: trace.results
SELECT event_id, event_type, status, created_at FROM (
  SELECT seq, event_id, event_type, status, created_at, causation_id FROM outbox_events ORDER BY seq DESC LIMIT ?2)
WHERE causation_id = ?1 ORDER BY seq LIMIT 200;

-- name: trace.result
SELECT event_id, event_type, status, created_at FROM outbox_events WHERE event_id = ?1 AND causation_id = ?2;

-- Whom a waiting row waits for: what stands before the first waiting row of its key.
-- name: trace.head
WITH RECURSIVE back(v, s, event_id, status) AS (
  SELECT * FROM (
    SELECT aggregate_version, seq, event_id, status FROM outbox_events
    WHERE status = 'waiting' AND aggregate_type = ?2 AND aggregate_id = ?3 ORDER BY aggregate_version, seq LIMIT 1)
  UNION ALL
  SELECT p.aggregate_version, p.seq, p.event_id, p.status FROM back
  JOIN outbox_events p ON p.seq = (
    SELECT q.seq FROM outbox_events q
    WHERE q.aggregate_type = ?2 AND q.aggregate_id = ?3 AND (q.aggregate_version, q.seq) < (back.v, back.s)
    ORDER BY q.aggregate_version DESC, q.seq DESC LIMIT 1)
  WHERE back.status IN ('waiting', 'cancelled') LIMIT 20000)
SELECT (SELECT status FROM outbox_events WHERE event_id = ?1) AS own_status, h.event_id, h.status
FROM (SELECT 1) LEFT JOIN
  (SELECT event_id, status FROM back WHERE status NOT IN ('waiting', 'cancelled', 'sent') ORDER BY v, s LIMIT 1) h;

-- name: change.row
SELECT seq, event_id, event_type, aggregate_type, aggregate_id, aggregate_version, status, attempts, failures, tries, waits_for,
       next_attempt_at, (SELECT action FROM consign_audit WHERE target = ?1 ORDER BY seq DESC LIMIT 1) AS last_action
FROM outbox_events WHERE event_id = ?1;

-- name: change.retry
UPDATE outbox_events SET status = 'pending', tries = 0, failures = 0, first_failed_at = NULL, next_attempt_at = ?3, waits_for = 0
WHERE seq = ?1 AND status = ?2;

-- name: change.hold
UPDATE outbox_events SET status = 'held', waits_for = 0 WHERE seq = ?1 AND status = ?2 AND ?3 IS NOT NULL;

-- name: change.release
UPDATE outbox_events SET status = 'pending', next_attempt_at = min(next_attempt_at, ?3), waits_for = 0
WHERE seq = ?1 AND status = ?2;

-- name: change.cancel
UPDATE outbox_events SET status = 'cancelled', waits_for = 0 WHERE seq = ?1 AND status = ?2 AND ?3 IS NOT NULL;

-- What stands before a row in its key: the nearest one that was not cancelled. Not ended: nothing behind may go.
-- name: change.before
SELECT status FROM outbox_events
WHERE aggregate_type = ?1 AND aggregate_id = ?2 AND (aggregate_version, seq) < (?3, ?4) AND status <> 'cancelled'
ORDER BY aggregate_version DESC, seq DESC LIMIT 1;

-- name: change.followers
SELECT count(*) FROM (
  SELECT 1 FROM outbox_events
  WHERE status = 'waiting' AND waits_for = 1 AND aggregate_type = ?1 AND aggregate_id = ?2 AND (aggregate_version, seq) > (?3, ?4)
  LIMIT ?5);

-- name: change.follow
UPDATE outbox_events SET status = 'pending', waits_for = 0 WHERE seq IN (
  SELECT seq FROM outbox_events
  WHERE status = 'waiting' AND waits_for = 1 AND aggregate_type = ?1 AND aggregate_id = ?2 AND (aggregate_version, seq) > (?3, ?4)
  ORDER BY aggregate_version, seq LIMIT ?5);

-- name: dead.list
SELECT id, consumer_name, event_id, class, code, error, aggregate_type, aggregate_id, aggregate_version, event_type, attempts,
       failures, first_failed_at, last_failed_at, dead_at, state
FROM (SELECT * FROM consign_dead_letters ORDER BY id DESC LIMIT ?5)
WHERE state = ?1 AND (?2 IS NULL OR consumer_name = ?2) AND (?3 IS NULL OR class = ?3) ORDER BY id DESC LIMIT ?4;

-- name: dead.groups
SELECT consumer_name, class, code, count(*) AS letters, min(dead_at) AS oldest_at, max(dead_at) AS newest_at
FROM (SELECT * FROM consign_dead_letters ORDER BY id DESC LIMIT ?4)
WHERE state = ?1 AND (?2 IS NULL OR consumer_name = ?2) AND (?3 IS NULL OR class = ?3)
GROUP BY consumer_name, class, code ORDER BY letters DESC, consumer_name, class, code LIMIT 200;

-- name: dead.window
SELECT count(*) AS rows_looked_at, min(dead_at) AS first_at, max(dead_at) AS last_at,
       (SELECT count(*) FROM (SELECT 1 FROM consign_dead_letters LIMIT ?1 + 1)) > ?1 AS cut
FROM (SELECT dead_at FROM consign_dead_letters ORDER BY id DESC LIMIT ?1);

-- name: dead.by_id
SELECT id, consumer_name, event_id, class, code, error, aggregate_type, aggregate_id, aggregate_version, event_type,
       schema_version, tenant, traceparent, correlation_id, causation_id, attempts, failures, first_failed_at, last_failed_at,
       dead_at, broker_part, broker_pos, state, length(CAST(payload AS BLOB)) AS payload_size,
       CASE WHEN json_valid(CAST(payload AS TEXT)) AND json_type(CAST(payload AS TEXT)) = 'object'
            THEN (SELECT json_group_array(key) FROM (SELECT key FROM json_each(CAST(payload AS TEXT)) LIMIT 100)) END AS payload_keys
FROM consign_dead_letters WHERE id = ?1;

-- name: dead.ids_of_event
SELECT id FROM consign_dead_letters WHERE event_id = ?1 ORDER BY id LIMIT 100;

-- name: dead.payload
SELECT payload FROM consign_dead_letters WHERE id = ?1;

-- name: status.meta
SELECT (SELECT value FROM consign_meta WHERE key = 'schema') AS schema_text,
       (SELECT count(*) FROM consign_members WHERE ended_at IS NULL AND lease_until > ?1) AS members_alive,
       (SELECT count(*) FROM consign_lanes WHERE name = 'outbox' AND owner IS NOT NULL AND lease_until > ?1) AS outbox_lanes_held,
       (SELECT count(*) FROM consign_lanes WHERE name = 'outbox') AS outbox_lanes;

-- name: status.pending
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'pending' LIMIT ?1);

-- name: status.due
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'pending' AND next_attempt_at <= ?2 LIMIT ?1);

-- name: status.sending
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'sending' LIMIT ?1);

-- name: status.unknown
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'unknown' LIMIT ?1);

-- name: status.waiting
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'waiting' LIMIT ?1);

-- name: status.failed
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'failed' LIMIT ?1);

-- name: status.held
SELECT count(*) FROM (SELECT 1 FROM outbox_events WHERE status = 'held' LIMIT ?1);

-- name: status.strange
SELECT count(*) FROM (SELECT 1 FROM outbox_events
  WHERE status NOT IN ('pending', 'sending', 'sent', 'unknown', 'waiting', 'failed', 'held', 'cancelled') LIMIT ?1);

-- name: status.oldest_due
SELECT next_attempt_at FROM outbox_events WHERE status = 'pending' AND next_attempt_at <= ?1 ORDER BY next_attempt_at LIMIT 1;

-- name: status.inbox
SELECT state, count(*) AS rows_of_state FROM (
  SELECT state FROM consumer_inbox WHERE consumer_name = ?1 AND state NOT IN ('done', 'refused') LIMIT ?2)
GROUP BY state;

-- name: status.dead
SELECT count(*) FROM (SELECT 1 FROM consign_dead_letters WHERE consumer_name = ?1 AND state = 'open' LIMIT ?2);

-- name: status.unacked
SELECT count(*) FROM (SELECT 1 FROM consign_queue WHERE subscription = ?1 AND acked_at IS NULL LIMIT ?2);

-- name: status.oldest_unacked
SELECT published_at FROM consign_queue WHERE subscription = ?1 AND acked_at IS NULL ORDER BY part, pos LIMIT 1;

-- name: status.parked_keys
SELECT count(*) FROM (SELECT 1 FROM consign_keys WHERE consumer_name = ?1 LIMIT ?2);

-- name: status.gaps
SELECT count(*) FROM (SELECT 1 FROM consign_gaps WHERE consumer_name = ?1 AND closed_at IS NULL LIMIT ?2);

-- name: status.overdue_gaps
SELECT count(*) FROM (SELECT 1 FROM consign_gaps WHERE consumer_name = ?1 AND closed_at IS NULL
  AND deadline_at < CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000 LIMIT ?2);

-- name: status.bindings
SELECT subscription, partitions FROM consign_bindings ORDER BY subscription LIMIT 1000;

-- name: status.parked
SELECT count(*) FROM (SELECT 1 FROM consign_work WHERE consumer_name = ?1 LIMIT ?2);

-- name: status.parked_for_nobody
SELECT count(*) FROM (
  SELECT 1 FROM (SELECT aggregate_type AS kt, aggregate_id AS ki FROM consign_work
                 WHERE consumer_name = ?1 AND status = 'waiting' LIMIT 100000)
  WHERE NOT EXISTS (SELECT 1 FROM consign_work WHERE consumer_name = ?1 AND aggregate_type = kt AND aggregate_id = ki
                    AND status IN ('pending', 'sending')) LIMIT ?2);

-- name: status.sub_lanes
SELECT count(*) AS lanes, coalesce(sum(owner IS NOT NULL AND lease_until > ?2), 0) AS held FROM consign_lanes WHERE name = ?1;

-- name: status.blocked_next
SELECT aggregate_type, aggregate_id, aggregate_version, seq, event_id FROM outbox_events
WHERE status = 'waiting' AND waits_for = 1 AND (aggregate_type, aggregate_id) > (?1, ?2)
ORDER BY aggregate_type, aggregate_id, aggregate_version, seq LIMIT 1;

-- name: status.blocked_count
SELECT count(*) FROM (SELECT 1 FROM outbox_events
  WHERE status = 'waiting' AND waits_for = 1 AND aggregate_type = ?1 AND aggregate_id = ?2 LIMIT ?3);

-- name: status.counters
SELECT j.key AS name, sum(CAST(j.value AS INTEGER)) AS total
FROM (SELECT counters FROM consign_members WHERE json_valid(counters) ORDER BY member DESC LIMIT 100000) m, json_each(m.counters) j
GROUP BY j.key ORDER BY j.key LIMIT 500;

-- name: status.strange_values
SELECT status, count(*) AS rows_of_status, min(event_id) AS event_id FROM (
  SELECT status, event_id FROM outbox_events
  WHERE status NOT IN ('pending', 'sending', 'sent', 'unknown', 'waiting', 'failed', 'held', 'cancelled') LIMIT 10001)
GROUP BY status ORDER BY rows_of_status DESC LIMIT 20;

-- name: lanes.list
SELECT l.name, l.lane, l.owner, l.epoch, l.taken_at, l.lease_until, m.label, m.member, m.heartbeat_at
FROM consign_lanes l LEFT JOIN consign_members m ON m.boot = l.owner ORDER BY l.name, l.lane LIMIT 10000;

-- name: lanes.members
SELECT member, boot, label, started_at, heartbeat_at, lease_until, ended_at,
       (ended_at IS NULL AND lease_until > ?1) AS alive
FROM consign_members ORDER BY member DESC LIMIT 100;

-- name: top.members
SELECT boot, heartbeat_at, counters FROM (
  SELECT boot, heartbeat_at, lease_until, ended_at, counters FROM consign_members ORDER BY member DESC LIMIT 100)
WHERE ended_at IS NULL AND lease_until > ?1 LIMIT 64;

-- name: reconcile.page
SELECT seq, event_id, event_type, status, sent_at FROM outbox_events WHERE seq > ?1 ORDER BY seq LIMIT ?2;

-- name: reconcile.live
SELECT 1 FROM consign_queue WHERE event_id = ?1 AND subscription = ?2 AND acked_at IS NULL LIMIT 1;

-- name: reconcile.inbox
SELECT state FROM consumer_inbox WHERE consumer_name = ?1 AND event_id = ?2;

-- name: reconcile.copy
SELECT 1 FROM consign_queue WHERE subscription = ?1 AND event_id = ?2 LIMIT 1;

-- name: reconcile.bound
SELECT declared_at FROM consign_bindings WHERE subscription = ?1;

-- name: reconcile.resent
INSERT INTO consign_attempts(event_id, side, at, kind, attempt, member, planned_at, started_at, error)
SELECT event_id, 'outbox', ?3, 'resent', attempts, sent_by, published_at, sent_at,
       ?2 || coalesce('; was confirmed at ' || broker_part || '/' || broker_pos, '')
FROM outbox_events WHERE seq = ?1 AND status = 'sent';

-- name: reconcile.resend
UPDATE outbox_events SET status = 'pending', tries = 0, next_attempt_at = ?2, waits_for = 0, claim_token = NULL, lease_until = NULL,
  sent_at = NULL, published_at = NULL, sent_by = NULL, broker_part = NULL, broker_pos = NULL
WHERE seq = ?1 AND status = 'sent';
