/* dev.c: the trial: a folder with the shop, a child that writes orders, a child that is the daemon,
 * one line a second about both.
 *
 *   consign dev ── fork ──▶ writer      dev_writer.c: orders and their events
 *        │ ───── fork, exec ▶ serve     the program itself; its log is in the folder
 *        └ looks once a second, read-only
 *
 * What always holds: what is shown is read from the databases; the faults are real (kill -9, a
 * failpoint that refuses every publish), and so is what mends them. Nothing is written outside the
 * folder. When this process ends, however it ends, its children end; the folder is one process's at
 * a time. */
#include "cli/dev.h"
#include "base/message.h"
#include "cli/dev_kit.h"
#include "cli/init.h"
#include "cli/init_files.h"
#include "host/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum {
    SECOND = 1000000,
    LINE_EVERY = SECOND,
    BROKEN_FOR = 10 * SECOND,
    RESTART_AFTER = SECOND,
    QUIET_WITHIN = 10 * SECOND,
    READY_WITHIN = 60 * SECOND,
    STOP_WITHIN = 15 * SECOND,
    KEYS_A_LOOK = 16,
    HANDLER_MAX = 4096
};

struct dev {
    struct command_call *c;
    struct out *out;
    char dir[DEV_PATH_MAX], url[2][DEV_PATH_MAX], config[DEV_PATH_MAX], log[DEV_PATH_MAX];
    char shown[DEV_PATH_MAX]; /* the folder as it was given */
    int lock_fd, signal_fd;
    pid_t writer, daemon;
    struct db *db[2];              /* orders, stock; NULL: not open yet */
    struct dev_counts now, before; /* before: when the fault began */
    csn_usec started, line_at, until, restart_at, mend_at, fault_at;
    int asked;         /* how often a signal asked us to end */
    const char *fault; /* the failpoint of the next daemon; NULL: none */
    bool fresh, broken, paused, keys, stopping, lost_writer;
    bool killed, ending; /* the daemon's end is our doing */
    struct termios terminal;
    bool terminal_set;
    csn_error err;
};

/* ---- the folder ---- */

static bool join(char *ret, const char *before, const char *dir, const char *name) {
    struct text t;
    text_init(&t, ret, DEV_PATH_MAX);
    text_add(&t, "%s%s/%s", before, dir, name);
    return !t.full;
}

/* The handler at the start of each trial: it does not know the currency of one order in twenty. */
static const char plain_top[] = "-- handler reserve\n";
static const char strict_top[] =
    "-- handler reserve\n"
    "-- This shop takes CNY only; one order in twenty comes with XTS. Press f in consign dev to "
    "have it mended.\n"
    "SELECT 1 WHERE coalesce(json_extract(:payload, '$.currency'), 'CNY') = 'CNY';\n"
    "-- expect rows 1 else goto unknown\n";
static const char strict_end[] = "-- label unknown\n"
                                 "-- verdict poison \"unknown currency :payload.currency\"\n";

static const char *plain_handler(void) {
    const struct init_file *f;
    for (size_t i = 0; (f = init_file_at(i)) != NULL; i++)
        if (strcmp(f->path, "handlers/reserve.sql") == 0)
            return f->text[message_language_now() == LANG_ZH];
    return "";
}

/* Whether the handler file is still one of ours, as it was written; else a person has changed it. */
static bool handler_is(const char *path, const char *body, const char *before, const char *after) {
    char text[HANDLER_MAX], want[HANDLER_MAX];
    FILE *f = fopen(path, "re");
    size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f != NULL)
        (void)fclose(f);
    text[n] = '\0';
    int length = snprintf(want, sizeof want, "%s%s%s", before, body, after);
    return length > 0 && (size_t)length < sizeof want && strcmp(text, want) == 0;
}

/* From the mended form to the strict one, or back; what a person has changed is left alone, and then
 * *ret_ours is false. Beside the old one first: a handler file is never half a file. */
