-- consign, SQLite, migration 1: the outbox, the inbox and what consign keeps beside them.
--
-- Times are integer microseconds since 1970 in UTC. A plain INSERT of event_id, aggregate_id, aggregate_version, event_type
-- and payload is the whole contract for a producer; every other column has a default. Statuses are not checked by the table:
-- a value put in by hand is reported by `consign status` and left alone. Nothing here calls a function that the sqlite3 shell
-- lacks, because other programs insert here, too.

CREATE TABLE outbox_events (
  seq               INTEGER PRIMARY KEY,                -- the store's order; breaks ties of aggregate_version
  event_id          TEXT NOT NULL UNIQUE
    CONSTRAINT csn_event_id CHECK (length(event_id) BETWEEN 1 AND 36 AND event_id NOT GLOB '*[^!-~]*'),
  aggregate_id      TEXT NOT NULL
    CONSTRAINT csn_aggregate_id CHECK (length(CAST(aggregate_id AS BLOB)) BETWEEN 1 AND 128),
  aggregate_version INTEGER NOT NULL
    CONSTRAINT csn_aggregate_version CHECK (aggregate_version >= 0),
  event_type        TEXT NOT NULL
    CONSTRAINT csn_event_type CHECK (length(event_type) BETWEEN 1 AND 80 AND length(CAST(event_type AS BLOB)) <= 320),
  schema_version    INTEGER NOT NULL DEFAULT 1
    CONSTRAINT csn_schema_version CHECK (schema_version >= 1),
  payload           ANY NOT NULL
    CONSTRAINT csn_payload_type CHECK (typeof(payload) IN ('text', 'blob'))
    CONSTRAINT csn_payload_size CHECK (length(CAST(payload AS BLOB)) <= 262144)
    CONSTRAINT csn_payload_json CHECK (json_valid(CAST(payload AS TEXT))),
  status            TEXT NOT NULL DEFAULT 'pending',    -- pending sending sent unknown waiting failed held cancelled
  attempts          INTEGER NOT NULL DEFAULT 0,         -- claims
  next_attempt_at   INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000),
  claim_token       TEXT,
  lease_until       INTEGER,
  created_at        INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000),
  sent_at           INTEGER,
  -- additive to the table above, all with defaults
  aggregate_type    TEXT NOT NULL DEFAULT ''
    CONSTRAINT csn_aggregate_type CHECK (length(aggregate_type) <= 80 AND length(CAST(aggregate_type AS BLOB)) <= 320),
  slot              INTEGER NOT NULL DEFAULT 0 CONSTRAINT csn_slot CHECK (slot = 0), -- the lane; one on SQLite
  claimed_at        INTEGER,
  published_at      INTEGER,
  sent_by           INTEGER,                            -- member number
  broker_part       INTEGER,
  broker_pos        INTEGER,
  failures          INTEGER NOT NULL DEFAULT 0,         -- faults of this message
  tries             INTEGER NOT NULL DEFAULT 0,         -- attempts since the last success: the exponent of the backoff
  waits_for         INTEGER NOT NULL DEFAULT 0,         -- 1 its key, 2 its route
  -- csn_context: a claim copies rows into a bounded memory; one that did not fit would hold up all others. Bytes, for
  -- length() of a text ends at its first NUL.
  route             TEXT CONSTRAINT csn_context CHECK (length(CAST(route AS BLOB)) <= 512),
  last_error        TEXT,
  first_failed_at   INTEGER,
  last_failed_at    INTEGER,
  expires_at        INTEGER,
  priority          INTEGER NOT NULL DEFAULT 0,
  tenant            TEXT CONSTRAINT csn_context CHECK (length(CAST(tenant AS BLOB)) <= 512),
  headers           TEXT CONSTRAINT csn_headers CHECK (headers IS NULL OR (json_valid(headers) AND length(CAST(headers AS BLOB)) <= 16384)),
  traceparent       TEXT CONSTRAINT csn_context CHECK (length(CAST(traceparent AS BLOB)) <= 512),
  correlation_id    TEXT CONSTRAINT csn_context CHECK (length(CAST(correlation_id AS BLOB)) <= 512),
  causation_id      TEXT CONSTRAINT csn_context CHECK (length(CAST(causation_id AS BLOB)) <= 512)
) STRICT;
-- The seed's ix_dispatch is (status, next_attempt_at, created_at); a partial index holds due rows only, so that a million sent
-- rows cost the claim nothing and a sent row leaves no entry behind.
CREATE INDEX ix_dispatch ON outbox_events(next_attempt_at) WHERE status = 'pending';
-- Rows that backed off, for the claim's look beyond the longest backoff (a clock step): events planned far ahead are not in it.
CREATE INDEX ix_stepped  ON outbox_events(next_attempt_at) WHERE status = 'pending' AND tries > 0;
CREATE INDEX ix_expired  ON outbox_events(lease_until) WHERE status = 'sending';
CREATE INDEX ix_unknown  ON outbox_events(next_attempt_at) WHERE status = 'unknown';
CREATE INDEX ix_waiting  ON outbox_events(aggregate_type, aggregate_id, aggregate_version, seq) WHERE status = 'waiting';
CREATE INDEX ix_waiting_route ON outbox_events(route, seq) WHERE status = 'waiting' AND waits_for = 2;
CREATE INDEX ix_failed   ON outbox_events(seq) WHERE status = 'failed';
CREATE INDEX ix_held     ON outbox_events(seq) WHERE status = 'held';
CREATE INDEX ix_strange  ON outbox_events(seq)
  WHERE status NOT IN ('pending', 'sending', 'sent', 'unknown', 'waiting', 'failed', 'held', 'cancelled');
