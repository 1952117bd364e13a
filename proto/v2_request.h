/* Inference requests of the Open Inference Protocol (KServe V2), JSON and binary.
 *
 * Decoding has two steps, so that a name nobody knows costs nothing: the JSON header says which
 * tensors there are; bag_v2_input_read then makes a tensor view of one of them. Binary tensors are
 * views on the body, JSON ones are read into the arena. Everything lives as long as the body and
 * the arena do. */
#ifndef BAG_V2_REQUEST_H
#define BAG_V2_REQUEST_H

#include "arena.h"
#include "kernels/part.h"
#include "kernels/table.h"
#include "problem.h"
#include "text.h"

/* An input tensor as the JSON header announces it. */
struct bag_v2_input {
    struct bag_text name;
    enum bag_dtype dtype;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    size_t count;        /* product of the shape; does not overflow */
    bool binary;         /* `raw` are elements; otherwise the text of a JSON array */
    struct bag_text raw; /* a part of the body */
    size_t position;     /* of `raw` in the body, in bytes */
};

/* How an output is to be sent. */
enum bag_v2_encoding { BAG_V2_DEFAULT, BAG_V2_JSON, BAG_V2_BINARY };

struct bag_v2_output {
    struct bag_text name;
    enum bag_v2_encoding encoding;
};

/* What a request's parameters may set for itself. */
struct bag_v2_overrides {
    bool has_reduction, has_padding_idx, has_include_last_offset, has_output_dtype;
    enum bag_reduction reduction;
    int64_t padding_idx;
    bool padding_is_text; /* of digits, for keys beyond 2^53 */
    bool padding_is_none; /* nothing is padding, whatever the model says */
    bool has_missing, has_out_of_range;
    enum bag_missing missing, out_of_range;
    bool include_last_offset;
    enum bag_dtype output_dtype;
    bool has_row_format;
    enum bag_row_format row_format; /* that outputs have; PLAIN: none */
    uint64_t timeout_us;            /* how long the request may wait in a queue; 0: not said */
    bool explain;                   /* the reply says what became of every bag */
    bool partial;                   /* sums are asked for, to be added to those of other parts */
    bool kept_default; /* the row of the model's default_index counts as every part's own */
    bool has_part;
    struct bag_part part; /* that the server must have */
    uint64_t part_digest; /* that it must have been cut from; 0: not said */
};

struct bag_v2_request {
    struct bag_text id; /* a JSON string as it was sent, quotes included; bytes 0: none */
    struct bag_v2_input *inputs;
    size_t num_inputs;
    struct bag_v2_output *outputs; /* as asked for; none means all */
    size_t num_outputs;
    enum bag_v2_encoding encoding; /* of outputs that do not say; never BAG_V2_DEFAULT */
    struct bag_v2_overrides overrides;
    struct bag_text warnings; /* a JSON array of texts about parameters that change nothing, in the
                                 arena; bytes 0: none */
};

/* So many unknown parameters are warned of. */
#define BAG_V2_MAX_WARNINGS 16

/* The value of Inference-Header-Content-Length: digits only, from 1 to `body_bytes`. */
bool bag_v2_header_length(const char *value, size_t body_bytes, size_t *header_bytes,
                          struct bag_problem *problem);

/* What a JSON header may hold; see json.h. */
struct bag_json_limits;
extern const struct bag_json_limits bag_json_default_limits;

/* Decodes a body whose first `header_bytes` are the JSON header and whose rest are the binary
 * tensors (header_bytes == body_bytes for a body of plain JSON). Repeated input or output names,
 * shared memory, sizes that do not match, missing and left-over bytes, and headers beyond `limits`
 * are rejected. */
bool bag_v2_request_decode(const char *body, size_t body_bytes, size_t header_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_v2_request *request, struct bag_problem *problem);

/* Makes a view of an input. FP16 and BF16 have no JSON form and are rejected there. */
bool bag_v2_input_read(const struct bag_v2_input *input, struct bag_arena *arena,
                       struct bag_tensor *tensor, struct bag_problem *problem);

