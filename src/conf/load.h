/* load.h: the configuration of this call: found, read, overridden by environment and --set, checked
 * as a whole. All mistakes are kept, each with its place, so that they can be shown at once. */
#ifndef CSN_CONF_LOAD_H
#define CSN_CONF_LOAD_H

#include "conf/yaml.h"
#include "core/config.h"
#include "core/driver.h"

enum { MISTAKES_MAX = 64, GIVEN_MAX = 1024 };

struct mistake {
    int32_t code;
    struct yaml_place at; /* line 0: not in the file */
    char path[CONFIG_PATH_MAX];
    char source[96]; /* "--set", "CONSIGN_RELAY__LEASE"; empty: the file */
    char text[240], way[240];
};

/* Where a value, or a group, was given. */
struct given {
    char path[CONFIG_PATH_MAX];
    char source[96]; /* empty: the file */
    struct yaml_place at;
};

/* What is read, in the order in which it counts: file, environment, set. */
struct load_input {
    const char *file; /* of -c; NULL: CONSIGN_CONFIG, ./consign.yaml, ./consign-dev/consign.yaml,
                         /etc/consign/consign.yaml */
    char *const *environment; /* as environ; NULL: none */
    const char *const *set;   /* "path=value" */
    int sets;
    const struct store_driver *const *drivers; /* those there are, to the first NULL */
};

struct load {
    struct config config;
    const struct store_driver *const *drivers;
    char shown[URL_MAX_]; /* the file as people called it */
    char *text;           /* of the file */
    size_t size;
    struct given *given;
    uint32_t givens;
    struct mistake *mistake;
    uint32_t mistakes;  /* kept */
    uint32_t more;      /* beyond MISTAKES_MAX */
    const char *source; /* while filling: of what is being read; NULL: the file */
};

/* Fails only when there is nothing to check (CSN-1007); mistakes are in *ret. */
csn_status load_config(const struct load_input *in, struct load **ret, csn_error *err) MUST_USE;
/* The same from a text; name is an absolute path (it need not exist). */
csn_status load_text(const struct load_input *in, const char *name, csn_bytes text,
                     struct load **ret, csn_error *err) MUST_USE;
void load_free(struct load *l); /* NULL is fine */

/* Adds a mistake that a later check found, at the place of path or of the nearest group above it.
 */
void load_mistake(struct load *l, const char *path, int32_t code, const char *text,
                  const char *way);
/* Where the value of path came from: "consign.yaml:12", "CONSIGN_RELAY__LEASE", "--set", "default".
 */
void load_origin(const struct load *l, const char *path, char *ret, size_t size);

#endif
