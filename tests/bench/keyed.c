/* Compares pooling by keys with pooling of dense rows; see tests/bench/keyed.
 *
 * All sides pool the same rows of one table from the same calls, in turn, round after round, on one
 * thread. Times are those of the processor, and the median of the rounds is shown. */
#include "kernels/pool.h"
#include "kernels/random.h"
#include "server/memory/memory.h"
#include "server/tables/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BAGS       128
#define BAG_LENGTH 32
#define IDS        (BAGS * BAG_LENGTH)
#define CALLS      16
#define ROUNDS     15

static uint64_t random_state = 1;

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *map(size_t bytes)
{
    struct bag_problem problem;
    void *memory = bag_memory_map(bytes, &problem);
    if (!memory) {
        fprintf(stderr, "%s\n", problem.text);
        exit(1);
    }
    return memory;
}

/* ---- the table and its keys ------------------------------------------------------------------ */

struct bench {
    size_t rows, dim;
    struct bag_table table;
    uint64_t *keys; /* key of each row */
    struct bag_keys_index index;
    char *out;
};

static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    (void)problem;
    (void)rows;
    memcpy(keys, (const uint64_t *)context + first, count * sizeof *keys);
    return true;
}

static void make_table(struct bench *bench)
{
    size_t bytes = bench->rows * bench->dim * sizeof(float);
    float *rows = map(bytes);
    for (size_t i = 0; i < bench->rows * bench->dim; i++)
        rows[i] = (float)(i % 1000);
    bench->table = (struct bag_table){.rows = rows,
                                      .dtype = BAG_F32,
                                      .num_rows = (int64_t)bench->rows,
                                      .row_elements = bench->dim};
    bench->out = malloc(BAGS * bench->dim * sizeof(float));
    bench->keys = map(bench->rows * sizeof *bench->keys);
    for (size_t i = 0; i < bench->rows; i++)
        bench->keys[i] = bag_mix(i + 1);
}

static void make_index(struct bench *bench)
{
    struct bag_keys_source source = {read_keys, bench->keys, bench->rows, true, 0, false};
    struct bag_problem problem;
    if (!bag_keys_index_build(&source, &(struct bag_load_options){.threads = 2}, &bench->index,
                              &problem)) {
        fprintf(stderr, "%s\n", problem.text);
        exit(1);
    }
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* Ranks by the continuous form of Zipf's law; hot rows are scattered. */
static size_t zipf_row(size_t rows)
{
    double exponent = -0.05, u = bag_random_unit(&random_state);
    double rank = pow(u * (pow((double)rows, exponent) - 1) + 1, 1 / exponent);
    return bag_mix((uint64_t)rank) % rows;
}

static void make_ids(const struct bench *bench, bool zipf, int64_t *rows, uint64_t *keys)
{
    for (size_t i = 0; i < (size_t)CALLS * IDS; i++) {
        rows[i] = (int64_t)(zipf ? zipf_row(bench->rows) : bag_random(&random_state) % bench->rows);
        keys[i] = bench->keys[rows[i]];
    }
}

/* ---- the sides ------------------------------------------------------------------------------- */

static void pool(const struct bench *bench, const int64_t *rows)
{
    struct bag_tensor indices = {
        .dtype = BAG_I64, .rank = 2, .shape = {BAGS, BAG_LENGTH}, .count = IDS, .data = rows};
    struct bag_inputs inputs = {{[BAG_INDICES] = &indices}};
    struct bag_rules rules = {.output_dtype = BAG_F32, .default_index = -1};
    struct bag_pool_args args;
    struct bag_fault fault;
    struct bag_pool_plan plan;
    bag_pool_prepare(&bench->table, &rules, &plan);
    if (bag_pool_check(&plan, &inputs, SIZE_MAX, &args, &fault) != BAG_STATUS_OK)
        abort();
    bag_pool_run(&args, bag_range_all(&args), bench->out);
}

static void run_dense(const struct bench *bench, const int64_t *rows, const uint64_t *keys)
{
    (void)keys;
    pool(bench, rows);
}

static void find(const struct bench *bench, const uint64_t *keys, int64_t *found)
{
    struct bag_ids ids = {keys, IDS, true};
    bag_keys_find(&bench->index.keys, &ids, found);
}

static void run_keyed(const struct bench *bench, const int64_t *rows, const uint64_t *keys)
{
    static int64_t found[IDS];
    (void)rows;
    find(bench, keys, found);
    pool(bench, found);
}

static void run_lookup(const struct bench *bench, const int64_t *rows, const uint64_t *keys)
{
    static int64_t found[IDS];
    (void)rows;
    find(bench, keys, found);
}

typedef void side(const struct bench *bench, const int64_t *rows, const uint64_t *keys);

/* X(name, function) */
#define SIDES(X)          \
    X("dense", run_dense) \
    X("keyed", run_keyed) \
    X("lookup alone", run_lookup)

static const struct {
    const char *name;
    side *run;
} sides[] = {
#define BAG_X(name, run) {name, run},
    SIDES(BAG_X)
#undef BAG_X
};
#define NUM_SIDES (sizeof sides / sizeof *sides)

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct bench *bench, const char *title, bool zipf)
{
    static double took[NUM_SIDES][ROUNDS];
    int64_t *rows = malloc(sizeof(int64_t) * CALLS * IDS);
    uint64_t *keys = malloc(sizeof(uint64_t) * CALLS * IDS);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < NUM_SIDES; i++) {
            size_t which = (i + (size_t)round) % NUM_SIDES;
            make_ids(bench, zipf, rows, keys);
            double start = cpu_seconds();
            for (size_t call = 0; call < CALLS; call++)
                sides[which].run(bench, rows + call * IDS, keys + call * IDS);
            took[which][round] = (cpu_seconds() - start) / (CALLS * IDS) * 1e9;
        }
    }
    for (size_t i = 0; i < NUM_SIDES; i++)
        qsort(took[i], ROUNDS, sizeof(double), compare_doubles);
    for (size_t i = 0; i < NUM_SIDES; i++)
        printf("%-9s %-16s %7.1f ns an id  %5.2f of dense\n", title, sides[i].name,
               took[i][ROUNDS / 2], took[0][ROUNDS / 2] / took[i][ROUNDS / 2]);
    free(rows);
    free(keys);
}

int main(int argc, char *argv[])
{
    struct bench bench = {.rows = argc > 1 ? (size_t)atoll(argv[1]) : 16000000,
                          .dim = argc > 2 ? (size_t)atoll(argv[2]) : 64};
    if (bench.rows == 0 || bench.dim == 0 || bench.rows > UINT32_MAX) {
        fprintf(stderr, "usage: %s [ROWS [DIM]]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    bag_isa_use(bag_isa_best());
    printf("%zu rows of %zu f32, calls of %d bags of %d ids\n", bench.rows, bench.dim, BAGS,
           BAG_LENGTH);
    make_table(&bench);
    make_index(&bench);
    measure(&bench, "uniform", false);
    measure(&bench, "zipf 1.05", true);
    return 0;
}
