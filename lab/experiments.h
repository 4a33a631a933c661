/* experiments.h: one function for each row of the table in lab.c. */
#ifndef CSN_LAB_EXPERIMENTS_H
#define CSN_LAB_EXPERIMENTS_H

#include "lab/stage.h"

void a1_atomic(struct stage *s);
void a2_restart(struct stage *s);
void a3_kill_before_mark(struct stage *s);
void a4_throw_before_commit(struct stage *s);
void a5_no_ack(struct stage *s);
void a6_two_connections(struct stage *s);
void a7_pause_past_lease(struct stage *s);
void a8_cancel_before_create(struct stage *s);
void a9_kill_after_claim(struct stage *s);
void a10_lost_commit(struct stage *s);
void a11_broker_loses(struct stage *s);
void b1_five_layers(struct stage *s);
void b2_ack_order(struct stage *s);
void b4_stored_unconfirmed(struct stage *s);
void b5_before_connection(struct stage *s);
void b6_ack_lost(struct stage *s);
void b7_two_consumers(struct stage *s);
void o1_comes_back(struct stage *s);
void o2_concurrent_completion(struct stage *s);
void o3_producer_retry(struct stage *s);
void v1_one_provider_number(struct stage *s);
void v3_fifty_threads(struct stage *s);
void d1_acks_down(struct stage *s);

#endif
