/* The table of the keys of models and features.
 *
 * They are the keys of "models" in the configuration file, and of the config.json in a model's
 * folder. Each line defines a key, an entry of --help and a member of struct bag_model_config or
 * bag_feature_config. The lists of settings in models.c have the order of BAG_MODEL_KEYS,
 * and the index of a setting there says to which group it belongs. */
#pragma once

/* JSON numbers are not exact beyond 2^53. */
#define BAG_LARGEST_EXACT ((INT64_C(1) << 53) - 1)

/* The words of BAG_MISSINGS (kernels/pool.h) that dense tables accept. */
#define BAG_OUT_OF_RANGE(X) \
    X(ERROR, "error")       \
    X(SKIP, "skip")         \
    X(DEFAULT, "default")

/* clang-format off */
/* Keys that identify a model. X("key", "sentence"). A config.json in a model's folder has only
 * "features" of these, because the folder determines the others. */
#define BAG_MODEL_IDENTITY(X)                                                                      \
    X("name",                                                                                      \
      "Name in URLs: 1 to 128 characters of A-Z a-z 0-9 . _ - without a leading dot. "             \
      "Required.")                                                                                 \
    X("path",                                                                                      \
      "The table: a file (.npy, .npz, .safetensors, or the index of a table in several "           \
      "files) or a folder with keys.npy and values.npy. Relative to the folder of the "            \
      "configuration file. Required unless there are features or shards.")                         \
    X("version", "A whole number from 1, as a number or a string. 1 if absent.")                   \
    X("features", "A list of features in place of a path. It makes the model a collection.")       \
    X("shards",                                                                                    \
      "A list of addresses, http://HOST:PORT or unix:PATH, in place of a path. The servers "       \
      "at these addresses have the parts of the table.")

/* Keys that identify a feature of a collection. X("key", "sentence") */
#define BAG_FEATURE_IDENTITY(X)                                                                    \
    X("name", "Name in inputs and outputs, as for a model, but not embeddings. Required.")         \
    X("model", "Model whose table the feature uses. Required.")                                    \
    X("version",                                                                                   \
      "Version of that model, as a number or a string: the feature always uses its table. If "     \
      "absent: the default version, whichever that is.")

/* Keys that describe the files of a table. X(member, "key", TYPE, minimum, maximum, "sentence").
 * TYPE is one of
 *
 *   COUNT     an integer from minimum to maximum
 *   BOOL      true or false
 *   KEY       an integer of 64 bits: a number, or beyond 2^53 a text of its digits
 *   TEXT      a text
 *   FILE      a path, relative to the document's folder
 *   SHAPE     an array of dimensions
 *   PART      an object {"by", "index", "of"}
 *   CHOICE_*  one of the names of an enum */
#define BAG_FILE_KEYS(X)                                                                           \
    X(datatype, "datatype", CHOICE_DTYPE, 0, 0,                                                    \
      "Type of the table's elements if the file cannot name it, such as BF16 in .npy.")            \
    X(row_format, "row_format", CHOICE_ROW_FORMAT, 0, 0,                                           \
      "Meaning of the bytes of a 2-D UINT8 table. plain: integers. Other values: FP32 rows, "      \
      "quantised as int8, int4, int2 or int8_f16_back (scale and bias after the row), "            \
      "int8_f16_front, int4_f16_front or int2_f16_front (FBGEMM's inference rows), "               \
      "int8_symmetric or int8_symmetric_f16 (scale after the row), f8_e4m3 or f8_e5m2, "           \
      "f8_e4m3_scaled or "           \
      "f8_e5m2_scaled (scale after the row).")                                                     \
    X(row_elements, "row_elements", COUNT, 0, BAG_LARGEST_EXACT,                                   \
      "Number of elements that a row represents. Required with row_format, unless the file "       \
      "has it.")                                                                                   \
    X(tensor, "tensor", TEXT, 0, 4095,                                                             \
      "Name of the table among the tensors of a safetensors file or the arrays of an .npz "        \
      "file. If absent: values, or the only one with 2 dimensions.")                               \
    X(keys, "keys", FILE, 0, 4095,                                                                 \
      "File of the rows' keys, INT64 or UINT64 [rows]. Requests then send keys instead of "        \
      "row numbers. keys.npy beside values.npy is found without this.")                            \
    X(keys_tensor, "keys_tensor", TEXT, 0, 4095,                                                   \
      "Name of the tensor with the keys. If absent: keys, if there is one, unless tensor "         \
      "names another table.")                                                                      \
    X(shape, "shape", SHAPE, 0, 0,                                                                 \
      "Shape of a file without a header, which must be little-endian. Needs datatype. The "        \
      "first dimension may be -1, for as many rows as the file has.")                              \
    X(part, "part", PART, 0, 0,                                                                    \
      "Part of the table to load: {\"by\": \"columns\", \"rows\" or \"keys\", \"index\": I, \"of\": N}, "\
      "with I from 0. Other servers load the other parts.")                                        \
    X(spare_rows, "spare_rows", COUNT, 0, BAG_LARGEST_EXACT,                                       \
      "Number of rows to allocate for keys that updates add to a keyed table. 0 if absent.")       \
    X(updates_through, "updates_through", COUNT, 0, BAG_LARGEST_EXACT,                             \
      "Last update of rows that the file includes. If absent: the number in the "                  \
      "__metadata__ of a safetensors file, or 0.")                                                 \
    X(load, "load", CHOICE_LOAD, 0, 0,                                                             \
      "copy or map, as for the option load, which applies if this is absent.")                     \
    X(warm, "warm", BOOL, 0, 0,                                                                    \
      "Read a mapped table once before it is served, as far as it fits into memory.")              \
    X(lock_pages, "mlock", BOOL, 0, 0,                                                             \
      "Keep a mapped table in memory (mlock). It is read before it is served.")

