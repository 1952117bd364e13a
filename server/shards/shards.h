/* Shards: the servers that have the parts of tables, what each of them has, and whether it answers.
 *
 * A table that is too large for one machine is divided into parts, and each part is loaded by a
 * server of its own. A coordinator is a server whose model has `shards` in place of a table: the
 * addresses of these servers. This folder learns by itself what the shards have, so the operator
 * configures addresses only. Requests are sent to the shards by server/coordinator.
 *
 * Objects. A group is the shards of one such model. Its members are the shards, in the order of the
 * configuration. Several groups may name the same address, which is one host for all of them. Hosts
 * are never freed before the registry, because requests and statistics of any loop refer to them. A
 * member's report is what its shard answered about the model: the versions, the table of each, and
 * the pooling rules. A version of the group is one that all members have as parts of one table.
 *
 * Life of a group. bag_shards_find() makes it when a configuration has its model, and retains it
 * for the caller. Threads of this folder (threads.c) poll each member about once a second, over a
 * blocking socket (poll.c). A poll first asks for the generation of the shard: a number that
 * changes with its models. If the generation is new, and once a minute in either case, the poll
 * also asks for the whole report. So does every poll while a version of the group cannot be served,
 * because a report may have been damaged on its way. After every new report versions.c finds the
 * versions of the group. If these change, `on_change` is called, and the catalog (server/models)
 * lists them as it lists the versions in a folder. When the configuration no longer has the model,
 * bag_shards_forget() stops the polls. The last caller that releases the group frees it.
 *
 * Agreement. The members of a version must have different parts of the same table: the same shape,
 * type, row format, digest of files and rules. Otherwise the version has a reason why it cannot be
 * served. Merging rows of two tables would give numbers that look right. If `ready` is any, members
 * that were polled and have not answered take the parts that nobody has claimed, and requests find
 * out later.
 *
 * Availability. A host is unavailable if it refuses connections or has not answered several polls.
 * Loops clear this mark when they get a reply, and set it when a connection is refused twice. A
 * member reports no model if its host answers, but not about the model. The marks are set by
 * bag_shard_host_set_unavailable() and by threads.c. Their only reader is
 * bag_shard_member_unavailable(), which says why a request need not be sent.
 *
 * Threads. The state of a group changes under the registry's lock, and other threads take copies.
 * Polls run without the lock, and only the thread that polls a member changes it meanwhile. Atomic
 * members may be used by any thread. */
#pragma once

#include "config/shards.h"
#include "proto/v2_shard.h"
#include "server/system/monitor.h"
#include "server/system/sockets.h"

#include <stdatomic.h>
#include <string.h>

/* ---- hosts ----------------------------------------------------------------------------------- */

/* Maximum number of addresses of one name that are kept. */
#define BAG_SHARD_MAX_ENDPOINTS 8

/* A configured address, shared by all groups that name it. Lives as long as the registry. */
struct bag_shard_host {
    struct bag_shard_address address; /* constant */
    size_t number;                    /* constant; position among all hosts, from 0 */
    atomic_bool is_unavailable;       /* refuses connections, or has not answered lately */
    struct bag_shard_host *next;

    /* Under the registry's lock. */
    struct bag_address
        endpoints[BAG_SHARD_MAX_ENDPOINTS]; /* addresses of the name when it last resolved */
    size_t num_endpoints, turn;             /* turn: number of times that one was handed out */
    bool logged_unavailable;                /* state that was last logged */
    struct bag_shard_generation generation; /* last reported one; it is the same for all models */
    bool is_confirming; /* a thread asks whether its generation is still the same */
};

/* ---- outcomes -------------------------------------------------------------------------------- */

/* Outcomes of requests to a shard. X(OUTCOME, "label") */
#define BAG_SHARD_OUTCOMES(X)                                                             \
    X(OK, "ok")                     /* a good reply */                                    \
    X(REFUSED, "refused")           /* nobody listens, or it is unavailable */            \
    X(TIMEOUT, "timeout")           /* no reply in time */                                \
    X(CLOSED, "closed")             /* the connection ended before the reply did */       \
    X(INVALID, "invalid")           /* no HTTP, or not the reply to the request */        \
    X(REJECTED, "rejected")         /* the shard says that it cannot answer now */        \
    X(MISMATCH, "mismatch")         /* the server has another part, or no such version */ \
    X(NO_RESOURCES, "no_resources") /* this server lacked descriptors or memory */        \
    X(HEDGED, "hedged")             /* sent a second time, as the first was slow */
enum bag_shard_outcome {
#define BAG_X(id, label) BAG_SHARD_##id,
    BAG_SHARD_OUTCOMES(BAG_X)
#undef BAG_X
        BAG_SHARD_OUTCOME_COUNT
};

/* Recent times of replies: a histogram from 1 us on, with four counters for each power of two. All
 * threads write it. When there are many times, all counters are halved, so that recent ones count
 * more; a time that another thread adds meanwhile may be lost. */
