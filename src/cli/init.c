/* init.c: writes the demo folder. It starts only in a folder that is missing or empty, so that
 * whatever stands there after a failure is its own and is taken away again: the folder is complete
 * or not there. */
#include "cli/init.h"
#include "base/message.h"
#include "cli/init_files.h"
#include "store/store.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct making {
    bool lab;
    char dir[URL_MAX_]; /* absolute */
    bool made;          /* the folder is ours */
    csn_error err;
};

static const struct {
    const char *file, *sql;
} databases[] = {{"orders.db", shop_orders_sql}, {"stock.db", shop_stock_sql}};

static csn_status failed(struct making *m, const char *what) {
    return error_set(&m->err, CSN_INVALID, ERR_WRITE, "%s: %s", what, strerror(errno));
}

static bool path_in(const struct making *m, const char *name, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "%s/%s", m->dir, name);
    return !t.full;
}

/* The first entry of a folder goes to name; false: it is empty. */
static bool first_entry(const char *dir, char *name, size_t size) {
    DIR *d = opendir(dir);
    bool found = false;
    struct dirent *e;
    while (d != NULL && !found && (e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            found = copy_text(name, size, e->d_name);
    if (d != NULL)
        (void)closedir(d);
    return found;
}

static csn_status take_folder(struct making *m, const char *dir) {
    char entry[256], *absolute;
    m->made = mkdir(dir, 0777) == 0;
    if (!m->made && errno != EEXIST)
        return failed(m, dir);
    if (!m->made && first_entry(dir, entry, sizeof(entry)))
        return error_set(&m->err, CSN_INVALID, ERR_TAKEN, "%s (%s)", dir, entry);
    absolute = realpath(dir, NULL);
    bool fits = absolute != NULL && strlen(absolute) + 64 < sizeof(m->dir) &&
                copy_text(m->dir, sizeof(m->dir), absolute);
    free(absolute);
    if (!fits && errno == 0)
        errno = ENAMETOOLONG;
    return fits ? CSN_OK : failed(m, dir);
}

static csn_status write_all(int fd, const char *text) {
    for (size_t left = strlen(text); left > 0;) {
        ssize_t n = write(fd, text, left);
        if (n <= 0)
            return CSN_INVALID;
        text += n;
        left -= (size_t)n;
    }
    return CSN_OK;
}

static csn_status write_file(struct making *m, const struct init_file *f) {
    char path[URL_MAX_ + 64];
    if (!path_in(m, f->path, path, sizeof(path)))
        return failed(m, f->path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return failed(m, path);
    csn_status s = write_all(fd, f->text[message_language_now() == LANG_ZH]);
    if (s != CSN_OK)
        s = failed(m, path);
    if (close(fd) != 0 && s == CSN_OK)
        s = failed(m, path);
    return s;
}

static csn_status write_files(struct making *m) {
    char path[URL_MAX_ + 64];
    csn_status s = CSN_OK;
    if (!path_in(m, "handlers", path, sizeof(path)) || mkdir(path, 0777) != 0)
        return failed(m, path);
    for (size_t i = 0; s == CSN_OK && init_file_at(i) != NULL; i++)
        s = write_file(m, init_file_at(i));
    return s;
}

static csn_status business_tables(const char *url, const char *sql, csn_error *err) {
    struct db *d;
    csn_status s = db_open(url, 0, &d, err);
    if (s != CSN_OK)
        return s;
    s = db_begin(d, err);
    if (s == CSN_OK)
        s = db_script(d, sql, err);
    if (s == CSN_OK)
        s = db_commit(d, err);
    db_close(d);
    return s;
}

static csn_status make_databases(struct making *m) {
    char url[URL_MAX_ + 64];
    csn_status s = CSN_OK;
    for (size_t i = 0; s == CSN_OK && i < ARRAY_LEN(databases); i++) {
        (void)snprintf(url, sizeof(url), "sqlite:%s/%s", m->dir, databases[i].file);
        s = schema_apply(url, &m->err);
        if (s == CSN_OK)
            s = business_tables(url, databases[i].sql, &m->err);
        if (s == CSN_OK && m->lab)
            s = lab_marker_set(url, &m->err);
    }
    return s;
}

static void remove_in(const struct making *m, const char *name, const char *tail) {
    char path[URL_MAX_ + 64], whole[64];
    (void)snprintf(whole, sizeof(whole), "%s%s", name, tail);
    if (path_in(m, whole, path, sizeof(path)))
        (void)unlink(path);
}

/* Takes away what was written; the folder was empty before. */
static void undo(const struct making *m) {
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    char path[URL_MAX_ + 64];
    if (m->dir[0] == '\0')
        return;
    for (size_t i = 0; init_file_at(i) != NULL; i++)
        remove_in(m, init_file_at(i)->path, "");
    for (size_t i = 0; i < ARRAY_LEN(databases); i++)
        for (size_t t = 0; t < ARRAY_LEN(tails); t++)
            remove_in(m, databases[i].file, tails[t]);
    if (path_in(m, "handlers", path, sizeof(path)))
        (void)rmdir(path);
    if (m->made)
        (void)rmdir(m->dir);
}

static void say_done(const struct making *m, const char *dir, struct out *o) {
    char safe[400];
    json_t *document = out_document("init"), *list = json_array();
    for (size_t i = 0; init_file_at(i) != NULL; i++)
        out_append(list, out_json_string(init_file_at(i)->path));
    for (size_t i = 0; i < ARRAY_LEN(databases); i++)
        out_append(list, out_json_string(databases[i].file));
    out_put(document, "dir", out_json_string(m->dir));
    out_put(document, "lab", json_boolean(m->lab));
    out_put(document, "files", list);
    (void)out_safe_text(dir, safe, sizeof(safe));
    out_say(o, MSG_INIT_DONE, safe);
    if (m->lab)
        out_say(o, MSG_INIT_LAB);
    if (!o->quiet)
        out_say(o, MSG_INIT_NEXT, safe, safe, safe, safe);
    out_json(o, document);
}

static csn_status make(struct making *m, const char *dir) {
    errno = 0;
    csn_status s = take_folder(m, dir);
    if (s != CSN_OK)
        return s;
    s = write_files(m);
    if (s == CSN_OK)
        s = make_databases(m);
    if (s != CSN_OK)
        undo(m);
    return s;
}

csn_status init_make(const char *dir, bool lab, csn_error *err) {
    struct making m = {.lab = lab};
    csn_status s = make(&m, dir);
    *err = m.err;
    return s;
}

int init_command(struct command_call *c) {
    struct making m = {.lab = command_switch(c, "lab")};
    const char *dir = command_text(c, "dir");
    if (dir == NULL || dir[0] == '\0')
        dir = "consign-dev";
    if (make(&m, dir) != CSN_OK)
        return out_error(c->out, &m.err, NULL, NULL);
    say_done(&m, dir, c->out);
    return 0;
}
