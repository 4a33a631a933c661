/* sqlite_queue.c: the embedded broker: DECLARE, PUBLISH, RECEIVE, ACK over consign_queue. See
 * docs/protocol.md.
 *
 *   PUBLISH   message × matching binding ─▶ one row in the key's partition
 *   RECEIVE   partition 0: pos 3, 9, 12 …  ┐
 *             partition 1: pos 4, 5 …      ├─▶ lowest pos first: 3, 4, 5, 9 …, until a limit; a partition ends at its first
 *             partition 2: pos 7L, 8 …     ┘   row under a live lease (L)
 *
 * What always holds: per partition the rows in flight are a prefix of the unacked ones, and a
 * message with several copies has all of them or none. Each partition has a cursor of its own, so
 * that no row is read that is not delivered but for one a partition. Tried and dropped: one
 * statement over all partitions (it sorts the whole backlog). */
#include "core/route.h"
#include "store/sqlite.h"

enum { BINDINGS_MAX = 256 };

/* ---- declare ---- */

static csn_status one_number(struct sqlite_conn *c, sqlite3_stmt *s, int64_t *ret, bool *ret_there,
                             csn_error *err) {
    int rc = sqlite3_step(s);

    *ret_there = rc == SQLITE_ROW;
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(s, 0);
    else if (rc != SQLITE_DONE)
        return sqlite_failed(c, "declare", err);
    sqlite3_reset(s);
    return CSN_OK;
}

/* The partitions of a subscription change only while nothing of it is under way: a key would be in
 * two of them. */
static csn_status check_partitions(struct sqlite_conn *c, const struct binding *b,
                                   bool *ret_changed, csn_error *err) {
    static const char have[] = "SELECT partitions FROM consign_bindings WHERE subscription = ?1";
    static const char open[] =
        "SELECT 1 FROM consign_queue INDEXED BY consign_ix_queue_live WHERE subscription = ?1"
        " AND acked_at IS NULL LIMIT 1";
    int64_t partitions = b->partitions;
    bool there = false;
    sqlite3_stmt *s = sqlite_prepare(c, have, err);
    csn_status status;

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(b->subscription));
    status = one_number(c, s, &partitions, &there, err);
    *ret_changed = there && partitions != b->partitions;
    if (status != CSN_OK || !*ret_changed)
        return status;
    s = sqlite_prepare(c, open, err);
    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(b->subscription));
    int64_t one = 0;
    status = one_number(c, s, &one, &there, err);
    if (status == CSN_OK && there)
        status = error_set(err, CSN_REJECTED, ERR_BROKER_BINDING,
                           "%s has %lld partitions and unacknowledged messages", b->subscription,
                           (long long)partitions);
    return status;
}

static csn_status declare(struct sqlite_conn *c, const struct binding *b, csn_error *err) {
    static const char sql[] = "INSERT INTO consign_bindings(subscription, match, partitions, "
                              "declared_at) VALUES (?1, ?2, ?3, ?4)"
                              /* declared_at stays the first time: reconciliation asks since when a
                                 subscription was to have its events. */
                              " ON CONFLICT (subscription) DO UPDATE SET match = excluded.match, "
                              "partitions = excluded.partitions,"
                              " routing_version = routing_version + ?5";
    bool changed = false;
    csn_status status = CSN_OK;

    if (b->partitions < 1 || b->partitions > LANE_MAX)
        return error_set(err, CSN_INVALID, ERR_CONFIG_VALUE, "%s: 1 to %d partitions",
                         b->subscription, LANE_MAX);
    status = check_partitions(c, b, &changed, err);
    if (status != CSN_OK)
        return status;
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);
    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(b->subscription));
    sqlite_bind_bytes(s, 2, bytes_of(b->match));
    sqlite3_bind_int64(s, 3, b->partitions);
    sqlite3_bind_int64(s, 4, c->now);
    sqlite3_bind_int64(s, 5, changed);
    return sqlite_run(c, s, err);
}

