/* Connections and their deadlines; see client.h. */
#include "client.h"

#include "answer.h"
#include "guard.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* How often all connections are looked at: the most by which a deadline is passed. */
#define LOOK_MS 1000

/* A connection beyond the limit only has to take its rejection. */
#define SURPLUS_MS 2000

/* By how much the kernel's clock may differ from ours. */
#define CLOCK_SLACK_MS 50

void bag_client_enter(struct bag_clients *clients, struct bag_client *client,
                      enum bag_client_stage stage)
{
    if (client->stage == BAG_CLIENT_CUT_OFF)
        return;
    client->stage = stage;
    client->since_ms = uv_now(clients->timer.loop);
    /* has_begun needs to know better: the loop's time may be older than the request's last byte. */
    if (stage == BAG_CLIENT_IDLE)
        client->since_ms = uv_hrtime() / 1000000;
}

bool bag_client_is_connected(const struct bag_client *client)
{
    char byte;
    return recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Whether bytes of a request have come whose first line is not complete. The kernel knows for TCP;
 * clients of a Unix-domain socket are on this machine and under its owner's eyes. */
static bool has_begun(const struct bag_client *client, uint64_t passed_ms)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    if (getsockopt(client->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0)
        return false;
    return passed_ms > info.tcpi_last_data_recv + CLOCK_SLACK_MS;
}

static bool is_late(struct bag_clients *clients, struct bag_client *client, uint64_t now_ms)
{
    uint64_t passed_ms = now_ms > client->since_ms ? now_ms - client->since_ms : 0;
    switch (client->stage) {
    case BAG_CLIENT_IDLE:
        if (client->surplus)
            return passed_ms >= SURPLUS_MS;
        if (has_begun(client, passed_ms))
            bag_client_enter(clients, client, BAG_CLIENT_BEGINNING);
        return false;
    case BAG_CLIENT_BEGINNING:
    case BAG_CLIENT_SENDING:
        return passed_ms >= clients->limits.request_timeout_ms;
    case BAG_CLIENT_READING:
        return passed_ms >= clients->limits.reply_timeout_ms;
    default:
        return false;
    }
}

/* A client that has left before its request was complete. The library does not always see that:
 * where the end comes together with bytes, it waits for more. */
static bool has_left(const struct bag_client *client)
{
    return client->stage <= BAG_CLIENT_SENDING && !bag_client_is_connected(client);
}

static void end(struct bag_clients *clients, struct bag_client *client)
{
    bag_client_enter(clients, client, BAG_CLIENT_CUT_OFF);
    shutdown(client->fd, SHUT_RDWR);
}

/* Ends a connection. One that is at its request is told why, if it can be. */
static void cut_off(struct bag_clients *clients, struct bag_client *client)
{
    struct bag_http_reply reply;
    if (client->stage == BAG_CLIENT_SENDING) {
        bag_http_reply_error(&reply, BAG_ERROR_TIMEOUT,
                             "the request took longer than %d s (request_timeout_s)",
                             (int)(clients->limits.request_timeout_ms / 1000));
        bag_http_answer_raw(client->fd, &reply);
        free(reply.body);
    }
    end(clients, client);
}

static void on_timer(uv_timer_t *timer)
{
    struct bag_clients *clients = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    for (struct bag_client *client = clients->first; client; client = client->next) {
        if (has_left(client))
            end(clients, client);
        else if (is_late(clients, client, now_ms))
            cut_off(clients, client);
    }
}

static bool has_bytes(const struct bag_client *client)
{
    char byte;
    return recv(client->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void bag_clients_close_idle(struct bag_clients *clients, uint64_t since_ms, uint64_t idle_ms)
{
    uint64_t now_ms = uv_now(clients->timer.loop);
    for (struct bag_client *client = clients->first; client; client = client->next) {
        uint64_t last_ms = client->since_ms > since_ms ? client->since_ms : since_ms;
        if (client->stage == BAG_CLIENT_IDLE && now_ms >= last_ms + idle_ms &&
            !has_begun(client, now_ms - client->since_ms) && !has_bytes(client))
            end(clients, client);
    }
}

void bag_clients_init(struct bag_clients *clients, uv_loop_t *loop,
                      const struct bag_client_limits *limits)
{
    *clients = (struct bag_clients){.limits = *limits};
    uv_timer_init(loop, &clients->timer);
    clients->timer.data = clients;
}

void bag_clients_stop(struct bag_clients *clients)
{
    uv_close((uv_handle_t *)&clients->timer, NULL);
}

/* ---- libmicrohttpd's callbacks --------------------------------------------------------------- */

static struct bag_client *add(struct bag_clients *clients, int fd)
{
    struct bag_client *client = calloc(1, sizeof *client);
    if (!client)
        return NULL;
    client->fd = fd;
    client->surplus = atomic_fetch_add(clients->limits.total, 1) >= clients->limits.connections;
    client->next = clients->first;
    if (client->next)
        client->next->previous = client;
    clients->first = client;
    if (clients->count++ == 0)
        uv_timer_start(&clients->timer, on_timer, LOOK_MS, LOOK_MS);
    bag_client_enter(clients, client, BAG_CLIENT_IDLE);
    return client;
}

static void drop(struct bag_clients *clients, struct bag_client *client)
{
    if (client->next)
        client->next->previous = client->previous;
    if (client->previous)
        client->previous->next = client->next;
    else
        clients->first = client->next;
    clients->ended = true;
    atomic_fetch_sub(clients->limits.total, 1);
    if (--clients->count == 0)
        uv_timer_stop(&clients->timer);
    free(client);
}

void bag_clients_on_connection(void *context, struct MHD_Connection *connection, void **client,
                               enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        *client =
            add(context,
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
    else if (*client)
        drop(context, *client);
}

void *bag_clients_on_target(void *context, const char *target, struct MHD_Connection *connection)
{
    struct bag_client *client =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (!client)
        return NULL;
    client->target_end = target + strlen(target);
    client->target_fault = bag_guard_target(target);
    if (client->stage == BAG_CLIENT_IDLE)
        bag_client_enter(context, client, BAG_CLIENT_SENDING);
    else if (client->stage == BAG_CLIENT_BEGINNING)
        client->stage = BAG_CLIENT_SENDING;
    return client;
}
