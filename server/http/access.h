/* What is told of a request besides its metrics: a line in the log, and what its sender wants to
 * find again in the reply. */
#ifndef BAG_HTTP_ACCESS_H
#define BAG_HTTP_ACCESS_H

#include "server.h"

#include "head.h"

/* Of one request, from its head on. */
struct bag_http_access {
    const char *method, *target;      /* in the connection's memory */
    const struct bag_http_head *head; /* the request's */
    const struct bag_client *client;
    uint64_t begun_ns; /* on uv_hrtime's clock; 0: nothing is logged */
    size_t received_bytes;
    char id[65]; /* of the body, cut; empty: none */
};

/* The first line is here. */
void bag_http_access_begin(struct bag_http_access *access, const struct bag_option_values *options,
                           const struct bag_first_line *line, const struct bag_http_head *head);

/* Keeps the body's id, as long as the body is there. */
void bag_http_access_keep_id(struct bag_http_access *access, const struct bag_infer *infer);

/* The answer is about to leave: passes on what it should bear, and logs it where that is wanted. */
void bag_http_access_end(const struct bag_http_access *access,
                         const struct bag_option_values *options, const struct bag_job *job,
                         struct bag_http_reply *reply);

#endif
