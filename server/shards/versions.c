/* Finds the versions that all shards of a group have as parts of one table, from their reports; see
 * shards.h. All functions run under the registry's lock. */
#include "shards.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A version that may become one of the group. */
struct candidate {
    const struct bag_shard_group *group;
    uint64_t number;
    size_t *members; /* index of the member that has part i; SIZE_MAX: not found yet */
    const struct bag_shard_member *first; /* member that all others must agree with */
    size_t first_version;                 /* index of the version in its report */
    char why[512];
};

/* Returns the address of a member, for messages. */
static const char *name_of(const struct bag_shard_member *member)
{
    return member->host->address.text;
}

static bool disagree(struct candidate *candidate, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool disagree(struct candidate *candidate, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(candidate->why, sizeof candidate->why, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- one version ----------------------------------------------------------------------------- */

/* Returns the index of a version in a report, or its number of versions if it does not have it. */
static size_t find_version(const struct bag_shard_report *report, uint64_t number)
{
    size_t i = 0;
    while (i < report->versions.count && report->versions.numbers[i] != number)
        i++;
    return i;
}

/* The facts that must be equal in all parts. X(what differs, how it is printed, value of a table)
 */
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

/* Prints the i-th fact of a table. Returns its name; NULL after the last one. */
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

/* Checks that a member has a part of the same table as the first one, by facts, shape and rules.
 * `i` is the index of the version in its report. Returns false and sets candidate->why if not. */
static bool check_same(struct candidate *candidate, const struct bag_shard_member *member, size_t i)
{
    const struct bag_shard_report *first = &candidate->first->report, *report = &member->report;
    const struct bag_shard_table *table = &first->tables[candidate->first_version];
    char one[64], other[64];
    const char *name;
    for (size_t fact = 0; (name = fact_of(table, fact, one, sizeof one)); fact++) {
        fact_of(&report->tables[i], fact, other, sizeof other);
        if (strcmp(one, other) != 0)
            return disagree(candidate, "%s and %s have no parts of one table: %s %s and %s",
                            name_of(candidate->first), name_of(member), name, one, other);
    }
    if (table->rank != report->tables[i].rank ||
        memcmp(table->shape, report->tables[i].shape, table->rank * sizeof *table->shape) != 0)
        return disagree(candidate, "%s and %s have rows of other shapes", name_of(candidate->first),
                        name_of(member));
    if (bag_model_config_hash(&first->configs[candidate->first_version]) !=
        bag_model_config_hash(&report->configs[i]))
        return disagree(candidate, "%s and %s pool by other rules", name_of(candidate->first),
                        name_of(member));
    return true;
}

/* Assigns a member to its part. Returns false and sets candidate->why if it does not fit the
 * others. */
static bool place_member(struct candidate *candidate, size_t m)
{
    const struct bag_shard_member *member = &candidate->group->members[m];
    size_t i = find_version(&member->report, candidate->number);
    const struct bag_shard_table *table = &member->report.tables[i];
    if (member->report.reasons[i][0])
        return disagree(candidate, "%s: %s", name_of(member), member->report.reasons[i]);
    if (!candidate->first) {
        candidate->first = member;
        candidate->first_version = i;
        if (table->part.of > candidate->group->num_members)
            return disagree(candidate,
                            "the table has %" PRIu32 " parts, as %s says, and %zu "
                            "address%s here: parts are missing",
                            table->part.of, name_of(member), candidate->group->num_members,
                            candidate->group->num_members == 1 ? " is" : "es are");
    }
    if (!check_same(candidate, member, i))
        return false;
    size_t *slot = &candidate->members[table->part.index];
    if (*slot != SIZE_MAX)
        return disagree(candidate, "%s and %s both have part %" PRIu32 " of %" PRIu32,
                        name_of(&candidate->group->members[*slot]), name_of(member),
                        table->part.index, table->part.of);
    *slot = m;
    return true;
}

/* Assigns the remaining parts to members that have not answered yet, in their order. */
static bool place_unknown(struct candidate *candidate)
{
    const struct bag_shard_group *group = candidate->group;
    uint32_t of = candidate->first->report.tables[candidate->first_version].part.of, part = 0;
    for (size_t m = 0; m < group->num_members; m++) {
        if (group->members[m].report.is_known)
            continue;
        while (part < of && candidate->members[part] != SIZE_MAX)
            part++;
        if (part < of)
            candidate->members[part] = m;
    }
    for (part = 0; part < of; part++)
        if (candidate->members[part] == SIZE_MAX)
            return disagree(candidate, "part %" PRIu32 " of %" PRIu32 " is at no address", part,
                            of);
    return true;
}

/* Assigns all members to their parts. Returns false and sets candidate->why if they have no parts
 * of one table. */
static bool place_all(struct candidate *candidate)
{
    const struct bag_shard_group *group = candidate->group;
    for (size_t i = 0; i < group->num_members; i++)
        candidate->members[i] = SIZE_MAX;
    for (size_t m = 0; m < group->num_members; m++)
        if (group->members[m].report.is_known && !place_member(candidate, m))
            return false;
    return place_unknown(candidate);
}

/* Makes a version of the group: one that can be served, or one with the reason why it cannot.
 * Returns false without memory. */
static bool make_version(const struct bag_shard_group *group, uint64_t number,
                         struct bag_shard_version *version)
{
    char text[24];
    struct candidate candidate = {.group = group,
                                  .number = number,
                                  .members = calloc(group->num_members, sizeof *candidate.members)};
    memset(version, 0, sizeof *version);
    version->number = number;
    if (!(version->members = candidate.members))
        return false;
    if (!place_all(&candidate)) {
        bag_model_config_copy(&version->config, &group->config);
        return (version->reason = strdup(candidate.why)) && version->config.name;
    }
    const struct bag_shard_report *report = &candidate.first->report;
    version->table = report->tables[candidate.first_version];
    if (!bag_model_config_copy(&version->config, &report->configs[candidate.first_version]))
        return false;
    snprintf(text, sizeof text, "%" PRIu64, number);
    free(version->config.version);
    return (version->config.version = strdup(text)) != NULL;
}

/* ---- all versions ---------------------------------------------------------------------------- */

/* Returns whether all members that have answered have this version. */
static bool all_have(const struct bag_shard_group *group, uint64_t number)
{
    for (size_t m = 0; m < group->num_members; m++) {
        const struct bag_shard_report *report = &group->members[m].report;
        if (report->is_known && find_version(report, number) == report->versions.count)
            return false;
    }
    return true;
}

/* Appends "http://a has 1, 2", and so on, as far as there is room. */
static void list_versions(const struct bag_shard_group *group, char *text, size_t room)
{
    for (size_t m = 0; m < group->num_members; m++) {
        const struct bag_shard_report *report = &group->members[m].report;
        bag_text_add(text, room, "%s%s has ", m ? "; " : "", name_of(&group->members[m]));
        for (size_t i = 0; i < report->versions.count; i++)
            bag_text_add(text, room, "%s%" PRIu64, i ? ", " : "", report->versions.numbers[i]);
        if (report->versions.count == 0)
            bag_text_add(text, room, "none");
    }
}

/* Returns whether too few shards have answered for a version to be served, and prints the reason.
 * One suffices if `ready` is any and all were polled: a shard that was not is no unavailable one.
 * Sets *known to a member that has answered. */
static bool lacks_shards(const struct bag_shard_group *group, char *reason, size_t room,
                         const struct bag_shard_member **known)
{
    const struct bag_shard_member *unknown = NULL; /* not polled yet, if there is such a member */
    *known = NULL;
    for (size_t m = 0; m < group->num_members; m++) {
        const struct bag_shard_member *member = &group->members[m];
        if (member->report.is_known)
            *known = *known ? *known : member;
        else if (!unknown || (unknown->failures && !member->failures))
            unknown = member;
    }
    if (!unknown ||
        (*known && unknown->failures && group->config.shard_ready == BAG_SHARD_READY_ANY))
        return false;
    struct bag_problem told;
    bag_problem_set(&told, BAG_ERROR_NOT_READY, "its shards have not been asked yet");
    if (unknown->why[0])
        bag_problem_set(&told, BAG_ERROR_NOT_READY, "shard %s: %s", name_of(unknown), unknown->why);
    snprintf(reason, room, "%s", told.text);
    return true;
}

/* Makes the versions that all members have. `known` is any member that has answered. Returns false
 * without memory. */
static bool make_versions(const struct bag_shard_group *group, const struct bag_shard_member *known,
                          struct bag_shard_version *versions, size_t *count)
{
    bool ok = true;
    for (size_t i = 0; ok && i < known->report.versions.count; i++) {
        uint64_t number = known->report.versions.numbers[i];
        if (all_have(group, number))
            ok = make_version(group, number, &versions[(*count)++]);
    }
    return ok;
}

/* Returns whether one of the versions can be served. */
static bool is_any_good(const struct bag_shard_version *versions, size_t count)
{
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found |= !versions[i].reason;
    return found;
}

void bag_shard_versions_free(struct bag_shard_version *versions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(versions[i].reason);
        free(versions[i].members);
        bag_model_config_free(&versions[i].config);
    }
    free(versions);
}

bool bag_shard_group_find_versions(struct bag_shard_group *group)
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
            snprintf(reason, sizeof reason, "no version is ready on all shards: ");
            list_versions(group, reason, sizeof reason);
        }
    }
    if (!versions)
        return false;
    bag_shard_versions_free(group->versions, group->num_versions);
    group->versions = versions;
    group->num_versions = count;
    memcpy(group->reason, reason, sizeof reason);
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
    group->versions_hash = hash;
    return true;
}
