/* Finding the files of a configured table; see source.h. */
#include "source.h"

#include "archive.h"
#include "import.h"
#include "server/system/files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- paths and files of a source ------------------------------------------------------------- */

/* Gives a path to the source, which frees it. Returns NULL if the path is NULL, with *problem
 * already set, or without memory. */
static const char *keep(struct bag_source *source, char *path, struct bag_problem *problem)
{
    if (path && BAG_GROW(source->paths, source->num_paths))
        return source->paths[source->num_paths++] = path;
    if (path)
        bag_problem_no_memory(problem);
    free(path);
    return NULL;
}

/* Prints a path and keeps it. Returns NULL and sets *problem without memory. */
__attribute__((format(printf, 3, 4))) static const char *
name_path(struct bag_source *source, struct bag_problem *problem, const char *format, ...)
{
    char *path = NULL;
    va_list values;
    va_start(values, format);
    if (vasprintf(&path, format, values) < 0) {
        path = NULL;
        bag_problem_no_memory(problem);
    }
    va_end(values);
    return keep(source, path, problem);
}

/* Adds a zeroed file. Returns NULL and sets *problem without memory. */
static struct bag_table_file *add_file(struct bag_table_file **files, size_t *count,
                                       struct bag_problem *problem)
{
    if (!BAG_GROW(*files, *count)) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    (*files)[*count] = (struct bag_table_file){.path = NULL};
    return &(*files)[(*count)++];
}

static struct bag_table_file *add_values(struct bag_source *source, struct bag_problem *problem)
{
    return add_file(&source->files, &source->num_files, problem);
}

static struct bag_table_file *add_keys(struct bag_source *source, struct bag_problem *problem)
{
    return add_file(&source->key_files, &source->num_key_files, problem);
}

/* Returns whether a text of the configuration was given and is not empty. */
static bool is_set(const char *text)
{
    return text && *text;
}

/* ---- one file -------------------------------------------------------------------------------- */

#define VALUES "values"
#define KEYS   "keys"

/* Opens an array of an archive that is to be a table or keys: not a scalar. */
static bool open_array(const struct bag_archive *archive, const char *name, enum bag_dtype dtype,
                       struct bag_table_file *file, struct bag_problem *problem)
{
    return bag_archive_array(archive, name, dtype, file, problem) &&
           (file->npy.rank > 0 || bag_file_reject_scalar(problem) ||
            bag_file_reject(file->path, problem));
}

static bool has_name(const struct bag_file_names *names, const char *name)
{
    return bag_file_names_find(names, name, strlen(name), "");
}

/* Returns the only array of 2 dimensions; NULL if there is none or more than one. */
static const char *find_only_table(const struct bag_file_names *names)
{
    const char *only = NULL;
    for (size_t i = 0; i < names->count; i++) {
        const struct bag_table_file *file = &names->files[i];
        if (!file->path || file->npy.rank != 2 || bag_import_is_scale(names, names->names[i]))
            continue;
        if (only)
            return NULL;
        only = names->names[i];
    }
    return only;
}

/* Returns the array of the values' keys: as configured, or "keys" beside "values". Returns NULL if
 * the archive has none. */
static const char *choose_keys(const struct bag_model_config *model,
                               const struct bag_file_names *names, const char *values)
{
    if (is_set(model->keys_tensor))
        return model->keys_tensor;
    bool looks = !is_set(model->keys) && strcmp(values, VALUES) == 0;
    return looks && has_name(names, KEYS) ? KEYS : NULL;
}

/* Sets the names of the table's array and of its keys (NULL: none): as configured, or by
 * convention. */
