/* The threads that ask the shards of all groups; see shards.h. */
#include "shards.h"

#include "server/system/crew.h"
#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#define SECOND_NS UINT64_C(1000000000)

/* One whose models are the same as before is asked for nothing else, but seldom, and not all in the
 * same second: behind an address there may be several, and who said so another than who said what
 * they are. */
#define WHOLE_NS     (60 * SECOND_NS)
#define WHOLE_SPREAD 30

/* One that is away is asked more often: it is waited for. */
#define AWAY_NS (SECOND_NS / 4)

/* So many are asked at once. */
#define MAX_THREADS 16

/* One that does not answer so often in a row is away; one that refuses connections, at once. */
#define MAX_FAILURES 3

struct errand {
    struct bag_shard_group *group; /* held */
    struct bag_shard_member *member;
};

/* Whether what it said is still to be gone by, where its host's stamp is the same. */
static bool is_current(const struct bag_shard_member *member)
{
    return bag_shard_is_same(&member->said.stamp, &member->host->stamp) && member->failures == 0 &&
           uv_hrtime() < member->whole_ns;
}

/* The member that is due next, which nobody asks, nor another of its host that may answer for it;
 * its time, or UINT64_MAX where there is none. */
static uint64_t find_due(const struct bag_shards *shards, struct errand *errand)
{
    uint64_t due_ns = UINT64_MAX;
    for (struct bag_shard_group *group = shards->groups; group; group = group->next) {
        for (size_t i = 0; i < group->num_members; i++) {
            struct bag_shard_member *member = &group->members[i];
            if (member->is_being_asked || member->due_ns >= due_ns ||
                (member->host->is_confirming && is_current(member)))
                continue;
            due_ns = member->due_ns;
            *errand = (struct errand){group, member};
        }
    }
    return due_ns;
}

static void wait_until(struct bag_shards *shards, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / SECOND_NS),
                             .tv_nsec = (long)(until_ns % SECOND_NS)};
    if (until_ns == UINT64_MAX)
        pthread_cond_wait(&shards->changed, &shards->lock);
    else
        pthread_cond_timedwait(&shards->changed, &shards->lock, &until);
}

/* While one asks, another looks after what is due then. */
static bool take_errand(struct bag_shards *shards, struct errand *errand)
{
    while (!shards->stops) {
        uint64_t due_ns = find_due(shards, errand);
        if (due_ns <= uv_hrtime()) {
            errand->member->is_being_asked = true;
            bag_shard_group_hold(errand->group);
            pthread_cond_signal(&shards->changed);
            return true;
        }
        wait_until(shards, due_ns);
    }
    return false;
}

/* What loops go by; and where it is another state than before, it is logged. */
static void set_away(struct bag_shard_member *member, bool is_away)
{
    struct bag_shard_host *host = member->host;
    atomic_store(&host->is_away, is_away);
    if (host->is_told_away == is_away)
        return;
    host->is_told_away = is_away;
    if (is_away)
        bag_log(BAG_LOG_LEVEL_WARNING, "shard is away", BAG_LOG_TEXT("shard", host->address.text),
                BAG_LOG_TEXT("reason", member->why));
    else
        bag_log(BAG_LOG_LEVEL_INFO, "shard is back", BAG_LOG_TEXT("shard", host->address.text));
}

/* Likewise of one that answers, but not of this model: others may be asked of it. */
static void set_useless(const struct bag_shard_group *group, struct bag_shard_member *member,
                        bool is_useless)
{
    if (atomic_exchange(&member->is_useless, is_useless) != is_useless && is_useless)
        bag_log(BAG_LOG_LEVEL_WARNING, "shard tells nothing of a model",
                BAG_LOG_TEXT("shard", member->host->address.text),
                BAG_LOG_TEXT("model", group->config.name), BAG_LOG_TEXT("reason", member->why));
}

/* Keeps what was said; of one that did not answer what it said before stays. One that could not be
 * asked is as it was: this server lacks what it is asked with, maybe for this model alone. */
