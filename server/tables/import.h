/* Quantised rows as other programs write them, which only `bagserve convert` reads.
 *
 * TorchRec's arrays `weight`, `weight_qscale` and `weight_qbias`, and symmetric INT8 or FP8
 * `weight` and `scale`, have codes in one array and their scales and biases in others. FBGEMM pads
 * rows to a multiple of 16 bytes. A source whose `imports` is set opens such files; its rows are
 * joined as they are read. For every other source they are an error that says how to convert them.
 */
#pragma once

#include "archive.h"
#include "source.h"

/* Returns whether an array holds the scales or biases of another one, by their names. */
bool bag_import_is_scale(const struct bag_file_names *names, const char *name);

/* Opens the scales and biases of the array `values` of an archive, which is the source's first
 * file, if it has some. Returns false and sets *problem (BAG_ERROR_CONFIGURATION, BAG_ERROR_FILE)
 * if the source does not import, or they do not fit the codes. Also does so if another array says
 * that `values` is not the table, such as a zero point or the mask of a pruned weight. */
bool bag_import_open(struct bag_source *source, const struct bag_archive *archive,
                     const struct bag_file_names *names, const char *values,
                     struct bag_problem *problem);

/* Rejects a tensor of a file in parts, the source's first file, that has scales in any part, which
 * are not joined, or that is not the table. `names` are the tensors of all parts. */
bool bag_import_check_parts(const struct bag_source *source, const char *index,
                            const struct bag_file_names *names, const char *values,
                            struct bag_problem *problem);

/* Sets the source's table and shape to those of the rows with scale and bias in them. */
bool bag_import_describe(struct bag_source *source, struct bag_problem *problem);

/* Returns whether the rows of a file differ from those of the table and are joined or cut. */
bool bag_import_is_needed(const struct bag_source *source);

/* Reads rows for which bag_import_is_needed, as the table has them. Any thread. Returns false and
 * sets *problem if reading fails (BAG_ERROR_FILE, BAG_ERROR_NO_MEMORY), or if a scale or bias is
 * not finite or too large for the row format (BAG_ERROR_FILE). */
bool bag_import_read(const struct bag_source *source, const struct bag_open_files *codes,
                     const struct bag_open_files *scales, size_t first, size_t count,
                     unsigned char *rows, struct bag_problem *problem);
