/* The thread that makes changes; see loader.h. */
#include "loader.h"

#include "server/memory/memory.h"
#include "server/system/crew.h"
#include "server/system/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Of the thread and of those that read for it, once the server serves. */
#define LOADER_NICE 10

/* How long a table that was unloaded may be read by requests that began before. */
#define LEAVE_NS (UINT64_C(60) * 1000000000)

/* ---- the first models ------------------------------------------------------------------------ */

/* Plans a change by what there is now. */
static struct bag_change_plan *make_plan(struct bag_loader *loader, enum bag_change_kind kind,
                                         const struct bag_control *control, bool is_first,
                                         struct bag_problem *problem)
{
    struct bag_catalog catalog;
    struct bag_change_plan *plan = NULL;
    if (bag_catalog_scan(&catalog, loader->changer.config, loader->shards, is_first, problem))
        plan = bag_change_plan_make(&loader->changer, kind, &catalog, control, NULL, problem);
    bag_catalog_free(&catalog);
    return plan;
}

bool bag_loader_open(struct bag_loader *loader, const struct bag_config *config,
                     struct bag_registry *registry,
                     bag_gemm_fn *(*load_gemm)(struct bag_problem *problem),
                     struct bag_problem *problem)
{
    loader->config = config;
    loader->last_change = &loader->first_change;
    loader->changer = (struct bag_changer){.registry = registry,
                                           .config = config,
                                           .load_gemm = load_gemm,
                                           .status = &loader->status,
                                           .cancelled = &loader->cancelled};
    loader->shards = bag_shards_make();
    if (!loader->shards || pthread_mutex_init(&loader->status.lock, NULL) != 0)
        return bag_problem_no_memory(problem);
    loader->first = make_plan(loader, BAG_CHANGE_START, NULL, true, problem);
    if (!loader->first)
        return false;
    loader->first_models = bag_change_plan_count(loader->first);
    loader->first_bytes = loader->first->bytes;
    return bag_change_plan_load_gemm(loader->first, problem) &&
           bag_pages_check(loader->first_bytes, 0, problem) &&
           bag_memory_check(loader->first_bytes, problem);
}

void bag_loader_close(struct bag_loader *loader)
{
    bag_change_plan_free(loader->first);
    loader->first = NULL;
    bag_changer_free(&loader->changer);
    bag_shards_free(loader->shards);
    loader->shards = NULL;
    bag_config_free(&loader->reread);
}

bool bag_loader_announce(struct bag_loader *loader, struct bag_problem *problem)
{
    return bag_change_plan_announce(loader->first, problem);
}

/* Carries out *plan. While that fails for a version that may be passed over, the plan is replaced
 * by another one of the same change without that version. */
static bool carry_out_plan(struct bag_loader *loader, struct bag_change_plan **plan,
                           struct bag_problem *problem)
{
    bool ok = false;
    while (*plan && !(ok = bag_change_plan_carry_out(*plan, problem)) &&
           bag_change_plan_may_go_without(*plan, problem)) {
        enum bag_change_kind kind = (*plan)->kind;
        const struct bag_control *control = (*plan)->control;
        bag_changer_count_failure(&loader->changer);
        bag_change_plan_free(*plan);
        *plan = make_plan(loader, kind, control, false, problem);
    }
    if (!*plan)
        bag_changer_show_plan_error(&loader->changer);
    return *plan && ok;
}

/* Loads the first models: without those that cannot be loaded, unless they are named. */
static bool load_first(struct bag_loader *loader, struct bag_problem *problem)
{
    bool ok = carry_out_plan(loader, &loader->first, problem);
    if (ok)
        loader->first_models = bag_change_plan_count(loader->first);
    bag_change_plan_free(loader->first);
    loader->first = NULL;
    return ok;
}

/* ---- changes --------------------------------------------------------------------------------- */

static bool make_change(struct bag_loader *loader, enum bag_change_kind kind,
                        const struct bag_control *control, struct bag_problem *problem)
{
    loader->changer.num_changes++;
    struct bag_change_plan *plan = make_plan(loader, kind, control, false, problem);
    bool ok = carry_out_plan(loader, &plan, problem);
    bag_change_plan_free(plan);
    return ok;
}

/* What was read takes the place of the configuration before, if it can be served. */
static bool change_configuration(struct bag_loader *loader, struct bag_problem *problem)
{
    struct bag_config next, before = loader->reread;
    const struct bag_config *config = loader->changer.config;
    if (!loader->configure(loader->context, &next, problem)) {
        bag_config_free(&next);
        return false;
    }
    loader->reread = next;
    loader->changer.config = &loader->reread;
    if (make_change(loader, BAG_CHANGE_CONFIGURATION, NULL, problem)) {
        bag_config_free(&before);
        return true;
    }
    bag_config_free(&loader->reread);
    loader->reread = before;
    loader->changer.config = config;
    return false;
}

