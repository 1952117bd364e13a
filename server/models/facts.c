/* Remembering and gathering facts about models; see facts.h. */
#include "facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* ---- records --------------------------------------------------------------------------------- */

/* Returns the index of the first record that is not before the name. */
static size_t lower_bound(const struct bag_models *models, const char *name)
{
    size_t low = 0, high = models->num_records;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(models->records[middle]->name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct bag_record *bag_record_find(const struct bag_models *models, const char *name)
{
    size_t i = lower_bound(models, name);
    bool found = i < models->num_records && strcmp(models->records[i]->name, name) == 0;
    return found ? models->records[i] : NULL;
}

struct bag_record *bag_record_make(struct bag_models *models, const char *name)
{
    size_t i = lower_bound(models, name), count = models->num_records;
    if (i < count && strcmp(models->records[i]->name, name) == 0)
        return models->records[i];
    struct bag_record *record = BAG_GROW(models->records, count) ? calloc(1, sizeof *record) : NULL;
    if (!record)
        return NULL;
    struct bag_record **place = &models->records[i];
    snprintf(record->name, sizeof record->name, "%s", name);
    memmove(place + 1, place, (count - i) * sizeof *place);
    models->num_records++;
    return *place = record;
}

/* Frees a record and releases its retained versions. */
static void free_record(struct bag_record *record)
{
    while (record->num_retained > 0)
        bag_record_release(record, record->num_retained - 1);
    free(record->retained);
    free(record->observed);
    free(record->failures);
    free(record);
}

/* Returns whether nothing is remembered that could matter to a later change. */
static bool is_empty(const struct bag_record *record)
{
    const struct bag_desired_state *desired = &record->desired;
    return !desired->is_unloaded && !desired->default_version && !desired->num_unloaded &&
           !record->num_observed && !record->num_failures && !record->num_retained &&
           !*record->logged.text;
}

void bag_models_forget(struct bag_models *models)
{
    size_t count = 0;
    for (size_t i = 0; i < models->num_records; i++) {
        struct bag_record *record = models->records[i];
        size_t found = 0;
        for (size_t j = 0; j < record->num_observed; j++) {
            if (record->observed[j].poll == models->num_polls)
                record->observed[found++] = record->observed[j];
        }
        record->num_observed = found;
        if (is_empty(record))
            free_record(record);
        else
            models->records[count++] = record;
    }
    models->num_records = count;
}

void bag_models_free(struct bag_models *models)
{
    for (size_t i = 0; i < models->num_records; i++)
        free_record(models->records[i]);
    free(models->records);
    models->records = NULL;
    models->num_records = 0;
}

/* ---- retained versions ----------------------------------------------------------------------- */

bool bag_models_add_retained(struct bag_models *models, struct bag_model *model)
{
    struct bag_record *record = bag_record_make(models, model->name);
    if (!record || !BAG_GROW(record->retained, record->num_retained))
        return false;
    record->retained[record->num_retained++] = (struct bag_retained_version){
        .model = bag_model_retain(model), .order = ++models->num_retained};
    return true;
}

void bag_record_release(struct bag_record *record, size_t index)
{
    bag_model_release(record->retained[index].model);
    memmove(&record->retained[index], &record->retained[index + 1],
            (record->num_retained - index - 1) * sizeof *record->retained);
    record->num_retained--;
}

struct bag_updates_table bag_updates_table_of(const struct bag_model *model)
{
    return (struct bag_updates_table){.name = model->name,
                                      .version = model->version_number,
                                      .memory = model->memory,
                                      .reader = &model->features[0].reader,
                                      .through = bag_source_updates_through(model->source),
                                      .deltas = model->source->deltas};
}

bool bag_models_lack_updates(const struct bag_models *models, const struct bag_model *model)
{
    if (!models->updates || !model->memory || model->memory->remote || !model->source)
        return false;
    struct bag_updates_table table = bag_updates_table_of(model);
    return bag_updates_lacks(models->updates, &table);
}

/* ---- what is published ----------------------------------------------------------------------- */

bool bag_facts_gather(struct bag_facts *facts, const char *only, struct bag_problem *problem)
{
    struct bag_models *models = facts->models;
    const struct bag_snapshot *current =
        atomic_load_explicit(&models->registry->current, memory_order_relaxed);
    size_t count = current ? current->count : 0, first = 0;
    if (current && only) {
        struct bag_model *const *versions = bag_snapshot_versions(current, only, &count);
        first = versions ? (size_t)(versions - current->models) : 0;
    } else {
        /* Release retained versions that lack an update: a roll back reads their files again. */
        for (size_t i = 0; i < models->num_records; i++) {
            struct bag_record *record = models->records[i];
            for (size_t j = record->num_retained; j-- > 0;) {
                if (bag_models_lack_updates(models, record->retained[j].model))
                    bag_record_release(record, j);
            }
        }
    }
    facts->plan = ++models->num_plans;
    facts->published = calloc(count + 1, sizeof *facts->published);
    if (!facts->published)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        struct bag_listed *published = &facts->published[facts->num_published++];
        *published = only ? current->versions[first + i] : *current->listed[i];
        bag_model_retain(published->model);
        if (published->remark && !(published->remark = strdup(published->remark)))
            return bag_problem_no_memory(problem);
    }
    return true;
}

void bag_facts_free(struct bag_facts *facts)
{
    for (size_t i = 0; i < facts->num_published; i++) {
        bag_model_release(facts->published[i].model);
        free(facts->published[i].remark);
    }
    free(facts->published);
    facts->published = NULL;
    facts->num_published = 0;
}

struct bag_listed *bag_facts_find(const struct bag_facts *facts, const char *name,
                                  const char *version)
{
    for (size_t i = 0; i < facts->num_published; i++) {
        const struct bag_model *model = facts->published[i].model;
        if (strcmp(model->name, name) == 0 && strcmp(model->version, version) == 0)
            return &facts->published[i];
    }
    return NULL;
}

struct bag_model *bag_facts_find_ready(const struct bag_facts *facts, const char *name,
                                       const char *version)
{
    const struct bag_listed *found = bag_facts_find(facts, name, version);
    return found && found->model->state == BAG_MODEL_READY ? found->model : NULL;
}

/* Returns the model's table if it was read from these files and has all updates. */
static struct bag_stored_table *stored_of(const struct bag_models *models,
                                          const struct bag_model *model, uint64_t fingerprint)
{
    bool is_same = model->stored && model->stored->fingerprint == fingerprint;
    return is_same && !bag_models_lack_updates(models, model) ? model->stored : NULL;
}

struct bag_stored_table *bag_facts_find_stored(const struct bag_facts *facts, uint64_t fingerprint)
{
    const struct bag_models *models = facts->models;
    struct bag_stored_table *stored = NULL;
    for (size_t i = 0; !stored && i < facts->num_published; i++)
        stored = stored_of(models, facts->published[i].model, fingerprint);
    for (size_t i = 0; !stored && i < models->num_records; i++) {
        const struct bag_record *record = models->records[i];
        for (size_t j = 0; !stored && j < record->num_retained; j++)
            stored = stored_of(models, record->retained[j].model, fingerprint);
    }
    return stored;
}

/* ---- what is asked for ----------------------------------------------------------------------- */

struct bag_desired_state *bag_facts_desired_state(const struct bag_facts *facts, const char *name)
{
    struct bag_record *record = bag_record_make(facts->models, name);
    if (!record)
        return NULL;
    if (record->desired_by != facts->plan)
        record->planned = record->desired;
    record->desired_by = facts->plan;
    return &record->planned;
}

void bag_facts_commit(const struct bag_facts *facts)
{
    for (size_t i = 0; i < facts->models->num_records; i++) {
        struct bag_record *record = facts->models->records[i];
        if (record->desired_by == facts->plan)
            record->desired = record->planned;
    }
}

/* ---- versions that failed to load ------------------------------------------------------------ */

static uint64_t number_of(const struct bag_source *source)
{
    return strtoull(source->model->version, NULL, 10);
}

void bag_models_count_failure(struct bag_models *models)
{
    models->status.now.num_failed++;
    bag_load_status_report(&models->status);
}

/* Returns the failure of a version, or NULL. */
static struct bag_failed_version *find_failure(const struct bag_record *record, uint64_t number)
{
    for (size_t i = 0; i < record->num_failures; i++) {
        if (record->failures[i].number == number)
            return &record->failures[i];
    }
    return NULL;
}

/* Returns whether this change does not try a failed version again. */
static bool skips(const struct bag_facts *facts, const struct bag_failed_version *failure)
{
    return bag_plan_skips_failed(facts->kind, failure->change == facts->models->num_changes,
                                 uv_hrtime() - failure->at_ns);
}

bool bag_facts_add_failure(const struct bag_facts *facts, const struct bag_source *source,
                           const struct bag_problem *why)
{
    struct bag_models *models = facts->models;
    struct bag_record *record = bag_record_make(models, source->model->name);
    struct bag_failed_version *failure = record ? find_failure(record, number_of(source)) : NULL;
    if (!failure) {
        if (!record || !BAG_GROW(record->failures, record->num_failures))
            return false;
        failure = &record->failures[record->num_failures++];
        *failure = (struct bag_failed_version){.number = number_of(source)};
    }
    if (failure->fingerprint != source->fingerprint ||
        strcmp(failure->problem.text, why->text) != 0)
        bag_models_count_failure(models);
    failure->fingerprint = source->fingerprint;
    failure->at_ns = uv_hrtime();
    failure->change = models->num_changes;
    failure->problem = *why;
    return true;
}

/* Forgets failures of versions that have no files any more. */
static void forget_failures(struct bag_record *record, const struct bag_model_plan *plan)
{
    for (size_t i = record->num_failures; i-- > 0;) {
        bool found = false;
        for (size_t j = 0; !found && j < plan->count; j++)
            found = plan->versions[j].number == record->failures[i].number;
        if (!found)
            record->failures[i] = record->failures[--record->num_failures];
    }
}

/* ---- the files of a version ------------------------------------------------------------------ */

/* Returns whether the last two polls found the same files, and remembers what this poll finds. */
static bool is_settled(const struct bag_model_facts *of_model, const struct bag_source *source)
{
    struct bag_record *record = of_model->record;
    uint64_t poll = of_model->facts->models->num_polls, number = number_of(source);
    struct bag_observed_state *observed = NULL;
    for (size_t i = 0; i < record->num_observed; i++) {
        if (record->observed[i].number == number)
            observed = &record->observed[i];
    }
    if (!observed) {
        if (!BAG_GROW(record->observed, record->num_observed))
            return false;
        observed = &record->observed[record->num_observed++];
        *observed = (struct bag_observed_state){.number = number};
    }
    if (observed->poll != poll) {
        observed->is_same = observed->poll && observed->fingerprint == source->fingerprint;
        observed->fingerprint = source->fingerprint;
        observed->poll = poll;
    }
    return observed->is_same;
}

/* Opens the files of a source. If they are bad, or failed to load before, sets the reason in the
 * source's configuration. */
static void open_files(struct bag_model_facts *of_model, struct bag_source *source)
{
    struct bag_problem why;
    if (source->is_open || source->model->reason)
        return;
    if (!bag_source_open_table(source, &why)) {
        bag_source_reject(source, why.text);
        of_model->lacks_memory |= why.kind == BAG_ERROR_NO_MEMORY;
    } else {
        /* Reject a source whose files failed to load before and are not tried again. */
        const struct bag_failed_version *failure =
            find_failure(of_model->record, number_of(source));
        if (failure && failure->fingerprint == source->fingerprint &&
            skips(of_model->facts, failure))
            bag_source_reject(source, failure->problem.text);
    }
}

/* Returns whether the model was made of the same files and configuration as the source. */
static bool is_of(const struct bag_model *model, const struct bag_source *source)
{
    return model && model->source && model->source->fingerprint == source->fingerprint;
}

/* Returns whether what serves lacks updates. The default version is only looked at if a request
 * names its number. */
static bool is_behind(const struct bag_model_facts *of_model,
                      const struct bag_version_plan *version)
{
    const struct bag_control_item *item = of_model->plan.item;
    bool is_asked = item && !item->unload && version->number == strtoull(item->version, NULL, 10);
    return (is_asked || !version->was_default) &&
           bag_models_lack_updates(of_model->facts->models, version->ready);
}

/* Remembers why a version is bad, so that it is counted once. Without memory it may be counted
 * again.
 */
static void note_bad(const struct bag_model_facts *of_model, const struct bag_source *source)
{
    const struct bag_failed_version *failure = find_failure(of_model->record, number_of(source));
    struct bag_problem why;
    if (bag_model_has_shards(source->model) ||
        (failure && strcmp(failure->problem.text, source->model->reason) == 0))
        return;
    bag_problem_set(&why, BAG_ERROR_FILE, "%s", source->model->reason);
    bag_facts_add_failure(of_model->facts, source, &why);
}

/* Compares the files of a version with what is in memory; see struct bag_model_plan. A collection
 * has no files of its own. Polls do not trust files that changed since the last poll, unless a
 * ready_file marks complete versions. */
static void check_files(void *context, struct bag_version_plan *version)
{
    struct bag_model_facts *of_model = context;
    const struct bag_facts *facts = of_model->facts;
    struct bag_source *source = *version->source;
    bool is_collection = bag_source_is_collection(source);
    if (!is_collection)
        open_files(of_model, source);
    version->is_named = source->is_named;
    if (source->model->reason) {
        version->files = BAG_FILES_BAD;
        note_bad(of_model, source);
    } else if (is_collection)
        version->files = BAG_FILES_NEW;
    else if (is_of(version->ready, source))
        version->files = BAG_FILES_SERVING;
    else if (facts->kind == BAG_CHANGE_POLL && !source->remote &&
             !facts->models->options->ready_file && !is_settled(of_model, source))
        version->files = BAG_FILES_CHANGING;
    else
        version->files = is_of(version->retained, source) ? BAG_FILES_RETAINED : BAG_FILES_NEW;
    version->is_behind = version->files == BAG_FILES_SERVING && is_behind(of_model, version);
}

uint64_t bag_facts_oldest_through(const struct bag_facts *facts, const char *name)
{
    size_t count;
    const struct bag_named_source *found = bag_catalog_find(facts->catalog, name, &count);
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        struct bag_source *source = *found[i].place;
        struct bag_problem why;
        if (!source || source->model->reason || bag_source_is_collection(source))
            continue;
        if (!source->is_open && !bag_source_open_table(source, &why))
            bag_source_reject(source, why.text);
        else if (bag_source_updates_through(source) < oldest)
            oldest = bag_source_updates_through(source);
    }
    return oldest;
}