csn_status sqlite_declare(struct sqlite_conn *c, struct op *op) {
    csn_status s = CSN_OK;

    for (uint32_t i = 0; i < op->declare.n && s == CSN_OK; i++)
        s = declare(c, &op->declare.binding[i], &op->result);
    return s;
}

/* ---- publish ---- */

struct bound {
    const char *subscription, *match;
    uint32_t partitions;
    int64_t routing_version;
};

struct publish {
    struct sqlite_conn *c;
    struct op *op;
    sqlite3_stmt *insert;
    struct arena arena; /* bindings, refused keys */
    struct bound *bound;
    uint32_t bindings;
    const struct message **refused; /* whose later messages of the same key stay unsent */
    uint32_t refusals;
};

static csn_status no_memory(struct publish *k) {
    return error_set(&k->op->result, CSN_NOMEM, ERR_NO_MEMORY, "publish: out of memory");
}

static csn_status read_bindings(struct publish *k) {
    static const char sql[] =
        "SELECT subscription, match, partitions, routing_version FROM consign_bindings"
        " ORDER BY subscription";
    sqlite3_stmt *s = sqlite_prepare(k->c, sql, &k->op->result);
    csn_status status = CSN_OK;
    int rc = SQLITE_ROW;

    k->bound = arena_take(&k->arena, BINDINGS_MAX * sizeof *k->bound);
    if (!s)
        return k->op->result.status;
    if (!k->bound)
        return no_memory(k);
    while (status == CSN_OK && k->bindings < BINDINGS_MAX && (rc = sqlite3_step(s)) == SQLITE_ROW)
        k->bound[k->bindings++] =
            (struct bound){sqlite_column(s, 0, &k->arena, &status).data,
                           sqlite_column(s, 1, &k->arena, &status).data,
                           (uint32_t)sqlite3_column_int64(s, 2), sqlite3_column_int64(s, 3)};
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return sqlite_failed(k->c, "publish", &k->op->result);
    sqlite3_reset(s);
    return status == CSN_OK ? CSN_OK : no_memory(k);
}

/* What is the same in all copies. */
static void bind_message(sqlite3_stmt *s, const struct message *m, csn_usec taken_at) {
    sqlite_bind_bytes(s, 3, m->id);
    sqlite_bind_bytes(s, 4, m->aggregate_type);
    sqlite_bind_bytes(s, 5, m->aggregate_id);
    sqlite3_bind_int64(s, 6, (int64_t)m->version);
    sqlite3_bind_int64(s, 7, (int64_t)m->prev_version);
    sqlite_bind_bytes(s, 8, m->event_type);
    sqlite3_bind_int64(s, 9, m->schema_version);
    sqlite_bind_bytes(s, 10, m->payload);
    sqlite_bind_optional(s, 11, m->headers);
    sqlite3_bind_int64(s, 13, m->priority);
    sqlite_bind_optional(s, 14, m->tenant);
    sqlite_bind_optional(s, 15, m->traceparent);
    sqlite_bind_optional(s, 16, m->correlation_id);
    sqlite_bind_optional(s, 17, m->causation_id);
    if (m->expires_in == CSN_USEC_NEVER)
        sqlite3_bind_null(s, 18);
    else
        sqlite3_bind_int64(s, 18, sqlite_after(taken_at, m->expires_in));
    sqlite3_bind_int64(s, 19, sqlite_between(m->age, taken_at));
}

static csn_status insert_copy(struct publish *k, const struct message *m, const struct bound *b,
                              struct publish_item *item) {
    uint32_t part = route_partition(m->aggregate_type, m->aggregate_id, b->partitions);
    csn_status s;

    sqlite_bind_bytes(k->insert, 1, bytes_of(b->subscription));
    sqlite3_bind_int64(k->insert, 2, part);
    sqlite3_bind_int64(k->insert, 12, b->routing_version);
    s = sqlite_run(k->c, k->insert, &k->op->result);
    if (s == CSN_OK && item->out == PUB_NONE) {
        item->out = PUB_CONFIRMED;
        item->part = (int32_t)part;
        item->pos = sqlite3_last_insert_rowid(k->c->db);
    }
    return s;
}

