/* wire.h: a consumer that is not consign: it drives a broker's verbs itself, so that an experiment
 * can show what another order of steps does. consign's own consumers never acknowledge before the
 * commit; whoever wants at most once gets it only here, by doing it wrong on purpose. */
#ifndef CSN_LAB_WIRE_H
#define CSN_LAB_WIRE_H

#include "base/error.h"
#include "core/driver.h"

struct wire {
    const struct store_driver *driver;
    void *heart, *in, *out;
    struct batch batch;
    struct message message[4];
    uint64_t epoch[LANE_MAX];
    char boot[TOKEN_SIZE], token[TOKEN_SIZE];
};

/* One partition of the subscription lab-once. boot: another for each process. */
csn_status wire_open(struct wire *w, const char *url, const char *boot, csn_error *err) MUST_USE;
void wire_close(struct wire *w);
/* Declares the binding and publishes one message with this id. */
csn_status wire_publish(struct wire *w, const char *event, csn_error *err) MUST_USE;
/* Takes the lane (waits for it, bounded) and what may be delivered; *ret_n: how many. */
csn_status wire_receive(struct wire *w, uint32_t *ret_n, csn_error *err) MUST_USE;
csn_status wire_ack(struct wire *w, csn_error *err) MUST_USE;

#endif
