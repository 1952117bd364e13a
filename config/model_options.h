/* The table of the keys of models and features: those of "models" in the configuration file, and of
 * the config.json in a model's folder. A line here is a key, a line of --help and a member of
 * struct bag_model_config or bag_feature_config. */
#ifndef BAG_MODEL_OPTIONS_H
#define BAG_MODEL_OPTIONS_H

/* Beyond 2^53 a JSON number is not exact. */
#define BAG_LARGEST_EXACT ((INT64_C(1) << 53) - 1)

/* The words that dense tables know, of BAG_MISSINGS in kernels/pool.h. */
#define BAG_OUT_OF_RANGE(X) \
    X(ERROR, "error")       \
    X(SKIP, "skip")         \
    X(DEFAULT, "default")

/* clang-format off */
/* Which model it is. X("key", "sentence"). A config.json in a model's folder has only "features" of
 * these: the folder gives the others. */
#define BAG_MODEL_IDENTITY(X)                                                                      \
    X("name", "Name in URLs: 1 to 128 of A-Z a-z 0-9 . _ - with no dot in front. Required.")       \
    X("path", "The table: a file (.npy, .npz, .safetensors, or the index of one in parts) or a "   \
      "folder with keys.npy and values.npy; relative to the configuration file's folder. "         \
      "Required, or features.")                                                                                 \
    X("version", "A whole number from 1, as a number or a string; 1 if absent.")                   \
    X("features", "In place of a path: a list of features, which make the model a collection.")    \
    X("shards", "In place of a path: a list of addresses, http://HOST:PORT or unix:PATH, of "      \
      "servers that have the parts of the table.")

/* What a feature of a collection is. X("key", "sentence") */
#define BAG_FEATURE_IDENTITY(X)                                                                    \
    X("name", "Name in inputs and outputs: as a model's, and not embeddings. Required.")           \
    X("model", "The model whose table it is, in its highest version. Required.")

/* What a file holds. X(member, "key", TYPE, minimum, maximum, "sentence"), with a TYPE of
 *
 *   COUNT     an integer from minimum to maximum
 *   BOOL      true or false
 *   KEY       an integer of 64 bits: a number, or beyond 2^53 a text of its digits
 *   TEXT      a text
 *   FILE      a path, relative to the document's folder
 *   SHAPE     an array of dimensions
 *   PART      an object {"by", "index", "of"}
 *   CHOICE_*  one of the names of an enum
 */
#define BAG_FILE_KEYS(X)                                                                           \
    X(datatype, "datatype", CHOICE_DTYPE, 0, 0,                                                    \
      "Type of the table's elements where the file cannot say it, as BF16 in .npy.")               \
    X(row_format, "row_format", CHOICE_ROW_FORMAT, 0, 0,                                           \
      "What the bytes of a 2-D UINT8 table stand for: plain for themselves, or FP32 rows as "      \
      "int8, int4 or int2 (scale and bias behind), int8_f16_front, int4_f16_front or "             \
      "int2_f16_front (FBGEMM's inference rows), int8_f16_back, int8_symmetric or "                \
      "int8_symmetric_f16 (a scale behind), f8_e4m3 or f8_e5m2, f8_e4m3_scaled or "                \
      "f8_e5m2_scaled (scale behind).")                                                            \
    X(row_elements, "row_elements", COUNT, 0, BAG_LARGEST_EXACT,                                   \
      "How many elements a row stands for; required beside row_format, unless the file says it.")  \
    X(tensor, "tensor", TEXT, 0, 4095,                                                             \
      "The tensor of a safetensors file, or the array of an .npz file, that is the table: "        \
      "values, or the only one of 2 dimensions, if absent.")                                       \
    X(keys, "keys", FILE, 0, 4095,                                                                 \
      "A file of the rows' keys, INT64 or UINT64 [rows]: requests send keys, not row numbers. "    \
      "Beside values.npy keys.npy is found by itself.")                                            \
    X(keys_tensor, "keys_tensor", TEXT, 0, 4095,                                                   \
      "The tensor that holds the keys: keys, if there is one, unless tensor names another table.") \
    X(shape, "shape", SHAPE, 0, 0,                                                                 \
      "Shape of a file without a header, little-endian, beside its datatype; the first may be -1, " \
      "for as many rows as there are.")                                                            \
    X(part, "part", PART, 0, 0,                                                                    \
      "The part of the table that is loaded: {\"by\": \"columns\", \"rows\" or \"keys\", "              \
      "\"index\": I, \"of\": N}, I from 0. Other servers have the others.")                          \
    X(spare_rows, "spare_rows", COUNT, 0, BAG_LARGEST_EXACT,                                       \
      "Rows of memory for keys that updates add to a keyed table; 0 if absent.")                   \
    X(updates_through, "updates_through", COUNT, 0, BAG_LARGEST_EXACT,                             \
      "The last update of rows that the file includes; 0 if absent, or what the __metadata__ of a " \
      "safetensors file says.")\
    X(load, "load", CHOICE_LOAD, 0, 0,                                                             \
      "copy or map, as the option load, which holds where this is absent.")                        \
    X(warm, "warm", BOOL, 0, 0,                                                                    \
      "Read a mapped table once before it is served, as far as memory holds it.")                  \
    X(lock_pages, "mlock", BOOL, 0, 0,                                                        \
      "Keep a mapped table in memory (mlock); it is read before it is served.")

