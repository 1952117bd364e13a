/* Accepting connections; see connection.h. */
#include "connection.h"

#include "server/system/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* After a failed accept, and at the limit, it is tried again by then. */
#define RETRY_MS 100

/* Connections that are accepted in one turn of the loop, so that other loops get their share; where
 * the library takes long for those that are open, as many as can be in the same time: whoever waits
 * behind others that come and go would wait for as many long turns. */
#define MAX_ACCEPTED 10

/* ---- addresses ------------------------------------------------------------------------------- */

struct bag_http_peer bag_http_peer_of(const struct sockaddr_storage *address)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    struct bag_http_peer peer = {.known = true};
    if (address->ss_family == AF_INET6) {
        memcpy(peer.address, &six->sin6_addr, 16);
        peer.port = ntohs(six->sin6_port);
    } else if (address->ss_family == AF_INET) {
        memcpy(peer.address, bag_http_ipv4_prefix, sizeof bag_http_ipv4_prefix);
        memcpy(peer.address + sizeof bag_http_ipv4_prefix, &four->sin_addr, 4);
        peer.port = ntohs(four->sin_port);
    } else {
        peer.known = false;
    }
    return peer;
}

static bool is_in(const struct bag_http_network *network, const uint8_t address[16])
{
    unsigned bytes = network->bits / 8, bits = network->bits % 8;
    uint8_t mask = (uint8_t)(0xFF00 >> bits);
    return memcmp(network->address, address, bytes) == 0 &&
           (bits == 0 || ((network->address[bytes] ^ address[bytes]) & mask) == 0);
}

bool bag_http_networks_have(const struct bag_http_networks *networks,
                            const struct bag_http_peer *peer)
{
    for (size_t i = 0; peer->known && i < networks->count; i++) {
        if (is_in(&networks->list[i], peer->address))
            return true;
    }
    return false;
}

bool bag_http_peer_is_loopback(const struct bag_http_peer *peer)
{
    static const struct bag_http_networks loopback = {
        .list = {{.address = {[10] = 0xFF, [11] = 0xFF, [12] = 127}, .bits = 104},
                 {.address = {[15] = 1}, .bits = 128}},
        .count = 2};
    return bag_http_networks_have(&loopback, peer);
}

/* "10.0.0.0/8", "::1". */
static bool parse_network(struct bag_http_network *network, char *text)
{
    char *length = strchr(text, '/'), *end;
    if (length)
        *length++ = 0;
    memcpy(network->address, bag_http_ipv4_prefix, sizeof bag_http_ipv4_prefix);
    bool four = inet_pton(AF_INET, text, network->address + sizeof bag_http_ipv4_prefix) == 1;
    if (!four && inet_pton(AF_INET6, text, network->address) != 1)
        return false;
    unsigned long most = four ? 32 : 128, bits = most;
    if (length) {
        bits = *length >= '0' && *length <= '9' ? strtoul(length, &end, 10) : most + 1;
        if (bits > most || *end)
            return false;
    }
    network->bits = (unsigned)(bits + 128 - most);
    return true;
}

bool bag_http_networks_parse(struct bag_http_networks *networks, const char *text,
                             struct bag_problem *problem)
{
    const size_t most = sizeof networks->list / sizeof networks->list[0];
    networks->count = 0;
    while (text && *text) {
        char word[INET6_ADDRSTRLEN + 8];
        size_t bytes = strcspn(text, ", ");
        if (networks->count == most)
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "trusted_proxies has more than %zu entries", most);
        memcpy(word, text, bytes < sizeof word ? bytes : 0);
        word[bytes < sizeof word ? bytes : 0] = 0;
        if (!parse_network(&networks->list[networks->count++], word))
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "trusted_proxies: '%s' is neither an address nor a network such "
                                   "as 10.0.0.0/8",
                                   bag_quote(text, bytes).text);
        text += bytes;
        text += strspn(text, ", ");
    }
    return true;
}

/* ---- clients --------------------------------------------------------------------------------- */

static struct bag_http_client **chain_of(struct bag_http_acceptor *acceptor,
                                         const uint8_t address[16])
{
    uint64_t hash = bag_hash_bytes(BAG_HASH_START, address, 16);
    return &acceptor->clients[(hash ^ hash >> 32) % 256];
}