#define BAG_SHARD_TIMES 96
struct bag_shard_latency {
    atomic_uint counts[BAG_SHARD_TIMES], total;
};
/* Adds the time of a reply. Any thread. */
void bag_shard_latency_add(struct bag_shard_latency *latency, uint64_t ns);

/* Returns a time that 95 of 100 replies do not exceed: the upper bound of a counter. Returns
 * UINT64_MAX if too few were counted, or the time is beyond the last counter. Any thread. */
uint64_t bag_shard_latency_p95_ns(const struct bag_shard_latency *latency);

/* ---- groups ---------------------------------------------------------------------------------- */

/* The answers of one shard about a model. */
struct bag_shard_report {
    bool is_known; /* the shard has answered */
    bool is_same;  /* the generation is the known one: the members after `generation` are not set */
    struct bag_shard_generation generation;
    struct bag_shard_versions versions;
    /* For each version: */
    struct bag_shard_table tables[BAG_SHARD_MAX_VERSIONS];
    struct bag_model_config
        configs[BAG_SHARD_MAX_VERSIONS];       /* owned; the group's, with the shard's rules */
    char reasons[BAG_SHARD_MAX_VERSIONS][512]; /* why it cannot be served; "": it can */
};

struct bag_shard_member {
    struct bag_shard_host *host;
    atomic_ullong outcomes[BAG_SHARD_OUTCOME_COUNT];
    struct bag_shard_latency latency;
    struct bag_shard_report report; /* the last good one */
    atomic_bool reports_no_model;   /* the host answers, but not about the model */
    char why[512];                  /* reason of the last failed poll; "": it did not fail */
    unsigned failures;              /* consecutive failed polls */
    uint64_t due_ns;   /* time of the next poll, on uv_hrtime's clock; UINT64_MAX: while a poll runs
                          that nobody has asked to repeat */
    uint64_t whole_ns; /* time from which a poll asks for everything, whatever the generation */
    bool is_being_polled; /* by a thread, which alone changes the member meanwhile */
};

/* A version of the table that all shards have, or the reason why it cannot be served. */
struct bag_shard_version {
    uint64_t number;
    char *reason; /* owned; NULL: it can be served */
    struct bag_shard_table table;
    struct bag_model_config config; /* owned; of the model in this version */
    size_t *members;                /* owned; index of the member that has part i */
};

/* The maximum length of a token, with its NUL. */
#define BAG_SHARD_TOKEN_BYTES 1024

struct bag_shard_group {
    struct bag_shards *shards;      /* borrowed */
    atomic_size_t holders;          /* references; the last one frees the group */
    struct bag_model_config config; /* owned; of the coordinator's model */
    uint64_t hash;                  /* hash of `config` */
    size_t num_members;             /* constant once the group is found */
    struct bag_shard_group *next;

    /* Under the registry's lock. */
    bool is_wanted; /* bag_shards_find has found it since the last bag_shards_forget */
    struct bag_shard_member *members;   /* owned; in the order of the configuration */
    struct bag_shard_version *versions; /* owned; ascending */
    size_t num_versions;
    char token[BAG_SHARD_TOKEN_BYTES]; /* sent to shards; "": none */
    char reason[512];                  /* why no version can be served; "": one can */
    uint64_t versions_hash;            /* hash of `versions` and `reason` */
};

/* The registry of all groups. One for each process. */
struct bag_shards {
    char instance[BAG_INSTANCE_BYTES]; /* identifies this process: it must not be its own shard */
    /* Called on a thread of this folder, without the lock, after the versions of a group or its
     * reason have changed. Set before the first group is made. */
    void (*on_change)(void *context);
    void *context;

    struct bag_monitor monitor;   /* guards what follows */
    struct bag_shard_host *hosts; /* owned */
    size_t num_hosts;
    struct bag_shard_group *groups, **last; /* retained; in the order in which they were made */
    struct bag_shard_group *found;          /* the last one that was looked up; NULL: none */
    size_t num_members;                     /* number of members of all groups */
    uint64_t num_reports;                   /* complete reports so far */
    size_t num_threads, num_ended;
    bool is_started, stops;
};

/* Makes a registry without groups, and draws its instance. Returns NULL without memory. */
struct bag_shards *bag_shards_make(void);

/* Starts to poll shards: starts the threads, now and as groups are made. Returns false and sets
 * *problem if no thread can be started. */
bool bag_shards_start(struct bag_shards *shards, struct bag_problem *problem);

/* Ends the threads. Waits for polls that are running, for two seconds. A thread that has not ended
 * by then is left behind. */
void bag_shards_stop(struct bag_shards *shards);

/* Frees the registry, unless a thread was left behind. No other reference to a group may exist.
 * NULL is ignored. */
void bag_shards_free(struct bag_shards *shards);

/* Returns the group of a model with shards, retained for the caller. It is made if there is none;
 * from then on its shards are polled. Returns NULL and sets *problem without memory or a thread. */