/* Keys of models of shards only. Columns as in BAG_FILE_KEYS. */
#define BAG_SHARD_KEYS(X)                                                                          \
    X(shard_model, "shard_model", TEXT, 0, 128,                                                    \
      "Name of the model on the shards. If absent: the same name.")                                \
    X(shard_token_file, "shard_token_file", FILE, 0, 4095,                                         \
      "File whose first line is the access token for the shards. A scope may precede it, as "      \
      "in a token_file. Read again when the shards are polled.")                                   \
    X(shard_ready, "ready", CHOICE_SHARD_READY, 0, 0,                                              \
      "all, the default: the model is ready while all shards are. any: while at least one "        \
      "is.")                                                                                       \
    X(absent, "absent", CHOICE_SHARD_ABSENT, 0, 0,                                                 \
      "error, the default: a request that needs an unavailable shard fails. skip: the rows "       \
      "of that shard count as missing, and the reply names the shard.")                            \
    X(hedge, "hedge", CHOICE_SHARD_HEDGE, 0, 0,                                                    \
      "p95: a shard that is slower than 95 % of its recent replies gets a second request. "         \
      "off is the default.")

/* Keys that select what metadata shows. Columns as in BAG_FILE_KEYS. */
#define BAG_SHOWN_KEYS(X)                                                                          \
    X(shown.form, "form", CHOICE_FORM, 0, 0,                                                       \
      "Form whose inputs metadata lists. The model accepts all forms.")                            \
    X(shown.optional_inputs, "optional_inputs", CHOICE_OPTIONAL_INPUTS, 0, 0,                      \
      "Optional inputs that metadata lists: all, only weights, or none. The model accepts "        \
      "all of them.")

