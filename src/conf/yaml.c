/* yaml.c: two passes over the text with libyaml. The first looks at tokens and reports what the
 * subset leaves out, each at its place; the second loads the document and walks it along the table
 * of keys, so that its depth is bounded by the table's. With an alias in the text there is no walk:
 * aliases share nodes, and a walk could take for ever. */
#include "conf/yaml.h"
#include "base/error.h"
#include "base/message.h"
#include "core/config.h"
#include <yaml.h>

struct walk {
    const struct yaml_reader *r;
    yaml_document_t document;
    bool aliases;
};

static struct yaml_place place_of(yaml_mark_t start, yaml_mark_t end) {
    struct yaml_place p = {(uint32_t)start.line + 1, (uint32_t)start.column + 1, 1};
    if (end.line == start.line && end.column > start.column)
        p.width = (uint32_t)(end.column - start.column);
    return p;
}

static void tell(struct walk *w, int32_t code, const char *path, struct yaml_place at,
                 const char *text, const char *way) {
    w->r->mistake(w->r->arg, code, path, at, text, way);
}

/* libyaml's own words, at the place of the problem. */
static void tell_syntax(struct walk *w, const yaml_parser_t *p) {
    char line[200];
    struct text t;
    struct yaml_place at = place_of(p->problem_mark, p->problem_mark);
    text_init(&t, line, sizeof(line));
    text_add(&t, "%s", p->problem != NULL ? p->problem : "not YAML");
    if (p->context != NULL)
        text_add(&t, " (%s, line %zu)", p->context, p->context_mark.line + 1);
    if (p->error == YAML_READER_ERROR)
        at.line = 0; /* the reader knows an offset only */
    tell(w, p->error == YAML_MEMORY_ERROR ? ERR_NO_MEMORY : ERR_CONFIG_SYNTAX, "", at, line, "");
}

/* What the subset leaves out; MSG_NR: the token is fine. */
static enum message_id left_out(yaml_token_type_t type) {
    switch (type) {
    case YAML_ANCHOR_TOKEN:
        return MSG_YAML_ANCHOR;
    case YAML_ALIAS_TOKEN:
        return MSG_YAML_ALIAS;
    case YAML_TAG_TOKEN:
        return MSG_YAML_TAG;
    case YAML_VERSION_DIRECTIVE_TOKEN:
    case YAML_TAG_DIRECTIVE_TOKEN:
        return MSG_YAML_DIRECTIVE;
    default:
        return MSG_NR;
    }
}

/* Where the scan stands between documents. */
struct documents {
    bool content, ended, told;
};

/* True at the first token of a second document. */
static bool second_document(struct documents *d, yaml_token_type_t type) {
    bool start = type == YAML_DOCUMENT_START_TOKEN, end = type == YAML_DOCUMENT_END_TOKEN;
    bool frame = type == YAML_STREAM_START_TOKEN || type == YAML_STREAM_END_TOKEN || end ||
                 type == YAML_VERSION_DIRECTIVE_TOKEN || type == YAML_TAG_DIRECTIVE_TOKEN;
    bool second = !d->told && ((start && d->content) || (!frame && d->ended));
    d->content |= !frame;
    d->ended |= end && d->content;
    d->told |= second;
    return second;
}

static bool open_parser(yaml_parser_t *p, csn_bytes text) {
    if (!yaml_parser_initialize(p))
        return false;
    yaml_parser_set_encoding(p, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(p, text.data, text.size);
    return true;
}

/* The first pass. Ends: every token moves on in a text of bounded size. */
static bool scan_tokens(struct walk *w, csn_bytes text) {
    yaml_parser_t p;
    yaml_token_t token;
    bool good = true, end = false;
    struct documents documents = {false, false, false};
    if (!open_parser(&p, text))
        return false;
    while (!end && (good = yaml_parser_scan(&p, &token) != 0)) {
        enum message_id id = left_out(token.type);
        w->aliases |= token.type == YAML_ALIAS_TOKEN;
        if (second_document(&documents, token.type))
            id = MSG_YAML_DOCUMENTS;
        if (id != MSG_NR)
            tell(w, ERR_CONFIG_SYNTAX, "", place_of(token.start_mark, token.end_mark), message(id),
                 "");
        end = token.type == YAML_STREAM_END_TOKEN;
        yaml_token_delete(&token);
    }
    if (!good)
        tell_syntax(w, &p);
    yaml_parser_delete(&p);
    return good;
}

static bool is_null(const yaml_node_t *n) {
    const char *s = (const char *)n->data.scalar.value;
    return n->type == YAML_SCALAR_NODE && n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (s[0] == '\0' || strcmp(s, "~") == 0 || strcmp(s, "null") == 0);
}

static struct yaml_place node_place(const yaml_node_t *n) {
    return place_of(n->start_mark, n->end_mark);
}

static void tell_expected(struct walk *w, const char *path, struct yaml_place at) {
    char line[240];
    struct text t;
    const struct config_key *k = config_key_find(path);
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_YAML_EXPECTED, path);
    if (k != NULL)
        config_expected(k, &t);
    tell(w, ERR_CONFIG_VALUE, path, at, line, "");
}

