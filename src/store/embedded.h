/* embedded.h: the SQL files of src/store/sql as they were at build time; the table is made by
 * tools/embed. */
#ifndef CSN_STORE_EMBEDDED_H
#define CSN_STORE_EMBEDDED_H

struct embedded_sql {
    const char *name; /* "event.show" of a named statement, "schema.sqlite" of a store kind's
                         migrations; NULL ends the table */
    const char *text;
};

extern const struct embedded_sql embedded_sql[];

#endif