/* Keys of pooling, which a feature may override. Columns as in BAG_FILE_KEYS. */
#define BAG_POOLING_KEYS(X)                                                                        \
    X(rules.reduction, "reduction", CHOICE_REDUCTION, 0, 0,                                        \
      "How the rows of a bag are combined. sum is the default; none returns a row for each "       \
      "id.")                                                                                       \
    X(rules.default_index, "default_index", KEY, 0, 0,                                             \
      "Row for empty bags. If -1 or absent: zeros. In a keyed table it is a key of any "           \
      "value.")                                                                                    \
    X(rules.padding_idx, "padding_idx", KEY, 0, 0,                                                 \
      "Index that is left out of bags. A negative one counts from the table's end. In a "          \
      "keyed table it is a key.")                                                                  \
    X(rules.include_last_offset, "include_last_offset", BOOL, 0, 0,                                \
      "offsets has one more element, the end of the last bag.")                                    \
    X(rules.weighted_mean, "weighted_mean", BOOL, 0, 0,                                            \
      "Allow weights with mean, which divides by their sum.")                                      \
    X(rules.prune_invalid, "prune_invalid", BOOL, 0, 0,                                            \
      "Leave entries with a negative index out of bags. With mean and sqrtn, also leave out "      \
      "entries whose weight is not above zero.")                                                   \
    X(rules.unsorted_segments, "unsorted_segments", BOOL, 0, 0,                                    \
      "Allow segment_ids in any order.")                                                           \
    X(rules.require_zero_first_offset, "require_zero_first_offset", BOOL, 0, 0,                    \
      "Reject offsets that do not begin with 0.")                                                  \
    X(rules.require_matching_index_types, "require_matching_index_types", BOOL, 0, 0,              \
      "Reject index tensors of different types.")                                                  \
    X(output_datatype, "output_datatype", CHOICE_DTYPE, 0, 0,                                      \
      "Type of the result. Only FP16, BF16 and FP32 can be converted into each other. If "         \
      "absent: the table's type.")                                                                 \
    X(output_row_format, "output_row_format", CHOICE_ROW_FORMAT, 0, 0,                             \
      "Row format of the result, with the values of row_format. Results are encoded after "        \
      "pooling. plain, the default: elements of output_datatype.")                                 \
    X(out_of_range, "out_of_range", CHOICE_OUT_OF_RANGE, 0, 0,                                     \
      "Handling of an index outside the table. error: reject the request. skip: leave the "        \
      "entry out of its bag. default: pool the row default_index instead.")                        \
    X(missing, "missing", CHOICE_MISSING, 0, 0,                                                    \
      "Handling of a key that a keyed table does not have. error, skip and default: as for "       \
      "out_of_range. hash: pool one of the first hash_rows rows.")                                 \
    X(rules.hash_rows, "hash_rows", COUNT, 0, BAG_LARGEST_EXACT,                                   \
      "Number of rows, from the first, over which missing keys are spread by hash.")

/* Keys for pooled rows, which a feature may override. Columns as in BAG_FILE_KEYS, with minimum and
 * maximum length of paths. */
#define BAG_PROJECTION_KEYS(X)                                                                     \
    X(projection, "projection", FILE, 0, 4095,                                                     \
      ".npy file with an FP32 matrix [dim, out], by which pooled rows are multiplied. If "         \
      "empty or absent: none.")                                                                    \
    X(bias, "bias", FILE, 0, 4095,                                                                 \
      ".npy file with an FP32 vector [out], which is added to projected rows.")

/* Keys that select the served versions and how one replaces another. They apply to a model as a
 * whole: if versions have different values, those of the highest one apply. Columns as in
 * BAG_FILE_KEYS; the type of POLICY is struct bag_version_policy. */
#define BAG_SERVING_KEYS(X)                                                                        \
    X(version_policy, "version_policy", POLICY, 0, 0,                                              \
      "Which of the valid versions are served: {\"latest\": N}, \"all\" or {\"specific\": [1, "    \
      "3]}. If absent: the latest one of a folder, or all that are configured.")                   \
    X(keep_versions, "keep_versions", COUNT, 0, 64,                                                \
      "Number of replaced versions that stay in memory, so that a rollback to one takes no "       \
      "time. 0 if absent.")                                                                        \
    X(reload, "reload", CHOICE_RELOAD, 0, 0,                                                       \
      "load_first, the default: load a new table before the served one is released. "              \
      "unload_first: release the served one first, for tables that do not fit into memory "        \
      "twice. Requests are answered 503 meanwhile.")

#define BAG_RELOADS(X)           \
    X(BAG_RELOAD_LOAD_FIRST, "load_first") \
    X(BAG_RELOAD_UNLOAD_FIRST, "unload_first")

#define BAG_SHARD_READIES(X)     \
    X(BAG_SHARD_READY_ALL, "all") \
    X(BAG_SHARD_READY_ANY, "any")
#define BAG_SHARD_ABSENTS(X)          \
    X(BAG_SHARD_ABSENT_ERROR, "error") \
    X(BAG_SHARD_ABSENT_SKIP, "skip")
#define BAG_SHARD_HEDGES(X)     \
    X(BAG_SHARD_HEDGE_OFF, "off") \
    X(BAG_SHARD_HEDGE_P95, "p95")

/* The keys of a table's model. A collection has only the last group. A model of shards has all but
 * the first group. */
#define BAG_MODEL_KEYS(X) \
    BAG_FILE_KEYS(X) BAG_SHARD_KEYS(X) BAG_SHOWN_KEYS(X) BAG_POOLING_KEYS(X) BAG_PROJECTION_KEYS(X) BAG_SERVING_KEYS(X)
/* clang-format on */