/* Whether an output that asks for `encoding` is to be binary: where it does not say, the request's
 * default is its own. */
bool bag_v2_is_binary(const struct bag_v2_request *request, enum bag_v2_encoding encoding);

/* Reads the body of POST /v2/repository/index: nothing, or an object whose "ready" says whether
 * only models that are ready are listed. Other keys are ignored. */
bool bag_v2_index_read(const char *body, size_t body_bytes, bool *ready_only,
                       struct bag_problem *problem);

/* ---- batches of rows ------------------------------------------------------------------------- */

/* The body of POST /v2/models/M/rows: a batch of rows that replaces or adds some, and its reply.
 * Framed as an inference is, with the inputs indices or keys, and rows. */
struct bag_v2_rows {
    struct bag_text id; /* as in struct bag_v2_request */
    bool is_empty;      /* it has a number and no inputs, and changes nothing */
    bool has_keys;      /* `ids` are keys, and not indices */
    struct bag_tensor ids, rows;
    uint64_t sequence;       /* from 1; 0: the next number */
    uint64_t first_sequence; /* the batch stands for the updates from it to `sequence`, and of an id
                                that is there twice the last place counts; 0: it stands for one */
    bool deletes;            /* there are no rows */
};

/* Decodes a body; its parts and `arena` live as long as *rows is used. Rejects other inputs and
 * parameters: what changes a table is not guessed. */
bool bag_v2_rows_decode(const char *body, size_t body_bytes, size_t header_bytes,
                        const struct bag_json_limits *limits, struct bag_arena *arena,
                        struct bag_v2_rows *rows, struct bag_problem *problem);

struct bag_v2_rows_reply {
    const char *model_name, *model_version;
    struct bag_text id;
    uint64_t sequence;
    bool applied; /* or it had been before */
    size_t rows;
    size_t left_out; /* rows of other parts of the table */
};

/* The reply, owned by the caller (free); NULL without memory. */
char *bag_v2_rows_reply(const struct bag_v2_rows_reply *reply);

/* ---- KeyedJaggedTensor's layout (kjt.c) ------------------------------------------------------ */

/* KeyedJaggedTensor's layout: the bags of many features in a few flat tensors.
 *
 *   values   [N]          indices: all of the first feature, then all of the second, ...
 *   lengths  [F*B]        how many of them each bag has, B bags for each of F features; or
 *   offsets  [F*B + 1]    where each bag begins, and at last where the last one ends
 *   weights  [N]          FP32, optional
 *   stride_per_key  [F]   the number of bags of each feature, optional; their sum is then in the
 *                         place of F*B
 *
 * Reading it checks that lengths or offsets cover all values, and leaves for every feature what a
 * request for its table alone would have brought.
 * Nothing is copied but the offsets. */

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

/* The features that the layout is of, for its messages. */
struct bag_kjt_features {
    size_t count; /* at least 1 */
    const char *(*name_of)(const void *context, size_t feature);
    const void *context;
};

struct bag_kjt {
    const struct bag_tensor *tensors[BAG_KJT_INPUT_COUNT]; /* NULL: not sent; set by the caller */
    size_t *first_bags; /* [F + 1], where each feature's bags begin; in the arena */
    int64_t *offsets;   /* each feature's from 0, one more than it has bags; in the arena */
    size_t *firsts;     /* [F + 1], where each feature's values begin; in the arena */
};

/* Checks the tensors and fills the rest; false with *problem, which names the tensor, the feature
 * and the bag. */
bool bag_kjt_read(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                  struct bag_arena *arena, struct bag_problem *problem);

/* One feature's part as tensors of the offsets form; its offsets have an end for the last bag. */
struct bag_kjt_part {
    struct bag_tensor indices, offsets, weights;
};

/* Fills the part of a feature; of weights only where there are some. */
void bag_kjt_part(const struct bag_kjt *kjt, size_t feature, struct bag_kjt_part *part);

/* ---- loading and unloading (control.c) ------------------------------------------------------- */

