/* Opening and re-opening table files. Private to server/table. */
#ifndef BAG_TABLE_FILE_H
#define BAG_TABLE_FILE_H

#include "load.h"

#include <sys/stat.h>
#include <sys/types.h>

/* Sets all of *memory: a table of that type and shape, whose rows are there and not owned. */
void bag_table_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        size_t row_elements, const void *rows, struct bag_table_memory *memory);

/* Puts the file's path in front of a problem; returns false. */
bool bag_file_reject(const char *path, struct bag_problem *problem);

/* Opens a file again that was checked before; -1 with the problem set where it is not as it was. */
int bag_file_reopen(const struct bag_table_file *file, struct bag_problem *problem);

/* Whether the open file is still as it was. */
bool bag_file_check_unchanged(const struct bag_table_file *file, int fd,
                              struct bag_problem *problem);

/* Opens a regular file and no other, and fills *state; -1 with the problem set. */
int bag_file_open(const char *path, struct stat *state, struct bag_problem *problem);

/* Keeps which file that is, in which state. */
void bag_file_remember(struct bag_table_file *file, const char *path, const struct stat *state);

/* Reads up to `bytes` at a place; returns how many there were, or -1 with the problem set. */
ssize_t bag_file_read_some(int fd, void *out, size_t bytes, uint64_t at,
                           struct bag_problem *problem);

/* Reads the header of the .npy array that stands in [begin, end) of the file. */
bool bag_file_read_npy(int fd, uint64_t begin, uint64_t end, enum bag_dtype override_dtype,
                       struct bag_npy *npy, struct bag_problem *problem);

/* Says that an array without dimensions is no table; returns false. */
bool bag_file_reject_scalar(struct bag_problem *problem);

/* Reads `bytes` at a place; fewer are a failure. */
bool bag_file_read_at(int fd, void *out, size_t bytes, uint64_t at, struct bag_problem *problem);

/* Names of the tensors of a safetensors file, of its index of parts, or of the members of an .npz
 * file. */
struct bag_file_names {
    char **names; /* owned */
    size_t count;
};
bool bag_file_list_tensors(const char *path, struct bag_file_names *names,
                           struct bag_problem *problem);
bool bag_file_list_members(const char *path, struct bag_file_names *names,
                           struct bag_problem *problem);
void bag_file_names_free(struct bag_file_names *names);

/* The file of a tensor by the index of files in parts, as a path the caller frees; NULL with the
 * problem set, where `names` is that of the index's tensors. */
char *bag_file_find_part(const char *index_path, const char *tensor, struct bag_problem *problem);

/* Says that a name is not among those, and which are; returns false. `what` is "tensor". */
bool bag_file_reject_name(const char *what, const char *name, const struct bag_file_names *names,
                          struct bag_problem *problem);

#endif
