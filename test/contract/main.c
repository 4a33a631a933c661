/* main.c: `contract-<world> [-t PATTERN] [FILE…]` runs the tests of suite_FILE.c, or of all;
 * PATTERN is a cmocka filter of test names. */
#include "test/contract/suite.h"

#include <stdio.h>

static const struct {
    const char *name;
    const struct CMUnitTest *test;
} files[] = {
    {"claim", suite_claim},   {"settle", suite_settle}, {"lease", suite_lease},
    {"broker", suite_broker}, {"apply", suite_apply},   {"park", suite_park},
    {"group", suite_group},
};

static bool wanted(const char *name, int argc, char **argv, int from) {
    for (int i = from; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return from >= argc;
}

static int run_file(size_t i) {
    size_t n = 0;
    char title[64];

    while (files[i].test[n].name)
        n++;
    snprintf(title, sizeof(title), "contract %s %s", contract_world_name, files[i].name);
    return _cmocka_run_group_tests(title, files[i].test, n, NULL, NULL);
}

int main(int argc, char **argv) {
    int from = 1, failed = 0, ran = 0;

    if (argc > 2 && strcmp(argv[1], "-t") == 0) {
        cmocka_set_test_filter(argv[2]);
        from = 3;
    }
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        if (wanted(files[i].name, argc, argv, from)) {
            failed += run_file(i);
            ran++;
        }
    }
    return failed != 0 || ran == 0;
}
