/* See loadgen_options.h. */
#include "loadgen_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MODEL_BYTES 128

static const char usage[] =
    "Usage: loadgen --port PORT [--OPTION VALUE]...\n"
    "  The query: --model items --rows 100000 --bags 1 --ids 10 (per bag), binary or --json\n"
    "  --features ROWS:IDS[,ROWS:IDS]...\n"
    "                     bags of each, in one table that holds the rows of all; or with\n"
    "  --collection       in a model with a feature for each\n"
    "  --zipf EXPONENT    ids by Zipf's law, 0 the most often; else all equally often\n"
    "  --vary             bags of 1 to IDS ids, and an id of its own in each body\n"
    "  --get PATH         no query, but GET PATH\n"
    "  --bodies 64        different bodies, sent in turn\n"
    "  --seed 1           of the ids and of the times of arrival\n"
    "Closed loop:\n"
    "  --connections 64   each waits for its answer before it asks again\n"
    "  --seconds 2\n"
    "  --requests N       so many and no more, if the seconds suffice\n"
    "Open loop:\n"
    "  --open RATE:SECONDS[,RATE:SECONDS]...\n"
    "                     arrivals per second at random times, one phase after the other\n"
    "  --connections 64   at the most; a request that finds all of them busy is not sent\n"
    "  --drain 5          seconds to wait for the last answers\n"
    "  --normal-ms 10     an answer within this is a normal one\n";

/* X(ID, name, 1 where a value follows, what it does: the value is `text`, `number` and `real`) */
#define OPTIONS(X)                                                                \
    X(PORT, "port", 1, options->port = number)                                    \
    X(MODEL, "model", 1, options->query.model = text)                             \
    X(ROWS, "rows", 1, options->query.features[0].rows = strtoll(text, NULL, 10)) \
    X(BAGS, "bags", 1, options->query.bags = number)                              \
    X(IDS, "ids", 1, options->query.features[0].ids_per_bag = number)             \
    X(FEATURES, "features", 1, read_features(options, text))                      \
    X(COLLECTION, "collection", 0, options->query.collection = true)              \
    X(ZIPF, "zipf", 1, options->query.zipf = real)                                \
    X(JSON, "json", 0, options->query.json = true)                                \
    X(VARY, "vary", 0, options->query.varied = true)                              \
    X(GET, "get", 1, options->query.get_path = text)                              \
    X(BODIES, "bodies", 1, options->bodies = number)                              \
    X(SEED, "seed", 1, options->seed = strtoull(text, NULL, 10))                  \
    X(CONNECTIONS, "connections", 1, options->connections = number)               \
    X(SECONDS, "seconds", 1, options->phases[0].seconds = real)                   \
    X(REQUESTS, "requests", 1, options->requests = strtoull(text, NULL, 10))      \
    X(OPEN, "open", 1, read_phases(options, text))                                \
    X(DRAIN, "drain", 1, options->drain_seconds = real)                           \
    X(NORMAL, "normal-ms", 1, options->normal_ms = real)

enum option_id {
    NO_OPTION,
#define X(id, name, takes_value, set) id,
    OPTIONS(X)
#undef X
};

static const struct option long_options[] = {
#define X(id, name, takes_value, set) {name, takes_value, NULL, id},
    OPTIONS(X)
#undef X
        {NULL, 0, NULL, 0}};

static const struct bench_loadgen_options defaults = {
    .query = {.model = "items",
              .bags = 1,
              .num_features = 1,
              .features = {{.rows = 100000, .ids_per_bag = 10}}},
    .bodies = 64,
    .seed = 1,
    .requests = UINT64_MAX,
    .connections = 64,
    .num_phases = 1,
    .phases = {{0, 2}},
    .drain_seconds = 5,
    .normal_ms = 10};

static void reject(const char *what)
{
    fprintf(stderr, "loadgen: %s\n%s", what, usage);
    exit(2);
}

static void read_phases(struct bench_loadgen_options *options, const char *text)
{
    int used = 0;
    options->open = true;
    options->num_phases = 0;
    do {
        double rate, seconds;
        if (options->num_phases == BENCH_MAX_PHASES)
            reject("too many phases");
        if (sscanf(text, "%lf:%lf%n", &rate, &seconds, &used) != 2 || rate <= 0 || seconds <= 0)
            reject("--open takes RATE:SECONDS, both above 0");
        options->phases[options->num_phases].rate = rate;
        options->phases[options->num_phases++].seconds = seconds;
        text += used;
    } while (*text++ == ',');
    if (text[-1])
        reject("--open takes RATE:SECONDS,RATE:SECONDS and so on");
}

static void read_features(struct bench_loadgen_options *options, char *text)
{
    if (!bench_query_read_features(&options->query, text))
        reject("--features takes ROWS:IDS,ROWS:IDS and so on");
}

static void read_option(struct bench_loadgen_options *options, enum option_id id, char *text)
{
    unsigned number = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    double real = text ? strtod(text, NULL) : 0;
    switch (id) {
#define X(id, name, takes_value, set) \
    case id:                          \
        set;                          \
        break;
        OPTIONS(X)
#undef X
    case NO_OPTION:
        break;
    }
}

static void check(const struct bench_loadgen_options *options)
{
    if (!options->port)
        reject("--port is missing");
    if (strlen(options->query.model) > MAX_MODEL_BYTES)
        reject("the model's name is too long");
    if (options->query.features[0].rows < 1 || !options->query.features[0].ids_per_bag ||
        !options->bodies || !options->connections)
        reject("--rows, --ids, --bodies and --connections must be at least 1");
    if (!(options->query.zipf >= 0))
        reject("--zipf must be at least 0");
    if (options->phases[0].seconds <= 0)
        reject("--seconds must be above 0");
}

void bench_loadgen_options_read(struct bench_loadgen_options *options, int count, char **arguments)
{
    int option;
    *options = defaults;
    while ((option = getopt_long(count, arguments, "", long_options, NULL)) != -1) {
        if (option == '?')
            reject("unknown option");
        read_option(options, (enum option_id)option, optarg);
    }
    if (optind < count)
        reject("arguments without an option");
    check(options);
}
