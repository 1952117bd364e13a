/* Pooling, and the mere touching of the same rows, timed; see bench_kernels.h. */
#include "bench_kernels.h"

#include "kernels/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

void *bench_memory(size_t bytes)
{
    uint32_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return NULL;
    madvise(words, bytes, MADV_HUGEPAGE);
    uint32_t random = 1;
    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        random = random * 1664525 + 1013904223;
        words[i] = 0x3d003c00 | (random >> 8 & 0x00ff00ff);
    }
    return words;
}

int bench_set_affinity(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

const char *bench_isa(const char *name)
{
    enum bag_isa isa = name ? bag_isa_find(name, strlen(name)) : bag_isa_best();
    if (isa == BAG_ISA_COUNT || !bag_isa_usable(isa))
        return NULL;
    bag_isa_use(isa);
    return bag_isa_names[isa];
}

static struct bag_table table_of(const struct cell *cell)
{
    return (struct bag_table){.rows = cell->rows,
                              .dtype = (enum bag_dtype)cell->dtype,
                              .num_rows = cell->num_rows,
                              .row_elements = (size_t)cell->row_elements,
                              .row_format = (enum bag_row_format)cell->row_format};
}

int64_t bench_row_bytes(const struct cell *cell)
{
    struct bag_table table = table_of(cell);
    return (int64_t)bag_row_bytes(&table);
}

/* A call as a client's tensors describe it: made once, as PyTorch's are, and the plan like
 * FBGEMM's kernels. */
struct call {
    struct bag_pool_plan plan;
    struct bag_tensor indices, offsets, weights;
    struct bag_inputs inputs;
};

static void describe(const struct cell *cell, size_t count, struct call *call)
{
    const struct bag_table table = table_of(cell);
    const struct bag_rules rules = {.reduction = (enum bag_reduction)cell->reduction,
                                    .output_dtype = (enum bag_dtype)cell->result,
                                    .default_index = -1};
    bag_pool_prepare(&table, &rules, &call->plan);
    call->indices =
        (struct bag_tensor){.dtype = BAG_I64, .rank = 1, .shape = {(int64_t)count}, .count = count};
    call->offsets = (struct bag_tensor){.dtype = BAG_I64,
                                        .rank = 1,
                                        .shape = {cell->batch},
                                        .count = (size_t)cell->batch,
                                        .data = cell->offsets};
    call->weights = call->indices;
    call->weights.dtype = BAG_F32;
    call->weights.data = cell->weights;
    call->inputs =
        (struct bag_inputs){{[BAG_INDICES] = &call->indices,
                             [BAG_OFFSETS] = &call->offsets,
                             [BAG_PER_SAMPLE_WEIGHTS] = cell->weights ? &call->weights : NULL}};
}

/* Checks one call as a server would. Inlined, because FBGEMM's side has no such step. */
static inline __attribute__((always_inline)) void check(struct call *call, const int64_t *ids,
                                                        struct bag_pool_args *args)
{
    struct bag_fault fault BAG_UNSET;
    call->indices.data = ids;
    if (bag_pool_check(&call->plan, &call->inputs, SIZE_MAX, args, &fault) != BAG_STATUS_OK) {
        fprintf(stderr, "the check rejects: %s\n", bag_status_keywords[fault.status]);
        abort();
    }
}

double bench_pool(const struct cell *cell)
{
    int64_t count = cell->batch * cell->bag;
    struct call call;
    struct bag_pool_args args;
    describe(cell, (size_t)count, &call);
    double start = cpu_ns();
    for (int64_t at = 0; at < cell->count; at += count) {
        check(&call, cell->ids + at, &args);
        bag_pool_prefetch(&args);
        bag_pool_run(&args, bag_range_all(&args), cell->out);
    }
    return cpu_ns() - start;
}

/* ---- instructions ---------------------------------------------------------------------------- */

/* Returns the number of instructions of a process that makes so many calls, or -1. */
static int64_t count_steps(bench_pool_fn *pool, const struct cell *cell, int64_t calls)
{
    struct cell some = *cell;
    int status;
    int64_t steps = 0;
    some.count = calls * cell->batch * cell->bag;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        pool(&some);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    while (WIFSTOPPED(status)) {
        if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) != 0 ||
            waitpid(child, &status, 0) != child)
            return -1;
        steps++;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? steps : -1;
}

int64_t bench_instructions(bench_pool_fn *pool, const struct cell *cell)
{
    pool(cell); /* resolves symbols */
    const int64_t one = count_steps(pool, cell, 1), two = count_steps(pool, cell, 2);
    return one < 0 || two < 0 ? -1 : two - one;
}

/* ---- the limit ------------------------------------------------------------------------------- */

#define LINE_BYTES 64
#define INLINED    static inline __attribute__((always_inline))

/* Writes a result of so many bytes, for what that costs. */
INLINED void write_result(char *out, size_t bytes)
{
    typedef uint64_t vector __attribute__((vector_size(32)));
    const vector zeros = {0};
    size_t at = 0;
    for (; at + sizeof zeros <= bytes; at += sizeof zeros)
        memcpy(out + at, &zeros, sizeof zeros);
    for (; at + 4 <= bytes; at += 4)
        memcpy(out + at, &zeros, 4);
    for (; at < bytes; at++)
        out[at] = 0;
}

INLINED void prefetch_line(const char *at, int level)
{
    if (level == 3)
        __builtin_prefetch(at, 0, 3);
    else
        __builtin_prefetch(at, 0, 2);
}

