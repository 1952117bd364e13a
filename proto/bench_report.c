/* The report of `bagserve bench`; see bench_report.h. */
#include "bench_report.h"

#include "json.h"
#include "json_writer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bag_bench_modes[BAG_BENCH_MODE_COUNT] = {BAG_BENCH_MODES(BAG_NAME)};

/* The numbers of a run and their keys. X(member, "key") */
#define RATES(X)                        \
    X(requests_per_s, "requests_per_s") \
    X(bags_per_s, "bags_per_s")         \
    X(rows_per_s, "rows_per_s")         \
    X(bytes_gathered_per_s, "bytes_gathered_per_s")

/* The members of a workload by type, and the texts about the generator's machine and the time. The
 * order has no meaning. X(member) */
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

/* Writes a number with at most 6 digits, or as a whole number from a million on. NaN and infinity
 * are written as 0, because JSON has neither. */
static void write_number(struct bag_json_writer *json, const char *key, double value)
{
    char text[32];
    bool is_large = fabs(value) >= 1e6 && fabs(value) < 1e18;
    snprintf(text, sizeof text, is_large ? "%.0f" : "%.6g", isfinite(value) ? value : 0);
    bag_json_raw(json, key, text);
}

static void write_number_or_null(struct bag_json_writer *json, const char *key, double value,
                                 bool is_null)
{
    if (is_null)
        bag_json_raw(json, key, "null");
    else
        write_number(json, key, value);
}

