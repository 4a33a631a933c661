/* trace.c: gathers facts and puts them in order.
 *
 *   outbox row     written claimed published confirmed waiting
 *   attempts       claimed, and kinds of their own name: nacked unanswered parked resent …
 *   queue copies   published
 *   inbox rows     received duplicate handled
 *   dead letters   dead conflict
 *   audit          held cancelled replayed released decided
 *   what should be there and is not: missing, with the reason
 *
 * Instants of different stores are put side by side as they are: each store's own clock. A fact
 * without an instant (what is so now) comes after all others, and what is missing comes last.
 * Nothing is written anywhere. */
#include "cli/trace.h"
#include "core/handler.h"
#include "core/tx.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct trace {
    struct legs *l;
    const char *id;
    json_t *facts;   /* raw */
    json_t *row;     /* of the outbox, raw, or NULL */
    json_t *inbox;   /* raw rows with their store */
    json_t *copies;  /* raw queue rows with their store */
    json_t *results; /* raw */
    char row_store[NAME_MAX_];
    char type[256]; /* event_type, from whoever knows it; empty: nobody does */
};

/* In the order of facts with the same instant; and how people are told. */
static const struct {
    const char *name;
    enum message_id shown;
} kinds[] = {
    {"written", MSG_FACT_WRITTEN},       {"held", MSG_FACT_HELD},
    {"released", MSG_FACT_RELEASED},     {"replayed", MSG_FACT_REPLAYED},
    {"decided", MSG_FACT_DECIDED},       {"claimed", MSG_FACT_CLAIMED},
    {"published", MSG_FACT_PUBLISHED},   {"confirmed", MSG_FACT_CONFIRMED},
    {"returned", MSG_FACT_RETURNED},     {"nacked", MSG_FACT_NACKED},
    {"unanswered", MSG_FACT_UNANSWERED}, {"failed", MSG_FACT_FAILED},
    {"expired", MSG_FACT_EXPIRED},       {"cancelled", MSG_FACT_CANCELLED},
    {"received", MSG_FACT_RECEIVED},     {"duplicate", MSG_FACT_DUPLICATE},
    {"parked", MSG_FACT_PARKED},         {"handled", MSG_FACT_HANDLED},
    {"conflict", MSG_FACT_CONFLICT},     {"dead", MSG_FACT_DEAD},
    {"resent", MSG_FACT_RESENT},         {"waiting", MSG_FACT_WAITING},
    {"missing", MSG_FACT_MISSING},
};

/* ---- building ---- */

/* Appends a fact; at 0: it has no instant. The object stays the list's. */
static json_t *fact(struct trace *t, const char *store, const char *kind, int64_t at) {
    json_t *f = json_object();
    out_put(f, "at", at ? json_integer(at) : json_null());
    out_put(f, "store", out_json_string(store));
    out_put(f, "kind", out_json_string(kind));
    out_append(t->facts, f);
    return f;
}

/* Copies a member of a row, under a name of its own, when it is there. */
static void take(json_t *f, const json_t *row, const char *key, const char *as) {
    if (row_has(row, key))
        out_put(f, as, json_incref(json_object_get(row, key)));
}

static void take_all(json_t *f, const json_t *row, const char *const *keys) {
    for (; *keys; keys++)
        take(f, row, *keys, *keys);
}

/* A missing fact: which evidence, for which consumer, and why, in the reader's language. */
static json_t *missing(struct trace *t, const char *store, const char *evidence,
                       const char *consumer, struct text *why) {
    json_t *f = fact(t, store, "missing", 0);
    out_put(f, "evidence", out_json_string(evidence));
    if (consumer)
        out_put(f, "consumer_name", out_json_string(consumer));
    out_put(f, "text", out_json_text((csn_bytes){why->data, why->used}));
    return f;
}

static void know_type(struct trace *t, const json_t *row) {
    if (!t->type[0])
        copy_text(t->type, sizeof t->type, row_text(row, "event_type"));
}

/* ---- the outbox ---- */

static bool claimed_already(const struct trace *t, const char *store, int64_t at) {
    size_t i;
    json_t *f;
    json_array_foreach(t->facts, i, f) {
        if (row_int(f, "at") == at && strcmp(row_text(f, "kind"), "claimed") == 0 &&
            strcmp(row_text(f, "store"), store) == 0)
            return true;
    }
    return false;
}