CREATE INDEX ix_key      ON outbox_events(aggregate_type, aggregate_id, aggregate_version, seq);

CREATE TABLE consumer_inbox (
  consumer_name     TEXT NOT NULL,
  event_id          TEXT NOT NULL CONSTRAINT csn_inbox_event_id CHECK (length(CAST(event_id AS BLOB)) BETWEEN 1 AND 128),
  processed_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000),
  state             TEXT NOT NULL DEFAULT 'done',       -- processing done refused waiting conflict dead
  verdict           TEXT,                               -- done refused duplicate late early conflict poison retry unknown
  received_at       INTEGER,                            -- first delivery
  digest            TEXT,                               -- SHA-256 of the identity fields, hexadecimal
  result            TEXT,                               -- summary for duplicates, JSON
  aggregate_type    TEXT NOT NULL DEFAULT '',
  aggregate_id      TEXT NOT NULL DEFAULT '',
  entity_version    INTEGER,                            -- aggregate_version of the event
  event_type        TEXT NOT NULL DEFAULT '',
  claim_token       TEXT,
  lease_until       INTEGER,
  attempts          INTEGER NOT NULL DEFAULT 1,         -- deliveries that ran the handler
  duplicates        INTEGER NOT NULL DEFAULT 0,         -- deliveries that did not run it because the row was there
  last_duplicate_at INTEGER,
  error             TEXT,
  dedupe_key        TEXT,
  broker_part       INTEGER,
  broker_pos        INTEGER,
  PRIMARY KEY (consumer_name, event_id)
) STRICT;
CREATE INDEX ix_inbox_open ON consumer_inbox(consumer_name, state) WHERE state NOT IN ('done', 'refused');
CREATE UNIQUE INDEX ix_inbox_dedupe ON consumer_inbox(consumer_name, dedupe_key) WHERE dedupe_key IS NOT NULL;

