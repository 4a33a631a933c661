/* batch.h: the memory of a batch. It is made for so many messages and grows when a machine is told
 * to take more; its arena is reset with each use. Only while nobody else has it. */
#ifndef CSN_CORE_BATCH_H
#define CSN_CORE_BATCH_H

#include "base/bytes.h"
#include "core/op.h"

bool batch_init(struct batch *b, uint32_t rows, size_t bytes) MUST_USE; /* false: out of memory */
/* Room for at least so many messages. False: out of memory; what there was is left. */
bool batch_grow(struct batch *b, uint32_t rows) MUST_USE;
void batch_reset(struct batch *b, size_t bytes); /* empty, for payloads of so many bytes */
void batch_free(struct batch *b);

#endif
