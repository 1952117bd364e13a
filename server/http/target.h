/* The target of a request: the route of its path, and the model that the path names with the
 * snapshot in which it was found.
 *
 * The target is the only owner of all three. A model is therefore never used without the snapshot
 * that keeps it in memory. A request holds its target while its head is checked, and from the last
 * byte of the body until the reply is made. It does not in between, because a client that has not
 * sent its whole request must not keep old models in memory. If the models have changed by the next
 * time, the model is forgotten and must be found again. It may be gone then, or of another kind.
 *
 * Most clients ask for one path, so each loop remembers the last target that was found. A request
 * for the same path gets all of it: route, names and model.
 *
 * All functions run on the loop's thread. While a request is late, the thread that works on it may
 * read what is held, and call bag_http_target_look_up(). */
#pragma once

#include "message.h"
#include "server/models/snapshot.h"

struct bag_http_request;

/* ---- routes ---------------------------------------------------------------------------------- */

enum bag_http_outcome {
    BAG_HTTP_DONE, /* the reply is filled */
    BAG_HTTP_LATE  /* the reply is filled later; see bag_http_request_late() */
};

/* Called before the body arrives. Sets request->max_body_bytes. Returns false with the reply filled
 * to reject the request. */
typedef bool bag_http_accept(struct bag_http_request *request);

/* Answers a request whose body is complete. Called once. */
typedef enum bag_http_outcome bag_http_handler(struct bag_http_request *request);

/* Frees what the other two have left in a request that is answered or has failed. Called once. If
 * the handler has run, the target is still held. */
typedef void bag_http_drop(struct bag_http_request *request);

/* The scope of routes that need no token. */
#define BAG_HTTP_NO_SCOPE (-1)

enum bag_http_method {
    BAG_HTTP_GET, /* and HEAD */
    BAG_HTTP_POST
};

/* A route: one method of one path. */
struct bag_http_route {
    const char *pattern; /* "/v2/models/{model}/infer" */
    enum bag_http_method method;
    bag_http_accept *accept; /* NULL: takes no body; one that arrives is discarded */
    bag_http_drop *drop;     /* NULL: nothing is left */
    bag_http_handler *run;
    int scope; /* enum bag_scope that a token must cover, or BAG_HTTP_NO_SCOPE */
};

/* ---- targets --------------------------------------------------------------------------------- */

/* A zeroed target has no route and holds nothing. */
struct bag_http_target {
    const struct bag_http_route *route; /* NULL: none */
    const char *path;                   /* borrowed from the connection; NULL: not known */
    char name[129];                     /* decoded; empty: the path names no model */
    char version[21];                   /* decoded; may not exist; empty: the highest */
    struct bag_snapshot *snapshot;      /* retained; NULL: the target is not held */
    uint64_t generation;                /* generation of the last snapshot; 0: none yet */
    const struct bag_model *model; /* found in it, and READY; NULL: not asked for, or not served */
    const struct bag_model *remembered; /* the model of the last target of this path; NULL: none */
};

/* State that the targets of one loop share. */
struct bag_http_targets {
    struct bag_reader *reader;           /* borrowed; reader of the service's registry */
    const struct bag_http_route *routes; /* static; a route without a pattern ends the list */
    char last_path[256];                 /* path of `last`; empty: none */
    struct bag_http_target last;         /* the last target whose model was found */
};

/* Retains what is served now, unless a snapshot is held already. Forgets the model if something
 * else was served the last time. */
void bag_http_target_hold(struct bag_http_targets *targets, struct bag_http_target *target);

/* Releases the snapshot if one is held. */
void bag_http_target_leave(struct bag_http_targets *targets, struct bag_http_target *target);

/* Finds the route of a path, which is as in the request line but without the query, and the names
 * in it. Returns false and fills `reply` with a 404 or 405 if there is none, and with a 204 for
 * OPTIONS. The target is held, and borrows the path. */
bool bag_http_target_route(struct bag_http_targets *targets, struct bag_http_target *target,
                           const char *method, const char *path, struct bag_http_reply *reply);

/* Returns the model that a held target names, which is READY. Returns NULL and fills `reply` with a
 * 404 or 503 if there is none. */
const struct bag_model *bag_http_target_look_up(const struct bag_http_target *target,
                                                struct bag_http_reply *reply);

/* Does the same, and makes the model that of the target: the request counts for it in metrics, logs
 * and traces. */
const struct bag_model *bag_http_target_find(struct bag_http_targets *targets,
                                             struct bag_http_target *target,
                                             struct bag_http_reply *reply);

/* Returns whether something else than the target's model is served under its names by now. */
bool bag_http_target_is_replaced(const struct bag_http_targets *targets,
                                 const struct bag_http_target *target);
