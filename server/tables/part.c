/* Parts of tables: what a model keeps of the table in its files, and how that is read; see
 * source.h.
 *
 * A range of rows is read as a table of its own. For columns, and for rows by their keys, all rows
 * are read in blocks, and what is the part's is copied from there: the whole table is never in
 * memory. */
#include "source.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a part is ---------------------------------------------------------------------------
 */

static bool reject(const char *why, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "part: %s", why);
}

/* What cannot be divided in this way. */
static bool check_part(const struct bag_source *source, struct bag_problem *problem)
{
    enum bag_part_by by = source->model->part.by;
    bool keyed = bag_source_is_keyed(source);
    if (by == BAG_PART_ROWS && keyed)
        return reject("a table with keys is divided by keys or by columns: a range of its rows "
                      "could not tell which keys are missing",
                      problem);
    if (by == BAG_PART_KEYS && !keyed)
        return reject("a table without keys is divided by rows or by columns", problem);
    if (by == BAG_PART_COLUMNS && source->rank != 2)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "part: a table of 2 dimensions can be divided by columns; this one "
                               "has %u: say %s",
                               (unsigned)source->rank, keyed ? "keys" : "rows");
    return true;
}

/* A range of rows, and behind them a copy of the row for empty bags where another part has it. */
static void describe_rows(struct bag_source *source)
{
    struct bag_table_memory *own = &source->own;
    const struct bag_part part = own->part;
    uint64_t end = bag_part_begin(own->whole_rows, part.index + 1, part.of);
    own->first_row = bag_part_begin(own->whole_rows, part.index, part.of);
    own->shape[0] = own->table.num_rows = (int64_t)(end - own->first_row);
    own->kept_default = source->features[0].rules.default_index;
    own->keeps_default = own->kept_default >= 0;
    if (own->keeps_default && !bag_table_owns(own, (uint64_t)own->kept_default))
        own->table.num_rows++;
    for (size_t i = 0; i < source->num_files; i++) {
        struct bag_table_file *file = &source->files[i];
        source->default_file = *file;
        bag_npy_slice(&file->npy, (size_t)own->first_row, (size_t)own->shape[0]);
        file->has_crc32 = source->default_file.has_crc32 = false;
        if (own->keeps_default)
            bag_npy_slice(&source->default_file.npy, (size_t)own->kept_default, 1);
    }
}

static void describe_columns(struct bag_source *source)
{
    struct bag_table_memory *own = &source->own;
    const struct bag_part part = own->part;
    size_t end = bag_part_begin(own->whole_elements, part.index + 1, part.of);
    own->first_column = bag_part_begin(own->whole_elements, part.index, part.of);
    own->table.row_elements = end - own->first_column;
    own->shape[1] = (int64_t)own->table.row_elements;
}

/* How many keys are of the part is known when they are read. Here it is the most that it may be:
 * the average, and six of its standard deviations. */
static void describe_keys(struct bag_source *source)
{
    struct bag_table_memory *own = &source->own;
    const struct bag_rules *rules = &source->features[0].rules;
    double average = (double)own->whole_rows / own->part.of;
    own->keeps_default = rules->has_default_index;
    own->kept_default = rules->default_index;
    own->kept_rows = rules->hash_rows;
    double most = average + 6 * sqrt(average) + 64 + (double)own->kept_rows;
    if (most < (double)own->whole_rows)
        source->most_rows = (size_t)most;
    if (!source->maps)
        own->table.num_rows = own->shape[0] = (int64_t)source->most_rows;
}

/* Rows stay where they are in the file: none can be put behind others, nor cut. */
static bool check_mapped(const struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    if (own->part.by == BAG_PART_COLUMNS)
        return reject("a part by columns cannot be mapped: say load copy", problem);
    if (own->part.by == BAG_PART_KEYS && source->model->lock_pages)
        return reject("mlock keeps all of the file in memory: say load copy, which keeps the part",
                      problem);
    return own->table.num_rows == own->shape[0] ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "part: default_index is %lld, a row of another part, of which a mapped "
                           "table can have no copy: say load copy",
                           (long long)own->kept_default);
}

bool bag_source_describe_own(struct bag_source *source, struct bag_problem *problem)
{
    static void (*const describe[])(struct bag_source * source) = {[BAG_PART_COLUMNS] =
                                                                       describe_columns,
                                                                   [BAG_PART_ROWS] = describe_rows,
                                                                   [BAG_PART_KEYS] = describe_keys};
    struct bag_table_memory *own = &source->own;
    *own = (struct bag_table_memory){.table = source->table,
                                     .rank = source->rank,
                                     .spare_rows = (size_t)source->model->spare_rows,
                                     .part = source->model->part,
                                     .whole_rows = (uint64_t)source->table.num_rows,
                                     .whole_elements = source->table.row_elements};
    memcpy(own->shape, source->shape, sizeof own->shape);
    source->most_rows = (size_t)own->whole_rows;
    if (!bag_table_is_part(own))
        return true;
    if (!check_part(source, problem))
        return false;
    describe[own->part.by](source);
    return !source->maps || check_mapped(source, problem);
}

