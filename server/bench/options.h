/* The command line of `bagserve bench`.
 *
 * The flags are declared in config/config.h (BAG_BENCH_FLAGS), from which --help, the manual page
 * and the completion scripts are made, too. Texts are borrowed from the arguments. A preset is read
 * first, and other flags override its parts. */
#pragma once

#include "draw.h"
#include "proto/bench_report.h"
#include "proto/http_client.h"

#define BAG_BENCH_MAX_STEPS 64

struct bag_bench_step {
    double rate, seconds; /* requests per second; duration */
};

/* NAME=PATH or PATH. Texts are borrowed. */
struct bag_bench_file {
    struct bag_text name; /* data is NULL if there is none */
    const char *path;
};

struct bag_bench_files {
    struct bag_bench_file *files; /* owned */
    size_t count;
};

struct bag_bench_options {
    const char *url_text; /* as written */
    struct bag_url url;
    const char *model;                             /* NULL: the only one */
    const char *unix_path, *token_file, *get_path; /* NULL: not given */

    size_t bags;                      /* in a request, for each table of the model */
    struct bag_bench_lengths lengths; /* owned; numbers of ids in a bag */
    const char *ids_text;             /* --ids; NULL: lengths are a preset's list */
    int64_t *rows;                    /* owned; numbers of --rows */
    size_t num_rows;
    double zipf; /* 0: all ids equally often */
    bool weights, json, unique;
    const char *mlperf;    /* the preset, for one collection only; NULL: another */
    const char *reduction; /* NULL: the model's */
    struct bag_bench_files keys, tables;
    size_t bodies;      /* 0: as many as fit */
    uint64_t seed;      /* seed of ids, weights and due times */
    size_t connections; /* maximum number of open connections */

    enum bag_bench_mode mode;
    bool constant; /* requests are due at equal intervals, not at random times */
    struct bag_bench_step steps[BAG_BENCH_MAX_STEPS]; /* other modes than OPEN have one step */
    size_t num_steps;
    size_t requests;         /* limit of a closed loop; SIZE_MAX: none */
    double warmup_s, slo_ms; /* slo_ms: p99 that a sweep must meet */

    const char *report, *html, *compare, *log; /* paths; NULL: not wanted */
    size_t checks;                             /* replies to compare with files; 0: none */
};

/* Reads the arguments after the command's name. Returns false and sets *problem if they or the
 * files that they name are wrong. The caller must call bag_bench_options_free in either case. */
bool bag_bench_options_read(struct bag_bench_options *options, int argc, char *argv[],
                            struct bag_problem *problem);

/* Frees the lists. The texts are borrowed. */
void bag_bench_options_free(struct bag_bench_options *options);

/* Prints the help on standard output. */
void bag_bench_print_help(void);
