/* An answer -> the metrics. */
#ifndef BAG_HTTP_RECORD_H
#define BAG_HTTP_RECORD_H

#include "server.h"

/* Counts what a request was answered with. Its job has a model where it was an inference, and was
 * done where the reply is a success. `received_bytes` of its body were read. */
void bag_http_record(struct bag_http_server *server, const struct bag_job *job,
                     const struct bag_http_reply *reply, size_t received_bytes);

#endif
