/* The threads that poll the shards of all groups; see shards.h.
 *
 * Each thread takes the member whose poll is due first, and polls it without the lock. There is no
 * thread for each shard: thousands of shards are polled by a few threads. */
#include "shards.h"

#include "server/system/log.h"
#include "server/system/thread_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define SECOND_NS UINT64_C(1000000000)

/* Time after which a shard is asked for everything, although its generation is the same: there may
 * be several servers behind an address. It is spread, so that not all shards are asked at once. */
#define WHOLE_NS     (60 * SECOND_NS)
#define WHOLE_SPREAD 30

/* Interval of polls after one has failed. */
#define FAILED_NS (SECOND_NS / 4)

/* Maximum number of polls at the same time. */
#define MAX_THREADS 16

/* Number of consecutive failures after which a shard is unavailable. If it refuses connections, the
 * first one suffices. */
#define MAX_FAILURES 3

/* A member that a thread polls. */
struct query {
    struct bag_shard_group *group; /* retained */
    struct bag_shard_member *member;
};

/* Returns whether a member's report holds as long as its host reports the same generation. Reports
 * that leave a version unserved are asked for again: one of them may have been damaged. */
static bool is_current(const struct bag_shard_group *group, const struct bag_shard_member *member)
{
    for (size_t i = 0; i < group->num_versions; i++) {
        if (group->versions[i].reason)
            return false;
    }
    return bag_shard_generation_equal(&member->report.generation, &member->host->generation) &&
           member->failures == 0 && uv_hrtime() < member->whole_ns;
}

/* Finds the member whose poll is due next. Skips members that a thread polls already, and members
 * for which the poll of another one of their host may answer. Returns its time; UINT64_MAX: there
 * is none. */
static uint64_t find_due(const struct bag_shards *shards, struct query *query)
{
    uint64_t due_ns = UINT64_MAX;
    for (struct bag_shard_group *group = shards->groups; group; group = group->next) {
        for (size_t i = 0; i < group->num_members; i++) {
            struct bag_shard_member *member = &group->members[i];
            if (member->is_being_polled || member->due_ns >= due_ns ||
                (member->host->is_confirming && is_current(group, member)))
                continue;
            due_ns = member->due_ns;
            *query = (struct query){group, member};
        }
    }
    return due_ns;
}

/* Waits until a poll is due, marks its member and retains its group. Returns false if the threads
 * must end. */
static bool take_query(struct bag_shards *shards, struct query *query)
{
    while (!shards->stops) {
        uint64_t due_ns = find_due(shards, query);
        if (due_ns <= uv_hrtime()) {
            query->member->is_being_polled = true;
            query->member->due_ns = UINT64_MAX;
            bag_shard_group_retain(query->group);
            bag_monitor_wake(&shards->monitor);
            return true;
        }
        bag_monitor_wait(&shards->monitor, due_ns);
    }
    return false;
}

/* Marks the host of a member, and logs changes. */
static void set_unavailable(struct bag_shard_member *member, bool is_unavailable)
{
    struct bag_shard_host *host = member->host;
    bag_shard_host_set_unavailable(host, is_unavailable);
    if (host->logged_unavailable == is_unavailable)
        return;
    host->logged_unavailable = is_unavailable;
    if (is_unavailable)
        bag_log(BAG_LOG_LEVEL_WARNING, "shard unavailable",
                BAG_LOG_TEXT("shard", host->address.text), BAG_LOG_TEXT("reason", member->why));
    else
        bag_log(BAG_LOG_LEVEL_INFO, "shard available", BAG_LOG_TEXT("shard", host->address.text));
}

/* Stores the result of a poll. If the poll failed, the earlier report stays. If the member could
 * not be polled at all, its whole state stays. This server then lacks memory, descriptors or the
 * token, and the token may be that of this model alone. */
static void keep(const struct query *query, struct bag_shard_report *report,
                 enum bag_shard_contact contact, const struct bag_problem *why)
{
    struct bag_shard_member *member = query->member;
    member->is_being_polled = false;
    if (contact == BAG_SHARD_NOT_POLLED && member->report.is_known) {
        member->due_ns = uv_hrtime() + FAILED_NS;
        return;
    }
    member->failures = report->is_known ? 0 : member->failures + 1;
    snprintf(member->why, sizeof member->why, "%s", report->is_known ? "" : why->text);
    if (report->is_known)
        member->host->generation = report->generation;
    if (report->is_known && !report->is_same) {
        struct bag_shard_report before = member->report;
        member->report = *report;
        *report = before;
        member->whole_ns =
            uv_hrtime() + WHOLE_NS + query->group->shards->num_reports++ % WHOLE_SPREAD * SECOND_NS;
    }
    bool is_lasting =
        member->failures >= MAX_FAILURES || (member->failures && !member->report.is_known);
    if (contact == BAG_SHARD_ANSWERED)
        set_unavailable(member, false);
    else if (contact == BAG_SHARD_NOBODY || (is_lasting && contact == BAG_SHARD_SILENT))
        set_unavailable(member, true);
    /* Mark a member whose host answers, but not about this model, and log changes. */
    const struct bag_shard_group *group = query->group;
    bool reports_no_model =
        is_lasting && (contact == BAG_SHARD_ANSWERED || contact == BAG_SHARD_NOT_POLLED);
    if (atomic_exchange(&member->reports_no_model, reports_no_model) != reports_no_model &&
        reports_no_model)
        bag_log(BAG_LOG_LEVEL_WARNING, "shard reports no model",
                BAG_LOG_TEXT("shard", member->host->address.text),
                BAG_LOG_TEXT("model", group->config.name), BAG_LOG_TEXT("reason", member->why));
    /* A poll that was asked for meanwhile is due at once: this one may be older than the change. */
    if (member->due_ns == UINT64_MAX)
        member->due_ns = uv_hrtime() + (member->failures ? FAILED_NS : SECOND_NS);
}

