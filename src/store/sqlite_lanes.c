/* sqlite_lanes.c: LEASE, and the fence that every other verb of a lane's owner passes. See
 * docs/protocol.md.
 *
 * A lane is mine while its row says my boot, my epoch and a lease that is not over. Only a take
 * raises the epoch, and it always does: who held the lane before can then never pass the fence
 * again, whatever its own clock says. */
#include "store/sqlite.h"

struct lane {
    bool there, mine; /* mine: the owner is this boot, whatever the lease */
    bool free;        /* no owner, or its lease is over */
    int64_t epoch;
};

static csn_status read_lane(struct sqlite_conn *c, const struct op *op, uint32_t at,
                            struct lane *ret, csn_error *err) {
    static const char sql[] =
        "SELECT owner, epoch, lease_until FROM consign_lanes WHERE name = ?1 AND lane = ?2";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);
    int rc;

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(op->lease.name));
    sqlite3_bind_int64(s, 2, at);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW) {
        const char *owner = (const char *)sqlite3_column_text(s, 0);
        csn_usec until = sqlite3_column_int64(s, 2);
        bool over = until <= c->now || until > c->now + op->lease.longest;
        *ret = (struct lane){true, owner && strcmp(owner, op->lease.boot) == 0, !owner || over,
                             sqlite3_column_int64(s, 1)};
    } else if (rc == SQLITE_DONE) {
        *ret = (struct lane){.free = true};
    } else {
        return sqlite_failed(c, "lease", err);
    }
    sqlite3_reset(s);
    return CSN_OK;
}

static csn_status take_lane(struct sqlite_conn *c, const struct op *op, uint32_t at, int64_t epoch,
                            csn_error *err) {
    static const char sql[] =
        "INSERT INTO consign_lanes(name, lane, owner, epoch, lease_until, taken_at) VALUES (?1, "
        "?2, ?3, ?4, ?5, ?6)"
        " ON CONFLICT (name, lane) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch,"
        " lease_until = excluded.lease_until, taken_at = excluded.taken_at";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(op->lease.name));
    sqlite3_bind_int64(s, 2, at);
    sqlite_bind_bytes(s, 3, bytes_of(op->lease.boot));
    sqlite3_bind_int64(s, 4, epoch);
    sqlite3_bind_int64(s, 5, c->now + op->lease.lease);
    sqlite3_bind_int64(s, 6, c->now);
    return sqlite_run(c, s, err);
}

static csn_status renew_lane(struct sqlite_conn *c, const struct op *op, uint32_t at,
                             csn_error *err) {
    static const char sql[] =
        "UPDATE consign_lanes SET lease_until = ?3 WHERE name = ?1 AND lane = ?2";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(op->lease.name));
    sqlite3_bind_int64(s, 2, at);
    sqlite3_bind_int64(s, 3, c->now + op->lease.lease);
    return sqlite_run(c, s, err);
}

static csn_status drop_lane(struct sqlite_conn *c, const struct op *op, uint32_t at,
                            csn_error *err) {
    static const char sql[] = "UPDATE consign_lanes SET owner = NULL, lease_until = NULL"
                              " WHERE name = ?1 AND lane = ?2 AND owner = ?3";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(op->lease.name));
    sqlite3_bind_int64(s, 2, at);
    sqlite_bind_bytes(s, 3, bytes_of(op->lease.boot));
    return sqlite_run(c, s, err);
}

static csn_status want_lane(struct sqlite_conn *c, struct op *op, uint32_t at, csn_error *err) {
    struct lane lane = {0};
    csn_status s = read_lane(c, op, at, &lane, err);

    if (s != CSN_OK || (!lane.free && !lane.mine))
        return s;
    if (lane.free) {
        s = take_lane(c, op, at, ++lane.epoch, err);
        op->lease.fresh |= UINT64_C(1) << at;
    } else {
        s = renew_lane(c, op, at, err);
    }
    op->lease.held |= UINT64_C(1) << at;
    op->lease.epoch[at] = (uint64_t)lane.epoch;
    return s;
}

/* ---- the member ---- */