static void take_scalar(struct walk *w, const char *path, const yaml_node_t *n,
                        struct yaml_place key) {
    const char *s = (const char *)n->data.scalar.value;
    struct yaml_place at = node_place(n);
    if (is_null(n) || s[0] == '\0')
        tell_expected(w, path, key);
    else if (strlen(s) != n->data.scalar.length || n->data.scalar.length >= YAML_VALUE_MAX)
        tell(w, ERR_CONFIG_VALUE, path, at, message(MSG_YAML_LONG), "");
    else
        w->r->value(w->r->arg, path, s, at);
}

static void tell_unknown(struct walk *w, const char *path, struct yaml_place at) {
    char line[240], guess[64], way[200];
    struct text t, y;
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_UNKNOWN, path);
    text_init(&y, way, sizeof(way));
    if (config_guess(path, guess, sizeof(guess)))
        message_add(&y, MSG_YAML_MEANT, guess);
    tell(w, ERR_CONFIG_KEY, path, at, line, way);
}

static void walk_map(struct walk *w, const char *path, const yaml_node_t *map);

static void walk_group(struct walk *w, const char *path, const yaml_node_t *n,
                       struct yaml_place key) {
    char line[240];
    struct text t;
    w->r->group(w->r->arg, path, key);
    if (n->type == YAML_MAPPING_NODE) {
        walk_map(w, path, n);
    } else if (!is_null(n)) {
        text_init(&t, line, sizeof(line));
        message_add(&t, n->type == YAML_SEQUENCE_NODE ? MSG_YAML_LIST : MSG_CONFIG_IS_GROUP, path);
        tell(w, ERR_CONFIG_VALUE, path, node_place(n), line, "");
    }
}

static void walk_pair(struct walk *w, const char *before, const yaml_node_t *key,
                      const yaml_node_t *value) {
    char path[CONFIG_PATH_MAX];
    const char *name = (const char *)key->data.scalar.value;
    struct yaml_place at = node_place(key);
    struct text t;
    text_init(&t, path, sizeof(path));
    text_add(&t, "%s%s%s", before, before[0] != '\0' ? "." : "", name);
    unsigned what = t.full || strchr(name, '.') != NULL || name[0] == '*' ? 0 : config_what(path);
    if (what == 0)
        tell_unknown(w, path, at);
    else if ((what & CONFIG_IS_KEY) != 0 && value->type == YAML_SCALAR_NODE)
        take_scalar(w, path, value, at);
    else if ((what & CONFIG_IS_GROUP) != 0)
        walk_group(w, path, value, at);
    else
        tell_expected(w, path, node_place(value));
}

/* The earlier pair of the map with the same key, or NULL. */
static const yaml_node_t *same_before(struct walk *w, const yaml_node_t *map,
                                      const yaml_node_pair_t *pair) {
    const yaml_node_t *key = yaml_document_get_node(&w->document, pair->key);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < pair; p++) {
        const yaml_node_t *other = yaml_document_get_node(&w->document, p->key);
        if (other->type == YAML_SCALAR_NODE &&
            other->data.scalar.length == key->data.scalar.length &&
            memcmp(other->data.scalar.value, key->data.scalar.value, key->data.scalar.length) == 0)
            return other;
    }
    return NULL;
}

static void walk_map(struct walk *w, const char *path, const yaml_node_t *map) {
    char line[240];
    struct text t;
    yaml_node_pair_t *first = map->data.mapping.pairs.start, *top = map->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = first; p < top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&w->document, p->key);
        const yaml_node_t *value = yaml_document_get_node(&w->document, p->value), *twin;
        if (p - first >= YAML_PAIRS_MAX) {
            tell(w, ERR_CONFIG_VALUE, path, node_place(key), message(MSG_YAML_PAIRS), "");
            return;
        }
        if (key->type != YAML_SCALAR_NODE) {
            tell(w, ERR_CONFIG_KEY, path, node_place(key), message(MSG_YAML_KEY), "");
        } else if ((twin = same_before(w, map, p)) != NULL) {
            text_init(&t, line, sizeof(line));
            message_add(&t, MSG_YAML_TWICE, (const char *)key->data.scalar.value,
                        (unsigned)twin->start_mark.line + 1);
            tell(w, ERR_CONFIG_KEY, path, node_place(key), line, "");
        } else {
            walk_pair(w, path, key, value);
        }
    }
}

static void walk_document(struct walk *w) {
    const yaml_node_t *root = yaml_document_get_root_node(&w->document);
    if (root == NULL || is_null(root))
        return; /* an empty file; what is required is missed later */
    if (root->type == YAML_MAPPING_NODE)
        walk_map(w, "", root);
    else
        tell(w, ERR_CONFIG_SYNTAX, "", node_place(root), message(MSG_YAML_ROOT), "");
}

bool yaml_read(csn_bytes text, const struct yaml_reader *r) {
    struct walk w = {.r = r};
    yaml_parser_t p;
    if (!scan_tokens(&w, text) || w.aliases)
        return false;
    if (!open_parser(&p, text))
        return false;
    bool good = yaml_parser_load(&p, &w.document) != 0;
    if (good) {
        walk_document(&w);
        yaml_document_delete(&w.document);
    } else {
        tell_syntax(&w, &p);
    }
    yaml_parser_delete(&p);
    return good;
}
