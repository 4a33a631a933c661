/* test_sqlite_order.c: policies of event types on SQLite: what APPLY leaves in entities and gaps. */
#include "core/handler.h"
#include "core/order.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

struct place {
    char path[64], url[80];
    void *conn;
    struct db *db;
    uint32_t runs; /* of the handler */
    csn_verdict says;
    uint64_t seq;
};

static struct order_machine machine;
static struct order_rule rules[] = {
    {.event_type = "Snap", .policy = POLICY_SNAPSHOT, .deadline = 1000000},
    {.event_type = "Open", .policy = POLICY_COMMAND, .machine = &machine, .to = 0, .deadline = 1},
    {.event_type = "Send", .policy = POLICY_COMMAND, .machine = &machine, .to = 1, .deadline = 1},
    {.event_type = "Arrive",
     .policy = POLICY_COMMAND,
     .machine = &machine,
     .to = 2,
     .deadline = 1}};
static const struct order order = {rules, ARRAY_LEN(rules)};

static int set_up(void **state) {
    struct place *p = calloc(1, sizeof *p);
    csn_error err = {0};
    snprintf(p->path, sizeof p->path, "/tmp/consign-order-%d.db", (int)getpid());
    snprintf(p->url, sizeof p->url, "sqlite:%s", p->path);
    assert_int_equal(schema_apply(p->url, &err), CSN_OK);
    assert_int_equal(sqlite_driver.open(p->url, ROLE_APPLY, &p->conn, &err), CSN_OK);
    assert_int_equal(db_open(p->url, 0, &p->db, &err), CSN_OK);
    assert_true(order_machine_parse("parcel", "OPEN > SENT; SENT > ARRIVED", &machine));
    *state = p;
    return 0;
}

static int tear_down(void **state) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    struct place *p = *state;
    char path[80];
    sqlite_driver.close(p->conn);
    db_close(p->db);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        snprintf(path, sizeof path, "%s%s", p->path, ends[i]);
        unlink(path);
    }
    free(p);
    return 0;
}

static csn_verdict count(const struct message *m, void *arg) {
    struct place *p = arg;
    (void)m;
    p->runs++;
    return p->says;
}

static struct apply_item apply(struct place *p, const char *id, const char *type, uint64_t version,
                               uint64_t prev) {
    struct message m = {.id = bytes_of(id),
                        .aggregate_type = bytes_of("parcel"),
                        .aggregate_id = bytes_of("k"),
                        .event_type = bytes_of(type),
                        .payload = bytes_of("{}"),
                        .version = version,
                        .prev_version = prev,
                        .schema_version = 1,
                        .seq = ++p->seq,
                        .expires_in = CSN_USEC_NEVER};
    struct batch b = {.msg = &m, .n = 1, .cap = 1};
    struct apply_item item = {.msg = 0};
    struct handler h = {.function = count, .arg = p};
    struct op op = {.kind = OP_APPLY,
                    .batch = &b,
                    .deadline = sqlite_steady() + 60000000,
                    .apply = {.consumer = "c",
                              .handler = &h,
                              .order = &order,
                              .source = SOURCE_BROKER,
                              .item = &item,
                              .n = 1}};
    sqlite_driver.run(p->conn, &op);
    if (op.result.status != CSN_OK)
        fail_msg("%s", op.result.text);
    assert_int_equal(item.out, APPLY_VERDICT);
    return item;
}

static int64_t number(struct place *p, const char *sql) {
    int64_t n = -1;
    bool row = false;
    csn_error err = {0};
    if (db_int(p->db, sql, NULL, 0, &n, &row, &err) != CSN_OK)
        fail_msg("%s", err.text);
    return n;
}

static void entity_is(struct place *p, int64_t version, int64_t open, int64_t closed) {
    assert_int_equal(number(p, "SELECT version FROM consign_entities"), version);
    assert_int_equal(number(p, "SELECT gaps FROM consign_entities"), open);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_gaps WHERE closed_at IS NULL"), open);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_gaps WHERE closed_at NOT NULL"),
                     closed);
}