static csn_status waits_now(struct trace *t, struct leg *g, const json_t *row, csn_error *err) {
    json_t *f = fact(t, g->name, "waiting", 0);
    if (row_int(row, "waits_for") == WAITS_ROUTE) {
        out_put(f, "waits_for", json_string("route"));
        take(f, row, "route", "route");
        return CSN_OK;
    }
    out_put(f, "waits_for", json_string("key"));
    json_t *head = NULL;
    csn_status st = kit_row(g->db, "trace.head",
                            KIT_ARGS(KIT_TEXT(t->id), KIT_TEXT(row_text(row, "aggregate_type")),
                                     KIT_TEXT(row_text(row, "aggregate_id"))),
                            &head, err);
    if (head) {
        take(f, head, "event_id", "head");
        take(f, head, "status", "head_status");
    }
    json_decref(head);
    return st;
}

static void outbox_facts(struct trace *t, struct leg *g, const json_t *row) {
    take_all(fact(t, g->name, "written", row_int(row, "created_at")), row,
             (const char *const[]){"seq", "event_type", "aggregate_type", "aggregate_id",
                                   "aggregate_version", "schema_version", "tenant", "traceparent",
                                   "correlation_id", "causation_id", NULL});
    if (row_has(row, "claimed_at") && !claimed_already(t, g->name, row_int(row, "claimed_at")))
        take(fact(t, g->name, "claimed", row_int(row, "claimed_at")), row, "attempts", "attempt");
    if (row_has(row, "published_at")) {
        json_t *f = fact(t, g->name, "published", row_int(row, "published_at"));
        out_put(f, "source", json_string("outbox"));
    }
    if (row_has(row, "sent_at")) {
        json_t *f = fact(t, g->name, "confirmed", row_int(row, "sent_at"));
        take_all(f, row, (const char *const[]){"broker_part", "broker_pos", NULL});
        take(f, row, "sent_by", "member");
        take(f, row, "sent_by_label", "by");
    }
}

static csn_status look_outbox(struct trace *t, struct leg *g, csn_error *err) {
    json_t *row = NULL;
    csn_status st = kit_row(g->db, "event.row", KIT_ARGS(KIT_TEXT(t->id)), &row, err);
    if (!row)
        return st;
    outbox_facts(t, g, row);
    if (strcmp(row_text(row, "status"), "waiting") == 0)
        st = waits_now(t, g, row, err);
    know_type(t, row);
    if (t->row) {
        json_decref(row); /* a second outbox with the same id: its facts are listed, the first is
                             the event */
        return st;
    }
    t->row = row;
    copy_text(t->row_store, sizeof t->row_store, g->name);
    return st;
}

/* A resend keeps the publish and the confirm that it overwrote in planned_at and started_at. */
static void resent_facts(struct trace *t, struct leg *g, const json_t *a) {
    if (row_has(a, "planned_at"))
        out_put(fact(t, g->name, "published", row_int(a, "planned_at")), "source",
                json_string("outbox"));
    if (row_has(a, "started_at")) {
        json_t *f = fact(t, g->name, "confirmed", row_int(a, "started_at"));
        take(f, a, "member", "member");
        take(f, a, "member_label", "by");
    }
}

static void attempt_fact(struct trace *t, struct leg *g, const json_t *a) {
    bool resent = strcmp(row_text(a, "kind"), "resent") == 0;
    if (resent)
        resent_facts(t, g, a);
    else if (strcmp(row_text(a, "side"), "outbox") == 0 && row_has(a, "started_at") &&
             !claimed_already(t, g->name, row_int(a, "started_at")))
        take(fact(t, g->name, "claimed", row_int(a, "started_at")), a, "attempt", "attempt");
    json_t *f = fact(t, g->name, row_text(a, "kind"), row_int(a, "at_at"));
    take_all(
        f, a,
        (const char *const[]){"side", "consumer_name", "attempt", "member", "code", "error", NULL});
    take(f, a, "member_label", "by");
    if (!resent)
        take_all(f, a, (const char *const[]){"planned_at", "started_at", NULL});
}

static csn_status look_attempts(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *a;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.attempts", KIT_ARGS(KIT_TEXT(t->id)), &rows, err);
    json_array_foreach(rows, i, a) attempt_fact(t, g, a);
    json_decref(rows);
    return st;
}

