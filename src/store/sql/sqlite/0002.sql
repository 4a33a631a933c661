-- consign, SQLite, migration 2: requests that a client may repeat, and what handlers of applications had in hand when their
-- process died.

CREATE TABLE consign_requests (
  scope       TEXT NOT NULL,
  request_key TEXT NOT NULL,
  digest      TEXT NOT NULL,                            -- SHA-256 of the parameters, hexadecimal
  answer      TEXT,                                     -- NULL: the transaction did not give one
  created_at  INTEGER NOT NULL,
  PRIMARY KEY (scope, request_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX consign_ix_requests_age ON consign_requests(created_at);

-- Written before the functions of an application run, deleted in the commit of what they did: a row that is left was in the
-- hand of a process that died.
CREATE TABLE consign_in_hand (
  consumer_name TEXT NOT NULL,
  holder        TEXT NOT NULL,                          -- of one connection
  since         INTEGER NOT NULL,
  events        TEXT NOT NULL,                          -- JSON array of event ids
  PRIMARY KEY (consumer_name, holder)
) STRICT, WITHOUT ROWID;

-- Events that were in such a hand: each is run alone until it is finished; at the third death it is set aside.
CREATE TABLE consign_suspects (
  consumer_name TEXT NOT NULL,
  event_id      TEXT NOT NULL,
  deaths        INTEGER NOT NULL,
  last_at       INTEGER NOT NULL,
  PRIMARY KEY (consumer_name, event_id)
) STRICT, WITHOUT ROWID;

-- A key as one consumer sees it, where its event types have policies: the last version that was applied, and its state.
CREATE TABLE consign_entities (
  consumer_name  TEXT NOT NULL,
  aggregate_type TEXT NOT NULL,
  aggregate_id   TEXT NOT NULL,
  version        INTEGER NOT NULL,
  state          TEXT NOT NULL DEFAULT '',              -- of the machine, for policy command
  event_id       TEXT NOT NULL,                         -- that brought it there
  gaps           INTEGER NOT NULL DEFAULT 0,            -- open ones
  updated_at     INTEGER NOT NULL,
  PRIMARY KEY (consumer_name, aggregate_type, aggregate_id)
) STRICT, WITHOUT ROWID;

-- Versions that were passed over: of those between the two that were seen, missing_version is known to exist. The record stays
-- when the gap is closed.
CREATE TABLE consign_gaps (
  seq             INTEGER PRIMARY KEY,
  consumer_name   TEXT NOT NULL,
  aggregate_type  TEXT NOT NULL,
  aggregate_id    TEXT NOT NULL,
  after_version   INTEGER NOT NULL,
  before_version  INTEGER NOT NULL,
  missing_version INTEGER NOT NULL,
  event_id        TEXT NOT NULL,                        -- that showed it
  found_at        INTEGER NOT NULL,
  deadline_at     INTEGER NOT NULL,                     -- overdue from then on
  closed_at       INTEGER,
  closed_by       TEXT                                  -- event id
) STRICT;
CREATE INDEX consign_ix_gaps_open ON consign_gaps(consumer_name, aggregate_type, aggregate_id, before_version)
  WHERE closed_at IS NULL;
CREATE INDEX consign_ix_gaps_late ON consign_gaps(deadline_at) WHERE closed_at IS NULL;

UPDATE consign_meta SET value = '2' WHERE key = 'schema';