/* What a request asks to be loaded and unloaded: the bodies of
 *
 *     POST /v2/repository/models/M/load      {"parameters": {"version": "3"}, "wait": false}
 *     POST /v2/repository/models/M/unload    {"parameters": {"unload_dependents": true}}
 *     POST /v2/repository/load               {"models": [{"name": "a", "version": "3"},
 *                                                        {"name": "b", "unload": true}]}
 *
 * An empty body asks for the defaults. A version is a text of digits or a number. */

/* Most models in one request. */
#define BAG_CONTROL_MAX_ITEMS 1024

struct bag_control_item {
    char name[129];
    char version[21]; /* decimal; empty: as the model's policy says, or all of them */
    bool unload;
    uint64_t *served; /* owned; versions, for the reply; NULL: it is not known */
    size_t num_served;
};

struct bag_control {
    struct bag_control_item *items; /* owned; no two of one name */
    size_t count;                   /* at least 1 */
    bool wait;                      /* for the end, before the answer */
    bool unload_dependents;         /* collections over unloaded tables, too */
};

/* Reads the body of a request about one model, to be loaded or unloaded; or, where `model` is NULL,
 * about a group, which says so of each. BAD_REQUEST with *problem where it is malformed, or brings
 * Triton's `config` or files, which are not supported. */
bool bag_control_read(const char *body, size_t bytes, const char *model, bool unload,
                      struct bag_control *control, struct bag_problem *problem);

/* Frees what was read; zeros are allowed. */
void bag_control_free(struct bag_control *control);

/* {"models": [{"name", "version", "versions"}, ...], "done": true}: what was asked for, the
 * versions that are served where that is known, and whether it is done or only begun. On the heap;
 * NULL without memory. */
char *bag_control_describe(const struct bag_control *control, bool done);

/* ---- templates: JSON headers that were decoded before (v2_template.c) ------------------------ */

/* JSON headers that were decoded before, and others like them.
 *
 * What a client sends in front of its binary tensors differs from one request to the next in a few
 * places at most: the numbers of "shape" and "binary_data_size", and the "id". A template is a
 * decoded header in which these are open: a header that fits is read at those places alone. */

struct bag_v2_template;

/* Decodes the body again, into memory of the template's own. NULL where it cannot be one: a tensor
 * is JSON or BYTES, there is something to warn of, something is written with a backslash or a
 * fraction, it takes too much memory, or bag_v2_request_decode rejects the body. */
struct bag_v2_template *bag_v2_template_make(const char *body, size_t body_bytes,
                                             size_t header_bytes);

/* What bag_v2_request_decode makes of a body (arguments as there), valid until the next call; NULL
 * where the header does not fit, or would be rejected. */
const struct bag_v2_request *bag_v2_template_match(struct bag_v2_template *template,
                                                   const char *body, size_t body_bytes,
                                                   size_t header_bytes);

/* NULL is ignored. */
void bag_v2_template_free(struct bag_v2_template *template);

/* ---- the headers of a loop ------------------------------------------------------------------- */

/* A client sends nearly the same JSON header in front of its binary tensors again and again. What
 * it decodes to is kept as a template, which reads others like it. JSON headers with JSON data are
 * never kept. One cache for each loop; only its thread uses it. */
#define BAG_HEADER_CACHE_SLOTS 16

struct bag_header_cache {
    struct bag_v2_template *slots[BAG_HEADER_CACHE_SLOTS]; /* owned; the last used one first */
    unsigned misses;                                       /* that could have been hits */
};

/* The decoded request of a body whose JSON header is like a known one; NULL otherwise. It may be
 * used until the next call. */
const struct bag_v2_request *bag_header_cache_find(struct bag_header_cache *cache, const char *body,
                                                   size_t body_bytes, size_t header_bytes);

/* Told of a body that was not found and then decoded. Every 17th is learned: to learn takes as long
 * as to decode, which pays where the like comes often, and costs little where it never does. */
void bag_header_cache_learn(struct bag_header_cache *cache, const char *body, size_t body_bytes,
                            size_t header_bytes);

void bag_header_cache_free(struct bag_header_cache *cache);

#endif