static csn_status insert_copies(struct publish *k, const struct message *m,
                                struct publish_item *item) {
    csn_status s = CSN_OK;

    bind_message(k->insert, m, k->c->now - k->op->publish.ago);
    for (uint32_t i = 0; i < k->bindings && s == CSN_OK; i++)
        if (glob_list_matches(k->bound[i].match, m->event_type))
            s = insert_copy(k, m, &k->bound[i], item);
    return s;
}

static csn_status plain(struct sqlite_conn *c, const char *sql, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    return s ? sqlite_run(c, s, err) : err->status;
}

static void refuse(struct publish *k, struct publish_item *item, enum publish_out out, int32_t code,
                   const char *text) {
    item->out = (uint8_t)out;
    item->code = code;
    item->part = -1;
    item->pos = -1;
    copy_text(item->text, sizeof item->text, text);
    k->refused[k->refusals++] = &k->op->batch->msg[item->msg];
}

/* The database refused this message for itself: its copies go, the others stay. */
static csn_status take_back(struct publish *k, struct publish_item *item) {
    csn_error why = k->op->result;

    if (sqlite3_get_autocommit(k->c->db))
        return error_set(&k->op->result, CSN_INVALID, ERR_STORE_SQL,
                         "publish: a trigger ended the transaction");
    csn_status s = plain(k->c, "ROLLBACK TO csn_message", &k->op->result);
    refuse(k, item, PUB_REJECTED, ERR_BROKER_REJECTED, why.text);
    return s;
}

static uint32_t copies_of(const struct publish *k, const struct message *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < k->bindings; i++)
        n += glob_list_matches(k->bound[i].match, m->event_type);
    return n;
}

/* One copy is one statement, and a statement that fails leaves nothing: only several copies need a
 * savepoint. */
static csn_status publish_message(struct publish *k, struct publish_item *item) {
    const struct message *m = &k->op->batch->msg[item->msg];
    csn_error *err = &k->op->result;
    uint32_t copies = copies_of(k, m);
    csn_status s = CSN_OK;

    if (copies == 0) {
        refuse(k, item, PUB_RETURNED, ERR_BROKER_UNROUTABLE, "no subscription takes this event");
        return CSN_OK;
    }
    if (copies > 1)
        s = plain(k->c, "SAVEPOINT csn_message", err);
    if (s == CSN_OK)
        s = insert_copies(k, m, item);
    if (s == CSN_REJECTED && copies == 1 && !sqlite3_get_autocommit(k->c->db)) {
        refuse(k, item, PUB_REJECTED, ERR_BROKER_REJECTED, err->text);
        s = CSN_OK;
    } else if (s == CSN_REJECTED) {
        s = take_back(k, item);
    }
    return s == CSN_OK && copies > 1 ? plain(k->c, "RELEASE csn_message", err) : s;
}

static bool key_was_refused(const struct publish *k, const struct message *m) {
    for (uint32_t i = 0; i < k->refusals; i++)
        if (bytes_equal(k->refused[i]->aggregate_id, m->aggregate_id) &&
            bytes_equal(k->refused[i]->aggregate_type, m->aggregate_type))
            return true;
    return false;
}