static bool choose_arrays(const struct bag_model_config *model, const struct bag_archive *archive,
                          const struct bag_file_names *names, const char **values,
                          const char **keys, struct bag_problem *problem)
{
    *values = is_set(model->tensor) ? model->tensor : has_name(names, VALUES) ? VALUES : NULL;
    if (!*values)
        *values = find_only_table(names);
    if (!*values) {
        /* Set a problem: the table is not named. A file of torch.save gets a hint, because it is a
         * zip archive and read as an .npz file of other arrays. */
        struct bag_table_file file;
        for (size_t i = 0; archive->is_npz && i < names->count; i++) {
            if (bag_has_suffix(names->names[i], "/data.pkl"))
                return bag_problem_set(problem, BAG_ERROR_FILE,
                                       "%s: it looks like what torch.save wrote: export it with "
                                       "proto/clients/python/bagserve_export.py",
                                       archive->file.path);
        }
        if (has_name(names, "indptr") && has_name(names, "indices"))
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "%s: it looks like a sparse matrix of SciPy: save its rows with "
                                   "numpy.save(matrix.toarray())",
                                   archive->file.path);
        if (names->count == 1 &&
            !open_array(archive, names->names[0], BAG_DTYPE_COUNT, &file, problem))
            return false;
        bag_file_reject_choice(names, problem);
        return bag_problem_prefix(problem, "%s: name the table, as PATH#TENSOR or \"tensor\"",
                                  archive->file.path);
    }
    *keys = choose_keys(model, names, *values);
    return true;
}

/* Opens the table in an archive, its keys, and scales if it is imported. */
static bool open_archive(struct bag_source *source, const char *path, struct bag_problem *problem)
{
    struct bag_archive archive;
    struct bag_file_names names = {.count = 0};
    const char *values = NULL, *keys = NULL;
    struct bag_table_file *file;
    if (!bag_archive_open(path, &archive, problem))
        return false;
    bool ok = bag_archive_list(&archive, &names, problem) &&
              choose_arrays(source->model, &archive, &names, &values, &keys, problem) &&
              (file = add_values(source, problem)) &&
              open_array(&archive, values, source->model->datatype, file, problem) &&
              bag_import_open(source, &archive, &names, values, problem) &&
              (!keys || ((file = add_keys(source, problem)) &&
                         open_array(&archive, keys, BAG_DTYPE_COUNT, file, problem)));
    bag_file_names_free(&names);
    bag_archive_close(&archive);
    return ok;
}

/* Opens a tensor of a file in parts. */
static bool open_part(struct bag_source *source, const char *index, const char *tensor,
                      struct bag_table_file *file, struct bag_problem *problem)
{
    struct bag_archive archive;
    const char *path = keep(source, bag_file_find_part(index, tensor, problem), problem);
    if (!path || !bag_archive_open(path, &archive, problem))
        return false;
    bool ok = open_array(&archive, tensor, BAG_DTYPE_COUNT, file, problem);
    bag_archive_close(&archive);
    return ok;
}

/* Opens a table in parts, and its keys, which may be in another part. */
static bool open_parts(struct bag_source *source, const char *index, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    const char *values = is_set(model->tensor) ? model->tensor : VALUES, *keys;
    struct bag_file_names names = {.count = 0};
    struct bag_table_file *file;
    bool ok =
        bag_file_list_index(index, &names, problem) && (file = add_values(source, problem)) &&
        open_part(source, index, values, file, problem) &&
        bag_import_check_parts(source, index, &names, values, problem) &&
        (!(keys = choose_keys(model, &names, values)) ||
         ((file = add_keys(source, problem)) && open_part(source, index, keys, file, problem)));
    bag_file_names_free(&names);
    return ok;
}

/* Opens a file without a header, whose type and shape are configured. */
static bool open_raw(struct bag_source *source, const char *path, struct bag_problem *problem)
{
    const struct bag_model_config *model = source->model;
    struct bag_table_file *file;
    if (model->datatype == BAG_DTYPE_COUNT)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: a file with a configured shape needs its datatype, too", path);
    if (!(file = add_values(source, problem)) ||
        !bag_table_raw_open(path, model->datatype, model->shape.rank, model->shape.sizes, file,
                            problem))
        return false;
    source->rows_from_size = model->shape.sizes[0] < 0;
    return file->bytes > 0 || model->shape.sizes[0] >= 0 ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: the file is empty; copy it again, or say that it has no rows: a "
                           "shape that begins with 0",
                           path);
}

