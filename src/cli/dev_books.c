/* dev_books.c: the counters of `consign dev`, and its books: what two databases, which never share a
 * transaction, must agree on when all is quiet. */
#include "cli/dev_kit.h"
#include "base/message.h"
#include <inttypes.h>

struct sum {
    const char *sql;
    size_t at; /* in struct dev_counts */
};

#define SUM(member, sql_)                                                                          \
    { sql_, offsetof(struct dev_counts, member) }

#define A_SECOND_AGO "((julianday('now') - 2440587.5) * 86400e6 - 1e6)"
#define ROWS_BEHIND                                                                                \
    "SELECT (SELECT count(*) FROM outbox_events WHERE status IN ('pending', 'sending', "           \
    "'unknown') "                                                                                  \
    "AND created_at < " A_SECOND_AGO ")"

static const struct sum of_orders[] = {
    SUM(behind, ROWS_BEHIND " + (SELECT count(*) FROM consign_queue WHERE acked_at IS NULL AND "
                            "published_at < " A_SECOND_AGO ")"),
    SUM(written, "SELECT count(*) FROM outbox_events WHERE event_type = 'OrderCreated'"),
    SUM(sent, "SELECT count(*) FROM outbox_events WHERE event_type = 'OrderCreated' AND status = "
              "'sent'"),
    SUM(again, "SELECT count(*) FROM outbox_events WHERE attempts > 1"),
    SUM(repeats, "SELECT coalesce(sum(duplicates), 0) FROM consumer_inbox"),
    SUM(open, "SELECT (SELECT count(*) FROM outbox_events WHERE status IN ('pending', 'sending', "
              "'unknown')) + (SELECT count(*) FROM consign_queue WHERE acked_at IS NULL) + "
              "(SELECT count(*) FROM consign_work)"),
};
static const struct sum of_stock[] = {
    SUM(behind, ROWS_BEHIND),
    SUM(handled, "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND state IN "
                 "('done', 'refused')"),
    SUM(doubled, "SELECT (SELECT count(*) FROM stock_journal) - (SELECT count(*) FROM "
                 "consumer_inbox WHERE consumer_name = 'stock' AND state = 'done')"),
    SUM(dead, "SELECT count(*) FROM consign_dead_letters WHERE consumer_name = 'stock'"),
    SUM(repeats, "SELECT coalesce(sum(duplicates), 0) FROM consumer_inbox"),
    SUM(open, "SELECT (SELECT count(*) FROM outbox_events WHERE status IN ('pending', 'sending', "
              "'unknown')) + (SELECT count(*) FROM consign_work)"),
};

static csn_status add(struct db *d, const struct sum *sum, size_t n, struct dev_counts *ret,
                      csn_error *err) {
    csn_status s = CSN_OK;
    for (size_t i = 0; i < n && s == CSN_OK; i++) {
        int64_t value = 0;
        bool row = false;
        s = db_int(d, sum[i].sql, NULL, 0, &value, &row, err);
        *(int64_t *)(void *)((char *)ret + sum[i].at) += value;
    }
    return s;
}

csn_status dev_count(struct db *orders, struct db *stock, struct dev_counts *ret, csn_error *err) {
    struct dev_counts now = {0};
    csn_status s = add(orders, of_orders, ARRAY_LEN(of_orders), &now, err);
    if (s == CSN_OK)
        s = add(stock, of_stock, ARRAY_LEN(of_stock), &now, err);
    if (s == CSN_OK)
        *ret = now;
    return s;
}

/* ---- the books ---- */

enum { SIDES_MAX = 4 };

struct side {
    bool stock;
    enum message_id name;
    const char *sql;
};

/* All sides of a line are one number. An event by hand needs no order; the writer's do. */
struct line {
    enum message_id title;
    struct side side[SIDES_MAX];
    int sides;
};

static const struct line lines[] = {
    {MSG_DEV_LINE_EVENTS,
     {{false, MSG_DEV_SIDE_ORDERS,
       "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM outbox_events e WHERE "
       "e.event_type = 'OrderCreated' AND NOT (CAST(aggregate_id AS INTEGER) > 10000 AND event_id "
       "= 'E-' || aggregate_id || '-1') AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.order_id = "
       "e.aggregate_id))"},
      {false, MSG_DEV_SIDE_OUTBOX,
       "SELECT count(*) FROM outbox_events WHERE event_type = 'OrderCreated'"},
      {true, MSG_DEV_SIDE_INBOX,
       "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND state IN ('done', "
       "'refused', 'dead')"}},
     3},
    {MSG_DEV_LINE_STOCK,
     {{true, MSG_DEV_SIDE_RESERVED, "SELECT coalesce(sum(qty), 0) FROM reservation"},
      {true, MSG_DEV_SIDE_JOURNAL, "SELECT coalesce(sum(qty), 0) FROM stock_journal"},
      {true, MSG_DEV_SIDE_TAKEN, "SELECT coalesce(sum(opening - available), 0) FROM stock"}},
     3},
    {MSG_DEV_LINE_EFFECTS,
     {{true, MSG_DEV_SIDE_DONE,
       "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND state = 'done'"},
      {true, MSG_DEV_SIDE_RESERVATIONS, "SELECT count(*) FROM reservation"},
      {true, MSG_DEV_SIDE_ENTRIES, "SELECT count(*) FROM stock_journal"}},
     3},
};

