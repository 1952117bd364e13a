/* The look-up of keys beside hash maps; see tests/bench/keyed.
 *
 * All sides look the same keys up in calls of the same length, in turn, round after round, on one
 * thread; every row is compared. Times are those of the processor, and the median of the rounds is
 * shown. */
#include "server/memory/memory.h"
#include "server/tables/load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ASKED  100000 /* keys of a side's turn */
#define ROUNDS 9

static const size_t sizes[] = {40000, 1000000, 3000000, 16000000};
static const size_t calls[] = {10, 100, 10000};
static const unsigned found_percents[] = {100, 50, 0};

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t next_random(void)
{
    static uint64_t state = 1;
    return scramble(state += UINT64_C(0x9e3779b97f4a7c15));
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ---- the sides ------------------------------------------------------------------------------- */

typedef void *make_fn(const uint64_t *keys, size_t count);
typedef size_t find_fn(const void *map, const uint64_t *keys, size_t count, int64_t *rows);

struct side {
    const char *name;
    make_fn *make;
    find_fn *find;
    void *map;
    double took[ROUNDS];
};

static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    (void)problem;
    (void)rows;
    memcpy(keys, (const uint64_t *)context + first, count * sizeof *keys);
    return true;
}

static void *index_make(const uint64_t *keys, size_t count)
{
    struct bag_keys_index *index = malloc(sizeof *index);
    struct bag_keys_source source = {read_keys, (void *)(uintptr_t)keys, count, true, 0, false};
    struct bag_problem problem;
    if (index &&
        bag_keys_index_build(&source, &(struct bag_load_options){.threads = 2}, index, &problem))
        return index;
    fprintf(stderr, "%s\n", index ? problem.text : "no memory");
    exit(1);
}

static size_t index_find(const void *map, const uint64_t *keys, size_t count, int64_t *rows)
{
    const struct bag_keys_index *index = map;
    return bag_keys_find(&index->keys, &(struct bag_ids){keys, count, true}, rows);
}

#define MAX_SIDES 3

/* The maps that the library has. */
static size_t add_map(void *library, const char *name, struct side *sides, size_t count)
{
    char symbol[32];
    struct side side = {.name = name};
    snprintf(symbol, sizeof symbol, "%s_make", name);
    void *make = dlsym(library, symbol);
    snprintf(symbol, sizeof symbol, "%s_find", name);
    void *find = dlsym(library, symbol);
    if (!make || !find) {
        printf("%s is not installed\n", name);
        return count;
    }
    memcpy(&side.make, &make, sizeof make);
    memcpy(&side.find, &find, sizeof find);
    sides[count] = side;
    return count + 1;
}

/* ---- measuring ------------------------------------------------------------------------------- */

struct asked {
    const uint64_t *keys; /* of the table */
    size_t num_keys;
    uint64_t ids[ASKED];
    int64_t wanted[ASKED], rows[ASKED];
};

static void choose(struct asked *asked, unsigned found_percent)
{
    for (size_t i = 0; i < ASKED; i++) {
        size_t row = next_random() % asked->num_keys;
        bool found = next_random() % 100 < found_percent;
        asked->ids[i] = found ? asked->keys[row] : scramble(asked->num_keys + 1 + row);
        asked->wanted[i] = found ? (int64_t)row : -1;
    }
}

static double take_turn(const struct side *side, struct asked *asked, size_t call)
{
    size_t missing = 0;
    double start = now_ns();
    for (size_t i = 0; i < ASKED; i += call)
        missing += side->find(side->map, asked->ids + i, call, asked->rows + i);
    double took = now_ns() - start;
    for (size_t i = 0; i < ASKED; i++)
        missing -= asked->wanted[i] < 0;
    if (missing || memcmp(asked->rows, asked->wanted, sizeof asked->rows) != 0) {
        fprintf(stderr, "%s is wrong\n", side->name);
        exit(1);
    }
    return took / ASKED;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct worst {
    double ratio;
    char cell[64];
};

/* One cell of the table: medians, and what others take over what the index takes. */
static void measure(struct side *sides, size_t count, struct asked *asked, size_t call,
                    unsigned percent, struct worst *worst)
{
    for (int round = -1; round < ROUNDS; round++) {
        for (size_t i = 0; i < count; i++) {
            struct side *side = &sides[(i + (size_t)(round + 1)) % count];
            choose(asked, percent);
            double took = take_turn(side, asked, call);
            if (round >= 0) /* the first warms up */
                side->took[round] = took;
        }
    }
    printf("%9zu keys, calls of %5zu, %3u %% found:", asked->num_keys, call, percent);
    for (size_t i = 0; i < count; i++) {
        qsort(sides[i].took, ROUNDS, sizeof(double), compare_doubles);
        double took = sides[i].took[ROUNDS / 2], ratio = took / sides[0].took[ROUNDS / 2];
        printf("  %s %5.1f", sides[i].name, took);
        if (i == 0)
            continue;
        printf(" (%.2f)", ratio);
        if (ratio < worst->ratio) {
            worst->ratio = ratio;
            snprintf(worst->cell, sizeof worst->cell, "%s, %zu keys, calls of %zu, %u %% found",
                     sides[i].name, asked->num_keys, call, percent);
        }
    }
    printf("\n");
}

static void measure_size(struct side *sides, size_t count, size_t num_keys, struct worst *worst)
{
    struct asked *asked = malloc(sizeof *asked);
    uint64_t *keys = malloc(num_keys * sizeof *keys);
    if (!asked || !keys)
        exit(1);
    for (size_t i = 0; i < num_keys; i++)
        keys[i] = scramble(i + 1);
    asked->keys = keys;
    asked->num_keys = num_keys;
    for (size_t i = 0; i < count; i++)
        sides[i].map = sides[i].make(keys, num_keys);
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        for (size_t j = 0; j < COUNT_OF(found_percents); j++)
            measure(sides, count, asked, calls[i], found_percents[j], worst);
    }
    free(keys);
    free(asked);
}

/* The maps of a size are kept until the end: their own functions made them. */
int main(int argc, char *argv[])
{
    struct side sides[MAX_SIDES] = {{.name = "index", .make = index_make, .find = index_find}};
    struct worst worst = {.ratio = 1e9};
    size_t count = 1;
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "which library of maps?");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    bag_isa_use(bag_isa_best());
    count = add_map(library, "boost", sides, count);
    count = add_map(library, "swiss", sides, count);
    printf("ns a key, and in brackets what the others take over what the index takes\n");
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        measure_size(sides, count, sizes[i], &worst);
    if (count > 1)
        printf("worst: %.2f, %s\n", worst.ratio, worst.cell);
    return 0;
}
