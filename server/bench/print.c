/* Progress and the table of runs as text; see session.h. */
#include "session.h"

#include "config/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The bytes of a GB. */
#define GIGA 1e9

/* A number with as few digits as say enough, and the prefix of its unit: "41.2k". By value, so that
 * it can stand in an argument list. */
struct digits {
    char text[32];
};

static struct digits digits_of(double value)
{
    static const char prefixes[] = " kMGT";
    struct digits text;
    size_t prefix = 0;
    while (value >= 999.5 && prefixes[prefix + 1]) {
        value /= 1000;
        prefix++;
    }
    /* About three significant digits. */
    int decimals = value >= 99.95 || value == 0 ? 0 : value >= 9.995 ? 1 : value >= 0.9995 ? 2 : 3;
    snprintf(text.text, sizeof text.text, "%.*f%.*s", decimals, value, prefix > 0,
             &prefixes[prefix]);
    return text;
}

/* Returns the number of errors of all kinds. */
static uint64_t num_errors(const struct bag_bench_run *run)
{
    uint64_t count = 0;
    for (size_t i = 0; i < run->num_errors; i++)
        count += run->errors[i].count;
    return count;
}

/* ---- while it runs --------------------------------------------------------------------------- */

void bag_bench_print_start(const struct bag_bench_session *session, size_t num_requests,
                           const struct bag_bench_request *request)
{
    const struct bag_bench_options *options = session->options;
    const struct bag_client_model *model = &session->target->model;
    if (options->get_path)
        fprintf(stderr, "GET %s of %s\n", options->get_path, session->report.url);
    else
        fprintf(stderr,
                "%s of %s: %s%s%s, %zu table%s\n"
                "%zu different request%s, the first with %llu bag%s and %llu id%s, %zu bytes\n",
                session->report.model, session->report.url,
                model->is_collection ? "collection" : "table", *model->version ? ", version " : "",
                bag_quote(model->version, strlen(model->version)).text, model->num_tables,
                model->num_tables == 1 ? "" : "s", num_requests, num_requests == 1 ? "" : "s",
                (unsigned long long)request->bags, request->bags == 1 ? "" : "s",
                (unsigned long long)request->rows, request->rows == 1 ? "" : "s", request->count);
}

void bag_bench_print_progress(const struct bag_bench_progress *progress)
{
    fprintf(stderr, "%6.0f s", progress->elapsed_s);
    if (progress->rate > 0)
        fprintf(stderr, "  %9s/s wanted", digits_of(progress->rate).text);
    fprintf(stderr, "  %9s requests/s  p99 %s ms", digits_of(progress->requests_per_s).text,
            digits_of(progress->p99_ms).text);
    if (progress->errors)
        fprintf(stderr, "  %llu errors", (unsigned long long)progress->errors);
    fputc('\n', stderr);
}

void bag_bench_print_run(const struct bag_bench_run *run, const char *outcome)
{
    if (run->rate > 0)
        fprintf(stderr, "%9s/s wanted", digits_of(run->rate).text);
    else
        fprintf(stderr, "%18s", "");
    fprintf(stderr, "  %9s requests/s  p99 %7s ms  %s\n", digits_of(run->requests_per_s).text,
            digits_of(run->latency_ms.p99).text, outcome);
}

/* ---- at the end ------------------------------------------------------------------------------ */

/* Prints the workload, the date and the machine of a report. */
static void print_workload(const struct bag_bench_report *report, FILE *stream)
{
    const struct bag_bench_workload *workload = &report->workload;
    if (*workload->get)
        fprintf(stream, "GET %s", workload->get);
    else
        fprintf(stream, "%llu bag%s%s of %s ids%s, %s", (unsigned long long)workload->bags,
                workload->bags == 1 ? "" : "s", workload->tables > 1 ? " of each feature" : "",
                workload->ids, workload->weights ? " with weights" : "", workload->body);
    if (workload->zipf > 0)
        fprintf(stream, ", Zipf %g", workload->zipf);
    if (*workload->reduction)
        fprintf(stream, ", %s", workload->reduction);
    if (workload->tables > 1)
        fprintf(stream, ", %llu tables", (unsigned long long)workload->tables);
    fprintf(stream, "; %llu connections\n%s, %s, %s\n", (unsigned long long)workload->connections,
            report->date, report->host, report->processor);
}

/* Marks the run that decides. */
static void print_row(const struct bag_bench_run *run, bool decides, FILE *stream)
{
    fprintf(stream, "%8s %10s %6s %6s %5s", run->rate > 0 ? digits_of(run->rate).text : "-",
            digits_of(run->requests_per_s).text, digits_of(run->bags_per_s).text,
            digits_of(run->rows_per_s).text, digits_of(run->bytes_gathered_per_s / GIGA).text);
#define BAG_X(member, key, share) fprintf(stream, " %6s", digits_of(run->latency_ms.member).text);
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
    fprintf(stream, " %6llu %8s%s\n", (unsigned long long)num_errors(run),
            run->rate > 0 ? digits_of(run->late_p99_ms).text : "-", decides ? " *" : "");
}

