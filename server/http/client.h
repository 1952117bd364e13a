/* The open connections of a loop: what each does, and until when it may.
 *
 * libmicrohttpd's own time-out begins anew with every byte, so that a client who sends or reads one
 * now and then stays for ever. Here the whole of a request, and the whole reading of a reply, have
 * their time: all connections are looked at once a second, and those that are late are shut down,
 * which the library then notices. A connection between two requests is left to the library.
 *
 * All functions and callbacks run on the loop's thread. */
#ifndef BAG_HTTP_CLIENT_H
#define BAG_HTTP_CLIENT_H

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

struct bag_http_request;

enum bag_client_stage {
    BAG_CLIENT_IDLE,      /* between two requests */
    BAG_CLIENT_BEGINNING, /* it has sent a part of a request's first line */
    BAG_CLIENT_SENDING,   /* the first line is here */
    BAG_CLIENT_WAITING,   /* for the server */
    BAG_CLIENT_READING,   /* its reply */
    BAG_CLIENT_CUT_OFF,
};

/* One connection. Lives from its acceptance to its end. */
struct bag_client {
    struct bag_client *next, *previous;
    struct bag_http_request *request; /* the request that it is at; NULL: none has a whole head */
    int fd;
    bool surplus; /* beyond max_connections: is told so, and closed */
    enum bag_client_stage stage;
    uint64_t since_ms;        /* on uv_now's clock */
    const char *target_end;   /* of the request that came last, in the connection's memory */
    const char *target_fault; /* what is wrong with it; NULL: nothing */
};

struct bag_client_limits {
    size_t connections;   /* of all that share `total` */
    atomic_size_t *total; /* open connections; borrowed */
    uint64_t request_timeout_ms, reply_timeout_ms;
};

struct bag_clients {
    struct bag_client *first;
    size_t count;
    bool ended; /* set when a connection has; its reader clears it */
    struct bag_client_limits limits;
    uv_timer_t timer; /* runs while there are connections */
};

void bag_clients_init(struct bag_clients *clients, uv_loop_t *loop,
                      const struct bag_client_limits *limits);

/* Closes the handle. All connections have ended. */
void bag_clients_stop(struct bag_clients *clients);

/* Ends connections on which nothing was asked for idle_ms, counted from since_ms on, and nothing is
 * on its way, as far as can be known. */
void bag_clients_close_idle(struct bag_clients *clients, uint64_t since_ms, uint64_t idle_ms);

/* MHD_NotifyConnectionCallback; `context` is the struct bag_clients. */
void bag_clients_on_connection(void *context, struct MHD_Connection *connection, void **client,
                               enum MHD_ConnectionNotificationCode what);

/* MHD_OPTION_URI_LOG_CALLBACK: the first line of a request is here. Returns the connection's client
 * (NULL without memory), which is the request's state for all further callbacks. */
void *bag_clients_on_target(void *context, const char *target, struct MHD_Connection *connection);

/* From now on the client does this. */
void bag_client_enter(struct bag_clients *clients, struct bag_client *client,
                      enum bag_client_stage stage);

/* False where it has left; a suspended connection does not notice by itself. */
bool bag_client_is_connected(const struct bag_client *client);

#endif
