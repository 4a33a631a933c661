/* books.c: what must be true when everything is quiet, in SQL. main is orders.db, s is stock.db.
 *
 * Every rule counts what contradicts it. The canaries keep the rules honest: each breaks one thing
 * in a transaction that is rolled back, and the rule named beside it must see it. */
#include "world.h"
#include <inttypes.h>

#define UNDER_WAY "('pending', 'sending', 'unknown', 'waiting')"
#define FINAL     "('done', 'refused', 'dead')"

struct rule {
    const char *name, *sql;
};

static const struct rule quiet[] = {
    {"events under way",
     "SELECT EXISTS (SELECT 1 FROM outbox_events WHERE status IN " UNDER_WAY ")"},
    {"answers under way",
     "SELECT EXISTS (SELECT 1 FROM s.outbox_events WHERE status IN " UNDER_WAY ")"},
    {"deliveries not acknowledged",
     "SELECT EXISTS (SELECT 1 FROM consign_queue WHERE acked_at IS NULL)"},
    {"parked work at the orders", "SELECT EXISTS (SELECT 1 FROM consign_work)"},
    {"parked work at the stock", "SELECT EXISTS (SELECT 1 FROM s.consign_work)"},
};

static const struct rule rules[] = {
    {"an order has an event for each version",
     "SELECT count(*) FROM orders o WHERE version <> (SELECT count(*) FROM outbox_events e\n"
     "  WHERE e.aggregate_type = 'order' AND e.aggregate_id = o.order_id)"},
    {"an event belongs to an order",
     "SELECT count(*) FROM outbox_events e WHERE event_type GLOB 'Order*' AND NOT EXISTS\n"
     "  (SELECT 1 FROM orders o WHERE o.order_id = e.aggregate_id)"},
    {"every event is sent", "SELECT count(*) FROM outbox_events WHERE status <> 'sent'"},
    {"every answer is sent", "SELECT count(*) FROM s.outbox_events WHERE status <> 'sent'"},
    {"every event ended at the stock",
     "SELECT count(*) FROM outbox_events e WHERE NOT EXISTS (SELECT 1 FROM s.consumer_inbox i\n"
     "  WHERE consumer_name = 'stock' AND i.event_id = e.event_id AND state IN " FINAL ")"},
    {"every answer ended at the orders",
     "SELECT count(*) FROM s.outbox_events e WHERE NOT EXISTS (SELECT 1 FROM consumer_inbox i\n"
     "  WHERE consumer_name = 'orders' AND i.event_id = e.event_id AND state IN " FINAL ")"},
    {"the stock knows only events that were written",
     "SELECT count(*) FROM s.consumer_inbox i WHERE NOT EXISTS (SELECT 1 FROM outbox_events e\n"
     "  WHERE e.event_id = i.event_id)"},
    {"the orders know only answers that were written",
     "SELECT count(*) FROM consumer_inbox i WHERE NOT EXISTS (SELECT 1 FROM s.outbox_events e\n"
     "  WHERE e.event_id = i.event_id)"},
    {"no inbox row is open at the stock",
     "SELECT count(*) FROM s.consumer_inbox WHERE state NOT IN " FINAL},
    {"no inbox row is open at the orders",
     "SELECT count(*) FROM consumer_inbox WHERE state NOT IN " FINAL},
    {"one effect for each event done or refused at the stock",
     "SELECT count(*) FROM s.consumer_inbox i WHERE (state <> 'dead') <>\n"
     "  (SELECT count(*) FROM s.effects f WHERE f.event_id = i.event_id)"},
    {"one effect for each answer at the orders",
     "SELECT count(*) FROM consumer_inbox i WHERE (state <> 'dead') <>\n"
     "  (SELECT count(*) FROM effects f WHERE f.event_id = i.event_id)"},
    {"no effect without its inbox row",
     "SELECT (SELECT count(*) FROM s.effects f WHERE NOT EXISTS (SELECT 1 FROM s.consumer_inbox i\n"
     "  WHERE i.consumer_name = f.consumer AND i.event_id = f.event_id)) +\n"
     "  (SELECT count(*) FROM effects f WHERE NOT EXISTS (SELECT 1 FROM consumer_inbox i\n"
     "  WHERE i.consumer_name = f.consumer AND i.event_id = f.event_id))"},
    {"no order goes back at the stock",
     "SELECT count(*) FROM (SELECT version, lag(version, 1, -1) OVER\n"
     "  (PARTITION BY consumer, aggregate_type, aggregate_id ORDER BY seq) AS before\n"
     "  FROM s.effects) WHERE version <= before"},
    {"no key goes back at the orders",
     "SELECT count(*) FROM (SELECT version, lag(version, 1, -1) OVER\n"
     "  (PARTITION BY consumer, aggregate_type, aggregate_id ORDER BY seq) AS before\n"
     "  FROM effects) WHERE version <= before"},
    {"reserved = opening - available",
     "SELECT count(*) FROM s.stock t WHERE opening - available <> (SELECT coalesce(sum(qty), 0)\n"
     "  FROM s.reservation r WHERE r.sku = t.sku AND r.state = 'reserved')"},
    {"journal = opening - available",
     "SELECT count(*) FROM s.stock t WHERE opening - available <> (SELECT coalesce(sum(qty), 0)\n"
     "  FROM s.stock_journal j WHERE j.sku = t.sku)"},
    {"nothing is below zero", "SELECT count(*) FROM s.stock WHERE available < 0"},
    {"one reservation an order",
     "SELECT count(*) FROM (SELECT 1 FROM s.reservation GROUP BY order_id HAVING count(*) > 1)"},
    {"what lacks its quantity is dead, and nothing else is",
     "SELECT count(*) FROM s.consumer_inbox i JOIN outbox_events e USING (event_id)\n"
     "  WHERE (state = 'dead') <> (json_extract(e.payload, '$.qty') IS NULL)"},
    {"the dead have their letters",
     "SELECT (SELECT count(*) FROM s.consumer_inbox i WHERE (state = 'dead') <>\n"
     "  (SELECT count(*) FROM s.consign_dead_letters d WHERE d.event_id = i.event_id)) +\n"
     "  (SELECT count(*) FROM consign_dead_letters)"},
    {"an event is answered once",
     "SELECT count(*) FROM (SELECT 1 FROM s.outbox_events GROUP BY causation_id\n"
     "  HAVING count(*) > 1)"},
    {"an answer for each change of stock",
     "SELECT (SELECT count(*) FROM s.stock_journal) <>\n"
     "  (SELECT count(*) FROM s.outbox_events WHERE event_type <> 'InventoryRejected')"},
    {"an answer for each refusal",
     "SELECT (SELECT count(*) FROM s.consumer_inbox WHERE state = 'refused') <>\n"
     "  (SELECT count(*) FROM s.outbox_events WHERE event_type = 'InventoryRejected')"},
    {"no answer was too late", "SELECT count(*) FROM consumer_inbox WHERE verdict <> 'done'"},
    {"an order's state fits its reservation",
     "SELECT count(*) FROM orders o LEFT JOIN s.reservation r USING (order_id) WHERE o.qty > 0 "
     "AND\n"
     "  o.state <> CASE r.state WHEN 'reserved' THEN 'confirmed' WHEN 'released' THEN 'cancelled'\n"
     "  ELSE 'rejected' END"},
    {"what was rolled back is nowhere",
     "SELECT (SELECT count(*) FROM outbox_events WHERE event_id GLOB 'undone*') +\n"
     "  (SELECT count(*) FROM consign_queue WHERE event_id GLOB 'undone*') +\n"
     "  (SELECT count(*) FROM s.consumer_inbox WHERE event_id GLOB 'undone*')"},
    {"at most once: no copy is tried twice",
     "SELECT count(*) FROM (SELECT event_id, count(*) AS n FROM s.glances GROUP BY event_id) g\n"
     "  WHERE n > (SELECT count(*) FROM consign_queue q\n"
     "  WHERE q.subscription = 'glance' AND q.event_id = g.event_id)"},
    {"at most once: the inbox knows nothing of it",
     "SELECT count(*) FROM s.consumer_inbox WHERE consumer_name = 'glance'"},
    {"at most once: what it saw was written",
     "SELECT count(*) FROM s.glances g WHERE NOT EXISTS (SELECT 1 FROM outbox_events e\n"
     "  WHERE e.event_id = g.event_id)"},
    {"nothing waits for delivery", "SELECT count(*) FROM consign_queue WHERE acked_at IS NULL"},
    {"nothing is parked",
     "SELECT (SELECT count(*) FROM consign_work) + (SELECT count(*) FROM s.consign_work) +\n"
     "  (SELECT count(*) FROM consign_keys) + (SELECT count(*) FROM s.consign_keys)"},
    {"no lane has an owner after a clean stop",
     "SELECT (SELECT count(*) FROM consign_lanes WHERE owner IS NOT NULL) +\n"
     "  (SELECT count(*) FROM s.consign_lanes WHERE owner IS NOT NULL)"},
    {"the databases are whole",
     "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'"},
};

