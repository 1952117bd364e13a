/* A timer that samples the server's activity once a second (server/metrics/history.h) for the
 * console. */
#pragma once

#include "server/http/service.h"

#include <uv.h>

struct bag_recording {
    uv_timer_t timer;
    struct bag_service *service; /* borrowed */
};

/* Starts the timer on the loop. Called after the workers have started and before any loop answers.
 * Does nothing if the console or metrics are off. Returns false and sets *problem if there is not
 * enough memory. */
bool bag_recording_start(struct bag_recording *recording, uv_loop_t *loop,
                         struct bag_service *service, struct bag_problem *problem);

/* Closes the timer. bag_history_free frees the samples. */
void bag_recording_stop(struct bag_recording *recording);
