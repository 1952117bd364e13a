/* What tests/bench/kernels measures, as a shared library that Python calls. Times are CPU time of
 * the calling thread in ns. */
#ifndef TESTS_BENCH_KERNELS_H
#define TESTS_BENCH_KERNELS_H

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

#pragma GCC visibility push(default)

/* Memory in huge pages whose every word is a sane number of every type: about 0.03 as f32, 1 to 2
 * as two f16, small as two bf16. */
void *bench_memory(size_t bytes);

/* Keeps the calling thread on one processor. */
int bench_set_affinity(int cpu);

/* Takes the instruction set of that name, or the best; returns the name of the one that pools. */
const char *bench_isa(const char *name);

int64_t bench_row_bytes(const struct cell *cell);

/* ns for all the ids, call by call, checks included. */
double bench_pool(const struct cell *cell);

/* ns for loading a byte of every line of the same rows, writing as many bytes of results and
 * nothing else; `ahead` rows are prefetched into the first cache (level 3) or the second (level 2),
 * of the same call only, as no more is known. */
double bench_gather(const struct cell *cell, int64_t ahead, int level);

/* Medians of wall ns for one query on one thread and on two, which wait at a barrier and are pinned
 * to different processors; by bags, split where half of the entries are done. Not 0: they cannot
 * be had. */
int bench_threads(const struct cell *cell, int64_t count, int rounds, double *one, double *two);

#pragma GCC visibility pop

#endif
