/* The open connections of a loop: their stages, their deadlines, and how they are closed.
 *
 * libmicrohttpd (below: the library) reads and writes. What it does not know is decided here: the
 * deadlines of a whole head, request and reply, which connection is evicted for another one, and
 * how the loop stops without losing a reply. A connection that is late is shut down, which the
 * library then notices. The library's own time-out would be put off by each byte; it is used for
 * Unix-domain sockets alone, which do not report when bytes moved last.
 *
 * All functions and callbacks run on the loop's thread, unless they say otherwise. */
#ifndef BAG_HTTP_CONNECTION_H
#define BAG_HTTP_CONNECTION_H

#include "message.h"
#include "server/metrics/metrics.h"

#include <stdatomic.h>
#include <sys/queue.h>
#include <uv.h>

/* The stage of a connection beside what the library makes of it. Which one may follow which stands
 * in connection.c, and is asserted there. */
enum bag_http_connection_stage {
    BAG_HTTP_CONNECTION_ACCEPTED,  /* its loop has not looked at it yet, nor listed it */
    BAG_HTTP_CONNECTION_PROXIED,   /* the header of the PROXY protocol is on its way */
    BAG_HTTP_CONNECTION_HELD,      /* it would be rejected now: the library does not read it yet */
    BAG_HTTP_CONNECTION_ADMITTED,  /* the library is to take it */
    BAG_HTTP_CONNECTION_SURPLUS,   /* beyond max_connections; its head is not complete */
    BAG_HTTP_CONNECTION_IDLE,      /* all requests are answered; the next line is not complete */
    BAG_HTTP_CONNECTION_HEAD,      /* the head, or for too long its first line, is on its way */
    BAG_HTTP_CONNECTION_BODY,      /* the head is here, and the rest on its way */
    BAG_HTTP_CONNECTION_WAITING,   /* the client waits for the server */
    BAG_HTTP_CONNECTION_READING,   /* the client reads its reply */
    BAG_HTTP_CONNECTION_ENDED,     /* it was shut down, and the library is to notice */
    BAG_HTTP_CONNECTION_LINGERING, /* the library has closed it; what the client sends is dropped */
    BAG_HTTP_CONNECTION_STAGES
};

/* Who is connected from one address: of IPv6 from one network of 64 bits, which is one client's. */
struct bag_http_client {
    uint8_t address[16];
    atomic_size_t connections;
    atomic_size_t body_bytes; /* memory of its requests' bodies */
};

/* One connection. Lives from its acceptance to its end. */
struct bag_http_connection {
    TAILQ_ENTRY(bag_http_connection) link;    /* among those of its stage */
    struct bag_http_connection *next_arrival; /* among new connections; newest first */
    struct bag_http_client *client;           /* whose it is; NULL: nobody's share */
    struct bag_http_peer peer;
    struct MHD_Connection *handle;    /* the library's; NULL until the library has it */
    struct bag_http_request *request; /* owned; NULL: there is none whose head is complete */
    const char *target_fault;         /* what is wrong with the target; static; NULL: nothing */
    size_t target_bytes;              /* of the last request's target, as it was sent */
    uint64_t taken_bytes;             /* that came and were parts of heads and bodies */
    int fd;
    bool is_unix;      /* a Unix-domain socket */
    bool has_time_out; /* the library's own */
    bool counts;       /* among max_connections; false: not yet, or it is beyond them, or it was
                          closed to make room */
    bool late;         /* its request came while the server drains */
    bool is_answered;  /* the reply went out past the library */
    enum bag_http_connection_stage stage;
    uint64_t since_ms; /* on uv_now's clock; of HEAD and BODY, when the first line was here */
};

/* The connections in one stage, by since_ms. */
struct bag_http_connection_list {
    TAILQ_HEAD(bag_http_connection_queue, bag_http_connection) queue;
    struct bag_http_connection *next_swept; /* NULL: begin at the first */
    size_t count;
};

