/* Configured models become checked sources; see source.h. */
#include "source.h"

#include "import.h"
#include "kernels/rowformat.h"
#include "part.h"
#include "projection.h"
#include "row_formats.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- row formats ----------------------------------------------------------------------------- */

/* Checks that a file's rows hold this many elements in this format. They may be padded if the file
 * is imported. */
static bool check_row_elements(enum bag_row_format format, size_t row_elements, size_t row_bytes,
                               bool imports, struct bag_problem *problem)
{
    const char *name = bag_row_format_names[format];
    const size_t bytes = bag_encoded_row_bytes(format, row_elements);
    char formats[BAG_ROW_FORMATS_TEXT];
    bag_row_formats_list(row_bytes, row_elements, BAG_ROWS_PLAIN, formats);
    if (row_elements == 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s needs row_elements, how many elements a row stands "
                               "for; rows of %zu bytes hold %s; the file does not tell which",
                               name, row_bytes, *formats ? formats : "none in any format");
    if (bytes == row_bytes)
        return true;
    /* FBGEMM fills rows up to a multiple of 16 bytes for GPUs. */
    if (row_bytes % 16 == 0 && row_bytes > bytes && row_bytes - bytes < 16)
        return imports ||
               bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s: rows of %zu elements take %zu bytes; those of the "
                               "file are padded to %zu: 'bagserve convert' drops the padding",
                               name, row_elements, bytes, row_bytes);
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "row_format %s: rows of %zu elements take %zu bytes, but those of the "
                           "file have %zu%s%s%s",
                           name, row_elements, bytes, row_bytes, *formats ? ", as in " : "",
                           formats, strchr(formats, ',') ? "; the file does not tell which" : "");
}

/* Sets the row format and the elements of a row as configured, or else as the file says. Rejects a
 * configuration that differs from the file. */
static bool choose_row_format(const struct bag_source *source, enum bag_row_format *format,
                              size_t *row_elements, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    const struct bag_table_file *file = &source->files[0];
    *format = model->row_format ? model->row_format : file->row_format;
    *row_elements = model->row_elements ? (size_t)model->row_elements : file->row_elements;
    if (file->row_format && *format != file->row_format)
        return bag_problem_set(
            problem, BAG_ERROR_CONFIGURATION, "row_format %s: the file says that it is %s",
            bag_row_format_names[*format], bag_row_format_names[file->row_format]);
    if (file->row_elements && *row_elements != file->row_elements)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_elements %zu: the file says that it has %zu", *row_elements,
                               file->row_elements);
    return true;
}

/* Takes a file of 2-D UINT8 as quantised FP32 rows, if it is configured or says so. */
static bool apply_row_format(struct bag_source *source, struct bag_problem *problem)
{
    enum bag_row_format format;
    size_t row_elements;
    struct bag_table *table = &source->table;
    if (!choose_row_format(source, &format, &row_elements, problem))
        return false;
    if (format == BAG_ROWS_PLAIN)
        return row_elements == 0 || row_elements == table->row_elements ||
               bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_elements is %zu, but a row of the file has %zu elements",
                               row_elements, table->row_elements);
    if (table->dtype != BAG_U8 || source->rank != 2)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s needs a table of 2 dimensions of UINT8, rows and "
                               "their bytes; this one has %u of %s",
                               bag_row_format_names[format], source->rank,
                               bag_dtypes[table->dtype].name);
    if (!check_row_elements(format, row_elements, table->row_elements, source->imports, problem))
        return false;
    table->dtype = BAG_F32;
    table->row_elements = row_elements;
    table->row_format = format;
    source->shape[1] = (int64_t)row_elements;
    return true;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Checks that the table can have spare rows, and that their size does not overflow. */
static bool check_spare_rows(const struct bag_source *source, struct bag_problem *problem)
{
    size_t spare_rows = (size_t)source->model->spare_rows, bytes;
    if (spare_rows && !bag_source_is_keyed(source))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "spare_rows is for tables with keys; this one has none");
    return !__builtin_mul_overflow(spare_rows, bag_row_bytes(&source->table) + 64, &bytes) ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "spare_rows is %zu: such a table is larger than any memory", spare_rows);
}

