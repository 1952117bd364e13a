/* Files of several arrays; see archive.h. */
#include "archive.h"

#include "config/config.h"
#include "proto/arena.h"
#include "proto/formats.h"
#include "proto/text.h"
#include "server/system/files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */

static bool add_name(struct bag_file_names *names, const char *name, size_t bytes,
                     struct bag_problem *problem)
{
    if (!BAG_GROW(names->names, names->count) ||
        !(names->names[names->count] = strndup(name, bytes)))
        return bag_problem_no_memory(problem);
    names->count++;
    return true;
}

/* Adds a name and its array; `file` is NULL if the array's type is not supported. */
static bool add_file(struct bag_file_names *names, const char *name, size_t bytes,
                     const struct bag_table_file *file, struct bag_problem *problem)
{
    if (!BAG_GROW(names->files, names->count))
        return bag_problem_no_memory(problem);
    names->files[names->count] = file ? *file : (struct bag_table_file){.path = NULL};
    return add_name(names, name, bytes, problem);
}

static int compare_names(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

static bool sort_names(struct bag_file_names *names, struct bag_problem *problem)
{
    names->sorted = calloc(names->count + 1, sizeof *names->sorted);
    if (!names->sorted)
        return bag_problem_no_memory(problem);
    if (names->count)
        memcpy(names->sorted, names->names, names->count * sizeof *names->sorted);
    qsort(names->sorted, names->count, sizeof *names->sorted, compare_names);
    return true;
}

/* A name to be found, in two pieces. */
struct wanted {
    const char *base, *suffix;
    size_t bytes;
};

static int compare_wanted(const void *key, const void *element)
{
    const struct wanted *wanted = key;
    const char *name = *(char *const *)element;
    int order = strncmp(wanted->base, name, wanted->bytes);
    return order ? order : strcmp(wanted->suffix, name + wanted->bytes);
}

const char *bag_file_names_find(const struct bag_file_names *names, const char *base, size_t bytes,
                                const char *suffix)
{
    const struct wanted wanted = {base, suffix, bytes};
    char **found =
        bsearch(&wanted, names->sorted, names->count, sizeof *names->sorted, compare_wanted);
    return found ? *found : NULL;
}

void bag_file_names_free(struct bag_file_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    free(names->sorted);
    free(names->files);
    *names = (struct bag_file_names){.count = 0};
}

/* Names separated by commas, as many as fit. */
struct name_list {
    char text[208];
};

static struct name_list list_names(const struct bag_file_names *names)
{
    struct name_list list = {""};
    size_t listed = 0;
    for (size_t i = 0; i < names->count; i++) {
        struct bag_quoted shown = bag_quote(names->names[i], strlen(names->names[i]));
        if (strlen(list.text) + strlen(shown.text) + sizeof ", , ..." > sizeof list.text)
            continue;
        bag_text_add(list.text, sizeof list.text, "%s%s", *list.text ? ", " : "", shown.text);
        listed++;
    }
    if (listed < names->count)
        bag_text_add(list.text, sizeof list.text, "%s...", *list.text ? ", " : "");
    return list;
}

/* Sets *problem: there is no array with this name; suggests the nearest one. Returns false. */
static bool reject_name(const char *what, const char *name, const struct bag_file_names *names,
                        struct bag_problem *problem)
{
    struct bag_suggestion suggestion = {.written = name};
    for (size_t i = 0; i < names->count; i++)
        bag_suggest_offer(&suggestion, names->names[i]);
    if (names->count == 0)
        return bag_problem_set(problem, BAG_ERROR_FILE, "there is no %s '%s', nor any other", what,
                               bag_quote(name, strlen(name)).text);
    return bag_problem_set(
        problem, BAG_ERROR_FILE, "there is no %s '%s'%s There are %s", what,
        bag_quote(name, strlen(name)).text,
        bag_suggestion_is_near(&suggestion) ? bag_suggestion_question(&suggestion, "'").text : ".",
        list_names(names).text);
}

bool bag_file_reject_choice(const struct bag_file_names *names, struct bag_problem *problem)
{
    return names->count == 0
               ? bag_problem_set(problem, BAG_ERROR_FILE, "it holds no arrays")
               : bag_problem_set(problem, BAG_ERROR_FILE, "it holds %s", list_names(names).text);
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* Reads the header of a safetensors file. */
static bool read_tensors(int fd, uint64_t file_bytes, struct bag_safetensors *tensors,
                         struct bag_problem *problem)
{
    unsigned char preamble[BAG_FILE_KIND_BYTES];
    ssize_t have = bag_file_read_some(fd, preamble, sizeof preamble, 0, problem);
    if (have < 0)
        return false;
    size_t header_bytes = bag_safetensors_header_bytes(preamble, (size_t)have);
    if (header_bytes == 0 || header_bytes > file_bytes) {
        /* The parser sets the problem, unless the header should be longer than the file. */
        if (header_bytes == 0)
            return bag_safetensors_parse(preamble, (size_t)have, file_bytes, tensors, problem);
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: its header should end at byte %zu, but the "
                               "file ends after %" PRIu64,
                               header_bytes, file_bytes);
    }
    char *header = malloc(header_bytes);
    if (!header)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for a header of %zu bytes",
                               header_bytes);
    bool ok = bag_file_read_at(fd, header, header_bytes, 0, problem) &&
              bag_safetensors_parse(header, header_bytes, file_bytes, tensors, problem);
    free(header);
    return ok;
}

