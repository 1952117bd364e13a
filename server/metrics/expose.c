/* Writes the counters in Prometheus' text format and as statistics; see metrics.h.
 *
 * A family is one metric: a line # HELP, a line # TYPE, and a sample for each model and each value
 * of its label. The format wants all samples of a family together, so the counters of all models
 * are added up first. */
#include "metrics.h"
#include "prometheus.h"

#include "server/models/load_status.h"
#include "server/shards/remote.h"
#include "server/tables/live_rows.h"
#include "server/updates/updates.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The types of table.h. */
enum type { COUNTER, TIME, GAUGE, SECONDS, SIZES, MOMENT };

/* The values of a label. */
struct label {
    const char *key; /* NULL: a single counter without this label */
    const char *const *values;
    size_t count;
};

/* One line of table.h. */
struct family {
    const char *name, *unit, *sentence;
    enum type type;
    const struct label *label;
    size_t offset; /* offset in the struct of counters */
};

/* ---- the lists of table.h -------------------------------------------------------------------- */

#define BAG_X(id, value, ...) value,
static const char *const stages[] = {BAG_STAGES(BAG_X)};
static const char *const rejections[] = {BAG_REJECTIONS(BAG_X)};
static const char *const failures[] = {BAG_FAILURES(BAG_X)};
#undef BAG_X
#define BAG_X(status) #status,
static const char *const statuses[] = {BAG_HTTP_STATUSES(BAG_X) "other"};
#undef BAG_X

static const struct label label_ONE = {NULL, NULL, BAG_VALUES_ONE};
static const struct label label_STAGE = {"stage", stages, BAG_VALUES_STAGE};
static const struct label label_REJECTION = {"reason", rejections, BAG_VALUES_REJECTION};
static const struct label label_FAILURE = {"reason", failures, BAG_VALUES_FAILURE};
static const struct label label_STATUS = {"code", statuses, BAG_VALUES_STATUS};

