/* Arrays of files, mapped; see array.h. */
#include "array.h"

#include "config/config.h"
#include "server/system/files.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const part_names[] = {"values", "keys", "keys"};

/* ---- the mapping ----------------------------------------------------------------------------- */

/* On the thread that read beyond the end of a file that was mapped. */
static void end_of_file(int number)
{
    static const char sentence[] =
        "bagserve: a table's file became shorter while it was read, or its disk failed\n";
    ssize_t ignored = write(STDERR_FILENO, sentence, sizeof sentence - 1);
    (void)ignored;
    (void)number;
    _exit(EXIT_FAILURE);
}

static bool map_file(const char *file, struct bag_bench_array *array, struct bag_problem *problem)
{
    const struct sigaction action = {.sa_handler = end_of_file};
    struct stat state;
    int fd = bag_file_open(file, &state, problem);
    if (fd < 0)
        return false;
    array->mapping_bytes = (size_t)state.st_size;
    void *mapping = MAP_FAILED;
    if (array->mapping_bytes == 0)
        bag_problem_set(problem, BAG_ERROR_FILE, "the file is empty");
    else if (sigaction(SIGBUS, &action, NULL) != 0 ||
             (mapping = mmap(NULL, array->mapping_bytes, PROT_READ, MAP_PRIVATE, fd, 0)) ==
                 MAP_FAILED)
        bag_problem_set(problem, BAG_ERROR_FILE, "it cannot be mapped: %s", strerror(errno));
    close(fd);
    array->mapping = mapping == MAP_FAILED ? NULL : mapping;
    return array->mapping != NULL;
}

/* ---- elements -------------------------------------------------------------------------------- */

/* Points at the elements that npy describes, from `bytes` on; in another order they are copied. */
static bool take_elements(const unsigned char *bytes, struct bag_bench_array *array,
                          struct bag_problem *problem)
{
    const struct bag_npy *npy = &array->npy;
    array->data = bytes + npy->data_offset;
    if (bag_npy_is_plain(npy) || npy->count == 0)
        return true;
    struct bag_npy_tile all = {.num_columns = npy->num_columns, .count = npy->column_elements};
    if (!(array->placed = malloc(npy->data_bytes)))
        return bag_problem_no_memory(problem);
    bag_npy_place(npy, all, array->data, array->placed);
    array->data = array->placed;
    return true;
}

/* The .npy file in `count` bytes: its own type, or `unnamed` where that is none of floats. */
static bool parse_npy(const unsigned char *bytes, size_t count, enum bag_dtype unnamed,
                      struct bag_npy *npy, struct bag_problem *problem)
{
    struct bag_npy as_unnamed;
    struct bag_problem unsaid;
    bool ok = bag_npy_parse(bytes, count, BAG_DTYPE_COUNT, npy, problem);
    if (unnamed != BAG_DTYPE_COUNT && !(ok && bag_dtypes[npy->dtype].kind == BAG_KIND_FLOAT) &&
        bag_npy_parse(bytes, count, unnamed, &as_unnamed, &unsaid)) {
        *npy = as_unnamed;
        ok = true;
    }
    return ok && ((npy->data_offset <= count && npy->data_bytes <= count - npy->data_offset) ||
                  bag_problem_set(problem, BAG_ERROR_FILE, "the file is truncated"));
}

/* ---- files of several arrays ----------------------------------------------------------------- */

struct archive {
    const unsigned char *bytes;
    size_t count;
    bool is_npz;
    enum bag_dtype unnamed;
    struct bag_npz npz;             /* of one kind, */
    struct bag_safetensors tensors; /* or the other; owned */
};

static bool open_archive(struct archive *archive, struct bag_problem *problem)
{
    const unsigned char *bytes = archive->bytes;
    size_t count = archive->count;
    size_t tail = count < BAG_NPZ_TAIL_BYTES ? count : BAG_NPZ_TAIL_BYTES;
    return archive->is_npz ? bag_npz_find_directory(bytes + count - tail, tail, count,
                                                    &archive->npz, problem) &&
                                 bag_npz_read_directory(
                                     &archive->npz, bytes + archive->npz.directory_offset, problem)
                           : bag_safetensors_parse(bytes, count, count, &archive->tensors, problem);
}

