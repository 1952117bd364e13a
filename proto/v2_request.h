/* Parses inference requests of the Open Inference Protocol (KServe V2), JSON and binary. This is
 * the main header of proto/, the room that parses all bytes from outside and writes the replies.
 *
 * Requests, replies of shards, table files and journals may come from anyone, and a mistake in a
 * parser is a security hole. So all parsers are here, and none of them makes a system call. A
 * caller reads the bytes and passes them with their length. It gets values, or a struct
 * bag_problem, which is an error with one sentence (problem.h). Every parser can thus be tested and
 * fuzzed with bytes in memory. Parsers have no state besides their arguments and may run on any
 * thread.
 *
 * The main objects:
 *
 *   bag_v2_request    what the JSON header of an inference says: inputs, outputs, parameters
 *   bag_v2_input      an announced input, whose elements are not read yet
 *   bag_tensor        an input whose elements can be pooled (kernels/table.h)
 *   bag_arena         the memory of all of these, with a maximum (arena.h)
 *   bag_v2_template   a header that was decoded before, with open numbers
 *
 * The other headers:
 *
 *   json.h, numbers.h         strict JSON; arrays of numbers as text
 *   v2_documents.h            replies with tensors
 *   formats.h                 table files, and journals of updates
 *   v2_writer.h, v2_client.h  the client's side of the protocol
 *   shard.h, v2_shard.h       requests to shards, and what shards report about themselves
 *   coding.h, proxy.h, ...    content codings, the PROXY protocol, tokens, traces
 *
 * The life of a request:
 *
 * 1. bag_header_cache_find() compares the header with those of recent requests. Most clients send
 *    nearly the same header each time, and comparing takes a fraction of the time of parsing.
 * 2. Otherwise bag_v2_request_decode() scans the header with its limits, builds cJSON's tree, fills
 *    a bag_v2_request and frees the tree. Unknown keys become warnings, because the protocol says
 *    that they are ignored. bag_header_cache_learn() may then make a template.
 * 3. The caller matches the names of the inputs to a model, and calls bag_v2_input_read() for the
 *    inputs that it needs. A binary tensor is a view of the body and is not copied. A JSON array
 *    is read into the arena.
 * 4. The reply is printed by bag_v2_reply_header() (v2_documents.h).
 * 5. The caller resets the arena and frees the body. All results end then.
 *
 * Decoding and reading inputs are two steps, so that an input with an unknown name costs nothing:
 * its numbers are never converted. The scanner cuts the numbers out of the text before cJSON sees
 * it. cJSON would make a node of each number, and it keeps doubles, which are not exact for ids
 * beyond 2^53. Limits are checked while the text is scanned and not on the tree, which would
 * already have taken the memory. Sizes that a client states are never allocated: the memory of an
 * input is bounded by the bytes that have arrived. */
#pragma once

#include "arena.h"
#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"
#include "text.h"

#include <stdlib.h>

/* An input tensor as the JSON header declares it. */
struct bag_v2_input {
    struct bag_text name;
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    size_t count;        /* product of the shape, which does not overflow */
    bool binary;         /* `raw` holds the elements; false: `raw` is the text of a JSON array */
    struct bag_text raw; /* part of the body */
    size_t position;     /* position of `raw` in the body, in bytes */
};

/* How to send an output. */
enum bag_v2_encoding { BAG_V2_DEFAULT, BAG_V2_JSON, BAG_V2_BINARY };

struct bag_v2_output {
    struct bag_text name;
    enum bag_v2_encoding encoding;
};

/* The settings that a request's parameters override for itself. */
struct bag_v2_overrides {
    bool has_reduction, has_padding_idx, has_include_last_offset, has_output_dtype;
    enum bag_reduction reduction;
    int64_t padding_idx;
    bool padding_is_text; /* padding_idx was sent as a text of digits, for keys beyond 2^53 */
    bool padding_is_none; /* nothing is padding, regardless of the model */
    bool has_missing, has_out_of_range;
    enum bag_missing missing, out_of_range;
    bool include_last_offset;
    enum bag_dtype output_dtype;
    bool has_row_format;
    enum bag_row_format row_format; /* row format of the outputs; PLAIN: none */
    uint64_t timeout_us;            /* maximum wait in a queue; 0: not given */
    bool explain;                   /* the reply reports how each bag was pooled */
    bool table_versions;            /* the reply says which versions of tables answered */
    bool partial;      /* the reply holds sums, which the client adds to those of other parts */
    bool kept_default; /* every part treats its copy of the model's default_index row as its own */
    bool has_part;
    struct bag_part part; /* part that the server must have */
    uint64_t part_digest; /* digest of the files from which the part must be cut; 0: not given */
};

