/* One group of shards: its references, and copies of what it has; see shards.h. */
#include "shards.h"

#include <stdlib.h>
#include <string.h>

/* ---- references ------------------------------------------------------------------------------ */

void bag_shard_group_retain(struct bag_shard_group *group)
{
    atomic_fetch_add(&group->holders, 1);
}

void bag_shard_group_release(struct bag_shard_group *group)
{
    if (atomic_fetch_sub(&group->holders, 1) > 1)
        return;
    for (size_t i = 0; i < group->num_members; i++)
        bag_shard_report_free(&group->members[i].report);
    bag_shard_versions_free(group->versions, group->num_versions);
    bag_model_config_free(&group->config);
    free(group->members);
    free(group);
}

/* ---- copies for others ----------------------------------------------------------------------- */

/* Copies a version with its texts and members. Returns false without memory. */
static bool copy_version(struct bag_shard_version *copy, const struct bag_shard_version *version,
                         size_t num_members)
{
    *copy = *version;
    copy->reason = version->reason ? strdup(version->reason) : NULL;
    copy->members = calloc(num_members, sizeof *copy->members);
    if (copy->members)
        memcpy(copy->members, version->members, num_members * sizeof *copy->members);
    if (!bag_model_config_copy(&copy->config, &version->config))
        return false;
    return copy->members && (copy->reason || !version->reason);
}

bool bag_shard_group_list(struct bag_shard_group *group, struct bag_shard_version **versions,
                          size_t *count, char reason[512])
{
    struct bag_monitor *monitor = &group->shards->monitor;
    bag_monitor_lock(monitor);
    *versions = calloc(group->num_versions + 1, sizeof **versions);
    bool ok = *versions != NULL;
    for (*count = 0; ok && *count < group->num_versions; ++*count)
        ok = copy_version(&(*versions)[*count], &group->versions[*count], group->num_members);
    memcpy(reason, group->reason, sizeof group->reason);
    bag_monitor_unlock(monitor);
    if (!ok)
        bag_shard_versions_free(*versions, *count);
    return ok;
}

bool bag_shard_group_lacks_versions(struct bag_shard_group *group)
{
    bag_monitor_lock(&group->shards->monitor);
    bool lacks = group->reason[0] != 0;
    bag_monitor_unlock(&group->shards->monitor);
    return lacks;
}

void bag_shard_group_token(struct bag_shard_group *group, char token[BAG_SHARD_TOKEN_BYTES])
{
    bag_monitor_lock(&group->shards->monitor);
    memcpy(token, group->token, sizeof group->token);
    bag_monitor_unlock(&group->shards->monitor);
}

void bag_shard_group_poll(struct bag_shard_group *group)
{
    struct bag_shards *shards = group->shards;
    bag_monitor_lock(&shards->monitor);
    for (size_t i = 0; i < group->num_members; i++)
        group->members[i].due_ns = group->members[i].whole_ns = 0;
    bag_monitor_wake_all(&shards->monitor);
    bag_monitor_unlock(&shards->monitor);
}