static csn_status print_line(struct out *o, struct db *orders, struct db *stock,
                             const struct line *l, bool *ret_right, csn_error *err) {
    char text[400];
    struct text t;
    int64_t first = 0;
    bool same = true;
    csn_status s = CSN_OK;
    text_init(&t, text, sizeof text);
    for (int i = 0; i < l->sides && s == CSN_OK; i++) {
        int64_t n = 0;
        bool row = false;
        s = db_int(l->side[i].stock ? stock : orders, l->side[i].sql, NULL, 0, &n, &row, err);
        first = i == 0 ? n : first;
        same &= n == first;
        text_add(&t, "%s%s %" PRId64, i ? " · " : "", message(l->side[i].name), n);
    }
    if (s != CSN_OK)
        return s;
    out_say(o, same ? MSG_DEV_BOOK_RIGHT : MSG_DEV_BOOK_WRONG, message(l->title), text);
    *ret_right &= same;
    return CSN_OK;
}

/* ---- order by order ---- */

struct misfits {
    int64_t orders, n;
    char first[64]; /* the number of the first one */
};

/* What the stock's side knows of each order, as the state that the order must have. */
static const char orders_sql[] = "SELECT order_id, state FROM orders ORDER BY order_id";
static const char known_sql[] =
    "SELECT i.aggregate_id, CASE WHEN max(r.order_id) IS NOT NULL THEN 'confirmed' WHEN "
    "sum(i.state "
    "= 'refused') > 0 THEN 'rejected' WHEN sum(i.state = 'dead') > 0 THEN 'pending_inventory' ELSE "
    "'unknown' END FROM consumer_inbox i LEFT JOIN reservation r ON r.order_id = i.aggregate_id "
    "WHERE i.consumer_name = 'stock' GROUP BY i.aggregate_id ORDER BY i.aggregate_id";

/* Both lists are in the order of the numbers; one step for each order. */
static csn_status fit(struct stmt *orders, struct stmt *known, struct misfits *m, csn_error *err) {
    bool order = false, row = false;
    csn_status s = stmt_next(known, &row, err);
    while (s == CSN_OK && (s = stmt_next(orders, &order, err)) == CSN_OK && order) {
        const char *number = stmt_text(orders, 0);
        while (s == CSN_OK && row && strcmp(stmt_text(known, 0), number) < 0)
            s = stmt_next(known, &row, err);
        bool fits = s == CSN_OK && row && strcmp(stmt_text(known, 0), number) == 0 &&
                    strcmp(stmt_text(known, 1), stmt_text(orders, 1)) == 0;
        if (!fits && m->n++ == 0)
            (void)out_safe_text(number, m->first, sizeof m->first);
        m->orders++;
    }
    return s;
}

static csn_status print_states(struct out *o, struct db *orders, struct db *stock, bool *ret_right,
                               csn_error *err) {
    struct misfits m = {0};
    struct stmt *list = NULL, *known = NULL;
    char text[400];
    struct text t;
    csn_status s = db_prepare(orders, orders_sql, &list, err);
    if (s == CSN_OK)
        s = db_prepare(stock, known_sql, &known, err);
    if (s == CSN_OK)
        s = fit(list, known, &m, err);
    stmt_close(list);
    stmt_close(known);
    if (s != CSN_OK)
        return s;
    text_init(&t, text, sizeof text);
    message_add(&t, m.n ? MSG_DEV_STATES_WRONG : MSG_DEV_STATES_RIGHT, (long long)m.orders,
                (long long)(m.orders - m.n), m.first);
    out_say(o, m.n ? MSG_DEV_BOOK_WRONG : MSG_DEV_BOOK_RIGHT, message(MSG_DEV_LINE_STATES), text);
    *ret_right &= m.n == 0;
    return CSN_OK;
}

csn_status dev_books(struct out *o, struct db *orders, struct db *stock, bool *ret_right,
                     csn_error *err) {
    csn_status s = CSN_OK;
    *ret_right = true;
    out_say(o, MSG_DEV_BOOKS);
    for (size_t i = 0; i < ARRAY_LEN(lines) && s == CSN_OK; i++)
        s = print_line(o, orders, stock, &lines[i], ret_right, err);
    if (s == CSN_OK)
        s = print_states(o, orders, stock, ret_right, err);
    if (s == CSN_OK)
        out_say(o, *ret_right ? MSG_DEV_BOOKS_AGREE : MSG_DEV_BOOKS_DIFFER);
    return s;
}
