/* Inference of models of shards, for its handler (infer.c) and for requests that end. All on the
 * loop's thread where nothing else is said. */
#ifndef BAG_HTTP_COORDINATOR_H
#define BAG_HTTP_COORDINATOR_H

#include "request.h"

/* Makes the calls of a request that is planned, where that takes a worker no more than `most_ns`;
 * false where it does. What went wrong is in the job. */
bool bag_http_remote_make(struct bag_http_request *request, uint64_t most_ns);

/* A worker does: job->run of such a request. */
bool bag_http_remote_run(struct bag_job *job);

/* Sends the calls that were made. The reply is filled by `answer`, which is called later. */
void bag_http_remote_begin(struct bag_http_request *request,
                           void (*answer)(struct bag_http_request *request));

/* The request ends: so do its calls. */
void bag_http_remote_end(struct bag_http_request *request);

#endif