static csn_status change_handler(struct dev *d, bool strict, bool *ret_ours) {
    char path[DEV_PATH_MAX], fresh[DEV_PATH_MAX];
    const char *body = strchr(plain_handler(), '\n') + 1, *top = plain_top;
    const char *before = strict ? top : strict_top, *after = strict ? "" : strict_end;
    if (!join(path, "", d->dir, "handlers/reserve.sql") ||
        !join(fresh, "", d->dir, "handlers/reserve.new"))
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: the path is too long", d->dir);
    *ret_ours = handler_is(path, body, before, after);
    if (!*ret_ours)
        return CSN_OK;
    FILE *f = fopen(fresh, "we");
    bool good = f != NULL &&
                fprintf(f, "%s%s%s", strict ? strict_top : top, body, strict ? strict_end : "") > 0;
    if (f != NULL)
        good &= fclose(f) == 0;
    if (!good || rename(fresh, path) != 0)
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: %s", path, strerror(errno));
    return CSN_OK;
}

/* One process at a time: whoever holds the lock of this file. */
static csn_status lock_folder(struct dev *d) {
    char path[DEV_PATH_MAX], pid[24] = "?";
    if (!join(path, "", d->dir, "dev.lock"))
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: the path is too long", d->dir);
    d->lock_fd = open(path, O_RDWR | O_CLOEXEC | (d->fresh ? O_CREAT : 0), 0666);
    if (d->lock_fd < 0)
        return error_set(&d->err, CSN_INVALID, ERR_TAKEN, "%s: %s", d->shown,
                         message(MSG_DEV_NOT_OURS));
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = read(d->lock_fd, pid, sizeof pid - 1);
        pid[n > 0 ? n : 0] = '\0';
        char text[160];
        struct text t;
        text_init(&t, text, sizeof text);
        message_add(&t, MSG_DEV_TWICE, pid);
        return error_set(&d->err, CSN_INVALID, ERR_TAKEN, "%s: %s", d->shown, text);
    }
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    if (ftruncate(d->lock_fd, 0) != 0 || pwrite(d->lock_fd, pid, strlen(pid), 0) < 0)
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: %s", path, strerror(errno));
    return CSN_OK;
}

static csn_status make_folder(struct dev *d) {
    char lock[DEV_PATH_MAX];
    if (!join(lock, "", d->shown, "dev.lock"))
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: the path is too long", d->shown);
    d->fresh = access(lock, F_OK) != 0;
    if (d->fresh && init_make(d->shown, true, &d->err) != CSN_OK)
        return d->err.status;
    char *absolute = realpath(d->shown, NULL);
    bool fits = absolute != NULL && copy_text(d->dir, sizeof d->dir - 64, absolute);
    free(absolute);
    if (!fits)
        return error_set(&d->err, CSN_INVALID, ERR_WRITE, "%s: %s", d->shown, strerror(errno));
    (void)join(d->url[0], "sqlite:", d->dir, "orders.db");
    (void)join(d->url[1], "sqlite:", d->dir, "stock.db");
    (void)join(d->config, "", d->dir, "consign.yaml");
    (void)join(d->log, "", d->dir, "consign.log");
    bool ours;
    csn_status s = lock_folder(d);
    return s == CSN_OK ? change_handler(d, true, &ours) : s;
}

/* ---- signals ---- */

static csn_status open_signals(struct dev *d) {
    static const int mine[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGCONT};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(mine); i++)
        (void)sigaddset(&set, mine[i]);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    d->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return d->signal_fd >= 0
               ? CSN_OK
               : error_set(&d->err, CSN_FATAL, ERR_NO_MEMORY, "signalfd: %s", strerror(errno));
}

/* Single keys, no echo, while a person is there. */
static bool take_terminal(const struct dev *d) {
    struct termios t = d->terminal;
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &t) == 0;
}

/* After Ctrl-Z a shell has the terminal as it likes it. */
static void take_signals(struct dev *d) {
    struct signalfd_siginfo got;
    while (read(d->signal_fd, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGCONT && d->terminal_set)
            (void)take_terminal(d);
        d->asked += got.ssi_signo != SIGCHLD && got.ssi_signo != SIGCONT;
    }
    d->stopping |= d->asked > 0;
}

/* ---- children ---- */

/* In the child: it ends when we do, and Ctrl-C is ours to pass on. */
static void become_child(pid_t parent) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(0);
}

