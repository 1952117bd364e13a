/* Upstream connections: sends HTTP requests to shards over kept connections, without blocking.
 *
 * An upstream is one address with the connections that one loop has to it. An exchange is one
 * request and its reply. Its owner starts it. One event says that the request may be written, and a
 * second one how the exchange ended. Events are collected in a list, from which the owner takes
 * them when the socket callback is done. So this file calls nobody back. The functions that an
 * owner may call for an event (start, send, cancel) can only add further events.
 *
 * The life of an exchange:
 *
 *     UNUSED -> WAITING -> CONNECTING -> READY -> RUNNING -> ENDED -> UNUSED
 *
 *   bag_exchange_start    appends it to the waiting list of the upstream. It leaves the list at
 *                         once if a connection is idle, or if a new one may be opened.
 *   READY                 is an event: the connection is established. bag_upstreams_take() returns
 *                         the exchange as RUNNING. The owner writes the head into
 *                         bag_exchange_text() and calls bag_exchange_send().
 *   ENDED                 is an event: `result` says how, and the connection is idle again or
 *                         closed. bag_upstreams_take() returns the exchange as UNUSED.
 *   bag_exchange_cancel   makes it UNUSED from any state, without an event.
 *
 * A connection that becomes idle, or is closed, makes room for the exchange that waits longest;
 * this happens in one place, serve() in upstream.c. A loop has at most BAG_UPSTREAM_MAX_CONNECTIONS
 * to an address. If the system has no descriptor for a new one, the exchange waits for one of the
 * others.
 *
 * Sockets are polled with uv_poll, not wrapped in uv_stream: a small exchange takes one system call
 * to send and one to receive.
 *
 * Threads: all of this belongs to the thread of the loop. */
#pragma once

#include "proto/v2_client.h"
#include "server/memory/memory.h"
#include "server/shards/shards.h"

#include <sys/queue.h>
#include <uv.h>

/* Maximum number of connections of one loop to one address. */
#define BAG_UPSTREAM_MAX_CONNECTIONS 256

/* Capacity of bag_exchange_text(): a request's head, and the JSON of its body. */
#define BAG_EXCHANGE_TEXT_BYTES 4096

enum bag_exchange_state {
    BAG_EXCHANGE_UNUSED,
    BAG_EXCHANGE_WAITING,    /* in the waiting list of its upstream */
    BAG_EXCHANGE_CONNECTING, /* has a connection that is not established yet */
    BAG_EXCHANGE_READY,      /* in the list of events: its connection is established */
    BAG_EXCHANGE_RUNNING,    /* is being written, sent or answered */
    BAG_EXCHANGE_ENDED       /* in the list of events: has no connection any more */
};

enum bag_exchange_result {
    BAG_EXCHANGE_REPLIED,      /* `reply` and `body` hold the whole reply */
    BAG_EXCHANGE_REFUSED,      /* no connection: nobody listens there, or connecting failed after a
                                  while; `error` */
    BAG_EXCHANGE_UNRESOLVED,   /* no connection: the name does not resolve */
    BAG_EXCHANGE_UNCONNECTED,  /* no connection: connect(2) failed at once for another reason;
                                  `error` */
    BAG_EXCHANGE_STALE,        /* a kept connection had been closed before the reply began */
    BAG_EXCHANGE_CLOSED,       /* the connection was closed before the reply was complete */
    BAG_EXCHANGE_UNPOLLED,     /* the connection could not be polled: not enough memory */
    BAG_EXCHANGE_INVALID,      /* the reply is not valid; `why` */
    BAG_EXCHANGE_NO_RESOURCES, /* no connection: this server lacks descriptors or memory; `error` */
    BAG_EXCHANGE_NO_BUFFER     /* this server lacks memory for the body of `reply` */
};

/* One request and its reply. A member of what owns it. */
struct bag_exchange {
    /* Set by the owner, before bag_exchange_start. */
    void *owner;
    size_t max_reply_bytes; /* maximum body of a reply of status 200; a longer one is INVALID */

