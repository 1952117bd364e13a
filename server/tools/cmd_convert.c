/* `bagserve convert`: its command line, signals, progress and report. */
#include "server/commands.h"
#include "tools.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

enum { BAG_CONVERT_FLAGS(BAG_TOOL_ID) FLAG_COUNT };
static const struct bag_tool_flag flags[] = {BAG_CONVERT_FLAGS(BAG_TOOL_FLAG)};

static const struct bag_tool tool = {
    "bagserve convert [flags] IN OUT",
    "Converts a table to a safetensors file that describes itself, keys included. IN is what "
    "'bagserve serve --table NAME=IN' takes: a .npy, .npz or .safetensors file, or a folder, with "
    "#TENSOR and ,key=value behind it; and rows as others write them: TorchRec's weight beside "
    "weight_qscale and weight_qbias, INT8 and FP8 codes beside scale (#...weight chooses them), "
    "and rows that FBGEMM has padded (row_format and row_elements say what they are). Exit code 0: "
    "OUT is written; 1: it is not; 2: IN cannot be read, or the command line is wrong.",
    flags,
    FLAG_COUNT,
    BAG_TOOL_MAX_OPERANDS,
    BAG_TOOL_MAX_OPERANDS};

/* Returns the signal that has arrived, or 0. Any thread. */
static int find_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigpending(&set);
    return sigismember(&set, SIGINT) ? SIGINT : sigismember(&set, SIGTERM) ? SIGTERM : 0;
}

/* ---- flags ----------------------------------------------------------------------------------- */

/* Sets the type of the new rows from --datatype. */
static bool find_datatype(const char *text, struct bag_table *to, struct bag_problem *problem)
{
    static const enum bag_dtype known[] = {BAG_F32, BAG_F16, BAG_BF16};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(text, bag_dtypes[known[i]].name) == 0) {
            to->dtype = known[i];
            to->row_format = BAG_ROWS_PLAIN;
            return true;
        }
    }
    return bag_problem_set(problem, BAG_ERROR_USAGE,
                           "--datatype is '%s'; it must be FP32, FP16 or BF16",
                           bag_quote(text, strlen(text)).text);
}

/* Sets the format of the new rows from --row-format. Their elements are FP32. */
static bool find_row_format(const char *text, struct bag_table *to, struct bag_problem *problem)
{
    to->row_format = bag_row_format_find(text, strlen(text));
    to->dtype = BAG_F32;
    if (to->row_format != BAG_ROW_FORMAT_COUNT && to->row_format != BAG_ROWS_PLAIN)
        return true;
    char known[200] = "";
    for (int format = BAG_ROWS_PLAIN + 1; format < BAG_ROW_FORMAT_COUNT; format++)
        bag_text_add(known, sizeof known, "%s%s",
                     format == BAG_ROWS_PLAIN + 1         ? ""
                     : format == BAG_ROW_FORMAT_COUNT - 1 ? " or "
                                                          : ", ",
                     bag_row_format_names[format]);
    return bag_problem_set(problem, BAG_ERROR_USAGE, "--row-format is '%s'; it must be %s",
                           bag_quote(text, strlen(text)).text, known);
}

/* Rejects a name whose end promises another format. */
static bool check_name(const char *out, struct bag_problem *problem)
{
    static const char *const others[] = {".npy", ".npz"};
    const char *dot = strrchr(out, '.');
    for (size_t i = 0; dot && i < sizeof others / sizeof *others; i++) {
        if (strcmp(dot, others[i]) == 0)
            return bag_problem_set(problem, BAG_ERROR_USAGE,
                                   "%s: what is written is a safetensors file; to be served, its "
                                   "name must end with .safetensors",
                                   out);
    }
    return true;
}

/* ---- progress and report --------------------------------------------------------------------- */

/* Prints the progress. On a terminal, the text itself overwrites the one before it; elsewhere each
 * text is a line. */
static void print_progress(void *context, const char *text)
{
    const struct bag_progress *progress = context;
    fprintf(stderr, progress->terminal ? "%s" : "%s\n", text);
}

/* Sets *problem to the reason in errno. Returns false. */
static bool reject_report(const char *path, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "%s: the report cannot be written: %s", path,
                           strerror(errno));
}

/* Checks that the report can be written, before anything is converted. Creates no file. */
static bool can_report(const char *path, struct bag_problem *problem)
{
    /* Opening for appending changes no file that exists. */
    bool is_stdout = strcmp(path, "-") == 0, is_new = access(path, F_OK) != 0;
    FILE *file = is_stdout ? stdout : fopen(path, "a");
    if (!file)
        return reject_report(path, problem);
    bool ok = is_stdout || fclose(file) == 0 || reject_report(path, problem);
    if (!is_stdout && is_new)
        unlink(path);
    return ok;
}