/* Opens a table in one file, by the end of its name. */
static bool open_file(struct bag_source *source, const char *path, struct bag_problem *problem)
{
    struct bag_table_file *file;
    if (source->model->shape.rank)
        return open_raw(source, path, problem);
    if (bag_has_suffix(path, ".index.json"))
        return open_parts(source, path, problem);
    if (bag_has_suffix(path, ".safetensors") || bag_has_suffix(path, ".npz"))
        return open_archive(source, path, problem);
    return (file = add_values(source, problem)) &&
           bag_table_file_open(path, source->model->datatype, file, problem);
}

/* Opens keys in a file of their own: .npy, or 8 bytes each without a header. */
static bool open_keys(struct bag_source *source, const char *path, struct bag_problem *problem)
{
    static const int64_t any[] = {-1};
    struct bag_table_file *file = add_keys(source, problem);
    if (!file)
        return false;
    return bag_has_suffix(path, ".npy") ? bag_table_file_open(path, BAG_DTYPE_COUNT, file, problem)
                                        : bag_table_raw_open(path, BAG_I64, 1, any, file, problem);
}

/* ---- raw values beside raw keys -------------------------------------------------------------- */

/* Opens FP32 rows beside keys. The width of a row follows from the files' sizes. */
static bool open_raw_pair(struct bag_source *source, const char *keys, const char *values,
                          struct bag_problem *problem)
{
    static const int64_t any[] = {-1};
    struct bag_table_file *file;
    if (!open_keys(source, keys, problem) || !(file = add_values(source, problem)) ||
        !bag_table_raw_open(values, BAG_F32, 1, any, file, problem))
        return false;
    size_t rows = source->key_files[source->num_key_files - 1].npy.count;
    size_t columns = rows ? file->npy.count / rows : 0;
    if (rows && file->npy.count == 0)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: the file is empty, but %s has %zu keys, which need rows; copy "
                               "both again",
                               values, keys, rows);
    if (columns * rows != file->npy.count)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: %zu elements of FP32 are no whole rows for the %zu keys in %s",
                               values, file->npy.count, rows, keys);
    int64_t shape[] = {(int64_t)rows, (int64_t)columns};
    source->width_from_size = source->model->row_elements == 0;
    return bag_npy_describe(BAG_F32, 2, shape, 0, &file->npy, problem);
}

/* ---- dynamicemb's dumps: T_emb_keys.rank_R.world_size_W -------------------------------------- */

/* Returns whether this is the name of a file of keys, and sets the names and numbers in it. */
static bool is_dump(const char *name, char table[256], unsigned *rank, unsigned *ranks)
{
    int end = 0;
    const char *mark = strstr(name, "_emb_keys.rank_");
    if (!mark || mark == name || (size_t)(mark - name) >= 256 ||
        sscanf(mark, "_emb_keys.rank_%u.world_size_%u%n", rank, ranks, &end) != 2 || mark[end])
        return false;
    snprintf(table, 256, "%.*s", (int)(mark - name), name);
    return *rank < *ranks;
}

/* Finds the dumped table that the configuration names, or the only one. Sets *table to "" if there
 * is none. */
static bool find_dump(const struct bag_source *source, const char *folder, char table[256],
                      unsigned *ranks, struct bag_problem *problem)
{
    const char *wanted = source->model->tensor;
    DIR *directory = opendir(folder);
    bool ok = directory != NULL;
    *table = 0;
    if (!directory)
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: cannot be read: %s", folder, strerror(errno));
    for (struct dirent *entry; ok && (entry = readdir(directory));) {
        char name[256];
        unsigned rank, of;
        if (!is_dump(entry->d_name, name, &rank, &of) ||
            (is_set(wanted) && strcmp(name, wanted) != 0))
            continue;
        if (*table && (strcmp(table, name) != 0 || *ranks != of))
            ok = bag_problem_set(problem, BAG_ERROR_FILE,
                                 "%s: there are dumps of several tables, or of different world "
                                 "sizes: '%s' and '%s'; name one, as PATH#TABLE",
                                 folder, bag_quote(table, strlen(table)).text,
                                 bag_quote(name, strlen(name)).text);
        memcpy(table, name, sizeof name);
        *ranks = of;
    }
    if (directory)
        closedir(directory);
    return ok;
}

