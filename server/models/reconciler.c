/* The thread that changes the models; see reconciler.h. */
#include "reconciler.h"

#include "carry_out.h"
#include "server/memory/memory.h"
#include "server/system/log.h"
#include "server/system/thread_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

/* Added to the nice value of the thread, and of those that read for it, once the server serves. */
#define RECONCILER_NICE 10

/* ---- plans ----------------------------------------------------------------------------------- */

/* Scans the catalog and plans a change of all models, or of those in `control`. Returns NULL and
 * sets *problem if the catalog cannot be scanned or the change cannot be planned. `is_first`: the
 * log lists the files that are ignored. */
static struct bag_change_plan *make_plan(struct bag_reconciler *reconciler,
                                         enum bag_change_kind kind,
                                         const struct bag_control *control, bool is_first,
                                         struct bag_problem *problem)
{
    struct bag_models *models = &reconciler->models;
    struct bag_catalog catalog;
    struct bag_change_plan *plan = NULL;
    if (bag_catalog_scan(&catalog, models->config, models->options, reconciler->shards, is_first,
                         problem))
        plan = bag_change_plan_make(models, kind, &catalog, control, NULL, problem);
    bag_catalog_free(&catalog);
    return plan;
}

/* Carries out *plan. If that fails for a version that the change can do without, replaces *plan by
 * a plan of the same change without that version, and tries again. *plan is NULL if that plan could
 * not be made. Returns false and sets *problem if the change fails. */
static bool carry_out_plan(struct bag_reconciler *reconciler, struct bag_change_plan **plan,
                           struct bag_problem *problem)
{
    bool ok = false;
    while (*plan && !(ok = bag_change_plan_carry_out(*plan, problem)) &&
           bag_change_plan_may_go_without(*plan, problem)) {
        enum bag_change_kind kind = (*plan)->facts.kind;
        const struct bag_control *control = (*plan)->facts.control;
        bag_change_plan_free(*plan);
        *plan = make_plan(reconciler, kind, control, false, problem);
    }
    if (!*plan)
        bag_models_show_error(&reconciler->models);
    return *plan && ok;
}

/* ---- changes that were submitted ------------------------------------------------------------- */

/* Plans and carries out one change of a request or of the configuration. Returns false and sets
 * *problem if it fails; what served then goes on. */
static bool make_change(struct bag_reconciler *reconciler, enum bag_change_kind kind,
                        const struct bag_control *control, struct bag_problem *problem)
{
    reconciler->models.num_changes++;
    struct bag_change_plan *plan = make_plan(reconciler, kind, control, false, problem);
    bool ok = carry_out_plan(reconciler, &plan, problem);
    bag_change_plan_free(plan);
    return ok;
}

/* Reads the configuration again and makes it the current one. If it cannot be read or its models
 * cannot be served, the configuration before stays. Returns false and sets *problem then. */
static bool change_configuration(struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    struct bag_config next, before = reconciler->reread;
    const struct bag_config *config = reconciler->models.config;
    if (!reconciler->configure(reconciler->context, &next, problem)) {
        bag_config_free(&next);
        return false;
    }
    reconciler->reread = next;
    reconciler->models.config = &reconciler->reread;
    if (make_change(reconciler, BAG_CHANGE_CONFIGURATION, NULL, problem)) {
        bag_config_free(&before);
        return true;
    }
    bag_config_free(&reconciler->reread);
    reconciler->reread = before;
    reconciler->models.config = config;
    return false;
}

/* Writes the names and versions of a request, for the log. The text is cut off after `bytes`. */
static void list_names(const struct bag_control *control, char *text, size_t bytes)
{
    *text = 0;
    for (size_t i = 0; i < control->count; i++) {
        const struct bag_control_item *item = &control->items[i];
        bag_text_add(text, bytes, "%s%s%s%s%s", i ? ", " : "", item->unload ? "unload " : "",
                     item->name, *item->version ? "/" : "", item->version);
    }
}

/* Logs the begin or the end of a change. `started_ns` is 0 at the begin. */
static void log_change(const struct bag_change *change, const char *event, uint64_t started_ns)
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
            BAG_LOG_NUMBER("ms", started_ns ? (uv_hrtime() - started_ns) / 1000000 : 0), reason);
}