/* Rejects settings that do not go with the way in which the table is loaded. */
static bool check_load(const struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    if (!source->maps && (model->warm || model->lock_pages))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s is for tables with load map; this one is copied into memory",
                               model->warm ? "warm" : "mlock");
    if (source->maps && model->spare_rows)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "spare_rows is for tables with load copy; this one stays in its "
                               "file");
    if (source->maps && source->num_files > 1)
        return bag_problem_set(
            problem, BAG_ERROR_CONFIGURATION,
            "load map is for a table in one file; this one is in %zu, whose rows "
            "follow each other: say load copy, or join them",
            source->num_files);
    return true;
}

/* Writes how problems name the source. */
static void name_source(const struct bag_source *source, char *what, size_t bytes)
{
    const struct bag_model_config *model = source->model;
    if (source->is_unnamed)
        snprintf(what, bytes, "%s", model->path);
    else if (source->remote)
        snprintf(what, bytes, "model '%s'", model->name);
    else
        snprintf(what, bytes, "model '%s' (%s)", model->name, model->path);
}

/* Finds the files of a table and describes the whole table, without reading elements. */
static bool describe_file(struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    if (!bag_source_locate(source, problem))
        return !source->is_unnamed && bag_problem_prefix(problem, "model '%s'", model->name);
    char what[512];
    const struct bag_npy *npy = &source->files[0].npy;
    source->rank = npy->rank;
    memcpy(source->shape, npy->shape, npy->rank * sizeof *npy->shape);
    for (size_t i = 1; i < source->num_files; i++)
        source->shape[0] += source->files[i].npy.shape[0];
    source->table = (struct bag_table){
        .dtype = npy->dtype, .num_rows = source->shape[0], .row_elements = npy->row_elements};
    if ((source->num_scales ? bag_import_describe(source, problem)
                            : apply_row_format(source, problem)) &&
        check_spare_rows(source, problem) && check_load(source, problem))
        return true;
    name_source(source, what, sizeof what);
    return bag_problem_prefix(problem, "%s", what);
}

/* Describes a table that is computed. */
static bool describe_made(struct bag_source *source, struct bag_problem *problem)
{
    source->rank = 2;
    const enum bag_dtype dtype = source->model->datatype;
    source->make = bag_made_find(source->model, source->shape, problem);
    if (dtype != BAG_F32 && dtype != BAG_F16 && dtype != BAG_DTYPE_COUNT)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "datatype %s: rows that are made up are FP32 or FP16",
                               bag_dtypes[dtype].name);
    source->table = (struct bag_table){.dtype = dtype == BAG_F16 ? BAG_F16 : BAG_F32,
                                       .num_rows = source->shape[0],
                                       .row_elements = (size_t)source->shape[1]};
    return source->make != NULL;
}

/* Describes the table of the shards. */
static bool describe_remote(struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_remote *remote = source->remote;
    const struct bag_shard_table *table = &remote->table;
    source->rank = table->rank;
    memcpy(source->shape, table->shape, sizeof source->shape);
    source->table = (struct bag_table){.dtype = table->dtype,
                                       .num_rows = table->shape[0],
                                       .row_elements = (size_t)table->row_elements,
                                       .row_format = table->row_format};
    return remote->part.by != BAG_PART_COLUMNS || !remote->skips_absent ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "model '%s': absent skip is for parts by rows or keys; without a part "
                           "of its columns no row is whole",
                           source->model->name);
}

/* ---- what an open source says ---------------------------------------------------------------- */

uint64_t bag_source_updates_through(const struct bag_source *source)
{
    if (source->model->updates_through >= 0)
        return (uint64_t)source->model->updates_through;
    return source->num_files ? source->files[0].updates_through : 0;
}

size_t bag_source_bytes_of_rows(const struct bag_source *source, size_t num_rows)
{
    const struct bag_table_memory *own = &source->own;
    bool by_keys = bag_table_is_part(own) && own->part.by == BAG_PART_KEYS;
    bool counts = !source->maps || source->model->lock_pages;
    size_t rows = by_keys ? num_rows : (size_t)own->table.num_rows, index_bytes = 0;
    if (bag_source_is_keyed(source))
        index_bytes = bag_keys_index_bytes(rows + own->spare_rows, by_keys && source->maps);
    return (counts ? rows + own->spare_rows : 0) * bag_row_bytes(&own->table) + index_bytes;
}

