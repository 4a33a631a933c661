/* serve.c: hands the checked configuration to the daemon; what it says for people goes to stderr,
 * as its log does. */
#include "cli/serve.h"
#include "base/message.h"
#include "conf/load.h"
#include "host/daemon.h"
#include "store/store.h"
#include <stdlib.h>
#include <unistd.h>

/* Daemon texts are in the configured language, unless --lang says otherwise: a daemon's locale is
 * an accident. */
static void set_language(const struct command_call *c) {
    enum language l = LANG_EN;
    if (!c->lang_given && language_find(c->config->language, &l))
        message_language(l);
}

static void tell_mistake(const struct load *l, const struct mistake *m, service_mistake *tell,
                         void *arg) {
    char where[URL_MAX_ + 32];
    if (m->at.line > 0)
        (void)snprintf(where, sizeof(where), "%s:%u", l->shown, (unsigned)m->at.line);
    else
        (void)copy_text(where, sizeof(where), m->source[0] != '\0' ? m->source : l->shown);
    tell(arg, m->code, m->path, where, m->text);
}

/* The same file, the same --set, as at the start; a file that has appeared elsewhere is another's. */
static csn_status read_again(void *arg, struct config *ret, service_mistake *tell, void *tell_arg,
                             csn_error *err) {
    const struct command_call *c = arg;
    struct load_input in = command_input(c);
    struct load *l = NULL;
    in.file = c->config->path;
    csn_status s = load_config(&in, &l, err);
    if (s != CSN_OK)
        return s;
    for (uint32_t i = 0; i < l->mistakes; i++)
        tell_mistake(l, &l->mistake[i], tell, tell_arg);
    s = l->mistakes > 0 ? CSN_INVALID : CSN_OK;
    *ret = l->config;
    load_free(l);
    return s;
}

int serve_command(struct command_call *c) {
    csn_error err;
    struct service_options options = {
        .drivers = store_drivers,
        .all = true,
        .say = c->out->quiet ? NULL : c->out->err,
        .failpoints = getenv("CONSIGN_FAILPOINTS"),
        .log_fd = STDERR_FILENO,
        .reload = read_again,
        .reload_arg = c,
    };
    error_clear(&err);
    set_language(c);
    int code = daemon_run(c->config, &options, &err);
    if (err.code != 0)
        (void)out_error(c->out, &err, NULL, NULL);
    return code;
}