struct bag_v2_request {
    struct bag_text id; /* JSON string as it was sent, with its quotes; bytes 0: none */
    struct bag_v2_input *inputs;
    size_t num_inputs;
    struct bag_v2_output *outputs; /* requested outputs; none: all */
    size_t num_outputs;
    enum bag_v2_encoding
        encoding; /* encoding of outputs that do not set their own; never BAG_V2_DEFAULT */
    struct bag_v2_overrides overrides;
    struct bag_text warnings; /* JSON array of texts about parameters without effect, in the arena;
                                 bytes 0: none */
};

/* Appends a text to an array of warnings, whose new bytes are in the arena. Returns false if memory
 * is exhausted. */
bool bag_v2_add_warning(struct bag_text *warnings, const char *text, struct bag_arena *arena);

/* The maximum number of warnings about unknown parameters. */
#define BAG_V2_MAX_WARNINGS 16

/* Parses the value of Inference-Header-Content-Length: digits only, from 1 to `body_bytes`. Returns
 * false and sets *problem if it is anything else. */
bool bag_v2_header_length(const char *value, size_t body_bytes, size_t *header_bytes,
                          struct bag_problem *problem);

/* The limits of a JSON header; see json.h. */
struct bag_json_limits;
extern const struct bag_json_limits bag_json_default_limits;

/* Decodes a body. Its first `header_bytes` are the JSON header, and the rest are the binary
 * tensors. `header_bytes` equals `body_bytes` if the body is all JSON. Rejects duplicate names of
 * inputs or outputs, shared memory, sizes that do not match, missing and excess bytes, and headers
 * that exceed `limits`. Returns false and sets *problem then. */
bool bag_v2_request_decode(const char *body, size_t body_bytes, size_t header_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_v2_request *request, struct bag_problem *problem);

/* Makes a view of an input. Rejects FP16 and BF16 in JSON, because they have no JSON form. Returns
 * false and sets *problem if the input is wrong. */
bool bag_v2_input_read(const struct bag_v2_input *input, struct bag_arena *arena,
                       struct bag_tensor *tensor, struct bag_problem *problem);

/* Returns whether an output with this `encoding` is binary. The request's default applies if the
 * output sets none. */
bool bag_v2_is_binary(const struct bag_v2_request *request, enum bag_v2_encoding encoding);

/* Parses the body of POST /v2/repository/index: nothing, or an object whose "ready" selects only
 * models that are ready. Ignores other keys. Returns false and sets *problem if it is neither. */
bool bag_v2_index_read(const char *body, size_t body_bytes, bool *ready_only,
                       struct bag_problem *problem);

/* ---- batches of rows ------------------------------------------------------------------------- */

/* The body of POST /v2/models/M/rows: a batch of rows that replaces, adds or deletes rows, and its
 * reply. It is framed like an inference request. Its inputs are `indices` or `keys`, and `rows`. */
struct bag_v2_rows {
    struct bag_text id; /* as in struct bag_v2_request */
    bool is_empty;      /* the batch has a number but no inputs, and changes nothing */
    bool has_keys;      /* `ids` are keys instead of indices */
    struct bag_tensor ids, rows;
    uint64_t sequence;       /* from 1; 0: use the next number */
    uint64_t first_sequence; /* first update of the range that the batch replaces, up to `sequence`;
                                the last occurrence of an id counts. 0: it is a single update */
    bool deletes;            /* `ids` are deleted; there are no rows */
};

/* Decodes a body. The body and `arena` must outlive *rows. Rejects unknown inputs and parameters,
 * because a mistake would change a table. Returns false and sets *problem then. */
