/* Table files are looked at, loaded and given back; see load.h.
 *
 * Must not know: how the elements are read (read.c), where memory comes from (memory.c). */
#include "load.h"
#include "format_bytes.h"
#include "memory.h"
#include "read.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- looking at a file ----------------------------------------------------------------------- */

/* Opens a regular file and no other: a FIFO would block, a device has no size. -1: rejected. */
static int open_regular(const char *path, struct stat *state, struct bag_problem *problem)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, state) != 0) {
        bag_problem_set(problem, 500, "cannot be opened: %s", strerror(errno));
    } else if (S_ISDIR(state->st_mode)) {
        bag_problem_set(problem, 500, "is a directory; name an .npy file");
    } else if (!S_ISREG(state->st_mode)) {
        bag_problem_set(problem, 500, "is not a regular file; name an .npy file");
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Reads up to `bytes` from the file's start; returns how many there were, or -1. */
static ssize_t read_start(int fd, void *out, size_t bytes, struct bag_problem *problem)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(fd, (char *)out + have, bytes - have, (off_t)have);
        if (got == 0)
            break;
        if (got > 0)
            have += (size_t)got;
        else if (errno != EINTR) {
            bag_problem_set(problem, 500, "reading failed: %s", strerror(errno));
            return -1;
        }
    }
    return (ssize_t)have;
}

static bool check_size(const struct bag_npy *npy, size_t file_bytes, struct bag_problem *problem)
{
    /* A file that just grew may have a header beyond the size that was seen. */
    size_t data_bytes = file_bytes < npy->data_offset ? 0 : file_bytes - npy->data_offset;
    if (data_bytes < npy->data_bytes)
        return bag_problem_set(problem, 400,
                               "the file is truncated: it has %zu bytes of data, the header "
                               "promises %zu",
                               data_bytes, npy->data_bytes);
    if (data_bytes > npy->data_bytes)
        return bag_problem_set(problem, 400,
                               "the file is too long: it has %zu bytes of data, the header "
                               "promises %zu; one file holds one array",
                               data_bytes, npy->data_bytes);
    return true;
}

static bool read_header(int fd, size_t file_bytes, enum bag_dtype override_dtype,
                        struct bag_npy *npy, struct bag_problem *problem)
{
    unsigned char preamble[BAG_NPY_PREAMBLE_BYTES];
    ssize_t have = read_start(fd, preamble, sizeof preamble, problem);
    if (have < 0)
        return false;
    size_t header_bytes = bag_npy_header_bytes(preamble, (size_t)have);
    if (header_bytes == 0) /* which the parser explains */
        return bag_npy_parse(preamble, (size_t)have, override_dtype, npy, problem);
    char *header = malloc(header_bytes);
    if (!header)
        return bag_problem_set(problem, 500, "no memory for a header of %zu bytes", header_bytes);
    have = read_start(fd, header, header_bytes, problem);
    bool ok = have >= 0 && bag_npy_parse(header, (size_t)have, override_dtype, npy, problem);
    free(header);
    if (ok && npy->rank == 0)
        return bag_problem_set(problem, 400, "%s", bag_statuses[BAG_STATUS_TABLE_RANK].text);
    return ok && check_size(npy, file_bytes, problem);
}

/* Every rejection begins with the file. */
static bool name_file(const char *path, struct bag_problem *problem)
{
    bag_problem_prefix(problem, "%s", path);
    return false;
}

bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem)
{
    struct stat state;
    int fd = open_regular(path, &state, problem);
    if (fd < 0)
        return name_file(path, problem);
    bool ok = read_header(fd, (size_t)state.st_size, override_dtype, &file->npy, problem);
    close(fd);
    file->path = path;
    file->device = state.st_dev;
    file->inode = state.st_ino;
    file->bytes = (uint64_t)state.st_size;
    file->modified = state.st_mtim;
    return ok || name_file(path, problem);
}

size_t bag_table_file_bytes(const struct bag_table_file *file)
{
    return file->npy.data_bytes;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool allocate(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t row_elements,
                     size_t bytes, struct bag_table_memory *memory, struct bag_problem *problem)
{
    /* What a table without elements points to: nothing reads it. */
    static const _Alignas(64) char nothing[64];
    memset(memory, 0, sizeof *memory);
    memory->table.rows = nothing;
    memory->table.dtype = dtype;
    memory->table.num_rows = shape[0];
    memory->table.row_elements = row_elements;
    memory->rank = rank;
    memcpy(memory->shape, shape, rank * sizeof *shape);
    if (bytes == 0)
        return true;
    memory->mapping = bag_memory_map(bytes, problem);
    memory->mapping_bytes = bytes;
    memory->table.rows = memory->mapping;
    return memory->mapping != NULL;
}

bool bag_table_create(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                      struct bag_table_memory *memory, struct bag_problem *problem)
{
    size_t row_elements = 1, bytes = bag_dtypes[dtype].bytes;
    bool overflow = false;
    for (uint32_t axis = 0; axis < rank; axis++) {
        overflow |= __builtin_mul_overflow(bytes, (size_t)shape[axis], &bytes);
        if (axis > 0)
            overflow |= __builtin_mul_overflow(row_elements, (size_t)shape[axis], &row_elements);
    }
    if (overflow)
        return bag_problem_set(problem, 500, "the table's size passes the machine's address space");
    return allocate(dtype, rank, shape, row_elements, bytes, memory, problem);
}

void bag_table_unload(struct bag_table_memory *memory)
{
    bag_memory_unmap(memory->mapping, memory->mapping_bytes);
    memset(memory, 0, sizeof *memory);
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool same_state(const struct bag_table_file *file, const struct stat *state)
{
    return file->device == state->st_dev && file->inode == state->st_ino &&
           file->bytes == (uint64_t)state->st_size &&
           file->modified.tv_sec == state->st_mtim.tv_sec &&
           file->modified.tv_nsec == state->st_mtim.tv_nsec;
}

static bool reject_changed(const char *when, struct bag_problem *problem)
{
    return bag_problem_set(
        problem, 500, "the file changed %s; publish a table by renaming a complete file", when);
}

/* Reads the elements, and makes sure that nobody wrote to the file before or meanwhile. */
static bool read_elements(int fd, const struct bag_table_file *file, unsigned threads,
                          bag_load_progress *progress, void *context,
                          struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct stat state;
    if (!bag_table_read(fd, &file->npy, threads, progress, context, memory->mapping, problem))
        return false;
    if (fstat(fd, &state) != 0 || !same_state(file, &state))
        return reject_changed("while it was read", problem);
    return true;
}

static bool load_open(int fd, const struct bag_table_file *file, unsigned threads,
                      bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                      struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    if (!allocate(npy->dtype, npy->rank, npy->shape, npy->row_elements, npy->data_bytes, memory,
                  problem))
        return false;
    if (read_elements(fd, file, threads, progress, context, memory, problem))
        return true;
    bag_table_unload(memory);
    return false;
}

bool bag_table_load(const struct bag_table_file *file, unsigned threads,
                    bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    struct stat state;
    int fd = open_regular(file->path, &state, problem);
    if (fd < 0)
        return name_file(file->path, problem);
    bool ok = same_state(file, &state)
                  ? load_open(fd, file, threads, progress, context, memory, problem)
                  : reject_changed("after it was checked", problem);
    close(fd);
    return ok || name_file(file->path, problem);
}