/* Before any database is open here: SQLite's locks do not cross a fork. */
static csn_status start_writer(struct dev *d) {
    pid_t parent = getpid();
    (void)fflush(NULL);
    d->writer = fork();
    if (d->writer == 0) {
        become_child(parent);
        dev_write(d->url[0]);
    }
    return d->writer > 0
               ? CSN_OK
               : error_set(&d->err, CSN_FATAL, ERR_NO_MEMORY, "fork: %s", strerror(errno));
}

static void exec_daemon(struct dev *d) {
    sigset_t none;
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(71);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (d->fault != NULL)
        (void)setenv("CONSIGN_FAILPOINTS", d->fault, 1);
    (void)execl("/proc/self/exe", "consign", "serve", "-c", d->config, "--set", "relay.lease=4s",
                "--set", "relay.lock_wait=500ms", "--set", "brokers.local.confirm_timeout=1s",
                "--set", "relay.retry.max=1s", (char *)NULL);
    _exit(71);
}

static csn_status start_daemon(struct dev *d) {
    pid_t parent = getpid();
    (void)fflush(NULL);
    d->daemon = fork();
    if (d->daemon == 0) {
        become_child(parent);
        exec_daemon(d);
    }
    return d->daemon > 0
               ? CSN_OK
               : error_set(&d->err, CSN_FATAL, ERR_NO_MEMORY, "fork: %s", strerror(errno));
}

/* A daemon that died is started again, as a supervisor would; when nobody here wanted its end, it is
 * said. */
static void daemon_ended(struct dev *d, int status, csn_usec now) {
    char safe[DEV_PATH_MAX];
    bool ours = d->killed || d->ending;
    d->killed = false;
    if (ours)
        return;
    if (d->fault != NULL && !d->broken) {
        d->fault = NULL; /* it was there to die once */
        d->fault_at = now;
        out_say(d->out, MSG_DEV_WORST_CAME);
    } else {
        out_say(d->out, MSG_DEV_ENDED, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                out_safe_text(d->log, safe, sizeof safe));
    }
    d->restart_at = now + RESTART_AFTER;
}

static void reap(struct dev *d, csn_usec now) {
    pid_t gone;
    int status;
    while ((gone = waitpid(-1, &status, WNOHANG)) > 0) {
        if (gone == d->daemon) {
            d->daemon = 0;
            daemon_ended(d, status, now);
        } else if (gone == d->writer) {
            d->writer = 0;
            d->lost_writer = !d->stopping;
        }
    }
}

/* Asked to end a second time: at once. */
static void end_child(struct dev *d, pid_t *child) {
    csn_usec until = clock_now() + STOP_WITHIN;
    d->ending = true;
    if (*child > 0)
        (void)kill(*child, SIGTERM);
    while (*child > 0 && clock_now() < until && d->asked < 2) {
        reap(d, clock_now());
        take_signals(d);
        if (*child > 0)
            (void)poll(NULL, 0, 20);
    }
    d->ending = false;
    if (*child > 0) {
        (void)kill(*child, SIGKILL);
        (void)waitpid(*child, NULL, 0);
        *child = 0;
    }
}

/* ---- looking ---- */

static bool is_open(struct dev *d) {
    for (int i = 0; i < 2; i++)
        if (d->db[i] == NULL && db_open(d->url[i], DB_READ_ONLY, &d->db[i], &d->err) != CSN_OK)
            return false;
    return true;
}

static bool look(struct dev *d) {
    return is_open(d) && dev_count(d->db[0], d->db[1], &d->now, &d->err) == CSN_OK;
}

static void clock_text(char ret[16]) {
    time_t t = time(NULL);
    struct tm tm;
    (void)localtime_r(&t, &tm);
    (void)strftime(ret, 16, "%H:%M:%S", &tm);
}

static void say_line(struct dev *d) {
    char at[16];
    clock_text(at);
    out_say(d->out, MSG_DEV_LINE, at, (long long)d->now.written, (long long)d->now.sent,
            (long long)d->now.handled, (long long)d->now.dead,
            d->daemon == 0 ? message(MSG_DEV_DOWN)
            : d->broken    ? message(MSG_DEV_BROKEN)
            : d->paused    ? message(MSG_DEV_PAUSED)
                           : "");
    (void)fflush(d->out->to);
}

/* After a fault: when nothing waits any more that was there when it ended, what came twice. What was
 * in a dead one's hands is older than a second after two. */
