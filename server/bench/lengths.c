/* Files of bags' lengths; see lengths.h. */
#include "lengths.h"

#include "files.h"
#include "server/system/files.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES ((size_t)64 << 20)

/* Sets the problem to what a file of lengths must contain. Returns false. */
static bool reject_lengths(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "lengths of bags are whole numbers from 0 to %d, at least one",
                           BAG_BENCH_MAX_IDS);
}

/* Reads the lengths from a text. The list has room for half as many numbers as the text has bytes.
 */
static bool lengths_of_text(const char *text, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (!*text)
            return lengths->count > 0 || reject_lengths(problem);
        char *end;
        unsigned long long value = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || value > BAG_BENCH_MAX_IDS ||
            (*end && !strchr(" \t\r\n", *end)))
            return reject_lengths(problem);
        lengths->list[lengths->count++] = value;
        text = end;
    }
}

/* Reads the lengths from a .npy file of any shape, of integers of 32 or 64 bits. */
static bool read_array_lengths(const char *path, struct bag_bench_lengths *lengths,
                               struct bag_problem *problem)
{
    struct bag_table_memory array;
    if (!bag_bench_integers_load(path, false, &array, problem))
        return false;
    const enum bag_dtype dtype = array.table.dtype;
    const size_t bytes = bag_dtypes[dtype].bytes;
    const size_t count = (size_t)array.table.num_rows * array.table.row_elements;
    bool is_whole = dtype == BAG_I64 || dtype == BAG_U64 || dtype == BAG_I32 || dtype == BAG_U32;
    lengths->list = calloc(count + 1, sizeof *lengths->list);
    bool ok = (lengths->list || bag_problem_no_memory(problem)) &&
              ((is_whole && count > 0) || reject_lengths(problem));
    for (size_t i = 0; ok && i < count; i++) {
        uint64_t value = 0;
        memcpy(&value, (const char *)array.table.rows + i * bytes, bytes);
        lengths->list[lengths->count++] = value;
        ok = value <= BAG_BENCH_MAX_IDS || reject_lengths(problem); /* negative numbers, too */
    }
    bag_table_unload(&array);
    return ok;
}

bool bag_bench_read_lengths(const char *path, struct bag_bench_lengths *lengths,
                            struct bag_problem *problem)
{
    size_t bytes;
    *lengths = (struct bag_bench_lengths){.kind = BAG_BENCH_SAMPLE};
    if (bag_has_suffix(path, ".npy"))
        return read_array_lengths(path, lengths, problem);
    char *text = bag_file_read(path, MAX_TEXT_BYTES, &bytes, problem);
    if (!text)
        return false;
    lengths->list = calloc(bytes / 2 + 1, sizeof *lengths->list);
    bool ok =
        lengths->list ? lengths_of_text(text, lengths, problem) : bag_problem_no_memory(problem);
    free(text);
    return ok;
}
