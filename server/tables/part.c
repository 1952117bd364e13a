/* Parts of tables: described, found and read; see part.h. */
#include "part.h"

#include "proto/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what a part is -------------------------------------------------------------------------- */

/* Sets *problem: the part cannot be divided or loaded in the configured way. Returns false. */
static bool reject(const char *why, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "part: %s", why);
}

/* Checks that the table can be divided in the configured way. Returns false and sets *problem if it
 * cannot. */
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

/* Describes a range of rows, followed by a copy of the default row if another part has it. */
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

/* Describes a range of the columns of all rows. */
static void describe_columns(struct bag_source *source)
{
    struct bag_table_memory *own = &source->own;
    const struct bag_part part = own->part;
    size_t end = bag_part_begin(own->whole_elements, part.index + 1, part.of);
    own->first_column = bag_part_begin(own->whole_elements, part.index, part.of);
    own->table.row_elements = end - own->first_column;
    own->shape[1] = (int64_t)own->table.row_elements;
}

/* Describes a part by keys with the most rows that are expected: the mean and six standard
 * deviations. Their number is known when the keys are read. */
static void describe_keys(struct bag_source *source)
{
    struct bag_table_memory *own = &source->own;
    const struct bag_rules *rules = &source->features[0].rules;
    double mean = (double)own->whole_rows / own->part.of;
    own->keeps_default = rules->has_default_index;
    own->kept_default = rules->default_index;
    own->kept_rows = rules->hash_rows;
    double most = mean + 6 * sqrt(mean) + 64 + (double)own->kept_rows;
    if (most < (double)own->whole_rows)
        source->max_rows = (size_t)most;
    if (!source->maps)
        own->table.num_rows = own->shape[0] = (int64_t)source->max_rows;
}

/* Checks that the part can stay in its file. In a file rows cannot be cut, and no copy of a default
 * row can follow them. Returns false and sets *problem if the part must be copied. */
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
    if (source->remote)
        own->keys_dtype = source->remote->table.keys_dtype;
    else if (source->num_key_files)
        own->keys_dtype = source->key_files[0].npy.dtype;
    source->max_rows = (size_t)own->whole_rows;
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
    if (!bag_table_divides_ids(own))
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

/* ---- the digest of the whole table ----------------------------------------------------------- */

/* The number of blocks that are read of a large file, evenly spread: few enough for a slow disk,
 * and together of so many rows that two dumps of a trained table differ in some of them. */
#define SAMPLES      64
#define SAMPLE_BYTES 4096

/* The number of rows that are computed of a demo table. */
#define MADE_ROWS 16