    enum bag_exchange_state state;
    enum bag_exchange_result result; /* valid when ENDED, as the members below */
    int error;                       /* errno */
    bool has_begun;                  /* CLOSED: at least one byte of the reply had arrived */
    uint64_t ended_ns;               /* REPLIED: when */
    struct bag_reply_head reply;     /* status 0: no complete head has arrived */
    char *body;                      /* owned by the taker of the event; from bag_buffers_get */
    char why[200];

    /* Private to upstream.c. */
    struct bag_upstreams *upstreams;
    struct bag_upstream *upstream;
    struct bag_upstream_connection *connection; /* NULL: none */
    TAILQ_ENTRY(bag_exchange) entry;            /* in the waiting list, or in the list of events */
};
TAILQ_HEAD(bag_exchange_list, bag_exchange);
LIST_HEAD(bag_upstream_connection_list, bag_upstream_connection);

/* The connections of one loop to one address. Private to upstream.c. */
struct bag_upstream {
    struct bag_upstreams *upstreams;
    struct bag_shard_host *host;
    struct bag_upstream_connection_list idle; /* most recently used first */
    size_t count;                             /* open connections */
    struct bag_exchange_list waiting;         /* for a connection, oldest first */
};

/* The upstreams of one loop. */
struct bag_upstreams {
    uv_loop_t *loop;             /* borrowed */
    struct bag_buffers *buffers; /* borrowed; shared; memory for replies */
    struct bag_shards *shards;   /* borrowed; resolves addresses; NULL: nothing was started */
    uv_poll_cb on_socket;        /* the owner's; calls bag_upstreams_on_socket */
    uint64_t (*clock_ns)(void);  /* uv_hrtime, or a test's */
    struct bag_upstream **list;  /* owned, with elements; index: host->number; NULL: unused */
    size_t count;
    struct bag_exchange_list events;
};

/* Makes upstreams without connections. `on_socket` becomes the callback of all their polls. */
void bag_upstreams_init(struct bag_upstreams *upstreams, uv_loop_t *loop,
                        struct bag_buffers *buffers, uv_poll_cb on_socket);

/* Closes all idle connections. Called when no exchange is left. */
void bag_upstreams_stop(struct bag_upstreams *upstreams);

/* Frees the memory, after the loop has closed all handles. */
void bag_upstreams_free(struct bag_upstreams *upstreams);

/* Closes the connections that have been idle for too long. */
void bag_upstreams_close_unused(struct bag_upstreams *upstreams);

/* Handles what has happened to a polled socket. Returns the upstreams that it belongs to. */
struct bag_upstreams *bag_upstreams_on_socket(uv_poll_t *poll, int status, int events);

/* Removes the oldest event from the list and returns its exchange. It is RUNNING if its request can
 * be written now, and UNUSED if it has ended. Returns NULL if there is no event. The owner takes
 * all events before it returns to the loop. */
struct bag_exchange *bag_upstreams_take(struct bag_upstreams *upstreams);

/* Starts an exchange that is UNUSED with a host of `shards`. READY or ENDED follows as an event. */
void bag_exchange_start(struct bag_exchange *exchange, struct bag_upstreams *upstreams,
                        struct bag_shards *shards, struct bag_shard_host *host);

/* Returns memory of BAG_EXCHANGE_TEXT_BYTES for the first part of the request. The exchange is
 * RUNNING and was not sent. */
char *bag_exchange_text(struct bag_exchange *exchange);

/* Sends the first `text_bytes` of bag_exchange_text() and then `tail`, which must stay valid until
 * the exchange is UNUSED. ENDED follows as an event. */
void bag_exchange_send(struct bag_exchange *exchange, size_t text_bytes, const char *tail,
                       size_t tail_bytes);

/* Ends an exchange in any state, without an event. Its connection is closed, unless it is
 * established and nothing was sent over it. */
void bag_exchange_cancel(struct bag_exchange *exchange);

/* Closes the idle connections to a host. Called after an invalid reply, because later bytes on
 * these connections might belong to another request. */
void bag_upstreams_close_idle(struct bag_upstreams *upstreams, const struct bag_shard_host *host);
