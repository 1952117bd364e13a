/* What `bagserve bench` is told on its command line. */
#ifndef BAG_BENCH_OPTIONS_H
#define BAG_BENCH_OPTIONS_H

#include "draw.h"
#include "proto/bench_report.h"
#include "proto/http_client.h"

#define BAG_BENCH_MAX_STEPS 64

struct bag_bench_step {
    double rate, seconds;
};

/* NAME=PATH, or PATH alone; texts are borrowed. */
struct bag_bench_file {
    struct bag_text name; /* data NULL: none */
    const char *path;
};

struct bag_bench_files {
    struct bag_bench_file *files; /* owned */
    size_t count;
};

struct bag_bench_options {
    const char *url_text; /* as written */
    struct bag_url url;
    const char *model; /* NULL: the only one */
    const char *unix_path, *token_file, *get_path;

    size_t bags;
    struct bag_bench_lengths lengths; /* of bags; owned */
    int64_t *rows;                    /* owned; of --rows */
    size_t num_rows;
    double zipf; /* 0: all ids equally often */
    bool weights, json, is_mlperf;
    const char *reduction; /* NULL: the model's */
    struct bag_bench_files keys, tables;
    size_t bodies; /* 0: as many as fit */
    uint64_t seed;
    size_t connections;

    enum bag_bench_mode mode;
    bool constant;
    struct bag_bench_step steps[BAG_BENCH_MAX_STEPS]; /* of OPEN; the first's seconds hold for the
                                                         other modes */
    size_t num_steps;
    size_t requests; /* of CLOSED; SIZE_MAX: any number */
    double warmup_s, slo_ms;

    const char *report, *html, *compare, *log;
    size_t checks;
};

/* Reads the arguments after the command's name. False with *problem (USAGE, or of a file that it
 * names); in any case bag_bench_options_free is due. */
bool bag_bench_options_read(struct bag_bench_options *options, int argc, char *argv[],
                            struct bag_problem *problem);

void bag_bench_options_free(struct bag_bench_options *options);

void bag_bench_print_help(void);

#endif
