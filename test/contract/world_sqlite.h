/* world_sqlite.h: what tests of the SQLite driver alone may know of its world. */
#ifndef CSN_TEST_CONTRACT_WORLD_SQLITE_H
#define CSN_TEST_CONTRACT_WORLD_SQLITE_H

#include "test/contract/world.h"

const char *world_sqlite_url(struct world *w);

#endif
