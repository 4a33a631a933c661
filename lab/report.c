/* report.c: filling a report. */
#include "lab/report.h"

void report_step(struct report *r, csn_usec at, const char *text) {
    if (r->steps == STEPS_MAX)
        return;
    r->step[r->steps].at = at;
    (void)copy_text(r->step[r->steps].text, LINE_SIZE, text);
    r->steps++;
}

/* The last place is kept for "there were more": an assertion is never lost silently. */
void report_check(struct report *r, bool ok, const char *text, const char *expected,
                  const char *found) {
    r->failed += !ok;
    if (r->checks == CHECKS_MAX)
        return;
    struct check *c = &r->check[r->checks++];
    if (r->checks == CHECKS_MAX) {
        r->failed++;
        ok = false;
        text = TEXT("more assertions than a report can hold", "断言数量超过报告的容量");
    }
    c->ok = ok;
    (void)copy_text(c->text, sizeof c->text, text);
    (void)copy_text(c->expected, sizeof c->expected, expected);
    (void)copy_text(c->found, sizeof c->found, found);
}

struct sheet *report_sheet(struct report *r, enum when when, const char *name, const char *title) {
    if (r->sheets == SHEETS_MAX)
        return NULL;
    struct sheet *s = &r->sheet[r->sheets++];
    s->when = when;
    s->name = name;
    (void)copy_text(s->title, sizeof s->title, title);
    return s;
}

bool sheet_cell(struct sheet *s, uint32_t row, uint32_t column, const char *text) {
    if (row >= SHEET_ROWS || column >= SHEET_COLUMNS)
        return false;
    s->rows = row + 1 > s->rows ? row + 1 : s->rows;
    (void)copy_text(s->cell[row][column], CELL_SIZE, text ? text : "–");
    return true;
}

bool report_passed(const struct report *r) {
    return r->broken.status == CSN_OK && r->failed == 0 && r->checks > 0;
}