/* ---- queue, inbox, dead letters, audit ---- */

static csn_status look_queue(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *q;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.queue", KIT_ARGS(KIT_TEXT(t->id)), &rows, err);
    json_array_foreach(rows, i, q) {
        json_t *f = fact(t, g->name, "published", row_int(q, "published_at"));
        out_put(f, "source", json_string("queue"));
        take(f, q, "subscription", "consumer_name");
        take(f, q, "part", "broker_part");
        take(f, q, "pos", "broker_pos");
        take_all(f, q, (const char *const[]){"deliveries", "delivered_at", "acked_at", NULL});
        out_put(q, "store", out_json_string(g->name));
        out_append(t->copies, json_incref(q));
        know_type(t, q);
    }
    json_decref(rows);
    return st;
}

static bool parked_already(const struct trace *t, const char *store, const char *consumer) {
    size_t i;
    json_t *f;
    json_array_foreach(t->facts, i, f) {
        if (strcmp(row_text(f, "kind"), "parked") == 0 &&
            strcmp(row_text(f, "store"), store) == 0 &&
            strcmp(row_text(f, "consumer_name"), consumer) == 0)
            return true;
    }
    return false;
}

static json_t *inbox_fact(struct trace *t, struct leg *g, const json_t *row, const char *kind,
                          int64_t at) {
    json_t *f = fact(t, g->name, kind, at);
    take(f, row, "consumer_name", "consumer_name");
    return f;
}

static void inbox_facts(struct trace *t, struct leg *g, const json_t *i) {
    const char *state = row_text(i, "state");
    bool finished = strcmp(state, "done") == 0 || strcmp(state, "refused") == 0;
    int64_t received =
        row_has(i, "received_at") ? row_int(i, "received_at") : row_int(i, "processed_at");
    json_t *f = inbox_fact(t, g, i, "received", received);
    take_all(f, i, (const char *const[]){"entity_version", "broker_part", "broker_pos", NULL});
    if (row_int(i, "duplicates") > 0) {
        f = inbox_fact(t, g, i, "duplicate", row_int(i, "last_duplicate_at"));
        out_put(f, "count", json_integer(row_int(i, "duplicates")));
    }
    if (finished) {
        f = inbox_fact(t, g, i, "handled", row_int(i, "processed_at"));
        out_put(f, "verdict",
                out_json_string(row_has(i, "verdict") ? row_text(i, "verdict") : state));
        take_all(f, i, (const char *const[]){"state", "result", "attempts", NULL});
        take(f, i, "error", "error");
    }
    if (row_has(i, "work_status") && !parked_already(t, g->name, row_text(i, "consumer_name"))) {
        f = inbox_fact(t, g, i, "parked", row_int(i, "parked_at"));
        take(f, i, "work_error", "error");
    }
}

static csn_status look_inbox(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *row;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.inbox", KIT_ARGS(KIT_TEXT(t->id)), &rows, err);
    json_array_foreach(rows, i, row) {
        inbox_facts(t, g, row);
        know_type(t, row);
        out_put(row, "store", out_json_string(g->name));
        out_append(t->inbox, json_incref(row));
    }
    json_decref(rows);
    return st;
}

static csn_status look_dead(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *d;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.dead", KIT_ARGS(KIT_TEXT(t->id)), &rows, err);
    json_array_foreach(rows, i, d) {
        bool conflict = strcmp(row_text(d, "class"), "conflict") == 0;
        json_t *f = inbox_fact(t, g, d, conflict ? "conflict" : "dead", row_int(d, "dead_at"));
        take_all(
            f, d,
            (const char *const[]){"class", "code", "error", "attempts", "failures", "state", NULL});
        take(f, d, "id", "letter");
        know_type(t, d);
    }
    json_decref(rows);
    return st;
}

static const char *kind_of_act(const char *action) {
    static const char *const kind[][2] = {{"event.hold", "held"},
                                          {"event.cancel", "cancelled"},
                                          {"event.retry", "replayed"},
                                          {"event.release", "released"},
                                          {"dead.decide", "decided"}};
    for (size_t i = 0; i < ARRAY_LEN(kind); i++)
        if (strcmp(action, kind[i][0]) == 0)
            return kind[i][1];
    return NULL; /* looking at a payload is in the audit chain and no fact of the event */
}

