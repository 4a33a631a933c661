/* order.c: see order.h. */
#include "core/order.h"
#include <stdio.h>

/* ---- machines ---- */

static const struct {
    const char *name, *moves;
} built_in[] = {
    {"payment", "PENDING > PROCESSING; PROCESSING > SUCCESS FAILED UNKNOWN; UNKNOWN > SUCCESS "
                "FAILED; FAILED > PROCESSING"},
    {"reservation", "待处理 > 已预占; 已预占 > 已确认 已释放"},
    {"task", "PENDING > RUNNING; RUNNING > SUCCESS FAILED"},
};

const char *order_machine_moves(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(built_in); i++)
        if (strcmp(built_in[i].name, name) == 0)
            return built_in[i].moves;
    return NULL;
}

int32_t order_state_find(const struct order_machine *m, csn_bytes state) {
    for (uint32_t i = 0; i < m->states; i++)
        if (bytes_is(state, m->state[i]))
            return (int32_t)i;
    return STATE_STRANGE;
}

const char *order_state_name(const struct order_machine *m, int32_t state) {
    return state >= 0 && (uint32_t)state < m->states ? m->state[state] : "";
}

static int32_t state_make(struct order_machine *m, csn_bytes state) {
    int32_t at = order_state_find(m, state);
    if (at >= 0)
        return at;
    if (m->states == MACHINE_STATES_MAX || state.size == 0 ||
        !copy_bytes_text(m->state[m->states], STATE_SIZE, state))
        return STATE_STRANGE;
    return (int32_t)m->states++;
}

/* The next word of a rule; empty at its end. */
static csn_bytes word(const char **at) {
    const char *s = *at + strspn(*at, " ");
    size_t n = strcspn(s, " >;");
    *at = s + n;
    return (csn_bytes){s, n};
}

/* One "A > B C". */
static bool parse_rule(struct order_machine *m, const char **at) {
    int32_t from = state_make(m, word(at));
    *at += strspn(*at, " ");
    if (from < 0 || **at != '>')
        return false;
    ++*at;
    for (csn_bytes w = word(at); w.size > 0; w = word(at)) {
        int32_t to = state_make(m, w);
        if (to < 0 || to == from)
            return false;
        m->next[from] |= (uint16_t)(1u << to);
    }
    return m->next[from] != 0 && (**at == ';' || **at == '\0');
}

bool order_machine_parse(const char *name, const char *moves, struct order_machine *ret) {
    const char *at = moves;
    *ret = (struct order_machine){.name = name};
    for (;;) {
        if (!parse_rule(ret, &at))
            return false;
        if (*at == '\0')
            return true;
        at += 1 + strspn(at + 1, " ");
        if (*at == '\0')
            return true; /* a last semicolon */
    }
}

/* States that one move leads to. Nothing is there yet: the first state, and what follows it. */
static uint32_t moves_from(const struct order_machine *m, int32_t state) {
    if (state == STATE_NONE)
        return 1u | m->next[0];
    return state >= 0 ? m->next[state] : 0;
}

static uint32_t reach_from(const struct order_machine *m, int32_t state) {
    uint32_t reach = moves_from(m, state), before = 0;
    while (reach != before) { /* grows, and is bounded by the number of states */
        before = reach;
        for (uint32_t i = 0; i < m->states; i++)
            if (reach >> i & 1)
                reach |= m->next[i];
    }
    return reach;
}

/* ---- deciding ---- */

const struct order_rule *order_rule_for(const struct order *o, csn_bytes event_type) {
    for (uint32_t i = 0; i < o->rules; i++)
        if (bytes_is(event_type, o->rule[i].event_type))
            return &o->rule[i];
    return NULL;
}

static bool newer(const struct order_entity *e, uint64_t version) {
    return !e->there || version > e->version;
}

