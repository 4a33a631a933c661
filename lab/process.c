/* process.c: daemons and commands as processes, and gates.
 *
 * A gate is a FIFO. A process at a failpoint "pause:FIFO" opens it for reading and stands there
 * until a writer has come and gone; opening it for writing without blocking works exactly when
 * somebody stands there, so that "has it arrived?" is a question with an answer. */
#include "lab/process.h"
#include "host/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGS_MAX = 64, EXIT_SIGNAL = 128, EXIT_EXEC = 127 };

void process_rest(void) {
    nanosleep(&(struct timespec){0, WAIT_STEP * 1000L}, NULL);
}

/* ---- starting ---- */

/* In the child: only calls that are safe after a fork of any process. */
static void become(const char *program, char *const *arg, int out, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)
        _exit(EXIT_EXEC);
    (void)execv(program, arg);
    _exit(EXIT_EXEC);
}

static pid_t start(struct stage *s, const char *const *arg, int args, const char *out_path) {
    char *words[ARGS_MAX + 2];
    int n = 0;
    words[n++] = (char *)"consign";
    for (int i = 0; i < args && n <= ARGS_MAX; i++)
        words[n++] = (char *)arg[i];
    words[n] = NULL;
    int out = open(out_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t parent = getpid(), pid = out >= 0 ? fork() : -1;
    if (pid == 0)
        become(s->options->program, words, out, parent);
    if (pid < 0)
        stage_break(s, ERR_WRITE, "%s: %s", out_path, strerror(errno));
    if (out >= 0)
        (void)close(out);
    return pid;
}

/* Waits for the end of a process; false: not by the bound. */
static bool ended(pid_t pid, int *ret_status) {
    csn_usec until = clock_now() + WAIT_LONGEST;
    for (;;) {
        pid_t got = waitpid(pid, ret_status, WNOHANG);
        if (got == pid)
            return true;
        if ((got < 0 && errno != EINTR) || clock_now() >= until)
            return false;
        process_rest();
    }
}

static void kill_now(pid_t pid) {
    int status;
    (void)kill(pid, SIGKILL);
    (void)ended(pid, &status);
}

static void read_whole(const char *path, char *ret, size_t size) {
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(ret, 1, size - 1, f) : 0;
    ret[n] = '\0';
    if (f)
        (void)fclose(f);
}

int stage_command(struct stage *s, const char *const *arg, int args, char *ret, size_t size) {
    char path[PATH_SIZE + 16];
    int status = 0;
    if (ret && size > 0)
        ret[0] = '\0';
    if (!stage_going(s))
        return -1;
    (void)snprintf(path, sizeof path, "%s/command.out", s->dir);
    (void)unlink(path);
    pid_t pid = start(s, arg, args, path);
    if (pid < 0)
        return -1;
    if (!ended(pid, &status)) {
        kill_now(pid);
        stage_break(s, ERR_LAB_WAIT, TEXT("consign %s did not end", "consign %s 没有结束"), arg[0]);
    }
    if (ret && size > 0)
        read_whole(path, ret, size);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
}

/* ---- daemons ---- */

static struct actor *find(struct stage *s, const char *name) {
    for (uint32_t i = 0; stage_going(s) && i < s->actors; i++)
        if (strcmp(s->actor[i].name, name) == 0 && s->actor[i].pid > 0)
            return &s->actor[i];
    stage_break(s, ERR_BUG, "%s does not run", name);
    return NULL;
}

static const char *const paces[][6] = {
    [PACE_TAKEOVER] = {"relay.lease=2s", "brokers.local.confirm_timeout=400ms",
                       "relay.lock_wait=300ms"},
    [PACE_CALM] = {"relay.lease=20s", "brokers.local.confirm_timeout=5s", "relay.lock_wait=2s"},
};

static const char *const always[] = {"relay.retry.base=20ms", "subscriptions.stock.retry.base=20ms",
                                     "subscriptions.orders.retry.base=20ms",
                                     "subscriptions.stock.retry.failures=4", "log.format=json"};

static int daemon_words(struct stage *s, const char *config, const char *node, const char **ret) {
    int n = 0;
    ret[n++] = "serve";
    ret[n++] = "-c";
    ret[n++] = config;
    ret[n++] = "--set";
    ret[n++] = node;
    for (int i = 0; paces[s->pace][i] != NULL; i++) {
        ret[n++] = "--set";
        ret[n++] = paces[s->pace][i];
    }
    for (size_t i = 0; i < ARRAY_LEN(always); i++) {
        ret[n++] = "--set";
        ret[n++] = always[i];
    }
    for (uint32_t i = 0; i < s->sets; i++) {
        ret[n++] = "--set";
        ret[n++] = s->set[i];
    }
    return n;
}

void daemon_start(struct stage *s, const char *name, const char *failpoints) {
    char config[PATH_SIZE + 32], node[32], log[PATH_SIZE + 32];
    const char *word[ARGS_MAX];
    if (!stage_going(s))
        return;
    if (s->actors == ACTORS_MAX) {
        stage_break(s, ERR_BUG, "%s: too many processes", name);
        return;
    }
    (void)snprintf(config, sizeof config, "%s/shop/consign.yaml", s->dir);
    (void)snprintf(node, sizeof node, "node.name=%s", name);
    (void)snprintf(log, sizeof log, "%s/%s.log", s->dir, name);
    int n = daemon_words(s, config, node, word);
    if (failpoints)
        (void)setenv("CONSIGN_FAILPOINTS", failpoints, 1);
    pid_t pid = start(s, word, n, log);
    (void)unsetenv("CONSIGN_FAILPOINTS");
    if (pid < 0)
        return;
    struct actor *a = &s->actor[s->actors++];
    (void)copy_text(a->name, sizeof a->name, name);
    a->pid = pid;
    const char *slash = failpoints ? strrchr(failpoints, '/') : NULL;
    stage_step(s, TEXT("daemon %s started%s%.*s%s", "守护进程 %s 启动%s%.*s%s"), name,
               failpoints ? ", " : "",
               failpoints ? (slash ? (int)strcspn(failpoints, ":") : 100) : 0,
               failpoints ? failpoints : "", slash ? ":GATE" : "");
}

/* A process that ended while it should run is a failure at once, not at the bound. */
static void must_run(struct stage *s, struct actor *a) {
    int status = 0;
    if (a && waitpid(a->pid, &status, WNOHANG) == a->pid) {
        a->pid = 0;
        stage_break(s, ERR_LAB_PROCESS,
                    TEXT("daemon %s ended (status %d)", "守护进程 %s 已退出（状态 %d）"), a->name,
                    WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status));
    }
}

