/* A table whose parts other servers have: what is known of it here, in place of its rows.
 *
 * Made and freed by the thread that changes the tables; read by all. */
#ifndef BAG_TABLES_REMOTE_H
#define BAG_TABLES_REMOTE_H

#include "kernels/part.h"
#include "load.h"
#include "server/shards/shards.h"

/* One version of it. struct bag_table_memory says of the whole table how many rows there are, of
 * what. */
struct bag_remote {
    struct bag_part part; /* how it is divided, into num_shards; its index is not used */
    size_t num_shards;    /* at least 1; shard i has part i */
    bool is_keyed;
    bool skips_absent;             /* rows of shards that are away count as missing */
    char *model;                   /* its name on the shards; owned */
    char *version;                 /* on all of them; owned */
    size_t *addresses;             /* of part i the place among the group's addresses; owned */
    struct bag_shard_group *group; /* held */
    struct bag_shard_table table;  /* as the shards say */
};

/* The address of a shard, as it is configured. */
static inline const char *bag_remote_address(const struct bag_remote *remote, size_t shard)
{
    return remote->group->members[remote->addresses[shard]].host->address.text;
}

/* Whether keys, not rows, are asked for. */
static inline bool bag_table_takes_keys(const struct bag_table_memory *memory)
{
    return memory->remote ? memory->remote->is_keyed : bag_table_is_keyed(memory);
}

/* What the shards have in one of their versions, for a model that is configured so. The group is
 * held. NULL without memory. */
struct bag_remote *bag_remote_make(struct bag_shard_group *group,
                                   const struct bag_shard_version *version);

/* NULL without memory. */
struct bag_remote *bag_remote_copy(const struct bag_remote *remote);

/* Takes in what tells one from another. */
uint64_t bag_remote_hash(uint64_t hash, const struct bag_remote *remote);

/* NULL is ignored. */
void bag_remote_free(struct bag_remote *remote);

#endif