/* Returns the path of a group's token, or "". */
static const char *token_file(const struct bag_shard_group *group)
{
    return group->config.shard_token_file ? group->config.shard_token_file : "";
}

/* Polls a member and stores the result. Called with the lock, which it releases for the poll and
 * for on_change. */
static void run_query(struct bag_shards *shards, const struct query *query)
{
    struct bag_shard_report *report = malloc(sizeof *report);
    struct bag_problem why;
    enum bag_shard_contact contact = BAG_SHARD_NOT_POLLED;
    const struct bag_shard_generation known = query->member->report.generation;
    const bool is_known = is_current(query->group, query->member);
    struct bag_shard_host *host = query->member->host;
    if (is_known) /* find_due takes care that no other thread does the same */
        host->is_confirming = true;
    bag_monitor_unlock(&shards->monitor);
    if (report)
        bag_shard_poll(query->group, host, is_known ? &known : NULL, report, &contact, &why);
    bag_monitor_lock(&shards->monitor);
    if (is_known)
        host->is_confirming = false;
    if (!report) {
        query->member->is_being_polled = false;
        query->member->due_ns = uv_hrtime() + SECOND_NS;
        return;
    }
    uint64_t hash = query->group->versions_hash;
    keep(query, report, contact, &why);
    if (report->is_same) {
        /* Postpone the polls of other groups' members of a host that has reported the known
         * generation. Their reports are still current if the groups use the same token. */
        const struct bag_shard_member *asked = query->member;
        for (struct bag_shard_group *group = shards->groups; group; group = group->next) {
            if (group == query->group || strcmp(token_file(group), token_file(query->group)) != 0)
                continue;
            for (size_t i = 0; i < group->num_members; i++) {
                struct bag_shard_member *member = &group->members[i];
                if (member->host != asked->host || member->is_being_polled ||
                    !is_current(group, member))
                    continue;
                memcpy(group->token, query->group->token, sizeof group->token);
                member->due_ns = asked->due_ns;
            }
        }
    } else if (!bag_shard_group_find_versions(query->group)) {
        query->member->whole_ns = 0;
    }
    bool changed = query->group->versions_hash != hash && !shards->stops;
    bag_monitor_unlock(&shards->monitor);
    bag_shard_report_free(report);
    free(report);
    if (changed)
        shards->on_change(shards->context);
    bag_monitor_lock(&shards->monitor);
}

/* Polls members until the threads must end. */
static void *run(void *context)
{
    struct bag_shards *shards = context;
    struct query query;
    bag_monitor_lock(&shards->monitor);
    while (take_query(shards, &query)) {
        run_query(shards, &query);
        bag_monitor_unlock(&shards->monitor);
        bag_shard_group_release(query.group);
        bag_monitor_lock(&shards->monitor);
    }
    shards->num_ended++;
    bag_monitor_wake_all(&shards->monitor);
    bag_monitor_unlock(&shards->monitor);
    return NULL;
}

bool bag_shards_start_threads(struct bag_shards *shards, struct bag_problem *problem)
{
    while (shards->is_started && shards->num_threads < MAX_THREADS &&
           shards->num_threads < shards->num_members) {
        pthread_t thread;
        int error = bag_thread_start(&thread, run, shards);
        if (error)
            return shards->num_threads > 0 ||
                   bag_problem_set(problem, BAG_ERROR_SYSTEM,
                                   "no thread can be started to poll shards: %s", strerror(error));
        pthread_detach(thread);
        shards->num_threads++;
    }
    return true;
}

bool bag_shards_start(struct bag_shards *shards, struct bag_problem *problem)
{
    bag_monitor_lock(&shards->monitor);
    shards->is_started = true;
    bool ok = bag_shards_start_threads(shards, problem);
    bag_monitor_unlock(&shards->monitor);
    return ok;
}

void bag_shards_stop(struct bag_shards *shards)
{
    uint64_t until_ns = uv_hrtime() + 2 * SECOND_NS;
    bag_monitor_lock(&shards->monitor);
    shards->stops = true;
    bag_monitor_wake_all(&shards->monitor);
    while (shards->num_ended < shards->num_threads && bag_monitor_wait(&shards->monitor, until_ns))
        continue;
    bag_monitor_unlock(&shards->monitor);
}
