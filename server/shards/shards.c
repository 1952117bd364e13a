/* The registry of groups; see shards.h. */
#include "shards.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <uv.h>

/* ---- groups ---------------------------------------------------------------------------------- */

/* Returns the host of an address, made if it is new. Returns NULL without memory. */
static struct bag_shard_host *find_host(struct bag_shards *shards,
                                        const struct bag_shard_address *address)
{
    struct bag_shard_host **link = &shards->hosts;
    for (; *link; link = &(*link)->next) {
        if (strcmp((*link)->address.text, address->text) == 0)
            return *link;
    }
    struct bag_shard_host *host = calloc(1, sizeof *host);
    const char *at = address->text;
    struct bag_problem ignored;
    if (!host)
        return NULL;
    bag_shards_next(&at, &host->address, &ignored); /* once more: it points into its own text */
    host->number = shards->num_hosts++;
    return *link = host;
}

/* Adds a member for each address of the configuration, which was checked before. Returns false
 * without memory. */
static bool add_members(struct bag_shards *shards, struct bag_shard_group *group)
{
    struct bag_shard_address address;
    struct bag_problem ignored;
    size_t count = 0;
    for (const char *at = group->config.path; bag_shards_next(&at, &address, &ignored);)
        count++;
    group->members = calloc(count, sizeof *group->members);
    for (const char *at = group->config.path;
         group->members && bag_shards_next(&at, &address, &ignored);) {
        struct bag_shard_host *host = find_host(shards, &address);
        if (!host)
            return false;
        group->members[group->num_members++].host = host;
    }
    return group->members != NULL;
}

/* Makes a group and starts to poll its shards. Under the lock. Returns NULL and sets *problem
 * without memory or a thread. */
static struct bag_shard_group *make_group(struct bag_shards *shards,
                                          const struct bag_model_config *model,
                                          struct bag_problem *problem)
{
    struct bag_shard_group *group = calloc(1, sizeof *group);
    if (!group || !bag_model_config_copy(&group->config, model)) {
        free(group);
        bag_problem_no_memory(problem);
        return NULL;
    }
    group->shards = shards;
    group->holders = 1;
    group->hash = bag_model_config_hash(model);
    bool ok = (add_members(shards, group) && bag_shard_group_find_versions(group)) ||
              bag_problem_no_memory(problem);
    shards->num_members += group->num_members;
    if (!ok || !bag_shards_start_threads(shards, problem)) {
        shards->num_members -= group->num_members;
        bag_shard_group_release(group);
        return NULL;
    }
    *shards->last = group;
    shards->last = &group->next;
    bag_monitor_wake_all(&shards->monitor);
    return group;
}

/* Returns the first group of a list with this configuration and name, or NULL. */
static struct bag_shard_group *look_up(struct bag_shard_group *group, uint64_t hash,
                                       const char *name)
{
    while (group && (group->hash != hash || strcmp(group->config.name, name) != 0))
        group = group->next;
    return group;
}

struct bag_shard_group *bag_shards_find(struct bag_shards *shards,
                                        const struct bag_model_config *model,
                                        struct bag_problem *problem)
{
    uint64_t hash = bag_model_config_hash(model);
    bag_monitor_lock(&shards->monitor);
    /* The catalog looks up all groups, in the order in which they were made. The search therefore
     * starts after the last one that was found. */
    struct bag_shard_group *group =
        look_up(shards->found ? shards->found->next : NULL, hash, model->name);
    if (!group)
        group = look_up(shards->groups, hash, model->name);
    if (!group)
        group = make_group(shards, model, problem);
    if (group) {
        shards->found = group;
        group->is_wanted = true;
        bag_shard_group_retain(group);
    }
    bag_monitor_unlock(&shards->monitor);
    return group;
}

void bag_shards_forget(struct bag_shards *shards)
{
    struct bag_shard_group **link = &shards->groups, *group;
    bag_monitor_lock(&shards->monitor);
    shards->found = NULL;
    while ((group = *link)) {
        if (group->is_wanted) {
            group->is_wanted = false;
            link = &group->next;
            continue;
        }
        *link = group->next;
        shards->num_members -= group->num_members;
        bag_shard_group_release(group);
    }
    shards->last = link;
    bag_monitor_unlock(&shards->monitor);
}

/* ---- readiness ------------------------------------------------------------------------------- */

/* Returns whether a group is not ready, and prints the reason. Under the lock. */
static bool is_unavailable(const struct bag_shard_group *group, char *text, size_t room)
{
    const struct bag_shard_member *first = NULL;
    size_t count = 0, most = 0;
    for (size_t i = 0; i < group->num_members; i++) {
        if (!bag_shard_member_unavailable(&group->members[i]))
            continue;
        first = first ? first : &group->members[i];
        count++;
    }
    if (group->config.shard_ready == BAG_SHARD_READY_ANY)
        most = group->num_members - 1;
    if (group->reason[0])
        snprintf(text, room, "%s", group->reason);
    else if (count > most)
        snprintf(text, room, "shard %s is unavailable: %s", first->host->address.text,
                 first->why[0] ? first->why : bag_shard_member_unavailable(first));
    return group->reason[0] || count > most;
}

bool bag_shard_group_is_unavailable(struct bag_shard_group *group, char *text, size_t room)
{
    bag_monitor_lock(&group->shards->monitor);
    bool found = is_unavailable(group, text, room);
    bag_monitor_unlock(&group->shards->monitor);
    return found;
}

bool bag_shards_find_unavailable(struct bag_shards *shards,
                                 bool (*counts)(const void *context, const char *name),
                                 const void *context, char *text, size_t room)
{
    bool found = false;
    bag_monitor_lock(&shards->monitor);
    for (const struct bag_shard_group *group = shards->groups; group && !found;
         group = group->next) {
        int used = snprintf(text, room, "model '%s': ", group->config.name);
        found = counts(context, group->config.name) &&
                is_unavailable(group, text + used, room - (size_t)used);
    }
    bag_monitor_unlock(&shards->monitor);
    return found;
}

/* ---- endpoints ------------------------------------------------------------------------------- */

bool bag_shard_host_endpoint(struct bag_shards *shards, struct bag_shard_host *host,
                             struct bag_address *endpoint)
{
    bag_monitor_lock(&shards->monitor);
    bool found = host->num_endpoints > 0;
    if (found)
        *endpoint = host->endpoints[host->turn++ % host->num_endpoints];
    bag_monitor_unlock(&shards->monitor);
    return found;
}

/* ---- the registry ---------------------------------------------------------------------------- */

struct bag_shards *bag_shards_make(void)
{
    struct bag_shards *shards = calloc(1, sizeof *shards);
    uint64_t number;
    if (!shards || !bag_monitor_init(&shards->monitor)) {
        free(shards);
        return NULL;
    }
    shards->last = &shards->groups;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number)
        number = (uint64_t)getpid() << 32 ^ uv_hrtime();
    snprintf(shards->instance, sizeof shards->instance, "%016" PRIx64, number);
    return shards;
}

void bag_shards_free(struct bag_shards *shards)
{
    if (!shards)
        return;
    bag_monitor_lock(&shards->monitor);
    bool has_ended = shards->num_ended == shards->num_threads;
    bag_monitor_unlock(&shards->monitor);
    if (!has_ended)
        return;
    bag_shards_forget(shards); /* marks the remaining groups as unwanted, */
    bag_shards_forget(shards); /* and releases them */
    for (struct bag_shard_host *host = shards->hosts, *next; host; host = next) {
        next = host->next;
        free(host);
    }
    bag_monitor_free(&shards->monitor);
    free(shards);
}