/* The client of an address, counted once more; NULL where it has as many as it may, or no memory.
 */
static struct bag_http_client *acquire_client(struct bag_http_acceptor *acceptor,
                                              const uint8_t address[16])
{
    struct bag_http_client **chain = chain_of(acceptor, address), *client = *chain;
    while (client && memcmp(client->address, address, 16) != 0)
        client = client->next;
    if (!client) {
        client = calloc(1, sizeof *client);
        if (!client)
            return NULL;
        memcpy(client->address, address, 16);
        client->next = *chain;
        *chain = client;
    }
    if (client->connections >= acceptor->max_per_client)
        return NULL;
    client->connections++;
    return client;
}

void bag_http_client_release(struct bag_http_acceptor *acceptor, struct bag_http_client *client)
{
    if (!client || --client->connections > 0)
        return;
    struct bag_http_client **link = chain_of(acceptor, client->address);
    while (*link != client)
        link = &(*link)->next;
    *link = client->next;
    free(client);
}

/* Whether a peer may have another connection. *client is whose it is then; NULL: it is not counted.
 */
static bool admit(struct bag_http_acceptor *acceptor, const struct bag_http_peer *peer,
                  struct bag_http_client **client)
{
    uint8_t address[16];
    *client = NULL;
    if (!peer->known || bag_http_networks_have(&acceptor->proxies, peer))
        return true;
    memcpy(address, peer->address, sizeof address);
    if (!bag_http_peer_is_ipv4(peer))
        memset(address + 8, 0, 8);
    *client = acquire_client(acceptor, address);
    return *client != NULL;
}

/* ---- when to accept -------------------------------------------------------------------------- */

static void on_acceptable(uv_poll_t *poll, int status, int events);
static void on_retry(uv_timer_t *timer);

static void start_polling(struct bag_http_acceptor *acceptor)
{
    if (bag_poll_start(&acceptor->poll, on_acceptable))
        uv_timer_stop(&acceptor->retry);
    else
        uv_timer_start(&acceptor->retry, on_retry, RETRY_MS, 0);
}

static void on_retry(uv_timer_t *timer)
{
    start_polling(timer->data);
}

/* Those who wait are accepted later. */
static void pause_accepting(struct bag_http_acceptor *acceptor)
{
    uv_poll_stop(&acceptor->poll);
    uv_timer_start(&acceptor->retry, on_retry, RETRY_MS, 0);
}

static void on_failure(struct bag_http_acceptor *acceptor, int error)
{
    if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS)
        return; /* no connection waits any more, or the next accept may succeed */
    if (!acceptor->failed)
        bag_log(BAG_LOG_LEVEL_WARNING, "cannot accept connections",
                BAG_LOG_TEXT("reason", strerror(error)));
    acceptor->failed = true;
    pause_accepting(acceptor);
}

/* Hands a socket over to the library; what nobody took goes. */
static void hand_over(struct bag_http_acceptor *acceptor, int fd, const struct bag_http_peer *peer)
{
    struct bag_http_connections *connections = acceptor->connections;
    struct bag_http_connection *connection = calloc(1, sizeof *connection);
    if (!connection || !admit(acceptor, peer, &connection->client)) {
        free(connection);
        close(fd);
        return;
    }
    connection->fd = fd;
    connection->peer = *peer;
    bag_http_connections_make_room(connections, connection->client);
    connections->arriving = connection;
    acceptor->take(acceptor->server);
    if (!connections->arriving)
        return;
    connections->arriving = NULL;
    bag_http_client_release(acceptor, connection->client);
    free(connection);
}

/* ---- PROXY headers --------------------------------------------------------------------------- */

/* A connection of a trusted proxy whose header is still to come. */
struct proxied {
    struct bag_http_watch watch;
    struct bag_http_peer peer; /* the proxy */
    struct bag_proxy_header header;
};

static void end_proxied(struct bag_http_watch *watch)
{
    struct bag_http_acceptor *acceptor = watch->context;
    acceptor->connections->num_proxied--;
    bag_http_watch_end(watch, &acceptor->connections->proxied);
}