/* The names that are asked for, for the log. */
static void list_names(const struct bag_control *control, char *text, size_t bytes)
{
    size_t used = 0;
    *text = 0;
    for (size_t i = 0; i < control->count && used < bytes; i++) {
        const struct bag_control_item *item = &control->items[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%s%s%s%s", i ? ", " : "",
                                 item->unload ? "unload " : "", item->name,
                                 *item->version ? "/" : "", item->version);
    }
}

static void log_change(const struct bag_change *change, const char *event, uint64_t begun_ns)
{
    char names[400];
    struct bag_log_field reason = {0};
    if (change->failed)
        reason = (struct bag_log_field)BAG_LOG_TEXT("reason", change->problem.text);
    list_names(&change->control, names, sizeof names);
    bag_log(change->failed ? BAG_LOG_LEVEL_ERROR : BAG_LOG_LEVEL_INFO, event,
            BAG_LOG_TEXT("models",
                         change->kind == BAG_CHANGE_MODELS ? names : "the whole configuration"),
            BAG_LOG_TEXT("asked_by", change->who),
            BAG_LOG_NUMBER("ms", begun_ns ? (uv_hrtime() - begun_ns) / 1000000 : 0), reason);
}

/* Notes of each item of a request which versions are served. False without memory. */
static bool tell_served(const struct bag_changer *changer, struct bag_control *control)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&changer->registry->current, memory_order_relaxed);
    for (size_t i = 0; i < control->count; i++) {
        struct bag_control_item *item = &control->items[i];
        size_t count;
        struct bag_model *const *models = bag_snapshot_versions(current, item->name, &count);
        item->served = calloc(count + 1, sizeof *item->served);
        if (!item->served)
            return false;
        for (size_t j = 0; j < count; j++) {
            if (models[j]->state == BAG_MODEL_READY)
                item->served[item->num_served++] = models[j]->version_number;
        }
    }
    return true;
}

static void carry_out(struct bag_loader *loader, struct bag_change *change)
{
    uint64_t begun_ns = uv_hrtime();
    bool ok;
    log_change(change, "change begins", 0);
    if (atomic_load(&loader->cancelled))
        ok = bag_problem_set(&change->problem, BAG_ERROR_DRAINING, "the server is stopping");
    else if (change->kind == BAG_CHANGE_CONFIGURATION)
        ok = change_configuration(loader, &change->problem);
    else
        ok = make_change(loader, change->kind, &change->control, &change->problem);
    if (ok && !bag_changer_take_deltas(&loader->changer,
                                       change->kind == BAG_CHANGE_MODELS ? &change->control : NULL,
                                       false, &change->problem)) {
        bag_problem_prefix(&change->problem, "what was asked for is served, without an update");
        ok = false;
    }
    ok = ok && (tell_served(&loader->changer, &change->control) ||
                bag_problem_no_memory(&change->problem));
    change->failed = !ok;
    if (!ok)
        bag_changer_count_failure(&loader->changer);
    if (!ok &&
        (change->problem.kind == BAG_ERROR_FILE || change->problem.kind == BAG_ERROR_CONFIGURATION))
        change->problem.kind = BAG_ERROR_BAD_REQUEST; /* it asks for what cannot be served */
    log_change(change, ok ? "change done" : "change failed", begun_ns);
    bag_records_trim(&loader->changer);
    change->on_done(change);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void on_left(void *context)
{
    struct bag_loader *loader = context;
    uv_mutex_lock(&loader->lock);
    loader->collect = true;
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
}

/* Told on a thread that asks shards. */
static void on_shards(void *context)
{
    struct bag_loader *loader = context;
    uv_mutex_lock(&loader->lock);
    loader->polls_shards = true;
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
}

static bool wait_until_left(void *context, const struct bag_model *model, size_t holders)
{
    struct bag_loader *loader = context;
    uint64_t until_ns = uv_hrtime() + LEAVE_NS;
    bag_registry_collect(loader->changer.registry);
    while (model->holders > holders) {
        uint64_t now_ns = uv_hrtime();
        if (now_ns >= until_ns || atomic_load(&loader->cancelled))
            return false;
        uv_mutex_lock(&loader->lock);
        if (!loader->collect)
            uv_cond_timedwait(&loader->wake, &loader->lock, until_ns - now_ns);
        loader->collect = false;
        uv_mutex_unlock(&loader->lock);
        bag_registry_collect(loader->changer.registry);
    }
    return true;
}

/* One thing that is to be done, if any, without the lock. False: there was nothing. */
static bool do_next(struct bag_loader *loader, uint64_t *next_poll_ns)
{
    bool polls = loader->config->options.model_control == BAG_MODEL_CONTROL_POLL &&
                 !atomic_load(&loader->cancelled) && uv_hrtime() >= *next_poll_ns;
    struct bag_change *change = loader->first_change;
    bool collect = loader->collect, polls_shards = loader->polls_shards;
    if (!change && !collect && !polls && !polls_shards)
        return false;
    if (change && !(loader->first_change = change->next))
        loader->last_change = &loader->first_change;
    loader->num_changes -= change != NULL;
    loader->collect = loader->polls_shards = false;
    uv_mutex_unlock(&loader->lock);
    if (collect)
        bag_registry_collect(loader->changer.registry);
    if (change)
        carry_out(loader, change);
    if (polls_shards)
        bag_loader_poll_fronts(loader);
    if (polls) {
        bag_loader_poll_files(loader);
        *next_poll_ns = uv_hrtime() + (uint64_t)loader->config->options.poll_seconds * 1000000000;
    }
    uv_mutex_lock(&loader->lock);
    return true;
}

static void serve_changes(struct bag_loader *loader)
{
    bool polls = loader->config->options.model_control == BAG_MODEL_CONTROL_POLL;
    uint64_t next_poll_ns = uv_hrtime();
    uv_mutex_lock(&loader->lock);
    while (!loader->stop || loader->first_change) {
        if (do_next(loader, &next_poll_ns))
            continue;
        uint64_t now_ns = uv_hrtime();
        if (!polls || atomic_load(&loader->cancelled))
            uv_cond_wait(&loader->wake, &loader->lock);
        else if (next_poll_ns > now_ns)
            uv_cond_timedwait(&loader->wake, &loader->lock, next_poll_ns - now_ns);
    }
    uv_mutex_unlock(&loader->lock);
}

static void *run(void *argument)
{
    struct bag_loader *loader = argument;
    struct bag_problem problem;
    bool failed = !load_first(loader, &problem);
    uv_mutex_lock(&loader->lock);
    loader->failed = failed;
    if (failed)
        loader->problem = problem;
    uv_mutex_unlock(&loader->lock);
    loader->on_loaded(loader->context);
    /* Of this thread alone. It may not be allowed to, and then competes with others. */
    if (setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + LOADER_NICE) != 0)
        bag_log(BAG_LOG_LEVEL_DEBUG, "loads at the usual priority");
    serve_changes(loader);
    return NULL;
}

