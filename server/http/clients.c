/* Clients and their shares; see clients.h. */
#include "clients.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

bool bag_http_clients_init(struct bag_http_clients *clients, const struct bag_http_limits *limits,
                           const char *proxies, struct bag_problem *problem)
{
    memset(clients, 0, sizeof *clients);
    clients->limits = *limits;
    if (!bag_networks_parse(&clients->proxies, proxies, problem))
        return false;
    return uv_mutex_init(&clients->lock) == 0 || bag_problem_no_memory(problem);
}

void bag_http_clients_free(struct bag_http_clients *clients)
{
    uv_mutex_destroy(&clients->lock);
}

size_t bag_http_clients_room(const struct bag_http_clients *clients)
{
    size_t open = atomic_load(&clients->open);
    return open < clients->limits.accepted ? clients->limits.accepted - open : 0;
}

size_t bag_http_clients_surplus_room(const struct bag_http_clients *clients)
{
    const size_t open = atomic_load(&clients->open), counted = atomic_load(&clients->counted);
    const size_t surplus = open > counted ? open - counted : 0;
    const size_t most = clients->limits.accepted - clients->limits.connections;
    return surplus < most ? most - surplus : 0;
}

bool bag_http_clients_are_full(const struct bag_http_clients *clients)
{
    return atomic_load(&clients->counted) >= clients->limits.connections;
}

bool bag_http_clients_trust(const struct bag_http_clients *clients,
                            const struct bag_http_peer *peer)
{
    return peer->known && bag_networks_have(&clients->proxies, peer->address);
}

/* Orders clients by their address, for tsearch(3). */
static int compare(const void *one, const void *other)
{
    const struct bag_http_client *first = one, *second = other;
    return memcmp(first->address, second->address, sizeof first->address);
}

bool bag_http_client_join(struct bag_http_clients *clients, const struct bag_http_peer *peer,
                          struct bag_http_client **client)
{
    *client = NULL;
    if (!peer->known || bag_http_clients_trust(clients, peer))
        return true;
    struct bag_http_client *made = calloc(1, sizeof *made);
    if (!made)
        return false;
    memcpy(made->address, peer->address, bag_http_peer_is_ipv4(peer) ? 16 : 8);
    uv_mutex_lock(&clients->lock);
    /* tsearch() returns the client that is in the tree, or inserts the new one. */
    struct bag_http_client *const *found = tsearch(made, &clients->tree, compare);
    if (!found || *found != made)
        free(made);
    if (found && (*found)->connections < clients->limits.per_client &&
        (*found)->connections - (*found)->counted <= bag_http_clients_surplus_room(clients)) {
        *client = *found;
        (*client)->connections++;
    }
    uv_mutex_unlock(&clients->lock);
    return *client != NULL;
}

void bag_http_client_leave(struct bag_http_clients *clients, struct bag_http_client *client)
{
    if (!client)
        return;
    uv_mutex_lock(&clients->lock);
    if (--client->connections == 0) {
        tdelete(client, &clients->tree, compare);
        free(client);
    }
    uv_mutex_unlock(&clients->lock);
}

/* A client that got no connection wants one for WANTED_NS. Clients give way if they have more than
 * WANTED_TIMES as many as it would have with that one. */
#define WANTED_TIMES 3
#define WANTED_NS    UINT64_C(1000000000)

/* If several clients want a connection, the one with the fewest decides. Two threads that write at
 * the same time may mix theirs, which costs one of them another attempt. */
void bag_http_client_want(struct bag_http_clients *clients, const struct bag_http_client *client)
{
    const uint64_t now_ns = uv_hrtime();
    const size_t above = WANTED_TIMES * (client->counted + 1);
    if (now_ns < atomic_load(&clients->wanted_until_ns) && above > clients->wanted_above)
        return;
    atomic_store(&clients->wanted_above, above);
    atomic_store(&clients->wanted_until_ns, now_ns + WANTED_NS);
}

bool bag_http_client_gives_way(const struct bag_http_clients *clients,
                               const struct bag_http_client *client)
{
    const uint64_t until_ns = atomic_load_explicit(&clients->wanted_until_ns, memory_order_relaxed);
    return until_ns > 0 && client && client->counted > clients->wanted_above &&
           uv_hrtime() < until_ns;
}

bool bag_http_client_count(struct bag_http_clients *clients, struct bag_http_client *client)
{
    if (bag_http_client_gives_way(clients, client))
        return false;
    if (atomic_fetch_add(&clients->counted, 1) >= clients->limits.connections) {
        atomic_fetch_sub(&clients->counted, 1);
        return false;
    }
    if (client)
        client->counted++;
    return true;
}

void bag_http_client_uncount(struct bag_http_clients *clients, struct bag_http_client *client)
{
    atomic_fetch_sub(&clients->counted, 1);
    if (client)
        client->counted--;
}