/* ---- the versions of one model --------------------------------------------------------------- */

/* Returns the version of that number. If it is not in the plan, adds it if `adds`, or returns NULL.
 */
static struct bag_version_plan *find(struct bag_model_plan *plan, uint64_t number, bool adds)
{
    size_t i = plan->count;
    while (i > 0 && plan->versions[i - 1].number >= number)
        i--;
    struct bag_version_plan *version = &plan->versions[i];
    if (i < plan->count && version->number == number)
        return version;
    if (!adds)
        return NULL;
    memmove(version + 1, version, (plan->count - i) * sizeof *version);
    *version = (struct bag_version_plan){.number = number};
    plan->count++;
    return version;
}

/* Returns the version of that number, which is in memory. Adds it only if a request asked for it;
 * otherwise it counts only if its files exist. Returns NULL if it does not count. */
static struct bag_version_plan *find_loaded(struct bag_model_plan *plan, uint64_t number)
{
    uint64_t wanted =
        plan->item ? strtoull(plan->item->version, NULL, 10) : plan->desired->default_version;
    return find(plan, number, number == wanted);
}

/* Returns the policy of the highest version. */
static struct bag_version_policy find_policy(const struct bag_model_plan *plan)
{
    for (size_t i = plan->count; i-- > 0;) {
        const struct bag_version_plan *version = &plan->versions[i];
        const struct bag_source *source = version->source  ? *version->source
                                          : version->ready ? version->ready->source
                                                           : version->retained->source;
        if (source)
            return bag_source_policy(source);
    }
    return (struct bag_version_policy){0};
}