#define BAG_FAMILY(counters, member, TYPE, LABEL, name, unit, sentence) \
    {name, unit, sentence, TYPE, &label_##LABEL, offsetof(struct counters, member)},
#define BAG_X(...) BAG_FAMILY(bag_model_counters, __VA_ARGS__)
static const struct family model_families[] = {BAG_MODEL_METRICS(BAG_X)};
#undef BAG_X
#define BAG_X(...) BAG_FAMILY(bag_loop_counters, __VA_ARGS__)
static const struct family loop_families[] = {BAG_LOOP_METRICS(BAG_X)};
#undef BAG_X

#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])

/* The properties of each type. */
static const struct {
    const char *type_name;
    size_t slots, num_bounds; /* counters for a value of the label; bounds among them */
    const uint64_t *bounds;   /* NULL: not a histogram */
} types[] = {
    [COUNTER] = {"counter", BAG_SLOTS_COUNTER, 0, NULL},
    [TIME] = {"counter", BAG_SLOTS_TIME, 0, NULL},
    [GAUGE] = {"gauge", BAG_SLOTS_GAUGE, 0, NULL},
    [MOMENT] = {"gauge", BAG_SLOTS_MOMENT, 0, NULL},
    [SECONDS] = {"histogram", BAG_SLOTS_SECONDS, BAG_SECONDS_BOUND_COUNT, bag_seconds_bounds},
    [SIZES] = {"histogram", BAG_SLOTS_SIZES, BAG_SIZES_BOUND_COUNT, bag_sizes_bounds},
};

/* ---- samples --------------------------------------------------------------------------------- */

/* Begins a sample with the labels of a version of a model. */
static void begin_version(struct bag_prometheus *out, const char *name, const char *suffix,
                          const struct bag_model *model)
{
    bag_prometheus_sample(out, name, suffix);
    bag_prometheus_label(out, "model", model->name);
    bag_prometheus_label(out, "version", model->version);
}

/* Begins a sample with the labels of its model (NULL: none) and of its family. */
static void begin(struct bag_prometheus *out, const struct bag_model *model,
                  const struct family *family, size_t value, const char *suffix)
{
    if (model)
        begin_version(out, family->name, suffix, model);
    else
        bag_prometheus_sample(out, family->name, suffix);
    if (family->label->key)
        bag_prometheus_label(out, family->label->key, family->label->values[value]);
}

/* Writes all samples of a family for one model, or for the server. */
static void write_samples(struct bag_prometheus *out, const struct bag_metrics *metrics,
                          const struct bag_model *model, const struct family *family,
                          const void *all_counters)
{
    const bag_counter *counters =
        (const bag_counter *)all_counters + family->offset / sizeof *counters;
    for (size_t value = 0; value < family->label->count; value++) {
        const bag_counter *counter = counters + value * types[family->type].slots;
        if (types[family->type].bounds) {
            /* Write a histogram. The counts of its buckets are cumulative, and the last bucket has
             * all values. */
            size_t num_bounds = types[family->type].num_bounds;
            bool ns = family->type == SECONDS;
            uint64_t count = 0;
            for (size_t i = 0; i <= num_bounds; i++) {
                count += bag_counter_get(&counter[i]);
                begin(out, model, family, value, "_bucket");
                if (i < num_bounds)
                    bag_prometheus_bound(out, types[family->type].bounds[i], ns);
                else
                    bag_prometheus_label(out, "le", "+Inf");
                bag_prometheus_value(out, count, false);
            }
            begin(out, model, family, value, "_sum");
            bag_prometheus_value(out, bag_counter_get(&counter[num_bounds + 1]), ns);
            begin(out, model, family, value, "_count");
            bag_prometheus_value(out, count, false);
            continue;
        }
        begin(out, model, family, value, "");
        if (family->type == MOMENT)
            bag_prometheus_value(
                out, bag_metrics_epoch_ms(metrics, bag_counter_get(counter)) * 1000000, true);
        else
            bag_prometheus_value(out, bag_counter_get(counter), family->type == TIME);
    }
}

static void write_head(struct bag_prometheus *out, const struct family *family)
{
    bag_prometheus_family(out, family->name, types[family->type].type_name, family->sentence,
                          family->unit);
}

/* ---- families -------------------------------------------------------------------------------- */

/* Writes one of Triton's sums, which is the sum of a histogram in microseconds. The histogram has
 * its own family. */
static void write_sum(struct bag_prometheus *out, const char *name, const char *sentence,
                      const struct bag_snapshot *snapshot,
                      const struct bag_model_counters *counters, size_t offset)
{
    bag_prometheus_family(out, name, "counter", sentence, "microseconds");
    for (size_t i = 0; i < snapshot->count; i++) {
        const bag_counter *histogram =
            (const bag_counter *)&counters[i] + offset / sizeof *histogram;
        begin_version(out, name, "", snapshot->models[i]);
        bag_prometheus_value(out, bag_counter_get(&histogram[BAG_SLOTS_SECONDS - 1]) / 1000, false);
    }
}

/* Writes one sample for each model, with its state. */
static void write_states(struct bag_prometheus *out, const struct bag_snapshot *snapshot)
{
    static const char name[] = "bagserve_model_state";
    bag_prometheus_family(out, name, "gauge", "The state of a model, as a label.", "1");
    for (size_t i = 0; i < snapshot->count; i++) {
        begin_version(out, name, "", snapshot->models[i]);
        bag_prometheus_label(out, "state", bag_model_state_names[snapshot->models[i]->state]);
        if (*snapshot->models[i]->reason)
            bag_prometheus_label(out, "reason", snapshot->models[i]->reason);
        bag_prometheus_value(out, 1, false);
    }
}

/* Returns what versions of one model share, such as the stream of updates, if the model at this
 * index is the first version that has it. Returns NULL otherwise. */
static const void *first_shared(const struct bag_snapshot *snapshot, size_t model,
                                const void *(*of)(const struct bag_table_memory *memory))
{
    struct bag_model *const *at = &snapshot->models[model];
    const void *shared = at[0]->memory ? of(at[0]->memory) : NULL;
    for (; shared && at > snapshot->models && strcmp(at[-1]->name, at[0]->name) == 0; at--) {
        if (at[-1]->memory && of(at[-1]->memory) == shared)
            return NULL;
    }
    return shared;
}

static const void *stream_of(const struct bag_table_memory *memory)
{
    return memory->live ? memory->live->stream : NULL;
}

static const void *group_of(const struct bag_table_memory *memory)
{
    return memory->remote ? memory->remote->group : NULL;
}

/* The scales of table.h, in ns. WHOLE is exposed unchanged. */
enum scale { WHOLE = 0, NS = 1, MS = 1000000 };

/* Writes a value in seconds, or unchanged if the scale is WHOLE. */
static void write_scaled(struct bag_prometheus *out, uint64_t value, enum scale scale)
{
    bag_prometheus_value(out, scale == WHOLE ? value : value * scale, scale != WHOLE);
}

/* Writes a family for each line of BAG_UPDATE_METRICS, unless no model has updates. */
static void write_updates(struct bag_prometheus *out, const struct bag_snapshot *snapshot)
{
    size_t num_streams = 0;
    for (size_t i = 0; i < snapshot->count; i++)
        num_streams += first_shared(snapshot, i, stream_of) != NULL;
    if (!num_streams)
        return;
#define BAG_X(member, type, SCALE, family, unit, sentence)                              \
    bag_prometheus_family(out, family, type, sentence, unit);                           \
    for (size_t i = 0; i < snapshot->count; i++) {                                      \
        const struct bag_updates_stream *stream = first_shared(snapshot, i, stream_of); \
        if (!stream)                                                                    \
            continue;                                                                   \
        uint64_t value = atomic_load_explicit(&stream->member, memory_order_relaxed);   \
        bag_prometheus_sample(out, family, "");                                         \
        bag_prometheus_label(out, "model", stream->name);                               \
        write_scaled(out, value, SCALE);                                                \
    }
    BAG_UPDATE_METRICS(BAG_X)
#undef BAG_X
}

/* Writes the sizes of tables, as the models' metadata shows them. */
static void write_tables(struct bag_prometheus *out, const struct bag_snapshot *snapshot)
{
    static const struct {
        const char *name, *sentence, *unit;
        bool needs_keys; /* shown of keyed tables only */
    } gauges[] = {
        {"bagserve_table_rows", "Rows of a model's table; of a keyed one the keys that it has now.",
         "rows", false},
        {"bagserve_table_row_elements", "Elements of a row of a model's table.", "elements", false},
        {"bagserve_table_bytes", "Bytes of a model's table, with its index of keys.", "bytes",
         false},
        {"bagserve_table_huge_page_bytes",
         "Bytes of a model's table that were in huge pages when it was loaded.", "bytes", false},
        {"bagserve_table_mapped_bytes", "Bytes of a model's table that stay in its file.", "bytes",
         false},
        {"bagserve_table_spare_rows", "Rows that new keys of a keyed table can still have.", "rows",
         true},
        {"bagserve_table_spare_rows_limit", "Most of them (spare_rows).", "rows", true}};
    for (size_t i = 0; i < COUNT_OF(gauges); i++) {
        bag_prometheus_family(out, gauges[i].name, "gauge", gauges[i].sentence, gauges[i].unit);
        for (size_t j = 0; j < snapshot->count; j++) {
            const struct bag_table_memory *memory = snapshot->models[j]->memory;
            if (!memory || (gauges[i].needs_keys && !bag_table_is_keyed(memory)))
                continue;
            const uint64_t values[] = {(uint64_t)bag_table_rows_now(memory),
                                       memory->table.row_elements,
                                       bag_table_memory_bytes(memory),
                                       memory->huge_bytes,
                                       memory->map ? bag_table_rows_bytes(memory) : 0,
                                       (uint64_t)bag_table_spare_rows_now(memory),
                                       memory->spare_rows};
            begin_version(out, gauges[i].name, "", snapshot->models[j]);
            bag_prometheus_value(out, values[i], false);
        }
    }
}

/* Reports the rows of the feature that are looked up most. */
static void read_hot_rows(const struct bag_feature *feature, struct bag_hot_report *report)
{
    bag_hot_rows_read(feature->hot, (uint64_t)bag_table_rows_now(feature->memory), report);
}

/* Returns whether this server knows which keys of the feature are missing. A coordinator does not
 * look up keys. */
static bool counts_missing(const struct bag_feature *feature)
{
    return feature->rules.keyed && !feature->memory->remote;
}

/* Writes the families of features, of versions in slots below `max_histograms`. */
static void write_features(struct bag_prometheus *out, const struct bag_snapshot *snapshot,
                           size_t max_histograms)
{
    enum { SAMPLED_IDS, MISSING_KEYS, HOTTEST_RATIO };
    static const struct {
        const char *name, *type, *sentence, *unit;
    } families[] = {
        [SAMPLED_IDS] = {"bagserve_sampled_ids_total", "counter",
                         "Ids of a feature's rows that were sampled, about 1 of 64 of those in "
                         "requests.",
                         "ids"},
        [MISSING_KEYS] = {"bagserve_feature_missing_keys_total", "counter",
                          "Keys of a feature that its table did not have.", "keys"},
        [HOTTEST_RATIO] = {"bagserve_hottest_rows_ratio", "gauge",
                           "Part of a feature's lookups that is of the hottest 1 % of the rows, "
                           "by the sampled ids.",
                           "1"}};
    for (size_t family = 0; family < COUNT_OF(families); family++) {
        bag_prometheus_family(out, families[family].name, families[family].type,
                              families[family].sentence, families[family].unit);
        for (size_t i = 0; i < snapshot->count; i++) {
            const struct bag_model *model = snapshot->models[i];
            for (size_t j = 0; j < model->num_features && model->slot < max_histograms; j++) {
                const struct bag_feature *feature = &model->features[j];
                struct bag_hot_report report BAG_UNSET;
                uint64_t value = 0;
                if (family == MISSING_KEYS && !counts_missing(feature))
                    continue;
                if (family == SAMPLED_IDS)
                    value = atomic_load(&feature->hot->sampled);
                else if (family == MISSING_KEYS)
                    value = atomic_load(&feature->hot->missing);
                else {
                    read_hot_rows(feature, &report);
                    value = (uint64_t)(report.hottest_share * 1e9);
                }
                begin_version(out, families[family].name, "", model);
                bag_prometheus_label(out, "feature", feature->name);
                bag_prometheus_value(out, value, family == HOTTEST_RATIO);
            }
        }
    }
}

/* Writes the number of subrequests to each shard by outcome, unless no model has shards. */
static void write_shards(struct bag_prometheus *out, const struct bag_snapshot *snapshot)
{
    static const char name[] = "bagserve_shard_requests_total";
    static const char *const outcomes[] = {BAG_SHARD_OUTCOMES(BAG_NAME)};
    bool any = false;
    for (size_t i = 0; i < snapshot->count; i++) {
        const struct bag_shard_group *group = first_shared(snapshot, i, group_of);
        if (group && !any)
            bag_prometheus_family(out, name, "counter",
                                  "Calls to a model's shards, by what came of them.", "requests");
        any |= group != NULL;
        for (size_t j = 0; group && j < group->num_members * BAG_SHARD_OUTCOME_COUNT; j++) {
            const struct bag_shard_member *member = &group->members[j / BAG_SHARD_OUTCOME_COUNT];
            size_t outcome = j % BAG_SHARD_OUTCOME_COUNT;
            bag_prometheus_sample(out, name, "");
            bag_prometheus_label(out, "model", snapshot->models[i]->name);
            bag_prometheus_label(out, "shard", member->host->address.text);
            bag_prometheus_label(out, "outcome", outcomes[outcome]);
            bag_prometheus_value(
                out, atomic_load_explicit(&member->outcomes[outcome], memory_order_relaxed), false);
        }
    }
}

/* Writes the families of the whole server. */
static void write_loops(struct bag_prometheus *out, const struct bag_metrics *metrics)
{
    struct bag_loop_counters counters;
    bag_metrics_sum_loops(metrics, &counters);
    for (size_t i = 0; i < COUNT_OF(loop_families); i++) {
        write_head(out, &loop_families[i]);
        write_samples(out, metrics, NULL, &loop_families[i], &counters);
    }
}

/* Writes the families of the process, read now, and the version of the program. */
static void write_process(struct bag_prometheus *out, const struct bag_metrics *metrics,
                          const char *version)
{
    struct bag_process_stats counters;
    const struct bag_budget *budget = metrics->budget;
    bag_process_sample(&counters);
    /* Fill in the progress of loading tables and the changes of models. */
    struct bag_load_status *status = metrics->loading;
    struct bag_load_view view;
    bag_load_status_read(status, &view);
    counters.load_bytes = view.done_bytes;
    counters.load_total_bytes = view.total_bytes;
    counters.load_left_ns = (uint64_t)(view.left_s * 1e9);
    counters.changes = view.num_done;
    counters.failed_changes = view.num_failed;
    counters.last_change_ms = view.done_at_ms;
    counters.retained_versions = view.num_retained;
    counters.retained_bytes = view.retained_bytes;
    counters.busy_workers = atomic_load(&metrics->busy_workers);
    counters.table_bytes = bag_pages_used();
    counters.max_table_bytes = bag_pages_limit();
    counters.huge_refusals = bag_pages_huge_refusals();
    counters.node_refusals = bag_pages_node_refusals();
    counters.latency_target_ms = metrics->latency_target_ms;
    counters.spans_dropped = metrics->spans_dropped ? atomic_load(metrics->spans_dropped) : 0;
    if (budget) {
        counters.request_bytes = atomic_load(&budget->used_bytes);
        counters.max_request_bytes = budget->max_bytes;
    }
#define BAG_X(member, type, SCALE, name, unit, sentence)    \
    bag_prometheus_family(out, name, type, sentence, unit); \
    bag_prometheus_sample(out, name, "");                   \
    write_scaled(out, counters.member, SCALE);
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
    bag_prometheus_family(out, "bagserve_build_info", "gauge", "The program's version, as a label.",
                          "1");
    bag_prometheus_sample(out, "bagserve_build_info", "");
    bag_prometheus_label(out, "version", version);
    bag_prometheus_value(out, 1, false);
}

/* Returns all metrics as text. If `version` is NULL, returns the metrics of the models only, with
 * all histograms. */
static char *expose(const struct bag_metrics *metrics, const struct bag_snapshot *snapshot,
                    const char *version)
{
    struct bag_prometheus out = {0};
    struct bag_model_counters *counters = malloc((snapshot->count + 1) * sizeof *counters);
    for (size_t i = 0; counters && i < snapshot->count; i++)
        bag_metrics_sum_model(metrics, snapshot->models[i], &counters[i]);
    if (!counters)
        return NULL;
    /* Write the families of models. Versions in slots from `max_histograms` on have no histograms,
     * which are most of the text. */
    size_t max_histograms = version ? metrics->max_histograms : SIZE_MAX;
    for (size_t i = 0; i < COUNT_OF(model_families); i++) {
        write_head(&out, &model_families[i]);
        bool histogram = types[model_families[i].type].bounds != NULL;
        for (size_t j = 0; j < snapshot->count; j++) {
            if (!histogram || snapshot->models[j]->slot < max_histograms)
                write_samples(&out, metrics, snapshot->models[j], &model_families[i], &counters[j]);
        }
    }
    write_sum(&out, "nv_inference_request_duration_us", "Time of all stages together.", snapshot,
              counters, offsetof(struct bag_model_counters, duration));
#define BAG_X(id, value, name, sentence)                \
    write_sum(&out, name, sentence, snapshot, counters, \
              offsetof(struct bag_model_counters, stage[BAG_STAGE_##id]));
    BAG_STAGES(BAG_X)
#undef BAG_X
    write_states(&out, snapshot);
    write_updates(&out, snapshot);
    write_tables(&out, snapshot);
    write_features(&out, snapshot, max_histograms);
    write_shards(&out, snapshot);
    if (version) {
        write_loops(&out, metrics);
        write_process(&out, metrics, version);
    }
    free(counters);
    return bag_prometheus_end(&out);
}

char *bag_expose_prometheus(const struct bag_metrics *metrics, const struct bag_snapshot *snapshot,
                            const char *version)
{
    return expose(metrics, snapshot, version);
}

char *bag_expose_models(const struct bag_metrics *metrics, struct bag_model *const *models,
                        size_t count)
{
    /* The functions that write models use only these two members. */
    const struct bag_snapshot some = {.models = (struct bag_model **)(uintptr_t)models,
                                      .count = count};
    return expose(metrics, &some, NULL);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Writes {"count", "ns"}, the form of durations in Triton's statistics. */
static void write_duration(struct bag_json_writer *json, const char *key, uint64_t count,
                           uint64_t ns)
{
    bag_json_open(json, key, '{');
    BAG_JSON_WRITE(json, BAG_KEY("count", count), BAG_KEY("ns", ns));
    bag_json_close(json);
}

/* Writes the number of durations in a histogram and their sum. For batches the number is
 * `executions`; 0 means that it is the number of values. */
static void write_durations(struct bag_json_writer *json, const char *key,
                            const bag_counter *histogram, uint64_t executions)
{
    write_duration(json, key, executions ? executions : bag_histogram_count(histogram),
                   bag_counter_get(&histogram[BAG_SLOTS_SECONDS - 1]));
}

/* Returns whether a feature of the model has keys. */
static bool is_keyed(const struct bag_model *model)
{
    bool keyed = false;
    for (size_t i = 0; i < model->num_features; i++)
        keyed |= model->features[i].rules.keyed;
    return keyed;
}

/* Writes the rows of a feature that are looked up most. Ids are texts, because JSON's numbers do
 * not hold all keys. */
static void write_hot_rows(struct bag_json_writer *json, const struct bag_feature *feature)
{
    struct bag_hot_report report BAG_UNSET;
    read_hot_rows(feature, &report);
    bag_json_open(json, NULL, '{');
    BAG_JSON_WRITE(json, BAG_KEY("feature", (const char *)feature->name),
                   BAG_KEY("sampled_id_count", (uint64_t)atomic_load(&feature->hot->sampled)),
                   BAG_KEY_IF(counts_missing(feature), "missing_key_count",
                              (uint64_t)atomic_load(&feature->hot->missing)),
                   BAG_KEY("hottest_row_count", (uint64_t)report.hottest),
                   BAG_KEY("hottest_share", report.hottest_share));
    bag_json_open(json, "top", '[');
    for (size_t i = 0; i < report.num_top; i++) {
        char id[24];
        snprintf(id, sizeof id, "%" PRId64, (int64_t)report.top[i].id);
        bag_json_open(json, NULL, '{');
        BAG_JSON_WRITE(json, BAG_KEY("id", (const char *)id),
                       BAG_KEY("share", report.top[i].share));
        bag_json_close(json);
    }
    bag_json_close(json);
    bag_json_close(json);
}

void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           bool hot_rows, struct bag_json_writer *json)
{
    struct bag_model_counters counters;
    uint64_t failures_count = 0;
    bag_metrics_sum_model(metrics, model, &counters);
    for (int i = 0; i < BAG_FAILURE_COUNT; i++)
        failures_count += bag_counter_get(counters.failure[i]);
    const uint64_t executions = bag_counter_get(counters.executions[0]),
                   last_ms = bag_metrics_epoch_ms(metrics, bag_counter_get(counters.last[0]));
    bag_json_open(json, NULL, '{');
    BAG_JSON_WRITE(
        json, BAG_KEY("name", (const char *)model->name),
        BAG_KEY("version", (const char *)model->version), BAG_KEY("last_inference", last_ms),
        BAG_KEY("inference_count", bag_counter_get(counters.bags[0])),
        BAG_KEY("execution_count", executions),
        BAG_KEY_IF(is_keyed(model), "missing_key_count", bag_counter_get(counters.missing[0])));
    bag_json_open(json, "inference_stats", '{');
    write_durations(json, "success", counters.duration[0], 0);
    write_duration(json, "fail", failures_count, bag_counter_get(counters.failure_ns[0]));
    write_durations(json, "queue", counters.stage[BAG_STAGE_QUEUE], 0);
    write_durations(json, "compute_input", counters.stage[BAG_STAGE_INPUT], 0);
    write_durations(json, "compute_infer", counters.stage[BAG_STAGE_INFER], 0);
    write_durations(json, "compute_output", counters.stage[BAG_STAGE_OUTPUT], 0);
    write_duration(json, "cache_hit", 0, 0);
    write_duration(json, "cache_miss", 0, 0);
    bag_json_close(json);
    /* Write batches. The model's max_batch_size is 0: it has one size of batches, 1, and all its
     * executions are of it. */
    bag_json_open(json, "batch_stats", '[');
    if (executions) {
        bag_json_open(json, NULL, '{');
        BAG_JSON_WRITE(json, BAG_KEY("batch_size", UINT64_C(1)));
        write_durations(json, "compute_input", counters.stage[BAG_STAGE_INPUT], executions);
        write_durations(json, "compute_infer", counters.stage[BAG_STAGE_INFER], executions);
        write_durations(json, "compute_output", counters.stage[BAG_STAGE_OUTPUT], executions);
        bag_json_close(json);
    }
    bag_json_close(json);
    if (hot_rows) {
        bag_json_open(json, "hot_rows", '[');
        for (size_t i = 0; i < model->num_features; i++)
            write_hot_rows(json, &model->features[i]);
        bag_json_close(json);
    }
    bag_json_close(json);
}
