/* One keep-alive HTTP/1.1 connection that never waits: a request out, its reply in.
 *
 * Bodies of replies are read and dropped, but for the beginning of those that are errors. */
#ifndef BAG_BENCH_CONNECTION_H
#define BAG_BENCH_CONNECTION_H

#include "proto/http_client.h"

#include <sys/socket.h>

#define BAG_BENCH_ERROR_BYTES 512

/* Where the server listens. */
struct bag_bench_address {
    struct sockaddr_storage address;
    socklen_t bytes;
};

/* A request as it goes over the wire, and what it asks for. */
struct bag_bench_request {
    char *bytes; /* owned */
    size_t count;
    uint64_t bags, rows, gathered_bytes;
};

enum bag_bench_outcome {
    BAG_BENCH_PENDING, /* nothing to do until the socket is ready again */
    BAG_BENCH_REPLIED, /* `reply` is the answer's head; the connection is free */
    BAG_BENCH_LOST,    /* not connected, closed or reset with an answer due, or no reply of HTTP:
                          `error` says which; the connection is closed */
    BAG_BENCH_ENDED,   /* closed by the server while nothing was due */
};

/* Set `fd` to -1 before anything else. */
struct bag_bench_connection {
    int fd;
    bool busy;      /* an answer is due */
    bool writing;   /* the socket is watched for room, too */
    bool connected; /* something came over it */
    const struct bag_bench_request *request;
    size_t sent;

    char head[BAG_REPLY_HEAD_BYTES]; /* of the reply, as far as it came */
    size_t head_bytes;
    bool in_body;
    struct bag_reply_head reply;
    uint64_t body_left;
    char error[BAG_BENCH_ERROR_BYTES]; /* the beginning of a body other than a 200's, or why there
                                          is no reply */
    size_t error_bytes;

    /* The caller's. */
    uint64_t due_ns, sent_ns;
    unsigned step;
    struct bag_bench_connection *next_idle;
};

/* Begins to connect; epoll reports on the connection with its address. False where that failed at
 * once, as `error` says. */
bool bag_bench_connection_open(struct bag_bench_connection *connection, int epoll_fd,
                               const struct bag_bench_address *address);

void bag_bench_connection_close(struct bag_bench_connection *connection);

/* Begins a request on an open, free connection; its bytes must stay until the reply has come. */
enum bag_bench_outcome bag_bench_connection_begin(struct bag_bench_connection *connection,
                                                  int epoll_fd,
                                                  const struct bag_bench_request *request);

/* Goes on after epoll reported `events`. */
enum bag_bench_outcome bag_bench_connection_move(struct bag_bench_connection *connection,
                                                 int epoll_fd, uint32_t events);

#endif