static bool read_member(const struct archive *archive, const struct bag_npz_member *member,
                        struct bag_npy *npy, struct bag_problem *problem)
{
    uint64_t offset, header = member->header_offset;
    if (header > archive->count || archive->count - header < BAG_NPZ_MEMBER_HEADER_BYTES)
        return bag_problem_set(problem, BAG_ERROR_FILE, "the file is truncated");
    if (!bag_npz_locate(&archive->npz, member, archive->bytes + header, &offset, problem) ||
        !parse_npy(archive->bytes + offset, member->bytes, archive->unnamed, npy, problem))
        return false;
    npy->data_offset += offset;
    return true;
}

static bool holds(const struct archive *archive, const char *name)
{
    struct bag_npz_member member;
    return archive->is_npz ? bag_npz_find(&archive->npz, name, &member) > 0
                           : bag_safetensors_has(&archive->tensors, name);
}

/* Describes the array of that name. */
static bool read_named(const struct archive *archive, const char *name,
                       struct bag_bench_array *array, struct bag_problem *problem)
{
    struct bag_npz_member member;
    struct bag_safetensors_tensor tensor;
    if (!holds(archive, name))
        return bag_problem_set(problem, BAG_ERROR_FILE, "there is no array '%s' in it",
                               bag_quote(name, strlen(name)).text);
    if (archive->is_npz)
        return bag_npz_find(&archive->npz, name, &member) &&
               read_member(archive, &member, &array->npy, problem);
    if (!bag_safetensors_describe(&archive->tensors, name, &tensor, problem))
        return false;
    array->npy = tensor.layout;
    array->row_format = tensor.row_format;
    return true;
}

/* Describes the only array of 2 dimensions. */
static bool read_only_table(const struct archive *archive, struct bag_bench_array *array,
                            struct bag_problem *problem)
{
    struct bag_problem unsaid;
    struct bag_npz_member member;
    struct bag_safetensors_tensor tensor;
    struct bag_npy npy;
    const struct cJSON *cursor = NULL;
    size_t place = 0, found = 0;
    while (archive->is_npz && bag_npz_next(&archive->npz, &place, &member)) {
        if (read_member(archive, &member, &npy, &unsaid) && npy.rank == 2 && ++found == 1)
            array->npy = npy;
    }
    while (!archive->is_npz && bag_safetensors_next(&archive->tensors, &cursor)) {
        if (bag_safetensors_describe_at(&archive->tensors, cursor, &tensor, &unsaid) &&
            tensor.layout.rank == 2 && ++found == 1) {
            array->npy = tensor.layout;
            array->row_format = tensor.row_format;
        }
    }
    return found == 1 ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "it holds %zu arrays of 2 dimensions and none that is named values: "
                           "name one, as FILE#ARRAY",
                           found);
}

static bool read_archive(const char *name, enum bag_bench_part part, struct archive *archive,
                         struct bag_bench_array *array, struct bag_problem *problem)
{
    if (!open_archive(archive, problem))
        return false;
    bool is_named = name || part != BAG_BENCH_ROWS || holds(archive, part_names[part]);
    bool ok = is_named ? read_named(archive, name ? name : part_names[part], array, problem)
                       : read_only_table(archive, array, problem);
    bag_safetensors_free(&archive->tensors);
    return ok;
}

/* ---- paths ----------------------------------------------------------------------------------- */

/* Whether a path is a folder that holds the part, which *file then is, for the caller to free;
 * false with *problem where it is another folder. */
