/* An answer -> the metrics and the log. */
#ifndef BAG_HTTP_RECORD_H
#define BAG_HTTP_RECORD_H

#include "access.h"

/* Counts and logs what a request is answered with, and completes the reply. Its job has a model
 * where it was an inference, and was done where the reply is a success. */
void bag_http_record(struct bag_http_server *server, const struct bag_job *job,
                     const struct bag_http_access *access, struct bag_http_reply *reply);

#endif
