/* report.h: what an experiment leaves behind for people and programs: the steps that were taken,
 * the state before and after as small tables, and the assertions with what was expected and what
 * was found. Texts are in the reader's language already. Everything is bounded; what does not fit
 * is itself a failed assertion, never silence. */
#ifndef CSN_LAB_REPORT_H
#define CSN_LAB_REPORT_H

#include "base/error.h"
#include "base/message.h"

enum {
    SHEETS_MAX = 24,
    SHEET_COLUMNS = 10,
    SHEET_ROWS = 24,
    CELL_SIZE = 64,
    CHECKS_MAX = 48,
    STEPS_MAX = 40,
    LINE_SIZE = 240,
    VALUE_SIZE = 120
};

/* One of two texts, by the language that is set. */
#define TEXT(en, zh) (message_language_now() == LANG_ZH ? (zh) : (en))

enum when { BEFORE, AFTER, BETWEEN };

struct sheet {
    enum when when;
    const char *name; /* "orders"; for programs */
    char title[CELL_SIZE];
    uint32_t columns, rows;
    char heading[SHEET_COLUMNS][CELL_SIZE];
    char cell[SHEET_ROWS][SHEET_COLUMNS][CELL_SIZE];
};

struct check {
    bool ok;
    char text[LINE_SIZE], expected[VALUE_SIZE], found[VALUE_SIZE];
};

struct report_step {
    csn_usec at; /* since the experiment began */
    char text[LINE_SIZE];
};

struct report {
    struct sheet sheet[SHEETS_MAX];
    struct check check[CHECKS_MAX];
    struct report_step step[STEPS_MAX];
    uint32_t sheets, checks, steps;
    uint32_t failed;  /* checks */
    csn_error broken; /* status CSN_OK: the experiment ran to its end */
    csn_usec took;
    char folder[256]; /* where it ran; empty: it is gone */
};

void report_step(struct report *r, csn_usec at, const char *text);
void report_check(struct report *r, bool ok, const char *text, const char *expected,
                  const char *found);
struct sheet *report_sheet(struct report *r, enum when when, const char *name, const char *title);
/* NULL is shown as –; false: the sheet is full. */
bool sheet_cell(struct sheet *s, uint32_t row, uint32_t column, const char *text);
bool report_passed(const struct report *r);

#endif