-- consign's own work: parked deliveries now, timers and calls later. The same shape and the same statements as the outbox.
CREATE TABLE consign_work (
  seq               INTEGER PRIMARY KEY,
  kind              TEXT NOT NULL DEFAULT 'delivery',
  consumer_name     TEXT NOT NULL,
  event_id          TEXT NOT NULL,
  aggregate_type    TEXT NOT NULL,
  aggregate_id      TEXT NOT NULL,
  aggregate_version INTEGER NOT NULL,
  prev_version      INTEGER NOT NULL DEFAULT 0,
  event_type        TEXT NOT NULL,
  schema_version    INTEGER NOT NULL DEFAULT 1,
  payload           ANY NOT NULL,
  headers           TEXT,
  status            TEXT NOT NULL DEFAULT 'pending',    -- pending sending waiting; a finished row is deleted
  attempts          INTEGER NOT NULL DEFAULT 0,
  next_attempt_at   INTEGER NOT NULL,
  claim_token       TEXT,
  lease_until       INTEGER,
  created_at        INTEGER NOT NULL,                   -- first delivery
  slot              INTEGER NOT NULL DEFAULT 0,         -- partition
  claimed_at        INTEGER,
  failures          INTEGER NOT NULL DEFAULT 0,
  tries             INTEGER NOT NULL DEFAULT 0,
  waits_for         INTEGER NOT NULL DEFAULT 0,         -- 1 its key, 3 its predecessor (early)
  last_error        TEXT,
  first_failed_at   INTEGER,
  last_failed_at    INTEGER,
  expires_at        INTEGER,
  priority          INTEGER NOT NULL DEFAULT 0,
  tenant            TEXT,
  traceparent       TEXT,
  correlation_id    TEXT,
  causation_id      TEXT,
  broker_part       INTEGER,
  broker_pos        INTEGER,
  UNIQUE (kind, consumer_name, event_id)
) STRICT;
CREATE INDEX consign_ix_work_due     ON consign_work(consumer_name, next_attempt_at) WHERE status = 'pending';
-- Heads that were never tried: one that is not due was written before the clock was set back.
CREATE INDEX consign_ix_work_new     ON consign_work(consumer_name, next_attempt_at) WHERE status = 'pending' AND tries = 0;
CREATE INDEX consign_ix_work_expired ON consign_work(consumer_name, lease_until) WHERE status = 'sending';
CREATE INDEX consign_ix_work_key     ON consign_work(consumer_name, aggregate_type, aggregate_id, aggregate_version, seq);

-- A key whose events are parked at a consumer: what comes later parks, too. Made by PARK, deleted with the last parked one.
CREATE TABLE consign_keys (
  consumer_name  TEXT NOT NULL,
  aggregate_type TEXT NOT NULL,
  aggregate_id   TEXT NOT NULL,
  head_version   INTEGER NOT NULL,                      -- lowest parked aggregate_version
  parked_at      INTEGER NOT NULL,
  PRIMARY KEY (consumer_name, aggregate_type, aggregate_id)
) STRICT, WITHOUT ROWID;

-- The embedded broker: one row per subscription and message.
CREATE TABLE consign_queue (
  pos               INTEGER PRIMARY KEY AUTOINCREMENT,  -- a position is never given twice, also after retention
  subscription      TEXT NOT NULL,
  part              INTEGER NOT NULL,
  event_id          TEXT NOT NULL,
  aggregate_type    TEXT NOT NULL,
  aggregate_id      TEXT NOT NULL,
  aggregate_version INTEGER NOT NULL,
  prev_version      INTEGER NOT NULL DEFAULT 0,
  event_type        TEXT NOT NULL,
  schema_version    INTEGER NOT NULL,
  payload           ANY NOT NULL,
  headers           TEXT,
  routing_version   INTEGER NOT NULL DEFAULT 1,
  priority          INTEGER NOT NULL DEFAULT 0,
  tenant            TEXT,
  traceparent       TEXT,
  correlation_id    TEXT,
  causation_id      TEXT,
  expires_at        INTEGER,
  created_at        INTEGER NOT NULL,                   -- of the event
  published_at      INTEGER NOT NULL,
  deliveries        INTEGER NOT NULL DEFAULT 0,
  token             TEXT,
  epoch             INTEGER NOT NULL DEFAULT 0,         -- of the lane when it was delivered
  lease_until       INTEGER,
  delivered_at      INTEGER,
  acked_at          INTEGER
) STRICT;
CREATE INDEX consign_ix_queue_live  ON consign_queue(subscription, part, pos) WHERE acked_at IS NULL;
CREATE INDEX consign_ix_queue_event ON consign_queue(event_id);