static bool look_into_folder(const char *path, enum bag_bench_part part, char **file,
                             struct bag_problem *problem)
{
    struct stat state;
    if (stat(path, &state) != 0 || !S_ISDIR(state.st_mode))
        return true;
    if (asprintf(file, "%s/%s.npy", path, part_names[part]) < 0) {
        *file = NULL;
        return bag_problem_no_memory(problem);
    }
    return bag_file_exists(*file) ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "a folder is read that holds keys.npy and values.npy; of others name "
                           "the file: .npy, .npz or .safetensors");
}

/* The array of that name, or NULL, of the file. */
static bool read_file(const char *file, const char *name, enum bag_bench_part part,
                      enum bag_dtype unnamed, struct bag_bench_array *array,
                      struct bag_problem *problem)
{
    if (bag_has_suffix(file, ".index.json"))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "of files in parts the one is read that holds the table: "
                               "PART.safetensors#ARRAY");
    if (!map_file(file, array, problem))
        return false;
    struct archive archive = {.bytes = array->mapping,
                              .count = array->mapping_bytes,
                              .is_npz = bag_has_suffix(file, ".npz"),
                              .unnamed = unnamed};
    bool ok = archive.is_npz || bag_has_suffix(file, ".safetensors")
                  ? read_archive(name, part, &archive, array, problem)
                  : parse_npy(archive.bytes, archive.count, unnamed, &array->npy, problem);
    return ok && take_elements(archive.bytes, array, problem);
}

bool bag_bench_array_read(const char *path, enum bag_bench_part part, enum bag_dtype unnamed,
                          struct bag_bench_array *array, struct bag_problem *problem)
{
    char *copy = strdup(path), *file = NULL, *name = copy ? bag_path_find_tensor(copy) : NULL;
    *array = (struct bag_bench_array){.row_format = BAG_ROWS_PLAIN};
    if (name)
        *name++ = 0;
    bool ok = copy ? look_into_folder(copy, part, &file, problem) : bag_problem_no_memory(problem);
    ok = ok && read_file(file ? file : copy, part == BAG_BENCH_KEYS_BESIDE ? NULL : name, part,
                         unnamed, array, problem);
    free(file);
    free(copy);
    if (ok)
        return true;
    bag_bench_array_free(array);
    bag_problem_prefix(problem, "%s", path);
    return false;
}

void bag_bench_array_free(struct bag_bench_array *array)
{
    if (array->mapping)
        munmap(array->mapping, array->mapping_bytes);
    free(array->placed);
    *array = (struct bag_bench_array){.row_format = BAG_ROWS_PLAIN};
}

bool bag_bench_keys_read(const char *path, enum bag_bench_part part, struct bag_bench_array *keys,
                         struct bag_problem *problem)
{
    if (!bag_bench_array_read(path, part, BAG_DTYPE_COUNT, keys, problem)) {
        if (part == BAG_BENCH_KEYS_BESIDE)
            bag_problem_prefix(problem, "the keys, unless --keys FILE names them");
        return false;
    }
    if (keys->npy.rank == 1 && keys->npy.count > 0 &&
        (keys->npy.dtype == BAG_I64 || keys->npy.dtype == BAG_U64))
        return true;
    bag_bench_array_free(keys);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: keys are INT64 or UINT64 of one dimension, at least one", path);
}

bool bag_bench_keys_of_part(struct bag_bench_array *keys, const struct bag_part *part,
                            struct bag_problem *problem)
{
    uint64_t *own = calloc(keys->npy.count + 1, sizeof *own), key;
    size_t count = 0;
    if (!own)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < keys->npy.count; i++) {
        memcpy(&key, keys->data + i * sizeof key, sizeof key);
        if (bag_part_of_key(key, part->of) == part->index)
            own[count++] = key;
    }
    free(keys->placed);
    keys->placed = own;
    keys->data = (const unsigned char *)own;
    keys->npy.count = count;
    return count || bag_problem_set(problem, BAG_ERROR_USAGE,
                                    "none of the keys is of part %u of %u, which is asked",
                                    part->index, part->of);
}
