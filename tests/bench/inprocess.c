/* The kernels without a server: the same tables and queries as over HTTP, in one process, on the
 * core that it is started on.
 *
 *   inprocess BAGS SECONDS TABLE.npy IDS_PER_BAG
 *
 * A query has that many bags. Each is checked and pooled as the server does it, into a result that
 * is used again; 64 different queries in turn. Prints one line of JSON. */
#include "kernels/pool.h"
#include "server/bench/draw.h"
#include "server/tables/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define QUERIES 64

struct inprocess {
    size_t bags, ids_per_bag;
    struct bag_table_memory memory;
    struct bag_pool_plan plan;
    int64_t *offsets;
    int64_t *ids[QUERIES];
    size_t result_bytes;
    void *result;
};

static double seconds_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void die(const char *why)
{
    fprintf(stderr, "inprocess: %s\n", why);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory)
        die("no memory");
    return memory;
}

static void load(struct inprocess *run, const char *path)
{
    struct bag_table_file file;
    struct bag_problem problem;
    if (!bag_table_file_open(path, BAG_DTYPE_COUNT, &file, &problem) ||
        !bag_table_load(&file, 1, &(struct bag_load_options){.threads = 2}, &run->memory, &problem))
        die(problem.text);
    const struct bag_table *table = &run->memory.table;
    const struct bag_rules rules = {.output_dtype = table->dtype, .default_index = -1};
    bag_pool_prepare(table, &rules, &run->plan);
    run->result_bytes = run->bags * table->row_elements * bag_dtypes[table->dtype].bytes;
    run->result = allocate(run->result_bytes);
}

static void draw_queries(struct inprocess *run)
{
    const struct bag_bench_ids range = bag_bench_ids_of((uint64_t)run->memory.table.num_rows, 0);
    const size_t count = run->bags * run->ids_per_bag;
    uint64_t seed = 1;
    for (int i = 0; i < QUERIES; i++) {
        run->ids[i] = allocate(count * sizeof *run->ids[i]);
        for (size_t k = 0; k < count; k++)
            run->ids[i][k] = (int64_t)bag_bench_id(&range, &seed);
    }
    run->offsets = allocate(run->bags * sizeof *run->offsets);
    for (size_t bag = 0; bag < run->bags; bag++)
        run->offsets[bag] = (int64_t)(bag * run->ids_per_bag);
}

static void pool_once(const struct inprocess *run, const int64_t *ids)
{
    const size_t count = run->bags * run->ids_per_bag;
    struct bag_tensor indices = {
        .dtype = BAG_I64, .rank = 1, .shape = {(int64_t)count}, .count = count, .data = ids};
    struct bag_tensor offsets = {.dtype = BAG_I64,
                                 .rank = 1,
                                 .shape = {(int64_t)run->bags},
                                 .count = run->bags,
                                 .data = run->offsets};
    struct bag_inputs inputs = {.tensor = {[BAG_INDICES] = &indices, [BAG_OFFSETS] = &offsets}};
    struct bag_pool_args args;
    struct bag_fault fault;
    if (bag_pool_check(&run->plan, &inputs, run->result_bytes, &args, &fault) != BAG_STATUS_OK)
        die("the query was rejected");
    bag_pool_run(&args, bag_range_all(&args), run->result);
}

/* Pools for so long, and prints what it took. */
static void measure(const struct inprocess *run, double seconds)
{
    uint64_t queries = 0;
    double start = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID), elapsed;
    do
        pool_once(run, run->ids[queries++ % QUERIES]);
    while ((elapsed = seconds_of(CLOCK_MONOTONIC) - start) < seconds);
    cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    printf("{\"queries\":%llu,\"cpu_us_per_query\":%.3f,\"rows_per_s\":%.0f}\n",
           (unsigned long long)queries, cpu * 1e6 / (double)queries,
           (double)queries * (double)(run->bags * run->ids_per_bag) / elapsed);
}

int main(int count, char **arguments)
{
    static struct inprocess run;
    if (count != 5)
        die("Usage: inprocess BAGS SECONDS TABLE.npy IDS_PER_BAG");
    run.bags = strtoul(arguments[1], NULL, 10);
    run.ids_per_bag = strtoul(arguments[4], NULL, 10);
    bag_isa_use(bag_isa_best());
    load(&run, arguments[3]);
    draw_queries(&run);
    for (int i = 0; i < QUERIES; i++)
        pool_once(&run, run.ids[i]);
    measure(&run, strtod(arguments[2], NULL));
    return 0;
}
