/* Strict JSON on top of cJSON, for the JSON headers of requests and for configurations, never for
 * tensor data.
 *
 * cJSON alone accepts trailing garbage, duplicate keys, 01, 1e999 and invalid UTF-8. Here the text
 * is checked first, byte by byte, against the grammar of RFC 8259 and the range of numbers. Then
 * cJSON builds the tree, and the tree is checked for duplicate keys. The caller owns a tree and
 * frees it with bag_json_free. A byte order mark before the document is skipped. */
#pragma once

#include "arena.h"
#include "problem.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Parses one document. Returns NULL and sets *problem if it is not strict JSON (BAD_REQUEST, with
 * line and column) or memory is exhausted (NO_MEMORY). */
cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem);

/* Frees a tree. NULL is ignored. */
void bag_json_free(cJSON *tree);

/* Returns a member of an object. Returns NULL if `object` is not an object or has no such member.
 */
static inline const cJSON *bag_json_member(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* Returns the text of a member. Returns NULL if there is no such member or it is not a string. */
static inline const char *bag_json_text(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(bag_json_member(object, key));
}

/* The position of a node in the text from which its tree was parsed: that of its key, or in an
 * array its own. Lines and columns count from 1, columns in bytes. It is for error messages,
 * because the text is read again up to the node. Without memory for that it is the text's start. */
struct bag_json_position {
    size_t line, column;
};
struct bag_json_position bag_json_locate(const char *text, size_t text_bytes, const cJSON *tree,
                                         const cJSON *item);

/* Limits of the JSON header of an inference request. They are checked while the text is scanned,
 * before a tree is built, so the memory of a header is bounded by these limits and not by what was
 * sent. */
struct bag_json_limits {
    size_t max_tensors;    /* elements of "inputs", and of "outputs" */
    size_t max_dimensions; /* elements of an input's "shape" */
    size_t max_parameters; /* members of each "parameters" */
    size_t max_values;     /* in the tree, each "data" counted as one */
    size_t max_bytes;      /* size of the text outside of "data" */
    unsigned max_depth;    /* nesting of arrays and objects outside of "data" */
};

/* The defaults: a thousand features of three tensors fit, with 256 bytes for each input and output.
 * The tree takes at most 12 MB: up to 144 bytes for each value, and the texts of 2 MB. */
#define BAG_JSON_MAX_TENSORS    4096
#define BAG_JSON_MAX_PARAMETERS 128
#define BAG_JSON_MAX_VALUES     65536
#define BAG_JSON_MAX_BYTES      (2 << 20)
#define BAG_JSON_MAX_DEPTH      128
extern const struct bag_json_limits bag_json_default_limits;

/* An inference request's JSON header without its tensor data. */
struct bag_json_header {
    cJSON *tree; /* owned; "data" arrays of inputs are replaced by their number in `data` */
    struct bag_text *data; /* the arrays, brackets included; in the arena */
    size_t num_data;
    struct bag_text id; /* the top-level "id" as sent, quotes included; data NULL: none */
};

/* Parses a JSON header of the V2 protocol. It differs from bag_json_parse in two points. The arrays
 * at inputs[*].data are only checked for balanced brackets and cut out (numbers.h reads them).
 * Unknown top-level members are checked and dropped.
 *
 * The arena provides twice the bytes of the text, but of a text beyond limits->max_bytes only twice
 * that limit, and the list of data arrays. The tree is on the heap; the caller frees it with
 * bag_json_free. Error messages name the byte in the body. Returns false and sets *problem if the
 * header is wrong; nothing needs to be freed then. */
bool bag_json_parse_header(const char *text, size_t text_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_json_header *header, struct bag_problem *problem);

/* ---- the scanner (json_scan.c) --------------------------------------------------------------- */

/* The scanner checks the grammar of JSON byte by byte in one recursive pass. If asked to, it copies
 * the text and leaves parts out, so that cJSON builds nodes only for what is needed. The
 * alternative, to let cJSON parse numbers of tensors, takes a node of 64 bytes for each. The
 * scanner is private to proto/json*.c. It knows only the names of the members of a request's JSON
 * header. */

/* The position of a value in a JSON header. It decides what is copied, cut out and counted. */
enum bag_json_place {
    BAG_JSON_PLAIN,      /* checked and copied */
    BAG_JSON_DROPPED,    /* checked; the copy gets null */
    BAG_JSON_ROOT,       /* the JSON header's object */
    BAG_JSON_ID,         /* the header's "id" */
    BAG_JSON_INPUTS,     /* the header's "inputs" */
    BAG_JSON_OUTPUTS,    /* the header's "outputs" */
    BAG_JSON_INPUT,      /* an element of "inputs" */
    BAG_JSON_OUTPUT,     /* an element of "outputs" */
    BAG_JSON_NAME,       /* a tensor's "name" */
    BAG_JSON_SHAPE,      /* an input's "shape" */
    BAG_JSON_PARAMETERS, /* the header's or a tensor's "parameters" */
    BAG_JSON_DATA        /* an input's "data": an array is cut out */
};

/* A fault in a text. The message is `wrong`, or "wrong limit unit" if a limit is exceeded. */
struct bag_json_fault {
    const char *wrong; /* NULL: no fault */
    size_t limit;
    const char *unit;
};

struct bag_json_scan {
    const char *text, *at;
    const char *key;      /* the last key; NULL: the values since it are elements of an array */
    const char *end;      /* end of the readable bytes: max_bytes outside of data end there */
    const char *text_end; /* end of the text; `end` or later */
    char *copy;           /* next byte of the copy */
    bool copying;         /* false inside a dropped value */
    unsigned depth;       /* number of open arrays and objects */
    size_t num_values;    /* values copied so far */
    const struct bag_json_limits *limits;
    struct bag_arena
        *arena; /* memory for `data`; may be NULL for other documents than a request's header */
    struct bag_text *data;
    size_t num_data, max_data;
    struct bag_text id;
    const char *tensor_kind;     /* "input" or "output" inside of a tensor, otherwise NULL */
    size_t tensor;               /* index of that tensor */
    struct bag_text name;        /* "name" of that tensor without quotes, if it was seen already */
    bool no_memory;              /* the arena is used up */
    struct bag_json_fault fault; /* at `at` */
};

/* Starts a scan of a text. */
void bag_json_scan_init(struct bag_json_scan *scan, const char *text, size_t text_bytes,
                        const struct bag_json_limits *limits);

/* Checks the one value that the text must hold. `copy` has a capacity of bag_json_copy_bytes.
 * Returns false and sets scan->fault and scan->at, or scan->no_memory, if the text is wrong. */
bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place);

/* Returns an upper bound of the size of a copy of the text. */
size_t bag_json_copy_bytes(const struct bag_json_scan *scan);
