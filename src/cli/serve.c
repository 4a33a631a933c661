/* serve.c: hands the checked configuration to the daemon; what it says for people goes to stderr,
 * as its log does. */
#include "cli/serve.h"
#include "base/message.h"
#include "host/daemon.h"
#include <stdlib.h>
#include <unistd.h>

/* Daemon texts are in the configured language, unless --lang says otherwise: a daemon's locale is
 * an accident. */
static void set_language(const struct command_call *c) {
    enum language l = LANG_EN;
    if (!c->lang_given && language_find(c->config->language, &l))
        message_language(l);
}

int serve_command(struct command_call *c) {
    csn_error err;
    struct daemon_options options = {
        .say = c->out->quiet ? NULL : c->out->err,
        .failpoints = getenv("CONSIGN_FAILPOINTS"),
        .log_fd = STDERR_FILENO,
    };
    error_clear(&err);
    set_language(c);
    int code = daemon_run(c->config, &options, &err);
    if (err.code != 0)
        (void)out_error(c->out, &err, NULL, NULL);
    return code;
}
