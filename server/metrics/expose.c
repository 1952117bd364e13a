/* The figures in Prometheus' format and as statistics; see expose.h.
 *
 * Families are made from table.h: each has its help once, then a sample for every model, value of
 * its label, and bound of a histogram. */
#include "expose.h"

#include "process.h"
#include "prometheus.h"

#include <stdio.h>
#include <stdlib.h>

enum type { COUNTER, GAUGE, SECONDS, SIZES, MOMENT };

/* The values of a label. */
struct label {
    const char *key; /* NULL: there is one figure, without this label */
    const char *const *values;
    size_t count;
};

struct family {
    const char *name, *unit, *sentence;
    enum type type;
    const struct label *label;
    size_t offset; /* in the struct of figures */
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

static const struct {
    const char *type_name;
    size_t slots, num_bounds;
    const uint64_t *bounds; /* NULL: no histogram */
} types[] = {
    [COUNTER] = {"counter", BAG_SLOTS_COUNTER, 0, NULL},
    [GAUGE] = {"gauge", BAG_SLOTS_GAUGE, 0, NULL},
    [MOMENT] = {"gauge", BAG_SLOTS_MOMENT, 0, NULL},
    [SECONDS] = {"histogram", BAG_SLOTS_SECONDS, BAG_SECONDS_BOUND_COUNT, bag_seconds_bounds},
    [SIZES] = {"histogram", BAG_SLOTS_SIZES, BAG_SIZES_BOUND_COUNT, bag_sizes_bounds},
};

/* ---- samples --------------------------------------------------------------------------------- */

/* Begins a sample with the labels of its model (NULL: none) and its own. */
static void begin(struct bag_prometheus *out, const struct bag_model *model,
                  const struct family *family, size_t value, const char *suffix)
{
    bag_prometheus_sample(out, family->name, suffix);
    if (model) {
        bag_prometheus_label(out, "model", model->name);
        bag_prometheus_label(out, "version", model->version);
    }
    if (family->label->key)
        bag_prometheus_label(out, family->label->key, family->label->values[value]);
}

static void write_histogram(struct bag_prometheus *out, const struct bag_model *model,
                            const struct family *family, size_t value, const bag_counter *counters)
{
    size_t num_bounds = types[family->type].num_bounds;
    bool ns = family->type == SECONDS;
    uint64_t count = 0;
    for (size_t i = 0; i <= num_bounds; i++) {
        count += bag_counter_get(&counters[i]);
        begin(out, model, family, value, "_bucket");
        if (i < num_bounds)
            bag_prometheus_bound(out, types[family->type].bounds[i], ns);
        else
            bag_prometheus_label(out, "le", "+Inf");
        bag_prometheus_value(out, count, false);
    }
    begin(out, model, family, value, "_sum");
    bag_prometheus_value(out, bag_counter_get(&counters[num_bounds + 1]), ns);
    begin(out, model, family, value, "_count");
    bag_prometheus_value(out, count, false);
}

/* All samples of a family for one model, or for the server. */
static void write_samples(struct bag_prometheus *out, const struct bag_metrics *metrics,
                          const struct bag_model *model, const struct family *family,
                          const void *all_counters)
{
    const bag_counter *counters =
        (const bag_counter *)all_counters + family->offset / sizeof *counters;
    for (size_t value = 0; value < family->label->count; value++) {
        const bag_counter *counter = counters + value * types[family->type].slots;
        if (types[family->type].bounds) {
            write_histogram(out, model, family, value, counter);
            continue;
        }
        begin(out, model, family, value, "");
        if (family->type == MOMENT)
            bag_prometheus_value(
                out, bag_metrics_epoch_ms(metrics, bag_counter_get(counter)) * 1000000, true);
        else
            bag_prometheus_value(out, bag_counter_get(counter), false);
    }
}

static void write_head(struct bag_prometheus *out, const struct family *family)
{
    bag_prometheus_family(out, family->name, types[family->type].type_name, family->sentence,
                          family->unit);
}

/* ---- families -------------------------------------------------------------------------------- */

/* Triton's sums: of a histogram that has its own family, in microseconds. */
static void write_sum(struct bag_prometheus *out, const char *name, const char *sentence,
                      const struct bag_model *models, size_t num_models,
                      const struct bag_model_counters *counters, size_t offset)
{
    bag_prometheus_family(out, name, "counter", sentence, "microseconds");
    for (size_t i = 0; i < num_models; i++) {
        const bag_counter *histogram =
            (const bag_counter *)&counters[i] + offset / sizeof *histogram;
        bag_prometheus_sample(out, name, "");
        bag_prometheus_label(out, "model", models[i].name);
        bag_prometheus_label(out, "version", models[i].version);
        bag_prometheus_value(out, bag_counter_get(&histogram[BAG_SLOTS_SECONDS - 1]) / 1000, false);
    }
}

static void write_models(struct bag_prometheus *out, const struct bag_metrics *metrics,
                         const struct bag_model_counters *counters, size_t num_models)
{
    const struct bag_model *models = metrics->registry->models;
    for (size_t i = 0; i < COUNT_OF(model_families); i++) {
        write_head(out, &model_families[i]);
        for (size_t j = 0; j < num_models; j++)
            write_samples(out, metrics, &models[j], &model_families[i], &counters[j]);
    }
    write_sum(out, "nv_inference_request_duration_us", "Time of all stages together.", models,
              num_models, counters, offsetof(struct bag_model_counters, duration));
#define BAG_X(id, value, name, sentence)                         \
    write_sum(out, name, sentence, models, num_models, counters, \
              offsetof(struct bag_model_counters, stage[BAG_STAGE_##id]));
    BAG_STAGES(BAG_X)
#undef BAG_X
}

static void write_loops(struct bag_prometheus *out, const struct bag_metrics *metrics)
{
    struct bag_loop_counters counters;
    bag_metrics_sum_loops(metrics, &counters);
    for (size_t i = 0; i < COUNT_OF(loop_families); i++) {
        write_head(out, &loop_families[i]);
        write_samples(out, metrics, NULL, &loop_families[i], &counters);
    }
}

static void write_process(struct bag_prometheus *out, const char *version)
{
    enum { WHOLE, NS };
    struct bag_process_stats counters;
    bag_process_sample(&counters);
#define BAG_X(member, type, SCALE, name, unit, sentence)    \
    bag_prometheus_family(out, name, type, sentence, unit); \
    bag_prometheus_sample(out, name, "");                   \
    bag_prometheus_value(out, counters.member, SCALE == NS);
    BAG_PROCESS_METRICS(BAG_X)
#undef BAG_X
    bag_prometheus_family(out, "bagserve_build_info", "gauge", "The program's version, as a label.",
                          "1");
    bag_prometheus_sample(out, "bagserve_build_info", "");
    bag_prometheus_label(out, "version", version);
    bag_prometheus_value(out, 1, false);
}

char *bag_expose_prometheus(const struct bag_metrics *metrics, size_t num_models,
                            const char *version)
{
    struct bag_prometheus out = {0};
    struct bag_model_counters *counters = malloc((num_models + 1) * sizeof *counters);
    if (!counters)
        return NULL;
    for (size_t i = 0; i < num_models; i++)
        bag_metrics_sum_model(metrics, i, &counters[i]);
    write_models(&out, metrics, counters, num_models);
    write_loops(&out, metrics);
    write_process(&out, version);
    free(counters);
    return bag_prometheus_end(&out);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static struct bag_v2_duration duration_of(const bag_counter *histogram)
{
    return (struct bag_v2_duration){bag_histogram_count(histogram),
                                    bag_counter_get(&histogram[BAG_SLOTS_SECONDS - 1])};
}

void bag_expose_statistics(const struct bag_metrics *metrics, const struct bag_model *model,
                           struct bag_v2_statistics *statistics)
{
    struct bag_model_counters counters;
    uint64_t failures_count = 0;
    bag_metrics_sum_model(metrics, (size_t)(model - metrics->registry->models), &counters);
    for (int i = 0; i < BAG_FAILURE_COUNT; i++)
        failures_count += bag_counter_get(counters.failure[i]);
    *statistics = (struct bag_v2_statistics){
        .name = model->name,
        .version = model->version,
        .last_inference_ms = bag_metrics_epoch_ms(metrics, bag_counter_get(counters.last[0])),
        .inference_count = bag_counter_get(counters.bags[0]),
        .execution_count = bag_counter_get(counters.executions[0]),
        .success = duration_of(counters.duration[0]),
        .fail = {.count = failures_count},
        .queue = duration_of(counters.stage[BAG_STAGE_QUEUE]),
        .compute_input = duration_of(counters.stage[BAG_STAGE_INPUT]),
        .compute_infer = duration_of(counters.stage[BAG_STAGE_INFER]),
        .compute_output = duration_of(counters.stage[BAG_STAGE_OUTPUT]),
    };
}