static void say_repeats(struct dev *d, csn_usec now) {
    if (d->fault_at == 0 || d->fault != NULL || d->daemon == 0 || now < d->fault_at + 2 * SECOND ||
        d->now.behind > 0)
        return;
    out_say(d->out, MSG_DEV_CAUGHT_UP, (long long)((now - d->fault_at) / SECOND),
            (long long)(d->now.again - d->before.again),
            (long long)(d->now.repeats - d->before.repeats), (long long)d->now.doubled);
    d->fault_at = 0;
}

/* ---- keys ---- */

static void fault_begins(struct dev *d, csn_usec now) {
    (void)look(d);
    d->before = d->now;
    d->fault_at = now;
}

/* The next tick starts the next one, with this failpoint. */
static void replace_daemon(struct dev *d, const char *fault, csn_usec now) {
    d->fault = NULL;
    end_child(d, &d->daemon);
    d->fault = fault;
    d->restart_at = now;
}

static void break_broker(struct dev *d, csn_usec now) {
    if (d->broken)
        return;
    fault_begins(d, now);
    d->broken = true;
    d->mend_at = now + BROKEN_FOR;
    out_say(d->out, MSG_DEV_BREAK);
    replace_daemon(d, "broker.publish=error", now);
}

static void mend_broker(struct dev *d, csn_usec now) {
    d->broken = false;
    d->mend_at = 0;
    out_say(d->out, MSG_DEV_MENDED);
    replace_daemon(d, NULL, now);
}

static void crash(struct dev *d, csn_usec now) {
    if (d->daemon <= 0 || d->killed)
        return;
    fault_begins(d, now);
    d->killed = true;
    d->restart_at = now + RESTART_AFTER;
    out_say(d->out, MSG_DEV_CRASH, (int)d->daemon);
    (void)kill(d->daemon, SIGKILL);
}

/* After the effect is committed, before it is acknowledged: then the same event must come again. */
static void crash_at_the_worst(struct dev *d, csn_usec now) {
    if (d->broken || d->fault != NULL)
        return;
    fault_begins(d, now);
    out_say(d->out, MSG_DEV_WORST);
    replace_daemon(d, "inbox.committed=crash", now);
}

static void pause_writer(struct dev *d) {
    if (d->writer <= 0)
        return;
    d->paused = !d->paused;
    (void)kill(d->writer, SIGUSR1);
    out_say(d->out, d->paused ? MSG_DEV_PAUSE : MSG_DEV_RESUME);
}

static void fix_handler(struct dev *d) {
    bool ours = false;
    if (change_handler(d, false, &ours) != CSN_OK) {
        (void)out_error(d->out, &d->err, NULL, NULL);
        return;
    }
    out_say(d->out, ours ? MSG_DEV_FIX : MSG_DEV_NO_FIX);
    if (ours && d->daemon > 0)
        (void)kill(d->daemon, SIGHUP);
}

static void press(struct dev *d, char key, csn_usec now) {
    switch (key) {
    case 'b':
        break_broker(d, now);
        break;
    case 'c':
        crash(d, now);
        break;
    case 'w':
        crash_at_the_worst(d, now);
        break;
    case 'p':
        pause_writer(d);
        break;
    case 'f':
        fix_handler(d);
        break;
    case 'q':
        d->stopping = true;
        break;
    case '?':
    case 'h':
        out_say(d->out, MSG_DEV_KEYS);
        break;
    default: /* Enter and what was pressed by mistake */
        break;
    }
    (void)fflush(d->out->to);
}

static void take_keys(struct dev *d, csn_usec now) {
    char key[KEYS_A_LOOK];
    ssize_t n = read(STDIN_FILENO, key, sizeof key);
    d->keys = n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
    for (ssize_t i = 0; i < n; i++)
        press(d, key[i], now);
}

/* A terminal is put back at the end, and is not ours in the background. A test presses keys through a pipe. */
static void open_keys(struct dev *d) {
    d->keys = getenv("CONSIGN_TEST_KEYS") != NULL;
    if (isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
        tcgetattr(STDIN_FILENO, &d->terminal) == 0)
        d->keys = d->terminal_set = take_terminal(d);
}

/* ---- the loop ---- */

