/* One keep-alive HTTP/1.1 connection that never waits: a request out, its reply in.
 *
 * Replies must have a Content-Length; their bodies are read and dropped. */
#ifndef BENCH_CONNECTION_H
#define BENCH_CONNECTION_H

#include "query.h"

#define BENCH_HEAD_BYTES 1024

enum bench_outcome {
    BENCH_PENDING, /* nothing to do until the socket is ready again */
    BENCH_REPLIED, /* `status` is the answer's; the connection is free */
    BENCH_LOST,    /* closed or reset with an answer due; the connection is closed */
    BENCH_GARBLED, /* not an HTTP reply that this understands; the connection is closed */
    BENCH_ENDED,   /* closed by the server while nothing was due */
};

/* Set `fd` to -1 before anything else. */
struct bench_connection {
    int fd;
    bool busy;    /* an answer is due */
    bool writing; /* the socket is watched for room, too */
    const struct bench_request *request;
    size_t sent;

    char head[BENCH_HEAD_BYTES + 1]; /* of the reply, as far as it came */
    size_t head_bytes;
    bool in_body;
    bool closes; /* the server will close after this reply */
    size_t body_left;
    int status;

    /* The caller's. */
    uint64_t due_ns, sent_ns;
    unsigned phase;
    struct bench_connection *next_idle;
};

/* Begins to connect to the port on loopback; epoll reports on the connection with its address. */
bool bench_connection_open(struct bench_connection *connection, int epoll_fd, unsigned port);

void bench_connection_close(struct bench_connection *connection);

/* Begins a request on an open, free connection; its bytes must stay until the reply has come. */
enum bench_outcome bench_connection_begin(struct bench_connection *connection, int epoll_fd,
                                          const struct bench_request *request);

/* Goes on after epoll reported `events`. */
enum bench_outcome bench_connection_move(struct bench_connection *connection, int epoll_fd,
                                         uint32_t events);

#endif
