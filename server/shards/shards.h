/* The servers that have parts of tables (shards): what each has is asked once a second, and put
 * together to what all of a table's have.
 *
 * A group is the shards of one configured model. Threads of their own ask them, several at once,
 * with blocking sockets; names are resolved anew each time. What a group knows changes under the
 * registry's lock; others take copies. */
#ifndef BAG_SHARDS_H
#define BAG_SHARDS_H

#include "config/shards.h"
#include "proto/v2_shard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

/* ---- addresses ------------------------------------------------------------------------------- */

/* Most addresses of one name that are kept. */
#define BAG_SHARD_PLACES 8

struct bag_shard_place {
    struct sockaddr_storage address;
    socklen_t bytes;
};

/* An address as it is configured: one for all groups that name it. Lives as long as the registry.
 */
struct bag_shard_host {
    struct bag_shard_address address; /* never changes, as the number */
    size_t number;                    /* from 0, in the order in which they were named */
    atomic_bool is_away; /* it refused connections, or did not answer lately; any thread clears it
                            that had an answer */
    struct bag_shard_host *next;

    /* Under the registry's lock. */
    struct bag_shard_place places[BAG_SHARD_PLACES]; /* where its name leads */
    size_t num_places, turn;
    bool is_told_away;            /* as it was logged last */
    struct bag_shard_stamp stamp; /* as it said last, for whatever model it was asked */
    bool is_confirming;           /* a thread asks whether it has that still */
};

/* ---- calls ----------------------------------------------------------------------------------- */

/* What became of a call to a shard. X(OUTCOME, "label") */
#define BAG_SHARD_OUTCOMES(X)                                                       \
    X(OK, "ok")             /* it was answered well */                              \
    X(REFUSED, "refused")   /* nobody listens, or it is known to be away */         \
    X(LATE, "late")         /* no answer in time */                                 \
    X(CLOSED, "closed")     /* the connection ended before the answer did */        \
    X(WRONG, "wrong")       /* the answer is none, or another than was asked for */ \
    X(REJECTED, "rejected") /* the shard says that it cannot answer now */          \
    X(MISMATCH, "mismatch") /* it has another part, or no such version */           \
    X(LACKING, "lacking")   /* this server lacked descriptors or memory for it */   \
    X(HEDGED, "hedged")     /* asked a second time, as it was late */
enum bag_shard_outcome {
#define BAG_X(id, label) BAG_SHARD_##id,
    BAG_SHARD_OUTCOMES(BAG_X)
#undef BAG_X
        BAG_SHARD_OUTCOME_COUNT
};

/* How long answers took lately: of times that double, four each, from 1 us on. All threads write
 * it, and lose a count where two do at once. */
#define BAG_SHARD_TIMES 96
struct bag_shard_latency {
    atomic_uint counts[BAG_SHARD_TIMES], total;
};
void bag_shard_latency_add(struct bag_shard_latency *latency, uint64_t ns);

/* 95 of 100 took less; UINT64_MAX where there were few. */
uint64_t bag_shard_latency_p95_ns(const struct bag_shard_latency *latency);

/* ---- groups ---------------------------------------------------------------------------------- */

/* What one shard said when it was asked last. */
struct bag_shard_said {
    bool is_known; /* it has answered */
    bool is_same;  /* its models are those of the stamp that was known: nothing else was asked */
    struct bag_shard_stamp stamp;
    struct bag_shard_versions versions;
    struct bag_shard_table tables[BAG_SHARD_MAX_VERSIONS];   /* of these, and how each pools: */
    struct bag_model_config configs[BAG_SHARD_MAX_VERSIONS]; /* owned copies of the group's */
    char reasons[BAG_SHARD_MAX_VERSIONS][512]; /* why a version is no part; "": it is one */
};

struct bag_shard_member {
    struct bag_shard_host *host;
    atomic_ullong outcomes[BAG_SHARD_OUTCOME_COUNT]; /* any thread */
    struct bag_shard_latency latency;
    struct bag_shard_said said;
    atomic_bool is_useless; /* it answers, and has told nothing of the model lately; any thread */
    char why[512];          /* it could not be asked; "": it could */
    unsigned failures;      /* in a row */
    uint64_t due_ns;        /* when it is to be asked, */
    uint64_t whole_ns;   /* and when for all that it says, whether its stamp is the same or not */
    bool is_being_asked; /* by a thread, which alone changes it */
};

/* A version of the table, as all shards have it; or why it is none. */
struct bag_shard_version {
    uint64_t number;
    char *reason; /* owned; NULL: it can be served */
    struct bag_shard_table table;
    struct bag_model_config config; /* of the model in this version; owned */
    size_t *members; /* owned; of part i the place of its address, which is also that in the
                        configuration */
};

#define BAG_SHARD_TOKEN_BYTES 1024

struct bag_shard_group {
    struct bag_shards *shards;
    atomic_size_t holders;
    struct bag_model_config config; /* owned; of the front's model */
    uint64_t hash;                  /* of it */
    size_t num_members;
    struct bag_shard_group *next;

