/* load.h: the configuration of this call: found, read, overridden by environment and --set, checked
 * as a whole. All mistakes are kept, each with its place, so that they can be shown at once. */
#ifndef CSN_CLI_LOAD_H
#define CSN_CLI_LOAD_H

#include "cli/out.h"
#include "cli/yaml.h"
#include "core/config.h"

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

struct load {
    struct config config;
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

/* file: of -c, or NULL to look where contracts say: CONSIGN_CONFIG, ./consign.yaml,
 * ./consign-dev/consign.yaml, /etc/consign/consign.yaml. environment: as environ. Fails only when
 * there is nothing to check (CSN-1007); mistakes are in *ret. */
csn_status load_config(const char *file, const char *const *set, int sets, char *const *environment,
                       struct load **ret, csn_error *err) MUST_USE;
/* The same from a text; name is an absolute path (it need not exist). */
csn_status load_text(const char *name, csn_bytes text, const char *const *set, int sets,
                     char *const *environment, struct load **ret, csn_error *err) MUST_USE;
void load_free(struct load *l); /* NULL is fine */

/* Adds a mistake that a later check found, at the place of path or of the nearest group above it.
 */
void load_mistake(struct load *l, const char *path, int32_t code, const char *text,
                  const char *way);
/* Prints all mistakes; returns the exit code (0 without any). */
int load_report(const struct load *l, struct out *o);

/* Where the value of path came from: "consign.yaml:12", "CONSIGN_RELAY__LEASE", "--set", "default".
 */
void load_origin(const struct load *l, const char *path, char *ret, size_t size);

#endif