/* Reads a number from the metadata. Sets *value to 0 and *found to false if there is none. `what`
 * is the noun that messages use for it. */
static bool read_number(const struct bag_safetensors *tensors, const char *key, const char *what,
                        bool *found, uint64_t *value, struct bag_problem *problem)
{
    const char *text = bag_safetensors_metadata(tensors, key);
    int64_t number = 0;
    bool ok =
        !text || (bag_integer_parse(text, &number) && number >= 0 && number <= BAG_LARGEST_EXACT);
    *found = text != NULL;
    *value = ok ? (uint64_t)number : 0;
    return ok || bag_problem_set(problem, BAG_ERROR_FILE,
                                 "'" BAG_SAFETENSORS_METADATA "' has %s '%s'; it must be the "
                                 "number of %s, up to %lld, or 0",
                                 key, bag_quote(text, strlen(text)).text, what,
                                 (long long)BAG_LARGEST_EXACT);
}

/* Sets *file from a tensor's description and from the metadata of the whole file. */
static bool take_tensor(const struct bag_archive *archive,
                        const struct bag_safetensors_tensor *tensor, struct bag_table_file *file,
                        struct bag_problem *problem)
{
    bool found;
    file->is_safetensors = true;
    file->npy = tensor->layout;
    file->row_format = tensor->row_format;
    file->row_elements = tensor->row_elements;
    return read_number(&archive->tensors, BAG_NOTE_UPDATES_THROUGH, "an update", &found,
                       &file->updates_through, problem) &&
           read_number(&archive->tensors, BAG_NOTE_FIXED_ROWS, "rows", &file->is_ordered,
                       &file->fixed_rows, problem);
}

/* ---- files in parts -------------------------------------------------------------------------- */

/* Reads the index of a file in parts. On success the caller frees it. */
static bool read_index(const char *path, struct bag_safetensors_index *index,
                       struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(path, &state, problem);
    if (fd < 0)
        return false;
    size_t bytes = (size_t)state.st_size;
    char *text = bytes <= BAG_SAFETENSORS_MAX_HEADER_BYTES ? malloc(bytes + 1) : NULL;
    bool ok = text ? bag_file_read_at(fd, text, bytes, 0, problem) &&
                         bag_safetensors_index_parse(text, bytes, index, problem)
                   : bag_problem_set(problem, BAG_ERROR_FILE,
                                     "the index has %zu bytes; at most %zu are read", bytes,
                                     BAG_SAFETENSORS_MAX_HEADER_BYTES);
    free(text);
    close(fd);
    return ok;
}

