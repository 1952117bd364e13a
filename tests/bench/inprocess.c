/* The kernels without a server: the same table and queries as over HTTP, in one process, on the
 * core that it is started on.
 *
 *   inprocess TABLE.npy BAGS IDS_PER_BAG SECONDS
 *
 * Each query is checked and pooled as the server does it, into a result that is used again; 64
 * different queries in turn. Prints one line of JSON. */
#include "kernels/isa.h"
#include "query.h"
#include "server/table/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define QUERIES 64

struct inprocess {
    struct bench_query query;
    struct bag_table_memory memory;
    struct bag_rules rules;
    int64_t *offsets, *ids[QUERIES];
    size_t num_ids, result_bytes;
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
        !bag_table_load(&file, 2, NULL, NULL, &run->memory, &problem))
        die(problem.text);
}

static void prepare(struct inprocess *run)
{
    const struct bag_table *table = &run->memory.table;
    uint64_t seed = 1;
    run->query.rows = table->num_rows;
    run->rules = (struct bag_rules){.output_dtype = table->dtype, .default_index = -1};
    run->num_ids = (size_t)run->query.bags * run->query.ids_per_bag;
    run->offsets = allocate(run->query.bags * sizeof *run->offsets);
    bench_query_offsets(&run->query, run->offsets);
    for (int i = 0; i < QUERIES; i++) {
        run->ids[i] = allocate(run->num_ids * sizeof *run->ids[i]);
        bench_query_ids(&run->query, &seed, run->ids[i]);
    }
    run->result_bytes = run->query.bags * table->row_elements * bag_dtypes[table->dtype].bytes;
    run->result = allocate(run->result_bytes);
}

static void pool_once(struct inprocess *run, const int64_t *ids)
{
    struct bag_tensor indices = {.dtype = BAG_I64,
                                 .rank = 1,
                                 .shape = {(int64_t)run->num_ids},
                                 .count = run->num_ids,
                                 .data = ids};
    struct bag_tensor offsets = {.dtype = BAG_I64,
                                 .rank = 1,
                                 .shape = {run->query.bags},
                                 .count = run->query.bags,
                                 .data = run->offsets};
    struct bag_inputs inputs = {.tensor = {[BAG_INDICES] = &indices, [BAG_OFFSETS] = &offsets}};
    struct bag_pool pool;
    struct bag_fault fault;
    if (bag_pool_check(&run->memory.table, &run->rules, &inputs, run->result_bytes, &pool,
                       &fault) != BAG_STATUS_OK)
        die("the query was refused");
    bag_pool_run(&pool, bag_range_all(&pool), run->result);
}

int main(int count, char **arguments)
{
    static struct inprocess run;
    uint64_t queries = 0;
    if (count != 5)
        die("Usage: inprocess TABLE.npy BAGS IDS_PER_BAG SECONDS");
    run.query.bags = (unsigned)strtoul(arguments[2], NULL, 10);
    run.query.ids_per_bag = (unsigned)strtoul(arguments[3], NULL, 10);
    double seconds = strtod(arguments[4], NULL);
    bag_isa_use(bag_isa_best());
    load(&run, arguments[1]);
    prepare(&run);
    for (int i = 0; i < QUERIES; i++)
        pool_once(&run, run.ids[i]);
    double start = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID), elapsed;
    do
        pool_once(&run, run.ids[queries++ % QUERIES]);
    while ((elapsed = seconds_of(CLOCK_MONOTONIC) - start) < seconds);
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"queries\":%llu,\"cpu_us_per_query\":%.3f,\"rows_per_s\":%.0f}\n",
           (unsigned long long)queries, cpu * 1e6 / (double)queries,
           (double)queries * (double)run.num_ids / elapsed);
    return 0;
}