/* From here on the connection is that of the client whom the header names. */
static void hand_proxied_over(struct proxied *proxied)
{
    struct bag_http_acceptor *acceptor = proxied->watch.context;
    struct bag_http_peer peer = proxied->peer;
    int fd = proxied->watch.fd;
    if (proxied->header.has_source) {
        peer = (struct bag_http_peer){.known = true, .port = proxied->header.source_port};
        memcpy(peer.address, proxied->header.source, sizeof peer.address);
    }
    uv_poll_stop(&proxied->watch.poll);
    proxied->watch.fd = -1;
    end_proxied(&proxied->watch);
    hand_over(acceptor, fd, &peer);
}

/* Reads what is sure to be the header's: what follows is the library's. */
static void read_header(struct bag_http_watch *watch)
{
    struct proxied *proxied = (struct proxied *)watch;
    struct bag_proxy_header *header = &proxied->header;
    struct bag_problem problem BAG_UNSET;
    char data[512];
    size_t left =
        (header->total_bytes ? header->total_bytes : BAG_PROXY_FIXED_BYTES) - header->bytes;
    ssize_t bytes = recv(watch->fd, data, left < sizeof data ? left : sizeof data, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (bytes > 0 && bag_proxy_read(header, data, (size_t)bytes, &left, &problem)) {
        if (header->is_complete)
            hand_proxied_over(proxied);
        return;
    }
    if (bytes > 0)
        bag_log(BAG_LOG_LEVEL_WARNING, "bad proxy header",
                BAG_LOG_TEXT("client", bag_http_peer_text(&proxied->peer)),
                BAG_LOG_TEXT("message", problem.text));
    end_proxied(watch);
}

static void await_header(struct bag_http_acceptor *acceptor, int fd,
                         const struct bag_http_peer *peer)
{
    struct bag_http_connections *connections = acceptor->connections;
    struct proxied *proxied = malloc(sizeof *proxied);
    if (!proxied) {
        close(fd);
        return;
    }
    *proxied = (struct proxied){.watch = {.fd = fd,
                                          .on_readable = read_header,
                                          .on_late = end_proxied,
                                          .context = acceptor},
                                .peer = *peer};
    connections->num_proxied += bag_http_watch_start(
        &proxied->watch, acceptor->loop, connections->limits.timeouts_ms[BAG_HTTP_CONNECTION_HEAD],
        &connections->proxied);
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void on_acceptable(uv_poll_t *poll, int status, int events)
{
    struct bag_http_acceptor *acceptor = poll->data;
    const struct bag_http_connections *connections = acceptor->connections;
    const uint64_t busy_ns = connections->busy_ns, begun_ns = uv_hrtime();
    (void)status, (void)events;
    for (int i = 0; i < MAX_ACCEPTED || uv_hrtime() - begun_ns < busy_ns; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof from;
        if (connections->count + connections->num_proxied >= acceptor->max_connections) {
            pause_accepting(acceptor);
            return;
        }
        int fd = accept4(acceptor->listener->fd, (struct sockaddr *)&from, &bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            on_failure(acceptor, errno);
            return;
        }
        acceptor->failed = false;
        struct bag_http_peer peer = bag_http_peer_of(&from);
        if (acceptor->reads_proxy_headers && bag_http_networks_have(&acceptor->proxies, &peer))
            await_header(acceptor, fd, &peer);
        else
            hand_over(acceptor, fd, &peer);
    }
}

bool bag_http_acceptor_start(struct bag_http_acceptor *acceptor, const char *trusted_proxies,
                             struct bag_problem *problem)
{
    if (!bag_http_networks_parse(&acceptor->proxies, trusted_proxies, problem))
        return false;
    if (uv_poll_init(acceptor->loop, &acceptor->poll, acceptor->listener->fd) != 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "cannot wait for connections");
    uv_timer_init(acceptor->loop, &acceptor->retry);
    acceptor->poll.data = acceptor->retry.data = acceptor;
    start_polling(acceptor);
    return true;
}

void bag_http_acceptor_on_ended(struct bag_http_acceptor *acceptor)
{
    if (uv_is_active((const uv_handle_t *)&acceptor->retry))
        start_polling(acceptor);
}

void bag_http_acceptor_stop(struct bag_http_acceptor *acceptor)
{
    uv_close((uv_handle_t *)&acceptor->poll, NULL);
    uv_close((uv_handle_t *)&acceptor->retry, NULL);
}
