/* Strict JSON on top of cJSON: for JSON headers and configuration, never for tensor data.
 *
 * cJSON alone takes trailing garbage, duplicate keys, 01, 1e999 and broken UTF-8. Here the grammar
 * of RFC 8259 and the range of numbers are checked first, byte by byte, then cJSON builds the tree,
 * then the tree is checked for duplicate keys. Trees are owned by the caller and freed with
 * bag_json_free. */
#ifndef BAG_JSON_H
#define BAG_JSON_H

#include "arena.h"
#include "json_limits.h"
#include "problem.h"
#include "text.h"

#include <cjson/cJSON.h>

/* Parses one document; NULL with *problem: BAD_REQUEST with line and column where it is not strict
 * JSON, NO_MEMORY. */
cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem);

void bag_json_free(cJSON *tree);

/* The place of a node of the tree of that very text: of its key, or of itself in an array. Lines
 * and columns count from 1, columns in bytes. For messages: it reads the text up to there. */
struct bag_json_position {
    size_t line, column;
};
struct bag_json_position bag_json_locate(const char *text, size_t text_bytes, const cJSON *tree,
                                         const cJSON *item);

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

#endif
