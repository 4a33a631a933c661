/* fake_store.c: tables, keys and small tools of the fake; see fake_store.h. The verbs are in the
 * other fake_ files. */
#include "fake_store.h"

#include <stdio.h>
#include <stdlib.h>

enum { ARENA_LIMIT = 1 << 28, FIRST_SLOTS = 1024 };

/* A test program without memory has nothing to say any more. */
static void *must(void *p) {
    if (!p) {
        fputs("fake store: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *fake_take(struct fake_store *s, size_t size) {
    void *p = must(arena_take(&s->arena, size));
    memset(p, 0, size);
    return p;
}

csn_bytes fake_copy(struct fake_store *s, csn_bytes b) {
    if (b.size == 0)
        return (csn_bytes){NULL, 0};
    csn_bytes copy = arena_copy(&s->arena, b);
    must((void *)(uintptr_t)copy.data);
    return copy;
}

void fake_list_add(struct fake_list *l, void *p) {
    if (l->n == l->cap) {
        l->cap = l->cap ? l->cap * 2 : 64;
        l->at = must(realloc(l->at, l->cap * sizeof *l->at));
    }
    l->at[l->n++] = p;
}

/* ---- the map: open addressing, never deletes; a key that was deleted maps to a row that says so ---- */

static uint32_t map_slot(const struct fake_map *m, uint64_t key) {
    uint32_t at = (uint32_t)(key >> 20) & (m->cap - 1);
    while (m->slot[at].value && m->slot[at].key != key)
        at = (at + 1) & (m->cap - 1);
    return at;
}

void *fake_map_get(const struct fake_map *m, uint64_t key) {
    return m->cap ? m->slot[map_slot(m, key)].value : NULL;
}

static void map_grow(struct fake_map *m) {
    struct fake_map bigger = {.cap = m->cap ? m->cap * 2 : FIRST_SLOTS};
    bigger.slot = must(calloc(bigger.cap, sizeof *bigger.slot));
    for (uint32_t i = 0; i < m->cap; i++)
        if (m->slot[i].value)
            fake_map_set(&bigger, m->slot[i].key, m->slot[i].value);
    free(m->slot);
    *m = bigger;
}

void fake_map_set(struct fake_map *m, uint64_t key, void *value) {
    if (m->n * 2 >= m->cap)
        map_grow(m);
    uint32_t at = map_slot(m, key);
    m->n += m->slot[at].value == NULL;
    m->slot[at].key = key;
    m->slot[at].value = value;
}

void fake_map_clear(struct fake_map *m) {
    if (m->n)
        memset(m->slot, 0, m->cap * sizeof *m->slot);
    m->n = 0;
}

/* The hash takes its seed into the first byte: seeds that lie side by side would let neighbours
 * meet. */
static uint64_t apart(uint32_t space) {
    return (space + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
}

uint64_t fake_id_hash(uint32_t consumer, csn_bytes id) {
    return bytes_hash(id, apart(consumer));
}

/* ---- making, emptying, freeing ---- */

void fake_store_init(struct fake_store *s, const char *name, const csn_usec *mono,
                     uint32_t outbox_lanes) {
    *s = (struct fake_store){.name = name, .mono = mono, .outbox_lanes = outbox_lanes};
    arena_init(&s->arena, ARENA_LIMIT);
    s->taken = must(calloc(BATCH_MAX, sizeof *s->taken));
}

static void each_list(struct fake_store *s, void (*f)(struct fake_list *)) {
    struct fake_list *const lists[] = {
        &s->outbox.row, &s->outbox.live, &s->work.row, &s->work.live, &s->key,    &s->inbox,
        &s->queue,      &s->queue_live,  &s->attempt,  &s->dead,      &s->effect, &s->member};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        f(lists[i]);
    for (uint32_t i = 0; i < FAKE_CONSUMERS_MAX; i++)
        f(&s->effects_of[i]);
}

static void each_map(struct fake_store *s, void (*f)(struct fake_map *)) {
    f(&s->outbox_by_id);
    f(&s->keys);
    f(&s->inbox_by_id);
    f(&s->work_by_id);
    f(&s->dead_by_id);
}

static void list_clear(struct fake_list *l) {
    l->n = 0;
}

static void list_free(struct fake_list *l) {
    free(l->at);
}

static void map_free(struct fake_map *m) {
    free(m->slot);
}

void fake_store_reset(struct fake_store *s) {
    each_list(s, list_clear);
    each_map(s, fake_map_clear);
    arena_reset(&s->arena);
    s->outbox.seq = s->work.seq = 0;
    s->consumers = s->lane_sets = 0;
    memset(s->binding, 0, sizeof s->binding);
    s->pos = 0;
    s->serial = 0;
    s->offset = s->ahead = s->newest = 0;
}

void fake_store_free(struct fake_store *s) {
    each_list(s, list_free);
    each_map(s, map_free);
    arena_free(&s->arena);
    free(s->taken);
    free(s->due);
}

csn_usec fake_now(const struct fake_store *s) {
    return *s->mono + s->offset;
}

void fake_read_clock(struct fake_store *s) {
    if (s->ahead - s->offset > SET_BACK && *s->mono + s->ahead > s->newest)
        s->newest = *s->mono + s->ahead;
    s->ahead = s->offset;
}

uint32_t fake_consumer(struct fake_store *s, const char *name) {
    for (uint32_t i = 0; i < s->consumers; i++)
        if (strcmp(s->consumer[i], name) == 0)
            return i;
    must(s->consumers < FAKE_CONSUMERS_MAX ? s : NULL);
    copy_text(s->consumer[s->consumers], NAME_MAX_, name);
    return s->consumers++;
}

struct fake_lanes *fake_lanes_find(struct fake_store *s, const char *name) {
    for (uint32_t i = 0; i < s->lane_sets; i++)
        if (strcmp(s->lanes[i]->name, name) == 0)
            return s->lanes[i];
    must(s->lane_sets < FAKE_LANE_SETS_MAX ? s : NULL);
    struct fake_lanes *l = fake_take(s, sizeof *l);
    copy_text(l->name, sizeof l->name, name);
    s->lanes[s->lane_sets++] = l;
    return l;
}

/* ---- keys and rows ---- */

struct fake_key *fake_key_of(struct fake_store *s, uint32_t space, csn_bytes type, csn_bytes id) {
    uint64_t hash = bytes_hash(id, bytes_hash(type, apart(space)));
    struct fake_key *k = fake_map_get(&s->keys, hash);
    if (k)
        return k;
    k = fake_take(s, sizeof *k);
    k->type = fake_copy(s, type);
    k->id = fake_copy(s, id);
    k->consumer = space;
    fake_map_set(&s->keys, hash, k);
    fake_list_add(&s->key, k);
    return k;
}

/* Where a row with this version and number stands, or would stand, in its key. */
static uint32_t key_place(const struct fake_key *k, uint64_t version, int64_t seq) {
    uint32_t low = 0, high = k->n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        const struct fake_row *r = k->row[mid];
        if (r->content.version < version || (r->content.version == version && r->seq < seq))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void key_insert(struct fake_store *s, struct fake_key *k, struct fake_row *r) {
    if (k->n == k->cap) {
        uint32_t cap = k->cap ? k->cap * 2 : 8;
        struct fake_row **rows = fake_take(s, cap * sizeof *rows);
        if (k->n)
            memcpy(rows, k->row, k->n * sizeof *rows);
        k->row = rows;
        k->cap = cap;
    }
    uint32_t at = key_place(k, r->content.version, r->seq);
    memmove(k->row + at + 1, k->row + at, (k->n - at) * sizeof *k->row);
    k->row[at] = r;
    k->n++;
}

void fake_row_drop(struct fake_row *r) {
    struct fake_key *k = r->key;
    uint32_t at = key_place(k, r->content.version, r->seq);
    k->n--;
    memmove(k->row + at, k->row + at + 1, (k->n - at) * sizeof *k->row);
}

struct fake_row *row_before(const struct fake_row *r) {
    uint32_t at = key_place(r->key, r->content.version, r->seq);
    while (at && r->key->row[at - 1]->status == ROW_CANCELLED)
        at--; /* a cancelled row is looked past: it must not open the way round a head that failed
               */
    return at ? r->key->row[at - 1] : NULL;
}

bool row_ended(const struct fake_row *r) {
    return r->status == ROW_SENT || r->status == ROW_CANCELLED || r->status == ROW_GONE;
}

static void list_live(struct fake_table *t, struct fake_row *r) {
    if (!r->live)
        fake_list_add(&t->live, r);
    r->live = true;
}

void fake_row_add(struct fake_store *s, struct fake_table *t, struct fake_row *r) {
    r->seq = ++t->seq;
    fake_list_add(&t->row, r);
    list_live(t, r);
    key_insert(s, r->key, r);
}

void fake_move(struct fake_store *s, struct fake_row *r, enum row_status to) {
    bool work = r->key->consumer != 0;
    enum row_status from = r->status;
    r->status = (uint8_t)to;
    if (to != ROW_SENDING) {
        r->token[0] = '\0';
        r->lease_until = 0;
    }
    if (to != ROW_WAITING)
        r->waits_for = WAITS_NONE;
    if (!row_ended(r))
        list_live(work ? &s->work : &s->outbox, r);
    if (s->eyes.moved)
        s->eyes.moved(s->eyes.arg, s, r, from, work);
}

const char *row_status_name(enum row_status status) {
    static const char *const names[] = {"pending", "sending", "sent",      "unknown", "waiting",
                                        "failed",  "held",    "cancelled", "gone"};
    return names[status];
}

void fake_message_copy(struct fake_store *s, struct message *to, const struct message *from) {
    if (!fake_message_give(&s->arena, to, from))
        must(NULL);
}

bool fake_message_give(struct arena *a, struct message *to, const struct message *from) {
    static const size_t fields[] = {
        offsetof(struct message, id),           offsetof(struct message, aggregate_type),
        offsetof(struct message, aggregate_id), offsetof(struct message, event_type),
        offsetof(struct message, payload),      offsetof(struct message, headers),
        offsetof(struct message, traceparent),  offsetof(struct message, correlation_id),
        offsetof(struct message, causation_id), offsetof(struct message, tenant),
        offsetof(struct message, route)};
    *to = *from;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        csn_bytes *b = (csn_bytes *)(void *)((char *)to + fields[i]);
        if (b->size == 0)
            continue;
        *b = arena_copy(a, *b);
        if (!b->data)
            return false;
    }
    return true;
}

struct fake_row *fake_insert(struct fake_store *s, const struct message *m, csn_usec due_in,
                             csn_usec expires_in) {
    csn_usec now = fake_now(s);
    struct fake_row *r = fake_take(s, sizeof *r);
    fake_message_copy(s, &r->content, m);
    if (!r->content.schema_version)
        r->content.schema_version = 1;
    r->key = fake_key_of(s, 0, m->aggregate_type, m->aggregate_id);
    r->slot = s->outbox_lanes > 1
                  ? fake_partition(m->aggregate_type, m->aggregate_id, s->outbox_lanes)
                  : 0;
    r->created_at = now;
    r->next_attempt_at = now + due_in;
    r->expires_at = expires_in ? now + expires_in : 0;
    r->sent_by = r->broker_part = r->broker_pos = -1;
    fake_row_add(s, &s->outbox, r);
    fake_map_set(&s->outbox_by_id, fake_id_hash(0, m->id), r);
    if (r->key->version < m->version)
        r->key->version = m->version;
    return r;
}

struct fake_row *fake_outbox_find(struct fake_store *s, csn_bytes id) {
    return fake_map_get(&s->outbox_by_id, fake_id_hash(0, id));
}

struct fake_inbox *fake_inbox_find(struct fake_store *s, uint32_t consumer, csn_bytes id) {
    struct fake_inbox *b = fake_map_get(&s->inbox_by_id, fake_id_hash(consumer, id));
    return b && !b->gone ? b : NULL;
}

struct fake_row *fake_work_find(struct fake_store *s, uint32_t consumer, csn_bytes id) {
    struct fake_row *r = fake_map_get(&s->work_by_id, fake_id_hash(consumer, id));
    return r && r->status != ROW_GONE ? r : NULL;
}

struct fake_dead *fake_dead_find(struct fake_store *s, uint32_t consumer, csn_bytes id) {
    return fake_map_get(&s->dead_by_id, fake_id_hash(consumer, id));
}

void fake_attempt_add(struct fake_store *s, const struct fake_row *r, const char *side,
                      const char *kind, int32_t code, const char *text, csn_usec planned_at) {
    struct fake_attempt *a = fake_take(s, sizeof *a);
    *a = (struct fake_attempt){.id = r->content.id,
                               .text = fake_copy(s, bytes_of(text)),
                               .side = side,
                               .kind = kind,
                               .consumer = r->consumer,
                               .attempt = r->attempts,
                               .code = code,
                               .at = fake_now(s),
                               .planned_at = planned_at,
                               .started_at = r->claimed_at};
    fake_list_add(&s->attempt, a);
}

/* The row of the key that comes next waits for it; not when one before the followers is under way. */
static bool next_waits(const struct fake_key *k, uint32_t from) {
    while (from < k->n && k->row[from]->status == ROW_CANCELLED)
        from++;
    return from < k->n && k->row[from]->status == ROW_WAITING &&
           k->row[from]->waits_for == WAITS_KEY;
}

/* In order, at most so many; those that follow are released when these end. */
uint32_t fake_release_followers(struct fake_store *s, struct fake_row *ended) {
    struct fake_key *k = ended->key;
    struct fake_row *follower[FOLLOWERS_MAX];
    csn_usec due = fake_now(s) - FOLLOWERS_MAX;
    uint32_t released = 0, from = key_place(k, ended->content.version, ended->seq) + 1;
    for (uint32_t i = from; next_waits(k, from) && i < k->n && released < FOLLOWERS_MAX; i++) {
        struct fake_row *r = k->row[i];
        if (r->status != ROW_WAITING || r->waits_for != WAITS_KEY)
            continue;
        due = r->next_attempt_at < due ? r->next_attempt_at : due;
        follower[released++] = r;
    }
    for (uint32_t i = 0; i < released; i++) {
        follower[i]->next_attempt_at = due + 1 + i;
        fake_move(s, follower[i], ROW_PENDING);
    }
    return released;
}

void fake_operate(struct fake_store *s, struct fake_row *r, enum row_status to, bool release) {
    const struct fake_row *before = row_before(r);
    fake_move(s, r, to);
    if (release && row_ended(r) && (!before || row_ended(before)))
        fake_release_followers(s, r); /* else they go on waiting for what is before it */
}

void fake_run(struct fake_store *s, struct op *op) {
    static void (*const verbs[OP_KIND_NR])(struct fake_store *, struct op *) = {
        [OP_LEASE] = fake_lease,     [OP_WATCH] = fake_watch,     [OP_CLAIM] = fake_claim,
        [OP_SETTLE] = fake_settle,   [OP_RENEW] = fake_renew,     [OP_RECOVER] = fake_recover,
        [OP_APPLY] = fake_apply,     [OP_PARK] = fake_park,       [OP_DECLARE] = fake_declare,
        [OP_PUBLISH] = fake_publish, [OP_RECEIVE] = fake_receive, [OP_ACK] = fake_ack,
        [OP_TRY] = fake_try};
    error_clear(&op->result);
    fake_read_clock(s);
    verbs[op->kind](s, op);
}

bool fake_group_allowed(struct fake_store *s, struct op *first) {
    for (struct op *op = first; op; op = op->next) {
        csn_error err = {0};
        if (op->kind != OP_DECLARE || fake_declare_allowed(s, op, &err))
            continue;
        for (struct op *o = first; o; o = o->next)
            o->result = err;
        return false;
    }
    return true;
}
