/* Declarations for the files of the simulated machine: machine.c has descriptors, and sockets.c has
 * sockets. */
#pragma once

#include "sim.h"

#include <stdint.h>
#include <sys/epoll.h>

/* Simulated descriptors begin here. */
#define FIRST_FD 200
#define MAX_FDS  400

#define BACKLOG 128

enum kind { PLAIN, LISTENER, CONNECTION, EPOLL, EVENT };

struct bytes {
    char *at;
    size_t begin, count, room;
};

struct watched {
    int fd;
    struct file *file; /* NULL: free */
    uint32_t events;
    bool pending;
    epoll_data_t data;
};

/* An open file, which several descriptors may name. */
struct file {
    enum kind kind;
    unsigned references;
    int flags;
    /* LISTENER */
    int port;
    bool listens, rejects;
    struct sim_socket **waiting;
    size_t num_waiting;
    /* EPOLL */
    struct watched *watched;
    size_t num_watched;
    /* EVENT */
    uint64_t count;
    /* CONNECTION */
    struct sim_socket *socket;
};

struct sim_socket {
    struct file *file; /* the server's; NULL before it is accepted, and after it is closed */
    uint32_t address;
    uint16_t port;
    struct bytes in, out;  /* to the server; to the client */
    size_t window;         /* maximum bytes in `out` */
    uint64_t arrives_ns;   /* when what the client sent last comes */
    uint64_t shows_ns;     /* when what the server sent last comes */
    uint64_t last_data_ns; /* when the last bytes came */
    bool is_full;          /* for a while, whatever `window` says */
    bool ended;            /* the client's FIN has come */
    bool reset;            /* by the client */
    bool server_ended;     /* by FIN; `server_reset`: by a reset */
    bool server_reset, reads_ended;
    size_t arrived; /* bytes that have come before the server closed */
    bool client_gone;
    void (*on_event)(void *context);
    void *context;
};

struct machine {
    struct file *files[MAX_FDS]; /* by descriptor, from FIRST_FD on */
    struct file *epolls[16];
    size_t num_epolls;
    struct file *listeners[8];
    size_t num_listeners;
    uint16_t next_port;
};
extern struct machine machine;

/* The file that a descriptor names; NULL: it is the real machine's, or nobody's. */
struct file *file_of(int fd);

struct file *make_file(enum kind kind);

/* The lowest descriptor that is free; -1 with errno. */
int give_fd(struct file *file);

/* Sets errno; -1. */
int fail(int error);

/* Returns how many bytes a socket accepts at once. */
size_t room_of(const struct sim_socket *socket);

/* Something about the file has changed: who waits for it looks again. */
void changed(const struct file *file);

/* The server has closed its last descriptor of the socket. */
void close_socket(struct sim_socket *socket);
