/* A whole server under a seeded simulation: its threads, time, sockets and signals.
 *
 * The server's own code and libmicrohttpd run unchanged. The test program defines the functions
 * that they call for threads, waiting, time and sockets. That works because the linker and the
 * dynamic linker prefer its symbols to those of libuv and libc. Everything runs on one thread of
 * the system, so that a seed decides all that happens, and repeats it.
 *
 *   threads.c   threads as fibers, virtual time, events
 *   calls.c     locks, conditions, clocks
 *   loop.c      libuv's loops
 *   machine.c   descriptors, epoll, eventfd; sockets.c   sockets
 *   clients.c   clients; requests.c   their requests; replies.c   the expected replies
 *   tables.c    the tables on the disk
 *   simulate.c  the server, its options, schedules */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

/* Functions that take the place of a library's, by the dynamic linker, and by --wrap: those have no
 * declaration. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define SIM_PUBLIC __attribute__((visibility("default")))

/* ---- threads.c ------------------------------------------------------------------------------- */

struct sim {
    uint64_t seed;
    uint64_t now_ns;      /* since the machine started */
    uint64_t trace;       /* a hash of all that happened */
    uint64_t steps;       /* turns of the scheduler */
    uint64_t switches_in; /* one in so many calls lets other threads run */
    uint64_t slow_in;     /* one in so many of those takes long */
    bool shows;           /* prints what happens */
};
extern struct sim sim;

/* Ends the process: prints what is wrong, and the command that repeats it. */
__attribute__((noreturn, format(printf, 1, 2))) void sim_fail(const char *format, ...);

#define sim_require(condition, ...) \
    do {                            \
        if (!(condition))           \
            sim_fail(__VA_ARGS__);  \
    } while (0)

/* Numbers that the seed decides: any, one below the limit, and true once in `count` times. */
uint64_t sim_random(void);
uint64_t sim_below(uint64_t limit);
bool sim_one_in(uint64_t count);

/* Adds what happened to the trace. */
void sim_note(const char *what, uint64_t a, uint64_t b);
void sim_note_bytes(const void *bytes, size_t count);

/* A block that is freed when the schedule ends. */
void *sim_alloc(size_t bytes);

/* Runs `run` as the first thread until it and all others have ended. */
void sim_run_threads(void (*run)(void *context), void *context);

/* The calling thread's number; one that is no thread's in an event. */
size_t sim_thread(void);

/* Starts a thread, and waits for its end. */
size_t sim_thread_start(void *(*run)(void *context), void *context);
void sim_thread_join(size_t number);

/* Other threads and events may have their turn here. */
void sim_pause(void);

/* The calling thread sleeps until it is woken or the time comes (UINT64_MAX: never); whether it was
 * woken. */
bool sim_wait(const void *on, uint64_t until_ns);
void sim_wake_all(const void *on);
void sim_wake_one(const void *on); /* any */

/* The process has ended itself: its threads are gone, and what is under way comes to its end. */
void sim_end_threads(void);

/* Calls `fire` at that time, on no thread. */
void sim_at(uint64_t when_ns, void (*fire)(void *context), void *context);

/* ---- loop.c ---------------------------------------------------------------------------------- */

/* A signal comes for the server. */
void sim_signal(int number);

/* Something may have become readable: every loop that waits checks what it waits for. */
void sim_loops_wake(void);

/* ---- machine.c, sockets.c -------------------------------------------------------------------- */

/* The client's side of a connection. */
struct sim_socket;

/* Starts a connection from that address to a port. Returns NULL if no socket listens there. Sets
 * *dropped if the connection attempt gets no answer. `on_event` is called, as an event, when there
 * may be something to read. */
struct sim_socket *sim_connect(int port, uint32_t address, void (*on_event)(void *context),
                               void *context, bool *dropped);

/* Sends after a delay; what is sent comes in its order. */
void sim_client_send(struct sim_socket *socket, const void *bytes, size_t count);

/* Closes after what was sent: by FIN, or by a reset. */
void sim_client_finish(struct sim_socket *socket);
void sim_client_reset(struct sim_socket *socket);

/* Reads what has come: -1 nothing yet, 0 the end, -2 the server has reset the connection. */
ssize_t sim_client_read(struct sim_socket *socket, void *bytes, size_t count);

/* Returns whether the server has closed its side. */
bool sim_has_ended(const struct sim_socket *socket);

/* Returns whether the server had closed its side when the byte after the first `before` bytes
 * arrived, or whether no such byte has arrived. */
bool sim_closed_before(const struct sim_socket *socket, size_t before);

/* Returns whether a descriptor can be read, or false if it is the real machine's or not open. */
bool sim_is_readable(int fd);

/* Closes all descriptors, as a kernel does when the process has ended itself. */
void sim_network_close(void);

/* Begins and ends a schedule; the end checks that no descriptor is left. */
void sim_network_begin(void);
void sim_network_end(void);

/* ---- tables.c -------------------------------------------------------------------------------- */

/* Makes a folder of tables the current one, and removes it. */
void sim_tables_write(void);
void sim_tables_remove(void);

/* Begins to publish versions; removes all that were published. */
void sim_tables_publish(void);
void sim_tables_forget_published(void);

void sim_empty_folder(const char *path);

/* ---- clients.c ------------------------------------------------------------------------------- */

/* Behaviour of the server that clients may meet, set by the schedule. */
struct sim_story {
    bool limits;        /* the server has limits that reject requests */
    bool controls;      /* models are loaded and unloaded */
    bool polls;         /* versions are published */
    bool hurries;       /* the signal may come while the first tables are loaded */
    bool updates;       /* rows change */
    bool proxy;         /* connections begin with a header of the PROXY protocol */
    uint64_t signal_ns; /* when SIGTERM came; UINT64_MAX: not yet */
    unsigned drain_delay_s;
    unsigned idle_timeout_s;
    size_t clients;
};
extern struct sim_story story;

struct sim_counters {
    uint64_t asked, answered, rejected, aborted, changes, updates;
};
extern struct sim_counters counters;

#define PORT       8000
#define ADMIN_PORT 8001
#define TOKEN      "admin-0123456789abcdef"

/* The tables: see tables.c. */
#define ROWS     16
#define KEYS     24 /* keys that the keyed table may have: as many as it has rows at first */
#define COLUMNS  4
#define VERSIONS 4

/* The last published version, for a server that polls every POLL_S seconds. */
#define MAX_VERSION 8
#define POLL_S      1

void sim_clients_begin(void);

/* Returns whether the server has ended itself (simulate.c). */
bool sim_has_stopped(void);
__attribute__((noreturn)) void sim_on_exit(int code);

/* Called once each: the server is ready; all clients have ended. */
void sim_on_ready(void);
void sim_on_clients_done(void);