static csn_status begin_publish(struct publish *k) {
    static const char sql[] = "INSERT INTO consign_queue(subscription, part, event_id, "
                              "aggregate_type, aggregate_id, aggregate_version, prev_version,"
                              " event_type, schema_version, payload, headers, routing_version, "
                              "priority, tenant, traceparent, correlation_id,"
                              " causation_id, expires_at, created_at, published_at)"
                              " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, "
                              "?14, ?15, ?16, ?17, ?18, ?19, ?20)";
    csn_status s = read_bindings(k);

    if (s != CSN_OK)
        return s;
    k->refused = arena_take(&k->arena, k->op->publish.n * sizeof(void *));
    k->insert = sqlite_prepare(k->c, sql, &k->op->result);
    if (!k->insert)
        return k->op->result.status;
    sqlite3_bind_int64(k->insert, 20, k->c->now);
    return k->refused ? CSN_OK : no_memory(k);
}

csn_status sqlite_publish(struct sqlite_conn *c, struct op *op) {
    struct publish k = {.c = c, .op = op};
    csn_status s;

    arena_init(&k.arena, (size_t)1 << 20);
    s = begin_publish(&k);
    for (uint32_t i = 0; i < op->publish.n && s == CSN_OK; i++) {
        struct publish_item *item = &op->publish.item[i];
        item->out = PUB_NONE;
        item->part = -1;
        item->pos = -1;
        item->code = 0;
        item->text[0] = '\0';
        if (key_was_refused(&k, &op->batch->msg[item->msg]))
            item->out = PUB_UNSENT;
        else
            s = publish_message(&k, item);
    }
    arena_free(&k.arena);
    return s;
}

/* ---- receive ---- */

static const char cursor_sql[] =
    "SELECT pos, event_id, aggregate_type, aggregate_id, aggregate_version, prev_version, "
    "event_type, schema_version, payload,"
    " headers, traceparent, correlation_id, causation_id, tenant, priority, deliveries, "
    "created_at, expires_at, token,"
    " lease_until, epoch FROM consign_queue INDEXED BY consign_ix_queue_live WHERE subscription = "
    "?1 AND part = ?2"
    " AND acked_at IS NULL ORDER BY pos";

enum column {
    COL_POS,
    COL_ID,
    COL_TYPE,
    COL_KEY,
    COL_VERSION,
    COL_PREV,
    COL_EVENT_TYPE,
    COL_SCHEMA,
    COL_PAYLOAD,
    COL_HEADERS,
    COL_TRACE,
    COL_CORR,
    COL_CAUSE,
    COL_TENANT,
    COL_PRIORITY,
    COL_DELIVERIES,
    COL_CREATED,
    COL_EXPIRES,
    COL_TOKEN,
    COL_LEASE,
    COL_EPOCH
};

struct receive {
    struct sqlite_conn *c;
    struct op *op;
    uint64_t open; /* partitions whose cursor stands on a row that may be delivered */
    uint32_t limit;
    size_t bytes;
    int64_t head[LANE_MAX]; /* pos of that row */
};

static bool may_deliver(const struct receive *k, sqlite3_stmt *row, uint32_t part) {
    csn_usec lease = sqlite3_column_int64(row, COL_LEASE), now = k->c->now,
             longest = k->op->receive.longest_lease;

    if (k->op->receive.again || sqlite3_column_type(row, COL_TOKEN) == SQLITE_NULL)
        return true;
    return lease <= now || lease - now > longest ||
           (uint64_t)sqlite3_column_int64(row, COL_EPOCH) != k->op->receive.epoch[part];
}

/* Steps the cursor of a partition; it closes at its end, or at a row that is under a live lease. */
static csn_status step_cursor(struct receive *k, uint32_t part) {
    sqlite3_stmt *s = k->c->part[part];
    uint64_t bit = UINT64_C(1) << part;
    int rc = sqlite3_step(s);

    k->open &= ~bit;
    if (rc == SQLITE_ROW && may_deliver(k, s, part)) {
        k->head[part] = sqlite3_column_int64(s, COL_POS);
        k->open |= bit;
        return CSN_OK;
    }
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return sqlite_failed(k->c, "receive", &k->op->result);
    sqlite3_reset(s);
    return CSN_OK;
}

