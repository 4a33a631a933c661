/* clock.c: see clock.h. */
#include "host/clock.h"
#include <time.h>

csn_usec clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (csn_usec)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