bool bag_v2_rows_decode(const char *body, size_t body_bytes, size_t header_bytes,
                        const struct bag_json_limits *limits, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem);

struct bag_v2_rows_reply {
    const char *model_name, *model_version;
    struct bag_text id;
    uint64_t sequence;
    bool applied; /* false: it was applied before */
    size_t rows;
    size_t left_out; /* number of rows of other parts of the table */
};

/* Returns the reply, which the caller frees, or NULL if there is not enough memory. */
char *bag_v2_rows_reply(const struct bag_v2_rows_reply *reply);

/* ---- KeyedJaggedTensor's layout (kjt.c) ------------------------------------------------------ */

/* KeyedJaggedTensor's layout: the bags of many features in a few flat tensors.
 *
 *   values   [N]          indices: all of the first feature, then all of the second, ...
 *   lengths  [F*B]        number of indices of each bag, B bags for each of F features; or
 *   offsets  [F*B + 1]    start of each bag, and the end of the last one
 *   weights  [N]          FP32, optional
 *   stride_per_key  [F]   number of bags of each feature, optional; their sum replaces F*B
 *
 * bag_kjt_read() checks that the lengths or offsets cover all values. bag_kjt_part() then returns
 * the tensors that a request for one feature's table would have. Only the offsets are copied. */

#define BAG_KJT_INPUTS(X) \
    X(VALUES, "values")   \
    X(LENGTHS, "lengths") \
    X(OFFSETS, "offsets") \
    X(WEIGHTS, "weights") \
    X(STRIDES, "stride_per_key")

enum bag_kjt_input {
#define BAG_X(id, name) BAG_KJT_##id,
    BAG_KJT_INPUTS(BAG_X)
#undef BAG_X
        BAG_KJT_INPUT_COUNT
};

extern const char *const bag_kjt_input_names[BAG_KJT_INPUT_COUNT];

/* The features of the layout, for error messages. */
struct bag_kjt_features {
    size_t count; /* at least 1 */
    const char *(*name_of)(const void *context, size_t feature);
    const void *context;
};

struct bag_kjt {
    const struct bag_tensor *tensors[BAG_KJT_INPUT_COUNT]; /* NULL: not sent; set by the caller */
    size_t *first_bags; /* [F + 1], first bag of each feature; in the arena */
    int64_t *offsets;   /* offsets of each feature from 0, one more than its bags; in the arena */
    size_t *firsts;     /* [F + 1], first value of each feature; in the arena */
};

/* Checks the tensors and fills in the other members. Returns false and sets *problem, which names
 * the tensor, the feature and the bag, if they are wrong. */
bool bag_kjt_read(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                  struct bag_arena *arena, struct bag_problem *problem);

/* One feature's part as tensors of the offsets form. Its offsets include the end of the last
 * bag. */
struct bag_kjt_part {
    struct bag_tensor indices, offsets, weights;
};

/* Sets *part to the tensors of a feature; sets the weights only if there are some. */
void bag_kjt_part(const struct bag_kjt *kjt, size_t feature, struct bag_kjt_part *part);

/* ---- loading and unloading (control.c) ------------------------------------------------------- */

/* The models that a request loads and unloads. The bodies are
 *
 *     POST /v2/repository/models/M/load      {"parameters": {"version": "3"}, "wait": false}
 *     POST /v2/repository/models/M/unload    {"parameters": {"unload_dependents": true}}
 *     POST /v2/repository/load               {"models": [{"name": "a", "version": "3"},
 *                                                        {"name": "b", "unload": true}]}
 *
 * An empty body selects the defaults. A version is a text of digits or a number. */

/* The maximum number of models in one request. */
#define BAG_CONTROL_MAX_ITEMS 1024

struct bag_control_failed {
    uint64_t version;
    char *reason; /* owned */
};

struct bag_control_item {
    char name[129];
    char version[21]; /* decimal; empty: the versions of the model's policy, or all of them */
    bool unload;
    uint64_t *served; /* owned; versions that are served, for the reply; NULL: unknown */
    size_t num_served;
    struct bag_control_failed *failed; /* owned, with elements; newer versions that were passed
                                          over, for the reply */
    size_t num_failed;
};

