/* What the shards of a group say -> the versions that all of them have, as parts of one table; see
 * shards.h. All under the registry's lock. */
#include "shards.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is known of one version while it is put together. */
struct meeting {
    const struct bag_shard_group *group;
    uint64_t number;
    size_t *members;                      /* of part i; SIZE_MAX: not found yet */
    const struct bag_shard_member *first; /* that all others are to agree with */
    size_t first_version;                 /* its place among what that one said */
    char why[512];
};

static const char *name_of(const struct bag_shard_member *member)
{
    return member->host->address.text;
}

static bool disagree(struct meeting *meeting, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool disagree(struct meeting *meeting, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(meeting->why, sizeof meeting->why, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- one version ----------------------------------------------------------------------------- */

static size_t find_version(const struct bag_shard_said *said, uint64_t number)
{
    size_t i = 0;
    while (i < said->versions.count && said->versions.numbers[i] != number)
        i++;
    return i;
}

/* X(what differs, how it is shown, of a table) */
#define FACTS(X)                                                                   \
    X("parts", "%s", bag_part_way_names[table->part.by])                           \
    X("number of parts", "%" PRIu32, table->part.of)                               \
    X("rows", "%" PRId64, table->shape[0])                                         \
    X("elements of a row", "%" PRIu64, table->row_elements)                        \
    X("datatype", "%s", bag_dtypes[table->dtype].name)                             \
    X("row format", "%s", bag_row_format_names[table->row_format])                 \
    X("keys", "%s", table->is_keyed ? bag_dtypes[table->keys_dtype].name : "none") \
    X("output_datatype", "%s", bag_dtypes[table->output_dtype].name)               \
    X("digest of the files", BAG_DIGEST_PRINT, table->digest)

/* The i-th fact of a table as text; its name; NULL behind the last one. */
static const char *fact_of(const struct bag_shard_table *table, size_t i, char *text, size_t room)
{
    size_t at = 0;
#define BAG_X(name, format, value)           \
    if (at++ == i) {                         \
        snprintf(text, room, format, value); \
        return name;                         \
    }
    FACTS(BAG_X)
#undef BAG_X
    return NULL;
}

static bool check_same(struct meeting *meeting, const struct bag_shard_member *member, size_t i)
{
    const struct bag_shard_said *first = &meeting->first->said, *said = &member->said;
    const struct bag_shard_table *table = &first->tables[meeting->first_version];
    char one[64], other[64];
    const char *name;
    for (size_t fact = 0; (name = fact_of(table, fact, one, sizeof one)); fact++) {
        fact_of(&said->tables[i], fact, other, sizeof other);
        if (strcmp(one, other) != 0)
            return disagree(meeting, "%s and %s have no parts of one table: %s %s and %s",
                            name_of(meeting->first), name_of(member), name, one, other);
    }
    if (table->rank != said->tables[i].rank ||
        memcmp(table->shape, said->tables[i].shape, table->rank * sizeof *table->shape) != 0)
        return disagree(meeting, "%s and %s have rows of other shapes", name_of(meeting->first),
                        name_of(member));
    if (bag_model_config_hash(&first->configs[meeting->first_version]) !=
        bag_model_config_hash(&said->configs[i]))
        return disagree(meeting, "%s and %s pool by other rules", name_of(meeting->first),
                        name_of(member));
    return true;
}

/* Puts a member to its part. */
static bool place(struct meeting *meeting, size_t m)
{
    const struct bag_shard_member *member = &meeting->group->members[m];
    size_t i = find_version(&member->said, meeting->number);
    const struct bag_shard_table *table = &member->said.tables[i];
    if (member->said.reasons[i][0])
        return disagree(meeting, "%s: %s", name_of(member), member->said.reasons[i]);
    if (!meeting->first) {
        meeting->first = member;
        meeting->first_version = i;
        if (table->part.of > meeting->group->num_members)
            return disagree(meeting,
                            "the table has %" PRIu32 " parts, as %s says, and %zu "
                            "address%s here: parts are missing",
                            table->part.of, name_of(member), meeting->group->num_members,
                            meeting->group->num_members == 1 ? " is" : "es are");
    }
    if (!check_same(meeting, member, i))
        return false;
    size_t *slot = &meeting->members[table->part.index];
    if (*slot != SIZE_MAX)
        return disagree(meeting, "%s and %s both have part %" PRIu32 " of %" PRIu32,
                        name_of(&meeting->group->members[*slot]), name_of(member),
                        table->part.index, table->part.of);
    *slot = m;
    return true;
}

/* Members that have not answered yet have what is left, in their order. */
static bool place_unknown(struct meeting *meeting)
{
    const struct bag_shard_group *group = meeting->group;
    uint32_t of = meeting->first->said.tables[meeting->first_version].part.of, part = 0;
    for (size_t m = 0; m < group->num_members; m++) {
        if (group->members[m].said.is_known)
            continue;
        while (part < of && meeting->members[part] != SIZE_MAX)
            part++;
        if (part < of)
            meeting->members[part] = m;
    }
    for (part = 0; part < of; part++)
        if (meeting->members[part] == SIZE_MAX)
            return disagree(meeting, "part %" PRIu32 " of %" PRIu32 " is at no address", part, of);
    return true;
}

static bool meet(struct meeting *meeting)
{
    const struct bag_shard_group *group = meeting->group;
    for (size_t i = 0; i < group->num_members; i++)
        meeting->members[i] = SIZE_MAX;
    for (size_t m = 0; m < group->num_members; m++)
        if (group->members[m].said.is_known && !place(meeting, m))
            return false;
    return place_unknown(meeting);
}

/* False without memory. */
static bool make_version(const struct bag_shard_group *group, uint64_t number,
                         struct bag_shard_version *version)
{
    char text[24];
    struct meeting meeting = {.group = group,
                              .number = number,
                              .members = calloc(group->num_members, sizeof *meeting.members)};
    memset(version, 0, sizeof *version);
    version->number = number;
    if (!(version->members = meeting.members))
        return false;
    if (!meet(&meeting)) {
        bag_model_config_copy(&version->config, &group->config);
        return (version->reason = strdup(meeting.why)) && version->config.name;
    }
    const struct bag_shard_said *said = &meeting.first->said;
    version->table = said->tables[meeting.first_version];
    if (!bag_model_config_copy(&version->config, &said->configs[meeting.first_version]))
        return false;
    snprintf(text, sizeof text, "%" PRIu64, number);
    free(version->config.version);
    return (version->config.version = strdup(text)) != NULL;
}

/* ---- all versions ---------------------------------------------------------------------------- */

static bool all_have(const struct bag_shard_group *group, uint64_t number)
{
    for (size_t m = 0; m < group->num_members; m++) {
        const struct bag_shard_said *said = &group->members[m].said;
        if (said->is_known && find_version(said, number) == said->versions.count)
            return false;
    }
    return true;
}

/* "http://a has 1, 2", and so on, as far as there is room. */
static void list_versions(const struct bag_shard_group *group, char *text, size_t room)
{
    size_t used = 0;
    for (size_t m = 0; m < group->num_members && used < room; m++) {
        const struct bag_shard_said *said = &group->members[m].said;
        used += (size_t)snprintf(text + used, room - used, "%s%s has ", m ? "; " : "",
                                 name_of(&group->members[m]));
        for (size_t i = 0; i < said->versions.count && used < room; i++)
            used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64, i ? ", " : "",
                                     said->versions.numbers[i]);
        if (said->versions.count == 0 && used < room)
            used += (size_t)snprintf(text + used, room - used, "none");
    }
}

/* Why nothing can be served yet; false: it can. One is enough that is known where `ready` is any.
 */
static bool lacks_shards(const struct bag_shard_group *group, char *reason, size_t room,
                         const struct bag_shard_member **known)
{
    const struct bag_shard_member *unknown = NULL;
    *known = NULL;
    for (size_t m = 0; m < group->num_members; m++) {
        const struct bag_shard_member *member = &group->members[m];
        if (!member->said.is_known)
            unknown = unknown ? unknown : member;
        else
            *known = *known ? *known : member;
    }
    if (!unknown || (*known && group->config.shard_ready == BAG_SHARD_READY_ANY))
        return false;
    struct bag_problem told;
    bag_problem_set(&told, BAG_ERROR_NOT_READY, "its shards have not been asked yet");
    if (unknown->why[0])
        bag_problem_set(&told, BAG_ERROR_NOT_READY, "shard %s: %s", name_of(unknown), unknown->why);
    snprintf(reason, room, "%s", told.text);
    return true;
}

/* False without memory. */
static bool make_versions(const struct bag_shard_group *group, const struct bag_shard_member *known,
                          struct bag_shard_version *versions, size_t *count)
{
    bool ok = true;
    for (size_t i = 0; ok && i < known->said.versions.count; i++) {
        uint64_t number = known->said.versions.numbers[i];
        if (all_have(group, number))
            ok = make_version(group, number, &versions[(*count)++]);
    }
    return ok;
}

static uint64_t hash_versions(const struct bag_shard_group *group)
{
    uint64_t hash = bag_hash_bytes(BAG_HASH_START, group->reason, strlen(group->reason) + 1);
    for (size_t i = 0; i < group->num_versions; i++) {
        const struct bag_shard_version *version = &group->versions[i];
        uint64_t config = bag_model_config_hash(&version->config);
        hash = bag_hash_bytes(hash, &version->number, sizeof version->number);
        hash = bag_hash_bytes(hash, &version->table, sizeof version->table);
        hash = bag_hash_bytes(hash, &config, sizeof config);
        hash = bag_hash_bytes(hash, version->members, group->num_members * sizeof(size_t));
        if (version->reason)
            hash = bag_hash_bytes(hash, version->reason, strlen(version->reason));
    }
    return hash;
}

static bool is_any_good(const struct bag_shard_version *versions, size_t count)
{
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found |= !versions[i].reason;
    return found;
}

bool bag_shard_group_agree(struct bag_shard_group *group)
{
    const struct bag_shard_member *known;
    char reason[sizeof group->reason] = "";
    struct bag_shard_version *versions = calloc(BAG_SHARD_MAX_VERSIONS, sizeof *versions);
    size_t count = 0;
    if (versions && !lacks_shards(group, reason, sizeof reason, &known)) {
        if (!make_versions(group, known, versions, &count)) {
            bag_shard_versions_free(versions, count);
            return false;
        }
        if (count > 0 && !is_any_good(versions, count))
            snprintf(reason, sizeof reason, "%s", versions[count - 1].reason);
        if (count == 0) {
            int used = snprintf(reason, sizeof reason, "no version is ready on all shards: ");
            list_versions(group, reason + used, sizeof reason - (size_t)used);
        }
    }
    if (!versions)
        return false;
    bag_shard_versions_free(group->versions, group->num_versions);
    group->versions = versions;
    group->num_versions = count;
    memcpy(group->reason, reason, sizeof reason);
    group->said_hash = hash_versions(group);
    return true;
}
