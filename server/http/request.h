/* One request and its reply, from the complete head until the reply is sent.
 *
 *   HEAD --+--> BODY -----> TRYING ------------------------> READY --> FINISHED
 *          |      |          ^  `--> DEFERRED --> WAITING ----^
 *          |      v          |          ^------------'        |
 *          `--> DROPPING ----+--------------------------------'
 *
 * A request that takes no body is DROPPING, too. One that is rejected is READY, from HEAD or BODY
 * at once if its body is not read, else from DROPPING. A handler that must suspend is called twice,
 * and once more if the models of its shards changed meanwhile. Each function asserts the stages
 * that it accepts.
 *
 * A state machine without sockets: the connection calls it with what was received, and does what it
 * returns. Errors of the head are known before the body arrives. The body is then discarded, or not
 * read at all if it is long.
 *
 * A request retains the models while its head is checked, and from the last byte of the body until
 * the reply is made. The models may change in between: a handler looks up the model of its path
 * again, checks it as it did for the head, and uses nothing that it found before.
 *
 * All functions run on the loop's thread unless their comment says otherwise. */
#pragma once

#include "access.h"
#include "routes.h"
#include "server/coordinator/remote_infer.h"
#include "service.h"

#include <sys/queue.h>

/* ---- requests -------------------------------------------------------------------------------- */

struct bag_http_context;

/* A request that has waited for less than this is answered without checking whether its client has
 * disconnected. A client that has closed only its sending side then still gets its reply. */
#define BAG_HTTP_QUICK_NS UINT64_C(1000000000)

/* State that the requests of one server share. A member of the server. */
struct bag_http_context {
    struct bag_service *service;        /* borrowed */
    struct bag_reader *reader;          /* borrowed; reader of the service's registry */
    bool infers;                        /* false: the admin listener */
    struct bag_engine engine;           /* expensive work */
    struct bag_coordinator coordinator; /* calls to shards */
    struct bag_recorder *recorder;      /* recorder of metrics; NULL: metrics are off */
    struct bag_buffers buffers;         /* memory of bodies and replies */
    struct bag_header_cache header_cache;
    struct bag_http_route_cache route_cache;
    struct bag_infer_limits infer_limits;
    uint64_t inline_cost_ns;              /* work estimated above this goes to the engine */
    SLIST_HEAD(, bag_http_request) spare; /* finished requests, for reuse */
};

/* The functions that a request calls on its connection while it is suspended. */
struct bag_http_connection;
struct bag_http_connection_calls {
    /* Continues the connection when the reply is ready. It then calls bag_http_request_on_end()
     * once more, not from this function. */
    void (*resume)(struct bag_http_connection *connection);
    /* Returns false if the client has disconnected. */
    bool (*is_connected)(const struct bag_http_connection *connection);
    /* Returns the time since the last bytes were received. */
    uint64_t (*quiet_ns)(const struct bag_http_connection *connection);
};

/* The next action of the connection. */
enum bag_http_next {
    BAG_HTTP_READ,     /* read more of the body, or its end */
    BAG_HTTP_LATER_ON, /* read nothing, and call again */
    BAG_HTTP_WAIT,     /* read nothing until it is resumed */
    BAG_HTTP_SEND,     /* send request->reply */
    BAG_HTTP_CUT_OFF,  /* send request->reply before the body has arrived, and close */
};

/* The stage of a request; see the picture above. */
enum bag_http_stage {
    BAG_HTTP_HEAD,     /* the head is not complete */
    BAG_HTTP_BODY,     /* the body is kept */
    BAG_HTTP_DROPPING, /* the body is discarded */
    BAG_HTTP_TRYING,   /* the handler is called, and may not suspend the request */
    BAG_HTTP_DEFERRED, /* the handler must be called again, and may suspend it then */
    BAG_HTTP_WAITING,  /* the second call of the handler runs or has suspended the request */
    BAG_HTTP_READY,    /* the reply is filled */
    BAG_HTTP_FINISHED, /* the reply was counted */
};