/* Returns the version that an item names. Returns 0 if it names none, or if there is no item. */
static inline uint64_t bag_control_version(const struct bag_control_item *item)
{
    return item ? strtoull(item->version, NULL, 10) : 0;
}

struct bag_control {
    struct bag_control_item *items; /* owned; names are unique */
    size_t count;                   /* at least 1 */
    bool wait;                      /* the reply is sent after the change */
    bool unload_dependents;         /* unload the collections of unloaded tables, too */
};

/* Parses the body of a request that loads or unloads one model. If `model` is NULL, parses a
 * request for a group, in which each entry has a name and may unload. Returns false and sets
 * *problem (BAD_REQUEST) if the body is malformed, or contains Triton's `config` or files, which
 * are not supported. */
bool bag_control_read(const char *body, size_t bytes, const char *model, bool unload,
                      struct bag_control *control, struct bag_problem *problem);

/* Returns what the request asks of the model, or NULL. `control` may be NULL. */
const struct bag_control_item *bag_control_find(const struct bag_control *control,
                                                const char *name);

/* Frees a parsed request. A zeroed one is allowed. */
void bag_control_free(struct bag_control *control);

/* Returns {"models": [{"name", "version", "versions"}, ...], "done": true} on the heap, or NULL if
 * there is not enough memory. It lists the requested models, the versions that are served if they
 * are known, versions that were passed over under "failed", and whether the change is complete. */
char *bag_control_describe(const struct bag_control *control, bool done);

/* ---- templates: JSON headers that were decoded before (v2_template.c) ------------------------ */

/* Templates: JSON headers that were decoded before, and others like them.
 *
 * The JSON header that a client sends before its binary tensors differs between requests only in a
 * few fields: the numbers of "shape" and "binary_data_size", the timeout and the "id". A template
 * is a decoded header in which these fields are open. To match another header, only its fields are
 * read and the text between them is compared. */

struct bag_v2_template;

/* Makes a template by decoding the body again into memory of its own. Returns NULL if the header
 * cannot be a template:
 *
 *   - bag_v2_request_decode rejects the body, or decoding takes too much memory;
 *   - a tensor is JSON or BYTES, or there are warnings;
 *   - the text contains a backslash;
 *   - an open number has a fraction, an exponent or more than 15 digits, or an open id is not
 *   printable ASCII;
 *   - it has the key "timeout" although its timeout is 0, or has the key twice. */
struct bag_v2_template *bag_v2_template_make(const char *body, size_t body_bytes,
                                             size_t header_bytes);

/* Returns the result of bag_v2_request_decode for a body, valid until the next call. Returns NULL
 * if the header does not match the template, or would be rejected. */
const struct bag_v2_request *bag_v2_template_match(struct bag_v2_template *template,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes);

/* Frees a template. NULL is ignored. */
void bag_v2_template_free(struct bag_v2_template *template);

/* ---- the headers of a loop ------------------------------------------------------------------- */

/* A cache of templates. A client sends nearly the same JSON header before its binary tensors again
 * and again. JSON headers with JSON data are never kept. Each loop has one cache, which only its
 * thread uses. */
#define BAG_HEADER_CACHE_SLOTS 16

struct bag_header_cache {
    struct bag_v2_template *slots[BAG_HEADER_CACHE_SLOTS]; /* owned; most recently used first */
    unsigned misses; /* headers that were not found but could have been learned */
};

/* Returns the decoded request of a body whose JSON header matches a template, valid until the next
 * call. Returns NULL if none matches. */
const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *cache, const char *body,
                                                   size_t body_bytes, size_t header_bytes);

/* Reports that a body was not found and was then decoded. The first such header and every 17th
 * after it become templates. Learning takes as long as decoding, which pays off for headers that
 * are repeated and costs little for others. */
void bag_header_cache_learn(struct bag_header_cache *cache, const char *body, size_t body_bytes,
                            size_t header_bytes);

/* Frees all templates. The cache is then empty and can be used again. */
void bag_header_cache_free(struct bag_header_cache *cache);