static void keep(const struct errand *errand, struct bag_shard_said *said,
                 enum bag_shard_contact contact, const struct bag_problem *why)
{
    struct bag_shard_member *member = errand->member;
    member->is_being_asked = false;
    if (contact == BAG_SHARD_UNASKED && member->said.is_known) {
        member->due_ns = uv_hrtime() + AWAY_NS;
        return;
    }
    member->failures = said->is_known ? 0 : member->failures + 1;
    snprintf(member->why, sizeof member->why, "%s", said->is_known ? "" : why->text);
    if (said->is_known)
        member->host->stamp = said->stamp;
    if (said->is_known && !said->is_same) {
        struct bag_shard_said before = member->said;
        member->said = *said;
        *said = before;
        member->whole_ns =
            uv_hrtime() + WHOLE_NS + errand->group->shards->num_asked++ % WHOLE_SPREAD * SECOND_NS;
    }
    bool is_lasting =
        member->failures >= MAX_FAILURES || (member->failures && !member->said.is_known);
    if (contact == BAG_SHARD_ANSWERED)
        set_away(member, false);
    else if (contact == BAG_SHARD_NOBODY || (is_lasting && contact == BAG_SHARD_SILENT))
        set_away(member, true);
    set_useless(errand->group, member,
                is_lasting && (contact == BAG_SHARD_ANSWERED || contact == BAG_SHARD_UNASKED));
    member->due_ns = uv_hrtime() + (member->failures ? AWAY_NS : SECOND_NS);
}

static const char *token_file(const struct bag_shard_group *group)
{
    return group->config.shard_token_file ? group->config.shard_token_file : "";
}

/* One has said that its models are the same: what it said of those of other groups is, too, as they
 * would ask with the same token. */
static void confirm_others(struct bag_shards *shards, const struct errand *errand)
{
    const struct bag_shard_member *asked = errand->member;
    for (struct bag_shard_group *group = shards->groups; group; group = group->next) {
        if (group == errand->group || strcmp(token_file(group), token_file(errand->group)) != 0)
            continue;
        for (size_t i = 0; i < group->num_members; i++) {
            struct bag_shard_member *member = &group->members[i];
            if (member->host != asked->host || member->is_being_asked || !is_current(member))
                continue;
            memcpy(group->token, errand->group->token, sizeof group->token);
            member->due_ns = asked->due_ns;
        }
    }
}

static void carry_out(struct bag_shards *shards, const struct errand *errand)
{
    struct bag_shard_said *said = malloc(sizeof *said);
    struct bag_problem why;
    enum bag_shard_contact contact = BAG_SHARD_UNASKED;
    const struct bag_shard_stamp known = errand->member->said.stamp;
    const bool is_known = is_current(errand->member);
    struct bag_shard_host *host = errand->member->host;
    if (is_known) /* find_due sees to it that there is no other */
        host->is_confirming = true;
    pthread_mutex_unlock(&shards->lock);
    if (said)
        bag_shard_ask(errand->group, host, is_known ? &known : NULL, said, &contact, &why);
    pthread_mutex_lock(&shards->lock);
    if (is_known)
        host->is_confirming = false;
    if (!said) {
        errand->member->is_being_asked = false;
        errand->member->due_ns = uv_hrtime() + SECOND_NS;
        return;
    }
    uint64_t hash = errand->group->said_hash;
    keep(errand, said, contact, &why);
    if (said->is_same)
        confirm_others(shards, errand);
    else if (!bag_shard_group_agree(errand->group))
        errand->member->whole_ns = 0;
    bool changed = errand->group->said_hash != hash && !shards->stops;
    pthread_mutex_unlock(&shards->lock);
    bag_shard_said_free(said);
    free(said);
    if (changed)
        shards->on_change(shards->context);
    pthread_mutex_lock(&shards->lock);
}

static void *run(void *context)
{
    struct bag_shards *shards = context;
    struct errand errand;
    pthread_mutex_lock(&shards->lock);
    while (take_errand(shards, &errand)) {
        carry_out(shards, &errand);
        pthread_mutex_unlock(&shards->lock);
        bag_shard_group_drop(errand.group);
        pthread_mutex_lock(&shards->lock);
    }
    shards->num_ended++;
    pthread_cond_broadcast(&shards->changed);
    pthread_mutex_unlock(&shards->lock);
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
                                   "no thread can be started to ask shards: %s", strerror(error));
        pthread_detach(thread);
        shards->num_threads++;
    }
    return true;
}

bool bag_shards_start(struct bag_shards *shards, struct bag_problem *problem)
{
    pthread_mutex_lock(&shards->lock);
    shards->is_started = true;
    bool ok = bag_shards_start_threads(shards, problem);
    pthread_mutex_unlock(&shards->lock);
    return ok;
}

void bag_shards_stop(struct bag_shards *shards)
{
    uint64_t until_ns = uv_hrtime() + 2 * SECOND_NS;
    pthread_mutex_lock(&shards->lock);
    shards->stops = true;
    pthread_cond_broadcast(&shards->changed);
    while (shards->num_ended < shards->num_threads && uv_hrtime() < until_ns)
        wait_until(shards, until_ns);
    pthread_mutex_unlock(&shards->lock);
}
