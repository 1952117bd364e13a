/* Decides what becomes of connections and requests if there are too many of them. The engine
 * decides which work is admitted (server/engine/engine.h). There are six policies:
 *
 *   - Admit: a new connection is read as soon as it was accepted, if it counts in max_connections.
 *   - Evict: at max_connections a new connection takes the place of another one, either of one that
 *     is idle, or of a client that has more connections than the new one's.
 *   - Give way: if a client gets no place, those with more than three times as many connections
 *     give way for a second. They get no further ones, and each of their replies closes one. With
 *     `--max-connections 64` and 8 addresses whose requests wait for workers, another client waited
 *     2.8 s for a place without this.
 *   - Surplus: if no connection may be evicted, the new one is read all the same, and its
 *     request is answered with 503. Without this, clients see only a closed connection: with
 *     `--max-connections 64` and attacks from 8 addresses, another client waited 10 s, and
 *     0.6 s with it.
 *   - Defer: while the engine is full, a new connection on which a large request has arrived is not
 *     read yet. Rejecting a large body takes the kernel half as long as pooling it, so clients that
 *     retry at once would leave no time for admitted requests. With 1,000 clients in a closed loop
 *     on one processor, 0.2 to 0.5 of the peak are answered in time, and none without this
 *     (tests/bench/overload).
 *   - Pause: a client that was just sent a 503 gets the next one later. Rejecting a request
 *     takes about as long as answering a small one. If many clients ask again at once, an
 *     iteration of the loop takes longer than the latency target, and every request is rejected.
 *     With 1,000 clients in a closed loop and bodies of 16 KB, 0.80 of the peak are answered in
 *     time, and nothing without this (tests/bench/overload, section `short`).
 *
 * Besides, one client may use only a part of the memory of all requests.
 *
 * There are four calls: for a new connection, for a reply, for each iteration of the loop, and for
 * memory. The thresholds are at the beginning of overload.c, and those of giving way in clients.c.
 *
 * All functions run on the loop's thread. */
#pragma once

#include "connection.h"
#include "server/memory/memory.h"

/* The state of one loop of a listener. */
struct bag_http_overload {
    /* Set by the server. */
    struct bag_http_connections *connections; /* borrowed */
    struct bag_engine *engine;                /* borrowed */
    /* Continues a connection that was paused, so that its reply is sent. Set by mhd.c. */
    void (*resume)(struct bag_http_overload *overload, struct bag_http_connection *connection);

    unsigned num_rejected;    /* replies with 503 in this iteration of the loop */
    uint64_t pauses_until_ms; /* connections are paused until this uv_now() */
    uint64_t
        deferred_tick_ms;    /* uv_now() when some of the deferred connections were last admitted */
    uint64_t defers_from_ms; /* no connection is deferred before this uv_now() */
};

/* Decides on a connection that is ACCEPTED or PROXIED and has joined its client: it is ADMITTED or
 * DEFERRED afterwards. It may take the place of another one, which is shut down. */
void bag_http_overload_on_connection(struct bag_http_overload *overload,
                                     struct bag_http_connection *connection);

/* Decides on the reply to a request, and whether it closes the connection. Returns false, and
 * counts it, if it must be sent now. Returns true if the connection must be PAUSED first, which is
 * possible only if it `can_wait`. The caller calls again when it was resumed. */
bool bag_http_overload_on_reply(struct bag_http_overload *overload,
                                struct bag_http_connection *connection,
                                struct bag_http_reply *reply, bool can_wait);

/* Begins an iteration of the loop: admits deferred connections, and resumes paused ones. Called
 * after new connections were taken, and before the library reads. */
void bag_http_overload_tick(struct bag_http_overload *overload);

/* Returns the time after which the next iteration must begin at the latest; UINT64_MAX: there is
 * nothing to do for this module. */
uint64_t bag_http_overload_due_ms(const struct bag_http_overload *overload);

/* Returns whether a client (NULL: none) may use so many bytes of the budget (NULL: unlimited) for a
 * request, for which it uses `own_bytes` already. A single body or reply may have any size that the
 * budget allows. */
bool bag_http_overload_has_room(const struct bag_budget *budget,
                                const struct bag_http_client *client, size_t own_bytes,
                                size_t bytes);
