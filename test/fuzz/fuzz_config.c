/* fuzz_config.c: whatever stands in a configuration file, reading it ends; every mistake has a
 * code, words and a place inside the file, and can be shown; what is free of mistakes keeps the
 * promises that the daemon builds on, and reads back as it was. */
#include "cli/report.h"
#include "conf/load.h"
#include "mutate.h"
#include "store/store.h"

static const char *const words[] = {"stores:",
                                    "brokers:",
                                    "  ",
                                    "\n",
                                    "\n  ",
                                    ": ",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "&a ",
                                    "*a",
                                    "!!str ",
                                    "---\n",
                                    "...\n",
                                    "\"",
                                    "'",
                                    "|\n",
                                    ">-\n",
                                    "# ",
                                    "\\0",
                                    "? ",
                                    "- ",
                                    ",",
                                    "~",
                                    "null",
                                    "0",
                                    "1ms",
                                    "99999999999999999999d",
                                    "30s",
                                    "4MiB",
                                    "100%",
                                    "101%",
                                    "<<: ",
                                    "\t",
                                    "\r\n",
                                    "\xef\xbb\xbf",
                                    "\xff",
                                    "数",
                                    "relay:",
                                    "lease",
                                    "retry",
                                    "match",
                                    "sqlite:",
                                    "a.b",
                                    "\xe2\x80\xa8",
                                    "%YAML 1.2\n"};

static void fail(const char *why, const char *data, size_t size, uint64_t round) {
    fprintf(stderr, "round %llu: %s\n--- text\n%.*s\n---\n", (unsigned long long)round, why,
            (int)size, data);
    abort();
}

static uint32_t lines_of(const char *data, size_t size) {
    uint32_t n = 1;
    for (size_t i = 0; i < size; i++)
        n += data[i] == '\n' || data[i] == '\r';
    for (size_t i = 0; i + 2 < size; i++) /* the line ends of YAML 1.1: NEL, LS, PS */
        n += memcmp(data + i, "\xe2\x80\xa8", 3) == 0 || memcmp(data + i, "\xe2\x80\xa9", 3) == 0;
    for (size_t i = 0; i + 1 < size; i++)
        n += memcmp(data + i, "\xc2\x85", 2) == 0;
    return n;
}

static const char *wrong_mistake(const struct load *l, const char *data, size_t size) {
    uint32_t lines = lines_of(data, size);
    for (uint32_t i = 0; i < l->mistakes; i++) {
        const struct mistake *m = &l->mistake[i];
        if (error_find(m->code) == NULL)
            return "a mistake without a code";
        if (m->text[0] == '\0')
            return "a mistake without words";
        if (m->at.line > lines + 1)
            return "a mistake outside of the file";
        if (m->at.line > 0 && (m->at.column == 0 || m->at.width == 0))
            return "a mistake at no column";
    }
    return NULL;
}

static const char *wrong_values(const struct config *c) {
    if (c->stores == 0 || c->node[0] == '\0')
        return "no store, or no name";
    for (uint32_t i = 0; i < c->stores; i++)
        if (strncmp(c->store[i].url, "sqlite:", 7) != 0 || c->store[i].apply < 1 ||
            c->store[i].apply > 8)
            return "a store that cannot be";
    for (uint32_t i = 0; i < c->brokers; i++)
        if (c->broker[i].store[0] == '\0' ||
            c->broker[i].confirm_timeout + 2 * c->relay.lock_wait > c->relay.lease / 2)
            return "a broker that cannot be";
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        const struct config_subscription *s = &c->subscription[i];
        if (s->handler_path[0] != '/' || s->partitions < 1 || s->partitions > LANE_MAX ||
            s->retry.base > s->retry.max || s->retry.base < 1 || s->match[0] == '\0')
            return "a subscription that cannot be";
    }
    return c->relay.batch_rows < 1 || c->relay.batch_rows > BATCH_MAX ? "a batch that cannot be"
                                                                      : NULL;
}

/* Puts one value into the copy as it was shown. */
static bool copy_value(const struct config *from, struct config *to, const char *path) {
    char value[URL_MAX_];
    csn_error err;
    return !config_get(from, path, value, sizeof(value)) || value[0] == '\0' ||
           config_put(to, path, value, &err) == CSN_OK;
}

static const char *wrong_copy(const struct config *c, struct config *copy) {
    char thing[CONFIG_PATH_MAX], path[CONFIG_PATH_MAX * 2];
    config_init(copy, c->path);
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);
        const char *star = strchr(k->path, '*');
        if (star == NULL && !copy_value(c, copy, k->path))
            return "a value that does not read back";
        for (uint32_t n = 0;
             star != NULL && config_thing_at(c, k->section, n, thing, sizeof(thing)); n++) {
            snprintf(path, sizeof(path), "%s%s", thing, star + 1);
            if (!copy_value(c, copy, path))
                return "a named value that does not read back";
        }
    }
    copy->relay.confirm_timeout = c->relay.confirm_timeout;
    if (copy->stores != c->stores || copy->subscriptions != c->subscriptions ||
        copy->relay.lease != c->relay.lease || copy->relay.batch_bytes != c->relay.batch_bytes)
        return "a copy that differs";
    for (uint32_t i = 0; i < c->stores; i++)
        if (strcmp(copy->store[i].url, c->store[i].url) != 0 ||
            copy->store[i].migrate != c->store[i].migrate)
            return "a store that differs in the copy";
    return NULL;
}

static const char *try_one(const char *data, size_t size, struct config *copy, struct out *o,
                           bool *ret_good) {
    const struct load_input in = {.drivers = store_drivers};
    struct load *l = NULL;
    csn_error err;
    if (load_text(&in, "/etc/shop/consign.yaml", (csn_bytes){data, size}, &l, &err) != CSN_OK)
        return "not loaded";
    const char *why = wrong_mistake(l, data, size);
    *ret_good = l->mistakes == 0;
    rewind(o->err);
    if (why == NULL &&
        report_mistakes(l, o) != (*ret_good ? 0 : error_find(l->mistake[0].code)->exit_code))
        why = "an exit code that does not fit";
    if (why == NULL && *ret_good)
        why = wrong_values(&l->config);
    if (why == NULL && *ret_good)
        why = wrong_copy(&l->config, copy);
    load_free(l);
    return why;
}

int main(int argc, char **argv) {
    static char data[MUTANT_MAX];
    struct corpus c;
    struct prng p;
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 6000,
             seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    uint64_t good = 0;
    struct config *copy = calloc(1, sizeof(*copy));
    struct out o = {.err = tmpfile(), .to = stdout};
    if (argc < 2 || copy == NULL || o.err == NULL) {
        fprintf(stderr, "fuzz_config FOLDER [rounds] [seed]\n");
        return 2;
    }
    corpus_load(&c, argv[1]);
    if (c.n == 0)
        return 2;
    prng_seed(&p, seed);
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t from = (uint32_t)(i % c.n);
        size_t size = c.size[from];
        bool fine = false;
        memcpy(data, c.data[from], size);
        if (i >= c.n)
            mutate(&p, &c, words, ARRAY_LEN(words), data, &size);
        o.format = prng_below(&p, 4) == 0 ? OUT_JSON : OUT_TABLE;
        const char *why = try_one(data, size, copy, &o, &fine);
        if (why != NULL)
            fail(why, data, size, i);
        good += fine;
    }
    printf("%llu texts, %llu of them fine\n", (unsigned long long)rounds, (unsigned long long)good);
    fclose(o.err);
    free(copy);
    corpus_free(&c);
    return good > 0 && good < rounds ? 0 : 1;
}
