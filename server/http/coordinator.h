/* Inference requests for models whose rows are on shards: connects a request (request.h) to its
 * remote inference (server/coordinator/remote_infer.h).
 *
 * The handler (infer.c) plans such a request like any other. The remote inference is made on the
 * loop if that is little work, otherwise on a worker. The loop sends its subrequests. The replies
 * are merged on the loop or on a worker, again by the amount of work.
 *
 * All functions must be called on the loop's thread except bag_http_remote_run. */
#pragma once

#include "request.h"

/* Makes the remote inference of a planned request if that takes a worker at most `most_ns`. Returns
 * false if it takes more. Errors are in the job. */
bool bag_http_remote_make(struct bag_http_request *request, uint64_t most_ns);

/* Makes the remote inference on a worker: job->run of such a request. */
bool bag_http_remote_run(struct bag_job *job);

/* Starts the remote inference that was made. `answer` is called later and fills the reply. */
void bag_http_remote_begin(struct bag_http_request *request,
                           void (*answer)(struct bag_http_request *request));

/* Cancels and frees the remote inference of a request that ends. */
void bag_http_remote_end(struct bag_http_request *request);
