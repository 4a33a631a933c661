/* test_base_process.c: failpoints and log lines, which belong to the whole process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"

static char folder[] = "/tmp/consign-unit-XXXXXX";

static const char *path_in(const char *name, char path[64]) {
    snprintf(path, 64, "%s/%s", folder, name);
    return path;
}

static void what_is_not_armed_only_counts(void **state) {
    (void)state;
    assert_int_equal(failpoint_arm("", NULL), CSN_OK);
    uint64_t before = failpoint_hits(FAIL_STORE_CLAIM);
    assert_int_equal(failpoint_hit(FAIL_STORE_CLAIM), CSN_OK);
    assert_int_equal(failpoint_hit(FAIL_STORE_CLAIM), CSN_OK);
    assert_true(failpoint_hits(FAIL_STORE_CLAIM) == before + 2);
    assert_string_equal(failpoint_name(FAIL_STORE_CLAIM), "store.claim");
    assert_null(failpoint_name(FAIL_NR));
}

static void errors_come_at_the_hit_that_was_asked_for(void **state) {
    (void)state;
    assert_int_equal(failpoint_hits(FAIL_STORE_SETTLE), 0);
    assert_int_equal(
        failpoint_arm("store.settle=error@2,settle.committed=unknown,store.settle=error@4", NULL),
        CSN_OK);
    static const csn_status expected[] = {CSN_OK, CSN_AGAIN, CSN_OK, CSN_AGAIN, CSN_OK};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_int_equal(failpoint_hit(FAIL_STORE_SETTLE), expected[i]);
        assert_int_equal(failpoint_hit(FAIL_SETTLE_COMMITTED), CSN_UNKNOWN);
    }
}

static void a_wrong_spec_arms_nothing(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "store.claim",
        "store.claim=",
        "nowhere=crash",
        "store.claim=burn",
        "store.claim=unknown",
        "relay.claimed=error",
        "store.claim=crash@0",
        "store.claim=crash@99999999999",
        "store.claim=pause",
        "store.claim=pause:",
        "store.claim=pause:/tmp",
        "store.claim=error:x",
        "store.claim=crash@",
        "=crash",
        "store.claim=error@2,x=y",
    };
    assert_int_equal(failpoint_arm("", NULL), CSN_OK);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        csn_error err;
        error_clear(&err);
        assert_int_equal(failpoint_arm(wrong[i], &err), CSN_INVALID);
        assert_int_equal(err.code, ERR_CONFIG_VALUE);
        assert_non_null(strstr(err.text, "CONSIGN_FAILPOINTS"));
        assert_int_equal(failpoint_hit(FAIL_STORE_CLAIM), CSN_OK);
    }
}

/* The crash leaves its report and nothing else: no exit handler runs. */
static void a_crash_is_a_kill(void **state) {
    (void)state;
    char report[64];
    setenv("CONSIGN_FAILPOINT_HITS", path_in("hits", report), 1);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        log_setup(-1, LOG_TEXT, LOG_ERROR);
        if (failpoint_arm("park.updated=crash@3", NULL) != CSN_OK) {
            _exit(1);
        }
        for (int i = 0; i < 10; i++) {
            failpoint_hit(FAIL_PARK_UPDATED);
        }
        _exit(2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    FILE *f = fopen(report, "r");
    assert_non_null(f);
    char line[100];
    bool seen = false;
    while (fgets(line, sizeof line, f)) {
        seen |= strcmp(line, "park.updated 3\n") == 0;
    }
    fclose(f);
    assert_true(seen);
    unlink(report);
    unsetenv("CONSIGN_FAILPOINT_HITS");
}

struct paused {
    _Atomic bool over;
};

static void *hit_twice(void *arg) {
    struct paused *p = arg;
    failpoint_hit(FAIL_RELAY_CONFIRMED);
    p->over = true;
    failpoint_hit(FAIL_RELAY_CONFIRMED); /* the pause was for the first hit only */
    return NULL;
}

static void a_pause_lasts_until_the_writer_is_gone(void **state) {
    (void)state;
    char fifo[64], spec[128];
    assert_int_equal(mkfifo(path_in("f@fo", fifo), 0600), 0);
    snprintf(spec, sizeof spec, "relay.confirmed=pause:%s", fifo);
    assert_int_equal(failpoint_arm(spec, NULL), CSN_OK);
    log_setup(2, LOG_TEXT, LOG_ERROR);
    struct paused p = {false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, hit_twice, &p), 0);
    int fd = open(fifo, O_WRONLY); /* returns when the thread is in its pause */
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "x", 1), 1);
    usleep(50000);
    assert_false(p.over);
    close(fd);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(p.over);
    assert_int_equal(failpoint_arm("", NULL), CSN_OK);
    unlink(fifo);
}