static bool log_says_ready(const struct dev *d) {
    char line[512];
    bool found = false;
    FILE *f = fopen(d->log, "re");
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL)
        found = strstr(line, "\"event\":\"ready\"") != NULL;
    if (f != NULL)
        (void)fclose(f);
    return found;
}

static csn_status wait_ready(struct dev *d) {
    csn_usec until = clock_now() + READY_WITHIN;
    while (!log_says_ready(d)) {
        reap(d, clock_now());
        take_signals(d);
        if (d->stopping)
            return CSN_OK;
        if (d->daemon == 0 || clock_now() > until)
            return error_set(&d->err, CSN_FATAL, ERR_TRIAL, "%s", d->log);
        (void)poll(NULL, 0, 5);
    }
    return CSN_OK;
}

static void tick(struct dev *d, csn_usec now) {
    reap(d, now);
    if (d->mend_at && now >= d->mend_at)
        mend_broker(d, now);
    if (d->daemon == 0 && !d->stopping && now >= d->restart_at) {
        d->restart_at = 0;
        (void)start_daemon(d);
    }
    if (now < d->line_at)
        return;
    d->line_at = now + LINE_EVERY;
    if (look(d)) {
        say_line(d);
        say_repeats(d, now);
    }
}

static int wait_ms(const struct dev *d, csn_usec now) {
    csn_usec next = d->line_at;
    if (d->until && d->until < next)
        next = d->until;
    if (d->daemon == 0 && d->restart_at && d->restart_at < next)
        next = d->restart_at;
    return next > now ? (int)((next - now) / 1000) + 1 : 0;
}

static void loop(struct dev *d) {
    while (!d->stopping && !d->lost_writer) {
        csn_usec now = clock_now();
        if (d->until && now >= d->until)
            return;
        tick(d, now);
        struct pollfd fd[] = {{.fd = d->signal_fd, .events = POLLIN},
                              {.fd = d->keys ? STDIN_FILENO : -1, .events = POLLIN}};
        if (poll(fd, 2, wait_ms(d, clock_now())) <= 0)
            continue;
        if (fd[0].revents)
            take_signals(d);
        if (fd[1].revents)
            take_keys(d, clock_now());
    }
}

/* ---- the end ---- */

/* Nothing under way, within a limit. */
static bool quiet(struct dev *d) {
    csn_usec until = clock_now() + QUIET_WITHIN;
    int asked = d->asked;
    while (!look(d) || d->now.open > 0) {
        take_signals(d);
        if (clock_now() > until || d->asked > asked)
            return false;
        if (d->daemon == 0)
            (void)start_daemon(d);
        (void)poll(NULL, 0, 50);
        reap(d, clock_now());
    }
    return true;
}

/* With --for: the books. Returns the exit code. */
static int close_books(struct dev *d) {
    bool right = false;
    if (d->broken)
        mend_broker(d, clock_now());
    if (!quiet(d))
        out_say(d->out, MSG_DEV_NOT_QUIET, (int)(QUIET_WITHIN / SECOND), (long long)d->now.open);
    end_child(d, &d->daemon);
    if (!is_open(d) || dev_books(d->out, d->db[0], d->db[1], &right, &d->err) != CSN_OK)
        return out_error(d->out, &d->err, NULL, NULL);
    return right ? 0 : 1;
}

static int end(struct dev *d, bool books) {
    d->stopping = true;
    end_child(d, &d->writer);
    int code = books ? close_books(d) : 0;
    end_child(d, &d->daemon);
    if (d->terminal_set)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &d->terminal);
    db_close(d->db[0]);
    db_close(d->db[1]);
    char safe[DEV_PATH_MAX];
    out_say(d->out, MSG_DEV_END, out_safe_text(d->shown, safe, sizeof safe));
    return code;
}

/* ---- the start ---- */

static void say_hello(struct dev *d) {
    char safe[DEV_PATH_MAX];
    const char *s = out_safe_text(d->shown, safe, sizeof safe);
    out_say(d->out, MSG_DEV_HELLO, CSN_VERSION, s);
    out_say(d->out, MSG_DEV_WHAT, s, s, s);
}

