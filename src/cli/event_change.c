/* event_change.c: retry, cancel, hold, release.
 *
 *   failed ──retry──▶ pending
 *   pending unknown waiting failed ──hold──▶ held ──release──▶ pending
 *   pending unknown waiting failed held ──cancel──▶ cancelled
 *
 * What always holds: the move, what follows from it and its audit row are one transaction; the
 * UPDATE carries the status that was read; the same act again changes nothing. A cancelled row has
 * ended, so what waits behind it goes on, unless something before it has not ended: then its
 * followers go on waiting for that one. A row that is released goes to pending whatever stands
 * before it; the next claim lets it wait again if its head has not ended. */
#include "cli/event_change.h"
#include <inttypes.h>
#include <stdio.h>

/* ---- the rules ---- */

struct rule {
    const char *name, *action, *statement, *to;
    const char *from[6];
};

static const struct rule rules[CHANGE_NR] = {
    [CHANGE_RETRY] = {"retry", "event.retry", "change.retry", "pending", {"failed"}},
    [CHANGE_CANCEL] = {"cancel",
                       "event.cancel",
                       "change.cancel",
                       "cancelled",
                       {"pending", "unknown", "waiting", "failed", "held"}},
    [CHANGE_HOLD] =
        {"hold", "event.hold", "change.hold", "held", {"pending", "unknown", "waiting", "failed"}},
    [CHANGE_RELEASE] = {"release", "event.release", "change.release", "pending", {"held"}},
};

static const struct {
    const char *status;
    enum message_id fits;
} fitting[] = {
    {"pending", MSG_FITS_PENDING}, {"sending", MSG_FITS_SENDING},     {"sent", MSG_FITS_SENT},
    {"unknown", MSG_FITS_UNKNOWN}, {"waiting", MSG_FITS_WAITING},     {"failed", MSG_FITS_FAILED},
    {"held", MSG_FITS_HELD},       {"cancelled", MSG_FITS_CANCELLED},
};

const char *change_fits(const char *status) {
    for (size_t i = 0; i < ARRAY_LEN(fitting); i++)
        if (strcmp(status, fitting[i].status) == 0)
            return message(fitting[i].fits);
    return message(MSG_FITS_STRANGE);
}

const char *change_name(enum change_verb verb) {
    return rules[verb].name;
}

const char *change_action(enum change_verb verb) {
    return rules[verb].action;
}

enum change_answer change_judge(enum change_verb verb, const char *status,
                                const char *last_action) {
    const struct rule *r = &rules[verb];
    for (size_t i = 0; i < ARRAY_LEN(r->from) && r->from[i]; i++)
        if (strcmp(status, r->from[i]) == 0)
            return CHANGE_DO;
    if (strcmp(status, r->to) != 0)
        return CHANGE_ILLEGAL;
    /* A row is pending for many reasons: only after this very act it is a repetition. */
    bool repeated = strcmp(r->to, "pending") != 0 || strcmp(last_action, r->action) == 0;
    return repeated ? CHANGE_SAME : CHANGE_ILLEGAL;
}

/* ---- the act ---- */

static csn_status followers(struct db *d, const json_t *row, struct change *c, csn_error *err) {
    json_t *before = NULL;
    const struct kit_arg key[] = {KIT_TEXT(row_text(row, "aggregate_type")),
                                  KIT_TEXT(row_text(row, "aggregate_id")),
                                  KIT_INT(row_int(row, "aggregate_version")),
                                  KIT_INT(row_int(row, "seq")), KIT_INT(CHANGE_FOLLOWERS_MAX)};
    csn_status st = kit_row(d, "change.before", key, 4, &before, err);
    bool ended = !before || strcmp(row_text(before, "status"), "sent") == 0;
    json_decref(before);
    if (st != CSN_OK || !ended)
        return st;
    if (c->dry_run)
        return kit_int(d, "change.followers", key, 5, &c->released, err);
    return kit_change(d, "change.follow", key, 5, &c->released, err);
}

static csn_status audit(struct db *d, const json_t *row, const struct change *c, csn_error *err) {
    char before[300], after[200];
    json_t *o = json_object();
    const char *const kept[] = {"status", "failures", "tries", "waits_for"};
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        out_put(o, kept[i], json_incref(json_object_get(row, kept[i])));
    size_t n = json_dumpb(o, before, sizeof before - 1, JSON_COMPACT);
    before[n < sizeof before ? n : 0] = 0;
    json_decref(o);
    snprintf(after, sizeof after, "{\"status\":\"%s\",\"followers\":%" PRId64 "}", c->to,
             c->released);
    return audit_append(d, c->actor, rules[c->verb].action, c->event_id, c->reason, before, after,
                        err);
}

static csn_status move(struct db *d, const json_t *row, struct change *c, csn_error *err) {
    int64_t changed = 0;
    csn_status st = CSN_OK;
    if (!c->dry_run)
        st = kit_change(
            d, rules[c->verb].statement,
            KIT_ARGS(KIT_INT(row_int(row, "seq")), KIT_TEXT(c->from), KIT_INT(db_now(d))), &changed,
            err);
    if (st == CSN_OK && !c->dry_run && changed != 1)
        return kit_error_set(err, CSN_STALE, ERR_ILLEGAL_MOVE, MSG_CHANGE_STALE, c->event_id, "",
                             "");
    if (st == CSN_OK && c->verb == CHANGE_CANCEL)
        st = followers(d, row, c, err);
    if (st == CSN_OK && !c->dry_run)
        st = audit(d, row, c, err);
    c->changed = st == CSN_OK;
    return st;
}

