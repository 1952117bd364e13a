/* A kept connection to a shard. Private to server/front; see trip.h. */
#ifndef BAG_FRONT_LINK_H
#define BAG_FRONT_LINK_H

#include "trip.h"

enum bag_link_state {
    BAG_LINK_CONNECTING,
    BAG_LINK_SENDING,
    BAG_LINK_READING_HEAD,
    BAG_LINK_READING_BODY,
    BAG_LINK_IDLE
};

struct bag_front_link {
    struct bag_front *front;
    struct bag_front_lane *lane;
    struct bag_front_link *next; /* among the idle ones */
    struct bag_errand *errand;   /* NULL: idle */
    uv_poll_t poll;
    int fd;
    enum bag_link_state state;
    struct bag_front_attempt attempt; /* of its errand */
    bool is_kept;                     /* it has had an answer before */
    bool waits_to_send;               /* the poll is of room, too */
    uint64_t idle_ns;                 /* since when */
    size_t sent, request_bytes;
    char request[4096]; /* the head, and the body's JSON */
    size_t head_bytes, body_bytes;
    struct bag_reply_head reply;
    char *body;                      /* owned; from the front's buffers */
    char head[BAG_REPLY_HEAD_BYTES]; /* of the reply, with what came behind it */
};

/* A link that is being connected, or is; NULL with errno. */
struct bag_front_link *bag_front_link_connect(struct bag_front *front, struct bag_front_lane *lane,
                                              const struct bag_shard_place *place);

/* Sends an errand's call over a link that is idle, or as soon as it is connected. */
void bag_front_link_send(struct bag_front_link *link, struct bag_errand *errand);

/* The link is gone; its errand has been told, or is told by the caller. */
void bag_front_link_close(struct bag_front_link *link);

/* The same of one that has an errand, of whose attempt this became (trip.h). */
void bag_front_link_abandon(struct bag_front_link *link, unsigned became);

/* Errands that wait get the places of links that were closed, or are idle. */
void bag_front_serve_waiting(struct bag_front *front, struct bag_front_lane *lane);

#endif