static bool list_indexed(const struct bag_safetensors_index *index, struct bag_file_names *names,
                         struct bag_problem *problem)
{
    const struct cJSON *cursor = NULL;
    bool ok = true;
    for (const char *name; ok && (name = bag_safetensors_index_next(index, &cursor));)
        ok = add_name(names, name, strlen(name), problem);
    return ok && sort_names(names, problem);
}

bool bag_file_list_index(const char *path, struct bag_file_names *names,
                         struct bag_problem *problem)
{
    struct bag_safetensors_index index;
    if (!read_index(path, &index, problem))
        return bag_file_reject(path, problem);
    bool ok = list_indexed(&index, names, problem);
    bag_safetensors_index_free(&index);
    return ok;
}

char *bag_file_find_part(const char *index_path, const char *tensor, struct bag_problem *problem)
{
    struct bag_safetensors_index index;
    char *path = NULL;
    if (!read_index(index_path, &index, problem)) {
        bag_file_reject(index_path, problem);
        return NULL;
    }
    const char *name = bag_safetensors_index_file(&index, tensor);
    const char *slash = strrchr(index_path, '/');
    int folder_bytes = slash ? (int)(slash - index_path) + 1 : 0;
    if (!name) {
        struct bag_file_names names = {.count = 0};
        if (list_indexed(&index, &names, problem))
            reject_name("tensor", tensor, &names, problem);
        bag_file_names_free(&names);
        bag_file_reject(index_path, problem);
    } else if (asprintf(&path, "%.*s%s", folder_bytes, index_path, name) < 0) {
        path = NULL;
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", index_path);
    }
    bag_safetensors_index_free(&index);
    return path;
}

/* ---- .npz ------------------------------------------------------------------------------------ */

/* Reads the directory. On success the caller frees *directory. */
static bool read_directory(int fd, uint64_t file_bytes, struct bag_npz *npz, void **directory,
                           struct bag_problem *problem)
{
    unsigned char first[BAG_FILE_KIND_BYTES];
    ssize_t have = bag_file_read_some(fd, first, sizeof first, 0, problem);
    const char *kind = have > 0 ? bag_file_kind(first, (size_t)have, false) : NULL;
    if (have < 0)
        return false;
    if (kind && memcmp(first, "PK", 2) != 0)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is not an .npz file; it looks like %s", kind);
    size_t tail_bytes = file_bytes < BAG_NPZ_TAIL_BYTES ? file_bytes : BAG_NPZ_TAIL_BYTES;
    char *tail = malloc(BAG_NPZ_TAIL_BYTES);
    bool ok = tail ? bag_file_read_at(fd, tail, tail_bytes, file_bytes - tail_bytes, problem) &&
                         bag_npz_find_directory(tail, tail_bytes, file_bytes, npz, problem)
                   : bag_problem_no_memory(problem);
    free(tail);
    *directory = ok ? malloc(npz->directory_bytes + 1) : NULL;
    if (ok && !*directory)
        ok = bag_problem_no_memory(problem);
    ok = ok &&
         bag_file_read_at(fd, *directory, npz->directory_bytes, npz->directory_offset, problem) &&
         bag_npz_read_directory(npz, *directory, problem);
    if (!ok)
        free(*directory);
    return ok;
}

/* Finds a member's data in the file, and reads its header. */
static bool read_member(const struct bag_archive *archive, const struct bag_npz_member *member,
                        enum bag_dtype override_dtype, struct bag_table_file *file,
                        struct bag_problem *problem)
{
    unsigned char header[BAG_NPZ_MEMBER_HEADER_BYTES];
    uint64_t offset;
    if (!bag_file_read_at(archive->fd, header, sizeof header, member->header_offset, problem) ||
        !bag_npz_locate(&archive->npz, member, header, &offset, problem))
        return false;
    file->has_crc32 = true;
    file->crc32_from = offset;
    file->crc32 = member->crc32;
    return bag_file_read_npy(archive->fd, offset, offset + member->bytes, override_dtype,
                             &file->npy, problem);
}