/* Writes into each item of a request which versions serve. Returns false without memory. */
static bool report_served(const struct bag_models *models, struct bag_control *control)
{
    const struct bag_snapshot *current =
        atomic_load_explicit(&models->registry->current, memory_order_relaxed);
    for (size_t i = 0; i < control->count; i++) {
        struct bag_control_item *item = &control->items[i];
        size_t count;
        struct bag_model *const *versions = bag_snapshot_versions(current, item->name, &count);
        item->served = calloc(count + 1, sizeof *item->served);
        if (!item->served)
            return false;
        for (size_t j = 0; j < count; j++) {
            if (versions[j]->state == BAG_MODEL_READY)
                item->served[item->num_served++] = versions[j]->version_number;
        }
    }
    return true;
}

/* Makes one submitted change and calls its on_done(). The change may be freed when this returns. */
static void carry_out_change(struct bag_reconciler *reconciler, struct bag_change *change)
{
    struct bag_models *models = &reconciler->models;
    struct bag_problem *problem = &change->problem;
    uint64_t started_ns = uv_hrtime(), num_failed = models->status.now.num_failed;
    bool is_control = change->kind == BAG_CHANGE_MODELS, ok;
    log_change(change, "change begins", 0);
    if (atomic_load(&models->cancelled))
        ok = bag_problem_set(problem, BAG_ERROR_DRAINING, "the server is stopping");
    else if (is_control)
        ok = make_change(reconciler, change->kind, &change->control, problem);
    else
        ok = change_configuration(reconciler, problem);
    if (ok &&
        !bag_models_take_deltas(models, is_control ? &change->control : NULL, false, problem)) {
        bag_problem_prefix(problem, "what was asked for is served, without an update");
        ok = false;
    }
    ok = ok && (report_served(models, &change->control) || bag_problem_no_memory(problem));
    change->failed = !ok;
    /* A failure for one version was counted as the failure of that version. */
    if (!ok && models->status.now.num_failed == num_failed)
        bag_models_count_failure(models);
    if (!ok && (problem->kind == BAG_ERROR_FILE || problem->kind == BAG_ERROR_CONFIGURATION))
        problem->kind = BAG_ERROR_BAD_REQUEST; /* the request asks for what cannot be served */
    log_change(change, ok ? "change done" : "change failed", started_ns);
    bag_models_forget(models);
    change->on_done(change);
}

/* ---- polls ----------------------------------------------------------------------------------- */

/* Logs the problem of a model, or of the whole folder under an empty name, once for as long as
 * polls find it. Counts it then, unless it was `counted` as the problem of a version. */
static void log_poll(struct bag_models *models, const char *name, const struct bag_problem *why,
                     bool counted)
{
    struct bag_record *record = bag_record_make(models, name);
    if (record && strcmp(record->logged.text, why->text) == 0)
        return;
    if (record)
        record->logged = *why;
    if (!counted)
        bag_models_count_failure(models);
    bag_log(BAG_LOG_LEVEL_WARNING, "not loaded", BAG_LOG_TEXT("model", name),
            BAG_LOG_TEXT("reason", why->text));
}

/* Makes the next problem of the model be logged, even if it is the one that was logged last. */
static void forget_problem(const struct bag_models *models, const char *name)
{
    struct bag_record *record = bag_record_find(models, name);
    if (record)
        *record->logged.text = 0;
}

/* Changes one model as a poll found it, if that is needed. Returns false if the change fails.
 * *counted is set if the failure was counted as that of a version, which is not read again at once.
 */
static bool change_polled(struct bag_models *models, struct bag_catalog *catalog, const char *name,
                          bool *counted, struct bag_problem *problem)
{
    const struct bag_model_names only = {&name, 1};
    *counted = false;
    models->num_changes++;
    if (!bag_change_plan_is_needed(models, catalog, name))
        return true;
    struct bag_change_plan *plan =
        bag_change_plan_make(models, BAG_CHANGE_POLL, catalog, NULL, &only, problem);
    bool ok = plan && bag_change_plan_carry_out(plan, problem);
    if (!ok && plan && plan->failed) {
        *counted = true;
        bag_change_plan_may_go_without(plan, problem);
    }
    bag_change_plan_free(plan);
    return ok;
}

/* Polls one model. It is a change of its own, so that no model waits for another one. */
static void poll_model(struct bag_models *models, struct bag_catalog *catalog, const char *name)
{
    struct bag_problem why;
    bool counted;
    if (change_polled(models, catalog, name, &counted, &why))
        forget_problem(models, name);
    else
        log_poll(models, name, &why, counted);
}