static csn_status look_audit(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *a;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.audit", KIT_ARGS(KIT_TEXT(t->id)), &rows, err);
    json_array_foreach(rows, i, a) {
        const char *kind = kind_of_act(row_text(a, "action"));
        if (!kind)
            continue;
        json_t *f = fact(t, g->name, kind, row_int(a, "at_at"));
        take(f, a, "actor", "by");
        take_all(f, a, (const char *const[]){"reason", "before", "after", NULL});
    }
    json_decref(rows);
    return st;
}

/* ---- result events ---- */

static bool listed(const struct trace *t, const char *store, const char *event_id) {
    size_t i;
    json_t *r;
    json_array_foreach(t->results, i, r) {
        if (strcmp(row_text(r, "event_id"), event_id) == 0 &&
            strcmp(row_text(r, "store"), store) == 0)
            return true;
    }
    return false;
}

static void add_result(struct trace *t, struct leg *g, json_t *row) {
    if (listed(t, g->name, row_text(row, "event_id")))
        return;
    out_put(row, "store", out_json_string(g->name));
    out_append(t->results, json_incref(row));
}

/* Result events of a handler are found by their derived ids, however old they are. */
static csn_status derived_results(struct trace *t, struct leg *g, const json_t *inbox,
                                  csn_error *err) {
    csn_status st = CSN_OK;
    for (uint32_t step = 0; st == CSN_OK && step < HANDLER_STEPS_MAX; step++) {
        char id[TOKEN_SIZE];
        json_t *row = NULL;
        result_event_id(row_text(inbox, "consumer_name"), bytes_of(t->id), step, id);
        st = kit_row(g->db, "trace.result", KIT_ARGS(KIT_TEXT(id), KIT_TEXT(t->id)), &row, err);
        if (row)
            add_result(t, g, row);
        json_decref(row);
    }
    return st;
}

/* Those of other makers are looked for among the newest rows, as no index leads to them. */
static csn_status look_results(struct trace *t, struct leg *g, csn_error *err) {
    json_t *rows, *row;
    size_t i;
    csn_status st = kit_rows(g->db, "trace.results", KIT_ARGS(KIT_TEXT(t->id), KIT_INT(KIT_WINDOW)),
                             &rows, err);
    json_array_foreach(rows, i, row) add_result(t, g, row);
    json_decref(rows);
    json_array_foreach(t->inbox, i, row) {
        if (st == CSN_OK && strcmp(row_text(row, "store"), g->name) == 0)
            st = derived_results(t, g, row, err);
    }
    return st;
}

static void look(struct trace *t, struct leg *g) {
    static csn_status (*const steps[])(struct trace *, struct leg *, csn_error *) = {
        look_attempts, look_outbox, look_queue, look_inbox, look_dead, look_audit, look_results};
    csn_error err = {0};
    for (size_t i = 0; g->db && i < ARRAY_LEN(steps); i++)
        if (steps[i](t, g, &err) != CSN_OK)
            leg_lost(g, &err);
}

/* ---- what is missing ---- */

static void missing_stores(struct trace *t) {
    for (uint32_t i = 0; i < t->l->n; i++) {
        const struct leg *g = &t->l->leg[i];
        if (g->db)
            continue;
        char line[400];
        struct text why;
        text_init(&why, line, sizeof line);
        message_add(&why, MSG_TRACE_STORE, g->error.code, g->error.text);
        json_t *f = missing(t, g->name, "store", NULL, &why);
        out_put(f, "code", json_integer(g->error.code));
    }
}

static void missing_outbox(struct trace *t) {
    char names[STORES_MAX * NAME_MAX_], line[STORES_MAX * NAME_MAX_ + 100];
    struct text list, why;
    text_init(&list, names, sizeof names);
    for (uint32_t i = 0; i < t->l->n; i++)
        if (t->l->leg[i].db)
            text_add(&list, "%s%s", list.used ? ", " : "", t->l->leg[i].name);
    text_init(&why, line, sizeof line);
    message_add(&why, MSG_TRACE_NO_OUTBOX, list.used ? list.data : "–");
    missing(t, NULL, "outbox", NULL, &why);
}