static csn_status open_cursor(struct receive *k, uint32_t part) {
    sqlite3_stmt **s = &k->c->part[part];

    if (!*s && sqlite3_prepare_v3(k->c->db, cursor_sql, -1, SQLITE_PREPARE_PERSISTENT, s, NULL) !=
                   SQLITE_OK)
        return sqlite_failed(k->c, "receive", &k->op->result);
    sqlite3_reset(*s);
    sqlite_bind_bytes(*s, 1, bytes_of(k->op->receive.consumer));
    sqlite3_bind_int64(*s, 2, part);
    return step_cursor(k, part);
}

static csn_status begin_receive(struct receive *k, struct sqlite_conn *c, struct op *op) {
    csn_status s = CSN_OK;
    uint64_t lanes = sqlite_fence(c, op->receive.lane_name, op->receive.lanes, op->receive.epoch,
                                  op->receive.boot, &s, &op->result);

    memset(k, 0, sizeof *k);
    k->c = c;
    k->op = op;
    k->limit = op->receive.limit < op->batch->cap ? op->receive.limit : op->batch->cap;
    op->receive.lost = op->receive.lanes & ~lanes;
    op->receive.more = k->limit == 0;
    op->batch->n = 0;
    for (uint32_t part = 0; part < LANE_MAX && s == CSN_OK; part++)
        if (lanes >> part & 1)
            s = open_cursor(k, part);
    return s;
}

static void close_cursors(struct sqlite_conn *c) {
    for (uint32_t part = 0; part < LANE_MAX; part++)
        sqlite3_reset(c->part[part]);
}

static uint32_t lowest(const struct receive *k) {
    uint32_t best = LANE_MAX;

    for (uint32_t part = 0; part < LANE_MAX; part++)
        if (k->open >> part & 1 && (best == LANE_MAX || k->head[part] < k->head[best]))
            best = part;
    return best;
}

static csn_bytes column(sqlite3_stmt *row, enum column col, struct arena *a, csn_status *status) {
    if (sqlite3_column_type(row, (int)col) == SQLITE_NULL)
        return (csn_bytes){"", 0};
    return sqlite_column(row, (int)col, a, status);
}

static csn_status fill(struct message *m, sqlite3_stmt *row, uint32_t part, struct arena *a,
                       csn_usec now) {
    csn_status s = CSN_OK;
    bool expires = sqlite3_column_type(row, COL_EXPIRES) != SQLITE_NULL;
    uint32_t deliveries = (uint32_t)sqlite3_column_int64(row, COL_DELIVERIES);

    *m = (struct message){
        .id = column(row, COL_ID, a, &s),
        .aggregate_type = column(row, COL_TYPE, a, &s),
        .aggregate_id = column(row, COL_KEY, a, &s),
        .event_type = column(row, COL_EVENT_TYPE, a, &s),
        .payload = column(row, COL_PAYLOAD, a, &s),
        .headers = column(row, COL_HEADERS, a, &s),
        .traceparent = column(row, COL_TRACE, a, &s),
        .correlation_id = column(row, COL_CORR, a, &s),
        .causation_id = column(row, COL_CAUSE, a, &s),
        .tenant = column(row, COL_TENANT, a, &s),
        .route = {"", 0},
        .version = (uint64_t)sqlite3_column_int64(row, COL_VERSION),
        .prev_version = (uint64_t)sqlite3_column_int64(row, COL_PREV),
        .seq = (uint64_t)sqlite3_column_int64(row, COL_POS),
        .schema_version = (uint32_t)sqlite3_column_int64(row, COL_SCHEMA),
        .lane = part,
        .attempts = deliveries + 1,
        .priority = sqlite3_column_int(row, COL_PRIORITY),
        .age = sqlite_between(sqlite3_column_int64(row, COL_CREATED), now),
        .expires_in =
            expires ? sqlite_between(now, sqlite3_column_int64(row, COL_EXPIRES)) : CSN_USEC_NEVER,
        .redelivered = deliveries > 0,
    };
    return s;
}