/* Where each line of a row is touched; the last byte of a row may lie in one more. */
INLINED size_t line_at(size_t line, size_t row_bytes)
{
    return line * LINE_BYTES < row_bytes ? line * LINE_BYTES : row_bytes - 1;
}

/* One call: the entries [first, end). `lines`, `ahead` and `level` are constants of each copy. */
INLINED void gather_call(const struct cell *cell, size_t row_bytes, size_t lines, int64_t first,
                         int64_t end, int64_t ahead, int level)
{
    const char *rows = cell->rows;
    size_t result_bytes = (size_t)cell->row_elements * bag_dtypes[cell->result].bytes;
    char *out = (char *)cell->out;
    uint64_t sum = 0;
    for (int64_t i = first; first < end; first += cell->bag, out += result_bytes) {
        for (; i < first + cell->bag; i++) {
            const char *row = rows + (size_t)cell->ids[i] * row_bytes;
            if (ahead && i + ahead < end) {
                const char *later = rows + (size_t)cell->ids[i + ahead] * row_bytes;
#pragma GCC unroll 9
                for (size_t line = 0; line < lines; line++)
                    prefetch_line(later + line_at(line, row_bytes), level);
            }
#pragma GCC unroll 9
            for (size_t line = 0; line < lines; line++)
                sum += (uint8_t)row[line_at(line, row_bytes)];
        }
        __asm__ volatile("" : "+r"(sum));
        write_result(out, result_bytes);
    }
}

INLINED void gather_calls(const struct cell *cell, size_t row_bytes, size_t lines, int64_t ahead,
                          int level)
{
    int64_t call = cell->batch * cell->bag;
    for (int64_t at = 0; at < cell->count; at += call)
        gather_call(cell, row_bytes, lines, at, at + call, ahead, level);
}

/* A loop of its own for each usual number of lines. */
INLINED void gather_rows(const struct cell *cell, int64_t ahead, int level)
{
    const size_t row_bytes = (size_t)bench_row_bytes(cell);
    const size_t lines = (row_bytes + LINE_BYTES - 1) / LINE_BYTES + (row_bytes % LINE_BYTES != 0);
    switch (lines) {
    case 1:
        gather_calls(cell, row_bytes, 1, ahead, level);
        break;
    case 2:
        gather_calls(cell, row_bytes, 2, ahead, level);
        break;
    case 3:
        gather_calls(cell, row_bytes, 3, ahead, level);
        break;
    case 4:
        gather_calls(cell, row_bytes, 4, ahead, level);
        break;
    case 8:
        gather_calls(cell, row_bytes, 8, ahead, level);
        break;
    default:
        gather_calls(cell, row_bytes, lines, ahead, level);
    }
}

double bench_gather(const struct cell *cell, int64_t ahead, int level)
{
    double start = cpu_ns();
    if (ahead == 0)
        gather_rows(cell, 0, 3);
    else if (level == 3)
        gather_rows(cell, ahead, 3);
    else
        gather_rows(cell, ahead, 2);
    return cpu_ns() - start;
}

/* ---- two threads ----------------------------------------------------------------------------- */

struct half {
    struct bag_pool_args *args;
    struct bag_range range;
    void *out;
    int cpu;
    pthread_barrier_t *barrier;
    int rounds;
};

static void *run_half(void *argument)
{
    struct half *half = argument;
    bench_set_affinity(half->cpu);
    for (int i = 0; i < half->rounds; i++) {
        pthread_barrier_wait(half->barrier);
        bag_pool_run(half->args, half->range, half->out);
        pthread_barrier_wait(half->barrier);
    }
    return NULL;
}

/* The bag at which half of the entries are done. */
static size_t middle_bag(const struct bag_pool_args *args)
{
    size_t low = 0, high = args->num_bags;
    size_t half = bag_pool_entries_before(args, args->num_bags) / 2;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (bag_pool_entries_before(args, middle) < half)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the times. */
static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_value);
    return times[count / 2];
}

/* Times of a call on this thread, and of the same split between it and a second one. */
static int time_rounds(struct bag_pool_args *args, void *out, int rounds, double *one, double *two)
{
    size_t middle = middle_bag(args), columns = args->table.row_elements;
    struct bag_range first = {0, middle, 0, columns};
    pthread_barrier_t barrier;
    pthread_t thread;
    struct half second = {args, {middle, args->num_bags, 0, columns}, out, 1, &barrier, rounds};
    pthread_barrier_init(&barrier, NULL, 2);
    if (pthread_create(&thread, NULL, run_half, &second) != 0)
        return -1;
    for (int i = 0; i < rounds; i++) {
        double start = wall_ns();
        bag_pool_run(args, bag_range_all(args), out);
        one[i] = wall_ns() - start;
        pthread_barrier_wait(&barrier);
        start = wall_ns();
        bag_pool_run(args, first, out);
        pthread_barrier_wait(&barrier);
        two[i] = wall_ns() - start;
    }
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
    return 0;
}

int bench_threads(const struct cell *cell, int64_t count, int rounds, double *one, double *two)
{
    struct bag_pool_args args;
    struct call call;
    double *times = calloc((size_t)rounds * 2, sizeof *times);
    if (!times)
        return -1;
    describe(cell, (size_t)count, &call);
    check(&call, cell->ids, &args);
    int failed = time_rounds(&args, cell->out, rounds, times, times + rounds);
    *one = median(times, rounds);
    *two = median(times + rounds, rounds);
    free(times);
    return failed;
}
