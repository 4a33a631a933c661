/* store.c: the drivers that are built in, and what a URL of SQLite says. */
#include "store/store.h"
#include "store/sqlite.h"

const struct store_driver *const store_drivers[] = {&sqlite_driver, NULL};

bool sqlite_url_path(const char *url, char *path, size_t size) {
    static const char scheme[] = "sqlite:";
    size_t n = sizeof scheme - 1;

    return url && strncmp(url, scheme, n) == 0 && url[n] && copy_text(path, size, url + n);
}