/* The rule `seen_by` must see what the statement breaks. */
static const struct {
    const char *name, *seen_by, *sql;
} canaries[] = {
    {"an inbox row is gone", "every event ended at the stock",
     "DELETE FROM s.consumer_inbox WHERE event_id = (SELECT min(event_id) FROM s.effects)"},
    {"an inbox row at the orders is gone", "every answer ended at the orders",
     "DELETE FROM consumer_inbox WHERE event_id = (SELECT min(event_id) FROM effects)"},
    {"an effect came twice", "one effect for each event done or refused at the stock",
     "INSERT INTO s.effects(consumer, event_id, aggregate_type, aggregate_id, version)\n"
     "SELECT consumer, event_id, aggregate_type, aggregate_id, version + 1000 FROM s.effects\n"
     "LIMIT 1"},
    {"an effect is gone", "one effect for each event done or refused at the stock",
     "DELETE FROM s.effects WHERE seq = (SELECT min(seq) FROM s.effects)"},
    {"two effects of an order change places", "no order goes back at the stock",
     "UPDATE s.effects SET version = 100 - version WHERE aggregate_id =\n"
     "  (SELECT aggregate_id FROM s.effects GROUP BY 1 HAVING count(*) > 1 LIMIT 1)"},
    {"an event is pending", "every event is sent",
     "UPDATE outbox_events SET status = 'pending' WHERE seq = (SELECT "
     "max(seq) FROM outbox_events)"},
    {"an event is gone", "an order has an event for each version",
     "DELETE FROM outbox_events WHERE seq = (SELECT max(seq) FROM outbox_events)"},
    {"an order is gone", "an event belongs to an order",
     "DELETE FROM orders WHERE order_id = (SELECT max(order_id) FROM orders)"},
    {"an answer is gone", "the orders know only answers that were written",
     "DELETE FROM s.outbox_events WHERE seq = (SELECT max(seq) FROM s.outbox_events)"},
    {"a reservation is of one more", "reserved = opening - available",
     "UPDATE s.reservation SET qty = qty + 1\n"
     " WHERE rowid = (SELECT min(rowid) FROM s.reservation WHERE state = 'reserved')"},
    {"one is missing in stock", "journal = opening - available",
     "UPDATE s.stock SET available = available - 1 WHERE sku = 'S00'"},
    {"an order has another state", "an order's state fits its reservation",
     "UPDATE orders SET state = 'pending_inventory' WHERE order_id =\n"
     "  (SELECT order_id FROM s.reservation LIMIT 1)"},
    {"a copy was tried twice", "at most once: no copy is tried twice",
     "INSERT INTO s.glances SELECT event_id FROM consign_queue WHERE subscription = 'glance'\n"
     "UNION ALL SELECT event_id FROM consign_queue WHERE subscription = 'glance'"},
    {"a delivery is not acknowledged", "nothing waits for delivery",
     "UPDATE consign_queue SET acked_at = NULL WHERE pos = (SELECT max(pos) FROM consign_queue)"},
    {"a key is parked", "nothing is parked",
     "INSERT INTO s.consign_keys VALUES ('stock', 'order', 'x', 1, 0)"},
    {"a dead letter is gone", "the dead have their letters", "DELETE FROM s.consign_dead_letters"},
};

