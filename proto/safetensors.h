/* safetensors files: from the header's bytes to the place of each tensor, and the index of files in
 * parts.
 *
 * A file is 8 bytes with the header's length (little-endian), the header, which is a JSON object of
 * {"dtype", "shape", "data_offsets"} by tensor name, and the data. As the format's own description
 * demands, the tensors fill the data without holes or overlaps up to the file's end, and no name
 * occurs twice. A tensor of a type that cannot be pooled is rejected when it is asked for only.
 *
 * Where the bytes (U8) of a tensor named "values" stand for quantised rows, __metadata__ may say so:
 * "row_format" is a name of BAG_ROW_FORMATS in kernels/pool.h, "row_elements" a decimal number.
 *
 * The caller reads the file and passes bytes. */
#ifndef BAG_SAFETENSORS_H
#define BAG_SAFETENSORS_H

#include "kernels/pool.h"
#include "npy.h"

struct cJSON; /* which only the parser knows */

/* The longest header that is read, in bytes, and the longest index. */
#define BAG_SAFETENSORS_MAX_HEADER_BYTES ((size_t)100 * 1000 * 1000)

/* As many bytes tell how long the header is. */
#define BAG_SAFETENSORS_PREAMBLE_BYTES 8

struct bag_safetensors {
    struct cJSON *tree; /* of the header; owned */
    size_t data_offset; /* of the first tensor in the file */
};

/* One tensor of a file, as a table's elements. */
struct bag_safetensors_tensor {
    const char *type;               /* as the header has it; lives as long as the file's struct */
    enum bag_row_format row_format; /* of F8_E4M3 and F8_E5M2, whose dtype is U8, and of what
                                       __metadata__ tells; else PLAIN */
    size_t row_elements;            /* of these; 0 where __metadata__ does not tell */
    struct bag_npy layout;          /* C order, little-endian; rank 0 is possible */
};

/* How many bytes bag_safetensors_parse needs to see; 0 where the length is already wrong (the
 * parser says how). `count` is at least BAG_SAFETENSORS_PREAMBLE_BYTES, or that of a shorter file.
 */
size_t bag_safetensors_header_bytes(const void *bytes, size_t count);

/* Reads the header from the first `count` bytes of a file of `file_bytes`. On success the caller
 * frees *file; on failure *problem names the tensor and what would be right. */
bool bag_safetensors_parse(const void *bytes, size_t count, uint64_t file_bytes,
                           struct bag_safetensors *file, struct bag_problem *problem);

void bag_safetensors_free(struct bag_safetensors *file);

/* The names of the tensors in the header's order, one with each call; NULL after the last. *cursor
 * is NULL before the first. */
const char *bag_safetensors_next(const struct bag_safetensors *file, const struct cJSON **cursor);

/* Whether there is a tensor of that name, of whatever type. */
bool bag_safetensors_has(const struct bag_safetensors *file, const char *name);

/* What the file's __metadata__ says of a key; NULL: nothing. Lives as long as the file's struct. */
const char *bag_safetensors_metadata(const struct bag_safetensors *file, const char *key);

/* Describes a tensor that is there. Rejects types that cannot be pooled, and more dimensions than
 * BAG_MAX_RANK. */
bool bag_safetensors_describe(const struct bag_safetensors *file, const char *name,
                              struct bag_safetensors_tensor *tensor, struct bag_problem *problem);

/* ---- files in parts -------------------------------------------------------------------------- */

/* model.safetensors.index.json: {"weight_map": {tensor: file}, ...}. */
struct bag_safetensors_index {
    struct cJSON *tree; /* owned */
};

/* Reads the index. Every file must be a plain name, in the index's own folder. */
bool bag_safetensors_index_parse(const char *text, size_t bytes,
                                 struct bag_safetensors_index *index, struct bag_problem *problem);

void bag_safetensors_index_free(struct bag_safetensors_index *index);

/* The name of the file that holds the tensor; NULL: there is no such tensor. */
const char *bag_safetensors_index_file(const struct bag_safetensors_index *index,
                                       const char *tensor);

/* The names of the tensors, as bag_safetensors_next. */
const char *bag_safetensors_index_next(const struct bag_safetensors_index *index,
                                       const struct cJSON **cursor);

#endif
