/* The yardstick: libmicrohttpd on a libuv loop, with nothing behind it.
 *
 *   bare REPLY_BYTES HEADER_BYTES POOL_BYTES METADATA
 *
 * It reads and ignores the body of each request, and answers REPLY_BYTES fixed bytes with the
 * headers that bagserve sends. If HEADER_BYTES is above 0, the headers are those of a binary reply
 * whose JSON has that length. If it is 0, they are those of a JSON reply. So both move the same
 * bytes through the same libraries, and what bagserve takes beyond this is what bagserve costs.
 * POOL_BYTES is the library's memory for one connection, which it clears after each request. GET is
 * answered with METADATA, for the client. Prints its port; ends on SIGTERM and SIGINT.
 *
 * Uses nothing of the project. */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* Rounds of MHD_run before the loop gets its turn again. */
#define MAX_ROUNDS 16

struct bare {
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_idle_t more;
    uv_signal_t terminate, interrupt;
    char *reply;
    size_t reply_bytes;
    char *metadata;
    char header_bytes[24]; /* length of the JSON header; empty: the whole reply is JSON */
};

/* ---- requests -------------------------------------------------------------------------------- */

/* A response of its own for every request: no server that computes its answers can do with less. */
static enum MHD_Result answer(struct bare *bare, struct MHD_Connection *connection, bool is_get)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        is_get ? strlen(bare->metadata) : bare->reply_bytes, is_get ? bare->metadata : bare->reply,
        MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    if (bare->header_bytes[0]) {
        MHD_add_response_header(response, "Content-Type", "application/octet-stream");
        MHD_add_response_header(response, "Inference-Header-Content-Length", bare->header_bytes);
    } else {
        MHD_add_response_header(response, "Content-Type", "application/json");
    }
    enum MHD_Result result = MHD_queue_response(connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

/* Called with the head, with each piece of the body, and at its end. */
static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **state)
{
    struct bare *bare = context;
    (void)url, (void)version, (void)upload;
    if (!*state) {
        *state = bare;
        return MHD_YES;
    }
    if (*upload_bytes) {
        *upload_bytes = 0;
        return MHD_YES;
    }
    return answer(bare, connection, method[0] == 'G');
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void on_more(uv_idle_t *more);

/* Where the library has more to do than its rounds, the loop comes back without waiting. It has no
 * timeouts of its own here. */
static void run(struct bare *bare)
{
    MHD_UNSIGNED_LONG_LONG timeout_ms = 0;
    bool more = true;
    for (int round = 0; round < MAX_ROUNDS && more; round++) {
        MHD_run(bare->daemon);
        more = MHD_get_timeout(bare->daemon, &timeout_ms) == MHD_YES && timeout_ms == 0;
    }
    if (more)
        uv_idle_start(&bare->more, on_more);
    else
        uv_idle_stop(&bare->more);
}

static void on_more(uv_idle_t *more)
{
    run(more->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    run(poll->data);
}

static void on_signal(uv_signal_t *signal, int number)
{
    (void)number;
    uv_stop(signal->loop);
}

static bool start(struct bare *bare, size_t pool_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bare->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, bare, MHD_OPTION_SOCK_ADDR,
                         &address, MHD_OPTION_CONNECTION_LIMIT, 20000u,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool_bytes, MHD_OPTION_END);
    return bare->daemon != NULL;
}

static void serve(struct bare *bare, uv_loop_t *loop)
{
    uv_idle_init(loop, &bare->more);
    uv_signal_init(loop, &bare->terminate);
    uv_signal_init(loop, &bare->interrupt);
    uv_poll_init(loop, &bare->poll,
                 MHD_get_daemon_info(bare->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
    bare->more.data = bare->poll.data = bare;
    uv_signal_start(&bare->terminate, on_signal, SIGTERM);
    uv_signal_start(&bare->interrupt, on_signal, SIGINT);
    uv_poll_start(&bare->poll, UV_READABLE, on_poll);
    printf("%u\n", MHD_get_daemon_info(bare->daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    uv_run(loop, UV_RUN_DEFAULT);
}

int main(int count, char **arguments)
{
    static struct bare bare;
    if (count != 5) {
        fprintf(stderr, "Usage: %s REPLY_BYTES HEADER_BYTES POOL_BYTES METADATA\n", arguments[0]);
        return 2;
    }
    bare.reply_bytes = strtoull(arguments[1], NULL, 10);
    if (strtoull(arguments[2], NULL, 10))
        snprintf(bare.header_bytes, sizeof bare.header_bytes, "%s", arguments[2]);
    bare.reply = calloc(1, bare.reply_bytes + 1);
    bare.metadata = arguments[4];
    if (!bare.reply || !start(&bare, strtoull(arguments[3], NULL, 10))) {
        fprintf(stderr, "%s: cannot start\n", arguments[0]);
        return 1;
    }
    serve(&bare, uv_default_loop());
    MHD_stop_daemon(bare.daemon);
    free(bare.reply);
    return 0;
}
