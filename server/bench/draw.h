/* Random numbers by seed: how many ids a bag has, and which.
 *
 * Every function takes the state of the generator and advances it, so that the order of the calls
 * and the seed decide about all numbers. */
#pragma once

#include "kernels/random.h"
#include "proto/problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maximum number of ids of a bag. */
#define BAG_BENCH_MAX_IDS 10000000

/* ---- how many ids a bag has ------------------------------------------------------------------ */

enum bag_bench_lengths_kind {
    BAG_BENCH_RANGE,     /* from low to high, equally often */
    BAG_BENCH_LOGNORMAL, /* rounded, at least 1 */
    BAG_BENCH_EACH,      /* list[i % count] for feature or bag i */
    BAG_BENCH_SAMPLE,    /* a random element of the list */
    BAG_BENCH_HISTORY,   /* EACH; BAG_MLPERF_HISTORY in the list is one length for a request,
                            LOGNORMAL and at most `high` */
};

struct bag_bench_lengths {
    enum bag_bench_lengths_kind kind;
    uint64_t low, high;   /* RANGE: the bounds; HISTORY: `high` is the maximum */
    double median, sigma; /* LOGNORMAL and HISTORY: median length; deviation of its logarithm */
    uint64_t *list;       /* owned */
    size_t count;
};

/* Parses N, LOW-HIGH, lognormal:MEDIAN,SIGMA or N,N,... Returns false for another text, which may
 * be the name of a file, and without memory. */
bool bag_bench_lengths_parse(const char *text, struct bag_bench_lengths *lengths);

/* Draws the length that bags of one request have in common, that of its user's history. Returns 0
 * for kinds other than HISTORY. */
size_t bag_bench_shared_length(const struct bag_bench_lengths *lengths, uint64_t *state);

/* Returns the length of a bag; `place` is the index of its feature or, for one table, its own, and
 * `shared` is of its request. */
size_t bag_bench_length(const struct bag_bench_lengths *lengths, size_t place, size_t shared,
                        uint64_t *state);

/* ---- which ids ------------------------------------------------------------------------------- */

/* The distribution of ids over `rows` rows. */
struct bag_bench_ids {
    uint64_t rows;
    double zipf;     /* exponent; 0: all equally often */
    uint64_t stride; /* coprime to rows: maps the ranks of Zipf's law to rows */
};

/* Returns the distribution over `rows` (>= 1) rows. The frequent rows are scattered over the table.
 */
struct bag_bench_ids bag_bench_ids_of(uint64_t rows, double zipf);

/* Draws an id below ids->rows. */
uint64_t bag_bench_id(const struct bag_bench_ids *ids, uint64_t *state);