bool world_quiet(struct db *d) {
    for (size_t i = 0; i < ARRAY_LEN(quiet); i++) {
        if (count_of(d, quiet[i].sql) != 0) {
            return false;
        }
    }
    return true;
}

int64_t books_check(struct db *d, FILE *out) {
    int64_t broken = 0;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        int64_t n = count_of(d, rules[i].sql);
        broken += n != 0;
        if (n != 0 && out) {
            fprintf(out, "  DIFFERENCE: %s: %" PRId64 "\n", rules[i].name, n);
        }
    }
    return broken;
}

static bool rule_sees(struct db *d, const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        if (strcmp(rules[i].name, name) == 0) {
            return count_of(d, rules[i].sql) != 0;
        }
    }
    return false; /* no such rule: the canary says so */
}

bool books_canary(struct db *d, FILE *out) {
    csn_error err = {.status = CSN_OK};
    bool good = true;
    for (size_t i = 0; i < ARRAY_LEN(canaries); i++) {
        int64_t changed = -1;
        bool seen = false;
        if (db_begin(d, &err) == CSN_OK && db_script(d, canaries[i].sql, &err) == CSN_OK) {
            changed = db_changes(d);
            seen = rule_sees(d, canaries[i].seen_by);
        }
        db_rollback(d);
        if (changed <= 0 || !seen) {
            good = false;
            fprintf(out, "  CANARY: \"%s\" %s %s\n", canaries[i].name,
                    changed <= 0 ? "could not be made" : "was not seen", err.text);
        }
    }
    return good;
}
