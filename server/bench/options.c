/* The command line of `bagserve bench`; see options.h. */
#include "options.h"

#include "config/synthetic.h"
#include "files.h"
#include "server/system/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The limits of numbers in flags. */
#define MAX_SECONDS     86400.0
#define MAX_RATE        1e8
#define MAX_CONNECTIONS 65536
#define MAX_BAGS        ((size_t)1 << 24)

enum { BAG_BENCH_FLAGS(BAG_TOOL_ID) FLAG_COUNT };

static const struct bag_tool_flag flags[] = {BAG_BENCH_FLAGS(BAG_TOOL_FLAG)};

static const struct bag_tool tool = {
    "bagserve bench [flags] URL [MODEL]",
    "Sends requests to a server as many clients would, and reports how many requests it can answer "
    "and "
    "how fast. It learns from the server's metadata what to ask for. MODEL may be left out if "
    "there is "
    "one model, or one collection. Exit code 0: it was measured; 1: it was not, or --check found a "
    "difference; 2: wrong usage; 3: a sweep has no verdict.",
    flags,
    FLAG_COUNT,
    0,
    2};

void bag_bench_print_help(void)
{
    bag_tool_print_help(stdout, &tool);
}

/* The options without flags: a sweep of requests of one bag of 10 ids. */
static const struct bag_bench_options defaults = {.bags = 1,
                                                  .lengths = {.low = 10, .high = 10},
                                                  .ids_text = "10",
                                                  .seed = 1,
                                                  .connections = 64,
                                                  .mode = BAG_BENCH_SWEEP,
                                                  .num_steps = 1,
                                                  .steps = {{0, 1.5}},
                                                  .requests = SIZE_MAX,
                                                  .warmup_s = 1,
                                                  .slo_ms = 10};

/* ---- numbers --------------------------------------------------------------------------------- */

/* Rejects the value of a flag. Returns false. */
static bool reject(const char *const *values, int flag, const char *right,
                   struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_USAGE, "%s is '%s'; it must be %s", flags[flag].name,
                           bag_quote(values[flag], strlen(values[flag])).text, right);
}

/* Reads the number of a flag from `least` to `most` if the flag is given. */
static bool read_real(const char *const *values, int flag, double least, double most,
                      double *number, struct bag_problem *problem)
{
    char *end, right[64];
    if (!values[flag])
        return true;
    double value = strtod(values[flag], &end);
    if (end != values[flag] && !*end && value >= least && value <= most) {
        *number = value;
        return true;
    }
    snprintf(right, sizeof right, "a number from %g to %g", least, most);
    return reject(values, flag, right, problem);
}

/* Reads the whole number of a flag from `least` to `most` if the flag is given. */
static bool read_count(const char *const *values, int flag, size_t least, size_t most,
                       size_t *number, struct bag_problem *problem)
{
    return !values[flag] ||
           bag_tool_number(flags[flag].name, values[flag], least, most, number, problem);
}

/* ---- what is asked --------------------------------------------------------------------------- */

/* Sets the workload of --preset. Other flags may change it afterwards. */
static bool read_preset(struct bag_bench_options *options, const char *const *values,
                        struct bag_problem *problem)
{
#define BAG_V2(rows, ids)        ids,
#define BAG_V3(name, table, ids) ids,
    static const uint64_t v2[] = {BAG_MLPERF_DLRM_V2(BAG_V2)};
    static const uint64_t v3[] = {BAG_MLPERF_DLRM_V3_FEATURES(BAG_V3)};
#undef BAG_V2
#undef BAG_V3
    const char *name = values[FLAG_PRESET];
    if (!name || strcmp(name, "small") == 0)
        return true;
    if (strcmp(name, "candidates") == 0) {
        options->bags = 2001;
        return true;
    }
    enum bag_synthetic_preset preset = bag_synthetic_find_preset(name);
    if (preset == BAG_SYNTHETIC_NONE)
        return bag_tool_reject_choice(&flags[FLAG_PRESET], name, problem);
    bool is_v3 = preset == BAG_SYNTHETIC_DLRM_V3;
    options->mlperf = name;
    options->ids_text = NULL;
    /* Histories have 7,000 items at the mean, as they are cut at 16,384. */
    options->lengths =
        (struct bag_bench_lengths){.kind = is_v3 ? BAG_BENCH_HISTORY : BAG_BENCH_EACH,
                                   .median = 5865.5,
                                   .sigma = 0.7,
                                   .high = 16384,
                                   .list = malloc(is_v3 ? sizeof v3 : sizeof v2),
                                   .count = (is_v3 ? sizeof v3 : sizeof v2) / sizeof *v2};
    options->zipf = is_v3 ? 1 : 0;
    if (!options->lengths.list)
        return bag_problem_no_memory(problem);
    memcpy(options->lengths.list, is_v3 ? v3 : v2, options->lengths.count * sizeof *v2);
    return true;
}

