/* A kept connection to a shard. Private to server/coordinator; see remote_infer.h. */
#ifndef BAG_COORDINATOR_UPSTREAM_CONNECTION_H
#define BAG_COORDINATOR_UPSTREAM_CONNECTION_H

#include "remote_infer.h"

enum bag_upstream_state {
    BAG_UPSTREAM_CONNECTING,
    BAG_UPSTREAM_SENDING,
    BAG_UPSTREAM_READING_HEAD,
    BAG_UPSTREAM_READING_BODY,
    BAG_UPSTREAM_IDLE
};

struct bag_upstream_connection {
    struct bag_coordinator *coordinator;
    struct bag_upstream *upstream;
    struct bag_upstream_connection *next; /* among the idle ones */
    struct bag_subrequest *subrequest;    /* NULL: idle */
    uv_poll_t poll;
    int fd;
    enum bag_upstream_state state;
    struct bag_attempt attempt; /* of its subrequest */
    bool is_kept;               /* it has had an answer before */
    bool waits_to_send;         /* the poll is of room, too */
    uint64_t idle_ns;           /* since when */
    size_t sent, request_bytes;
    char request[4096]; /* the head, and the body's JSON */
    size_t head_bytes, body_bytes;
    struct bag_reply_head reply;
    char *body;                      /* owned; from the coordinator's buffers */
    char head[BAG_REPLY_HEAD_BYTES]; /* of the reply, with what came behind it */
};

/* A connection that is being connected, or is; NULL with errno. */
struct bag_upstream_connection *
bag_upstream_connection_connect(struct bag_coordinator *coordinator, struct bag_upstream *upstream,
                                const struct bag_shard_place *place);

/* Sends an subrequest's call over a connection that is idle, or as soon as it is connected. */
void bag_upstream_connection_send(struct bag_upstream_connection *connection,
                                  struct bag_subrequest *subrequest);

/* The connection is gone; its subrequest has been told, or is told by the caller. */
void bag_upstream_connection_close(struct bag_upstream_connection *connection);

/* The same of one that has an subrequest, of whose attempt this became (remote_infer.h). */
void bag_upstream_connection_abandon(struct bag_upstream_connection *connection, unsigned became);

/* Errands that wait get the places of links that were closed, or are idle. */
void bag_upstream_send_waiting(struct bag_coordinator *coordinator, struct bag_upstream *upstream);

#endif