static void write_run(struct bag_json_writer *json, const struct bag_bench_run *run)
{
    bag_json_open(json, NULL, '{');
    write_number_or_null(json, "rate", run->rate, run->rate <= 0);
    write_number(json, "seconds", run->seconds);
    BAG_JSON_WRITE(json, BAG_KEY("sent", run->sent), BAG_KEY("answered", run->answered));
    /* Write the errors as an object whose keys are their kinds. */
    bag_json_open(json, "errors", '{');
    for (size_t i = 0; i < run->num_errors; i++) {
        const struct bag_bench_error *error = &run->errors[i];
        bag_json_open(json, error->kind, '{');
        BAG_JSON_WRITE(json, BAG_KEY("count", error->count),
                       BAG_KEY("first", (const char *)error->first));
        bag_json_close(json);
    }
    bag_json_close(json);
#define BAG_X(member, key) write_number(json, key, run->member);
    RATES(BAG_X)
#undef BAG_X
    bag_json_open(json, "latency_ms", '{');
#define BAG_X(member, key, share) write_number(json, key, run->latency_ms.member);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    bag_json_close(json);
    bag_json_open(json, "generator_late_ms", '{');
    write_number(json, "p50", run->late_p50_ms);
    write_number(json, "p99", run->late_p99_ms);
    bag_json_close(json);
    write_number(json, "generator_cpu", run->generator_cpu);
    if (run->window_s > 0) {
        /* Write the curve of percentiles, and each number of the windows as an array over time. */
        bag_json_open(json, "percentiles_ms", '[');
        for (size_t i = 0; i < BAG_BENCH_CURVE; i++)
            write_number(json, NULL, run->curve_ms[i]);
        bag_json_close(json);
        bag_json_open(json, "over_time", '{');
        write_number(json, "window_s", run->window_s);
#define BAG_X(member)                                             \
    bag_json_open(json, #member, '[');                            \
    for (size_t i = 0; i < BAG_BENCH_WINDOWS; i++)                \
        write_number(json, NULL, (double)run->windows[i].member); \
    bag_json_close(json);
        BAG_X(answered)
        BAG_X(errors)
        BAG_X(p50_ms)
        BAG_X(p99_ms)
#undef BAG_X
        bag_json_close(json);
    }
    bag_json_close(json);
}

/* Returns the text, or NULL in place of an empty one. */
static const char *text_or_null(const char *text)
{
    return *text ? text : NULL;
}

/* Writes the workload as a member `key`, or as the whole document if `key` is NULL. */
static void write_workload(struct bag_json_writer *json, const char *key,
                           const struct bag_bench_workload *workload)
{
    bag_json_open(json, key, '{');
    BAG_JSON_WRITE(json, BAG_KEY("bags", workload->bags),
                   BAG_KEY("ids", text_or_null(workload->ids)));
    write_number(json, "zipf", workload->zipf);
    BAG_JSON_WRITE(
        json, BAG_KEY("weights", workload->weights),
        BAG_KEY("reduction", text_or_null(workload->reduction)),
        BAG_KEY("body", text_or_null(workload->body)),
        BAG_KEY("connections", workload->connections), BAG_KEY("tables", workload->tables),
        BAG_KEY("table_bytes", workload->table_bytes), BAG_KEY("get", text_or_null(workload->get)));
    bag_json_close(json);
}

char *bag_bench_report_print(const struct bag_bench_report *report)
{
    struct bag_json_writer json = {.is_pretty = false};
    const char *notes[BAG_BENCH_MAX_NOTES];
    const bool decided = report->deciding_run < report->num_runs;
    for (size_t i = 0; i < report->num_notes; i++)
        notes[i] = report->notes[i];
    bag_json_open(&json, NULL, '{');
    BAG_JSON_WRITE(&json, BAG_KEY("url", report->url), BAG_KEY("model", report->model));
    write_workload(&json, "workload", &report->workload);
#define BAG_X(member) BAG_KEY(#member, (const char *)report->member),
    BAG_JSON_WRITE(&json, MACHINE_TEXTS(BAG_X) BAG_KEY("seed", report->seed),
                   BAG_KEY("mode", bag_bench_modes[report->mode]));
#undef BAG_X
    write_number_or_null(&json, "highest_rate", report->highest_rate, report->highest_rate < 0);
    BAG_JSON_WRITE(&json, BAG_KEY("hindered_by", text_or_null(report->hindered_by)));
    write_number(&json, "slo_ms", report->slo_ms);
    BAG_JSON_WRITE(&json,
                   BAG_KEY("limited_by", report->generator_limited ? "generator" : "server"));
    write_number_or_null(&json, "deciding_run", (double)report->deciding_run, !decided);
    bag_json_texts(&json, "notes", notes, report->num_notes);
    bag_json_open(&json, "runs", '[');
    for (size_t i = 0; i < report->num_runs; i++)
        write_run(&json, &report->runs[i]);
    return bag_json_end(&json);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Appends "KEY BEFORE and NOW" to a text. Returns false if memory is exhausted. */
static bool append_difference(const cJSON *before, const cJSON *now, char *text, size_t capacity)
{
    char *old = cJSON_PrintUnformatted(before), *new = cJSON_PrintUnformatted(now);
    if (old && new)
        bag_text_add(text, capacity, "%s%s %s and %s", *text ? ", " : "", before->string, old, new);
    bool ok = old && new;
    cJSON_free(old);
    cJSON_free(new);
    return ok;
}

/* Returns the workload as a tree, which the caller frees. Returns NULL if memory is exhausted. */
static cJSON *make_tree(const struct bag_bench_workload *workload)
{
    struct bag_json_writer json = {.is_pretty = false};
    struct bag_problem ignored;
    write_workload(&json, NULL, workload);
    char *text = bag_json_end(&json);
    cJSON *tree = text ? bag_json_parse(text, strlen(text), &ignored) : NULL;
    free(text);
    return tree;
}

bool bag_bench_workload_compare(const struct bag_bench_workload *before,
                                const struct bag_bench_workload *now, char *text, size_t capacity)
{
    cJSON *old = make_tree(before), *new = make_tree(now);
    bool ok = old && new;
    const cJSON *one = ok ? old->child : NULL, *other = ok ? new->child : NULL;
    *text = 0;
    for (; ok && one && other; one = one->next, other = other->next)
        ok = cJSON_Compare(one, other, true) || append_difference(one, other, text, capacity);
    bag_json_free(old);
    bag_json_free(new);
    return ok;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Returns a number that is not negative, or `otherwise` if the member is not one. */
static double number_of(const cJSON *object, const char *key, double otherwise)
{
    const cJSON *item = bag_json_member(object, key);
    return cJSON_IsNumber(item) && item->valuedouble >= 0 ? item->valuedouble : otherwise;
}

/* Returns a number as a count, or 0 if the member is not a number from 0 to below 2^63. */
static uint64_t count_of(const cJSON *object, const char *key)
{
    double value = number_of(object, key, 0);
    return value < 0x1p63 ? (uint64_t)value : 0;
}

/* Copies a text, truncated to `room` bytes with its NUL, and replaces all bytes but printable ASCII
 * by "?". NULL is copied as "". A report may come from anyone, and its texts go to a terminal. */
static void copy_text(char *out, size_t room, const char *text)
{
    size_t used = 0;
    for (; text && *text && used + 1 < room; text++)
        out[used++] = *text >= ' ' && *text < 127 ? *text : '?';
    out[used] = 0;
}

/* Returns a copy of the whole text, cleaned like copy_text() does. The caller frees it. Returns
 * NULL if memory is exhausted. */
static char *duplicate_text(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy)
        copy_text(copy, bytes, text);
    return copy;
}

/* Reads the errors of a run. Drops those after the first BAG_BENCH_MAX_ERRORS. */
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

/* Reads the numbers of a run that a comparison shows. The curve and the windows are not read, so
 * that window_s stays 0. */
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

/* Fills *report, which is zeroed, from the tree. On failure the caller frees the members that are
 * already set. Returns false and sets *problem if the tree is not a report or memory is exhausted.
 */
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
    copy_text(report->hindered_by, sizeof report->hindered_by, bag_json_text(tree, "hindered_by"));
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