/* Hashes samples of the bytes [begin, begin + bytes): all of them if they are few. */
static bool hash_samples(const struct bag_table_file *file, uint64_t begin, uint64_t bytes,
                         uint64_t *hash, struct bag_problem *problem)
{
    char block[SAMPLE_BYTES];
    const bool is_small = bytes <= SAMPLES * SAMPLE_BYTES;
    const uint64_t step = is_small ? SAMPLE_BYTES : (bytes - SAMPLE_BYTES) / (SAMPLES - 1);
    int fd = bag_file_reopen(file, problem);
    bool ok = fd >= 0;
    *hash = bag_hash_word(*hash, bytes);
    for (uint64_t i = 0, at = 0; ok && i < SAMPLES && at < bytes; i++, at += step) {
        size_t count = bytes - at < SAMPLE_BYTES ? (size_t)(bytes - at) : SAMPLE_BYTES;
        ok = bag_file_read_at(fd, block, count, begin + at, problem) ||
             bag_file_reject(file->path, problem);
        if (ok)
            *hash = bag_hash_bytes(*hash, block, count);
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Hashes the elements of a file. The elements of a part by rows begin before its range,
 * which bag_npy_slice cut out. */
static bool hash_file(const struct bag_source *source, const struct bag_table_file *file,
                      uint64_t *hash, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    const uint64_t bytes = bag_dtypes[file->npy.dtype].bytes;
    const uint64_t row_bytes = file->npy.row_elements * bytes;
    const uint64_t row_step = file->npy.fortran_order ? bytes : row_bytes;
    *hash = bag_hash_word(*hash, file->has_crc32 ? file->crc32 : 0);
    if (own->part.by != BAG_PART_ROWS)
        return hash_samples(file, file->npy.data_offset, file->npy.data_bytes, hash, problem);
    return hash_samples(file, file->npy.data_offset - own->first_row * row_step,
                        own->whole_rows * row_bytes, hash, problem);
}

/* Hashes some rows of a demo table, evenly spread. */
static bool hash_made(const struct bag_source *source, uint64_t *hash, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    float *row = malloc(own->whole_elements * sizeof *row + 1);
    if (!row)
        return bag_problem_no_memory(problem);
    for (uint64_t i = 0; i < MADE_ROWS && i < own->whole_rows; i++) {
        source->make(row, (size_t)(own->whole_rows * i / MADE_ROWS), 1, 0, own->whole_elements);
        *hash = bag_hash_bytes(*hash, row, own->whole_elements * sizeof *row);
    }
    free(row);
    return true;
}

bool bag_source_digest(const struct bag_source *source, uint64_t *digest,
                       struct bag_problem *problem)
{
    uint64_t hash = BAG_HASH_START;
    bool ok = !source->make || hash_made(source, &hash, problem);
    for (size_t i = 0; ok && i < source->num_files; i++)
        ok = hash_file(source, &source->files[i], &hash, problem);
    for (size_t i = 0; ok && i < source->num_key_files; i++)
        ok = hash_file(source, &source->key_files[i], &hash, problem);
    *digest = hash ? hash : 1;
    return ok;
}

/* ---- which rows a part by keys has ----------------------------------------------------------- */

/* The number of rows between two entries of bag_part_rows.before: reading the keys of at most this
 * many rows more than needed finds any row of the part. */
#define BLOCK_ROWS ((size_t)16 << 10)

/* Returns whether the part has this row of the table: because the part owns the key, because the
 * row stands in for missing keys, or because it is the row of the default key. */
static bool has_row(const struct bag_table_memory *part, size_t row, uint64_t key)
{
    return bag_table_owns(part, key) || row < (uint64_t)part->kept_rows ||
           (part->keeps_default && key == (uint64_t)part->kept_default);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool no_memory(size_t num_rows, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory to divide %zu keys", num_rows);
}

static bool reject_changed(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "the keys changed while they were read");
}

/* Reads all keys once, and counts the part's rows before each block and in total. `keys` has room
 * for a block. */
static bool count_rows(struct bag_part_rows *rows, uint64_t *keys, struct bag_problem *problem)
{
    for (size_t first = 0; first < rows->num_rows; first += BLOCK_ROWS) {
        size_t count = least(BLOCK_ROWS, rows->num_rows - first);
        rows->before[first / BLOCK_ROWS] = rows->count;
        if (!bag_open_files_read(&rows->keys, first, count, keys, problem))
            return false;
        for (size_t i = 0; i < count; i++)
            rows->count += has_row(rows->part, first + i, keys[i]);
    }
    return true;
}

bool bag_part_rows_find(const struct bag_source *source, struct bag_part_rows *rows,
                        struct bag_problem *problem)
{
    const struct bag_table_memory *part = &source->own;
    *rows = (struct bag_part_rows){.part = part, .num_rows = (size_t)part->whole_rows};
    if (!bag_open_files_open(source->key_files, source->num_key_files, &rows->keys, problem))
        return false;
    uint64_t *keys = malloc(BLOCK_ROWS * sizeof *keys);
    rows->before = calloc(rows->num_rows / BLOCK_ROWS + 1, sizeof *rows->before);
    bool ok =
        keys && rows->before ? count_rows(rows, keys, problem) : no_memory(rows->num_rows, problem);
    free(keys);
    if (!ok)
        bag_part_rows_free(rows);
    return ok;
}

void bag_part_rows_free(struct bag_part_rows *rows)
{
    bag_open_files_close(&rows->keys);
    free(rows->before);
    rows->before = NULL;
}

/* The rows of the part among up to BLOCK_ROWS rows of the table. */
struct selection {
    uint64_t keys[2 * BLOCK_ROWS];
    uint32_t rows[BLOCK_ROWS]; /* counted from the first of the range */
    size_t count;
    size_t before; /* rows of the part before the range */
};

/* Selects the part's rows among `count` rows from `first` on. Any thread. */
static bool select_rows(const struct bag_part_rows *rows, size_t first, size_t count,
                        struct selection *selection, struct bag_problem *problem)
{
    size_t begin = first / BLOCK_ROWS * BLOCK_ROWS, lead = first - begin;
    uint64_t *keys = selection->keys;
    if (!bag_open_files_read(&rows->keys, begin, lead + count, keys, problem))
        return false;
    selection->count = 0;
    selection->before = rows->before[begin / BLOCK_ROWS];
    for (size_t i = 0; i < lead; i++)
        selection->before += has_row(rows->part, begin + i, keys[i]);
    memmove(keys, keys + lead, count * sizeof *keys);
    for (size_t i = 0; i < count; i++) {
        selection->rows[selection->count] = (uint32_t)i;
        selection->count += has_row(rows->part, first + i, keys[i]);
    }
    return selection->before + selection->count <= rows->count || reject_changed(problem);
}

/* ---- the index of a part by keys ------------------------------------------------------------- */

/* Returns the last block with at most `position` of the part's rows before it. */
static size_t find_block(const struct bag_part_rows *rows, size_t position)
{
    size_t low = 0, high = (rows->num_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (rows->before[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Reads keys of the part's rows from number `first` of the part on, and their rows in the file. */
static bool read_blocks(const struct bag_part_rows *rows, struct selection *selection, size_t first,
                        size_t count, uint64_t *keys, uint64_t *file_rows,
                        struct bag_problem *problem)
{
    for (size_t block = find_block(rows, first); count > 0; block++) {
        size_t begin = block * BLOCK_ROWS;
        if (begin >= rows->num_rows)
            return reject_changed(problem);
        if (!select_rows(rows, begin, least(BLOCK_ROWS, rows->num_rows - begin), selection,
                         problem))
            return false;
        size_t at = first - least(first, selection->before);
        for (; at < selection->count && count > 0; at++, first++, count--) {
            *keys++ = selection->keys[selection->rows[at]];
            if (file_rows)
                *file_rows++ = begin + selection->rows[at];
        }
    }
    return true;
}

/* Reads keys of the part's rows, for building the index. Called by several builders at once. */
static bool read_part_keys(void *context, size_t first, size_t count, uint64_t *keys,
                           uint64_t *file_rows, struct bag_problem *problem)
{
    const struct bag_part_rows *rows = context;
    struct selection *selection = malloc(sizeof *selection);
    bool ok = selection ? read_blocks(rows, selection, first, count, keys, file_rows, problem)
                        : no_memory(rows->num_rows, problem);
    free(selection);
    return ok;
}

bool bag_part_rows_index(const struct bag_part_rows *rows, const struct bag_source *source,
                         const struct bag_load_options *options, struct bag_keys_index *index,
                         struct bag_problem *problem)
{
    struct bag_part_rows own = *rows;
    struct bag_keys_source keys = {.read = read_part_keys,
                                   .context = &own,
                                   .num_keys = rows->count,
                                   .spare_keys = source->own.spare_rows,
                                   .keeps_rows = source->maps};
    if (!bag_keys_index_of_files(&keys, &rows->keys, options, index, problem))
        return false;
    /* The keys of other parts were read, too. */
    bag_load_progress(options, (rows->num_rows - rows->count) * sizeof(uint64_t));
    return true;
}

/* ---- reading rows ---------------------------------------------------------------------------- */

/* Copies the part's rows or columns from blocks of rows of one file. */
struct cutting {
    const struct bag_source *source;
    const struct bag_part_rows *kept; /* NULL: all rows */
    char *rows;                       /* the part's memory */
    size_t before;                    /* rows of the files before this one */
};

/* Cuts the part's columns out of a tile of rows. Called by several readers at once; each writes its
 * own rows. */
static bool put_columns(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                        struct bag_problem *problem)
{
    const struct cutting *cutting = context;
    const struct bag_table_memory *own = &cutting->source->own;
    char *out = cutting->rows + (cutting->before + first_row) * bag_row_bytes(&own->table);
    (void)problem;
    bag_part_cut_rows(&cutting->source->table, rows, num_rows, own->first_column,
                      own->table.row_elements, out);
    return true;
}

/* Copies the part's rows out of a tile of rows of a part by keys. Called by several readers at
 * once. The keys of the tile are read again to find the rows and their positions in the part. */
static bool put_kept(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                     struct bag_problem *problem)
{
    const struct cutting *cutting = context;
    size_t row_bytes = bag_row_bytes(&cutting->source->table);
    struct selection *selection = malloc(sizeof *selection);
    if (!selection)
        return bag_problem_no_memory(problem);
    bool ok = select_rows(cutting->kept, cutting->before + first_row, num_rows, selection, problem);
    char *out = cutting->rows + (ok ? selection->before : 0) * row_bytes;
    for (size_t i = 0; ok && i < selection->count; i++, out += row_bytes)
        memcpy(out, rows + selection->rows[i] * row_bytes, row_bytes);
    free(selection);
    return ok;
}

/* Reads all rows of the files, and keeps the part's columns, or the rows of a part by keys. */
static bool read_and_cut(const struct bag_source *source, const struct bag_part_rows *kept,
                         const struct bag_load_options *options, struct bag_table_memory *memory,
                         struct bag_problem *problem)
{
    struct cutting cutting = {.source = source, .kept = kept};
    const struct bag_rows_sink sink = {.put = kept ? put_kept : put_columns,
                                       .context = &cutting,
                                       .max_rows = kept ? BLOCK_ROWS : SIZE_MAX};
    if (kept)
        memory->table.num_rows = memory->shape[0] = (int64_t)kept->count;
    if (!bag_table_allocate(memory, problem))
        return bag_file_reject(source->files[0].path, problem);
    cutting.rows = memory->mapping;
    for (size_t i = 0; cutting.rows && i < source->num_files; i++) {
        if (!bag_file_load(&source->files[i], options, NULL, &sink, problem)) {
            bag_table_unload(memory);
            return false;
        }
        cutting.before += (size_t)source->files[i].npy.shape[0];
    }
    bag_table_log_pages(source->files[0].path, memory);
    return true;
}

/* Reads a range of rows, and after them the copy of the default row. */
static bool read_range(const struct bag_source *source, const struct bag_load_options *options,
                       struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_load_options silent = *options;
    silent.progress = NULL;
    if (!bag_table_read(source->files, source->num_files, options, memory, problem))
        return false;
    const size_t bytes = (size_t)memory->shape[0] * bag_row_bytes(&memory->table);
    if (memory->table.num_rows == memory->shape[0] ||
        bag_file_load(&source->default_file, &silent, (char *)memory->mapping + bytes, NULL,
                      problem))
        return true;
    bag_table_unload(memory);
    return false;
}

bool bag_part_read(const struct bag_source *source, const struct bag_part_rows *kept,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem)
{
    return source->own.part.by == BAG_PART_ROWS
               ? read_range(source, options, memory, problem)
               : read_and_cut(source, kept, options, memory, problem);
}
