/* The kernels without a server: the same tables and queries as over HTTP, in one process, on the
 * core that it is started on.
 *
 *   inprocess [--send CPU] BAGS SECONDS TABLE.npy IDS_PER_BAG [TABLE.npy IDS_PER_BAG]...
 *
 * A query has that many bags of each table. Each is checked and pooled as the server does it, into
 * a result that is used again; 64 different queries in turn. With --send another thread sends each
 * result over the loopback interface to a process that reads it, both on processor CPU: what no
 * server can do without. The CPU time is that of pooling alone. Prints one line of JSON. */
#include "kernels/pool.h"
#include "send.h"
#include "server/bench/draw.h"
#include "server/tables/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUERIES    64
#define MAX_TABLES 32

struct inprocess {
    size_t bags, num_parts;
    struct part {
        size_t ids_per_bag;
        struct bag_table_memory memory;
        struct bag_pool_plan plan;
        int64_t *offsets;
    } parts[MAX_TABLES];
    int64_t *ids[QUERIES]; /* of all bags, table by table */
    size_t result_bytes;
    void *result;
    struct bench_send *send; /* NULL: results stay here */
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

static void load(struct part *part, const char *path)
{
    struct bag_table_file file;
    struct bag_problem problem;
    if (!bag_table_file_open(path, BAG_DTYPE_COUNT, &file, &problem) ||
        !bag_table_load(&file, 1, &(struct bag_load_options){.threads = 2}, &part->memory,
                        &problem))
        die(problem.text);
    const struct bag_rules rules = {.output_dtype = part->memory.table.dtype, .default_index = -1};
    bag_pool_prepare(&part->memory.table, &rules, &part->plan);
}

static void add_table(struct inprocess *run, const char *path, unsigned ids_per_bag)
{
    if (run->num_parts == MAX_TABLES)
        die("too many tables");
    struct part *part = &run->parts[run->num_parts++];
    load(part, path);
    const struct bag_table *table = &part->memory.table;
    part->ids_per_bag = ids_per_bag;
    part->offsets = allocate(run->bags * sizeof *part->offsets);
    for (size_t bag = 0; bag < run->bags; bag++)
        part->offsets[bag] = (int64_t)(bag * ids_per_bag);
    run->result_bytes += run->bags * table->row_elements * bag_dtypes[table->dtype].bytes;
}

static size_t count_ids(const struct inprocess *run)
{
    size_t count = 0;
    for (size_t i = 0; i < run->num_parts; i++)
        count += run->bags * run->parts[i].ids_per_bag;
    return count;
}

static void draw_ids(const struct inprocess *run, uint64_t *seed, int64_t *ids)
{
    for (size_t i = 0; i < run->num_parts; i++) {
        const struct part *part = &run->parts[i];
        const struct bag_bench_ids range =
            bag_bench_ids_of((uint64_t)part->memory.table.num_rows, 0);
        for (size_t k = 0; k < run->bags * part->ids_per_bag; k++)
            *ids++ = (int64_t)bag_bench_id(&range, seed);
    }
}

static void prepare(struct inprocess *run)
{
    uint64_t seed = 1;
    for (int i = 0; i < QUERIES; i++) {
        run->ids[i] = allocate(count_ids(run) * sizeof *run->ids[i]);
        draw_ids(run, &seed, run->ids[i]);
    }
    run->result = allocate(run->result_bytes);
}

/* Pools one table's bags; returns the end of their result. */
static char *pool_part(const struct inprocess *run, size_t i, const int64_t *ids, char *result)
{
    const struct part *part = &run->parts[i];
    size_t count = run->bags * part->ids_per_bag;
    struct bag_tensor indices = {
        .dtype = BAG_I64, .rank = 1, .shape = {(int64_t)count}, .count = count, .data = ids};
    struct bag_tensor offsets = {.dtype = BAG_I64,
                                 .rank = 1,
                                 .shape = {(int64_t)run->bags},
                                 .count = run->bags,
                                 .data = part->offsets};
    struct bag_inputs inputs = {.tensor = {[BAG_INDICES] = &indices, [BAG_OFFSETS] = &offsets}};
    struct bag_pool_args args;
    struct bag_fault fault;
    if (bag_pool_check(&part->plan, &inputs, run->result_bytes, &args, &fault) != BAG_STATUS_OK)
        die("the query was rejected");
    bag_pool_run(&args, bag_range_all(&args), result);
    return result + args.result_bytes;
}

static void pool_once(const struct inprocess *run, const int64_t *ids)
{
    char *result = run->send ? bench_send_buffer(run->send) : run->result;
    for (size_t i = 0; i < run->num_parts; i++) {
        result = pool_part(run, i, ids, result);
        ids += run->bags * run->parts[i].ids_per_bag;
    }
    if (run->send)
        bench_send_result(run->send);
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
           (double)queries * (double)count_ids(run) / elapsed);
}

int main(int count, char **arguments)
{
    static struct inprocess run;
    int send_cpu = -1;
    if (count > 2 && strcmp(arguments[1], "--send") == 0) {
        send_cpu = atoi(arguments[2]);
        arguments += 2;
        count -= 2;
    }
    if (count < 5 || count % 2 == 0)
        die("Usage: inprocess [--send CPU] BAGS SECONDS TABLE.npy IDS_PER_BAG "
            "[TABLE.npy IDS_PER_BAG]...");
    run.bags = strtoul(arguments[1], NULL, 10);
    double seconds = strtod(arguments[2], NULL);
    bag_isa_use(bag_isa_best());
    for (int i = 3; i < count; i += 2)
        add_table(&run, arguments[i], (unsigned)strtoul(arguments[i + 1], NULL, 10));
    prepare(&run);
    if (send_cpu >= 0)
        run.send = bench_send_start(send_cpu, run.result_bytes);
    for (int i = 0; i < QUERIES; i++)
        pool_once(&run, run.ids[i]);
    measure(&run, seconds);
    if (run.send)
        bench_send_end(run.send);
    return 0;
}
