/* sqlite_order.c: the policies of event types on SQLite: what APPLY knows of the entity of a message
 * before the handler runs, and what is written down after it. core/order.h decides; here are the rows.
 *
 * What always holds: entity and gaps change in the transaction of the event that changed them, and
 * inside its savepoint. Consumers without a policy do not come here. */
#include "core/order.h"
#include "store/sqlite_inbox.h"

#define KEY_OF(consumer, m)                                                                        \
    sql_str(consumer), sql_bytes((m)->aggregate_type), sql_bytes((m)->aggregate_id)

csn_status sqlite_entity_read(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              const struct order_rule *r, struct sqlite_entity *ret,
                              csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = sqlite_ask(
        c,
        "SELECT version, state, gaps, event_id FROM consign_entities WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3",
        SQL_VALUES(KEY_OF(consumer, m)), &row, err);
    *ret = (struct sqlite_entity){.entity = {.state = STATE_NONE}};
    if (!s)
        return err->status;
    if (row) {
        const char *state = (const char *)sqlite3_column_text(s, 1);
        ret->entity.there = true;
        ret->entity.version = (uint64_t)sqlite3_column_int64(s, 0);
        ret->entity.gaps = (uint32_t)sqlite3_column_int(s, 2);
        copy_text(ret->state, sizeof ret->state, state ? state : "");
        if (r && r->machine && ret->state[0])
            ret->entity.state = order_state_find(r->machine, bytes_of(ret->state));
        copy_text(ret->ahead, sizeof ret->ahead, (const char *)sqlite3_column_text(s, 3));
    }
    sqlite3_reset(s);
    return CSN_OK;
}

static csn_status insert_gap(struct sqlite_conn *c, const char *consumer, const struct message *m,
                             const struct order_gap *g, csn_usec found_at, csn_usec deadline_at,
                             csn_bytes shown_by, csn_error *err) {
    return sqlite_do(c,
                     "INSERT INTO consign_gaps(consumer_name, aggregate_type, aggregate_id, "
                     "after_version, before_version, missing_version, event_id, found_at, "
                     "deadline_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                     SQL_VALUES(KEY_OF(consumer, m), sql_int((int64_t)g->after),
                                sql_int((int64_t)g->before), sql_int((int64_t)g->missing),
                                sql_bytes(shown_by), sql_int(found_at), sql_int(deadline_at)),
                     err);
}

struct open_gap {
    int64_t seq;
    struct order_gap gap;
    csn_usec found_at, deadline_at;
    char shown_by[ID_MAX + 1];
};

/* The open gap that this version is in. */
static csn_status find_gap(struct sqlite_conn *c, const char *consumer, const struct message *m,
                           bool *ret_there, struct open_gap *ret, csn_error *err) {
    sqlite3_stmt *s = sqlite_ask(
        c,
        "SELECT seq, after_version, before_version, missing_version, found_at, deadline_at, "
        "event_id FROM consign_gaps INDEXED BY consign_ix_gaps_open WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3 AND before_version > ?4 AND after_version < ?4 "
        "AND closed_at IS NULL ORDER BY before_version LIMIT 1",
        SQL_VALUES(KEY_OF(consumer, m), sql_int((int64_t)m->version)), ret_there, err);
    if (!s)
        return err->status;
    if (*ret_there) {
        *ret = (struct open_gap){.seq = sqlite3_column_int64(s, 0),
                                 .gap = {.after = (uint64_t)sqlite3_column_int64(s, 1),
                                         .before = (uint64_t)sqlite3_column_int64(s, 2),
                                         .missing = (uint64_t)sqlite3_column_int64(s, 3)},
                                 .found_at = sqlite3_column_int64(s, 4),
                                 .deadline_at = sqlite3_column_int64(s, 5)};
        copy_text(ret->shown_by, sizeof ret->shown_by, (const char *)sqlite3_column_text(s, 6));
    }
    sqlite3_reset(s);
    return CSN_OK;
}

/* The gap is closed; what is left of it on either side is one of its own, with its old deadline. */
static csn_status close_gap(struct sqlite_conn *c, const char *consumer, const struct message *m,
                            struct order_entity *e, csn_error *err) {
    struct open_gap open;
    bool there = false;
    csn_status s = find_gap(c, consumer, m, &there, &open, err);
    if (s != CSN_OK || !there)
        return s;
    struct order_fill f = order_gap_fill(&open.gap, m);
    s = sqlite_do(c, "UPDATE consign_gaps SET closed_at = ?2, closed_by = ?3 WHERE seq = ?1",
                  SQL_VALUES(sql_int(open.seq), sql_int(c->now), sql_bytes(m->id)), err);
    if (s == CSN_OK && f.has_lower)
        s = insert_gap(c, consumer, m, &f.lower, open.found_at, open.deadline_at, m->id, err);
    if (s == CSN_OK && f.has_upper)
        s = insert_gap(c, consumer, m, &f.upper, open.found_at, open.deadline_at,
                       bytes_of(open.shown_by), err);
    e->gaps += (uint32_t)f.has_lower + f.has_upper;
    e->gaps -= e->gaps > 0;
    return s;
}

static csn_status write_entity(struct sqlite_conn *c, const char *consumer, const struct message *m,
                               const struct sqlite_entity *e, csn_error *err) {
    return sqlite_do(c,
                     "INSERT INTO consign_entities(consumer_name, aggregate_type, aggregate_id, "
                     "version, state, event_id, gaps, updated_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, "
                     "?7, ?8) ON CONFLICT (consumer_name, aggregate_type, aggregate_id) DO UPDATE "
                     "SET version = ?4, state = ?5, event_id = ?6, gaps = ?7, updated_at = ?8",
                     SQL_VALUES(KEY_OF(consumer, m), sql_int((int64_t)e->entity.version),
                                sql_str(e->state), sql_str(e->ahead), sql_int(e->entity.gaps),
                                sql_int(c->now)),
                     err);
}

csn_status sqlite_entity_write(struct sqlite_conn *c, const char *consumer, const struct message *m,
                               const struct order_rule *r, struct sqlite_entity *e,
                               csn_verdict verdict, csn_error *err) {
    struct order_gap gap;
    csn_status s = CSN_OK;
    if (order_gap_opens(&e->entity, m, &gap)) {
        csn_usec deadline = r ? r->deadline : ORDER_DEADLINE;
        s = insert_gap(c, consumer, m, &gap, c->now, sqlite_from_now(c, deadline), m->id, err);
        e->entity.gaps++;
    } else if (e->entity.gaps > 0) {
        s = close_gap(c, consumer, m, &e->entity, err);
    }
    if (s != CSN_OK)
        return s;
    if (order_advance(r, &e->entity, m->version, verdict)) {
        copy_bytes_text(e->ahead, sizeof e->ahead, m->id);
        if (r && r->machine && e->entity.state >= 0)
            copy_text(e->state, sizeof e->state, order_state_name(r->machine, e->entity.state));
    }
    return write_entity(c, consumer, m, e, err);
}