size_t bag_source_table_bytes(const struct bag_source *source)
{
    return source->remote ? 0 : bag_source_bytes_of_rows(source, source->max_rows);
}

size_t bag_source_bytes(const struct bag_source *source)
{
    size_t bytes = bag_source_table_bytes(source);
    for (size_t i = 0; i < source->num_features; i++) {
        const struct bag_projection_source *projection = source->features[i].projection;
        bytes += projection ? projection->matrix.npy.data_bytes : 0;
        bytes += projection && projection->has_bias ? projection->bias.npy.data_bytes : 0;
    }
    return bytes;
}

struct bag_version_policy bag_source_policy(const struct bag_source *source)
{
    struct bag_version_policy policy = source->model->version_policy;
    if (policy.kind == BAG_VERSIONS_LATEST && policy.count == 0) {
        policy.kind = source->is_named ? BAG_VERSIONS_ALL : BAG_VERSIONS_LATEST;
        policy.numbers[0] = 1;
        policy.count = !source->is_named;
    }
    return policy;
}

bool bag_source_projects(const struct bag_source *source)
{
    bool projects = false;
    for (size_t i = 0; i < source->num_features; i++)
        projects |= source->features[i].projection != NULL;
    return projects;
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* Adds the identity and state of a file to a hash. The file's contents are not read: a file that is
 * replaced or written to gets another state. */
static uint64_t hash_file(uint64_t hash, const struct bag_table_file *file)
{
    hash = bag_hash_word(bag_hash_word(hash, file->device), file->inode);
    hash = bag_hash_word(bag_hash_word(hash, file->bytes), (uint64_t)file->modified.tv_sec);
    return bag_hash_word(hash, (uint64_t)file->modified.tv_nsec);
}

/* Adds files of arrays, and how many there are, to a hash. The rules of the model say which array
 * of a file is meant. */
static uint64_t hash_arrays(uint64_t hash, const struct bag_table_file *files, size_t count)
{
    hash = bag_hash_word(hash, count);
    for (size_t i = 0; i < count; i++)
        hash = hash_file(hash, &files[i]);
    return hash;
}

/* Returns the fingerprint of the source: of its configuration, its table and its projections. */
static uint64_t hash_source(const struct bag_source *source)
{
    uint64_t hash = bag_hash_word(bag_model_config_hash(source->model), source->table_fingerprint);
    for (size_t i = 0; i < source->num_features; i++) {
        const struct bag_projection_source *projection = source->features[i].projection;
        if (projection)
            hash = hash_file(hash, &projection->matrix);
        if (projection && projection->has_bias)
            hash = hash_file(hash, &projection->bias);
    }
    return hash;
}

/* Returns the file number i of the table or, after those, of the projections. NULL: there are
 * fewer.
 */
static struct bag_table_file *file_of(const struct bag_source *source, size_t i)
{
    if (i < source->num_files)
        return &source->files[i];
    i -= source->num_files;
    if (i < source->num_key_files)
        return &source->key_files[i];
    i -= source->num_key_files;
    for (size_t j = 0; j < source->num_features; j++) {
        struct bag_projection_source *projection = source->features[j].projection;
        size_t count = projection ? 1 + projection->has_bias : 0;
        if (i < count)
            return i ? &projection->bias : &projection->matrix;
        i -= count;
    }
    return NULL;
}

uint64_t bag_source_state(const struct bag_source *source)
{
    uint64_t hash = source->fingerprint;
    const struct bag_table_file *file;
    for (size_t i = 0; (file = file_of(source, i)); i++)
        hash = bag_hash_word(bag_hash_word(hash, (uint64_t)file->changed.tv_sec),
                             (uint64_t)file->changed.tv_nsec);
    return hash;
}

/* Returns whether a name has come into or gone from a folder since `time`, or at that time: the
 * folder of the file or, with `above` "/..", the one above it. */
static bool is_newer_folder(const char *path, const char *above, struct timespec time)
{
    char folder[PATH_MAX + 4];
    struct stat state;
    const char *name = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s.%s", name ? (int)(name + 1 - path) : 0, path, above);
    return stat(folder, &state) == 0 &&
           (state.st_mtim.tv_sec > time.tv_sec ||
            (state.st_mtim.tv_sec == time.tv_sec && state.st_mtim.tv_nsec >= time.tv_nsec));
}

bool bag_source_was_written_over(const struct bag_source *before, const struct bag_source *now)
{
    const size_t in_version = now->is_named ? 0 : now->num_files + now->num_key_files;
    const struct bag_table_file *old, *new;
    bool was_written_over = false;
    for (size_t i = 0; !was_written_over && (old = file_of(before, i)) && (new = file_of(now, i));
         i++) {
        /* Perhaps one link was made and another one removed, each in a folder of its own. */
        was_written_over = bag_file_was_changed(old, new) &&
                           !is_newer_folder(new->path, "", new->changed) &&
                           !(i < in_version && is_newer_folder(new->path, "/..", new->changed));
    }
    return was_written_over;
}

void bag_source_update_links(struct bag_source *source, const struct bag_source *now)
{
    struct bag_table_file *old;
    const struct bag_table_file *new;
    for (size_t i = 0; (old = file_of(source, i)) && (new = file_of(now, i)); i++) {
        old->changed = new->changed;
        old->links = new->links;
    }
}

/* ---- models ---------------------------------------------------------------------------------- */

struct bag_source *bag_source_make(struct bag_model_config *model, bool is_named)
{
    struct bag_source *source = calloc(1, sizeof *source);
    struct bag_model_config *own = malloc(sizeof *own);
    if (!source || !own) {
        free(source);
        free(own);
        return NULL;
    }
    *own = *model;
    *model = (struct bag_model_config){0};
    source->model = own;
    source->is_named = is_named;
    return source;
}

struct bag_source *bag_source_find(const char *in, struct bag_problem *problem)
{
    struct bag_config config;
    struct bag_source *source = NULL;
    char *value = NULL, flag[] = "--table";
    if (!bag_config_init(&config) || asprintf(&value, "table=%s", in) < 0) {
        bag_problem_no_memory(problem);
        value = NULL;
    } else if (bag_config_apply_flags(&config, 2, (char *[]){flag, value}, problem)) {
        if (config.models[0].part.of)
            bag_problem_set(problem, BAG_ERROR_USAGE,
                            "%s: part is what a server loads; this command takes whole tables", in);
        else if (!(source = bag_source_make(&config.models[0], true)))
            bag_problem_no_memory(problem);
    }
    if (source)
        source->is_unnamed = true;
    free(value);
    bag_config_free(&config);
    return source;
}

void bag_source_free(struct bag_source *source)
{
    if (!source)
        return;
    for (size_t i = 0; i < source->num_features; i++)
        free(source->features[i].projection);
    free(source->features);
    for (size_t i = 0; i < source->num_paths; i++)
        free(source->paths[i]);
    free(source->paths);
    free(source->files);
    free(source->key_files);
    free(source->scales);
    bag_remote_free(source->remote);
    bag_model_config_free(source->model);
    free(source->model);
    free(source);
}

bool bag_source_check_copied(const struct bag_source *source, const struct bag_source *served,
                             struct bag_problem *problem)
{
    const size_t width = source->table.row_elements;
    const int64_t rows = source->table.num_rows;
    char than[64] = "nothing is served to compare them with";
    if (source->width_from_size && (!served || served->table.row_elements != width)) {
        if (served)
            snprintf(than, sizeof than, "those that are served have %zu",
                     served->table.row_elements);
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: rows have %zu elements by the sizes of the files, and %s; the "
                               "files may still be copied: load the version by a request, set "
                               "row_elements, or use a ready_file",
                               source->model->path, width, than);
    }
    if (source->rows_from_size && (!served || served->table.num_rows > rows)) {
        if (served)
            snprintf(than, sizeof than, "%lld are served", (long long)served->table.num_rows);
        return bag_problem_set(
            problem, BAG_ERROR_FILE,
            "%s: there are %lld rows by the size of the file, and %s; the file "
            "may still be copied: load the version by a request, give the number "
            "of rows in shape, or use a ready_file",
            source->model->path, (long long)rows, than);
    }
    return true;
}