/* Kinds of models that a poll is about: all, those on shards, collections over those. */
enum { ALL = 1, REMOTE = 2, OVER_REMOTE = 4 };

static bool is_remote(const struct bag_config *config, const char *name)
{
    const struct bag_model_config *model = bag_config_find_model(config, name);
    return model && bag_model_has_shards(model);
}

/* Returns whether a poll of these kinds is about the source. A collection over shards is found by
 * its features, so its source must not have been taken from the catalog. */
static bool is_polled(const struct bag_config *config, const struct bag_named_source *named,
                      unsigned polled)
{
    const struct bag_source *source = *named->place;
    bool found = (polled & ALL) || ((polled & REMOTE) && is_remote(config, named->name));
    for (size_t i = 0; (polled & OVER_REMOTE) && source && i < source->model->num_features; i++)
        found |= is_remote(config, source->model->features[i].model);
    return found;
}

/* Scans the catalog for a poll. Returns false and logs the problem if that fails. The caller must
 * call bag_catalog_free() in either case. */
static bool scan(struct bag_reconciler *reconciler, struct bag_catalog *catalog)
{
    struct bag_problem why;
    struct bag_models *models = &reconciler->models;
    bool ok =
        bag_catalog_scan(catalog, models->config, models->options, reconciler->shards, false, &why);
    if (ok)
        forget_problem(models, "");
    else
        log_poll(models, "", &why, false);
    return ok;
}

/* Lists the names of the catalog that are polled, each once. Returns NULL without memory. */
static const char **list_polled(const struct bag_models *models, const struct bag_catalog *catalog,
                                unsigned polled, size_t *count)
{
    const char **names = calloc(catalog->count + 1, sizeof *names);
    *count = 0;
    for (size_t i = 0; names && i < catalog->count; i++) {
        const char *name = catalog->named[i].name;
        bool is_first = i == 0 || strcmp(name, catalog->named[i - 1].name) != 0;
        if (is_first && is_polled(models->config, &catalog->named[i], polled))
            names[(*count)++] = name;
    }
    return names;
}

/* Polls the models of these kinds one by one, until the server stops. */
static void poll_names(struct bag_models *models, struct bag_catalog *catalog, unsigned polled)
{
    size_t count;
    const char **names = list_polled(models, catalog, polled, &count);
    for (size_t i = 0; names && i < count && !atomic_load(&models->cancelled); i++)
        poll_model(models, catalog, names[i]);
    free(names);
}

/* Changes all models on shards that have other versions than before, and the collections over them,
 * in one change: they read nothing. Returns false if that change fails. */
static bool poll_together(struct bag_models *models, struct bag_catalog *catalog)
{
    struct bag_problem ignored;
    struct bag_model_names only;
    struct bag_change_plan *plan = NULL;
    bool is_needed = false;
    models->num_changes++;
    only.names = list_polled(models, catalog, REMOTE | OVER_REMOTE, &only.count);
    if (!only.names)
        return false;
    for (size_t i = 0; !is_needed && i < only.count; i++)
        is_needed = bag_change_plan_is_needed(models, catalog, only.names[i]);
    if (is_needed)
        plan = bag_change_plan_make(models, BAG_CHANGE_POLL, catalog, NULL, &only, &ignored);
    bool ok = !is_needed || (plan && bag_change_plan_carry_out(plan, &ignored));
    bag_change_plan_free(plan);
    for (size_t i = 0; ok && i < only.count; i++)
        forget_problem(models, only.names[i]);
    free(only.names);
    return ok;
}

/* Polls models on shards, whatever model_control says about files. If one of them cannot change,
 * the others change one by one. */
static void poll_shards(struct bag_reconciler *reconciler)
{
    struct bag_catalog catalog;
    bool ok = !scan(reconciler, &catalog) || poll_together(&reconciler->models, &catalog);
    bag_catalog_free(&catalog);
    if (ok)
        return;
    if (scan(reconciler, &catalog)) {
        poll_names(&reconciler->models, &catalog, REMOTE);
        poll_names(&reconciler->models, &catalog, OVER_REMOTE);
    }
    bag_catalog_free(&catalog);
}

/* Polls all models. Afterwards forgets what the poll did not find, and applies the deltas of the
 * tables that serve. */
