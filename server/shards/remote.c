/* Tables whose parts other servers have; see remote.h. */
#include "remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bag_remote_free(struct bag_remote *remote)
{
    if (!remote)
        return;
    bag_shard_group_release(remote->group);
    free(remote->model);
    free(remote->version);
    free(remote->addresses);
    free(remote);
}

/* Returns a copy that owns its strings and addresses and holds the group. Returns NULL without
 * memory.
 */
static struct bag_remote *copy(const struct bag_remote *members)
{
    struct bag_remote *remote = malloc(sizeof *remote);
    if (!remote)
        return NULL;
    *remote = *members;
    bag_shard_group_retain(remote->group);
    remote->model = strdup(members->model);
    remote->version = strdup(members->version);
    remote->addresses = calloc(members->num_shards, sizeof *remote->addresses);
    if (remote->addresses)
        memcpy(remote->addresses, members->addresses,
               members->num_shards * sizeof *members->addresses);
    if (remote->model && remote->version && remote->addresses)
        return remote;
    bag_remote_free(remote);
    return NULL;
}

struct bag_remote *bag_remote_copy(const struct bag_remote *remote)
{
    return copy(remote);
}

struct bag_remote *bag_remote_make(struct bag_shard_group *group,
                                   const struct bag_shard_version *version)
{
    char name[129];
    snprintf(name, sizeof name, "%s", bag_shards_model(&version->config));
    return copy(
        &(struct bag_remote){.part = version->table.part,
                             .num_shards = version->table.part.of,
                             .is_keyed = version->table.is_keyed,
                             .skips_absent = version->config.absent == BAG_SHARD_ABSENT_SKIP,
                             .model = name,
                             .version = version->config.version,
                             .addresses = version->members,
                             .group = group,
                             .table = version->table});
}

/* Adds the members to the hash one by one, because the padding between them has any value. */
static uint64_t hash_table(uint64_t hash, const struct bag_shard_table *table)
{
    const struct bag_shard_rules *rules = &table->rules;
    const uint64_t members[] = {table->part.by,
                                table->part.index,
                                table->part.of,
                                table->is_keyed,
                                table->dtype,
                                table->keys_dtype,
                                table->output_dtype,
                                table->row_format,
                                table->rank,
                                table->row_elements,
                                table->digest,
                                rules->missing,
                                rules->weighted_mean,
                                rules->prune_invalid,
                                rules->has_default_index,
                                (uint64_t)rules->default_index,
                                (uint64_t)rules->hash_rows};
    hash = bag_hash_bytes(hash, members, sizeof members);
    return bag_hash_bytes(hash, table->shape, table->rank * sizeof *table->shape);
}

uint64_t bag_remote_hash(uint64_t hash, const struct bag_remote *remote)
{
    hash = bag_hash_bytes(hash, remote->model, strlen(remote->model) + 1);
    hash = bag_hash_bytes(hash, remote->version, strlen(remote->version) + 1);
    hash = hash_table(hash, &remote->table);
    return bag_hash_bytes(hash, remote->addresses, remote->num_shards * sizeof *remote->addresses);
}
