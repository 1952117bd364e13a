/* One request and its reply: what is decided from its head on until the reply leaves.
 *
 *   head --+--> BODY ----> WAITING ----> READY --> the reply is sent
 *          |      `----------------------->^
 *          `--> DROPPING ----------------->^      (takes no body, or is rejected)
 *
 * A state machine without sockets: its connection tells it what has come, and does what it returns.
 * What is wrong with the head is known before the body: the body is then dropped, or not read at
 * all where it is long.
 *
 * The models are held while the head is looked at, and from the last byte of the body until the
 * reply is made. They may have changed in between: a handler looks up the model of its path again,
 * checks the result as it did for the head, and uses nothing that it found before.
 *
 * Everything here runs on the loop's thread. */
#ifndef BAG_HTTP_REQUEST_H
#define BAG_HTTP_REQUEST_H

#include "access.h"
#include "routes.h"
#include "server/coordinator/remote_infer.h"
#include "service.h"

/* ---- requests -------------------------------------------------------------------------------- */

struct bag_http_context;

/* A request that has waited for less than this is not worth finding out whether its client has
 * gone; one whose client has ended his side is answered by then. */
#define BAG_HTTP_QUICK_NS UINT64_C(1000000000)

/* What the requests of one server share. A member of the server, which owns it. */
struct bag_http_context {
    struct bag_service *service;        /* borrowed */
    struct bag_reader *reader;          /* of the service's registry; borrowed */
    bool infers;                        /* or is for admin alone */
    struct bag_engine engine;           /* expensive work */
    struct bag_coordinator coordinator; /* calls to shards */
    struct bag_recorder *recorder;      /* the metrics'; NULL: they are off */
    struct bag_buffers buffers;         /* of bodies and replies */
    struct bag_header_cache header_cache;
    struct bag_http_route_cache route_cache;
    struct bag_infer_limits infer_limits;
    uint64_t inline_cost_ns;        /* work estimated above this goes to the engine */
    struct bag_http_request *spare; /* finished requests, for the next ones */
};

/* What a request asks of its connection while it is suspended. */
struct bag_http_connection;
struct bag_http_connection_calls {
    /* The reply is ready: calls bag_http_request_on_end once more, not from here. */
    void (*resume)(struct bag_http_connection *connection);
    /* False where the client has left. */
    bool (*is_connected)(const struct bag_http_connection *connection);
    /* How long ago what the client sent last has come. */
    uint64_t (*quiet_ns)(const struct bag_http_connection *connection);
};

/* What the connection does next. */
enum bag_http_next {
    BAG_HTTP_READ,     /* reads on: more of the body, or its end */
    BAG_HTTP_LATER_ON, /* reads nothing, and asks again */
    BAG_HTTP_WAIT,     /* reads nothing until it is resumed */
    BAG_HTTP_SEND,     /* sends request->reply */
    BAG_HTTP_CUT_OFF,  /* sends request->reply before the body has come, and closes */
};

enum bag_http_stage {
    BAG_HTTP_BODY,
    BAG_HTTP_DROPPING,
    BAG_HTTP_WAITING,
    BAG_HTTP_READY,
    BAG_HTTP_FINISHED, /* the reply was counted */
};