/* Opens the keys and values that each rank wrote, in the order of the ranks. */
static bool open_dump(struct bag_source *source, const char *folder, const char *table,
                      unsigned ranks, struct bag_problem *problem)
{
    for (unsigned rank = 0; rank < ranks; rank++) {
        const char *paths[2];
        for (int i = 0; i < 2; i++) {
            paths[i] = name_path(source, problem, "%s/%s_emb_%s.rank_%u.world_size_%u", folder,
                                 table, i ? VALUES : KEYS, rank, ranks);
            if (!paths[i])
                return false;
        }
        if (!open_raw_pair(source, paths[0], paths[1], problem))
            return false;
    }
    /* Give files without rows the width of the others, and check that all others have one width. */
    int64_t columns = 0;
    for (size_t i = 0; i < source->num_files; i++) {
        const struct bag_npy *npy = &source->files[i].npy;
        if (npy->shape[0] && columns && npy->shape[1] != columns)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "%s: rows of %" PRId64 " elements; those of the other files "
                                   "have %" PRId64,
                                   source->files[i].path, npy->shape[1], columns);
        columns = npy->shape[0] ? npy->shape[1] : columns;
    }
    for (size_t i = 0; i < source->num_files; i++) {
        int64_t shape[] = {source->files[i].npy.shape[0], columns};
        if (!bag_npy_describe(BAG_F32, 2, shape, 0, &source->files[i].npy, problem))
            return false;
    }
    return true;
}

/* ---- folders --------------------------------------------------------------------------------- */

static const char *const index_suffixes[] = {".safetensors.index.json", NULL};
static const char *const table_suffixes[] = {".npy", ".npz", ".safetensors", NULL};

static bool has_any_suffix(const char *name, const char *const *suffixes)
{
    while (*suffixes && !bag_has_suffix(name, *suffixes))
        suffixes++;
    return *suffixes != NULL;
}

bool bag_source_is_table(const char *name)
{
    return has_any_suffix(name, table_suffixes);
}

/* Returns the next file of a folder with one of these suffixes; NULL after the last. */
static const char *next_file(DIR *directory, const char *const *suffixes)
{
    struct dirent *entry = NULL;
    while (directory && (entry = readdir(directory)) &&
           (*entry->d_name == '.' || !has_any_suffix(entry->d_name, suffixes)))
        ;
    return entry ? entry->d_name : NULL;
}

/* Finds the only file of a folder with one of these suffixes. Sets *path to NULL if there is none.
 * Returns false and sets *problem if there are several. */
static bool find_only(struct bag_source *source, const char *folder, const char *const *suffixes,
                      const char **path, struct bag_problem *problem)
{
    DIR *directory = opendir(folder);
    const char *name;
    bool ok = true;
    *path = NULL;
    while (ok && (name = next_file(directory, suffixes))) {
        if (*path)
            ok = bag_problem_set(problem, BAG_ERROR_FILE,
                                 "%s: the folder holds several tables, %s and %s; name one of "
                                 "them in place of the folder",
                                 folder, strrchr(*path, '/') + 1, name);
        else
            ok = (*path = name_path(source, problem, "%s/%s", folder, name)) != NULL;
    }
    if (directory)
        closedir(directory);
    return ok;
}

/* Sets source->beside if the folder of a keyed table holds another table. */
static bool find_beside(struct bag_source *source, const char *folder, struct bag_problem *problem)
{
    DIR *directory = opendir(folder);
    const char *name = next_file(directory, table_suffixes);
    while (name && (strcmp(name, KEYS ".npy") == 0 || strcmp(name, VALUES ".npy") == 0))
        name = next_file(directory, table_suffixes);
    bool ok = !name || (source->beside = name_path(source, problem, "%s/%s", folder, name));
    if (directory)
        closedir(directory);
    return ok;
}

/* Opens the table in a folder. Tries the forms in which tables are written, from the most specific
 * to a single file of any format. */
