/* Strict JSON on top of cJSON: for JSON headers and configuration, never for tensor data.
 *
 * cJSON alone takes trailing garbage, duplicate keys, 01, 1e999 and broken UTF-8. Here the grammar
 * of RFC 8259 and the range of numbers are checked first, byte by byte, then cJSON builds the tree,
 * then the tree is checked for duplicate keys. Trees are owned by the caller and freed with
 * bag_json_free. */
#ifndef BAG_JSON_H
#define BAG_JSON_H

#include "arena.h"
#include "problem.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Parses one document; NULL with *problem: BAD_REQUEST with line and column where it is not strict
 * JSON, NO_MEMORY. */
cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem);

void bag_json_free(cJSON *tree);

/* A member of an object; NULL where it is none, or has none of that key. */
static inline const cJSON *bag_json_member(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* The text of a member; NULL where it is none. */
static inline const char *bag_json_text(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(bag_json_member(object, key));
}

/* The place of a node of the tree of that very text: of its key, or of itself in an array. Lines
 * and columns count from 1, columns in bytes. For messages: it reads the text up to there. */
struct bag_json_position {
    size_t line, column;
};
struct bag_json_position bag_json_locate(const char *text, size_t text_bytes, const cJSON *tree,
                                         const cJSON *item);

/* Limits of an inference request's JSON header. They are checked while the text is scanned, before
 * any tree is built, so that a header takes memory for what it may hold and not for what was sent.
 */
struct bag_json_limits {
    size_t max_tensors;    /* elements of "inputs", and of "outputs" */
    size_t max_dimensions; /* elements of an input's "shape" */
    size_t max_parameters; /* members of each "parameters" */
    size_t max_values;     /* in the tree, each "data" counted as one */
    size_t max_bytes;      /* of the text outside of "data" */
    unsigned max_depth;    /* of arrays and objects, outside of "data" */
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
    cJSON *tree;           /* "data" arrays of inputs are replaced by their number in `data` */
    struct bag_text *data; /* the arrays, brackets included; in the arena */
    size_t num_data;
    struct bag_text id; /* the top-level "id" as sent, quotes included; data NULL: none */
};

/* Parses a JSON header of the V2 protocol: like bag_json_parse, but the arrays at inputs[*].data
 * are checked for balance only and cut out (numbers.h reads them), and unknown top-level members
 * are checked and dropped. Takes from the arena twice the bytes outside of "data" and 16 bytes for
 * each "data". Messages give the byte in the body. On failure nothing needs to be freed. */
bool bag_json_parse_header(const char *text, size_t text_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_json_header *header, struct bag_problem *problem);

/* ---- the scanner (json_scan.c) --------------------------------------------------------------- */

/* The grammar of JSON, checked byte by byte; optionally copied on the way, leaving parts out.
 * Private to proto/json*.c. Of a request's JSON header only the names of keys are known here. */

/* Where in a JSON header a value is: decides what is copied, cut out and counted. */
enum bag_json_place {
    BAG_JSON_PLAIN,      /* checked and copied */
    BAG_JSON_DROPPED,    /* checked; the copy gets null */
    BAG_JSON_ROOT,       /* the JSON header's object */
    BAG_JSON_ID,         /* its "id" */
    BAG_JSON_INPUTS,     /* its "inputs" */
    BAG_JSON_OUTPUTS,    /* its "outputs" */
    BAG_JSON_INPUT,      /* an element of its "inputs" */
    BAG_JSON_OUTPUT,     /* an element of its "outputs" */
    BAG_JSON_NAME,       /* a tensor's "name" */
    BAG_JSON_SHAPE,      /* an input's "shape" */
    BAG_JSON_PARAMETERS, /* the header's or a tensor's "parameters" */
    BAG_JSON_DATA        /* an input's "data": an array is cut out */
};

/* What is wrong with a text: "wrong", or "wrong limit unit" where something is above a limit. */
struct bag_json_fault {
    const char *wrong; /* NULL while all is well */
    size_t limit;
    const char *unit;
};

struct bag_json_scan {
    const char *text, *at;
    const char *end;      /* of what may be read: where max_bytes outside of data would be passed */
    const char *text_end; /* of the text; not before `end` */
    char *copy;           /* where the next byte of the copy goes */
    bool copying;         /* false inside a dropped value */
    unsigned depth;       /* of open containers */
    size_t num_values;    /* that were copied */
    const struct bag_json_limits *limits;
    struct bag_arena *arena; /* for `data`; may be NULL where no place is a JSON header's */
    struct bag_text *data;
    size_t num_data, max_data;
    struct bag_text id;
    const char *tensor_kind;     /* "input" or "output" inside of a tensor, otherwise NULL */
    size_t tensor;               /* its position */
    struct bag_text name;        /* its "name" without quotes, where that came already */
    bool no_memory;              /* the arena is used up */
    struct bag_json_fault fault; /* at `at` */
};

/* Starts a scan of a text. */
void bag_json_scan_init(struct bag_json_scan *scan, const char *text, size_t text_bytes,
                        const struct bag_json_limits *limits);

/* Checks the one value that the text must hold. `copy` has room for bag_json_copy_bytes. Returns
 * false with scan->fault and scan->at set, or scan->no_memory. */
bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place);

/* Room that a copy of the text needs, whatever it holds. */
size_t bag_json_copy_bytes(const struct bag_json_scan *scan);

/* ---- tokens (json_token.c) ------------------------------------------------------------------- */

/* Copies bytes, where the scan is copying. */
static inline void bag_json_put(struct bag_json_scan *scan, const char *bytes, size_t count)
{
    if (!scan->copying)
        return;
    memcpy(scan->copy, bytes, count);
    scan->copy += count;
}

static inline bool bag_json_next_is(const struct bag_json_scan *scan, char byte)
{
    return scan->at < scan->end && *scan->at == byte;
}

static inline void bag_json_skip_space(struct bag_json_scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\r' || *scan->at == '\t'))
        scan->at++;
}

/* Note what is wrong, that something has more than `limit` units or anything else, keeping the
 * first finding; return false. */
bool bag_json_fail_limit(struct bag_json_scan *scan, const char *wrong, size_t limit,
                         const char *unit);
bool bag_json_fail(struct bag_json_scan *scan, const char *wrong);

/* Takes `byte`, or fails with `wrong`. */
bool bag_json_expect(struct bag_json_scan *scan, char byte, const char *wrong);

/* Take and copy one string, number or word. */
bool bag_json_scan_string(struct bag_json_scan *scan);
bool bag_json_scan_number(struct bag_json_scan *scan);
bool bag_json_scan_word(struct bag_json_scan *scan, const char *word);

/* Whether the key between its quotes is `name`, escapes included. */
bool bag_json_key_is(const char *key, const char *end, const char *name);

#endif
