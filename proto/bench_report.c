/* The report of `bagserve bench`; see bench_report.h. */
#include "bench_report.h"

#include "json.h"
#include "v2_documents.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bag_bench_modes[BAG_BENCH_MODE_COUNT] = {
#define BAG_X(id, name) name,
    BAG_BENCH_MODES(BAG_X)
#undef BAG_X
};

/* The numbers of a run and their keys. X(member, "key") */
#define RATES(X)                        \
    X(requests_per_s, "requests_per_s") \
    X(bags_per_s, "bags_per_s")         \
    X(rows_per_s, "rows_per_s")         \
    X(bytes_gathered_per_s, "bytes_gathered_per_s")

/* The members of a workload by type, in no order; the texts of machine and time. X(member) */
#define WORKLOAD_TEXTS(X)  X(ids) X(reduction) X(body) X(get)
#define WORKLOAD_COUNTS(X) X(bags) X(connections) X(tables) X(table_bytes)
#define MACHINE_TEXTS(X)   X(date) X(host) X(processor)

void bag_bench_report_note(struct bag_bench_report *report, const char *format, ...)
{
    va_list values;
    if (report->num_notes == BAG_BENCH_MAX_NOTES)
        return;
    va_start(values, format);
    vsnprintf(report->notes[report->num_notes++], BAG_BENCH_NOTE_BYTES, format, values);
    va_end(values);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Prints a number in at most 6 digits, or as a whole number from a million on. */
static int print_number(char *text, size_t capacity, double value)
{
    if (fabs(value) >= 1e6 && fabs(value) < 1e18)
        return snprintf(text, capacity, "%.0f", value);
    return snprintf(text, capacity, "%.6g", isfinite(value) ? value : 0);
}

static bool add_number(cJSON *object, const char *key, double value)
{
    char text[32];
    print_number(text, sizeof text, value);
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

/* Adds an array of `count` numbers, one every `stride` bytes: doubles, or uint64_t if `whole`. */
static bool add_numbers(cJSON *object, const char *key, const void *first, size_t stride,
                        size_t count, bool whole)
{
    char text[BAG_BENCH_WINDOWS * 24 + 3] = "[";
    size_t used = 1;
    _Static_assert(BAG_BENCH_CURVE <= BAG_BENCH_WINDOWS, "the text has room for windows");
    for (size_t i = 0; i < count; i++) {
        const char *at = (const char *)first + i * stride;
        double value = whole ? (double)*(const uint64_t *)at : *(const double *)at;
        used += (size_t)print_number(text + used, sizeof text - used, value);
        text[used++] = i + 1 < count ? ',' : ']';
    }
    text[used] = 0;
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

static bool add_text_or_null(cJSON *object, const char *key, const char *text)
{
    return *text ? cJSON_AddStringToObject(object, key, text) != NULL
                 : cJSON_AddNullToObject(object, key) != NULL;
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

static bool add_over_time(cJSON *run, const struct bag_bench_run *measured)
{
    const struct bag_bench_window *first = measured->windows;
    const size_t stride = sizeof *first, count = BAG_BENCH_WINDOWS;
    cJSON *object = cJSON_AddObjectToObject(run, "over_time");
    return object && add_number(object, "window_s", measured->window_s) &&
           add_numbers(object, "answered", &first->answered, stride, count, true) &&
           add_numbers(object, "errors", &first->errors, stride, count, true) &&
           add_numbers(object, "p50_ms", &first->p50_ms, stride, count, false) &&
           add_numbers(object, "p99_ms", &first->p99_ms, stride, count, false);
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
    ok = late && add_number(late, "p50", measured->late_p50_ms) &&
         add_number(late, "p99", measured->late_p99_ms) &&
         add_number(run, "generator_cpu", measured->generator_cpu);
    if (!ok || measured->window_s <= 0)
        return ok;
    return add_numbers(run, "percentiles_ms", measured->curve_ms, sizeof *measured->curve_ms,
                       BAG_BENCH_CURVE, false) &&
           add_over_time(run, measured);
}

static bool add_workload(cJSON *tree, const struct bag_bench_workload *workload)
{
    return bag_v2_add_integer(tree, "bags", workload->bags) &&
           add_text_or_null(tree, "ids", workload->ids) &&
           add_number(tree, "zipf", workload->zipf) &&
           cJSON_AddBoolToObject(tree, "weights", workload->weights) &&
           add_text_or_null(tree, "reduction", workload->reduction) &&
           add_text_or_null(tree, "body", workload->body) &&
           bag_v2_add_integer(tree, "connections", workload->connections) &&
           bag_v2_add_integer(tree, "tables", workload->tables) &&
           bag_v2_add_integer(tree, "table_bytes", workload->table_bytes) &&
           add_text_or_null(tree, "get", workload->get);
}

static bool add_notes(cJSON *tree, const struct bag_bench_report *report)
{
    const char *notes[BAG_BENCH_MAX_NOTES];
    for (size_t i = 0; i < report->num_notes; i++)
        notes[i] = report->notes[i];
    return bag_v2_add_strings(tree, "notes", notes, report->num_notes);
}

static bool add_head(cJSON *tree, const struct bag_bench_report *report)
{
    cJSON *workload = NULL;
    bool ok = cJSON_AddStringToObject(tree, "url", report->url) &&
              cJSON_AddStringToObject(tree, "model", report->model) &&
              (workload = cJSON_AddObjectToObject(tree, "workload")) &&
              add_workload(workload, &report->workload);
#define BAG_X(member) ok = ok && cJSON_AddStringToObject(tree, #member, report->member);
    MACHINE_TEXTS(BAG_X)
#undef BAG_X
    return ok;
}

char *bag_bench_report_print(const struct bag_bench_report *report)
{
    cJSON *tree = cJSON_CreateObject(), *runs = NULL;
    bool decided = report->deciding_run < report->num_runs;
    bool ok =
        tree && add_head(tree, report) && bag_v2_add_integer(tree, "seed", report->seed) &&
        cJSON_AddStringToObject(tree, "mode", bag_bench_modes[report->mode]) &&
        add_number_or_null(tree, "highest_rate", report->highest_rate, report->highest_rate < 0) &&
        add_number(tree, "slo_ms", report->slo_ms) &&
        cJSON_AddStringToObject(tree, "limited_by",
                                report->generator_limited ? "generator" : "server") &&
        add_number_or_null(tree, "deciding_run", (double)report->deciding_run, !decided) &&
        add_notes(tree, report) && (runs = cJSON_AddArrayToObject(tree, "runs"));
    for (size_t i = 0; ok && i < report->num_runs; i++)
        ok = add_run(runs, &report->runs[i]);
    return bag_v2_print_tree(tree, ok);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Appends "KEY BEFORE and NOW" to a text that holds *used bytes. */
static bool append_difference(const cJSON *before, const cJSON *now, char *text, size_t capacity,
                              size_t *used)
{
    char *old = cJSON_PrintUnformatted(before), *new = cJSON_PrintUnformatted(now);
    if (old && new &&*used < capacity)
        *used += (size_t)snprintf(text + *used, capacity - *used, "%s%s %s and %s",
                                  *used ? ", " : "", before->string, old, new);
    bool ok = old && new;
    cJSON_free(old);
    cJSON_free(new);
    return ok;
}

bool bag_bench_workload_compare(const struct bag_bench_workload *before,
                                const struct bag_bench_workload *now, char *text, size_t capacity)
{
    cJSON *old = cJSON_CreateObject(), *new = cJSON_CreateObject();
    bool ok = old && new &&add_workload(old, before) && add_workload(new, now);
    size_t used = 0;
    const cJSON *one = ok ? old->child : NULL, *other = ok ? new->child : NULL;
    *text = 0;
    for (; ok && one && other; one = one->next, other = other->next)
        ok =
            cJSON_Compare(one, other, true) || append_difference(one, other, text, capacity, &used);
    cJSON_Delete(old);
    cJSON_Delete(new);
    return ok;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns a number that is not negative, or `otherwise` if the member is not one. */
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

/* Copies a text, shortened to its place, and replaces all but printable ASCII by "?". */
static void copy_text(char *out, size_t room, const char *text)
{
    size_t used = 0;
    for (; text && *text && used + 1 < room; text++)
        out[used++] = *text >= ' ' && *text < 127 ? *text : '?';
    out[used] = 0;
}

/* Returns such a copy in memory of its own, which the caller frees. */
static char *duplicate_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy)
        copy_text(copy, bytes, text);
    return copy;
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
    run->generator_cpu = number_of(object, "generator_cpu", 0);
}

static void read_workload(const cJSON *object, struct bag_bench_workload *workload)
{
#define BAG_X(member) \
    copy_text(workload->member, sizeof workload->member, bag_json_text(object, #member));
    WORKLOAD_TEXTS(BAG_X)
#undef BAG_X
#define BAG_X(member) workload->member = count_of(object, #member);
    WORKLOAD_COUNTS(BAG_X)
#undef BAG_X
    workload->zipf = number_of(object, "zipf", 0);
    workload->weights = cJSON_IsTrue(bag_json_member(object, "weights"));
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
    report->url = duplicate_text(url);
    report->model = duplicate_text(model);
    report->runs = calloc((size_t)count + 1, sizeof *report->runs);
    if (!report->url || !report->model || !report->runs)
        return bag_problem_no_memory(problem);
    read_workload(bag_json_member(tree, "workload"), &report->workload);
#define BAG_X(member) \
    copy_text(report->member, sizeof report->member, bag_json_text(tree, #member));
    MACHINE_TEXTS(BAG_X)
#undef BAG_X
    report->seed = count_of(tree, "seed");
    double deciding = number_of(tree, "deciding_run", BAG_BENCH_MAX_RUNS);
    report->deciding_run = deciding < BAG_BENCH_MAX_RUNS ? (size_t)deciding : SIZE_MAX;
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
