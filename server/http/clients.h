/* The clients of one listener: their connections, the memory of their requests, and their share of
 * both.
 *
 * A client is an address: an IPv4 address or an IPv6 /64 network. It exists while it has
 * connections. Connections of trusted proxies and of Unix-domain sockets belong to no client, and
 * no share limits them.
 *
 * All functions may be called on any thread unless their comment says otherwise. */
#pragma once

#include "message.h"
#include "proto/network.h"

#include <stdatomic.h>
#include <uv.h>

struct bag_http_client {
    uint8_t address[16];
    atomic_size_t connections; /* open connections of this client */
    atomic_size_t counted;     /* open connections that count in max_connections */
    atomic_size_t held_bytes;  /* memory of its request bodies and of its documents */
};

/* The limits of one listener. */
struct bag_http_limits {
    size_t connections;       /* connections that are served */
    size_t accepted;          /* connections that are served or answered 503 */
    size_t per_client;        /* connections of one client */
    bool reads_proxy_headers; /* connections of trusted proxies start with a PROXY header */
};

struct bag_http_clients {
    struct bag_http_limits limits;
    struct bag_networks proxies;      /* the trusted ones */
    size_t num_loops;                 /* loops that serve them; set before the start */
    atomic_size_t open;               /* connections that were accepted and not yet closed */
    atomic_size_t counted;            /* open connections that count among limits.connections */
    atomic_bool closed;               /* no more connections are accepted */
    _Atomic uint64_t wanted_until_ns; /* until this uv_hrtime() clients with */
    atomic_size_t wanted_above;       /* more counted connections than this give way */
    uv_mutex_t lock;                  /* guards `tree` */
    void *tree;                       /* the clients by address; see tsearch(3) */
};

/* Initialises the clients of a listener. `proxies` lists the networks of trusted proxies. Returns
 * false and sets *problem if that list is invalid or there is no lock. */
bool bag_http_clients_init(struct bag_http_clients *clients, const struct bag_http_limits *limits,
                           const char *proxies, struct bag_problem *problem);

/* Frees the lock. No connection may be open. */
void bag_http_clients_free(struct bag_http_clients *clients);

/* Returns the number of further connections that may be open at once. */
size_t bag_http_clients_room(const struct bag_http_clients *clients);

/* Returns the number of further connections that may be open beyond max_connections. As many places
 * as max_connections are left for others, even if fewer connections count there at the moment,
 * because clients give way. */
size_t bag_http_clients_surplus_room(const struct bag_http_clients *clients);

/* Returns whether as many connections count in max_connections as may. */
bool bag_http_clients_are_full(const struct bag_http_clients *clients);

/* Returns whether the peer is a trusted proxy. */
bool bag_http_clients_trust(const struct bag_http_clients *clients,
                            const struct bag_http_peer *peer);

/* Finds or makes the client of a new connection, and adds the connection to it. *client is NULL if
 * the connection belongs to none. Returns false if the client may have no more connections, or
 * there is no memory.
 *
 * A client may have limits.per_client connections. Beyond max_connections it may have as many as
 * places are left there. So some places stay free for other clients, however many want all of
 * them. */
bool bag_http_client_join(struct bag_http_clients *clients, const struct bag_http_peer *peer,
                          struct bag_http_client **client);

/* Removes a connection from its client, and frees the client if that was its last one. Does nothing
 * if the client is NULL. */
void bag_http_client_leave(struct bag_http_clients *clients, struct bag_http_client *client);

/* Notes that a new connection of a client was not counted in max_connections. For a moment, clients
 * with several times as many give way. */
void bag_http_client_want(struct bag_http_clients *clients, const struct bag_http_client *client);

/* Returns whether a client, or NULL, gives way to others: it gets no further connections, and each
 * reply closes one. */
bool bag_http_client_gives_way(const struct bag_http_clients *clients,
                               const struct bag_http_client *client);

/* Counts a connection of a client, or of none, in max_connections. Returns false if that many are
 * counted already, or if the client gives way. */
bool bag_http_client_count(struct bag_http_clients *clients, struct bag_http_client *client);

/* Undoes that. */
void bag_http_client_uncount(struct bag_http_clients *clients, struct bag_http_client *client);