    /* Under the registry's lock. */
    bool is_wanted;                     /* by the configuration */
    struct bag_shard_member *members;   /* owned */
    struct bag_shard_version *versions; /* owned; ascending */
    size_t num_versions;
    char token[BAG_SHARD_TOKEN_BYTES]; /* that shards are sent; "": none */
    char reason[512];                  /* why there is no version; "": there is one */
    uint64_t said_hash; /* of versions and reason: others are told of where that is another */
};

/* The registry of all. One for each process. */
struct bag_shards {
    char instance[BAG_INSTANCE_BYTES]; /* of this process: a front that is its own shard has it */
    /* Told on a thread of the shards', without the lock, that some group has other versions or
     * another reason. Set before the first group. */
    void (*on_change)(void *context);
    void *context;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct bag_shard_host *hosts; /* owned */
    size_t num_hosts;
    struct bag_shard_group *groups, **last; /* held; in the order in which they were made */
    struct bag_shard_group *found;          /* of these, the last that was looked up; NULL: none */
    size_t num_members;                     /* of all groups */
    uint64_t num_asked;                     /* ever, for all that they say */
    size_t num_threads, num_ended;
    bool is_started, stops;
};

/* NULL without memory. */
struct bag_shards *bag_shards_make(void);

/* From here on shards are asked: starts the threads, now and as groups are made. */
bool bag_shards_start(struct bag_shards *shards, struct bag_problem *problem);

/* Ends the threads, within two seconds: one that is still resolving a name is left behind. */
void bag_shards_stop(struct bag_shards *shards);

/* Frees all, unless a thread was left behind, when nobody holds a group any more. NULL is ignored.
 */
void bag_shards_free(struct bag_shards *shards);

/* The group of a model of shards, made where there is none, held for the caller; from then on its
 * shards are asked. NULL with *problem without memory or a thread. */
struct bag_shard_group *bag_shards_find(struct bag_shards *shards,
                                        const struct bag_model_config *model,
                                        struct bag_problem *problem);

/* Asks no longer the shards of groups that the configuration does not have: those that
 * bag_shards_find has not found since the last call. */
void bag_shards_forget(struct bag_shards *shards);

void bag_shard_group_hold(struct bag_shard_group *group);
void bag_shard_group_drop(struct bag_shard_group *group);

/* Copies of the group's versions, and why there are none ("": there are some). False without
 * memory. */
bool bag_shard_group_list(struct bag_shard_group *group, struct bag_shard_version **versions,
                          size_t *count, char reason[512]);
void bag_shard_versions_free(struct bag_shard_version *versions, size_t count);

/* Why the group is not ready, as its `ready` says, for anybody to see; false: it is. Any thread. */
bool bag_shard_group_is_away(struct bag_shard_group *group, char *text, size_t room);

/* Whether there is no version that all have. Any thread. */
bool bag_shard_group_lacks_versions(struct bag_shard_group *group);

/* The same of any group whose model counts. */
bool bag_shards_find_away(struct bag_shards *shards,
                          bool (*counts)(const void *context, const char *name),
                          const void *context, char *text, size_t room);

/* The token that the group's shards are sent; "": none. Any thread. */
void bag_shard_group_token(struct bag_shard_group *group, char token[BAG_SHARD_TOKEN_BYTES]);

/* Has all of the group's shards asked at once. Any thread. */
void bag_shard_group_ask(struct bag_shard_group *group);

/* Where the host is to be reached, another of its places each time; false where its name leads
 * nowhere. Any thread. */
bool bag_shard_host_place(struct bag_shards *shards, struct bag_shard_host *host,
                          struct bag_shard_place *place);

/* ---- private to server/shards ---------------------------------------------------------------- */

/* How an address was found. */
enum bag_shard_contact {
    BAG_SHARD_UNASKED, /* this server lacks descriptors, memory or the token */
    BAG_SHARD_SILENT,  /* no answer, or none of HTTP */
    BAG_SHARD_NOBODY,  /* nobody listens, or its name leads nowhere: it is away at once */
    BAG_SHARD_ANSWERED /* whatever it was */
};

/* Asks one shard of a group for all that it says, within two seconds; where its stamp is the one
 * that is known (NULL: none is), for no more. False with why. What it `said` is to be freed in any
 * case. Changes the host's places, under the lock. */
bool bag_shard_ask(struct bag_shard_group *group, struct bag_shard_host *host,
                   const struct bag_shard_stamp *known, struct bag_shard_said *said,
                   enum bag_shard_contact *contact, struct bag_problem *problem);

static inline bool bag_shard_is_same(const struct bag_shard_stamp *one,
                                     const struct bag_shard_stamp *other)
{
    return one->generation > 0 && one->generation == other->generation &&
           memcmp(one->instance, other->instance, sizeof one->instance) == 0;
}
void bag_shard_said_free(struct bag_shard_said *said);

/* Starts as many threads as there are shards, up to a bound, once they are started at all. Under
 * the lock. False with *problem where there is none. */
bool bag_shards_start_threads(struct bag_shards *shards, struct bag_problem *problem);

/* What all shards of the group have: sets its versions and reason. Under the lock. Without memory
 * they stay: false. */
bool bag_shard_group_agree(struct bag_shard_group *group);

#endif
