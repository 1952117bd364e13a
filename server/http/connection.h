/* The open connections of a loop: where each stands, until when it may, and how it ends.
 *
 * The library reads and writes; here is what it does not know: deadlines of a whole head, request
 * and reply, who makes room for others, and closing without losing a reply. A connection that is
 * late is shut down, which the library then notices. Its own time-out is not used: each byte would
 * put it off.
 *
 * All functions and callbacks run on the loop's thread. */
#ifndef BAG_HTTP_CONNECTION_H
#define BAG_HTTP_CONNECTION_H

#include "message.h"
#include "proto/problem.h"
#include "proto/proxy.h"
#include "server/metrics/metrics.h"
#include "server/system/sockets.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <uv.h>

/* ---- connections ----------------------------------------------------------------------------- */

/* Where a connection stands beside what the library makes of it. */
enum bag_http_connection_stage {
    BAG_HTTP_CONNECTION_IDLE,      /* nothing was asked that is not answered, or half a line was */
    BAG_HTTP_CONNECTION_HEAD,      /* the first line is here, and the head on its way */
    BAG_HTTP_CONNECTION_BODY,      /* the head is here, and the rest on its way */
    BAG_HTTP_CONNECTION_WAITING,   /* the client waits for the server; the library asks again */
    BAG_HTTP_CONNECTION_SUSPENDED, /* likewise, until it is resumed */
    BAG_HTTP_CONNECTION_READING,   /* the client reads its reply */
    BAG_HTTP_CONNECTION_ENDED,     /* it was shut down, and the library is to notice */
    BAG_HTTP_CONNECTION_STAGES
};

/* Who is connected from one address: of IPv6 from one network of 64 bits, which is one client's. */
struct bag_http_client {
    struct bag_http_client *next;
    uint8_t address[16];
    size_t connections;
    size_t body_bytes; /* memory of its requests' bodies */
};

/* One connection. Lives from its acceptance to its end. */
struct bag_http_connection {
    struct bag_http_connection *next, *previous; /* in its stage */
    struct bag_http_client *client; /* whose it is, see accept.c; NULL: nobody's share */
    struct bag_http_peer peer;
    struct MHD_Connection *handle;    /* the library's */
    struct bag_http_request *request; /* owned; NULL: there is none whose head is complete */
    const char *target_fault;         /* what is wrong with the target; static; NULL: nothing */
    int fd;
    bool surplus;     /* beyond max_connections, and not counted: is told so, and closed */
    bool evicted;     /* was closed to make room, and no longer counts */
    bool late;        /* its request came while the server drains */
    bool is_answered; /* the reply went out past the library */
    enum bag_http_connection_stage stage;
    uint64_t since_ms; /* on uv_now's clock; of HEAD and BODY, when the first line was here */
};

struct bag_http_connection_limits {
    size_t connections;   /* of all that share `total` */
    atomic_size_t *total; /* open connections; borrowed */
    uint64_t idle_timeout_ms;
    uint64_t timeouts_ms[BAG_HTTP_CONNECTION_STAGES]; /* of each stage; 0: none */
};

/* Those in one stage, by since_ms. */
struct bag_http_connection_list {
    struct bag_http_connection *first, *last;
    struct bag_http_connection *next_swept; /* NULL: begin at the first */
    size_t count;
};

struct bag_http_connections {
    struct bag_http_connection_list lists[BAG_HTTP_CONNECTION_STAGES];
    struct bag_http_connection *arriving; /* the library is being told of it; owned */
    size_t count;
    bool ended;       /* set when a connection has; its reader clears it */
    uint64_t busy_ns; /* that the library took for them in the loop's last turn */
    struct bag_http_connection_limits limits;
    void (*on_late)(void *context, struct bag_http_connection *connection); /* tells the client */
    void *context;
    uv_timer_t timer;                                       /* runs while there are connections */
    uv_timer_t linger_timer;                                /* runs while some linger */
    struct bag_http_lingering *lingering, **last_lingering; /* owned; closing.c's */
    struct bag_http_watch *proxied; /* owned; their PROXY headers are still to come */
    unsigned num_lingering, num_proxied;
};