CREATE TABLE consign_bindings (
  subscription    TEXT PRIMARY KEY,
  match           TEXT NOT NULL,
  partitions      INTEGER NOT NULL,
  routing_version INTEGER NOT NULL DEFAULT 1,
  declared_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE consign_lanes (
  name        TEXT NOT NULL,                            -- outbox, sub/<consumer>
  lane        INTEGER NOT NULL,
  owner       TEXT,                                     -- boot id; NULL: free
  epoch       INTEGER NOT NULL DEFAULT 0,               -- only grows
  lease_until INTEGER,
  taken_at    INTEGER,
  PRIMARY KEY (name, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE consign_members (
  member       INTEGER PRIMARY KEY AUTOINCREMENT,
  boot         TEXT NOT NULL UNIQUE,                    -- a new one for each start of a process
  label        TEXT NOT NULL,
  started_at   INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  lease_until  INTEGER NOT NULL,
  ended_at     INTEGER,                                 -- set by a clean stop
  counters     TEXT NOT NULL DEFAULT '{}'
) STRICT;

-- What did not go right the first time, and every change by an operator or a recovery: the evidence between the columns.
CREATE TABLE consign_attempts (
  seq        INTEGER PRIMARY KEY,
  event_id   TEXT NOT NULL,
  side       TEXT NOT NULL,                             -- outbox, inbox
  consumer_name TEXT,
  at         INTEGER NOT NULL,
  kind       TEXT NOT NULL,                             -- a trace fact: nacked returned unanswered released waiting failed …
  attempt    INTEGER,                                   -- attempts at that time
  member     INTEGER,
  planned_at INTEGER,
  started_at INTEGER,
  code       INTEGER,
  error      TEXT
) STRICT;
CREATE INDEX consign_ix_attempts ON consign_attempts(event_id, seq);

CREATE TABLE consign_dead_letters (
  id                INTEGER PRIMARY KEY AUTOINCREMENT,
  consumer_name     TEXT NOT NULL,
  event_id          TEXT NOT NULL,
  class             TEXT NOT NULL,                      -- poison conflict budget
  code              INTEGER,
  error             TEXT,
  aggregate_type    TEXT NOT NULL,
  aggregate_id      TEXT NOT NULL,
  aggregate_version INTEGER NOT NULL,
  event_type        TEXT NOT NULL,
  schema_version    INTEGER NOT NULL,
  payload           ANY NOT NULL,
  headers           TEXT,
  tenant            TEXT,
  traceparent       TEXT,
  correlation_id    TEXT,
  causation_id      TEXT,
  attempts          INTEGER NOT NULL,
  failures          INTEGER NOT NULL,
  first_failed_at   INTEGER NOT NULL,
  last_failed_at    INTEGER NOT NULL,
  dead_at           INTEGER NOT NULL,
  broker_part       INTEGER,
  broker_pos        INTEGER,
  state             TEXT NOT NULL DEFAULT 'open',
  UNIQUE (consumer_name, event_id, class)
) STRICT;
CREATE INDEX consign_ix_dead_event ON consign_dead_letters(event_id);

-- The next aggregate_version for aggregates without a row of their own, drawn under this row's lock.
CREATE TABLE consign_versions (
  aggregate_type TEXT NOT NULL,
  aggregate_id   TEXT NOT NULL,
  version        INTEGER NOT NULL,
  PRIMARY KEY (aggregate_type, aggregate_id)
) STRICT, WITHOUT ROWID;

-- Every act of an operator, in a chain: hash covers the previous hash and all columns of the row.
CREATE TABLE consign_audit (
  seq       INTEGER PRIMARY KEY AUTOINCREMENT,
  prev_hash TEXT NOT NULL,
  at        INTEGER NOT NULL,
  actor     TEXT NOT NULL,
  action    TEXT NOT NULL,
  target    TEXT NOT NULL,
  reason    TEXT,
  before    TEXT,
  after     TEXT,
  hash      TEXT NOT NULL
) STRICT;
CREATE INDEX consign_ix_audit_target ON consign_audit(target, seq);

CREATE TABLE consign_meta (
  key   TEXT PRIMARY KEY,                               -- schema, min_reader, min_writer, store, lab
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO consign_meta(key, value) VALUES ('schema', '1'), ('min_reader', '1'), ('min_writer', '1');
INSERT INTO consign_meta(key, value) VALUES ('store', lower(hex(randomblob(16))));
