/* One request and its reply, from the complete head until the reply is sent.
 *
 *   HEAD --+--> BODY -----> RUNNING ---------> READY --> FINISHED
 *          |      |          ^   `--> WAITING --^
 *          |      v          |                  |
 *          `--> DROPPING ----+------------------'
 *
 * A request that takes no body is DROPPING, too. One that is rejected is READY, from HEAD or BODY
 * at once if its body is not read, else from DROPPING. Each function asserts the stages that it
 * accepts.
 *
 * A route has three functions (target.h), each of which is called at most once:
 *
 *   accept   before the body: may reject the head, and says how long the body may be
 *   run      with the body: returns DONE with the reply filled, or LATE
 *   drop     at the end: frees what the other two have left
 *
 * A handler that returns LATE has passed a function to bag_http_request_late(). The connection
 * calls it once, as soon as the client cannot end the request any more. Until then the handler must
 * not have started anything that refers to the request. In the end one call of
 * bag_http_request_complete() says that the reply is filled. Any thread that has the request may
 * make it, and so may the function that began the work.
 *
 * A state machine without sockets: the connection calls it with what was received, and does what it
 * returns. Errors of the head are known before the body arrives. The body is then discarded, or not
 * read at all if it is long.
 *
 * All functions run on the loop's thread unless their comment says otherwise. */
#pragma once

#include "access.h"
#include "server/coordinator/remote_infer.h"
#include "service.h"
#include "target.h"

#include <sys/queue.h>

/* ---- requests -------------------------------------------------------------------------------- */

struct bag_http_context;

/* The path of the console's page, which a browser that asks for / gets. */
#define BAG_HTTP_CONSOLE_PATH "/console"

/* A request that has waited for less than this is answered without checking whether its client has
 * disconnected. A client that has closed only its sending side then still gets its reply. */
#define BAG_HTTP_QUICK_NS UINT64_C(1000000000)

/* State that the requests of one server share. A member of the server. */
struct bag_http_context {
    struct bag_service *service;        /* borrowed */
    struct bag_http_targets targets;    /* routes, and the models that are served */
    bool infers;                        /* false: the admin listener */
    struct bag_engine engine;           /* expensive work */
    struct bag_coordinator coordinator; /* calls to shards */
    struct bag_recorder *recorder;      /* recorder of metrics; NULL: metrics are off */
    struct bag_buffers buffers;         /* memory of bodies and replies */
    struct bag_header_cache header_cache;
    struct bag_infer_limits infer_limits;
    uint64_t inline_cost_ns;              /* work estimated above this goes to the engine */
    SLIST_HEAD(, bag_http_request) spare; /* finished requests, for reuse */
    size_t num_spare, min_spare;          /* number of these, and its minimum since the last trim */
};

/* The functions that a request calls on its connection while it is suspended. */
struct bag_http_connection;
struct bag_http_connection_calls {
    /* Continues the connection of a late request, whose reply is READY. */
    void (*resume)(struct bag_http_connection *connection);
    /* Returns false if the client has disconnected. */
    bool (*is_connected)(const struct bag_http_connection *connection);
    /* Returns the time since the last bytes were received. */
    uint64_t (*quiet_ns)(const struct bag_http_connection *connection);
};

/* The next action of the connection. */
enum bag_http_next {
    BAG_HTTP_READ,   /* read more of the body, or its end */
    BAG_HTTP_SEND,   /* send request->reply */
    BAG_HTTP_CUT_OFF /* send request->reply before the body has arrived, and close */
};

/* The stage of a request; see the picture above. */
enum bag_http_stage {
    BAG_HTTP_HEAD,     /* the head is not complete */
    BAG_HTTP_BODY,     /* the body is kept */
    BAG_HTTP_DROPPING, /* the body is discarded */
    BAG_HTTP_RUNNING,  /* the handler runs, or the function that begins its work */
    BAG_HTTP_WAITING,  /* the handler has returned LATE */
    BAG_HTTP_READY,    /* the reply is filled */
    BAG_HTTP_FINISHED, /* the reply was counted */
};

