/* daemon.c: waits for the service's news or a signal, and steps it.
 *
 * What always holds: nothing here waits without an end. A second signal ends the process at once:
 * leases and tokens make that safe, as a crash is. */
#include "host/daemon.h"
#include "base/failpoint.h"
#include "base/log.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_ERROR = 1, EXIT_BUG = 70 };

static int exit_code_of(const csn_error *err) {
    const struct error_row *row = error_find(err->code);
    return row ? row->exit_code : EXIT_BUG;
}

static csn_status take_signal_fd(int *ret, csn_error *err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    *ret = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (*ret < 0) {
        int e = errno;
        return error_set(err, CSN_FATAL, ERR_NO_MEMORY, "signalfd: %s", strerror(e));
    }
    return CSN_OK;
}

static void end_at_once(void) {
    log_event(LOG_WARN, "stopped", (struct log_field[]){LSTR("why", "a second signal"), LEND});
    failpoint_report();
    _exit(EXIT_ERROR);
}

static void take_signals(struct service *s, int fd) {
    struct signalfd_siginfo got;
    while (read(fd, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGHUP) {
            (void)service_reload(s);
            continue;
        }
        if (service_stopping(s)) {
            end_at_once();
        }
        log_event(LOG_INFO, "stopping", (struct log_field[]){LINT("signal", got.ssi_signo), LEND});
        failpoint_hit(FAIL_HOST_STOPPING);
        service_stop(s);
    }
}

static void wait_for_news(const struct service *s, int signal_fd) {
    struct pollfd fd[] = {{.fd = service_fd(s), .events = POLLIN},
                          {.fd = signal_fd, .events = POLLIN}};
    csn_usec wait = service_timeout(s);
    struct timespec ts = {.tv_sec = wait / 1000000, .tv_nsec = wait % 1000000 * 1000};
    (void)ppoll(fd, ARRAY_LEN(fd), &ts, NULL);
}

static int run(struct service *s, int signal_fd, csn_error *ret_error) {
    while (service_step(s)) {
        wait_for_news(s, signal_fd);
        take_signals(s, signal_fd);
    }
    bool clean = service_close(s, ret_error);
    return ret_error->status != CSN_OK ? exit_code_of(ret_error) : clean ? 0 : EXIT_ERROR;
}

int daemon_run(const struct config *c, const struct service_options *o, csn_error *ret_error) {
    struct service *s = NULL;
    csn_error err = {.status = CSN_OK};
    int signal_fd = -1;
    csn_status status = take_signal_fd(&signal_fd, &err);
    if (status == CSN_OK) {
        status = service_open(c, o, &s, &err);
    }
    int code = status == CSN_OK ? run(s, signal_fd, &err) : exit_code_of(&err);
    if (signal_fd >= 0) {
        close(signal_fd);
    }
    failpoint_report();
    if (ret_error) {
        *ret_error = err;
    }
    return code;
}