static void why_pending(struct trace *t, struct text *why, csn_usec now) {
    char at[32];
    int64_t next = row_int(t->row, "next_attempt_at");
    out_time(next, at);
    int attempts = (int)row_int(t->row, "attempts");
    if (next <= now && attempts > 0)
        message_add(why, MSG_TRACE_DUE_AGAIN, at, attempts);
    else if (next <= now)
        message_add(why, MSG_TRACE_DUE, at);
    else
        message_add(why, MSG_TRACE_LATER, at, (int)row_int(t->row, "failures"));
}

static void why_waiting(struct trace *t, struct text *why) {
    size_t i;
    json_t *f, *last = NULL;
    json_array_foreach(t->facts, i, f) {
        if (strcmp(row_text(f, "kind"), "waiting") == 0 && !row_has(f, "at"))
            last = f;
    }
    if (row_int(t->row, "waits_for") == WAITS_ROUTE)
        message_add(why, MSG_TRACE_WAITS_ROUTE, row_text(t->row, "route"));
    else if (last && row_has(last, "head"))
        message_add(why, MSG_TRACE_WAITS_KEY, row_text(last, "head"),
                    row_text(last, "head_status"));
    else
        message_add(why, MSG_TRACE_WAITS_NOBODY);
}

static void missing_confirm(struct trace *t, csn_usec now) {
    const char *status = row_text(t->row, "status");
    char line[700], at[32];
    struct text why;
    text_init(&why, line, sizeof line);
    if (strcmp(status, "sent") == 0 || strcmp(status, "cancelled") == 0)
        return;
    if (strcmp(status, "pending") == 0)
        why_pending(t, &why, now);
    else if (strcmp(status, "sending") == 0)
        message_add(&why, MSG_TRACE_SENDING, out_time(row_int(t->row, "lease_until"), at));
    else if (strcmp(status, "unknown") == 0)
        message_add(&why, MSG_TRACE_UNKNOWN, out_time(row_int(t->row, "next_attempt_at"), at));
    else if (strcmp(status, "waiting") == 0)
        why_waiting(t, &why);
    else if (strcmp(status, "failed") == 0)
        message_add(&why, MSG_TRACE_FAILED,
                    row_has(t->row, "last_error") ? row_text(t->row, "last_error") : "–");
    else if (strcmp(status, "held") == 0)
        message_add(&why, MSG_TRACE_HELD);
    else
        message_add(&why, MSG_TRACE_STRANGE, status);
    missing(t, t->row_store, "confirmed", NULL, &why);
}

static const json_t *inbox_of(const struct trace *t, const struct config_subscription *s) {
    size_t i;
    json_t *row;
    json_array_foreach(t->inbox, i, row) {
        if (strcmp(row_text(row, "consumer_name"), s->consumer) == 0 &&
            strcmp(row_text(row, "store"), s->store) == 0)
            return row;
    }
    return NULL;
}

/* The copy that says most: an unacked one, else the last. */
static const json_t *copy_of(const struct trace *t, const char *consumer, const char *store) {
    size_t i;
    json_t *q, *best = NULL;
    json_array_foreach(t->copies, i, q) {
        if (strcmp(row_text(q, "subscription"), consumer) != 0 ||
            strcmp(row_text(q, "store"), store) != 0)
            continue;
        if (!best || !row_has(q, "acked_at"))
            best = q;
    }
    return best;
}

static void why_no_inbox(struct trace *t, const struct config_subscription *s, struct text *why,
                         const char **ret_queue) {
    const char *store = kit_queue_store(t->l->config, s->broker);
    struct leg *queue = legs_find(t->l, store);
    const json_t *q = store ? copy_of(t, s->consumer, store) : NULL;
    char a[32], b[32];
    bool sent = t->row && strcmp(row_text(t->row, "status"), "sent") == 0;
    *ret_queue = "none";
    if (!queue || !queue->db) {
        *ret_queue = "not_readable";
        message_add(why, MSG_TRACE_QUEUE_LOST, store ? store : "–");
    } else if (q && row_has(q, "acked_at")) {
        *ret_queue = "acked";
        message_add(why, s->at_most_once ? MSG_TRACE_AT_MOST_ONCE : MSG_TRACE_QUEUE_ACKED,
                    out_time(row_int(q, "acked_at"), a));
    } else if (q && row_has(q, "lease_until") && row_int(q, "lease_until") > queue->now) {
        *ret_queue = "leased";
        message_add(why, MSG_TRACE_QUEUE_LEASED, out_time(row_int(q, "delivered_at"), a),
                    out_time(row_int(q, "lease_until"), b));
    } else if (q) {
        *ret_queue = "waiting";
        snprintf(a, sizeof a, "%" PRId64, row_int(q, "pos"));
        message_add(why, MSG_TRACE_QUEUE_WAITS, a, (int)row_int(q, "deliveries"));
    } else if (t->row && !sent) {
        message_add(why, MSG_TRACE_NOT_SENT);
    } else {
        message_add(why, MSG_TRACE_NO_COPY);
    }
}