bool bag_source_check_feature_part(const struct bag_feature_source *feature, const char *what,
                                   struct bag_problem *problem)
{
    const struct bag_table_memory *own = &feature->table->own;
    const struct bag_rules *rules = &feature->rules;
    const char *table = feature->table->model->name;
    bool by_keys = own->part.by == BAG_PART_KEYS;
    bool has_default = by_keys ? rules->has_default_index : rules->default_index >= 0;
    if (!bag_table_is_part(own) || own->part.by == BAG_PART_COLUMNS)
        return true;
    if (has_default && !bag_table_owns(own, (uint64_t)rules->default_index) &&
        !(own->keeps_default && rules->default_index == own->kept_default))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: default_index is %lld, which another part of table '%s' has: "
                               "it must be the default_index of that model, too",
                               what, (long long)rules->default_index, table);
    return rules->hash_rows <= own->kept_rows || !by_keys ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: hash_rows is %lld, and the part of table '%s' has the first %lld "
                           "rows of it: model '%s' must have as many hash_rows",
                           what, (long long)rules->hash_rows, table, (long long)own->kept_rows,
                           table);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

/* Blocks of a file's rows, of which the part's go into memory. */
struct sieve {
    const struct bag_source *source;
    const struct bag_part_rows *kept; /* NULL: all rows */
    char *rows;                       /* the part's */
    size_t before;                    /* rows of the files before this one */
};

static bool put_columns(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                        struct bag_problem *problem)
{
    const struct sieve *sieve = context;
    const struct bag_table_memory *own = &sieve->source->own;
    char *out = sieve->rows + (sieve->before + first_row) * bag_row_bytes(&own->table);
    (void)problem;
    bag_part_cut_rows(&sieve->source->table, rows, num_rows, own->first_column,
                      own->table.row_elements, out);
    return true;
}

static bool put_kept(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                     struct bag_problem *problem)
{
    const struct sieve *sieve = context;
    size_t row_bytes = bag_row_bytes(&sieve->source->table);
    struct bag_part_selection *selection = malloc(sizeof *selection);
    if (!selection)
        return bag_problem_no_memory(problem);
    bool ok =
        bag_part_rows_select(sieve->kept, sieve->before + first_row, num_rows, selection, problem);
    char *out = sieve->rows + (ok ? selection->before : 0) * row_bytes;
    for (size_t i = 0; ok && i < selection->count; i++, out += row_bytes)
        memcpy(out, rows + selection->rows[i] * row_bytes, row_bytes);
    free(selection);
    return ok;
}

static bool sift_files(const struct bag_source *source, struct sieve *sieve,
                       const struct bag_load_options *options, struct bag_problem *problem)
{
    struct bag_rows_sink sink = {.put = sieve->kept ? put_kept : put_columns,
                                 .context = sieve,
                                 .most_rows = sieve->kept ? BAG_PART_BLOCK_ROWS : SIZE_MAX};
    for (size_t i = 0; i < source->num_files; i++) {
        if (!bag_table_load_file(&source->files[i], options, NULL, &sink, problem))
            return false;
        sieve->before += (size_t)source->files[i].npy.shape[0];
    }
    return true;
}

static bool sift(const struct bag_source *source, const struct bag_part_rows *kept,
                 const struct bag_load_options *options, struct bag_table_memory *memory,
                 struct bag_problem *problem)
{
    struct sieve sieve = {.source = source, .kept = kept};
    *memory = source->own;
    if (kept)
        memory->table.num_rows = memory->shape[0] = (int64_t)kept->count;
    if (!bag_table_allocate(memory, problem))
        return bag_file_reject(source->files[0].path, problem);
    sieve.rows = memory->mapping;
    if (!sieve.rows || sift_files(source, &sieve, options, problem)) {
        bag_table_log_pages(source->files[0].path, memory);
        return true;
    }
    bag_table_unload(memory);
    return false;
}

/* A range of rows, and the default row behind them. */
static bool load_range(const struct bag_source *source, const struct bag_load_options *options,
                       struct bag_table_memory *memory, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    size_t bytes = (size_t)own->shape[0] * bag_row_bytes(&own->table);
    bool has_copy = own->table.num_rows > own->shape[0];
    struct bag_load_options quiet = *options;
    quiet.progress = NULL;
    if (!bag_table_load(source->files, source->num_files, has_copy, options, memory, problem))
        return false;
    if (!has_copy || bag_table_load_file(&source->default_file, &quiet,
                                         (char *)memory->mapping + bytes, NULL, problem))
        return true;
    bag_table_unload(memory);
    return false;
}

bool bag_part_load(const struct bag_source *source, const struct bag_part_rows *kept,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem)
{
    return source->own.part.by == BAG_PART_ROWS ? load_range(source, options, memory, problem)
                                                : sift(source, kept, options, memory, problem);
}