static enum order_says decide_command(const struct order_rule *r, const struct order_entity *e,
                                      uint64_t version) {
    if (e->there && version < e->version)
        return ORDER_LATE;
    if (e->state == r->to)
        return ORDER_DUPLICATE;
    if (!newer(e, version))
        return ORDER_CONFLICT; /* one version cannot lead to two states */
    if (moves_from(r->machine, e->state) >> r->to & 1)
        return ORDER_RUN;
    return reach_from(r->machine, e->state) >> r->to & 1 ? ORDER_EARLY : ORDER_CONFLICT;
}

enum order_says order_decide(const struct order_rule *r, const struct order_entity *e,
                             uint64_t version) {
    if (!r || r->policy == POLICY_NONE)
        return ORDER_RUN;
    if (r->policy == POLICY_COMMAND)
        return decide_command(r, e, version);
    return newer(e, version) ? ORDER_RUN : ORDER_LATE;
}

static void answer_text(const struct order_rule *r, const struct order_entity *e, csn_bytes ahead,
                        const struct message *m, enum order_says says, struct apply_item *item) {
    const char *from = r->machine ? order_state_name(r->machine, e->state) : "";
    const char *to = r->machine ? order_state_name(r->machine, r->to) : "";
    struct text t;
    text_init(&t, item->text, sizeof item->text);
    switch (says) {
    case ORDER_LATE:
        text_add(&t, "version %llu is ahead", (unsigned long long)e->version);
        if (ahead.size)
            text_add(&t, " (%.*s)", (int)ahead.size, (const char *)ahead.data);
        break;
    case ORDER_DUPLICATE:
        text_add(&t, "%s already, since version %llu", to, (unsigned long long)e->version);
        break;
    case ORDER_EARLY:
        text_add(&t, "%s > %s: a move between is missing", from[0] ? from : "(none)", to);
        if (m->prev_version > e->version)
            text_add(&t, ", version %llu", (unsigned long long)m->prev_version);
        break;
    default:
        text_add(&t, "%s: %s > %s is no legal move (version %llu after %llu)", r->machine->name,
                 from[0] ? from : "?", to, (unsigned long long)m->version,
                 (unsigned long long)e->version);
        break;
    }
}

void order_answer(const struct order_rule *r, const struct order_entity *e, csn_bytes ahead,
                  const struct message *m, enum order_says says, struct apply_item *item) {
    static const struct {
        csn_verdict verdict;
        int32_t code;
    } answer[] = {[ORDER_RUN] = {CSN_DONE, 0},
                  [ORDER_LATE] = {CSN_LATE, ERR_ORDER_LATE},
                  [ORDER_DUPLICATE] = {CSN_DUPLICATE, 0},
                  [ORDER_EARLY] = {CSN_EARLY, ERR_HANDLER_EARLY},
                  [ORDER_CONFLICT] = {CSN_CONFLICT, ERR_ORDER_MOVE}};
    item->verdict = answer[says].verdict;
    item->code = answer[says].code;
    answer_text(r, e, ahead, m, says, item);
}

/* ---- what is known afterwards ---- */

bool order_advance(const struct order_rule *r, struct order_entity *e, uint64_t version,
                   csn_verdict verdict) {
    if (!newer(e, version))
        return false;
    e->there = true;
    e->version = version;
    if (r && r->policy == POLICY_COMMAND && verdict == CSN_DONE)
        e->state = r->to;
    return true;
}

bool order_gap_opens(const struct order_entity *e, const struct message *m, struct order_gap *ret) {
    if (!newer(e, m->version) || m->prev_version <= e->version || m->prev_version >= m->version)
        return false;
    *ret =
        (struct order_gap){.after = e->version, .before = m->version, .missing = m->prev_version};
    return true;
}

struct order_fill order_gap_fill(const struct order_gap *g, const struct message *m) {
    struct order_fill f = {
        .lower = {.after = g->after, .before = m->version, .missing = m->prev_version},
        .upper = {.after = m->version, .before = g->before, .missing = g->missing}};
    f.has_upper = g->missing > m->version;
    f.has_lower = m->prev_version > g->after && m->prev_version < m->version;
    return f;
}