static void why_not_handled(const json_t *i, struct text *why) {
    char at[32];
    out_time(row_int(i, "next_attempt_at"), at);
    if (strcmp(row_text(i, "state"), "processing") == 0)
        message_add(why, MSG_TRACE_PROCESSING, out_time(row_int(i, "lease_until"), at));
    else if (!row_has(i, "work_status"))
        message_add(why, MSG_TRACE_PARKED_LOST);
    else if (row_int(i, "waits_for") == WAITS_KEY)
        message_add(why, MSG_TRACE_PARKED_KEY);
    else if (row_int(i, "waits_for") == WAITS_EARLY)
        message_add(why, MSG_TRACE_PARKED_EARLY, at);
    else
        message_add(why, MSG_TRACE_PARKED_DUE, at, (int)row_int(i, "failures"));
}

static void missing_at(struct trace *t, const struct config_subscription *s) {
    struct leg *g = legs_find(t->l, s->store);
    const json_t *i = inbox_of(t, s);
    const char *queue = "none", *state = i ? row_text(i, "state") : "";
    char line[700];
    struct text why;
    text_init(&why, line, sizeof line);
    if (!g || !g->db)
        return; /* the store is stated as missing already */
    if (!i) {
        why_no_inbox(t, s, &why, &queue);
        out_put(missing(t, s->store, "inbox", s->consumer, &why), "queue", json_string(queue));
    } else if (strcmp(state, "waiting") == 0 || strcmp(state, "processing") == 0) {
        why_not_handled(i, &why);
        missing(t, s->store, "handled", s->consumer, &why);
    }
}

static void missing_all(struct trace *t) {
    const struct config *c = t->l->config;
    uint32_t covered = 0;
    missing_stores(t);
    if (!t->row)
        missing_outbox(t);
    else {
        const struct leg *g = legs_find(t->l, t->row_store);
        missing_confirm(t, g ? g->now : 0);
    }
    if (!t->type[0])
        return; /* nobody knows the type, so nobody can say whom it concerns */
    bool cancelled = t->row && strcmp(row_text(t->row, "status"), "cancelled") == 0;
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        bool covers = kit_covers(c, &c->subscription[i], t->type);
        covered += covers;
        if ((covers && !cancelled) || inbox_of(t, &c->subscription[i]))
            missing_at(t, &c->subscription[i]);
    }
    if (covered == 0 && !cancelled) {
        char line[400];
        struct text why;
        text_init(&why, line, sizeof line);
        message_add(&why, MSG_TRACE_NO_CONSUMER, t->type);
        missing(t, NULL, "consumer", NULL, &why);
    }
}

/* ---- order and answer ---- */

struct place {
    int64_t at;
    int rank;
    size_t index;
};

static int rank_of(const char *kind) {
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kind, kinds[i].name) == 0)
            return (int)i;
    return (int)ARRAY_LEN(kinds) - 3; /* a kind put in by hand: before what is so now */
}

