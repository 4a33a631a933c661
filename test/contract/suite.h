/* suite.h: short words for the tests of the contract suite. A test gets a fresh world in which
 * process A holds all lanes of "outbox"; everything that a helper hands out lives until the test
 * ends. */
#ifndef CSN_TEST_CONTRACT_SUITE_H
#define CSN_TEST_CONTRACT_SUITE_H

#include "test/contract/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define BOOT_A             "aaaaaaaa-0000-4000-8000-00000000000a"
#define BOOT_B             "bbbbbbbb-0000-4000-8000-00000000000b"
#define SAYS(verdict)      "{\"verdict\":\"" verdict "\",\"emit\":0}"
#define SAYS_EMIT(verdict) "{\"verdict\":\"" verdict "\",\"emit\":1}"
#define SECOND             INT64_C(1000000)
#define MINUTE             (60 * SECOND)
#define HOUR               (60 * MINUTE)

enum { ANSWER_ROUNDS_MAX = 1000000 };

struct kept; /* something to free at the end of the test */

struct suite {
    struct world *w;
    struct port *port[ROLE_NR];    /* of process A, opened when first asked for */
    uint64_t lanes;                /* all lanes of the outbox */
    uint64_t epoch[LANE_MAX];      /* of A's lanes of the outbox */
    uint64_t part_epoch[LANE_MAX]; /* of A's partitions, once hold_parts was called */
    uint32_t tokens;
    struct op *kept_claim; /* a test's own, between its steps */
    struct kept *kept;
};

/* Every test of a file is in its table; a table ends with a NULL name. */
extern const struct CMUnitTest suite_claim[], suite_settle[], suite_lease[], suite_broker[],
    suite_apply[], suite_park[], suite_group[];

int suite_setup(void **state);
int suite_teardown(void **state);
#define TEST(f) cmocka_unit_test_setup_teardown(f, suite_setup, suite_teardown)
#define TEST_END                                                                                   \
    { NULL, NULL, NULL, NULL, NULL }

void need(struct suite *s, uint32_t can); /* skips the test in a world without these bits */
void *keep(struct suite *s, size_t size); /* zeroed */
void release(struct suite *s,
             struct kept *mark); /* gives back what was handed out since s->kept was mark */

/* Instants of the store: equal within the world's tolerance. */
void near(struct suite *s, csn_usec actual, csn_usec expected);

/* Running ops. */
struct port *port_of(struct suite *s, enum role role);
struct port *another_port(struct suite *s,
                          enum role role); /* of another process; closed at the end */
enum role role_of(const struct op *op);
void group(struct suite *s, struct port *p, struct op **op, uint32_t n);
csn_status answer(struct suite *s, struct port *p, struct op *op);
void run(struct suite *s, struct op *op); /* on A's port for it; must be CSN_OK */
void run_on(struct suite *s, struct port *p, struct op *op);

/* Building ops. */
struct op *new_op(struct suite *s, enum op_kind kind);
struct batch *new_batch(struct suite *s);
void new_token(struct suite *s, char ret[TOKEN_SIZE]);
struct op *lease_op(struct suite *s, const char *boot, const char *name, uint64_t want);
struct op *claim_op(struct suite *s, uint32_t limit);
struct op *claim_work_op(struct suite *s, const char *consumer, uint32_t limit);
struct op *settle_op(struct suite *s, const struct op *claim,
                     uint8_t to); /* every message of the claim */
struct op *renew_op(struct suite *s, const struct op *claim);
struct op *recover_op(struct suite *s, uint64_t fresh);
struct op *watch_op(struct suite *s, uint32_t n);
struct op *publish_op(struct suite *s, struct batch *b);
struct op *declare_op(struct suite *s, const char *subscription, const char *match,
                      uint32_t partitions);
struct op *receive_op(struct suite *s, const char *consumer, uint64_t lanes, uint32_t limit);
struct op *ack_op(struct suite *s, const struct op *receive); /* every message of the delivery */
struct op *apply_op(struct suite *s, const char *consumer, struct batch *b);
struct op *apply_work_op(struct suite *s, const struct op *claim);
struct op *park_op(struct suite *s, const char *consumer, struct batch *b, uint8_t to,
                   csn_verdict verdict);
struct op *park_work_op(struct suite *s, const struct op *claim, uint8_t to, csn_verdict verdict);

/* Building and running at once. */
struct op *claim(struct suite *s, uint32_t limit);
struct op *claim_work(struct suite *s, const char *consumer, uint32_t limit);
struct op *settle(struct suite *s, const struct op *claim, uint8_t to);
struct op *apply(struct suite *s, const char *consumer, struct batch *b);
struct op *park(struct suite *s, const char *consumer, struct batch *b, uint8_t to,
                csn_verdict verdict);
void hold_parts(struct suite *s, const char *name, uint64_t parts);
void declare(struct suite *s, const char *subscription, const char *match, uint32_t partitions);
void publish(struct suite *s, struct batch *b); /* all must be confirmed */
struct op *receive(struct suite *s, const char *consumer, uint64_t lanes, uint32_t limit);

/* Events and messages. */
void put_event(struct suite *s, const struct world_event *e);
void put(struct suite *s, const char *id, const char *key, int64_t version);
void put_due(struct suite *s, const char *id, const char *key, int64_t version, csn_usec due_in);
struct message *add_message(struct suite *s, struct batch *b, const char *id, const char *key,
                            uint64_t version, const char *payload);
struct batch *one_message(struct suite *s, const char *id, const char *key, uint64_t version,
                          const char *payload);

/* Looking. */
void expect_ids(const struct batch *b, const char *ids); /* "a b c": exactly these, in this order */
const struct message *message_of(const struct batch *b, const char *id); /* must be there */
struct outbox_row outbox(struct suite *s, const char *id);
struct inbox_row inbox(struct suite *s, const char *consumer, const char *id);
struct work_row work(struct suite *s, const char *consumer, const char *id);
struct queue_row queue(struct suite *s, const char *subscription, const char *id);
struct lane_row lane(struct suite *s, const char *name, uint32_t n);
void expect_status(struct suite *s, const char *id, const char *status);
void expect_no_inbox(struct suite *s, const char *consumer, const char *id);
void expect_no_work(struct suite *s, const char *consumer, const char *id);
struct attempt_row only_attempt(struct suite *s, const char *id);
struct attempt_row last_attempt(struct suite *s, const char *id, uint32_t n); /* of exactly n */
bool text_is(csn_bytes b, const char *text);

#endif