void daemon_ready(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    char sql[200];
    csn_usec until = clock_now() + WAIT_LONGEST;
    (void)snprintf(sql, sizeof sql,
                   "SELECT (SELECT count(*) FROM consign_bindings) >= 2 AND EXISTS (SELECT 1 FROM "
                   "consign_members WHERE label = '%s' AND ended_at IS NULL)",
                   name);
    while (stage_going(s) && ask_int(s, ORDERS, sql) == 0) {
        must_run(s, a);
        if (clock_now() >= until)
            stage_break(s, ERR_LAB_WAIT, TEXT("daemon %s is not ready", "守护进程 %s 没有就绪"),
                        name);
        process_rest();
    }
}

void daemon_stop(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    int status = 0;
    if (!a)
        return;
    (void)kill(a->pid, SIGTERM);
    bool over = ended(a->pid, &status);
    if (over)
        a->pid = 0;
    if (!over || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        stage_break(s, ERR_LAB_PROCESS,
                    TEXT("daemon %s did not stop cleanly", "守护进程 %s 没有干净停止"), name);
    stage_step(s, TEXT("daemon %s stopped by SIGTERM", "守护进程 %s 收到 SIGTERM 后停止"), name);
}

void daemon_kill(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    if (!a)
        return;
    kill_now(a->pid);
    a->pid = 0;
    stage_step(s, TEXT("kill -9 of daemon %s", "对守护进程 %s 执行 kill -9"), name);
}

void daemon_dies(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    int status = 0;
    if (!a)
        return;
    bool over = ended(a->pid, &status);
    if (over)
        a->pid = 0;
    if (!over || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        stage_break(
            s, ERR_LAB_PROCESS,
            TEXT("daemon %s was not killed at its failpoint", "守护进程 %s 没有在故障点被杀死"),
            name);
    stage_step(s, TEXT("daemon %s killed at its failpoint", "守护进程 %s 在故障点被杀死"), name);
}

void daemon_freeze(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    if (a && kill(a->pid, SIGSTOP) != 0)
        stage_break(s, ERR_LAB_PROCESS, "SIGSTOP %s: %s", name, strerror(errno));
    stage_step(s, TEXT("daemon %s frozen (SIGSTOP)", "守护进程 %s 被冻结（SIGSTOP）"), name);
}

void daemon_thaw(struct stage *s, const char *name) {
    struct actor *a = find(s, name);
    if (a && kill(a->pid, SIGCONT) != 0)
        stage_break(s, ERR_LAB_PROCESS, "SIGCONT %s: %s", name, strerror(errno));
    stage_step(s, TEXT("daemon %s goes on (SIGCONT)", "守护进程 %s 继续运行（SIGCONT）"), name);
}

void processes_end(struct stage *s) {
    for (uint32_t i = 0; i < s->actors; i++)
        if (s->actor[i].pid > 0)
            (void)kill(s->actor[i].pid, SIGKILL);
    for (uint32_t i = 0; i < s->actors; i++)
        if (s->actor[i].pid > 0)
            kill_now(s->actor[i].pid);
}

/* ---- gates ---- */

const char *gate_make(struct stage *s, const char *name) {
    if (s->gates == GATES_MAX) {
        stage_break(s, ERR_BUG, "%s: too many gates", name);
        return "";
    }
    struct gate *g = &s->gate[s->gates++];
    g->fd = -1;
    (void)copy_text(g->name, sizeof g->name, name);
    (void)snprintf(g->path, sizeof g->path, "%.480s/%s.gate", s->dir, name);
    if (stage_going(s) && mkfifo(g->path, 0600) != 0)
        stage_break(s, ERR_WRITE, "%s: %s", g->path, strerror(errno));
    return g->path;
}

static struct gate *gate_find(struct stage *s, const char *name) {
    for (uint32_t i = 0; i < s->gates; i++)
        if (strcmp(s->gate[i].name, name) == 0)
            return &s->gate[i];
    stage_break(s, ERR_BUG, "no gate %s", name);
    return NULL;
}

void gate_arrived(struct stage *s, const char *name) {
    struct gate *g = gate_find(s, name);
    csn_usec until = clock_now() + WAIT_LONGEST;
    while (g && stage_going(s) && (g->fd = open(g->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
        if (errno != ENXIO)
            stage_break(s, ERR_WRITE, "%s: %s", g->path, strerror(errno));
        else if (clock_now() >= until)
            stage_break(s, ERR_LAB_WAIT, TEXT("nobody came to the gate %s", "没有进程到达关口 %s"),
                        name);
        process_rest();
    }
    stage_step(s, TEXT("held at the gate %s", "停在关口 %s"), name);
}

void gate_open(struct stage *s, const char *name) {
    struct gate *g = gate_find(s, name);
    if (!g || g->fd < 0)
        return;
    (void)close(g->fd);
    g->fd = -1;
    stage_step(s, TEXT("gate %s opened", "关口 %s 放行"), name);
}
