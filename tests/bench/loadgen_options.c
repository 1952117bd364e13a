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

enum flag {
    PORT = 1,
    MODEL,
    ROWS,
    BAGS,
    IDS,
    FEATURES,
    COLLECTION,
    JSON,
    VARY,
    GET,
    BODIES,
    SEED,
    CONNECTIONS,
    SECONDS,
    REQUESTS,
    OPEN,
    DRAIN,
    NORMAL
};

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

static void read_option(struct bench_loadgen_options *options, enum flag flag, char *text)
{
    unsigned number = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    double real = text ? strtod(text, NULL) : 0;
    switch (flag) {
    case PORT:
        options->port = number;
        break;
    case MODEL:
        options->query.model = text;
        break;
    case ROWS:
        options->query.features[0].rows = strtoll(text, NULL, 10);
        break;
    case BAGS:
        options->query.bags = number;
        break;
    case IDS:
        options->query.features[0].ids_per_bag = number;
        break;
    case FEATURES:
        if (!bench_query_read_features(&options->query, text))
            reject("--features takes ROWS:IDS,ROWS:IDS and so on");
        break;
    case COLLECTION:
        options->query.collection = true;
        break;
    case JSON:
        options->query.json = true;
        break;
    case VARY:
        options->query.varied = true;
        break;
    case GET:
        options->query.get_path = text;
        break;
    case BODIES:
        options->bodies = number;
        break;
    case SEED:
        options->seed = strtoull(text, NULL, 10);
        break;
    case CONNECTIONS:
        options->connections = number;
        break;
    case SECONDS:
        options->phases[0].seconds = real;
        break;
    case REQUESTS:
        options->requests = strtoull(text, NULL, 10);
        break;
    case OPEN:
        read_phases(options, text);
        break;
    case DRAIN:
        options->drain_seconds = real;
        break;
    case NORMAL:
        options->normal_ms = real;
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
    if (options->phases[0].seconds <= 0)
        reject("--seconds must be above 0");
}

void bench_loadgen_options_read(struct bench_loadgen_options *options, int count, char **arguments)
{
    static const struct option longs[] = {{"port", 1, NULL, PORT},
                                          {"model", 1, NULL, MODEL},
                                          {"rows", 1, NULL, ROWS},
                                          {"bags", 1, NULL, BAGS},
                                          {"ids", 1, NULL, IDS},
                                          {"features", 1, NULL, FEATURES},
                                          {"collection", 0, NULL, COLLECTION},
                                          {"json", 0, NULL, JSON},
                                          {"vary", 0, NULL, VARY},
                                          {"get", 1, NULL, GET},
                                          {"bodies", 1, NULL, BODIES},
                                          {"seed", 1, NULL, SEED},
                                          {"connections", 1, NULL, CONNECTIONS},
                                          {"seconds", 1, NULL, SECONDS},
                                          {"requests", 1, NULL, REQUESTS},
                                          {"open", 1, NULL, OPEN},
                                          {"drain", 1, NULL, DRAIN},
                                          {"normal-ms", 1, NULL, NORMAL},
                                          {NULL, 0, NULL, 0}};
    int option;
    *options =
        (struct bench_loadgen_options){.query = {.model = "items",
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
    while ((option = getopt_long(count, arguments, "", longs, NULL)) != -1) {
        if (option == '?')
            reject("unknown option");
        read_option(options, (enum flag)option, optarg);
    }
    if (optind < count)
        reject("arguments without an option");
    check(options);
}
