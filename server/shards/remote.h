/* A table whose parts other servers, its shards, have: what is known of it here instead of its
 * rows.
 *
 * Made and freed by the thread that changes the tables; read by any. */
#pragma once

#include "kernels/part.h"
#include "shards.h"

/* One version of the table. struct bag_table_memory has its shape and type. */
struct bag_remote {
    struct bag_part part; /* how it is divided, into num_shards parts; `index` is not used */
    size_t num_shards;    /* at least 1; shard i has part i */
    bool is_keyed;
    bool skips_absent;             /* rows of unavailable shards count as missing */
    char *model;                   /* name on the shards; owned */
    char *version;                 /* on all shards; owned */
    size_t *addresses;             /* index of each part's address in the group; owned */
    struct bag_shard_group *group; /* retained */
    struct bag_shard_table table;  /* description from the shards */
};

/* Returns the address of a shard, as it is configured. */
static inline const char *bag_remote_address(const struct bag_remote *remote, size_t shard)
{
    return remote->group->members[remote->addresses[shard]].host->address.text;
}

/* Makes what is known of a version that the shards of a group report. Retains the group. Returns
 * NULL without memory. */
struct bag_remote *bag_remote_make(struct bag_shard_group *group,
                                   const struct bag_shard_version *version);

/* Returns a copy, which retains the group, too. Returns NULL without memory. */
struct bag_remote *bag_remote_copy(const struct bag_remote *remote);

/* Adds what distinguishes one remote table from another to a hash. */
uint64_t bag_remote_hash(uint64_t hash, const struct bag_remote *remote);

/* Frees the description and releases the group. NULL is ignored. */
void bag_remote_free(struct bag_remote *remote);
