/* The report of `bagserve bench`; see bench_report.h. */
#include "bench_report.h"

#include "json.h"
#include "v2_documents.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bag_bench_modes[BAG_BENCH_MODE_COUNT] = {
#define BAG_X(id, name) name,
    BAG_BENCH_MODES(BAG_X)
#undef BAG_X
};

/* The numbers of a run under their keys. X(member, "key") */
#define RATES(X)                        \
    X(requests_per_s, "requests_per_s") \
    X(bags_per_s, "bags_per_s")         \
    X(rows_per_s, "rows_per_s")         \
    X(bytes_gathered_per_s, "bytes_gathered_per_s")

/* ---- writing --------------------------------------------------------------------------------- */

/* In as few digits as say enough. */
static bool add_number(cJSON *object, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", isfinite(value) ? value : 0);
    if (fabs(value) >= 1e6 && isfinite(value))
        snprintf(text, sizeof text, "%.0f", value);
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

static bool add_number_or_null(cJSON *object, const char *key, double value, bool is_null)
{
    return is_null ? cJSON_AddNullToObject(object, key) != NULL : add_number(object, key, value);
}

static bool add_times(cJSON *run, const struct bag_bench_times *times)
{
    cJSON *object = cJSON_AddObjectToObject(run, "latency_ms");
#define BAG_X(member, key, share) &&add_number(object, key, times->member)
    return object BAG_BENCH_PERCENTILES(BAG_X);
#undef BAG_X
}

static bool add_errors(cJSON *run, const struct bag_bench_run *measured)
{
    cJSON *object = cJSON_AddObjectToObject(run, "errors");
    bool ok = object != NULL;
    for (size_t i = 0; ok && i < measured->num_errors; i++) {
        const struct bag_bench_error *error = &measured->errors[i];
        cJSON *entry = cJSON_AddObjectToObject(object, error->kind);
        ok = entry && bag_v2_add_integer(entry, "count", error->count) &&
             cJSON_AddStringToObject(entry, "first", error->first);
    }
    return ok;
}

static bool add_run(cJSON *runs, const struct bag_bench_run *measured)
{
    cJSON *run = bag_v2_add_item(runs);
    bool ok = run && add_number_or_null(run, "rate", measured->rate, measured->rate <= 0) &&
              add_number(run, "seconds", measured->seconds) &&
              bag_v2_add_integer(run, "sent", measured->sent) &&
              bag_v2_add_integer(run, "answered", measured->answered) && add_errors(run, measured);
#define BAG_X(member, key) ok = ok && add_number(run, key, measured->member);
    RATES(BAG_X)
#undef BAG_X
    ok = ok && add_times(run, &measured->latency_ms);
    cJSON *late = ok ? cJSON_AddObjectToObject(run, "generator_late_ms") : NULL;
    return late && add_number(late, "p50", measured->late_p50_ms) &&
           add_number(late, "p99", measured->late_p99_ms);
}

char *bag_bench_report_print(const struct bag_bench_report *report)
{
    cJSON *tree = cJSON_CreateObject(), *runs = NULL;
    bool ok =
        tree && cJSON_AddStringToObject(tree, "url", report->url) &&
        cJSON_AddStringToObject(tree, "model", report->model) &&
        bag_v2_add_integer(tree, "seed", report->seed) &&
        cJSON_AddStringToObject(tree, "mode", bag_bench_modes[report->mode]) &&
        add_number_or_null(tree, "highest_rate", report->highest_rate, report->highest_rate < 0) &&
        add_number(tree, "slo_ms", report->slo_ms) &&
        cJSON_AddStringToObject(tree, "limited_by",
                                report->generator_limited ? "generator" : "server") &&
        (runs = cJSON_AddArrayToObject(tree, "runs"));
    for (size_t i = 0; ok && i < report->num_runs; i++)
        ok = add_run(runs, &report->runs[i]);
    return bag_v2_print_tree(tree, ok);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A number from 0; `otherwise` where it is none, as null is. */
static double number_of(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = bag_json_member(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 ? item->valuedouble : otherwise;
}

static uint64_t count_of(const cJSON *object, const char *key)
{
    double value = number_of(object, key, 0);
    return value < 0x1p63 ? (uint64_t)value : 0;
}

/* Printable ASCII, whatever the file has. */
static void copy_text(char *out, size_t room, const char *text)
{
    size_t used = 0;
    for (; text && *text && used + 1 < room; text++)
        out[used++] = *text >= ' ' && *text < 127 ? *text : '?';
    out[used] = 0;
}

static void read_errors(const cJSON *object, struct bag_bench_run *run)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (run->num_errors == BAG_BENCH_MAX_ERRORS)
            return;
        struct bag_bench_error *error = &run->errors[run->num_errors++];
        copy_text(error->kind, sizeof error->kind, item->string);
        error->count = count_of(item, "count");
        copy_text(error->first, sizeof error->first, bag_json_text(item, "first"));
    }
}

static void read_run(const cJSON *object, struct bag_bench_run *run)
{
    const cJSON *times = bag_json_member(object, "latency_ms"),
                *late = bag_json_member(object, "generator_late_ms");
    run->rate = number_of(object, "rate", 0);
    run->seconds = number_of(object, "seconds", 0);
    run->sent = count_of(object, "sent");
    run->answered = count_of(object, "answered");
    read_errors(bag_json_member(object, "errors"), run);
#define BAG_X(member_, key) run->member_ = number_of(object, key, 0);
    RATES(BAG_X)
#undef BAG_X
#define BAG_X(member_, key, share) run->latency_ms.member_ = number_of(times, key, 0);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    run->late_p50_ms = number_of(late, "p50", 0);
    run->late_p99_ms = number_of(late, "p99", 0);
}

static bool read_mode(const cJSON *tree, enum bag_bench_mode *mode)
{
    const char *name = bag_json_text(tree, "mode");
    for (*mode = 0; name && *mode < BAG_BENCH_MODE_COUNT; ++*mode) {
        if (strcmp(bag_bench_modes[*mode], name) == 0)
            return true;
    }
    return false;
}

static bool read_report(const cJSON *tree, struct bag_bench_report *report,
                        struct bag_problem *problem)
{
    const char *url = bag_json_text(tree, "url");
    const char *model = bag_json_text(tree, "model");
    const char *limited_by = bag_json_text(tree, "limited_by");
    const cJSON *runs = bag_json_member(tree, "runs"), *run;
    int count = cJSON_GetArraySize(runs);
    if (!url || !model || !cJSON_IsArray(runs) || count > BAG_BENCH_MAX_RUNS ||
        !read_mode(tree, &report->mode))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "it is no report of 'bagserve bench --report'");
    report->url = strdup(url);
    report->model = strdup(model);
    report->runs = calloc((size_t)count + 1, sizeof *report->runs);
    if (!report->url || !report->model || !report->runs)
        return bag_problem_no_memory(problem);
    report->seed = count_of(tree, "seed");
    report->highest_rate = number_of(tree, "highest_rate", -1);
    report->slo_ms = number_of(tree, "slo_ms", 0);
    report->generator_limited = limited_by && strcmp(limited_by, "generator") == 0;
    cJSON_ArrayForEach(run, runs) read_run(run, &report->runs[report->num_runs++]);
    return true;
}

bool bag_bench_report_parse(const char *text, size_t bytes, struct bag_bench_report *report,
                            struct bag_problem *problem)
{
    cJSON *tree = bag_json_parse(text, bytes, problem);
    memset(report, 0, sizeof *report);
    bool ok = tree && read_report(tree, report, problem);
    bag_json_free(tree);
    if (ok)
        return true;
    bag_bench_report_free(report);
    if (problem->kind != BAG_ERROR_NO_MEMORY)
        problem->kind = BAG_ERROR_FILE;
    return false;
}

void bag_bench_report_free(struct bag_bench_report *report)
{
    free(report->url);
    free(report->model);
    free(report->runs);
    memset(report, 0, sizeof *report);
}
