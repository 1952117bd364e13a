/* Declarations for the files of the clients: requests.c makes requests, replies.c checks replies,
 * and clients.c sends the former and receives the latter. */
#pragma once

#include "sim.h"

#define MAX_BAGS    8
#define MAX_IDS     4096
#define MAX_CHANGES 64
#define MAX_UPDATES 64

/* The tables, by their place in model_names, and the collection over the first two. Rows of U and K
 * change; K has keys. */
enum { A, B, C, U, K, TABLES, BOTH = TABLES, MODELS };
extern const char *const model_names[MODELS];

/* POLLED: it is done at that time, unless a signal comes first. */
enum outcome { PENDING, DONE, UNKNOWN, POLLED };

/* A change of the default version of a table; version 0: it is unloaded. */
struct change {
    unsigned version;
    uint64_t asked_ns, done_ns;
    enum outcome outcome;
};

/* State of a row after some updates: the number of the last one that changed it, or one of these
 * values. */
enum { AS_LOADED = 0, ABSENT = -1 };

/* The updates of a table. */
struct stream {
    uint64_t asked, done;
    bool in_doubt;                   /* the one after `done` was sent, and no reply has come */
    int last[MAX_UPDATES + 1][KEYS]; /* by how many were applied */
};

/* The changes and updates that were requested so far. */
struct history {
    struct change changes[TABLES][MAX_CHANGES];
    size_t num_changes[TABLES];
    struct stream streams[TABLES];
    bool ready; /* the server has said so */
};
extern struct history history;

enum role { PROBE, READER, CONTROLLER, UPDATER };
/* RESETS, FINISHES: it goes before the reply is there; STALLS: it does not send all of its request;
 * IGNORES: it does not read. The server ends the last two. */
enum manner { PATIENT, RESETS, FINISHES, STALLS, IGNORES };

struct feature {
    size_t table, bags, ids;
    uint16_t *id;
    uint16_t offset[MAX_BAGS + 1];
};

struct text {
    char *at;
    size_t count, room;
};

void begin_history(void);

struct client {
    enum role role;
    uint32_t address;
    int port;
    unsigned left;   /* requests */
    unsigned number; /* number of the request, which decides its deadline */
    unsigned tries;
    struct sim_socket *socket;
    size_t sent_before;   /* on this connection, with earlier requests */
    bool outlasts_idle;   /* the connection was idle for about idle_timeout_s or longer before the
                             request */
    size_t on_connection; /* requests so far */
    bool busy;            /* the client waits for a reply */
    enum manner manner;
    struct text request, reply;
    size_t sent;
    size_t reads;                  /* bytes at a time */
    uint64_t asked_ns, first_done; /* the updates that were done when it asked */
    bool breaks_http;              /* is answered where the socket takes all of it at once */
    const char *coding;            /* coding of the request's body; NULL: none */
    int status;                 /* expected status; 0: that of rows, or of a change or an update */
    size_t model, num_features; /* an updater's model is always the same */
    struct feature features[2];
    struct change *changes[3];
    size_t num_changes;
};

/* Appends bytes. Pointers into the text stay valid until it grows. */
void add_text(struct text *text, const void *bytes, size_t count);

/* Returns an element of a table after `updates` updates, or 0 if the row is absent. */
float element(size_t table, unsigned version, uint64_t updates, size_t row, size_t column);

/* How the keyed table calls a row. */
int64_t key_of(size_t row);

static inline bool is_updated(size_t table)
{
    return table == U || table == K;
}

static inline size_t rows_of(size_t table)
{
    return table == K ? KEYS : ROWS;
}

/* Makes the client's next request. */
void make_request(struct client *client);

struct reply {
    int status;
    const char *body;
    size_t body_bytes, json_bytes; /* json_bytes: of a body that has binary tensors */
    bool closes, has_retry_after;
};

/* False: it is not complete. */
bool parse_reply(const struct text *text, struct reply *reply);

/* Ends the process where the reply is not what it must be. */
void check_reply(struct client *client, const struct reply *reply);

/* Stores the outcome of the changes that the client requested. */
void end_changes(struct client *client, enum outcome outcome);

bool is_signalled(void);