bool bag_loader_start(struct bag_loader *loader, struct bag_problem *problem)
{
    if (uv_mutex_init(&loader->lock) != 0 || uv_cond_init(&loader->wake) != 0)
        return bag_problem_no_memory(problem);
    loader->changer.wait_until_left = wait_until_left;
    loader->changer.context = loader;
    loader->changer.registry->on_left = on_left;
    loader->changer.registry->left_context = loader;
    loader->shards->on_change = on_shards;
    loader->shards->context = loader;
    if (!bag_shards_start(loader->shards, problem))
        return false;
    int error = bag_thread_start(&loader->thread, run, loader);
    if (error)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "no thread can be started to load tables: %s", strerror(error));
    return true;
}

bool bag_loader_succeeded(struct bag_loader *loader, struct bag_problem *problem)
{
    uv_mutex_lock(&loader->lock);
    bool failed = loader->failed;
    if (failed)
        *problem = loader->problem;
    uv_mutex_unlock(&loader->lock);
    return !failed;
}

bool bag_loader_submit(struct bag_loader *loader, struct bag_change *change,
                       struct bag_problem *problem)
{
    change->next = NULL;
    uv_mutex_lock(&loader->lock);
    bool has_room = loader->num_changes < BAG_MAX_QUEUED_CHANGES;
    if (has_room) {
        *loader->last_change = change;
        loader->last_change = &change->next;
        loader->num_changes++;
        uv_cond_signal(&loader->wake);
    }
    uv_mutex_unlock(&loader->lock);
    return has_room || bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                                       "%d changes of models wait already, the most there may be",
                                       BAG_MAX_QUEUED_CHANGES);
}

void bag_loader_cancel(struct bag_loader *loader)
{
    uv_mutex_lock(&loader->lock);
    atomic_store(&loader->cancelled, true);
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
}

void bag_loader_stop(struct bag_loader *loader)
{
    uv_mutex_lock(&loader->lock);
    loader->stop = true;
    uv_cond_signal(&loader->wake);
    uv_mutex_unlock(&loader->lock);
    uv_thread_join(&loader->thread);
    bag_shards_stop(loader->shards);
    loader->changer.registry->on_left = NULL;
    uv_cond_destroy(&loader->wake);
    uv_mutex_destroy(&loader->lock);
}