/* Reads --ids. A text that has none of the forms is the name of a file. */
static bool read_lengths(struct bag_bench_options *options, const char *const *values,
                         struct bag_problem *problem)
{
    const char *text = values[FLAG_IDS];
    if (!text)
        return true;
    free(options->lengths.list);
    options->ids_text = text;
    if (bag_bench_lengths_parse(text, &options->lengths) ||
        bag_bench_read_lengths(text, &options->lengths, problem))
        return true;
    problem->kind = BAG_ERROR_USAGE;
    return bag_problem_prefix(
        problem, "--ids is neither N, LOW-HIGH, lognormal:MEDIAN,SIGMA nor N,N,..., and as a "
                 "file");
}

/* Reads --rows: numbers with commas between them. */
static bool read_rows(struct bag_bench_options *options, const char *const *values,
                      struct bag_problem *problem)
{
    const char *text = values[FLAG_ROWS];
    char *end;
    if (!text)
        return true;
    if (!(options->rows = calloc(strlen(text) + 1, sizeof *options->rows)))
        return bag_problem_no_memory(problem);
    do {
        errno = 0;
        long long rows = strtoll(text, &end, 10);
        if (end == text || errno || rows < 1 || (*end && *end != ','))
            return reject(values, FLAG_ROWS, "numbers of rows with commas between them", problem);
        options->rows[options->num_rows++] = rows;
        text = end + 1;
    } while (*end);
    return true;
}

/* Reads all values of a flag that may be repeated: NAME=PATH or, unless `is_named`, PATH alone. */
static bool read_files(int flag, bool is_named, int argc, char *argv[],
                       struct bag_bench_files *files, struct bag_problem *problem)
{
    const char *value;
    int at = 0;
    if (!(files->files = calloc((size_t)argc + 1, sizeof *files->files)))
        return bag_problem_no_memory(problem);
    while ((value = bag_tool_next(&tool, (size_t)flag, argc, argv, &at))) {
        struct bag_bench_file *file = &files->files[files->count++];
        const char *equals = strchr(value, '=');
        file->path = equals ? equals + 1 : value;
        if (equals)
            file->name = (struct bag_text){value, (size_t)(equals - value)};
        if (!*file->path || (is_named && (!equals || equals == value)))
            return bag_problem_set(problem, BAG_ERROR_USAGE, "%s '%s': write NAME=PATH",
                                   flags[flag].name, bag_quote(value, strlen(value)).text);
    }
    return true;
}

/* Reads the form of bodies, and the reduction. */
static bool read_body(struct bag_bench_options *options, const char *const *values,
                      struct bag_problem *problem)
{
    const char *body = values[FLAG_BODY];
    options->json = body && strcmp(body, "json") == 0;
    if (body && !options->json && strcmp(body, "binary") != 0)
        return bag_tool_reject_choice(&flags[FLAG_BODY], body, problem);
    options->reduction = values[FLAG_REDUCTION];
    if (options->reduction &&
        bag_reduction_find(options->reduction, strlen(options->reduction)) == BAG_REDUCTION_COUNT)
        return bag_tool_reject_choice(&flags[FLAG_REDUCTION], options->reduction, problem);
    return true;
}

/* Reads all flags that decide about the requests. */
static bool read_query(struct bag_bench_options *options, const char *const *values, int argc,
                       char *argv[], struct bag_problem *problem)
{
    size_t seed = options->seed;
    bool ok = read_preset(options, values, problem) &&
              read_count(values, FLAG_BAGS, 1, MAX_BAGS, &options->bags, problem) &&
              read_lengths(options, values, problem) && read_rows(options, values, problem) &&
              read_real(values, FLAG_ZIPF, 0, 20, &options->zipf, problem) &&
              read_body(options, values, problem) &&
              read_count(values, FLAG_BODIES, 1, 1 << 20, &options->bodies, problem) &&
              read_count(values, FLAG_SEED, 0, SIZE_MAX, &seed, problem) &&
              read_files(FLAG_KEYS, false, argc, argv, &options->keys, problem) &&
              read_files(FLAG_TABLE, true, argc, argv, &options->tables, problem);
    options->seed = seed;
    options->weights = values[FLAG_WEIGHTS];
    options->unique = values[FLAG_UNIQUE];
    options->get_path = values[FLAG_GET];
    if (ok && options->get_path && options->get_path[0] != '/')
        return reject(values, FLAG_GET, "a path, from its first slash on", problem);
    return ok;
}

