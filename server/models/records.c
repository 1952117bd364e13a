/* What is remembered of models by their names: what was asked of them, how polls saw their files,
 * versions that are held though they are not served, and those that could not be loaded; see
 * change.h. */
#include "change.h"

#include "server/system/log.h"
#include "server/updates/updates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* How long a version that could not be loaded is left alone, unless its files change. */
#define FAILURE_NS (UINT64_C(60) * 1000000000)

/* ---- records --------------------------------------------------------------------------------- */

/* The position of the first record that is not before the name. */
static size_t lower_bound(const struct bag_changer *changer, const char *name)
{
    size_t low = 0, high = changer->num_records;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(changer->records[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct bag_record *bag_record_find(const struct bag_changer *changer, const char *name)
{
    size_t i = lower_bound(changer, name);
    bool found = i < changer->num_records && strcmp(changer->records[i]->name, name) == 0;
    return found ? changer->records[i] : NULL;
}

struct bag_record *bag_record_make(struct bag_changer *changer, const char *name)
{
    size_t i = lower_bound(changer, name), count = changer->num_records;
    if (i < count && strcmp(changer->records[i]->name, name) == 0)
        return changer->records[i];
    struct bag_record **records = reallocarray(changer->records, count + 1, sizeof *records);
    struct bag_record *record = calloc(1, sizeof *record);
    if (records)
        changer->records = records;
    if (!records || !record) {
        free(record);
        return NULL;
    }
    snprintf(record->name, sizeof record->name, "%s", name);
    memmove(&records[i + 1], &records[i], (count - i) * sizeof *records);
    changer->num_records++;
    return records[i] = record;
}

static void free_record(struct bag_record *record)
{
    for (size_t i = 0; i < record->num_retained; i++)
        bag_model_release(record->retained[i].model);
    free(record->retained);
    free(record->observed);
    free(record->failures);
    free(record);
}

static bool is_empty(const struct bag_record *record)
{
    const struct bag_desired_state *desired = &record->desired;
    return !desired->is_unloaded && !desired->default_version && !desired->num_unloaded &&
           !record->num_observed && !record->num_failures && !record->num_retained &&
           !*record->said.text;
}

void bag_records_trim(struct bag_changer *changer)
{
    size_t count = 0;
    for (size_t i = 0; i < changer->num_records; i++) {
        struct bag_record *record = changer->records[i];
        size_t seen = 0;
        for (size_t j = 0; j < record->num_observed; j++) {
            if (record->observed[j].poll == changer->num_polls)
                record->observed[seen++] = record->observed[j];
        }
        record->num_observed = seen;
        if (is_empty(record))
            free_record(record);
        else
            changer->records[count++] = record;
    }
    changer->num_records = count;
}

void bag_changer_free(struct bag_changer *changer)
{
    for (size_t i = 0; i < changer->num_records; i++)
        free_record(changer->records[i]);
    free(changer->records);
    *changer = (struct bag_changer){0};
}

/* ---- tables in memory ------------------------------------------------------------------------ */

bool bag_change_uses(const struct bag_change_plan *plan, const struct bag_stored_table *stored)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct bag_change_entry *entry = &plan->entries[i];
        if (entry->stored == stored || (entry->model && entry->model->stored == stored))
            return true;
    }
    return false;
}

/* ---- versions that are held ------------------------------------------------------------------ */

static void release_retained(struct bag_record *record, size_t position)
{
    bag_model_release(record->retained[position].model);
    memmove(&record->retained[position], &record->retained[position + 1],
            (record->num_retained - position - 1) * sizeof *record->retained);
    record->num_retained--;
}

/* Holds a version that is not served; false without memory. */
static bool keep(struct bag_changer *changer, struct bag_model *model)
{
    struct bag_record *record = bag_record_make(changer, model->name);
    struct bag_retained_version *retained =
        record ? reallocarray(record->retained, record->num_retained + 1, sizeof *retained) : NULL;
    if (!retained)
        return false;
    record->retained = retained;
    retained[record->num_retained++] = (struct bag_retained_version){
        .model = bag_model_retain(model), .order = ++changer->num_holds};
    return true;
}

bool bag_change_lacks_updates(const struct bag_changer *changer, const struct bag_model *model)
{
    if (!changer->updates || !model->memory || model->memory->remote || !model->source)
        return false;
    struct bag_updates_table table = bag_change_updates_table(model);
    return bag_updates_lacks(changer->updates, &table);
}

void bag_change_forget_fallen(struct bag_changer *changer)
{
    for (size_t i = 0; i < changer->num_records; i++) {
        struct bag_record *record = changer->records[i];
        for (size_t j = record->num_retained; j-- > 0;) {
            if (bag_change_lacks_updates(changer, record->retained[j].model))
                release_retained(record, j);
        }
    }
}

/* Of those that the plan does without, the one that was held first; NULL: there is none. */
static struct bag_record *find_oldest(const struct bag_change_plan *plan, size_t *position)
{
    const struct bag_changer *changer = plan->changer;
    struct bag_record *oldest = NULL;
    for (size_t i = 0; i < changer->num_records; i++) {
        struct bag_record *record = changer->records[i];
        for (size_t j = 0; j < record->num_retained; j++) {
            if (bag_change_uses(plan, record->retained[j].model->stored) ||
                (oldest && oldest->retained[*position].order < record->retained[j].order))
                continue;
            oldest = record;
            *position = j;
        }
    }
    return oldest;
}

bool bag_change_let_go(struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    size_t position;
    struct bag_record *record = find_oldest(plan, &position);
    if (!record)
        return false;
    struct bag_model *model = bag_model_retain(record->retained[position].model);
    release_retained(record, position);
    bool has_left = changer->wait_until_left(changer->context, model, 1);
    bag_log(BAG_LOG_LEVEL_INFO, "held version let go", BAG_LOG_TEXT("model", model->name),
            BAG_LOG_TEXT("version", model->version));
    bag_model_release(model);
    return has_left;
}

/* How many versions of the model are held, as its default version says; of one that was unloaded,
 * none. */
static size_t max_retained(const struct bag_change_plan *plan, const char *name)
{
    const struct bag_change_entry *entry = bag_change_plan_find_default(plan, name);
    const struct bag_source *source = entry ? bag_entry_source(entry) : NULL;
    return source ? (size_t)source->model->keep_versions : 0;
}

/* From the newest on, as many as the model holds; what serves again is not held. */
static void trim_retained(const struct bag_change_plan *plan, struct bag_record *record)
{
    size_t limit = record->num_retained ? max_retained(plan, record->name) : 0;
    for (size_t i = record->num_retained; i-- > 0;) {
        if (record->num_retained - i > limit ||
            bag_change_uses(plan, record->retained[i].model->stored))
            release_retained(record, i);
    }
}

bool bag_change_is_to_unload(const struct bag_change_plan *plan, const struct bag_model *model)
{
    const struct bag_change_entry *entry =
        bag_change_find(plan->entries, plan->count, model->name, model->version);
    return entry && entry->model->is_unloaded;
}

void bag_change_keep_versions(struct bag_change_plan *plan)
{
    struct bag_changer *changer = plan->changer;
    struct bag_load_view *now = &changer->status->now;
    for (size_t i = 0; i < plan->num_prior; i++) {
        struct bag_model *model = plan->prior[i].model;
        if (model->stored && max_retained(plan, model->name) > 0 &&
            !bag_change_uses(plan, model->stored) && !bag_change_is_to_unload(plan, model) &&
            !keep(changer, model))
            break; /* it is loaded again when it is asked for */
    }
    now->num_kept = now->kept_bytes = 0;
    for (size_t i = 0; i < changer->num_records; i++) {
        struct bag_record *record = changer->records[i];
        trim_retained(plan, record);
        now->num_kept += record->num_retained;
        for (size_t j = 0; j < record->num_retained; j++)
            now->kept_bytes += bag_source_bytes(record->retained[j].model->source);
    }
    bag_load_status_tell(changer->status);
}

/* ---- versions that could not be loaded ------------------------------------------------------- */

/* Each version is tried once in a change, however long that takes. */
static bool is_of_change(const struct bag_change_plan *plan,
                         const struct bag_failed_version *failure)
{
    return failure->change == plan->changer->num_changes;
}

static bool is_recent(const struct bag_failed_version *failure)
{
    return uv_hrtime() - failure->at_ns < FAILURE_NS;
}

static uint64_t number_of(const struct bag_source *source)
{
    return strtoull(source->model->version, NULL, 10);
}

void bag_change_check_failures(const struct bag_change_plan *plan, struct bag_source *source)
{
    const struct bag_record *record = bag_record_find(plan->changer, source->model->name);
    for (size_t i = 0; record && i < record->num_failures; i++) {
        const struct bag_failed_version *failure = &record->failures[i];
        if (failure->number == number_of(source) && failure->fingerprint == source->fingerprint &&
            (is_of_change(plan, failure) ||
             (plan->kind != BAG_CHANGE_MODELS && is_recent(failure))))
            bag_source_reject(source, failure->problem.text);
    }
}

/* Notes that the version cannot be loaded as it is, and forgets what is too old to matter. */
static bool remember_failure(const struct bag_change_plan *plan, const struct bag_source *source,
                             const struct bag_problem *why)
{
    struct bag_record *record = bag_record_make(plan->changer, source->model->name);
    struct bag_failed_version *failures =
        record ? reallocarray(record->failures, record->num_failures + 1, sizeof *failures) : NULL;
    if (!failures)
        return false;
    record->failures = failures;
    for (size_t i = record->num_failures; i-- > 0;) {
        if (failures[i].number == number_of(source) ||
            (!is_of_change(plan, &failures[i]) && !is_recent(&failures[i])))
            failures[i] = failures[--record->num_failures];
    }
    failures[record->num_failures++] =
        (struct bag_failed_version){.number = number_of(source),
                                    .fingerprint = source->fingerprint,
                                    .at_ns = uv_hrtime(),
                                    .change = plan->changer->num_changes,
                                    .problem = *why};
    return true;
}

/* Whether the change is to fail for the version, as it was asked for; or would fail for others. */
static bool is_wanted(const struct bag_change_plan *plan, const struct bag_change_entry *failed,
                      const struct bag_problem *why)
{
    bool is_asked = plan->kind == BAG_CHANGE_MODELS || plan->kind == BAG_CHANGE_CONFIGURATION;
    return why->kind == BAG_ERROR_DRAINING ||
           (is_asked && (failed->is_default || why->kind == BAG_ERROR_NO_MEMORY));
}

bool bag_change_plan_may_go_without(const struct bag_change_plan *plan,
                                    const struct bag_problem *why)
{
    const struct bag_change_entry *failed = plan->failed;
    /* A model that was made, and could not be brought up to date, has its source already. */
    bool has_source = failed && (failed->source || failed->model);
    const struct bag_source *source = has_source ? bag_entry_source(failed) : NULL;
    if (!source || source->is_named || is_wanted(plan, failed, why) ||
        !remember_failure(plan, source, why))
        return false;
    for (size_t i = 0; i < plan->count; i++) {
        struct bag_model *model = &plan->entries[i] != failed ? plan->entries[i].model : NULL;
        if (model && model->stored && model->holders == 1 && !keep(plan->changer, model))
            return false;
    }
    return true;
}
