/* How long a number takes on its way in and out of JSON, beside cJSON; see tests/bench/json.
 *
 * Both read the same text and print the same values, in turn, round after round. Times are those of
 * the processor, and the median of the rounds is shown. cJSON's include making and freeing its tree
 * where it reads, and freeing its text where it prints. */
#include "kernels/pool.h"
#include "proto/numbers.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NUMBERS  8192
#define LONGEST  32
#define ROUNDS   15
#define ROUND_NS 4e6

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return random_state >> 32 ^ random_state << 13;
}

/* ---- what is measured: each writes one number ------------------------------------------------ */

static double unit(void)
{
    return (double)(next_random() >> 11) / 0x1p52 - 1;
}

static int six_digits(char *out)
{
    return sprintf(out, "%u", 100000 + (unsigned)(next_random() % 900000));
}

static int up_to_seven_digits(char *out)
{
    return sprintf(out, "%u", (unsigned)pow(10, 7 * fabs(unit())));
}

static int nineteen_digits(char *out)
{
    return sprintf(out, "%llu",
                   1000000000000000000 + (unsigned long long)next_random() % 8000000000000000000);
}

static int shortest_f32(char *out)
{
    float value = (float)unit();
    char text[LONGEST];
    int bytes = (int)(bag_numbers_print(&value, 1, BAG_F32, text) - text) - 2;
    memcpy(out, text + 1, (size_t)bytes);
    return bytes;
}

static int f32_as_f64(char *out)
{
    return sprintf(out, "%.17g", (double)(float)unit());
}

static int f64_digits(char *out)
{
    return sprintf(out, "%.17g", unit());
}

static const struct {
    const char *name;
    enum bag_dtype dtype;
    int (*put)(char *out);
} kinds[] = {
    {"INT64, 6 digits", BAG_I64, six_digits},
    {"INT64, 1 to 7 digits", BAG_I64, up_to_seven_digits},
    {"INT64, 19 digits", BAG_I64, nineteen_digits},
    {"FP32, 6 to 9 digits", BAG_F32, shortest_f32},
    {"FP32, sent as doubles", BAG_F32, f32_as_f64},
    {"FP64, 16 to 17 digits", BAG_F64, f64_digits},
};

#define KINDS (sizeof kinds / sizeof kinds[0])

/* ---- one kind -------------------------------------------------------------------------------- */

/* The array as text, as elements and as a tree. */
struct sample {
    enum bag_dtype dtype;
    char *text;
    size_t text_bytes;
    char data[NUMBERS * 8];
    cJSON *tree;
    char *room; /* to print into */
};

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void read_ours(struct sample *sample)
{
    struct bag_problem problem;
    const char *end, *error_at;
    if (!bag_numbers_parse(sample->text, sample->text_bytes, sample->dtype, NUMBERS, sample->data,
                           &end, &error_at, &problem))
        fail(problem.text);
}

static void read_cjson(struct sample *sample)
{
    cJSON *tree = cJSON_ParseWithLength(sample->text, sample->text_bytes);
    if (!tree)
        fail("cJSON does not read the sample");
    cJSON_Delete(tree);
}

static void print_ours(struct sample *sample)
{
    bag_numbers_print(sample->data, NUMBERS, sample->dtype, sample->room);
}

static void print_cjson(struct sample *sample)
{
    char *text = cJSON_PrintUnformatted(sample->tree);
    if (!text)
        fail("cJSON does not print the sample");
    cJSON_free(text);
}

static void make_sample(struct sample *sample, size_t kind)
{
    char *out = malloc(NUMBERS * LONGEST + 2);
    if (!out)
        fail("out of memory");
    sample->dtype = kinds[kind].dtype;
    sample->text = out;
    *out++ = '[';
    for (size_t i = 0; i < NUMBERS; i++) {
        out += kinds[kind].put(out);
        *out++ = i + 1 < NUMBERS ? ',' : ']';
    }
    sample->text_bytes = (size_t)(out - sample->text);
    read_ours(sample);
    sample->tree = cJSON_ParseWithLength(sample->text, sample->text_bytes);
    sample->room = malloc(NUMBERS * bag_numbers_max_text(sample->dtype) + 2);
    if (!sample->tree || !sample->room)
        fail("out of memory");
}

static void free_sample(struct sample *sample)
{
    cJSON_Delete(sample->tree);
    free(sample->room);
    free(sample->text);
}

/* ---- time ------------------------------------------------------------------------------------ */

static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

/* Nanoseconds per number over one round. */
static double measure(struct sample *sample, void (*work)(struct sample *))
{
    double start = cpu_ns(), spent = 0;
    size_t times = 0;
    while (spent < ROUND_NS) {
        work(sample);
        times++;
        spent = cpu_ns() - start;
    }
    return spent / (double)(times * NUMBERS);
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

enum { READ_OURS, READ_CJSON, PRINT_OURS, PRINT_CJSON, WORKS };

int main(int argc, char **argv)
{
    enum bag_isa isa = argc > 1 ? bag_isa_find(argv[1], strlen(argv[1])) : bag_isa_best();
    static void (*const works[WORKS])(struct sample *) = {read_ours, read_cjson, print_ours,
                                                          print_cjson};
    static struct sample samples[KINDS];
    static double times[KINDS][WORKS][ROUNDS];
    if (isa == BAG_ISA_COUNT || !bag_isa_usable(isa))
        fail("this processor or build has no such instruction set");
    bag_isa_use(isa);
    for (size_t kind = 0; kind < KINDS; kind++)
        make_sample(&samples[kind], kind);
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t kind = 0; kind < KINDS; kind++) {
            for (size_t work = 0; work < WORKS; work++)
                times[kind][work][round] = measure(&samples[kind], works[work]);
        }
    }
    printf("%-24s %9s %9s %7s   %9s %9s %7s\n", "ns per number", "in", "cJSON", "ratio", "out",
           "cJSON", "ratio");
    for (size_t kind = 0; kind < KINDS; kind++) {
        double ns[WORKS];
        for (size_t work = 0; work < WORKS; work++)
            ns[work] = median(times[kind][work]);
        printf("%-24s %9.1f %9.1f %6.1fx   %9.1f %9.1f %6.1fx\n", kinds[kind].name, ns[READ_OURS],
               ns[READ_CJSON], ns[READ_CJSON] / ns[READ_OURS], ns[PRINT_OURS], ns[PRINT_CJSON],
               ns[PRINT_CJSON] / ns[PRINT_OURS]);
        free_sample(&samples[kind]);
    }
    return 0;
}
