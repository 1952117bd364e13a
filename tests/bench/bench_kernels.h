/* The measurements of tests/bench/kernels, in a shared library that Python calls. Times are CPU
 * time of the calling thread in ns. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* One cell of the table. Laid out as the script's ctypes structure. */
struct cell {
    const void *rows;
    int64_t num_rows;
    int64_t row_elements;
    const int64_t *ids; /* count of them, a multiple of batch * bag */
    int64_t count;
    int64_t batch, bag;
    const float *weights; /* one per id of a call, or NULL */
    const int64_t *offsets;
    float *out;
    int32_t dtype, row_format, reduction;
    int32_t result; /* dtype of the results */
};

/* Returns the ns for all the ids of a cell, call by call. */
typedef double bench_pool_fn(const struct cell *cell);

#pragma GCC visibility push(default)

/* Memory in huge pages whose every word is a sane number of every type: about 0.03 as f32, 1 to 2
 * as two f16, small as two bf16. */
void *bench_memory(size_t bytes);

/* Keeps the calling thread on one processor. */
int bench_set_affinity(int cpu);

/* Takes the instruction set of that name, or the best; returns the name of the one that pools. */
const char *bench_isa(const char *name);

int64_t bench_row_bytes(const struct cell *cell);

/* Pools with our kernels, checks included. */
bench_pool_fn bench_pool;

/* Returns the instructions of a call of a side, or -1: those of a process that makes two calls
 * without those of one that makes one. It runs in single steps, so every instruction set is counted
 * on a processor that has it. */
int64_t bench_instructions(bench_pool_fn *pool, const struct cell *cell);

/* Returns the ns for loading a byte of every cache line of the same rows and writing as many bytes
 * of results. It prefetches `ahead` rows into the first cache (level 3) or the second (level 2),
 * but only rows of the same call. */
double bench_gather(const struct cell *cell, int64_t ahead, int level);

/* Sets the medians of wall ns for one query on one thread and on two threads. The two threads start
 * at a barrier, are pinned to different processors, and share the bags so that each has half of the
 * entries. Returns nonzero on failure. */
int bench_threads(const struct cell *cell, int64_t count, int rounds, double *one, double *two);

#pragma GCC visibility pop
