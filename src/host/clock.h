/* clock.h: the only clock that the host hands to the core. CLOCK_BOOTTIME: a lease goes on running
 * while the machine sleeps, so the deadlines of who holds it must, too. */
#ifndef CSN_HOST_CLOCK_H
#define CSN_HOST_CLOCK_H

#include "consign/consign.h"

csn_usec clock_now(void);

#endif