void bag_source_reject(struct bag_source *source, const char *reason)
{
    free(source->model->reason);
    source->model->reason = strdup(reason);
    if (!source->model->reason)
        source->model->reason = calloc(1, 1);
}

static bool make_features(struct bag_source *source, size_t count, struct bag_problem *problem)
{
    source->features = calloc(count, sizeof *source->features);
    source->num_features = source->features ? count : 0;
    return source->features ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                           source->model->name);
}

/* Checks that no size of the table overflows, so that later code can multiply without checks. */
static bool fits_memory(const struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_table_memory *own = &source->own;
    size_t bytes, rows = (size_t)own->table.num_rows;
    size_t key_bytes = bag_source_is_keyed(source) ? 64 : 0; /* far more than they take */
    return source->remote ||
           (!__builtin_add_overflow(rows, own->spare_rows, &rows) &&
            !__builtin_mul_overflow(rows, bag_row_bytes(&own->table) + key_bytes, &bytes)) ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "the tables are larger than any memory");
}

/* Describes the table of the model, wherever its rows come from. */
static bool describe(struct bag_source *source, struct bag_problem *problem)
{
    if (source->remote)
        return describe_remote(source, problem);
    switch (bag_model_path_kind(source->model)) {
    case BAG_PATH_DEMO:
    case BAG_PATH_SYNTHETIC:
        return describe_made(source, problem);
    default:
        return describe_file(source, problem);
    }
}

