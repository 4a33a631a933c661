/* driver.c: which driver answers to a URL. */
#include "core/driver.h"
#include "base/error.h"

const struct store_driver *driver_for(const struct store_driver *const *drivers, const char *url,
                                      csn_error *err) {
    char known[160] = "";
    struct text t;
    text_init(&t, known, sizeof known);
    for (; *drivers; drivers++) {
        size_t n = strlen((*drivers)->scheme);
        if (url && strncmp(url, (*drivers)->scheme, n) == 0 && url[n] == ':' && url[n + 1])
            return *drivers;
        text_add(&t, "%s%s:PATH", t.used ? ", " : "", (*drivers)->scheme);
    }
    error_set(err, CSN_INVALID, ERR_STORE_URL, "%s: use %s", url && url[0] ? url : "(none)", known);
    return NULL;
}
