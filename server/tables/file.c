/* Files of one array, .npy or without a header, and open files of any format; see file.h. */
#include "file.h"

#include "server/system/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- opening and reading --------------------------------------------------------------------- */

bool bag_file_reject(const char *path, struct bag_problem *problem)
{
    return bag_problem_prefix(problem, "%s", path);
}

ssize_t bag_file_read_some(int fd, void *out, size_t bytes, uint64_t at,
                           struct bag_problem *problem)
{
    ssize_t have = bag_file_read_bytes(fd, out, bytes, at);
    if (have < 0)
        bag_problem_set(problem, BAG_ERROR_FILE, "reading failed: %s", strerror(errno));
    return have;
}

bool bag_file_read_at(int fd, void *out, size_t bytes, uint64_t at, struct bag_problem *problem)
{
    ssize_t have = bag_file_read_some(fd, out, bytes, at, problem);
    if (have >= 0 && (size_t)have < bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file shrank to %" PRIu64 " bytes while it was read; publish a "
                               "table by renaming a complete file",
                               at + (uint64_t)have);
    return have >= 0;
}

/* ---- the state of a file --------------------------------------------------------------------- */

void bag_file_remember(struct bag_table_file *file, const char *path, const struct stat *state)
{
    *file = (struct bag_table_file){.path = path,
                                    .device = state->st_dev,
                                    .inode = state->st_ino,
                                    .bytes = (uint64_t)state->st_size,
                                    .modified = state->st_mtim,
                                    .changed = state->st_ctim,
                                    .links = state->st_nlink};
}

static bool is_same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Returns whether the file is the one that was checked, and has not been written to since. */
static bool same_state(const struct bag_table_file *file, const struct stat *state)
{
    return file->device == state->st_dev && file->inode == state->st_ino &&
           file->bytes == (uint64_t)state->st_size && is_same_time(file->modified, state->st_mtim);
}

bool bag_file_was_changed(const struct bag_table_file *before, const struct bag_table_file *now)
{
    return before->device == now->device && before->inode == now->inode &&
           before->links == now->links && !is_same_time(before->changed, now->changed);
}

static bool reject_changed(const struct bag_table_file *file, const char *when,
                           struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: the file changed %s; publish a table by renaming a complete file",
                           file->path, when);
}

int bag_file_reopen(const struct bag_table_file *file, struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(file->path, &state, problem);
    if (fd < 0) {
        bag_file_reject(file->path, problem);
        return -1;
    }
    if (same_state(file, &state))
        return fd;
    reject_changed(file, "after it was checked", problem);
    close(fd);
    return -1;
}

bool bag_file_check_unchanged(const struct bag_table_file *file, int fd,
                              struct bag_problem *problem)
{
    struct stat state;
    return (fstat(fd, &state) == 0 && same_state(file, &state)) ||
           reject_changed(file, "while it was read", problem);
}

/* ---- .npy ------------------------------------------------------------------------------------ */

/* Compares the bytes from the header to `end` with what the header states. */
static bool check_size(const struct bag_npy *npy, uint64_t end, struct bag_problem *problem)
{
    /* If the file is growing, its header may be longer than the size that fstat() returned. */
    size_t data_bytes = end < npy->data_offset ? 0 : end - npy->data_offset;
    if (data_bytes < npy->data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: it has %zu bytes of data, the header "
                               "promises %zu",
                               data_bytes, npy->data_bytes);
    if (data_bytes > npy->data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is too long: it has %zu bytes of data, the header "
                               "promises %zu; one file holds one array",
                               data_bytes, npy->data_bytes);
    return true;
}

bool bag_file_reject_scalar(struct bag_problem *problem)
{
    bag_problem_from_fault(problem, &(struct bag_fault){.status = BAG_STATUS_TABLE_RANK});
    problem->kind = BAG_ERROR_FILE;
    return false;
}

bool bag_file_read_npy(int fd, uint64_t begin, uint64_t end, enum bag_dtype override_dtype,
                       struct bag_npy *npy, struct bag_problem *problem)
{
    unsigned char preamble[BAG_FILE_KIND_BYTES];
    size_t room = end - begin < sizeof preamble ? end - begin : sizeof preamble;
    ssize_t have = bag_file_read_some(fd, preamble, room, begin, problem);
    if (have < 0)
        return false;
    size_t header_bytes = bag_npy_header_bytes(preamble, (size_t)have);
    if (header_bytes == 0) /* the parser sets the problem */
        return bag_npy_parse(preamble, (size_t)have, override_dtype, npy, problem);
    char *header = malloc(header_bytes);
    if (!header)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for a header of %zu bytes",
                               header_bytes);
    have = bag_file_read_some(fd, header, header_bytes, begin, problem);
    bool ok = have >= 0 && bag_npy_parse(header, (size_t)have, override_dtype, npy, problem);
    free(header);
    if (ok)
        npy->data_offset += begin;
    return ok && check_size(npy, end, problem);
}

bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(path, &state, problem);
    if (fd < 0)
        return bag_file_reject(path, problem);
    bag_file_remember(file, path, &state);
    bool ok = bag_file_read_npy(fd, 0, file->bytes, override_dtype, &file->npy, problem) &&
              (file->npy.rank > 0 || bag_file_reject_scalar(problem));
    close(fd);
    return ok || bag_file_reject(path, problem);
}

/* ---- checksums ------------------------------------------------------------------------------- */

/* The number of bytes that is read at a time for a CRC-32. */
#define CRC32_STEP_BYTES ((size_t)256 << 10)

/* Adds the bytes [from, end) of a file, of which `behind` bytes follow that are counted, too. */
static bool add_crc32(int fd, uint64_t from, uint64_t end, uint64_t behind, uint32_t *crc32,
                      struct bag_problem *problem)
{
    unsigned char *block = malloc(CRC32_STEP_BYTES);
    bool ok = block || bag_problem_no_memory(problem);
    while (ok && from < end) {
        size_t bytes = end - from < CRC32_STEP_BYTES ? end - from : CRC32_STEP_BYTES;
        ok = bag_file_read_at(fd, block, bytes, from, problem);
        from += bytes;
        if (ok)
            *crc32 ^= bag_npz_crc32_part(block, bytes, end - from + behind);
    }
    free(block);
    return ok;
}

bool bag_file_check_crc32(const struct bag_table_file *file, int fd, uint32_t of_elements,
                          struct bag_problem *problem)
{
    uint32_t crc32 = of_elements;
    if (!file->has_crc32)
        return true;
    if (!add_crc32(fd, file->crc32_from, file->npy.data_offset, file->npy.data_bytes, &crc32,
                   problem))
        return false;
    return crc32 == file->crc32 ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "the zip archive is damaged: its member at byte %" PRIu64
                           " has the CRC-32 %08" PRIx32 "; it should be %08" PRIx32,
                           file->crc32_from, crc32, file->crc32);
}

static bool check_read(const struct bag_table_file *file, int fd, struct bag_problem *problem)
{
    const uint64_t from = file->npy.data_offset, end = from + file->npy.data_bytes;
    uint32_t crc32 = 0;
    if (file->has_crc32 && (!add_crc32(fd, from, end, 0, &crc32, problem) ||
                            !bag_file_check_crc32(file, fd, crc32, problem)))
        return bag_file_reject(file->path, problem);
    return bag_file_check_unchanged(file, fd, problem);
}

bool bag_table_files_check(const struct bag_table_file *files, size_t count,
                           struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        int fd = bag_file_reopen(&files[i], problem);
        ok = fd >= 0 && check_read(&files[i], fd, problem);
        if (fd >= 0)
            close(fd);
    }
    return ok;
}

/* ---- open files ------------------------------------------------------------------------------ */

bool bag_open_files_open(const struct bag_table_file *files, size_t count,
                         struct bag_open_files *opened, struct bag_problem *problem)
{
    *opened = (struct bag_open_files){.files = files, .fds = calloc(count + 1, sizeof(int))};
    bool ok = opened->fds != NULL ||
              bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %zu files", count);
    while (ok && opened->count < count) {
        int fd = bag_file_reopen(&files[opened->count], problem);
        ok = fd >= 0;
        if (ok)
            opened->fds[opened->count++] = fd;
    }
    if (!ok)
        bag_open_files_close(opened);
    return ok;
}

void bag_open_files_close(struct bag_open_files *opened)
{
    for (size_t i = 0; i < opened->count; i++)
        close(opened->fds[i]);
    free(opened->fds);
    *opened = (struct bag_open_files){.count = 0};
}

/* Reads rows whose elements are in another order in the file, by way of `block`, which has room for
 * them: a run of elements from each column. */