void bag_http_connections_init(struct bag_http_connections *connections, uv_loop_t *loop,
                               const struct bag_http_connection_limits *limits);

/* Closes the handles. All connections and lingering closes have ended. */
void bag_http_connections_stop(struct bag_http_connections *connections);

/* The connection that arrives has begun: the library has its socket. */
void bag_http_connection_begin(struct bag_http_connections *connections,
                               struct bag_http_connection *connection);

/* Its socket is about to be closed; frees it. */
void bag_http_connection_remove(struct bag_http_connections *connections,
                                struct bag_http_connection *connection);

/* From now on the connection does this. */
void bag_http_connection_enter(struct bag_http_connections *connections,
                               struct bag_http_connection *connection,
                               enum bag_http_connection_stage stage);

/* Shuts it down: the library ends it in its next round. */
void bag_http_connection_end(struct bag_http_connections *connections,
                             struct bag_http_connection *connection);

/* False where the client has ended its side, or has gone; a suspended connection does not notice by
 * itself. */
bool bag_http_connection_is_open(const struct bag_http_connection *connection);

/* At the limit, ends one connection for another of `client` (NULL: nobody's): one without a whole
 * head that has been so for longest, a second at least; or else one that is sent or sends, of
 * somebody who has more of them. Somebody who has many times as many has no second. */
void bag_http_connections_make_room(struct bag_http_connections *connections,
                                    const struct bag_http_client *client);

/* Writes a whole reply past the library: for a request in whose midst it takes no response, and for
 * which nothing else was sent. False where the socket does not take it at once. */
bool bag_http_connection_send_past(const struct bag_http_connection *connection,
                                   const struct bag_http_reply *reply);

/* Ends some of the connections on which nothing was asked for idle_ms, counted from since_ms on,
 * and nothing is on its way, as far as can be known. */
void bag_http_connections_close_idle(struct bag_http_connections *connections, uint64_t since_ms,
                                     uint64_t idle_ms);

/* ---- sockets beside the library's (closing.c) ------------------------------------------------ */

/* A socket that the loop reads itself, for a bounded time. */
struct bag_http_watch {
    struct bag_http_watch *next, *previous;
    int fd; /* owned; -1: another's by now */
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned open_handles;
    void (*on_readable)(struct bag_http_watch *watch);
    void (*on_late)(struct bag_http_watch *watch);
    void *context;
};

/* Begins to wait, and puts it into the list; false, with nothing kept, where the loop cannot. The
 * watch begins with a malloc, and goes with bag_http_watch_end. */
bool bag_http_watch_start(struct bag_http_watch *watch, uv_loop_t *loop, uint64_t timeout_ms,
                          struct bag_http_watch **list);

/* Takes it out of the list; frees it, and closes its socket, when the loop lets go of it. */
void bag_http_watch_end(struct bag_http_watch *watch, struct bag_http_watch **list);

/* ---- lingering close (closing.c) ------------------------------------------------------------- */

/* A connection that was answered before its body was read is closed in two steps: closing a socket
 * with unread bytes resets it, and a client that is still sending may then never see the answer. So
 * its bytes are read and dropped until the client closes, for a bounded time. */

/* Goes on reading from a socket that its owner is about to close. Where it cannot (too many, no
 * memory), the connection is reset as it would have been. */
void bag_http_connection_linger(struct bag_http_connections *connections, int fd);

/* Ends all lingering closes, and connections whose PROXY headers have not come. */
void bag_http_watches_stop(struct bag_http_connections *connections);

/* ---- draining (closing.c) -------------------------------------------------------------------- */

/* Stopping one server without losing a request.
 *
 * First, running requests are finished, while new connections are accepted: they are answered that
 * the server is not ready. Then no connection begins any more, and those that have begun are
 * accepted; then the listening socket is closed. Every answer meanwhile ends its connection; one on
 * which nothing is asked is closed after a moment. Nobody can know that a client is not about to
 * ask on an idle connection: HTTP/1.1 leaves it to clients to ask again on another. */