bool bag_facts_gather_model(const struct bag_facts *facts, const char *name,
                            struct bag_model_facts *of_model, struct bag_problem *problem)
{
    struct bag_model_plan *plan = &of_model->plan;
    struct bag_version_plan *version;
    size_t count;
    const struct bag_named_source *found = bag_catalog_find(facts->catalog, name, &count);
    *of_model = (struct bag_model_facts){
        .facts = facts,
        .name = name,
        .plan = {.kind = facts->kind,
                 .item = bag_control_find(facts->control, name),
                 .desired = bag_facts_desired_state(facts, name),
                 .versions = calloc(count + 2, sizeof(struct bag_version_plan)),
                 .check_files = check_files,
                 .context = of_model}};
    if (!plan->desired || !plan->versions)
        return bag_problem_no_memory(problem);
    of_model->record = bag_record_find(facts->models, name);
    for (size_t i = 0; i < count; i++) {
        if (*found[i].place)
            find(plan, number_of(*found[i].place), true)->source = found[i].place;
    }
    forget_failures(of_model->record, plan);
    for (size_t i = 0; i < of_model->record->num_retained; i++) {
        struct bag_model *model = of_model->record->retained[i].model;
        if ((version = find_loaded(plan, model->version_number)))
            version->retained = model;
    }
    for (size_t i = 0; i < facts->num_published; i++) {
        struct bag_model *model = facts->published[i].model;
        if (model->state != BAG_MODEL_READY || strcmp(model->name, name) != 0)
            continue;
        plan->serves = true;
        if ((version = find_loaded(plan, model->version_number))) {
            version->ready = model;
            version->was_default = facts->published[i].is_default;
        }
    }
    plan->policy = find_policy(plan);
    return true;
}