static void *hit_many(void *arg) {
    (void)arg;
    for (int i = 0; i < 10000; i++) {
        failpoint_hit(FAIL_BROKER_ACK);
    }
    return NULL;
}

static void hits_of_several_threads_all_count(void **state) {
    (void)state;
    pthread_t thread[4];
    uint64_t before = failpoint_hits(FAIL_BROKER_ACK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, hit_many, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    }
    assert_true(failpoint_hits(FAIL_BROKER_ACK) == before + 40000);
}

/* One line through a pipe; returns its length. */
static size_t logged(enum log_format format, const struct log_field *fields, char *line,
                     size_t size) {
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    log_setup(fds[1], format, LOG_INFO);
    log_event(LOG_DEBUG, "not.this", fields);
    log_event(LOG_WARN, "relay.stale", fields);
    close(fds[1]);
    log_setup(2, LOG_TEXT, LOG_INFO);
    ssize_t n = read(fds[0], line, size - 1);
    close(fds[0]);
    assert_true(n > 26);
    line[n] = '\0';
    assert_int_equal(line[n - 1], '\n');
    return (size_t)n;
}

static void lines_are_text_or_json(void **state) {
    (void)state;
    char line[5000];
    const struct log_field fields[] = {LSTR("store", "orders"),
                                       LSTR("why", "a \"b\"\n"),
                                       LINT("rows", -1),
                                       LUSEC("after", 1500),
                                       LBYTES("id", ((csn_bytes){"\xff", 1})),
                                       LSTR("zh", "认领"),
                                       LSTR("none", NULL),
                                       LEND};
    logged(LOG_TEXT, fields, line, sizeof line);
    assert_int_equal(line[10], 'T');
    assert_string_equal(
        line + 24, " warn  relay.stale store=orders why=\"a \\\"b\\\"\\n\" rows=-1 after=1.500ms "
                   "id=\"0xff\" zh=认领 none=\"\"\n");
    logged(LOG_JSON, fields, line, sizeof line);
    assert_memory_equal(line, "{\"at\":\"2", 8);
    assert_string_equal(
        strstr(line, ",\"level\""),
        ",\"level\":\"warn\",\"event\":\"relay.stale\",\"store\":\"orders\",\"why\":\"a "
        "\\\"b\\\"\\n\","
        "\"rows\":-1,\"after_ms\":1.500,\"id\":\"0xff\",\"zh\":\"认领\",\"none\":\"\"}\n");
}

static void a_long_line_is_cut_at_a_field(void **state) {
    (void)state;
    static char longer[6000];
    memset(longer, 'y', sizeof longer - 1);
    char line[8000];
    const struct log_field fields[] = {LINT("kept", 1), LSTR("long", longer), LINT("lost", 2),
                                       LEND};
    size_t n = logged(LOG_JSON, fields, line, sizeof line);
    assert_true(n < 4096);
    assert_non_null(strstr(line, "\"kept\":1,\"cut\":true}\n"));
    assert_null(strstr(line, "yyy"));
}

static int make_folder(void **state) {
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_armed_only_counts),
        cmocka_unit_test(errors_come_at_the_hit_that_was_asked_for),
        cmocka_unit_test(a_wrong_spec_arms_nothing),
        cmocka_unit_test(a_crash_is_a_kill),
        cmocka_unit_test(a_pause_lasts_until_the_writer_is_gone),
        cmocka_unit_test(hits_of_several_threads_all_count),
        cmocka_unit_test(lines_are_text_or_json),
        cmocka_unit_test(a_long_line_is_cut_at_a_field),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
