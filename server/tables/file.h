/* Files of tables: opened, checked, and read at any place.
 *
 * A struct bag_table_file has the path and state of a file, and describes the elements of one array
 * in it: offset, type, shape and order. The description is a struct bag_npy for every format. It
 * holds no descriptor. Whoever reads the elements later opens the file again (bag_file_reopen), and
 * a file that was replaced or written to in between is an error. Readers check again when they are
 * done.
 *
 * Any thread may call these functions. Unless their comments say otherwise, they set problems of
 * the kinds BAG_ERROR_FILE (the file is missing, unreadable, or not what it should be) and
 * BAG_ERROR_NO_MEMORY. */
#pragma once

#include "proto/formats.h"
#include "proto/problem.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* An array in a file whose header is valid and whose size is right. */
struct bag_table_file {
    const char *path; /* borrowed */
    struct bag_npy npy;
    enum bag_row_format row_format; /* from the file's metadata; PLAIN if it has none */
    size_t row_elements;            /* from the file's metadata; 0 if it has none */
    bool has_crc32;                 /* the file has a CRC-32 of the bytes from crc32_from to the
                                       last element */
    uint64_t crc32_from;
    uint32_t crc32;

    /* The file's identity and state. */
    uint64_t device, inode, bytes;
    struct timespec modified;
    struct timespec changed; /* time of the last change of its state, or of its links */
    uint64_t links;

    /* From the metadata of a safetensors file. */
    uint64_t updates_through; /* the last row update that the file includes; 0: none */
    bool is_ordered;          /* the rows were reordered by 'bagserve convert --order-by', ... */
    uint64_t fixed_rows;      /* except for this many rows at the start */
    bool is_safetensors;
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Opens a .npy file, reads its header, and compares the file's size with it. Rejects missing,
 * unreadable, truncated, oversized and irregular files, unsupported types, and scalars.
 * `override_dtype` is used as in bag_npy_parse. Reads no elements. Returns false and sets *problem
 * if the file is rejected. */
bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem);

/* Opens a file without a header: little-endian elements in C order. The first of the `rank`
 * dimensions may be -1: it then follows from the file's size. Returns false and sets *problem if
 * the size does not fit the shape. */
bool bag_table_raw_open(const char *path, enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        struct bag_table_file *file, struct bag_problem *problem);

/* Opens a file again. Returns a descriptor that the caller closes, or -1 with *problem set if the
 * file is not in the state in which it was checked. */
int bag_file_reopen(const struct bag_table_file *file, struct bag_problem *problem);

/* Returns false and sets *problem if the file of this descriptor changed since it was checked. */
bool bag_file_check_unchanged(const struct bag_table_file *file, int fd,
                              struct bag_problem *problem);

/* Returns whether a file that was checked twice has another time of change, though as many links.
 * Writing sets that time, whatever time of modification is set afterwards. A new or removed link
 * sets it, too. */
bool bag_file_was_changed(const struct bag_table_file *before, const struct bag_table_file *now);

/* Returns false and sets *problem if the elements do not have the CRC-32 that the file states.
 * `of_elements` is the XOR of their parts (bag_npz_crc32_part). Files without one pass. */
bool bag_file_check_crc32(const struct bag_table_file *file, int fd, uint32_t of_elements,
                          struct bag_problem *problem);

/* Opens the files one after the other, and checks that each is unchanged and has the CRC-32 that it
 * states. The elements of files with a CRC-32 are read. */
bool bag_table_files_check(const struct bag_table_file *files, size_t count,
                           struct bag_problem *problem);

/* ---- open files ------------------------------------------------------------------------------ */

/* Several files whose rows follow each other, all open. Several threads may read at once. */
struct bag_open_files {
    const struct bag_table_file *files; /* borrowed */
    int *fds;                           /* owned; one for each file */
    size_t count;
};

/* Opens the files again. On failure nothing stays open, and closing is allowed. */
bool bag_open_files_open(const struct bag_table_file *files, size_t count,
                         struct bag_open_files *opened, struct bag_problem *problem);

void bag_open_files_close(struct bag_open_files *opened);

/* Reads `count` rows of all files from row `first` on, in C order and the machine's byte order. */
bool bag_open_files_read(const struct bag_open_files *opened, size_t first, size_t count,
                         void *rows, struct bag_problem *problem);

/* Checks that each file is unchanged and has the CRC-32 that it states. The elements of files with
 * a CRC-32 are read once more. */
bool bag_open_files_check(const struct bag_open_files *opened, struct bag_problem *problem);

/* ---- for readers of further formats ---------------------------------------------------------- */

/* Puts the file's path in front of a problem. Returns false. */
bool bag_file_reject(const char *path, struct bag_problem *problem);

/* Sets a problem: an array without dimensions is not a table. Returns false. */
bool bag_file_reject_scalar(struct bag_problem *problem);

/* Sets the file's identity and state, and zeros all else. */
void bag_file_remember(struct bag_table_file *file, const char *path, const struct stat *state);

/* Reads up to `bytes` bytes at a position. Returns how many there were, or -1 with *problem set. */
ssize_t bag_file_read_some(int fd, void *out, size_t bytes, uint64_t at,
                           struct bag_problem *problem);

/* Reads exactly `bytes` bytes at a position. Returns false and sets *problem if there are fewer. */
bool bag_file_read_at(int fd, void *out, size_t bytes, uint64_t at, struct bag_problem *problem);

/* Reads the header of the .npy array, or scalar, that is stored in the bytes [begin, end). */
bool bag_file_read_npy(int fd, uint64_t begin, uint64_t end, enum bag_dtype override_dtype,
                       struct bag_npy *npy, struct bag_problem *problem);
