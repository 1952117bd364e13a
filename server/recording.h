/* A timer that has the service keep what it did in each second (server/metrics/history.h), for the
 * console. */
#ifndef BAG_RECORDING_H
#define BAG_RECORDING_H

#include "server/http/service.h"

#include <uv.h>

struct bag_recording {
    uv_timer_t timer;
    struct bag_service *service; /* borrowed */
};

/* Begins on the loop, once the workers run and before any loop answers; where the console or
 * metrics are off, keeps nothing. False with *problem without memory. */
bool bag_recording_start(struct bag_recording *recording, uv_loop_t *loop,
                         struct bag_service *service, struct bag_problem *problem);

/* Closes the timer; what was kept is bag_history_free's. */
void bag_recording_stop(struct bag_recording *recording);

#endif