static bool open_folder(struct bag_source *source, const char *folder, struct bag_problem *problem)
{
    const char *keys = name_path(source, problem, "%s/keys.npy", folder);
    const char *values = keys ? name_path(source, problem, "%s/values.npy", folder) : NULL;
    const char *key = values ? name_path(source, problem, "%s/key", folder) : NULL;
    const char *vector = key ? name_path(source, problem, "%s/emb_vector", folder) : NULL, *index,
               *only;
    char table[256];
    unsigned ranks = 0;
    if (!vector || !find_only(source, folder, index_suffixes, &index, problem))
        return false;
    if (index)
        return open_parts(source, index, problem);
    if (!bag_file_exists(keys) && bag_file_exists(values))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: the folder holds values.npy without keys.npy; put that there, "
                               "too, or name the file in place of the folder",
                               folder);
    if (bag_file_exists(keys))
        return find_beside(source, folder, problem) && open_keys(source, keys, problem) &&
               open_file(source, values, problem);
    if (bag_file_exists(key) || bag_file_exists(vector))
        return find_beside(source, folder, problem) && open_raw_pair(source, key, vector, problem);
    if (!find_dump(source, folder, table, &ranks, problem))
        return false;
    if (*table)
        return find_beside(source, folder, problem) &&
               open_dump(source, folder, table, ranks, problem);
    if (!find_only(source, folder, table_suffixes, &only, problem))
        return false;
    if (only)
        return open_file(source, only, problem);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: the folder holds no table: neither keys.npy and values.npy, nor "
                           "key and emb_vector, nor T_emb_keys.rank_R.world_size_W with its "
                           "values, nor a *.safetensors.index.json, nor one file *.npy, *.npz or "
                           "*.safetensors",
                           folder);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Checks the type of the keys, and that there is one for each row. */
static bool check_keys(const struct bag_source *source, struct bag_problem *problem)
{
    size_t rows = 0, keys = 0;
    for (size_t i = 0; i < source->num_files; i++)
        rows += (size_t)source->files[i].npy.shape[0];
    for (size_t i = 0; i < source->num_key_files; i++) {
        const struct bag_npy *npy = &source->key_files[i].npy;
        if ((npy->dtype != BAG_I64 && npy->dtype != BAG_U64) || npy->rank != 1)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "%s: keys must be INT64 or UINT64 of 1 dimension; these are %s "
                                   "of %u",
                                   source->key_files[i].path, bag_dtypes[npy->dtype].name,
                                   (unsigned)npy->rank);
        keys += npy->count;
    }
    if (source->num_key_files == 0 || keys == rows)
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: %zu keys for the %zu rows of %s; every row needs one",
                           source->key_files[0].path, keys, rows, source->files[0].path);
}

/* Rejects rows without elements: a copy or an export failed after the keys or the header were
 * written. */
static bool check_elements(const struct bag_source *source, struct bag_problem *problem)
{
    for (size_t i = 0; i < source->num_files; i++) {
        if (source->files[i].npy.row_elements == 0)
            return bag_problem_set(
                problem, BAG_ERROR_FILE,
                "%s: the table has no vectors: its rows have 0 elements; copy or "
                "export it again",
                source->files[i].path);
    }
    return true;
}

/* Sets source->deltas if the table's files are in a folder named as the version. */
static bool name_deltas(struct bag_source *source, struct bag_problem *problem)
{
    const char *path = source->files[0].path, *slash = strrchr(path, '/');
    size_t bytes = slash ? (size_t)(slash - path) : 0;
    const char *before = memrchr(path, '/', bytes), *name = before ? before + 1 : path;
    const char *version = source->model->version;
    size_t name_bytes = bytes - (size_t)(name - path);
    if (!slash || strlen(version) != name_bytes || memcmp(name, version, name_bytes) != 0)
        return true;
    return (source->deltas = name_path(source, problem, "%.*s/deltas", (int)bytes, path)) != NULL;
}

bool bag_source_locate(struct bag_source *source, struct bag_problem *problem)
{
    const char *path = source->model->path;
    struct stat state;
    bool folder = stat(path, &state) == 0 && S_ISDIR(state.st_mode);
    if (!(folder ? open_folder(source, path, problem) : open_file(source, path, problem)))
        return false;
    if (is_set(source->model->keys) && source->num_key_files)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: the model has keys already, in %s; name one of the two",
                               source->model->keys, source->key_files[0].path);
    if (is_set(source->model->keys) && !open_keys(source, source->model->keys, problem))
        return false;
    return check_keys(source, problem) && check_elements(source, problem) &&
           name_deltas(source, problem);
}