static void poll_files(struct bag_reconciler *reconciler)
{
    struct bag_models *models = &reconciler->models;
    struct bag_catalog catalog;
    struct bag_problem why;
    bool ok = scan(reconciler, &catalog);
    models->num_polls++;
    if (ok)
        poll_names(models, &catalog, ALL);
    bag_catalog_free(&catalog);
    if (ok && !atomic_load(&models->cancelled)) {
        bag_models_forget(models);
        bag_models_take_deltas(models, NULL, true, &why);
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* Wakes the reconciler to free a snapshot. Called on the thread that left the snapshot last: that
 * of a loop, or the reconciler's own. */
static void on_left(void *context)
{
    struct bag_models *models = context;
    bag_monitor_lock(&models->monitor);
    models->has_left = true;
    bag_monitor_wake(&models->monitor);
    bag_monitor_unlock(&models->monitor);
}

/* Wakes the reconciler to poll shards. Called on a thread that queries shards, after their versions
 * have changed. */
static void on_shards(void *context)
{
    struct bag_reconciler *reconciler = context;
    bag_monitor_lock(&reconciler->models.monitor);
    reconciler->polls_shards = true;
    bag_monitor_wake(&reconciler->models.monitor);
    bag_monitor_unlock(&reconciler->models.monitor);
}

/* Does one pass of waiting work: frees snapshots, makes the oldest change, then polls shards and
 * files if that is due. Returns false if there is nothing to do. The caller holds the monitor's
 * lock, which is released while the work is done. */
static bool do_next(struct bag_reconciler *reconciler, uint64_t *next_poll_ns)
{
    struct bag_models *models = &reconciler->models;
    struct bag_change *change = STAILQ_FIRST(&reconciler->changes);
    bool has_left = models->has_left, polls_shards = reconciler->polls_shards;
    bool polls_files = !atomic_load(&models->cancelled) && uv_hrtime() >= *next_poll_ns;
    if (!change && !has_left && !polls_files && !polls_shards)
        return false;
    if (change) {
        STAILQ_REMOVE_HEAD(&reconciler->changes, next);
        reconciler->num_changes--;
    }
    models->has_left = reconciler->polls_shards = false;
    bag_monitor_unlock(&models->monitor);
    if (has_left)
        bag_registry_collect(models->registry);
    if (change)
        carry_out_change(reconciler, change);
    if (polls_shards)
        poll_shards(reconciler);
    if (polls_files) {
        poll_files(reconciler);
        *next_poll_ns = uv_hrtime() + (uint64_t)reconciler->models.options->poll_ms * 1000000;
    }
    bag_monitor_lock(&models->monitor);
    return true;
}

/* Runs the reconciler's thread: loads the first models, reports the outcome, and serves changes.
 * The server starts without versions that cannot be loaded, unless the configuration names them. */
static void *run(void *argument)
{
    struct bag_reconciler *reconciler = argument;
    struct bag_problem problem;
    bool failed = !carry_out_plan(reconciler, &reconciler->first, &problem);
    if (!failed) {
        reconciler->first_models = bag_change_plan_count(reconciler->first);
        reconciler->first_bytes = bag_change_plan_memory_bytes(reconciler->first);
    }
    bag_change_plan_free(reconciler->first);
    reconciler->first = NULL;
    bag_monitor_lock(&reconciler->models.monitor);
    reconciler->failed = failed;
    if (failed)
        reconciler->problem = problem;
    bag_monitor_unlock(&reconciler->models.monitor);
    reconciler->on_loaded(reconciler->context);
    /* Affects this thread alone. If the system refuses, the thread competes with others. */
    if (setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + RECONCILER_NICE) != 0)
        bag_log(BAG_LOG_LEVEL_DEBUG, "loads at the usual priority");
    /* Work until the thread is to stop and no change waits any more. Sleep until it is woken or the
     * next poll of files is due. */
    struct bag_models *models = &reconciler->models;
    bool polls = reconciler->models.options->model_control == BAG_MODEL_CONTROL_POLL;
    uint64_t next_poll_ns = polls ? uv_hrtime() : UINT64_MAX;
    bag_monitor_lock(&models->monitor);
    while (!reconciler->stops || !STAILQ_EMPTY(&reconciler->changes)) {
        if (!do_next(reconciler, &next_poll_ns))
            bag_monitor_wait(&models->monitor,
                             atomic_load(&models->cancelled) ? UINT64_MAX : next_poll_ns);
    }
    bag_monitor_unlock(&models->monitor);
    return NULL;
}

bool bag_reconciler_open(struct bag_reconciler *reconciler, const struct bag_config *config,
                         struct bag_registry *registry,
                         bag_gemm_fn *(*load_gemm)(struct bag_problem *problem),
                         struct bag_problem *problem)
{
    struct bag_models *models = &reconciler->models;
    models->config = config;
    models->options = &config->options;
    models->registry = registry;
    models->load_gemm = load_gemm;
    STAILQ_INIT(&reconciler->changes);
    reconciler->shards = bag_shards_make();
    if (!reconciler->shards || pthread_mutex_init(&models->status.lock, NULL) != 0)
        return bag_problem_no_memory(problem);
    reconciler->first = make_plan(reconciler, BAG_CHANGE_START, NULL, true, problem);
    if (!reconciler->first)
        return false;
    reconciler->first_models = bag_change_plan_count(reconciler->first);
    reconciler->first_bytes = reconciler->first->bytes;
    return bag_change_plan_load_gemm(reconciler->first, problem) &&
           bag_pages_check(reconciler->first_bytes, 0, problem) &&
           bag_memory_check(reconciler->first_bytes, problem);
}

void bag_reconciler_close(struct bag_reconciler *reconciler)
{
    bag_change_plan_free(reconciler->first);
    reconciler->first = NULL;
    bag_models_free(&reconciler->models);
    bag_shards_free(reconciler->shards);
    reconciler->shards = NULL;
    bag_config_free(&reconciler->reread);
}

bool bag_reconciler_announce(struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    return bag_change_plan_announce(reconciler->first, problem);
}

const struct bag_source *bag_reconciler_next(const struct bag_reconciler *reconciler,
                                             size_t *cursor)
{
    const struct bag_change_plan *plan = reconciler->first;
    while (*cursor < plan->count && !plan->entries[*cursor].source)
        ++*cursor;
    return *cursor < plan->count ? plan->entries[(*cursor)++].source : NULL;
}

bool bag_reconciler_start(struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    struct bag_models *models = &reconciler->models;
    if (!bag_monitor_init(&models->monitor))
        return bag_problem_no_memory(problem);
    models->registry->on_left = on_left;
    models->registry->left_context = models;
    reconciler->shards->on_change = on_shards;
    reconciler->shards->context = reconciler;
    if (!bag_shards_start(reconciler->shards, problem))
        return false;
    int error = bag_thread_start(&reconciler->thread, run, reconciler);
    if (error)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "no thread can be started to load tables: %s", strerror(error));
    return true;
}

