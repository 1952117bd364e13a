/* Files of several named arrays: safetensors files, alone or in parts, and .npz files.
 *
 * Their arrays are listed, and one of them is opened as a struct bag_table_file. Functions set
 * problems of the kinds BAG_ERROR_FILE and BAG_ERROR_NO_MEMORY. */
#pragma once

#include "file.h"

/* Keys of a safetensors file's __metadata__ that struct bag_table_file keeps. */
#define BAG_NOTE_UPDATES_THROUGH "updates_through"
#define BAG_NOTE_FIXED_ROWS      "fixed_rows"

/* ---- names ----------------------------------------------------------------------------------- */

/* The names of an archive's arrays, or of the tensors in an index of parts. */
struct bag_file_names {
    char **names;                 /* owned; in the file's order */
    char **sorted;                /* owned; the same strings, sorted */
    struct bag_table_file *files; /* owned; the array of each name, without a path if its type is
                                     not supported; NULL for an index of parts */
    size_t count;
};

void bag_file_names_free(struct bag_file_names *names);

/* Returns the name that consists of the first `bytes` bytes of `base` and of the suffix. Returns
 * NULL if there is none. */
const char *bag_file_names_find(const struct bag_file_names *names, const char *base, size_t bytes,
                                const char *suffix);

/* Sets a problem that lists the names, for a caller who has to choose one. Returns false. */
bool bag_file_reject_choice(const struct bag_file_names *names, struct bag_problem *problem);

/* ---- one file -------------------------------------------------------------------------------- */

/* An open archive: an .npz file if its name says so, else a safetensors file. */
struct bag_archive {
    struct bag_table_file file; /* the archive itself, without an array */
    bool is_npz;
    int fd;
    struct bag_safetensors tensors; /* header of a safetensors file; owned */
    struct bag_npz npz;             /* directory of an .npz file, in `directory` */
    void *directory;                /* owned */
};

/* Opens a file and reads its directory or header. On failure nothing stays open. */
bool bag_archive_open(const char *path, struct bag_archive *archive, struct bag_problem *problem);
void bag_archive_close(struct bag_archive *archive);

/* Lists the arrays. The caller must call bag_file_names_free in either case. */
bool bag_archive_list(const struct bag_archive *archive, struct bag_file_names *names,
                      struct bag_problem *problem);

/* Opens an array or a scalar. `override_dtype` applies to .npz files, as in bag_npy_parse. If there
 * is no array of this name, *problem lists the names that exist. */
bool bag_archive_array(const struct bag_archive *archive, const char *name,
                       enum bag_dtype override_dtype, struct bag_table_file *file,
                       struct bag_problem *problem);

/* ---- files in parts -------------------------------------------------------------------------- */

/* Lists the tensors of an index of parts. The caller must call bag_file_names_free in either case.
 */
bool bag_file_list_index(const char *path, struct bag_file_names *names,
                         struct bag_problem *problem);

/* Returns the path of the file that holds a tensor; the caller frees it. Returns NULL and sets
 * *problem if the index does not have the tensor. */
char *bag_file_find_part(const char *index_path, const char *tensor, struct bag_problem *problem);