struct bag_http_request {
    SLIST_ENTRY(bag_http_request) link; /* in the context's spare requests */
    struct bag_http_context *context;   /* borrowed */
    const struct bag_http_connection_calls *calls;
    struct bag_http_connection *connection; /* borrowed; argument of the calls */
    struct bag_snapshot *snapshot;          /* the retained models; NULL: none */
    uint64_t generation;                    /* generation of the models that were last retained */
    struct bag_http_first_line line;
    struct bag_http_head head;          /* filled by the connection before on_head */
    const struct bag_http_route *route; /* NULL: the request was rejected before it had one */
    unsigned scopes;                    /* scopes of its token, bit i for scope i; 0: no token */
    struct bag_http_target target;
    enum bag_http_stage stage;
    bool is_anew;      /* answered once more, because the models of its shards changed meanwhile */
    bool rejected;     /* rejected for its form or length, for its deadline, or for too many
                          connections; closes the connection */
    bool body_unread;  /* the reply is sent before the whole body has arrived */
    uint64_t asked_ns; /* models of shards only: uv_hrtime() when its timeout started */
    size_t max_body_bytes;       /* limit of the route, if it takes a body */
    const char *max_body_option; /* for messages; static */
    char *body;                  /* owned, from the context's buffers; NULL: nothing was received */
    size_t body_bytes, body_room; /* received bytes, and capacity */
    size_t document_bytes; /* memory of the reply that was taken from the budget by its length */
    struct bag_http_access access;
    enum bag_coding coding; /* coding of the body */
    uint64_t expected_ns;   /* estimated work for a body of the announced length; 0: unknown */
    struct bag_work work;   /* used by bag_http_request_elsewhere() */
    uint64_t pushed_ns;     /* uv_hrtime() when `work` was pushed */
    void (*make_reply)(struct bag_http_request *request);
    void (*answer)(struct bag_http_request *request); /* used by bag_http_remote_begin() */
    struct bag_http_reply reply;
    struct bag_remote_infer *run; /* owned; models of shards only; NULL: no remote inference yet */
    struct bag_job
        job; /* job of an inference; its model is NULL in other requests; must be the last member */
};

/* Returns a request whose first line was received, or NULL if there is no memory. The caller must
 * end it with bag_http_request_end(). */
struct bag_http_request *bag_http_request_begin(struct bag_http_context *context,
                                                const struct bag_http_connection_calls *calls,
                                                struct bag_http_connection *connection,
                                                const struct bag_http_first_line *line);

/* Called when the head was received and the body was not. `fault` is the reason to reject the
 * request; NULL: none. */
enum bag_http_next bag_http_request_on_head(struct bag_http_request *request,
                                            const struct bag_problem *fault);

/* Called for each piece of the body, which is valid until this returns. */
enum bag_http_next bag_http_request_on_body(struct bag_http_request *request, const char *data,
                                            size_t bytes);

/* Called when the body is complete, or will not be read, and again after LATER_ON and after WAIT.
 */
enum bag_http_next bag_http_request_on_end(struct bag_http_request *request);

/* Counts, logs and completes the reply, which is about to be sent. */
void bag_http_request_finish(struct bag_http_request *request);

/* Rejects the request. The reply names the fault and closes the connection. */
void bag_http_request_reject(struct bag_http_request *request, const struct bag_problem *fault);

/* Ends the request, which is not suspended. `sent`: the whole reply was sent. */
void bag_http_request_end(struct bag_http_request *request, bool sent);

/* Frees the requests that are kept for reuse. */
void bag_http_requests_free(struct bag_http_context *context);

/* Returns the request that the job is a member of. */
static inline struct bag_http_request *bag_http_request_of(struct bag_job *job)
{
    return (void *)((char *)job - offsetof(struct bag_http_request, job));
}

/* ---- for handlers ---------------------------------------------------------------------------- */

/* Returns whether the handler may suspend the request. Otherwise it returns LATER to be called once
 * more when it may. */
static inline bool bag_http_request_may_suspend(const struct bag_http_request *request)
{
    return request->stage == BAG_HTTP_WAITING;
}

/* Called when the reply of a handler that returned SUSPEND is filled. */
void bag_http_request_resume(struct bag_http_request *request);

/* Has the handler that returned SUSPEND called once more, as if the body had just arrived. */
void bag_http_request_again(struct bag_http_request *request);

/* Has a worker fill the reply by `make_reply`, which may read the snapshot and what never changes.
 * Used if filling it would delay the loop. The handler must return the result. */
enum bag_http_outcome bag_http_request_on_worker(struct bag_http_request *request,
                                                 void (*make_reply)(struct bag_http_request *));

/* Has a worker call `run` with request->work. The handler must return the result. Whoever has
 * filled the reply in the end calls bag_http_request_made(), on any thread. */
enum bag_http_outcome bag_http_request_elsewhere(struct bag_http_request *request,
                                                 void (*run)(struct bag_work *work),
                                                 enum bag_work_order order);
void bag_http_request_made(struct bag_http_request *request);

/* Releases the models until the reply is made. For a handler that returns SUSPEND and does not need
 * them while it waits. */
void bag_http_request_leave_models(struct bag_http_request *request);

/* Returns true if the request's listener accepts inference. The admin listener accepts it with a
 * token of scope admin, for the console. */
bool bag_http_may_infer(const struct bag_http_request *request);

/* Parts of a bag_http_accept. Return false with the reply filled if the head's Content-Encoding is
 * unknown, or its Content-Length exceeds max_bytes. Messages name the option as " (option)" or "".
 */
bool bag_http_accept_coding(struct bag_http_request *request);
bool bag_http_accept_length(struct bag_http_request *request, size_t max_bytes, const char *option);

/* The bag_http_accept of requests whose body is a few words. */
bool bag_http_accept_small(struct bag_http_request *request);
