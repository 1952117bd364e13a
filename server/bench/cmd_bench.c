/* `bagserve bench`: measures how many requests a server can answer, and how fast; see session.h. */
#include "check.h"
#include "config/synthetic.h"
#include "query.h"
#include "server/commands.h"
#include "server/system/files.h"
#include "server/system/log.h"
#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

/* The maximum size of a report that --compare reads. */
#define REPORT_BYTES ((size_t)64 << 20)

/* Reads the report of --compare if there is one. */
static bool read_before(struct bag_bench_session *session, struct bag_problem *problem)
{
    const char *path = session->options->compare;
    size_t bytes;
    if (!path)
        return true;
    char *text = bag_file_read(path, REPORT_BYTES, &bytes, problem);
    if (!text)
        return false;
    session->has_before = bag_bench_report_parse(text, bytes, &session->before, problem);
    free(text);
    return session->has_before || bag_problem_prefix(problem, "--compare %s", path);
}

/* ---- what is measured, and where ------------------------------------------------------------- */

/* Prints the lengths of bags of a preset as --ids takes them. */
static void print_ids(const struct bag_bench_lengths *lengths, char *text, size_t capacity)
{
    *text = 0;
    for (size_t i = 0; i < lengths->count; i++) {
        if (lengths->list[i] == BAG_MLPERF_HISTORY)
            bag_text_add(text, capacity, "%shistory", i ? "," : "");
        else
            bag_text_add(text, capacity, "%s%llu", i ? "," : "",
                         (unsigned long long)lengths->list[i]);
    }
}

/* Fills in the workload, by which readers of two reports see whether they can be compared. */
static void describe_workload(const struct bag_bench_options *options,
                              const struct bag_client_model *model,
                              struct bag_bench_workload *workload)
{
    *workload = (struct bag_bench_workload){.connections = options->connections};
    if (options->get_path) {
        snprintf(workload->get, sizeof workload->get, "%s", options->get_path);
        return;
    }
    workload->bags = options->bags;
    workload->zipf = options->zipf;
    workload->weights = options->weights;
    workload->tables = model->num_tables;
    for (size_t i = 0; i < model->num_tables; i++)
        workload->table_bytes += model->tables[i].bytes;
    if (options->ids_text)
        snprintf(workload->ids, sizeof workload->ids, "%s", options->ids_text);
    else
        print_ids(&options->lengths, workload->ids, sizeof workload->ids);
    if (options->unique)
        bag_text_add(workload->ids, sizeof workload->ids, ", each once");
    snprintf(workload->body, sizeof workload->body, options->json ? "json" : "binary");
    if (options->reduction)
        snprintf(workload->reduction, sizeof workload->reduction, "%s", options->reduction);
}

/* Finds the processor's name, which Linux does not have on every machine: then *name stays. */
static void find_processor(char *name, size_t capacity)
{
    static const char key[] = "model name";
    char line[256];
    FILE *stream = fopen("/proc/cpuinfo", "re");
    while (stream && fgets(line, sizeof line, stream)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, sizeof key - 1) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " ");
        snprintf(name, capacity, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    if (stream)
        fclose(stream);
}

/* Fills in the date, the host and the processor of the report. A value that cannot be read stays
 * empty. */
static void describe_machine(struct bag_bench_report *report)
{
    struct utsname machine;
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc))
        strftime(report->date, sizeof report->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (uname(&machine) == 0) {
        snprintf(report->host, sizeof report->host, "%s", machine.nodename);
        snprintf(report->processor, sizeof report->processor, "%s", machine.machine);
    }
    find_processor(report->processor, sizeof report->processor);
}

/* ---- files that are written ------------------------------------------------------------------ */

/* Opens a file for writing, with an older one emptied. Returns NULL and sets *problem on failure.
 */
static FILE *open_file(const char *path, struct bag_problem *problem)
{
    FILE *stream = fopen(path, "we");
    if (!stream)
        bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
    return stream;
}

/* Closes a file. Returns false and sets *problem if anything could not be written, or `ok` is
 * false. */
static bool close_file(FILE *stream, const char *path, bool ok, struct bag_problem *problem)
{
    ok = !ferror(stream) && ok;
    return (fclose(stream) == 0 && ok) ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s: it cannot be written: %s", path,
                           strerror(errno));
}

/* Writes the report as JSON to a file, or to standard output for "-". */
static bool write_report(const struct bag_bench_session *session, struct bag_problem *problem)
{
    const char *path = session->options->report;
    char *text = bag_bench_report_print(&session->report);
    if (!text)
        return bag_problem_no_memory(problem);
    FILE *stream = strcmp(path, "-") == 0 ? stdout : open_file(path, problem);
    bool ok = stream && fprintf(stream, "%s\n", text) > 0;
    free(text);
    if (stream == stdout)
        return (fflush(stdout) == 0 && ok) ||
               bag_problem_set(problem, BAG_ERROR_SYSTEM, "standard output: %s", strerror(errno));
    return stream && close_file(stream, path, ok, problem);
}