enum bag_http_drain_stage {
    BAG_HTTP_DRAIN_NONE,
    BAG_HTTP_DRAIN_FINISHING, /* what was asked before it began */
    BAG_HTTP_DRAIN_REJECTING, /* accepting what has begun */
    BAG_HTTP_DRAIN_EMPTYING,  /* answering on the connections that are left */
};

/* A member of the server. */
struct bag_http_drain {
    /* What is drained: set by the server, borrowed. */
    uv_loop_t *loop;
    struct bag_http_connections *connections;
    struct bag_listener *listener;
    void (*stop_accepting)(void *server); /* before the listener is closed */
    void *server;

    enum bag_http_drain_stage stage;
    bag_counter in_flight; /* requests between their head and their end */
    size_t late;           /* of these, requests that came after it began */
    uint64_t begun_ms;     /* on uv_now's clock */
    uint64_t rejecting_ms; /* when the stage REJECTING began */
    uint64_t max_wait_ms;
    uv_timer_t timer;
    void (*done)(void *context);
    void *context;
};

/* Begins to drain; `done` is called when no connection is left, from a timer. New connections are
 * taken for no longer than max_wait_ms. */
void bag_http_drain_start(struct bag_http_drain *drain, uint64_t max_wait_ms,
                          void (*done)(void *context), void *context);

/* A request has begun; the result, whether that was while the server drains, is for its end. */
bool bag_http_drain_on_begin(struct bag_http_drain *drain);
void bag_http_drain_on_end(struct bag_http_drain *drain, bool late);

/* ---- accepting (accept.c) -------------------------------------------------------------------- */

/* Accepting connections for one server, and who may have how many.
 *
 * The library accepts nothing itself: after one failed accept (no descriptor, no memory) it would
 * not try again before some connection ends, and it closes nothing idle for those who wait. Here a
 * failed accept is tried again a moment later; at max_connections another connection makes room;
 * and one address may have at most max_connections_per_client of them, unless it is a trusted
 * proxy's. Such a proxy may say in a PROXY header whose the connection is, which is read before the
 * library has the socket: then that counts. Each server counts for itself. */

/* Networks of proxies, which bring the connections of many clients. */
struct bag_http_networks {
    struct bag_http_network {
        uint8_t address[16]; /* IPv4 as ::ffff:a.b.c.d */
        unsigned bits;       /* that count, from the first one on */
    } list[64];
    size_t count;
};

bool bag_http_networks_have(const struct bag_http_networks *networks,
                            const struct bag_http_peer *peer);

/* The peer of an address. */
struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address);

/* Whether it is of this machine alone. */
bool bag_http_peer_is_loopback(const struct bag_http_peer *peer);

/* Reads addresses and networks ("10.0.0.0/8, ::1") with commas between them; NULL: none. */
bool bag_http_networks_parse(struct bag_http_networks *networks, const char *text,
                             struct bag_problem *problem);

struct bag_http_acceptor {
    /* Set by the server; borrowed. */
    uv_loop_t *loop;
    struct bag_listener *listener;
    struct bag_http_connections *connections;
    size_t max_connections; /* that are accepted, with those that are answered 503 */
    size_t max_per_client;
    bool reads_proxy_headers; /* of `proxies` */
    /* Gives connections->arriving to the library, which closes the socket where it cannot. */
    void (*take)(void *server);
    void *server;

    struct bag_http_networks proxies;
    struct bag_http_client *clients[256]; /* owned; chains of those who are connected, by hash */
    uv_poll_t poll;
    uv_timer_t retry; /* runs while accepting makes no sense */
    bool failed;      /* the last accept has, and the log says so */
};

/* Begins to accept; the members above `proxies` are set, the others zero. */
bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, const char *trusted_proxies,
                             struct bag_problem *problem);

/* Tries again at once, if it waits, because a connection has ended. */
void bag_http_acceptor_on_ended(struct bag_http_acceptor *acceptor);

/* Accepts no more, and closes the handles: before the listener, whose descriptor another file may
 * get then. */
void bag_http_acceptor_stop(struct bag_http_acceptor *acceptor);

/* A connection has ended: its client, if it is counted, has one less. */
void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client);

#endif