static int by_place(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool same_member(const json_t *a, const json_t *b, const char *key) {
    return row_has(a, key) && row_has(b, key) && row_int(a, key) == row_int(b, key);
}

/* The confirm of an embedded broker is the commit of the copy; the outbox row says only when it was
 * marked, which may be after the copy was handled. */
static void confirmed_by(const struct trace *t, const json_t *copy) {
    size_t i;
    json_t *f;
    int64_t at = row_int(copy, "at");
    json_array_foreach(t->facts, i, f) {
        bool confirmed = strcmp(row_text(f, "kind"), "confirmed") == 0 &&
                         same_member(f, copy, "broker_pos") && same_member(f, copy, "broker_part");
        bool published = strcmp(row_text(f, "kind"), "published") == 0 &&
                         strcmp(row_text(f, "source"), "outbox") == 0;
        if (row_int(f, "at") <= at || (!confirmed && !published))
            continue;
        if (confirmed)
            out_put(f, "marked_at", json_incref(json_object_get(f, "at")));
        out_put(f, "at", json_integer(at));
    }
}

/* Copies of an earlier attempt are older than the row's own publish. */
static void date_confirms(const struct trace *t) {
    size_t i, k;
    json_t *f, *copy;
    json_array_foreach(t->facts, i, f) {
        if (strcmp(row_text(f, "kind"), "confirmed") != 0)
            continue;
        json_array_foreach(t->facts, k, copy) {
            if (strcmp(row_text(copy, "source"), "queue") == 0 &&
                same_member(f, copy, "broker_pos") && same_member(f, copy, "broker_part"))
                confirmed_by(t, copy);
        }
    }
}

/* The facts in order, in public form. */
static json_t *ordered(const json_t *facts) {
    size_t n = json_array_size(facts), i;
    json_t *list = json_array(), *f;
    struct place *place = calloc(n ? n : 1, sizeof *place);
    json_array_foreach(facts, i, f) {
        if (place)
            place[i] = (struct place){row_has(f, "at") ? row_int(f, "at") : INT64_MAX,
                                      rank_of(row_text(f, "kind")), i};
    }
    if (place)
        qsort(place, n, sizeof *place, by_place);
    for (i = 0; i < n; i++) {
        out_append(list, kit_public(json_array_get(facts, place ? place[i].index : i), true));
    }
    free(place);
    return list;
}

static json_t *consumers(const struct trace *t) {
    const struct config *c = t->l->config;
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        const struct config_subscription *s = &c->subscription[i];
        const json_t *row = inbox_of(t, s);
        json_t *o = json_object();
        out_put(o, "consumer_name", out_json_string(s->consumer));
        out_put(o, "store", out_json_string(s->store));
        out_put(o, "match", out_json_string(s->match));
        out_put(o, "covers", t->type[0] ? json_boolean(kit_covers(c, s, t->type)) : json_null());
        out_put(o, "state", row ? out_json_string(row_text(row, "state")) : json_null());
        out_append(list, o);
    }
    return list;
}

static json_t *event_of(const struct trace *t) {
    static const char *const keys[] = {"event_type",
                                       "aggregate_type",
                                       "aggregate_id",
                                       "aggregate_version",
                                       "schema_version",
                                       "status",
                                       "attempts",
                                       "failures",
                                       "seq",
                                       NULL};
    if (!t->row)
        return json_null();
    json_t *o = json_object();
    out_put(o, "store", out_json_string(t->row_store));
    take_all(o, t->row, keys);
    json_t *shown = kit_public(o, false);
    json_decref(o);
    return shown;
}

static json_t *results_of(const struct trace *t) {
    json_t *list = json_array(), *row;
    size_t i;
    json_array_foreach(t->results, i, row) out_append(list, kit_public(row, false));
    return list;
}

json_t *trace_collect(struct legs *l, const char *event_id, bool *ret_found) {
    struct trace t = {.l = l,
                      .id = event_id,
                      .facts = json_array(),
                      .inbox = json_array(),
                      .copies = json_array(),
                      .results = json_array()};
    for (uint32_t i = 0; i < l->n; i++)
        look(&t, &l->leg[i]);
    *ret_found = json_array_size(t.facts) > 0;
    missing_all(&t);
    json_t *o = json_object();
    out_put(o, "event_id", out_json_string(event_id));
    out_put(o, "event", event_of(&t));
    date_confirms(&t);
    out_put(o, "facts", ordered(t.facts));
    out_put(o, "consumers", consumers(&t));
    out_put(o, "results", results_of(&t));
    json_decref(t.facts);
    json_decref(t.inbox);
    json_decref(t.copies);
    json_decref(t.results);
    json_decref(t.row);
    return o;
}

/* ---- for people ---- */

static const char *kind_shown(const char *kind) {
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kind, kinds[i].name) == 0)
            return message(kinds[i].shown);
    return kind;
}

/* Everything that a fact says beside its instant, store and kind, as "name value, name value". */
static void detail(const json_t *f, struct text *t) {
    const char *key;
    json_t *v;
    if (json_object_get(f, "text")) {
        if (row_has(f, "consumer_name"))
            text_add(t, "%s: ", row_text(f, "consumer_name"));
        text_add(t, "%s", row_text(f, "text"));
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)f, key, v) {
        if (strcmp(key, "at") == 0 || strcmp(key, "store") == 0 || strcmp(key, "kind") == 0)
            continue;
        if (json_is_string(v))
            text_add(t, "%s%s %s", t->used ? ", " : "", key, json_string_value(v));
        else if (json_is_integer(v))
            text_add(t, "%s%s %" PRId64, t->used ? ", " : "", key, (int64_t)json_integer_value(v));
    }
}