struct bag_shard_group *bag_shards_find(struct bag_shards *shards,
                                        const struct bag_model_config *model,
                                        struct bag_problem *problem);

/* Stops polling the shards of groups that bag_shards_find has not found since the last call: the
 * configuration has them no longer. */
void bag_shards_forget(struct bag_shards *shards);

/* Retain and release a group. Any thread; no lock is needed. */
void bag_shard_group_retain(struct bag_shard_group *group);
void bag_shard_group_release(struct bag_shard_group *group);

/* Copies the group's versions, and the reason why none can be served ("": one can). Versions that
 * cannot be served are copied, too. Returns false without memory. Any thread. */
bool bag_shard_group_list(struct bag_shard_group *group, struct bag_shard_version **versions,
                          size_t *count, char reason[512]);
/* Frees copied versions. */
void bag_shard_versions_free(struct bag_shard_version *versions, size_t count);

/* Returns whether the group is not ready, by its `ready`, and prints the reason, which has no
 * secrets. Any thread. */
bool bag_shard_group_is_unavailable(struct bag_shard_group *group, char *text, size_t room);

/* Returns whether no version can be served. Any thread. */
bool bag_shard_group_lacks_versions(struct bag_shard_group *group);

/* Returns whether a group is not ready, and prints its model and the reason. Groups whose name
 * `counts` rejects are skipped. *text is undefined otherwise. Any thread. */
bool bag_shards_find_unavailable(struct bag_shards *shards,
                                 bool (*counts)(const void *context, const char *name),
                                 const void *context, char *text, size_t room);

/* Copies the token that the group's shards are sent; "": none. Any thread. */
void bag_shard_group_token(struct bag_shard_group *group, char token[BAG_SHARD_TOKEN_BYTES]);

/* Has all of the group's shards polled at once, for the whole report. Any thread. */
void bag_shard_group_poll(struct bag_shard_group *group);

/* Copies an endpoint of the host, the next one each time. Returns false if its name has not
 * resolved yet. A name that no longer resolves keeps its endpoints. Any thread. */
bool bag_shard_host_endpoint(struct bag_shards *shards, struct bag_shard_host *host,
                             struct bag_address *endpoint);

/* Marks a host as unavailable, or as available. Any thread. */
static inline void bag_shard_host_set_unavailable(struct bag_shard_host *host, bool is_unavailable)
{
    if (atomic_load_explicit(&host->is_unavailable, memory_order_relaxed) != is_unavailable)
        atomic_store_explicit(&host->is_unavailable, is_unavailable, memory_order_relaxed);
}

/* Returns why a member cannot be asked now; NULL: it can. The sentence continues "shard ADDRESS is
 * unavailable: ". Any thread. */
static inline const char *bag_shard_member_unavailable(const struct bag_shard_member *member)
{
    if (atomic_load_explicit(&member->host->is_unavailable, memory_order_relaxed))
        return "it does not answer";
    if (atomic_load_explicit(&member->reports_no_model, memory_order_relaxed))
        return "it did not report the model";
    return NULL;
}

/* ---- private to server/shards ---------------------------------------------------------------- */

/* How far a poll got. */
enum bag_shard_contact {
    BAG_SHARD_NOT_POLLED, /* this server lacks descriptors, memory or the token */
    BAG_SHARD_SILENT,     /* no reply, or none of HTTP */
    BAG_SHARD_NOBODY,     /* nobody listens, or the name does not resolve: unavailable at once */
    BAG_SHARD_ANSWERED    /* a reply, whatever it says */
};

/* Polls one shard of a group, and waits two seconds at most for each of its answers. Asks only for
 * the generation if that is `known` (NULL: none is). Returns false and sets *problem if the report
 * is not complete. *report must be freed in either case. Takes the lock to store the host's
 * endpoints and the group's token. */
bool bag_shard_poll(struct bag_shard_group *group, struct bag_shard_host *host,
                    const struct bag_shard_generation *known, struct bag_shard_report *report,
                    enum bag_shard_contact *contact, struct bag_problem *problem);

/* Returns whether two generations are the same. A generation of 0 equals none: it is not known. */
static inline bool bag_shard_generation_equal(const struct bag_shard_generation *one,
                                              const struct bag_shard_generation *other)
{
    return one->generation > 0 && one->generation == other->generation &&
           memcmp(one->instance, other->instance, sizeof one->instance) == 0;
}

/* Frees the members that a report owns, and sets it to zeros. */
void bag_shard_report_free(struct bag_shard_report *report);

/* Starts as many threads as there are shards, up to a bound, if threads are started at all. Under
 * the lock. Returns false and sets *problem if there is none. */
bool bag_shards_start_threads(struct bag_shards *shards, struct bag_problem *problem);

/* Finds the versions that all shards of the group have, and sets `versions`, `reason` and
 * `versions_hash`. Under the lock. Returns false and leaves them without memory. */
bool bag_shard_group_find_versions(struct bag_shard_group *group);
