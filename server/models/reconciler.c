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

/* ---- changes --------------------------------------------------------------------------------- */

/* Scans the catalog and attaches it to the table of versions. Returns false and sets *problem if
 * that fails. `is_first`: the log lists the files that are ignored. */
static bool scan(struct bag_reconciler *reconciler, bool is_first, struct bag_problem *problem)
{
    struct bag_models *models = &reconciler->models;
    struct bag_catalog catalog;
    bool ok = bag_catalog_scan(&catalog, models->config, models->options, reconciler->shards,
                               is_first, problem) &&
              bag_models_attach(models, &catalog, problem);
    bag_catalog_free(&catalog);
    return ok;
}

/* Makes one change of a request or of the configuration. Returns false and sets *problem if it
 * fails; what served then goes on. */
static bool make_change(struct bag_reconciler *reconciler, enum bag_change_kind kind,
                        const struct bag_control *control, struct bag_problem *problem)
{
    struct bag_models *models = &reconciler->models;
    struct bag_change_plan plan;
    if (!scan(reconciler, false, problem))
        return false;
    models->num_changes++;
    bag_change_plan_init(&plan, models, kind, control);
    bool ok = bag_change_plan_decide(&plan, problem) && bag_change_plan_carry_out(&plan, problem);
    if (!ok)
        bag_change_plan_show_bad(&plan);
    bag_change_plan_free(&plan);
    return ok;
}

/* ---- changes that were submitted ------------------------------------------------------------- */

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
    bag_models_unlist_rejected(&reconciler->models);
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

/* Adds a version that was passed over to an item of a request. Returns false without memory. */
static bool add_failed(struct bag_control_item *item, const struct bag_model *model)
{
    if (!BAG_GROW(item->failed, item->num_failed))
        return false;
    char *reason = strdup(model->cause);
    if (reason)
        item->failed[item->num_failed++] =
            (struct bag_control_failed){.version = model->version_number, .reason = reason};
    return reason;
}

/* Writes into each item of a request which versions serve and, if it loads, which newer ones
 * cannot. Returns false without memory. */