static csn_status judge(struct db *d, const json_t *row, struct change *c, csn_error *err) {
    const char *last = row_text(row, "last_action");
    copy_text(c->from, sizeof c->from, row_text(row, "status"));
    switch (change_judge(c->verb, c->from, last)) {
    case CHANGE_DO:
        copy_text(c->to, sizeof c->to, rules[c->verb].to);
        return move(d, row, c, err);
    case CHANGE_SAME:
        copy_text(c->to, sizeof c->to, rules[c->verb].to);
        return CSN_OK;
    default:
        return kit_error_set(err, CSN_REJECTED, ERR_ILLEGAL_MOVE, MSG_CHANGE_ILLEGAL, c->event_id,
                             c->from, change_name(c->verb));
    }
}

csn_status change_apply(struct db *d, struct change *c, csn_error *err) {
    json_t *row = NULL;
    csn_status st = c->dry_run ? CSN_OK : db_begin(d, err);
    c->changed = false;
    c->released = 0;
    if (st == CSN_OK)
        st = kit_row(d, "change.row", KIT_ARGS(KIT_TEXT(c->event_id)), &row, err);
    if (st == CSN_OK && !row)
        st = kit_error_set(err, CSN_REJECTED, ERR_NOT_FOUND, MSG_LOCATE_NOWHERE, c->event_id, "",
                           "");
    if (st == CSN_OK)
        st = judge(d, row, c, err);
    json_decref(row);
    if (c->dry_run)
        return st;
    if (st == CSN_OK && c->changed)
        return db_commit(d, err);
    db_rollback(d);
    return st;
}

/* ---- commands ---- */

static void answer(struct command_call *c, const struct change *ch, const struct leg *g) {
    json_t *doc = out_document("change");
    char line[700], id[400], from[200];
    struct text t;
    out_put(doc, "event_id", out_json_string(ch->event_id));
    out_put(doc, "store", out_json_string(g->name));
    out_put(doc, "action", out_json_string(change_action(ch->verb)));
    out_put(doc, "from", out_json_string(ch->from));
    out_put(doc, "to", out_json_string(ch->to));
    out_put(doc, "changed", json_boolean(ch->changed && !ch->dry_run));
    out_put(doc, "dry_run", json_boolean(ch->dry_run));
    out_put(doc, "released", out_json_int64(ch->released));
    out_json(c->out, doc);
    text_init(&t, line, sizeof line);
    out_safe_text(ch->event_id, id, sizeof id);
    out_safe_text(ch->from, from, sizeof from);
    message_add(&t,
                !ch->changed  ? MSG_CHANGE_SAME
                : ch->dry_run ? MSG_CHANGE_WOULD
                              : MSG_CHANGE_DONE,
                g->name, id, from, ch->to);
    if (ch->verb == CHANGE_CANCEL && ch->changed) {
        text_add(&t, "  ");
        message_add(&t, MSG_CHANGE_FOLLOWERS, (int)ch->released);
    }
    out_line(c->out, "%s", line);
    command_next_to(c, "event trace", ch->event_id);
}

static int refused(struct command_call *c, const struct change *ch, const csn_error *err) {
    char way[300];
    struct text t;
    text_init(&t, way, sizeof way);
    if (err->code != ERR_ILLEGAL_MOVE || !ch->from[0])
        return out_error(c->out, err, NULL, NULL);
    message_add(&t, MSG_CHANGE_FITS, change_fits(ch->from));
    return out_error(c->out, err, NULL, way);
}

static int run(struct command_call *c, enum change_verb verb) {
    char actor[200];
    struct legs l;
    struct leg *g = NULL;
    csn_error err = {0};
    const char *store = NULL;
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    struct change ch = {.verb = verb,
                        .event_id = c->arg[0],
                        .reason = c->reason,
                        .dry_run = c->dry_run,
                        .actor = command_actor(actor, sizeof actor)};
    legs_open(&l, c->config, store, DB_READ_ONLY);
    struct db *d = NULL;
    csn_status st = kit_locate(&l, ch.event_id, &g, &err);
    if (st == CSN_OK)
        st = db_open(g->url, c->dry_run ? DB_READ_ONLY : 0, &d, &err);
    if (st == CSN_OK)
        st = change_apply(d, &ch, &err);
    if (st == CSN_OK)
        answer(c, &ch, g);
    else
        code = refused(c, &ch, &err);
    if (st == CSN_UNKNOWN)
        code = 76;
    db_close(d);
    legs_close(&l);
    return code;
}

int event_retry(struct command_call *c) {
    return run(c, CHANGE_RETRY);
}

int event_cancel(struct command_call *c) {
    return run(c, CHANGE_CANCEL);
}

int event_hold(struct command_call *c) {
    return run(c, CHANGE_HOLD);
}

int event_release(struct command_call *c) {
    return run(c, CHANGE_RELEASE);
}