/* How servers that have its parts are asked; beside shards alone. Columns as above. */
#define BAG_SHARD_KEYS(X)                                                                          \
    X(shard_model, "shard_model", TEXT, 0, 128,                                                    \
      "The model's name on the shards; the same name if absent.")                                  \
    X(shard_token_file, "shard_token_file", FILE, 0, 4095,                                         \
      "A file whose first line is the access token that shards are sent, after a scope where it "  \
      "has one, as in a token_file; read again when the shards are asked.")                        \
    X(shard_ready, "ready", CHOICE_SHARD_READY, 0, 0,                                              \
      "all, the default: the model is ready while all shards are; any: while one is.")             \
    X(absent, "absent", CHOICE_SHARD_ABSENT, 0, 0,                                                 \
      "error, the default: a request that needs an unavailable shard fails; skip: its rows count " \
      "as missing, and the reply names it.")                                                       \
    X(hedge, "hedge", CHOICE_SHARD_HEDGE, 0, 0,                                                    \
      "p95: a shard that takes longer than 95 of 100 answers lately is asked a second time; off, " \
      "the default.")

/* What metadata shows of it. Columns as above. */
#define BAG_SHOWN_KEYS(X)                                                                          \
    X(shown.form, "form", CHOICE_FORM, 0, 0,                                                       \
      "The form whose inputs metadata lists; all forms are taken.")                                \
    X(shown.optional_inputs, "optional_inputs", CHOICE_OPTIONAL_INPUTS, 0, 0,                      \
      "Which optional inputs metadata lists: all, weights alone, or none; all are taken.")

/* How it pools; a feature may set these for itself. Columns as above. */
#define BAG_POOLING_KEYS(X)                                                                        \
    X(rules.reduction, "reduction", CHOICE_REDUCTION, 0, 0,                                        \
      "How a bag's rows become one: sum by default; none for a row of each id.")                                              \
    X(rules.default_index, "default_index", KEY, 0, 0,                                             \
      "Row that an empty bag gets; -1, as if absent, for zeros. Of a keyed table its key, "        \
      "whatever its sign.")                                                                        \
    X(rules.padding_idx, "padding_idx", KEY, 0, 0,                                                 \
      "Index whose entries leave the bag; a negative one counts from the table's end. Of a keyed " \
      "table a key.")                                                                              \
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
    X(output_row_format, "output_row_format", CHOICE_ROW_FORMAT, 0, 0,                             \
      "Row format of the result, as row_format: rows are encoded once they are pooled; plain, "    \
      "or if absent, elements of output_datatype.")                                                \
    X(out_of_range, "out_of_range", CHOICE_OUT_OF_RANGE, 0, 0,                                     \
      "What an index outside the table does: error rejects the request, skip leaves the entry "    \
      "out of its bag, default pools the row default_index in its place.")                         \
    X(missing, "missing", CHOICE_MISSING, 0, 0,                                                    \
      "What a key that a keyed table does not have does: error, skip and default as "              \
      "out_of_range; hash takes one of the first hash_rows rows.")                                 \
    X(rules.hash_rows, "hash_rows", COUNT, 0, BAG_LARGEST_EXACT,                                   \
      "Rows, from the first, that missing keys are spread over by hash.")

/* What is done with what was pooled; of a model, or of a feature for itself. Columns as above, with
 * paths of minimum to maximum bytes. */
#define BAG_PROJECTION_KEYS(X)                                                                     \
    X(projection, "projection", FILE, 0, 4095,                                                     \
      "A .npy file, FP32 of shape [dim, out]: pooled rows are multiplied by it; empty, as if "     \
      "absent, for none.")                                                                         \
    X(bias, "bias", FILE, 0, 4095,                                                                 \
      "A .npy file, FP32 of shape [out]: added to rows that were projected.")

/* Which versions of it are served, and how one takes the place of another. Of a model and not of
 * one version: where versions say different things, the highest one's holds. Columns as above; of
 * POLICY the type is struct bag_version_policy. */
#define BAG_SERVING_KEYS(X)                                                                        \
    X(version_policy, "version_policy", POLICY, 0, 0,                                              \
      "Which versions are served, of those that are good: {\"latest\": N}, \"all\" or "            \
      "{\"specific\": [1, 3]}. If absent, the latest one of a folder, or all that are named.")                                                                \
    X(keep_versions, "keep_versions", COUNT, 0, 64,                                                \
      "Versions that are held in memory after others took their place, so that going back to one " \
      "takes no time: 0 by default.")                                                              \
    X(reload, "reload", CHOICE_RELOAD, 0, 0,                                                       \
      "load_first, the default, loads a new table beside the one that serves; unload_first frees " \
      "that one before, for tables that do not fit twice: requests get 503 meanwhile.")

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

/* Of a model of a table; a collection has the last group of them. One of shards has all but the
 * first. */
#define BAG_MODEL_KEYS(X) \
    BAG_FILE_KEYS(X) BAG_SHARD_KEYS(X) BAG_SHOWN_KEYS(X) BAG_POOLING_KEYS(X) BAG_PROJECTION_KEYS(X) BAG_SERVING_KEYS(X)
/* clang-format on */

#endif