struct bag_http_request {
    struct bag_http_request *next_spare;
    struct bag_http_context *context; /* borrowed */
    const struct bag_http_connection_calls *calls;
    struct bag_http_connection *connection; /* borrowed; for the calls */
    struct bag_snapshot *snapshot;          /* the models; NULL: not held */
    uint64_t generation;                    /* of those that were held last */
    struct bag_http_first_line line;
    struct bag_http_head head;          /* filled by the connection before on_head */
    const struct bag_http_route *route; /* NULL: the request was rejected before it had one */
    unsigned scopes;                    /* of its token, bit i for scope i; 0: it brought none */
    struct bag_http_target target;
    enum bag_http_stage stage;
    bool may_suspend;  /* the handler */
    bool is_anew;      /* it is answered once more, by other models than it began with */
    bool rejected;     /* for its form, or for too many connections: the connection ends with it */
    bool body_unread;  /* the reply leaves before all of the body has come */
    uint64_t asked_ns; /* of one for shards: since when its timeout runs */
    size_t max_body_bytes;       /* of a route that takes a body */
    const char *max_body_option; /* for messages; static */
    char *body;                  /* owned, from the context's buffers; NULL: nothing has come */
    size_t body_bytes, body_room;
    struct bag_http_access access;
    enum bag_coding coding; /* of the body */
    uint64_t expected_ns;   /* work that the announced body lets expect; 0: not known */
    struct bag_work work;   /* of bag_http_request_elsewhere */
    uint64_t pushed_ns;     /* when it was given to the workers, on uv_hrtime's clock */
    void (*make_reply)(struct bag_http_request *request);
    void (*answer)(struct bag_http_request *request); /* of bag_http_remote_begin */
    struct bag_http_reply reply;
    struct bag_remote_infer
        *run;           /* owned; of a model of shards, once its calls are made; or NULL */
    struct bag_job job; /* an inference's; its model is NULL in other requests; the last member */
};

/* A request whose first line is here; NULL without memory. Ended by bag_http_request_end. */
struct bag_http_request *bag_http_request_begin(struct bag_http_context *context,
                                                const struct bag_http_connection_calls *calls,
                                                struct bag_http_connection *connection,
                                                const struct bag_http_first_line *line);

/* The head is here, the body is not. `fault` says why it is rejected; NULL: it is not. */
enum bag_http_next bag_http_request_on_head(struct bag_http_request *request,
                                            const struct bag_problem *fault);

/* A piece of the body, which is valid until this returns. */
enum bag_http_next bag_http_request_on_body(struct bag_http_request *request, const char *data,
                                            size_t bytes);

/* The body is complete, or the connection asks again. */
enum bag_http_next bag_http_request_on_end(struct bag_http_request *request);

/* Counts, logs and completes the reply, which is about to be sent. */
void bag_http_request_finish(struct bag_http_request *request);

/* The request goes no further: the reply, which ends the connection, says why. */
void bag_http_request_reject(struct bag_http_request *request, const struct bag_problem *fault);

/* The reply was sent, or never will be. */
void bag_http_request_end(struct bag_http_request *request, bool sent);

/* Frees the requests that are kept for reuse. */
void bag_http_requests_free(struct bag_http_context *context);

/* ---- for handlers ---------------------------------------------------------------------------- */

/* The reply of a handler that returned SUSPEND is filled. */
void bag_http_request_resume(struct bag_http_request *request);

/* For a handler to return: `make_reply` fills the reply on a worker, where making it takes longer
 * than a turn of the loop should. It may read the snapshot and what never changes. */
enum bag_http_outcome bag_http_request_on_worker(struct bag_http_request *request,
                                                 void (*make_reply)(struct bag_http_request *));

/* For a handler to return where others than a worker make the reply: a worker calls `run` with
 * request->work, and who has filled the reply in the end calls the second one, on any thread. */
enum bag_http_outcome bag_http_request_elsewhere(struct bag_http_request *request,
                                                 void (*run)(struct bag_work *work),
                                                 enum bag_work_order order);
void bag_http_request_made(struct bag_http_request *request);

/* The request does not read the models any more, until its reply is made: for a handler that
 * returns SUSPEND, where others than a worker call bag_http_request_made. */
void bag_http_request_leave_models(struct bag_http_request *request);

/* Returns whether the request's listener takes inference. The admin listener does with a token
 * of scope admin, for the console that is opened there. */
bool bag_http_may_infer(const struct bag_http_request *request);

/* Parts of a bag_http_accept. Whether the head's Content-Encoding is known, and the length that it
 * announces is at most max_bytes, of which messages name the option as " (option)" or "". Otherwise
 * the reply is filled. */
bool bag_http_accept_coding(struct bag_http_request *request);
bool bag_http_accept_length(struct bag_http_request *request, size_t max_bytes, const char *option);

/* The bag_http_accept of requests whose body is a few words. */
bool bag_http_accept_small(struct bag_http_request *request);

#endif