/* ---- archives -------------------------------------------------------------------------------- */

bool bag_archive_open(const char *path, struct bag_archive *archive, struct bag_problem *problem)
{
    struct stat state;
    *archive = (struct bag_archive){.is_npz = bag_has_suffix(path, ".npz")};
    archive->fd = bag_file_open(path, &state, problem);
    if (archive->fd < 0)
        return bag_file_reject(path, problem);
    bag_file_remember(&archive->file, path, &state);
    uint64_t bytes = archive->file.bytes;
    if (archive->is_npz
            ? read_directory(archive->fd, bytes, &archive->npz, &archive->directory, problem)
            : read_tensors(archive->fd, bytes, &archive->tensors, problem))
        return true;
    close(archive->fd);
    return bag_file_reject(path, problem);
}

void bag_archive_close(struct bag_archive *archive)
{
    close(archive->fd);
    free(archive->directory);
    bag_safetensors_free(&archive->tensors);
}

/* Lists the arrays of an archive. Arrays of types that are not supported are listed without a file.
 */
static bool list_arrays(const struct bag_archive *archive, struct bag_file_names *names,
                        struct bag_problem *problem)
{
    const struct cJSON *cursor = NULL;
    size_t place = 0;
    struct bag_npz_member member;
    struct bag_problem unsupported;
    bool ok = true;
    while (ok && archive->is_npz && bag_npz_next(&archive->npz, &place, &member)) {
        struct bag_table_file file = archive->file;
        bool is_array = read_member(archive, &member, BAG_DTYPE_COUNT, &file, &unsupported);
        ok = add_file(names, member.name.data, member.name.bytes, is_array ? &file : NULL, problem);
    }
    for (const char *name;
         ok && !archive->is_npz && (name = bag_safetensors_next(&archive->tensors, &cursor));) {
        struct bag_safetensors_tensor tensor;
        struct bag_table_file file = archive->file;
        bool is_array =
            bag_safetensors_describe(&archive->tensors, cursor, &tensor, &unsupported) &&
            take_tensor(archive, &tensor, &file, &unsupported);
        ok = add_file(names, name, strlen(name), is_array ? &file : NULL, problem);
    }
    return ok && sort_names(names, problem);
}

bool bag_archive_list(const struct bag_archive *archive, struct bag_file_names *names,
                      struct bag_problem *problem)
{
    return list_arrays(archive, names, problem) || bag_file_reject(archive->file.path, problem);
}

/* Finds an array by its name and describes it in *file. */
static bool find_array(const struct bag_archive *archive, const char *name,
                       enum bag_dtype override_dtype, struct bag_table_file *file,
                       struct bag_problem *problem)
{
    struct bag_file_names names = {.count = 0};
    struct bag_npz_member member;
    struct bag_safetensors_tensor tensor;
    const struct cJSON *item =
        archive->is_npz ? NULL : bag_safetensors_find(&archive->tensors, name);
    size_t found = archive->is_npz ? bag_npz_find(&archive->npz, name, &member) : item != NULL;
    if (found == 1)
        return archive->is_npz
                   ? read_member(archive, &member, override_dtype, file, problem)
                   : bag_safetensors_describe(&archive->tensors, item, &tensor, problem) &&
                         take_tensor(archive, &tensor, file, problem);
    if (found > 1)
        return bag_problem_set(problem, BAG_ERROR_FILE, "the archive has two members '%s'",
                               bag_quote(name, strlen(name)).text);
    if (list_arrays(archive, &names, problem))
        reject_name(archive->is_npz ? "array" : "tensor", name, &names, problem);
    bag_file_names_free(&names);
    return false;
}

bool bag_archive_array(const struct bag_archive *archive, const char *name,
                       enum bag_dtype override_dtype, struct bag_table_file *file,
                       struct bag_problem *problem)
{
    *file = archive->file;
    return find_array(archive, name, override_dtype, file, problem) ||
           bag_file_reject(archive->file.path, problem);
}