static bool report_outcome(const struct bag_models *models, struct bag_control *control)
{
    for (size_t i = 0; i < control->count; i++) {
        struct bag_control_item *item = &control->items[i];
        const struct bag_name *name = bag_models_find(models, item->name);
        size_t count = name ? name->count : 0;
        item->served = calloc(count + 1, sizeof *item->served);
        if (!item->served)
            return false;
        for (size_t j = 0; j < count; j++) {
            if (bag_listed_is_ready(&name->versions[j]->now))
                item->served[item->num_served++] = name->versions[j]->number;
        }
        for (size_t j = 0; j < count && !item->unload && item->num_served; j++) {
            const struct bag_version *version = name->versions[j];
            const struct bag_model *model = version->now.model;
            if (model && model->state == BAG_MODEL_UNAVAILABLE && !model->is_unloaded &&
                version->number > item->served[item->num_served - 1] && !add_failed(item, model))
                return false;
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
    ok = ok && (report_outcome(models, &change->control) || bag_problem_no_memory(problem));
    change->failed = !ok;
    /* A failure for one version was counted as the failure of that version. */
    if (!ok && models->status.now.num_failed == num_failed)
        bag_models_count_failure(models);
    if (!ok && (problem->kind == BAG_ERROR_FILE || problem->kind == BAG_ERROR_CONFIGURATION))
        problem->kind = BAG_ERROR_BAD_REQUEST; /* the request asks for what cannot be served */
    log_change(change, ok ? "change done" : "change failed", started_ns);
    bag_models_detach(models);
    change->on_done(change);
}

/* ---- polls ----------------------------------------------------------------------------------- */

/* Limits of what a poll changes at once: names, and bytes that are read for them. A change of many
 * names publishes two snapshots instead of two for each name, but has both versions of all in
 * memory, and the changes of requests wait for its end. */
#define BATCH_NAMES 256
#define BATCH_BYTES (64 << 20)

/* Kinds of models that a poll is about: all, those on shards, collections over those. */
enum { ALL = 1, REMOTE = 2, OVER_REMOTE = 4 };

/* Logs the problem of a model, or of the whole folder under an empty name, once for as long as
 * polls find it. Counts it then, unless it was `counted` as the problem of a version. */
static void log_poll(struct bag_models *models, const char *text, const struct bag_problem *why,
                     bool counted)
{
    struct bag_name *name = bag_models_name(models, text);
    if (name && strcmp(name->logged.text, why->text) == 0)
        return;
    if (name)
        name->logged = *why;
    if (!counted)
        bag_models_count_failure(models);
    bag_log(BAG_LOG_LEVEL_WARNING, "not loaded", BAG_LOG_TEXT("model", text),
            BAG_LOG_TEXT("reason", why->text));
}

/* Makes the next problem of the model be logged, even if it is the one that was logged last. Called
 * when a poll finds nothing to change. */
static void forget_problem(const struct bag_models *models, const char *text)
{
    struct bag_name *name = bag_models_find(models, text);
    if (name)
        *name->logged.text = 0;
}

/* Logs why names cannot change that no change of this poll has changed meanwhile. A table for which
 * there is no memory may have changed together with a collection that pins it. */
static void log_problems(struct bag_models *models)
{
    for (size_t i = 0; i < models->num_names; i++) {
        struct bag_name *name = models->names[i];
        if (*name->found.text)
            log_poll(models, name->text, &name->found, name->is_counted);
        *name->found.text = 0;
    }
}

/* Scans the catalog for a poll. Returns false and logs the problem if that fails. */
static bool scan_for_poll(struct bag_reconciler *reconciler)
{
    struct bag_problem why;
    bool ok = scan(reconciler, false, &why);
    if (ok)
        forget_problem(&reconciler->models, "");
    else
        log_poll(&reconciler->models, "", &why, false);
    return ok;
}

static bool is_remote(const struct bag_config *config, const char *text)
{
    const struct bag_model_config *model = bag_config_find_model(config, text);
    return model && bag_model_has_shards(model);
}

/* Returns whether a poll of these kinds is about the name, of which the last scan found a version.
 */
static bool is_polled(const struct bag_config *config, const struct bag_name *name, unsigned polled)
{
    bool exists = false, is_over_remote = false;
    for (size_t i = 0; i < name->count; i++) {
        const struct bag_source *source = name->versions[i]->found;
        exists |= source != NULL;
        for (size_t j = 0; (polled & OVER_REMOTE) && source && j < source->model->num_features; j++)
            is_over_remote |= is_remote(config, source->model->features[j].model);
    }
    return exists && ((polled & ALL) || is_over_remote ||
                      ((polled & REMOTE) && is_remote(config, name->text)));
}

/* Lists the names that are polled, collections after tables. Returns NULL without memory. */
static struct bag_name **list_polled(const struct bag_models *models, unsigned polled,
                                     size_t *count)
{
    struct bag_name **names = calloc(models->num_names + 1, sizeof(struct bag_name *));
    *count = 0;
    for (size_t pass = 0; names && pass < 2; pass++) {
        for (size_t i = 0; i < models->num_names; i++) {
            struct bag_name *name = models->names[i];
            if (bag_name_has_collection(name) == (pass == 1) &&
                is_polled(models->config, name, polled))
                names[(*count)++] = name;
        }
    }
    return names;
}

/* Returns whether this scan found all files of the name's versions and no change has taken them. */
static bool has_all_files(const struct bag_models *models, const struct bag_name *name)
{
    bool has_all = true;
    for (size_t i = 0; i < name->count; i++)
        has_all &= name->versions[i]->found || name->versions[i]->seen != models->num_scans;
    return has_all;
}

/* Adds the tables that a collection pins to the change, so that a table of the version before is
 * released in the same step. A table that this poll has loaded stays. */
static bool add_pinned(struct bag_change_plan *plan, const struct bag_name *collection,
                       struct bag_problem *problem)
{
    bool ok = true, changes;
    for (size_t i = 0; ok && i < collection->count; i++) {
        const struct bag_source *source = collection->versions[i]->found;
        for (size_t j = 0; ok && source && j < source->model->num_features; j++) {
            const struct bag_feature_config *feature = &source->model->features[j];
            struct bag_name *table =
                feature->version ? bag_models_find(plan->models, feature->model) : NULL;
            if (table && !table->is_decided && has_all_files(plan->models, table) &&
                !bag_name_has_collection(table))
                ok = bag_change_plan_add(plan, table, &changes, problem);
        }
    }
    return ok;
}

/* Changes the names that polls found, all or none. Returns false if the change fails, with *counted
 * if the failure was counted as that of a version. */
static bool change_polled(struct bag_models *models, struct bag_name *const *names, size_t count,
                          bool *counted, struct bag_problem *problem)
{
    struct bag_change_plan plan;
    bool ok = true, changes;
    models->num_changes++;
    bag_change_plan_init(&plan, models, BAG_CHANGE_POLL, NULL);
    for (size_t i = 0; ok && i < count; i++)
        ok = add_pinned(&plan, names[i], problem);
    for (size_t i = 0; ok && i < count; i++) {
        if (!names[i]->is_decided)
            ok = bag_change_plan_add(&plan, names[i], &changes, problem);
    }
    ok = ok && (plan.num_names == 0 || (bag_change_plan_complete(&plan, problem) &&
                                        bag_change_plan_carry_out(&plan, problem)));
    *counted = plan.failed != NULL;
    bag_change_plan_free(&plan);
    return ok;
}

/* Polls one name alone, and remembers why it cannot change. */
static void poll_name(struct bag_models *models, struct bag_name *name)
{
    struct bag_problem why;
    bool counted;
    if (change_polled(models, &name, 1, &counted, &why))
        return;
    name->found = why;
    name->is_counted = counted;
}

/* Changes several names in one change. If that fails, changes them one by one, so that none is kept
 * from changing by another one, and memory suffices for one after the other. */
static void poll_batch(struct bag_models *models, struct bag_name *const *names, size_t count)
{
    struct bag_problem ignored;
    bool counted;
    bool ok = count > 1 && change_polled(models, names, count, &counted, &ignored);
    for (size_t i = 0; !ok && i < count && !atomic_load(&models->cancelled); i++)
        poll_name(models, names[i]);
    for (size_t i = 0; i < count; i++)
        names[i]->polled = models->num_polls;
}

/* Decides about a name alone to learn what its change would read. Returns false if nothing changes.
 * `is_alone` is set for a name that must not change together with others: it is large, its version
 * that serves is unloaded first, or it cannot be decided. */
static bool weigh(struct bag_models *models, struct bag_name *name, size_t *bytes, bool *is_alone)
{
    struct bag_change_plan plan;
    struct bag_problem ignored;
    bool changes;
    *bytes = 0;
    models->num_changes++;
    bag_change_plan_init(&plan, models, BAG_CHANGE_POLL, NULL);
    *is_alone = !bag_change_plan_add(&plan, name, &changes, &ignored);
    for (size_t i = 0; i < name->count; i++) {
        const struct bag_source *source = name->versions[i]->source;
        if (!source || bag_source_is_collection(source))
            continue;
        *bytes += bag_source_read_bytes(source);
        *is_alone |= source->model->reload == BAG_RELOAD_UNLOAD_FIRST;
    }
    bag_change_plan_free(&plan);
    return changes || *is_alone;
}

/* Returns whether a submitted change waits, or the server stops. */
static bool is_interrupted(struct bag_reconciler *reconciler)
{
    bag_monitor_lock(&reconciler->models.monitor);
    bool waits = !STAILQ_EMPTY(&reconciler->changes);
    bag_monitor_unlock(&reconciler->models.monitor);
    return waits || atomic_load(&reconciler->models.cancelled);
}

/* Polls all models in batches, except for those that this poll is done with. Returns false if it
 * ended early for a change that waits, or because the server stops. */
static bool poll_names(struct bag_reconciler *reconciler)
{
    struct bag_models *models = &reconciler->models;
    uint64_t rate = (uint64_t)models->options->load_bytes_per_second;
    size_t limit = rate && rate < BATCH_BYTES ? (size_t)rate : BATCH_BYTES; /* at most a second */
    size_t count, batch = 0, batch_bytes = 0, i;
    struct bag_name **names = list_polled(models, ALL, &count);
    if (!names)
        return true;
    /* Names that change are moved to the front, where the batch is. */
    for (i = 0; i < count && !atomic_load(&models->cancelled); i++) {
        struct bag_name *name = names[i];
        size_t bytes;
        bool is_alone;
        if (name->polled == models->num_polls)
            continue;
        if (!weigh(models, name, &bytes, &is_alone)) {
            forget_problem(models, name->text);
            name->polled = models->num_polls;
            continue;
        }
        bool is_first = batch && bag_name_has_collection(name) != bag_name_has_collection(names[0]);
        if (batch &&
            (is_alone || is_first || batch_bytes + bytes > limit || batch == BATCH_NAMES)) {
            poll_batch(models, names, batch);
            batch = batch_bytes = 0;
            if (is_interrupted(reconciler))
                break;
        }
        names[batch++] = name;
        batch_bytes += bytes;
        if (is_alone) {
            poll_batch(models, names, batch);
            batch = batch_bytes = 0;
            if (is_interrupted(reconciler) && i + 1 < count)
                break;
        }
    }
    if (batch && !atomic_load(&models->cancelled))
        poll_batch(models, names, batch);
    free(names);
    return i == count;
}

/* Changes all models on shards that have other versions than before, and the collections over them,
 * in one change: they read nothing. Returns false if that change fails. */
static bool poll_together(struct bag_models *models)
{
    struct bag_problem ignored;
    bool counted;
    size_t count;
    struct bag_name **names = list_polled(models, REMOTE | OVER_REMOTE, &count);
    bool ok = names && change_polled(models, names, count, &counted, &ignored);
    for (size_t i = 0; ok && i < count; i++)
        forget_problem(models, names[i]->text);
    free(names);
    return ok;
}

/* Polls models on shards, whatever model_control says about files. If one of them cannot change,
 * the others change one by one. */
static void poll_shards(struct bag_reconciler *reconciler)
{
    struct bag_models *models = &reconciler->models;
    if (scan_for_poll(reconciler) && !poll_together(models) && scan_for_poll(reconciler)) {
        size_t count;
        struct bag_name **names = list_polled(models, REMOTE | OVER_REMOTE, &count);
        for (size_t i = 0; names && i < count && !atomic_load(&models->cancelled); i++)
            poll_name(models, names[i]);
        free(names);
        log_problems(models);
    }
    bag_models_detach(models);
}

/* Polls all models, and afterwards applies the deltas of the tables that serve. Returns false if a
 * change that waits has ended the poll, which must go on soon. It has the same number then: files
 * that were the same a moment ago may still be written to. It leaves out the models that it is done
 * with, so those behind a model that never can change wait for no more than one poll. Deltas are
 * looked at once in poll_ms, but also if changes end every poll. */
static bool poll_files(struct bag_reconciler *reconciler)
{
    struct bag_models *models = &reconciler->models;
    struct bag_problem why;
    uint64_t poll_ns = (uint64_t)models->options->poll_ms * 1000000;
    bool ok = scan_for_poll(reconciler), is_whole = true;
    if (ok)
        is_whole = poll_names(reconciler);
    if (is_whole)
        log_problems(models);
    bag_models_detach(models);
    uint64_t now_ns = uv_hrtime();
    if (ok && now_ns - reconciler->deltas_ns >= poll_ns && !atomic_load(&models->cancelled)) {
        reconciler->deltas_ns = now_ns;
        bag_models_take_deltas(models, NULL, true, &why);
    }
    models->num_polls += is_whole;
    return is_whole;
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
        bool is_whole = poll_files(reconciler);
        *next_poll_ns = uv_hrtime() + (is_whole ? (uint64_t)models->options->poll_ms * 1000000 : 0);
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
    struct bag_models *models = &reconciler->models;
    struct bag_problem ignored; /* logged, and tried again by polls and loads */
    bool failed = !bag_change_plan_carry_out(&reconciler->first, &problem);
    bag_change_plan_free(&reconciler->first);
    /* Loading took only the deltas that follow each file's last update. */
    if (!failed)
        bag_models_take_deltas(models, NULL, false, &ignored);
    bag_models_detach(models);
    if (!failed) {
        reconciler->first_models = bag_models_count_ready(models);
        reconciler->first_bytes = bag_models_memory_bytes(models);
    }
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
    models->num_polls = 1;
    STAILQ_INIT(&reconciler->changes);
    reconciler->shards = bag_shards_make();
    if (!reconciler->shards || pthread_mutex_init(&models->status.lock, NULL) != 0)
        return bag_problem_no_memory(problem);
    bag_change_plan_init(&reconciler->first, models, BAG_CHANGE_START, NULL);
    if (!scan(reconciler, true, problem) || !bag_change_plan_decide(&reconciler->first, problem))
        return false;
    reconciler->first_models = bag_change_plan_count(&reconciler->first);
    reconciler->first_bytes = reconciler->first.bytes;
    if (!bag_change_plan_load_gemm(&reconciler->first, problem))
        return false;
    return (bag_pages_check(reconciler->first_bytes, 0, problem) &&
            bag_memory_check(reconciler->first_bytes, problem)) ||
           bag_change_plan_explain_memory(&reconciler->first, problem);
}

void bag_reconciler_close(struct bag_reconciler *reconciler)
{
    bag_change_plan_free(&reconciler->first);
    bag_models_free(&reconciler->models);
    bag_shards_free(reconciler->shards);
    reconciler->shards = NULL;
    bag_config_free(&reconciler->reread);
}

bool bag_reconciler_announce(struct bag_reconciler *reconciler, struct bag_problem *problem)
{
    return bag_change_plan_announce(&reconciler->first, problem);
}

const struct bag_source *bag_reconciler_next(const struct bag_reconciler *reconciler,
                                             size_t *cursor)
{
    const struct bag_change_plan *plan = &reconciler->first;
    return *cursor < plan->num_loads ? plan->loads[(*cursor)++]->source : NULL;
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
