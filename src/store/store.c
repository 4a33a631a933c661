/* store.c: which driver answers to a URL, and what a URL of SQLite says. */
#include "store/store.h"
#include "store/sqlite.h"

static const struct store_driver *const drivers[] = {&sqlite_driver};

const struct store_driver *store_driver_for(const char *url, csn_error *err) {
    for (size_t i = 0; url && i < ARRAY_LEN(drivers); i++) {
        size_t n = strlen(drivers[i]->scheme);

        if (strncmp(url, drivers[i]->scheme, n) == 0 && url[n] == ':' && url[n + 1])
            return drivers[i];
    }
    error_set(err, CSN_INVALID, ERR_STORE_URL, "%s: use sqlite:PATH",
              url && url[0] ? url : "(none)");
    return NULL;
}

bool sqlite_url_path(const char *url, char *path, size_t size) {
    static const char scheme[] = "sqlite:";
    size_t n = sizeof scheme - 1;

    return url && strncmp(url, scheme, n) == 0 && url[n] && copy_text(path, size, url + n);
}