static void a_snapshot_never_goes_back(void **state) {
    struct place *p = *state;
    assert_int_equal(apply(p, "e1", "Snap", 1, 0).verdict, CSN_DONE);
    entity_is(p, 1, 0, 0);
    assert_int_equal(apply(p, "e4", "Snap", 4, 3).verdict, CSN_DONE);
    entity_is(p, 4, 1, 0);
    assert_int_equal(p->runs, 2);
    struct apply_item late = apply(p, "e3", "Snap", 3, 2);
    assert_int_equal(late.verdict, CSN_LATE);
    assert_int_equal(late.code, ERR_ORDER_LATE);
    assert_non_null(strstr(late.text, "e4"));
    entity_is(p, 4, 1, 1); /* 2 is still missing */
    assert_int_equal(apply(p, "e2", "Snap", 2, 1).verdict, CSN_LATE);
    entity_is(p, 4, 0, 2);
    assert_int_equal(apply(p, "e4b", "Snap", 4, 3).verdict, CSN_LATE);
    entity_is(p, 4, 0, 2);
    assert_int_equal(p->runs, 2);
    assert_int_equal(number(p, "SELECT count(*) FROM consumer_inbox WHERE state = 'done'"), 5);
}

static void what_is_not_committed_leaves_no_trace(void **state) {
    struct place *p = *state;
    p->says = CSN_RETRY;
    assert_int_equal(apply(p, "e5", "Snap", 5, 4).verdict, CSN_RETRY);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_entities"), 0);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_gaps"), 0);
}

static void a_command_takes_legal_moves_only(void **state) {
    struct place *p = *state;
    assert_int_equal(apply(p, "a0", "Arrive", 3, 2).verdict,
                     CSN_EARLY); /* it can be reached still */
    assert_int_equal(apply(p, "o1", "Open", 1, 0).verdict, CSN_DONE);
    assert_int_equal(apply(p, "o2", "Open", 2, 1).verdict, CSN_DUPLICATE);
    assert_int_equal(apply(p, "s3", "Send", 3, 2).verdict, CSN_DONE);
    assert_int_equal(apply(p, "a4", "Arrive", 4, 3).verdict, CSN_DONE);
    struct apply_item back = apply(p, "s5", "Send", 5, 4);
    assert_int_equal(back.verdict, CSN_CONFLICT);
    assert_int_equal(back.code, ERR_ORDER_MOVE);
    assert_int_equal(apply(p, "o3", "Open", 3, 2).verdict, CSN_LATE);
    assert_int_equal(p->runs, 3);
    entity_is(p, 4, 0, 0);
    assert_int_equal(number(p, "SELECT state = 'ARRIVED' FROM consign_entities"), 1);
}

/* A refusal is no move. */
static void a_refused_command_keeps_the_state(void **state) {
    struct place *p = *state;
    p->says = CSN_REFUSED;
    assert_int_equal(apply(p, "o1", "Open", 1, 0).verdict, CSN_REFUSED);
    p->says = CSN_DONE;
    assert_int_equal(apply(p, "o2", "Open", 2, 1).verdict, CSN_DONE);
    entity_is(p, 2, 0, 0);
}

/* It is counted all the same, so that it is no gap. */
static void a_type_without_a_policy_runs_at_any_version(void **state) {
    struct place *p = *state;
    assert_int_equal(apply(p, "e2", "Other", 2, 0).verdict, CSN_DONE);
    assert_int_equal(apply(p, "e1", "Other", 1, 0).verdict, CSN_DONE);
    assert_int_equal(p->runs, 2);
    assert_int_equal(apply(p, "e3", "Snap", 3, 2).verdict, CSN_DONE);
    entity_is(p, 3, 0, 0);
}

int main(void) {
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_snapshot_never_goes_back),
        TEST(what_is_not_committed_leaves_no_trace),
        TEST(a_command_takes_legal_moves_only),
        TEST(a_refused_command_keeps_the_state),
        TEST(a_type_without_a_policy_runs_at_any_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
