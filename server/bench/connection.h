/* One keep-alive HTTP/1.1 connection that never blocks: it sends a request and reads its reply.
 *
 * The owner waits with epoll and calls bag_bench_connection_move() for each event. The outcome says
 * what the connection did: it needs another event, has a reply, lost its request, or was closed
 * while it was idle. The owner measures times and decides about the next request.
 *
 * Bodies of replies are read and dropped. Only the beginning of an error's body is kept. */
#pragma once

#include "proto/http_client.h"
#include "server/system/sockets.h"

/* The maximum length of an error that is kept. */
#define BAG_BENCH_ERROR_BYTES 512

/* The bytes of a request, and the work that it asks for. */
struct bag_bench_request {
    char *bytes; /* owned */
    size_t count;
    uint64_t bags, rows;
    double gathered_bytes; /* bytes of its rows, from the model's metadata */
};

enum bag_bench_outcome {
    BAG_BENCH_PENDING, /* nothing to do until the socket is ready again */
    BAG_BENCH_REPLIED, /* `reply` is the head of the reply; the connection is free */
    BAG_BENCH_LOST,    /* the request has no reply, for the reason in `error`; the connection is
                          closed */
    BAG_BENCH_ENDED,   /* closed by the server while no reply was expected */
};

/* The owner sets `fd` to -1 first. */
struct bag_bench_connection {
    int fd;
    bool busy;      /* a reply is expected */
    bool writing;   /* epoll reports when the socket can be written, too */
    bool connected; /* bytes were received */
    const struct bag_bench_request *request;
    size_t sent; /* bytes of the request that were sent */

    char head[BAG_REPLY_HEAD_BYTES]; /* received part of the reply's head */
    size_t head_bytes;
    bool in_body;
    struct bag_reply_head reply;
    uint64_t body_left;                /* bytes of the body that have not arrived */
    char error[BAG_BENCH_ERROR_BYTES]; /* beginning of the body of an error, or the reason for
                                          which there is no reply */
    size_t error_bytes;

    /* Members of the owner. */
    uint64_t due_ns, sent_ns; /* on the clock of the owner */
    unsigned step;
    struct bag_bench_connection *next_idle;
};

/* Starts to connect. epoll reports events with the address of the connection. Returns false and
 * sets connection->error if that fails at once. */
bool bag_bench_connection_open(struct bag_bench_connection *connection, int epoll_fd,
                               const struct bag_address *address);

/* Closes the socket, which epoll then forgets. */
void bag_bench_connection_close(struct bag_bench_connection *connection);

/* Starts a request on an open, free connection. The bytes must stay until the reply is here. */
enum bag_bench_outcome bag_bench_connection_begin(struct bag_bench_connection *connection,
                                                  int epoll_fd,
                                                  const struct bag_bench_request *request);

/* Sends and receives after epoll reported `events`. */
enum bag_bench_outcome bag_bench_connection_move(struct bag_bench_connection *connection,
                                                 int epoll_fd, uint32_t events);
