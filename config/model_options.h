/* The table of the keys of models and features: those of "models" in the configuration file, and of
 * the config.json in a model's folder. A line here is a key, a line of --help and a member of
 * struct bag_model_config or bag_feature_config. */
#ifndef BAG_MODEL_OPTIONS_H
#define BAG_MODEL_OPTIONS_H

/* Beyond 2^53 a JSON number is not exact. */
#define BAG_LARGEST_EXACT ((INT64_C(1) << 53) - 1)

#define BAG_OUT_OF_RANGE(X) \
    X(ERROR, "error")       \
    X(SKIP, "skip")

/* clang-format off */
/* Which model it is. X("key", "sentence"). A config.json in a model's folder has only "features" of
 * these: the folder gives the others. */
#define BAG_MODEL_IDENTITY(X)                                                                      \
    X("name", "Name in URLs: 1 to 128 of A-Z a-z 0-9 . _ - with no dot in front. Required.")       \
    X("path", "The table's file; relative to the configuration file's folder. Required, or "       \
      "features.")                                                                                 \
    X("version", "A whole number from 1, as a number or a string; 1 if absent.")                   \
    X("features", "In place of a path: a list of features, which make the model a collection.")

/* What a feature of a collection is. X("key", "sentence") */
#define BAG_FEATURE_IDENTITY(X)                                                                    \
    X("name", "Name in inputs and outputs: as a model's, and not embeddings. Required.")           \
    X("model", "The model whose table it is, in its highest version. Required.")

/* What a file holds. X(member, "key", TYPE, minimum, maximum, "sentence"), with a TYPE of
 *
 *   COUNT     an integer from minimum to maximum
 *   BOOL      true or false
 *   FILE      a path, relative to the document's folder
 *   CHOICE_*  one of the names of an enum
 *   EITHER_*  one of two words, the second of which sets the member */
#define BAG_FILE_KEYS(X)                                                                           \
    X(datatype, "datatype", CHOICE_DTYPE, 0, 0,                                                    \
      "Type of the table's elements where the file cannot say it, as BF16 in .npy.")               \
    X(row_format, "row_format", CHOICE_ROW_FORMAT, 0, 0,                                           \
      "What the bytes of a 2-D UINT8 table stand for: plain for themselves, or FP32 rows as "      \
      "int8, int4, f8_e4m3 or f8_e5m2.")

/* How it pools; a feature may set these for itself. Columns as above. */
#define BAG_POOLING_KEYS(X)                                                                        \
    X(rules.reduction, "reduction", CHOICE_REDUCTION, 0, 0,                                        \
      "How a bag's rows become one: sum by default.")                                              \
    X(rules.default_index, "default_index", COUNT, -1, BAG_LARGEST_EXACT,                          \
      "Row that an empty bag gets; -1, as if absent, for zeros.")                                  \
    X(rules.padding_idx, "padding_idx", COUNT, -BAG_LARGEST_EXACT, BAG_LARGEST_EXACT,              \
      "Index whose entries leave the bag; a negative one counts from the table's end.")            \
    X(rules.include_last_offset, "include_last_offset", BOOL, 0, 0,                                \
      "offsets has one element more, the end of the last bag.")                                    \
    X(rules.weighted_mean, "weighted_mean", BOOL, 0, 0,                                            \
      "mean takes weights and divides by their sum.")                                              \
    X(rules.prune_invalid, "prune_invalid", BOOL, 0, 0,                                            \
      "Entries with a negative index leave the bag; for mean and sqrtn also those whose weight "   \
      "is not above zero.")                                                                        \
    X(rules.unsorted_segments, "unsorted_segments", BOOL, 0, 0,                                    \
      "segment_ids may come in any order.")                                                        \
    X(rules.require_zero_first_offset, "require_zero_first_offset", BOOL, 0, 0,                    \
      "Reject offsets that do not begin with 0.")                                                  \
    X(rules.require_matching_index_types, "require_matching_index_types", BOOL, 0, 0,              \
      "Reject index tensors of different types.")                                                  \
    X(output_datatype, "output_datatype", CHOICE_DTYPE, 0, 0,                                      \
      "Type of the result: the table's, or FP16, BF16 and FP32 among each other.")                 \
    X(rules.skip_out_of_range, "out_of_range", EITHER_OUT_OF_RANGE, 0, 0,                          \
      "What an index outside the table does: error rejects the request, skip leaves the entry "    \
      "out of its bag.")

/* What is done with what was pooled; of a model, or of a feature for itself. Columns as above, with
 * paths of minimum to maximum bytes. */
#define BAG_PROJECTION_KEYS(X)                                                                     \
    X(projection, "projection", FILE, 0, 4095,                                                     \
      "A .npy file, FP32 of shape [dim, out]: pooled rows are multiplied by it; empty, as if "     \
      "absent, for none.")                                                                         \
    X(bias, "bias", FILE, 0, 4095,                                                                 \
      "A .npy file, FP32 of shape [out]: added to rows that were projected.")

/* Of a model of a table. */
#define BAG_MODEL_KEYS(X) BAG_FILE_KEYS(X) BAG_POOLING_KEYS(X) BAG_PROJECTION_KEYS(X)
/* clang-format on */

#endif