static bool read_and_place(int fd, const struct bag_npy *npy, size_t first, size_t count,
                           unsigned char *block, void *rows, struct bag_problem *problem)
{
    const size_t in_column = npy->fortran_order ? 1 : npy->row_elements; /* elements of a row */
    const size_t bytes = bag_dtypes[npy->dtype].bytes, run_bytes = count * in_column * bytes;
    for (size_t i = 0; i < npy->num_columns; i++) {
        const size_t element = i * npy->column_stride + first * in_column;
        if (!bag_file_read_at(fd, block + i * run_bytes, run_bytes,
                              npy->data_offset + element * bytes, problem))
            return false;
    }
    bag_npy_place(npy, (struct bag_npy_tile){0, npy->num_columns, 0, count * in_column}, block,
                  rows);
    return true;
}

static bool read_rows(const struct bag_table_file *file, int fd, size_t first, size_t count,
                      void *rows, struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    const size_t row_bytes = npy->row_elements * bag_dtypes[npy->dtype].bytes;
    bool ok;
    if (bag_npy_is_plain(npy)) {
        ok = bag_file_read_at(fd, rows, count * row_bytes, npy->data_offset + first * row_bytes,
                              problem);
    } else {
        unsigned char *block = malloc(count * row_bytes + 1);
        ok = (block || bag_problem_no_memory(problem)) &&
             read_and_place(fd, npy, first, count, block, rows, problem);
        free(block);
    }
    return ok || bag_file_reject(file->path, problem);
}

bool bag_open_files_read(const struct bag_open_files *opened, size_t first, size_t count,
                         void *rows, struct bag_problem *problem)
{
    unsigned char *out = rows;
    for (size_t i = 0; i < opened->count && count > 0; i++) {
        const struct bag_npy *npy = &opened->files[i].npy;
        const size_t num_rows = npy->rank ? (size_t)npy->shape[0] : 1; /* a scalar is one */
        if (first >= num_rows) {
            first -= num_rows;
            continue;
        }
        const size_t here = num_rows - first < count ? num_rows - first : count;
        if (!read_rows(&opened->files[i], opened->fds[i], first, here, out, problem))
            return false;
        out += here * npy->row_elements * bag_dtypes[npy->dtype].bytes;
        count -= here;
        first = 0;
    }
    return true;
}

bool bag_open_files_check(const struct bag_open_files *opened, struct bag_problem *problem)
{
    bool ok = true;
    for (size_t i = 0; ok && i < opened->count; i++)
        ok = check_read(&opened->files[i], opened->fds[i], problem);
    return ok;
}

/* ---- files without a header ------------------------------------------------------------------ */

/* Describes a file without a header. Its number of rows follows from its size. */
static bool describe_raw(uint64_t file_bytes, enum bag_dtype dtype, uint32_t rank,
                         const int64_t *shape, struct bag_npy *npy, struct bag_problem *problem)
{
    int64_t sizes[BAG_MAX_RANK];
    memcpy(sizes, shape, rank * sizeof *shape);
    sizes[0] = 1;
    if (!bag_npy_describe(dtype, rank, sizes, 0, npy, problem))
        return false;
    if (npy->data_bytes && file_bytes % npy->data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file has %" PRIu64 " bytes, which is no multiple of a row's "
                               "%zu by the configured shape and datatype",
                               file_bytes, npy->data_bytes);
    int64_t rows = npy->data_bytes ? (int64_t)(file_bytes / npy->data_bytes) : 0;
    if (shape[0] >= 0 && shape[0] != rows)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file has %" PRId64 " rows by its size; its shape should begin "
                               "with %" PRId64,
                               rows, shape[0]);
    sizes[0] = rows;
    return bag_npy_describe(dtype, rank, sizes, 0, npy, problem);
}

bool bag_table_raw_open(const char *path, enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        struct bag_table_file *file, struct bag_problem *problem)
{
    struct stat state;
    int fd = bag_file_open(path, &state, problem);
    if (fd < 0)
        return bag_file_reject(path, problem);
    bag_file_remember(file, path, &state);
    unsigned char first[BAG_FILE_KIND_BYTES];
    ssize_t have = bag_file_read_some(fd, first, sizeof first, 0, problem);
    const char *kind = have > 0 ? bag_file_kind(first, (size_t)have, true) : NULL;
    close(fd);
    if (kind)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: the file should have numbers without a header; it looks like "
                               "%s",
                               path, kind);
    if (have < 0)
        return bag_file_reject(path, problem);
    return describe_raw((uint64_t)state.st_size, dtype, rank, shape, &file->npy, problem) ||
           bag_file_reject(path, problem);
}