/* ---- other threads --------------------------------------------------------------------------- */

bool bag_reconciler_succeeded(struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    bag_monitor_lock(&reconciler->models.monitor);
    bool failed = reconciler->failed;
    if (failed)
        *problem = reconciler->problem;
    bag_monitor_unlock(&reconciler->models.monitor);
    return !failed;
}

bool bag_reconciler_submit(struct bag_reconciler *reconciler, struct bag_change *change,
                           struct bag_problem *problem)
{
    bag_monitor_lock(&reconciler->models.monitor);
    bool is_full = reconciler->num_changes == BAG_MAX_QUEUED_CHANGES;
    if (!is_full) {
        STAILQ_INSERT_TAIL(&reconciler->changes, change, next);
        reconciler->num_changes++;
        bag_monitor_wake(&reconciler->models.monitor);
    }
    bag_monitor_unlock(&reconciler->models.monitor);
    return !is_full || bag_problem_set(problem, BAG_ERROR_QUEUE_FULL,
                                       "%d changes of models wait already, the most there may be",
                                       BAG_MAX_QUEUED_CHANGES);
}

void bag_reconciler_cancel(struct bag_reconciler *reconciler)
{
    bag_monitor_lock(&reconciler->models.monitor);
    atomic_store(&reconciler->models.cancelled, true);
    bag_monitor_wake(&reconciler->models.monitor);
    bag_monitor_unlock(&reconciler->models.monitor);
}

void bag_reconciler_stop(struct bag_reconciler *reconciler)
{
    bag_monitor_lock(&reconciler->models.monitor);
    reconciler->stops = true;
    bag_monitor_wake(&reconciler->models.monitor);
    bag_monitor_unlock(&reconciler->models.monitor);
    pthread_join(reconciler->thread, NULL);
    bag_shards_stop(reconciler->shards);
    reconciler->models.registry->on_left = NULL;
    bag_monitor_free(&reconciler->models.monitor);
}