bool bag_source_open_table(struct bag_source *source, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    char what[512];
    name_source(source, what, sizeof what);
    if (!make_features(source, 1, problem) || !describe(source, problem))
        return false;
    struct bag_feature_config pooling;
    bag_config_pooling(model, NULL, &pooling);
    source->features[0] = (struct bag_feature_source){.name = BAG_EMBEDDINGS, .table = source};
    source->is_open =
        bag_source_complete_rules(&source->features[0], &pooling, what, problem) &&
        (bag_source_describe_own(source, problem) || bag_problem_prefix(problem, "%s", what)) &&
        bag_source_open_projection(&source->features[0], NULL, problem) &&
        fits_memory(source, problem);
    /* Links to the same array are one table, by whatever path it is found. */
    bool has_paths = source->num_files == 0;
    uint64_t hash =
        bag_hash_word(bag_model_config_hash_files(source->model, has_paths), source->maps);
    hash = hash_arrays(hash, source->files, source->num_files);
    hash = hash_arrays(hash, source->key_files, source->num_key_files);
    if (bag_table_is_part(&source->own)) {
        hash = bag_hash_word(hash, source->own.keeps_default);
        hash = bag_hash_word(bag_hash_word(hash, (uint64_t)source->own.kept_default),
                             (uint64_t)source->own.kept_rows);
    }
    if (source->remote)
        hash = bag_remote_hash(hash, source->remote);
    if (source->is_alone) {
        for (const char *at = source->model->name; *at; at++)
            hash = bag_hash_word(hash, (unsigned char)*at);
        hash = bag_hash_word(hash, strtoull(source->model->version, NULL, 10));
    }
    source->table_fingerprint = hash ? hash : 1;
    source->fingerprint = hash_source(source);
    return source->is_open;
}

static bool open_feature(const struct bag_feature_config *named,
                         const struct bag_source *collection, const struct bag_source *table,
                         struct bag_feature_source *feature, struct bag_problem *problem)
{
    struct bag_feature_config pooling;
    char what[512];
    snprintf(what, sizeof what, "model '%s', feature '%s'", collection->model->name, named->name);
    feature->name = named->name;
    feature->table = table;
    bag_config_pooling(table->model, named, &pooling);
    return bag_source_complete_rules(feature, &pooling, what, problem) &&
           bag_source_check_feature_part(feature, what, problem) &&
           bag_source_open_projection(feature, named, problem);
}

bool bag_source_open_collection(struct bag_source *source, const struct bag_source *const *tables,
                                struct bag_problem *problem)
{
    if (!make_features(source, source->model->num_features, problem))
        return false;
    for (size_t i = 0; i < source->num_features; i++) {
        if (!open_feature(&source->model->features[i], source, tables[i], &source->features[i],
                          problem))
            return false;
    }
    source->is_open = true;
    source->fingerprint = hash_source(source);
    return true;
}
