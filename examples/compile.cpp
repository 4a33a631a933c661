// compile.cpp: the headers are C++, too.
#include <consign/sqlite.h>
#include <cstdio>
#include <cstring>

int main() {
    sqlite3 *db = nullptr;
    csn_error err = csn_error();
    csn_event e = csn_event();
    e.size = sizeof e;
    e.aggregate_id = "1";
    e.event_type = "T";
    e.payload.data = "{}";
    e.payload.size = 2;
    sqlite3_open(":memory:", &db);
    csn_tx tx = csn_sqlite_tx(db);
    csn_status s = csn_publish(&tx, &e, nullptr, 0, &err);
    std::printf("%s %s\n", csn_version(), csn_status_name(s));
    sqlite3_close(db);
    return s == CSN_INVALID && err.code == 5001 ? 0 : 1;
}