struct bag_http_request {
    SLIST_ENTRY(bag_http_request) link; /* in the context's spare requests */
    struct bag_http_context *context;   /* borrowed */
    const struct bag_http_connection_calls *calls;
    struct bag_http_connection *connection; /* borrowed; argument of the calls */
    struct bag_http_first_line line;
    struct bag_http_head head;     /* filled by the connection before on_head */
    unsigned scopes;               /* scopes of its token, bit i for scope i; 0: no token */
    struct bag_http_target target; /* route and model */
    enum bag_http_stage stage;
    void (*begin)(struct bag_http_request *request); /* begins the work of a late request; NULL: it
                                                        has begun, or there is none */
    bool is_away;     /* another thread has the request, and hands it back when it completes it */
    bool rejected;    /* rejected for its form or length, for its deadline, or for too many
                         connections; closes the connection */
    bool body_unread; /* the reply is sent before the whole body has arrived */
    size_t max_body_bytes;       /* limit of the route, if it takes a body */
    const char *max_body_option; /* for messages; static */
    char *body;                  /* owned, from the context's buffers; NULL: nothing was received */
    size_t body_bytes, body_room; /* received bytes, and capacity */
    size_t document_bytes; /* memory of the reply that was taken from the budget by its length */
    struct bag_http_access access;
    enum bag_coding coding; /* coding of the body */
    uint64_t expected_ns;   /* estimated work for a body of the announced length; 0: unknown */
    struct bag_http_reply reply;
    struct bag_work work;                                 /* used by bag_http_request_push() */
    uint64_t pushed_ns;                                   /* uv_hrtime() when `work` was pushed */
    void (*make_reply)(struct bag_http_request *request); /* used by bag_http_request_on_worker() */
    struct bag_remote_infer *run; /* owned; models of shards only; NULL: no remote inference yet */
    unsigned attempts;            /* remote inferences that were started */
    uint64_t asked_ns;            /* uv_hrtime() when the timeout of the first one started */
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

/* Called once when the body is complete, or was discarded. Runs the handler. The request is READY
 * then, or WAITING if it is late. */
void bag_http_request_on_end(struct bag_http_request *request);

/* Called once for a WAITING request, before it waits. Begins its work. The request is READY then if
 * the work is complete already. Otherwise it must not be ended before it is. */
void bag_http_request_begin_work(struct bag_http_request *request);

/* Counts, logs and completes the reply, which is about to be sent. */
void bag_http_request_finish(struct bag_http_request *request);

/* Rejects the request. The reply names the fault and closes the connection. */
void bag_http_request_reject(struct bag_http_request *request, const struct bag_problem *fault);

/* Ends the request, whose work has not begun or is complete. `sent`: the whole reply was sent. */
void bag_http_request_end(struct bag_http_request *request, bool sent);

/* Frees the requests that were not needed since the last call. Each takes up to 9 KiB. Called about
 * once a second: the process shrinks after a burst, and a steady load keeps its requests. */
void bag_http_requests_trim(struct bag_http_context *context);

/* Frees all requests that are kept for reuse. */
void bag_http_requests_free(struct bag_http_context *context);

/* Return the request that the job or the work is a member of. */
static inline struct bag_http_request *bag_http_request_of(struct bag_job *job)
{
    return (void *)((char *)job - offsetof(struct bag_http_request, job));
}

static inline struct bag_http_request *bag_http_request_of_work(struct bag_work *work)
{
    return (void *)((char *)work - offsetof(struct bag_http_request, work));
}

/* ---- for handlers ---------------------------------------------------------------------------- */

/* Makes the request late: `begin` is called next, unless the client leaves before that. It must
 * cause one call of bag_http_request_complete(). The handler must return the result. */
enum bag_http_outcome bag_http_request_late(struct bag_http_request *request,
                                            void (*begin)(struct bag_http_request *request));

/* Says that the reply of a late request is filled. Must be called by the thread that has the
 * request, which must not use it afterwards unless it is the loop. */
void bag_http_request_complete(struct bag_http_request *request);

/* Gives a late request to a worker, which calls `run` with request->work. */
void bag_http_request_push(struct bag_http_request *request, void (*run)(struct bag_work *work),
                           enum bag_work_order order);

/* Makes the request late, and has a worker fill the reply by `make_reply`, which may read the
 * target and what never changes. Used if filling it would delay the loop. The handler must return
 * the result. */
enum bag_http_outcome bag_http_request_on_worker(struct bag_http_request *request,
                                                 void (*make_reply)(struct bag_http_request *));

/* Returns true if the request's listener accepts inference. The admin listener accepts it with a
 * token of scope admin, for the console. */
bool bag_http_may_infer(const struct bag_http_request *request);

/* Parts of a bag_http_accept. Return false with the reply filled if the head's Content-Encoding is
 * unknown, or its Content-Length exceeds max_bytes. Messages name the option as " (option)" or "".
 */
bool bag_http_accept_coding(struct bag_http_request *request);
bool bag_http_accept_length(struct bag_http_request *request, size_t max_bytes, const char *option);

/* The accept of requests whose body is a few words. */
bag_http_accept bag_http_accept_small;