static void print_head(struct out *o, const json_t *d) {
    const json_t *e = json_object_get(d, "event");
    char line[900], id[600], type[400], key[600];
    struct text t;
    text_init(&t, line, sizeof line);
    out_safe_text(row_text(d, "event_id"), id, sizeof id);
    if (!json_is_object(e)) {
        out_line(o, "%s", id);
        return;
    }
    message_add(&t, MSG_TRACE_HEAD, out_safe_text(row_text(e, "event_type"), type, sizeof type), id,
                out_safe_text(row_text(e, "aggregate_id"), key, sizeof key),
                row_text(e, "aggregate_version"));
    enum tone tone = tone_of(row_text(e, "status"));
    out_line(o, "%s  %s%s%s", line, tone_begin(o->color, tone),
             out_safe_text(row_text(e, "status"), key, sizeof key), tone_end(o->color, tone));
}

static void print_facts(struct out *o, const json_t *facts) {
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_AT), message(MSG_COL_FACT),
                                 message(MSG_COL_DETAIL)};
    struct table *t = table_new(4, heads, "llll");
    char line[2000];
    size_t i;
    json_t *f;
    json_array_foreach(facts, i, f) {
        struct text d;
        text_init(&d, line, sizeof line);
        detail(f, &d);
        table_cell(t, row_has(f, "store") ? row_text(f, "store") : "–");
        table_cell(t, row_has(f, "at") ? row_text(f, "at") : "–");
        table_cell(t, kind_shown(row_text(f, "kind")));
        table_cell(t, line);
    }
    table_print(t, o);
    table_free(t);
}

static void print_results(struct out *o, const json_t *results) {
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_AT),
                                 message(MSG_COL_RESULT), message(MSG_COL_TYPE),
                                 message(MSG_COL_STATUS)};
    if (json_array_size(results) == 0)
        return;
    struct table *t = table_new(5, heads, "lllll");
    size_t i;
    json_t *r;
    json_array_foreach(results, i, r) {
        table_cell(t, row_text(r, "store"));
        table_cell(t, row_text(r, "created_at"));
        table_cell(t, row_text(r, "event_id"));
        table_cell(t, row_text(r, "event_type"));
        table_cell_state(t, row_text(r, "status"));
    }
    out_line(o, "%s", "");
    table_print(t, o);
    table_free(t);
}

static void print(struct command_call *c, const json_t *d) {
    const json_t *results = json_object_get(d, "results");
    print_head(c->out, d);
    print_facts(c->out, json_object_get(d, "facts"));
    print_results(c->out, results);
    if (json_array_size(results) > 0)
        command_next_to(c, "event trace", row_text(json_array_get(results, 0), "event_id"));
    else if (json_is_object(json_object_get(d, "event")))
        command_next_to(c, "event show", row_text(d, "event_id"));
    else
        command_next_to(c, "event find", row_text(d, "event_id"));
}

static void answer(struct command_call *c, json_t *d) {
    if (c->out->format == OUT_JSON) {
        json_t *doc = out_document("trace");
        json_object_update(doc, d);
        out_json(c->out, doc);
    } else if (c->out->format == OUT_JSONL) {
        out_list(c->out, "trace", json_incref(json_object_get(d, "facts")), NULL);
    } else {
        print(c, d);
    }
}

int trace_command(struct command_call *c) {
    struct legs l;
    bool found = false;
    char safe[400];
    int code = 0;
    legs_open(&l, c->config, NULL, DB_READ_ONLY);
    json_t *d = trace_collect(&l, c->arg[0], &found);
    legs_talk(&l, c->out);
    if (!found && legs_lost(&l) == 0) {
        code = out_fail(c->out, ERR_NOT_FOUND, NULL, NULL, "%s",
                        out_safe_text(c->arg[0], safe, sizeof safe));
    } else {
        answer(c, d);
        code = found ? 0 : 69;
    }
    json_decref(d);
    legs_close(&l);
    return code;
}