/* UPDATE first: an upsert would draw from AUTOINCREMENT at every heartbeat. */
static csn_status write_member(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    static const char update[] =
        "UPDATE consign_members SET label = ?2, heartbeat_at = ?3, lease_until = ?4, ended_at = ?5,"
        " counters = coalesce(?6, counters) WHERE boot = ?1";
    static const char insert[] = "INSERT INTO consign_members(boot, label, started_at, "
                                 "heartbeat_at, lease_until, ended_at, counters)"
                                 " VALUES (?1, ?2, ?3, ?3, ?4, ?5, coalesce(?6, '{}'))";
    const char *sql = update;

    for (int i = 0; i < 2; i++, sql = insert) {
        sqlite3_stmt *s = sqlite_prepare(c, sql, err);
        if (!s)
            return err->status;
        sqlite_bind_bytes(s, 1, bytes_of(op->lease.boot));
        sqlite_bind_bytes(s, 2, bytes_of(op->lease.label));
        sqlite3_bind_int64(s, 3, c->now);
        sqlite3_bind_int64(s, 4, c->now + op->lease.lease);
        if (op->lease.leave)
            sqlite3_bind_int64(s, 5, c->now);
        sqlite_bind_optional(s, 6, bytes_of(op->lease.counters));
        csn_status status = sqlite_run(c, s, err);
        if (status != CSN_OK || sqlite3_changes(c->db) > 0)
            return status;
    }
    return CSN_OK;
}

static csn_status read_members(struct sqlite_conn *c, struct op *op, csn_error *err) {
    static const char sql[] = "SELECT (SELECT member FROM consign_members WHERE boot = ?1),"
                              " (SELECT count(*) FROM consign_members WHERE ended_at IS NULL AND "
                              "lease_until > ?2 AND lease_until <= ?3)";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(op->lease.boot));
    sqlite3_bind_int64(s, 2, c->now);
    sqlite3_bind_int64(s, 3, c->now + op->lease.longest);
    if (sqlite3_step(s) != SQLITE_ROW)
        return sqlite_failed(c, "lease", err);
    op->lease.member = sqlite3_column_int(s, 0);
    op->lease.members = (uint32_t)sqlite3_column_int64(s, 1);
    sqlite3_reset(s);
    return CSN_OK;
}

csn_status sqlite_lease(struct sqlite_conn *c, struct op *op) {
    csn_error *err = &op->result;
    csn_status s = write_member(c, op, err);

    op->lease.held = op->lease.fresh = 0;
    for (uint32_t at = 0; at < LANE_MAX && s == CSN_OK; at++) {
        uint64_t bit = UINT64_C(1) << at;
        op->lease.epoch[at] = 0;
        if (op->lease.drop & bit)
            s = drop_lane(c, op, at, err);
        else if (op->lease.want & bit)
            s = want_lane(c, op, at, err);
    }
    return s == CSN_OK ? read_members(c, op, err) : s;
}

/* ---- the fence ---- */

uint64_t sqlite_fence(struct sqlite_conn *c, const char *name, uint64_t lanes,
                      const uint64_t *epoch, const char *boot, csn_status *status, csn_error *err) {
    static const char sql[] =
        "SELECT 1 FROM consign_lanes WHERE name = ?1 AND lane = ?2 AND owner = ?3 AND epoch = ?4"
        " AND lease_until > ?5";
    uint64_t mine = 0;

    *status = CSN_OK;
    for (uint32_t at = 0; at < LANE_MAX; at++) {
        uint64_t bit = UINT64_C(1) << at;
        sqlite3_stmt *s;
        int rc;
        if (!(lanes & bit))
            continue;
        s = sqlite_prepare(c, sql, err);
        if (!s) {
            *status = err->status;
            return 0;
        }
        sqlite_bind_bytes(s, 1, bytes_of(name));
        sqlite3_bind_int64(s, 2, at);
        sqlite_bind_bytes(s, 3, bytes_of(boot));
        sqlite3_bind_int64(s, 4, (int64_t)epoch[at]);
        sqlite3_bind_int64(s, 5, c->now);
        rc = sqlite3_step(s);
        if (rc == SQLITE_ROW)
            mine |= bit;
        else if (rc != SQLITE_DONE)
            *status = sqlite_failed(c, "fence", err);
        sqlite3_reset(s);
        if (*status != CSN_OK)
            return 0;
    }
    return mine;
}