/* ---- how ------------------------------------------------------------------------------------- */

/* Reads --rate: R[:SECONDS][,R[:SECONDS]]... A step without a duration has that of --duration. */
static bool read_rates(struct bag_bench_options *options, const char *const *values,
                       struct bag_problem *problem)
{
    double seconds = options->steps[0].seconds;
    const char *text = values[FLAG_RATE];
    char *end;
    options->num_steps = 0;
    do {
        struct bag_bench_step step = {.seconds = seconds};
        step.rate = strtod(text, &end);
        bool ok = end != text && step.rate > 0 && step.rate <= MAX_RATE;
        if (ok && *end == ':') {
            text = end + 1;
            step.seconds = strtod(text, &end);
            ok = end != text && step.seconds > 0 && step.seconds <= MAX_SECONDS;
        }
        if (!ok || (*end && *end != ',') || options->num_steps == BAG_BENCH_MAX_STEPS)
            return reject(values, FLAG_RATE,
                          "requests a second, R or R:SECONDS, with commas between several",
                          problem);
        options->steps[options->num_steps++] = step;
        text = end + 1;
    } while (*end);
    return true;
}

/* Reads the mode, its limits and the number of checks. Durations default to 10 s, or 1.5 s in a
 * sweep. */
static bool read_mode(struct bag_bench_options *options, const char *const *values,
                      struct bag_problem *problem)
{
    if (!!values[FLAG_RATE] + !!values[FLAG_CLOSED] + !!values[FLAG_SWEEP] > 1)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "only one of --rate, --closed and --sweep can be measured at once");
    options->constant = values[FLAG_CONSTANT];
    options->mode = values[FLAG_RATE]     ? BAG_BENCH_OPEN
                    : values[FLAG_CLOSED] ? BAG_BENCH_CLOSED
                                          : BAG_BENCH_SWEEP;
    if (options->mode != BAG_BENCH_SWEEP)
        options->steps[0].seconds = 10;
    if (values[FLAG_REQUESTS] && options->mode != BAG_BENCH_CLOSED)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "--requests is for --closed");
    return read_real(values, FLAG_DURATION, 0.01, MAX_SECONDS, &options->steps[0].seconds,
                     problem) &&
           (options->mode != BAG_BENCH_OPEN || read_rates(options, values, problem)) &&
           read_count(values, FLAG_REQUESTS, 1, SIZE_MAX - 1, &options->requests, problem) &&
           read_count(values, FLAG_CONNECTIONS, 1, MAX_CONNECTIONS, &options->connections,
                      problem) &&
           read_real(values, FLAG_WARMUP, 0, MAX_SECONDS, &options->warmup_s, problem) &&
           read_real(values, FLAG_SLO, 0.001, 1e6, &options->slo_ms, problem) &&
           read_count(values, FLAG_CHECK, 1, 1 << 20, &options->checks, problem);
}

/* Reads URL and MODEL. Over a Unix-domain socket, URL may be left out, because its host is not
 * used. */
static bool read_target(struct bag_bench_options *options, const char *const *values,
                        const char *const *operands, struct bag_problem *problem)
{
    options->unix_path = values[FLAG_UNIX];
    bool is_url = operands[0] && (!options->unix_path || operands[1] || strstr(operands[0], "://"));
    options->url_text = is_url ? operands[0] : "http://localhost";
    options->model = is_url ? operands[1] : operands[0];
    if (!is_url && !options->unix_path)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "an argument is missing; usage: %s",
                               tool.usage);
    return bag_url_parse(options->url_text, &options->url, problem);
}

bool bag_bench_options_read(struct bag_bench_options *options, int argc, char *argv[],
                            struct bag_problem *problem)
{
    const char *values[FLAG_COUNT], *operands[2]; /* NULL: not given */
    *options = defaults;
    if (!bag_tool_parse(&tool, argc, argv, values, operands, problem) ||
        !read_target(options, values, operands, problem) ||
        !read_query(options, values, argc, argv, problem) || !read_mode(options, values, problem))
        return false;
    options->token_file = values[FLAG_TOKEN_FILE];
    options->report = values[FLAG_REPORT];
    options->html = values[FLAG_HTML];
    options->compare = values[FLAG_COMPARE];
    options->log = values[FLAG_LOG];
    if (options->checks && !options->tables.count)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--check needs the tables' files: --table NAME=PATH");
    return true;
}

void bag_bench_options_free(struct bag_bench_options *options)
{
    free(options->lengths.list);
    free(options->rows);
    free(options->keys.files);
    free(options->tables.files);
}