struct bag_http_connections {
    /* Set by the server, which also has the timers; borrowed. */
    struct bag_http_acceptor *acceptor; /* what all loops share */
    struct bag_engine *engine;          /* by which other threads wake the loop */
    void (*on_late)(void *context, struct bag_http_connection *connection); /* tells the client */
    void *context;
    uint64_t idle_timeout_ms;
    uint64_t timeouts_ms[BAG_HTTP_CONNECTION_STAGES]; /* of each stage; 0: none */

    atomic_size_t count;                            /* of all, from their acceptance on */
    _Atomic(struct bag_http_connection *) arrivals; /* new ones, newest first; owned */
    struct bag_http_connection_list lists[BAG_HTTP_CONNECTION_STAGES]; /* owned */
    uint64_t busy_ns;        /* that the library took for them in the loop's last turn */
    uv_timer_t timer;        /* runs while there are connections, and while the loop drains */
    uv_timer_t linger_timer; /* runs while some linger */
    bag_counter in_flight;   /* requests between their head and their end */
    bag_counter late;        /* of these, requests that came while the loop drains */
    uint64_t drained_since_ms;
    void (*on_drained)(void *context); /* NULL: it does not drain */
    void *drain_context;
};

/* Empties the lists of a zeroed struct. */
void bag_http_connections_init(struct bag_http_connections *connections);

/* ---- a connection's life --------------------------------------------------------------------- */

/* Moves the connection to a stage, which may follow the one that it is in. One that is ENDED stays
 * so. */
void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage);

/* Shuts it down: the library ends it in its next round. */
void bag_http_connection_end(struct bag_http_connections *connections,
                             struct bag_http_connection *connection);

/* Removes and frees a connection whose socket is closed, or about to be. */
void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection);

/* False where the client has ended its side, or has gone, whatever it had asked before; a suspended
 * connection does not notice by itself. Of such a one, any thread. */
bool bag_http_connection_is_open(const struct bag_http_connection *connection);

/* Returns how long ago the last bytes came, to some milliseconds; 0 for a Unix-domain socket. They
 * may have waited in it since. */
uint64_t bag_http_connection_quiet_ns(const struct bag_http_connection *connection);

/* Writes a whole reply past the library: for a request in whose midst it takes no response, and for
 * which nothing else was sent. False where the socket does not take it at once. */
bool bag_http_connection_send_past(const struct bag_http_connection *connection,
                                   const struct bag_http_reply *reply);

/* Goes on reading from a socket that its owner is about to close. One that was answered
 * before its body was read is closed in two steps: closing a socket with unread bytes resets it,
 * and a client that is still sending may then never see the answer. So its bytes are dropped until
 * the client closes, for a bounded time, which is shorter where many do. Without memory the
 * connection is reset as it would have been. */
void bag_http_connection_linger(struct bag_http_connections *connections, int fd);

/* ---- all of them ----------------------------------------------------------------------------- */

/* At the limit, ends one connection for another of `client` (NULL: nobody's): one without a whole
 * head that has been so for longest, a second at least; or else one that is sent or sends, of
 * somebody who has more of them. Somebody who has many times as many has no second. */
void bag_http_connections_make_room(struct bag_http_connections *connections,
                                    const struct bag_http_client *client);

/* Makes the connections beyond max_connections as few as leave places for new ones, which may be of
 * clients who have none: ends the one that has been there for longest. */
void bag_http_connections_bound_surplus(struct bag_http_connections *connections);

/* Drains the connections: every answer ends its connection, as the service says, and once no
 * more are accepted, one on which nothing is asked is closed after a moment. Nobody can know that a
 * client is not about to ask on an idle connection: HTTP/1.1 leaves it to clients to ask again on
 * another. `done` is called when none is left, from a timer. */
void bag_http_connections_drain(struct bag_http_connections *connections,
                                void (*done)(void *context), void *context);

#endif