/* Writes the report as JSON to a file, or to standard output for "-". */
static bool write_report(const char *path, const struct bag_convert_report *report,
                         struct bag_problem *problem)
{
    char *text = bag_convert_report_print(report);
    bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = !text ? NULL : is_stdout ? stdout : fopen(path, "w");
    bool ok = file && fprintf(file, "%s\n", text) >= 0;
    ok = file && (is_stdout ? fflush(file) : fclose(file)) == 0 && ok;
    free(text);
    return ok || reject_report(path, problem);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Sets the conversion from the flags. Also rejects what would fail at the end only. */
static bool read_flags(const char *const *values, struct bag_conversion *conversion,
                       struct bag_problem *problem)
{
    const char *text = values[FLAG_MAX_ERROR];
    char *end;
    size_t threads = uv_available_parallelism();
    /* Set how rows are stored in the new file: as in the source by default. */
    const struct bag_source *source = conversion->source;
    struct bag_table *to = &conversion->to;
    *to = source->table;
    if (values[FLAG_DATATYPE] && values[FLAG_ROW_FORMAT])
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--datatype cannot be combined with --row-format");
    if (values[FLAG_DATATYPE] && !find_datatype(values[FLAG_DATATYPE], to, problem))
        return false;
    if (values[FLAG_ROW_FORMAT] && !find_row_format(values[FLAG_ROW_FORMAT], to, problem))
        return false;
    /* Tables of integers can only be copied. */
    bool same = to->dtype == source->table.dtype && to->row_format == source->table.row_format;
    if (!same && bag_dtypes[source->table.dtype].kind != BAG_KIND_FLOAT)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: rows of %s stay as they are; convert "
                               "them without --datatype and --row-format",
                               source->model->path, bag_dtypes[source->table.dtype].name);
    if (to->row_format != BAG_ROWS_PLAIN && source->rank != 2)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: the table has %u dimension%s; quantised rows need 2: rows and "
                               "columns",
                               source->model->path, (unsigned)source->rank,
                               source->rank == 1 ? "" : "s");
    conversion->max_error = text ? strtod(text, &end) : INFINITY;
    if (text && (!*text || *end || !(conversion->max_error >= 0)))
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--max-error is '%s'; it must be a number from 0",
                               bag_quote(text, strlen(text)).text);
    if ((values[FLAG_THREADS] && !bag_tool_number("--threads", values[FLAG_THREADS], 1,
                                                  BAG_CONVERT_MAX_THREADS, &threads, problem)) ||
        (values[FLAG_REPORT] && !can_report(values[FLAG_REPORT], problem)))
        return false;
    conversion->replace = values[FLAG_FORCE] != NULL;
    conversion->threads =
        (unsigned)(threads < BAG_CONVERT_MAX_THREADS ? threads : BAG_CONVERT_MAX_THREADS);
    return true;
}

/* Converts an open source as the flags say. Shows progress, which bag_convert starts once OUT is
 * open. Writes the report also if --max-error made the conversion fail. */
static bool convert(const struct bag_source *source, const char *const *values, const char *out,
                    struct bag_problem *problem)
{
    struct bag_progress progress;
    struct bag_conversion conversion = {
        .source = source, .out = out, .find_signal = find_signal, .progress = &progress};
    struct bag_convert_report report;
    struct bag_problem writing;
    const char *counts = values[FLAG_ORDER_BY], *report_path = values[FLAG_REPORT];
    size_t *order = NULL;
    if (!check_name(out, problem) || !read_flags(values, &conversion, problem) ||
        (counts && !(order = bag_rows_order(source, counts, problem))))
        return false;
    conversion.order = order;
    bag_progress_init(&progress, print_progress, &progress, isatty(STDERR_FILENO));
    progress.doing = "converting";
    progress.done = "converted";
    bool ok = bag_convert(&conversion, &report, problem);
    free(order);
    if (ok)
        bag_progress_finish(&progress, uv_hrtime());
    else
        bag_progress_abandon(&progress);
    bool has_report = ok || problem->kind == BAG_ERROR_CONFLICT;
    if (has_report && report_path && !write_report(report_path, &report, &writing)) {
        *problem = ok ? writing : *problem;
        return false;
    }
    if (ok) {
        /* Print the size of the new rows, and their errors if they changed. */
        size_t rows = report.rows.rows, before = bag_row_bytes(&conversion.source->table);
        size_t after = bag_row_bytes(&conversion.to);
        fprintf(stderr, "%s: %zu rows of %zu elements, %zu bytes a row (%zu before)\n",
                conversion.out, rows, report.row_elements, after, before);
        if (report.rows.elements && after != before)
            fprintf(stderr, "mean squared error %.3g, largest error %.3g, mean cosine %.6f\n",
                    report.rows.squared / (double)report.rows.elements, report.rows.max,
                    report.rows.cosines / (double)rows);
    }
    return ok;
}

/* Opens the source, also with the forms of rows that only convert understands (source->imports),
 * and converts it. */
static bool open_and_convert(const char *const *operands, const char *const *values,
                             struct bag_problem *problem)
{
    struct bag_source *source = bag_source_find(operands[0], problem);
    if (source)
        source->imports = true;
    bool ok = source && bag_source_open_table(source, problem) &&
              convert(source, values, operands[1], problem);
    bag_source_free(source);
    return ok;
}

int bag_cmd_convert(int argc, char *argv[])
{
    const char *values[FLAG_COUNT];
    sigset_t set; /* signals that end a conversion are polled between two blocks */
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    bag_isa_use(bag_isa_best());
    int code = bag_tool_run(&tool, argc, argv, values, open_and_convert);
    /* A shell reports the end by a signal in the same way. */
    int number = code ? find_signal() : 0;
    return number ? 128 + number : code;
}