/* Prints the table to standard output, or to standard error if the report goes to standard output.
 * Writes the report and the page of --html.
 */
static bool publish(const struct bag_bench_session *session, struct bag_problem *problem)
{
    const struct bag_bench_options *options = session->options;
    /* Standard output has either the report or the table, so that programs can read it. */
    bool taken = options->report && strcmp(options->report, "-") == 0;
    FILE *page;
    if (session->report.num_runs == 0)
        return true;
    bag_bench_print_report(session, taken ? stderr : stdout);
    if (options->report && !write_report(session, problem))
        return false;
    return !options->html ||
           ((page = open_file(options->html, problem)) &&
            close_file(page, options->html, bag_bench_write_page(session, page), problem));
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Measures, and publishes what was measured, even if the measurement ended early. */
static bool measure(struct bag_bench_session *session, const struct bag_bench_request *requests,
                    size_t num_requests, FILE *log, struct bag_problem *problem)
{
    struct bag_problem cut; /* why the measurement ended early; reported after publishing */
    session->load = bag_bench_load_make(session->options, &session->target->address, requests,
                                        num_requests, log, problem);
    if (!session->load)
        return false;
    bag_bench_print_start(session, num_requests, requests);
    bool ok = bag_bench_measure(session, &cut);
    bag_bench_load_free(session->load);
    bag_bench_note_limits(session);
    if (!publish(session, problem))
        return false;
    if (!ok)
        *problem = cut;
    return ok;
}

/* Checks replies if that is asked for, makes the requests, and measures with them. */
static bool run_query(struct bag_bench_session *session, struct bag_bench_target *target,
                      struct bag_bench_query *query, struct bag_problem *problem)
{
    const struct bag_bench_options *options = session->options;
    struct bag_problem ignored; /* an earlier problem is reported */
    size_t num_requests;
    if (options->checks && !bag_bench_check(query, &target->model, problem))
        return false;
    struct bag_bench_request *requests = bag_bench_requests_make(query, &num_requests, problem);
    if (!requests)
        return false;
    FILE *log = options->log ? open_file(options->log, problem) : NULL;
    bool ok = (!options->log || log) && measure(session, requests, num_requests, log, problem);
    if (log)
        ok = close_file(log, options->log, true, ok ? problem : &ignored) && ok;
    bag_bench_requests_free(requests, num_requests);
    return ok;
}

/* Finds the target, prepares the query, and measures. */
static bool run(struct bag_bench_session *session, struct bag_bench_target *target,
                struct bag_problem *problem)
{
    struct bag_bench_query query = {.num_sources = 0};
    session->target = target;
    bool ok = read_before(session, problem) &&
              bag_bench_target_find(target, session->options, problem) &&
              bag_bench_query_init(&query, session->options, target, problem);
    const char *name = target->model.name ? target->model.name : "";
    /* A stranger may have chosen the name: control characters must not reach the terminal. */
    if (ok && !(session->report.model = strdup(bag_quote(name, strlen(name)).text)))
        ok = bag_problem_no_memory(problem);
    if (ok)
        describe_workload(session->options, &target->model, &session->report.workload);
    ok = ok && run_query(session, target, &query, problem);
    bag_bench_query_free(&query);
    return ok;
}

int bag_cmd_bench(int argc, char *argv[])
{
    struct bag_bench_options options;
    struct bag_bench_target target = {.metadata = NULL};
    struct bag_bench_session session = {.options = &options};
    struct bag_problem problem;
    if (bag_arguments_ask_help(argc, argv)) {
        bag_bench_print_help();
        return BAG_EXIT_OK;
    }
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_ERROR); /* for the files that are loaded */
    bool ok = bag_bench_options_read(&options, argc, argv, &problem);
    if (ok) {
        session.report = (struct bag_bench_report){.seed = options.seed,
                                                   .mode = options.mode,
                                                   .highest_rate = -1,
                                                   .slo_ms = options.slo_ms,
                                                   .deciding_run = SIZE_MAX};
        describe_machine(&session.report);
        session.report.url = strdup(options.unix_path ? options.unix_path : options.url_text);
        ok =
            session.report.url ? run(&session, &target, &problem) : bag_problem_no_memory(&problem);
    }
    if (!ok)
        fprintf(stderr, "bagserve: %s\n", problem.text);
    int exit_code = !ok                           ? bag_commands_exit_code(problem.kind)
                    : *session.report.hindered_by ? BAG_EXIT_NO_VERDICT
                                                  : BAG_EXIT_OK;
    bag_bench_report_free(&session.report);
    bag_bench_report_free(&session.before);
    bag_bench_target_free(&target);
    bag_bench_options_free(&options);
    return exit_code;
}