/* "\n  export PATH=…" when a shell would not find this very program under its name. */
static void path_hint(char *ret, size_t size) {
    char self[PATH_MAX], found[PATH_MAX];
    const char *path = getenv("PATH");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    bool there = false;
    self[n > 0 ? n : 0] = '\0';
    while (path != NULL && *path != '\0' && !there) {
        size_t part = strcspn(path, ":");
        char *real = NULL;
        (void)snprintf(found, sizeof found, "%.*s/consign", (int)part, path);
        if (access(found, X_OK) == 0 && (real = realpath(found, NULL)) != NULL)
            there = strcmp(real, self) == 0;
        free(real);
        path += part + (path[part] == ':');
    }
    char *slash = strrchr(self, '/');
    ret[0] = '\0';
    if (!there && slash != NULL) {
        *slash = '\0';
        (void)snprintf(ret, size, "\n  export PATH=%s:$PATH", self);
    }
}

/* The text as one word of a shell. */
static const char *shell_word(const char *text, char *ret, size_t size) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+";
    struct text t;
    bool quote = text[strspn(text, plain)] != '\0';
    text_init(&t, ret, size);
    text_add(&t, "%s", quote ? "'" : "");
    for (; *text != '\0'; text++)
        text_add(&t, *text == '\'' ? "'\\%c'" : "%c", *text);
    text_add(&t, "%s", quote ? "'" : "");
    return ret;
}

static void say_hints(struct dev *d) {
    char path[PATH_MAX + 32], word[DEV_PATH_MAX * 4];
    char safe[DEV_PATH_MAX * 4], option[DEV_PATH_MAX * 4 + 40] = "";
    const char *s = out_safe_text(shell_word(d->shown, word, sizeof word), safe, sizeof safe);
    (void)snprintf(option, sizeof option, "%s%s%s%s",
                   strcmp(d->shown, "consign-dev") != 0 ? " -c " : "",
                   strcmp(d->shown, "consign-dev") != 0 ? s : "",
                   strcmp(d->shown, "consign-dev") != 0 ? "/consign.yaml" : "",
                   !d->c->lang_given                   ? ""
                   : message_language_now() == LANG_ZH ? " --lang zh-CN"
                                                       : " --lang en");
    out_say(d->out, MSG_DEV_READY, (long long)((clock_now() - d->started) / 1000));
    path_hint(path, sizeof path);
    out_say(d->out, MSG_DEV_HINTS, path, option, option, s, option, option, option);
    if (d->keys)
        out_say(d->out, MSG_DEV_KEYS);
    (void)fflush(d->out->to);
}

static csn_status start(struct dev *d) {
    csn_status s = open_signals(d);
    if (s == CSN_OK)
        s = make_folder(d);
    if (s != CSN_OK)
        return s;
    say_hello(d);
    (void)unlink(d->log); /* of the last time */
    s = start_writer(d);
    if (s == CSN_OK)
        s = start_daemon(d);
    return s == CSN_OK ? wait_ready(d) : s;
}

int dev_command(struct command_call *c) {
    struct dev *d = calloc(1, sizeof *d);
    const char *dir = command_text(c, "dir");
    csn_usec length = command_duration(c, "for", 0);
    if (d == NULL)
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "dev");
    d->c = c;
    d->out = c->out;
    d->lock_fd = d->signal_fd = -1;
    d->started = clock_now();
    int code = 0;
    if (!copy_text(d->shown, sizeof d->shown - 64,
                   dir != NULL && dir[0] != '\0' ? dir : "consign-dev"))
        code = out_fail(c->out, ERR_USAGE, NULL, NULL, "--dir");
    else if (start(d) != CSN_OK)
        code = out_error(c->out, &d->err, NULL, NULL);
    if (code == 0) {
        open_keys(d);
        say_hints(d);
        d->until = length ? clock_now() + length : 0;
        loop(d);
        code = end(d, length > 0);
        if (d->lost_writer)
            code = out_fail(c->out, ERR_TRIAL, NULL, NULL, "%s", message(MSG_DEV_LOST_WRITER));
    } else {
        end_child(d, &d->writer);
        end_child(d, &d->daemon);
    }
    if (d->lock_fd >= 0)
        (void)close(d->lock_fd);
    if (d->signal_fd >= 0)
        (void)close(d->signal_fd);
    free(d);
    return code;
}
