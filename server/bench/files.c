/* Files of tables, keys and numbers; see files.h. */
#include "files.h"

#include "server/system/files.h"
#include "server/tables/source.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEXT_BYTES ((size_t)64 << 20)

/* The tables of a check are loaded before the measurement, so threads do not disturb it. */
static const struct bag_load_options load_options = {.threads = 4};

static bool is_float(enum bag_dtype dtype)
{
    return dtype != BAG_DTYPE_COUNT && bag_dtypes[dtype].kind == BAG_KIND_FLOAT;
}

/* ---- integers -------------------------------------------------------------------------------- */

/* Loads the keys of the source or, if it has none, its own array. */
static bool load_integers(const struct bag_source *source, bool of_keys,
                          struct bag_table_memory *integers, struct bag_problem *problem)
{
    bool is_keyed = of_keys && bag_source_is_keyed(source);
    const struct bag_table_file *files = is_keyed ? source->key_files : source->files;
    size_t count = is_keyed ? source->num_key_files : source->num_files;
    const struct bag_npy *npy = files ? &files[0].npy : NULL;
    bool are_keys = npy && npy->rank == 1 && (npy->dtype == BAG_I64 || npy->dtype == BAG_U64);
    if (!files || (of_keys && !are_keys))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: there are no keys; they are INT64 or UINT64 of one dimension",
                               source->model->path);
    if (!bag_table_load(files, count, &load_options, integers, problem))
        return false;
    if (integers->table.num_rows > 0 || !of_keys)
        return true;
    bag_table_unload(integers);
    return bag_problem_set(problem, BAG_ERROR_FILE, "%s: there is no key", source->model->path);
}

bool bag_bench_integers_load(const char *path, bool of_keys, struct bag_table_memory *integers,
                             struct bag_problem *problem)
{
    struct bag_source *source = bag_source_find(path, problem);
    bool ok = source && bag_source_open_table(source, problem) &&
              load_integers(source, of_keys, integers, problem);
    bag_source_free(source);
    return ok;
}

/* ---- lengths of bags ------------------------------------------------------------------------- */

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

/* ---- tables ---------------------------------------------------------------------------------- */

/* Opens the table, with what the server says of its rows if the path does not say it. `dtype` is of
 * a file that cannot name the type of its elements; BAG_DTYPE_COUNT: it can. */
static struct bag_source *open_as(const char *path, const struct bag_client_table *facts,
                                  enum bag_dtype dtype, struct bag_problem *problem)
{
    struct bag_source *source = bag_source_find(path, problem);
    if (!source)
        return NULL;
    struct bag_model_config *model = source->model;
    if (dtype != BAG_DTYPE_COUNT)
        model->datatype = dtype;
    /* A .npy file has no metadata, so the server's facts complete what the path does not say. */
    if (!model->row_format)
        model->row_format = facts->row_format;
    if (model->row_format && !model->row_elements)
        model->row_elements = (int64_t)facts->row_elements;
    if (bag_source_open_table(source, problem))
        return source;
    bag_source_free(source);
    return NULL;
}

/* Opens the table, also as BF16. NumPy has no name for BF16: if the server answers with floats or
 * encoded rows, 2 bytes of another type are BF16. */
static struct bag_source *open_table(const char *path, const struct bag_client_table *facts,
                                     struct bag_problem *problem)
{
    struct bag_source *source, *other = NULL;
    struct bag_problem ignored;
    if (facts->row_format == BAG_ROW_FORMAT_COUNT) {
        bag_problem_set(problem, BAG_ERROR_CONFLICT,
                        "the server's rows are of a format that is not known here");
        return NULL;
    }
    source = open_as(path, facts, BAG_DTYPE_COUNT, problem);
    if (!(source && is_float(source->table.dtype)) &&
        (is_float(facts->output_dtype) ||
         (facts->output_dtype == BAG_U8 && source && source->table.dtype != BAG_U8)))
        other = open_as(path, facts, BAG_BF16, &ignored);
    if (!other)
        return source;
    bag_source_free(source);
    return other;
}

/* Checks that the rows have the format and the size that the server reports. Returns false and sets
 * *problem (CONFLICT) if not, or if the server changes pooled rows. */
static bool check_facts(const struct bag_client_table *facts, const struct bag_table *table,
                        struct bag_problem *problem)
{
    if (facts->projected)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "the server multiplies pooled rows with a matrix: what that makes "
                               "of them is not compared");
    if (table->row_format != facts->row_format)
        return bag_problem_set(
            problem, BAG_ERROR_CONFLICT, "its rows are %s, those of the server %s",
            bag_row_format_names[table->row_format], bag_row_format_names[facts->row_format]);
    /* The reply says how many elements an encoded row has. */
    return facts->output_elements == table->row_elements ||
           (facts->output_dtype == BAG_U8 && is_float(table->dtype)) ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "its rows have %zu elements, those of the answer %zu",
                           table->row_elements, facts->output_elements);
}

/* Copies keys for the builder of the index (struct bag_keys_source). */
static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    const struct bag_table *table = context;
    (void)rows;
    (void)problem;
    memcpy(keys, (const char *)table->rows + first * sizeof *keys, count * sizeof *keys);
    return true;
}

/* Builds the index of a table whose keys are not in its own files. */
static bool index_keys(const struct bag_table_memory *keys, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    struct bag_table table = keys->table;
    const struct bag_keys_source source = {.read = read_keys,
                                           .context = &table,
                                           .num_keys = (size_t)table.num_rows,
                                           .is_signed = table.dtype == BAG_I64};
    if (table.num_rows != memory->table.num_rows)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "it has %lld rows, and there are %lld keys",
                               (long long)memory->table.num_rows, (long long)table.num_rows);
    return bag_keys_index_build(&source, &load_options, &memory->index, problem);
}

/* Loads the rows of an open source, and builds the index if the keys are in a file of their own. */
static struct bag_stored_table *load(struct bag_source *source,
                                     const struct bag_client_table *facts,
                                     const struct bag_table_memory *keys,
                                     struct bag_problem *problem)
{
    struct bag_problem ignored;
    if (!check_facts(facts, &source->table, problem))
        return NULL;
    /* A table in one file is mapped: few of its rows are needed. */
    source->maps = source->num_files == 1 && bag_table_can_map(&source->files[0], &ignored);
    struct bag_stored_table *stored = bag_source_load(source, &load_options, problem);
    if (!stored || !keys->table.rows || bag_table_is_keyed(&stored->memory) ||
        index_keys(keys, &stored->memory, problem))
        return stored;
    bag_stored_table_drop(stored);
    return NULL;
}

struct bag_stored_table *bag_bench_table_load(const char *path,
                                              const struct bag_client_table *facts,
                                              const struct bag_table_memory *keys,
                                              struct bag_problem *problem)
{
    struct bag_source *source = open_table(path, facts, problem);
    struct bag_stored_table *stored = source ? load(source, facts, keys, problem) : NULL;
    if (source && !stored)
        bag_problem_prefix(problem, "%s", path);
    bag_source_free(source);
    return stored;
}