static csn_status deliver(struct receive *k, uint32_t part) {
    sqlite3_stmt *row = k->c->part[part];
    struct op *op = k->op;
    struct batch *b = op->batch;
    size_t size = (size_t)sqlite3_column_bytes(row, COL_PAYLOAD);

    if (b->n > 0 && k->bytes + size > op->receive.bytes) {
        op->receive.more = true;
        return CSN_OK;
    }
    if (fill(&b->msg[b->n], row, part, &b->arena, k->c->now) != CSN_OK) {
        op->receive.more = true;
        return b->n > 0
                   ? CSN_OK
                   : error_set(&op->result, CSN_NOMEM, ERR_NO_MEMORY, "receive: out of memory");
    }
    b->n++;
    k->bytes += size;
    op->receive.more = b->n == k->limit;
    return op->receive.more ? CSN_OK : step_cursor(k, part);
}

static csn_status write_delivered(struct receive *k) {
    static const char sql[] =
        "UPDATE consign_queue SET token = ?1, epoch = ?2, lease_until = ?3, delivered_at = ?4,"
        " deliveries = deliveries + 1 WHERE pos = ?5";
    const struct op *op = k->op;
    sqlite3_stmt *s = sqlite_prepare(k->c, sql, &k->op->result);
    csn_status status = CSN_OK;

    if (!s)
        return k->op->result.status;
    sqlite_bind_bytes(s, 1, bytes_of(op->receive.token));
    sqlite3_bind_int64(s, 3, k->c->now + op->receive.lease);
    sqlite3_bind_int64(s, 4, k->c->now);
    for (uint32_t i = 0; i < op->batch->n && status == CSN_OK; i++) {
        const struct message *m = &op->batch->msg[i];
        sqlite3_bind_int64(s, 2, (int64_t)op->receive.epoch[m->lane]);
        sqlite3_bind_int64(s, 5, (int64_t)m->seq);
        status = sqlite_run(k->c, s, &k->op->result);
    }
    return status;
}

csn_status sqlite_receive(struct sqlite_conn *c, struct op *op) {
    struct receive k;
    csn_status s = begin_receive(&k, c, op);

    while (s == CSN_OK && k.open && !op->receive.more)
        s = deliver(&k, lowest(&k));
    close_cursors(c);
    return s == CSN_OK && op->batch->n > 0 ? write_delivered(&k) : s;
}

csn_status sqlite_receive_idle(struct sqlite_conn *c, struct op *op, bool *ret) {
    struct receive k;
    csn_status s = begin_receive(&k, c, op);

    *ret = k.open == 0;
    close_cursors(c);
    return s;
}

/* ---- acknowledge ---- */

csn_status sqlite_ack(struct sqlite_conn *c, struct op *op) {
    static const char sql[] =
        "UPDATE consign_queue SET acked_at = ?1 WHERE pos = ?2 AND subscription = ?3 AND token = ?4"
        " AND acked_at IS NULL";
    sqlite3_stmt *s = sqlite_prepare(c, sql, &op->result);
    csn_status status = CSN_OK;

    op->ack.acked = 0;
    if (!s)
        return op->result.status;
    sqlite3_bind_int64(s, 1, c->now);
    sqlite_bind_bytes(s, 3, bytes_of(op->ack.consumer));
    sqlite_bind_bytes(s, 4, bytes_of(op->ack.token));
    for (uint32_t i = 0; i < op->ack.n && status == CSN_OK; i++) {
        sqlite3_bind_int64(s, 2, (int64_t)op->batch->msg[op->ack.msg[i]].seq);
        status = sqlite_run(c, s, &op->result);
        op->ack.acked += status == CSN_OK ? (uint32_t)sqlite3_changes(c->db) : 0;
    }
    return status;
}