/* Prints the heading of the table, whose widths are those of print_row(), and a row for each run.
 */
static void print_runs(const struct bag_bench_report *report, FILE *stream)
{
    fprintf(stream, "%8s %10s %6s %6s %5s %6s %6s %6s %6s %6s %6s %8s\n", "wanted/s", "requests/s",
            "bags/s", "rows/s", "GB/s", "p50 ms", "p90", "p99", "p99.9", "max", "errors",
            "late p99");
    for (size_t i = 0; i < report->num_runs; i++)
        print_row(&report->runs[i], i == report->deciding_run, stream);
}

/* Returns the earlier run with the same rate; NULL if there is none. */
static const struct bag_bench_run *find_before(const struct bag_bench_report *before,
                                               const struct bag_bench_run *run)
{
    for (size_t i = 0; i < before->num_runs; i++) {
        if (fabs(before->runs[i].rate - run->rate) <= 0.001 * run->rate)
            return &before->runs[i];
    }
    return NULL;
}

/* Returns now / before, or 0 if there is no earlier value. */
static double ratio(double now, double before)
{
    return before > 0 ? now / before : 0;
}

/* Prints the runs of the earlier report, and the ratios of runs at the same rate. */
static void print_before(const struct bag_bench_session *session, FILE *stream)
{
    const struct bag_bench_report *before = &session->before, *report = &session->report;
    /* Runs of a sweep have other rates each time, and only equal rates can be compared. */
    size_t compared = 0;
    fprintf(stream, "\nBefore, %s of %s: ", before->model, before->url);
    print_workload(before, stream);
    print_runs(before, stream);
    if (before->highest_rate > 0 && report->highest_rate > 0)
        fprintf(stream, "The highest rate that holds: %.3f of the one before (%s/s)\n",
                ratio(report->highest_rate, before->highest_rate),
                digits_of(before->highest_rate).text);
    for (size_t i = 0; i < report->num_runs; i++) {
        const struct bag_bench_run *run = &report->runs[i], *old = find_before(before, run);
        if (!old)
            continue;
        compared++;
        if (run->rate > 0)
            fprintf(stream, "At %s/s", digits_of(run->rate).text);
        else
            fputs("As fast as answers come", stream);
        fprintf(stream, ": requests/s %.3f, p50 %.3f, p99 %.3f of those before\n",
                ratio(run->requests_per_s, old->requests_per_s),
                ratio(run->latency_ms.p50, old->latency_ms.p50),
                ratio(run->latency_ms.p99, old->latency_ms.p99));
    }
    if (!compared)
        fputs("No run before was at the same rate.\n", stream);
}

/* Prints a sentence for the reader, wrapped on a terminal. */
static void print_note(const char *text, FILE *stream)
{
    if (isatty(fileno(stream)))
        bag_help_print_wrapped(stream, text, 0);
    else
        fprintf(stream, "%s\n", text);
}

void bag_bench_print_report(const struct bag_bench_session *session, FILE *stream)
{
    const struct bag_bench_report *report = &session->report;
    print_workload(report, stream);
    print_runs(report, stream);
    fputs("late p99: the generator's own delay in ms; p50 to max count from when a request was "
          "due.\n",
          stream);
    if (report->deciding_run < report->num_runs)
        fputs("*: the run that decides.\n", stream);
    /* Print each kind of error of each run, with its first text. */
    for (size_t i = 0; i < report->num_runs; i++) {
        const struct bag_bench_run *run = &report->runs[i];
        for (size_t k = 0; k < run->num_errors; k++) {
            const struct bag_bench_error *error = &run->errors[k];
            fprintf(stream, "%s: %llu", error->kind, (unsigned long long)error->count);
            if (run->rate > 0)
                fprintf(stream, " at %s/s", digits_of(run->rate).text);
            fprintf(stream, ", the first: %s\n", error->first);
        }
    }
    if (session->has_before)
        print_before(session, stream);
    for (size_t i = 0; i < report->num_notes; i++)
        print_note(report->notes[i], stream);
    if (*report->hindered_by) {
        char text[BAG_BENCH_NOTE_BYTES + 16];
        snprintf(text, sizeof text, "No verdict. %s", report->hindered_by);
        print_note(text, stream);
    }
    if (report->highest_rate >= 0)
        fprintf(stream, "The highest rate that holds, with p99 within %g ms: %s requests/s\n",
                report->slo_ms, digits_of(report->highest_rate).text);
}
