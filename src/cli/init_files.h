/* init_files.h: what consign init writes. */
#ifndef CSN_CLI_INIT_FILES_H
#define CSN_CLI_INIT_FILES_H

#include "base/bytes.h"

struct init_file {
    const char *path;    /* below the folder */
    const char *text[2]; /* by enum language */
};

const struct init_file *init_file_at(size_t i); /* NULL past the end */

/* The business tables of the shop, as they stand in shop.sql. */
extern const char shop_orders_sql[], shop_stock_sql[];

#endif
