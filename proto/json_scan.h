/* The grammar of JSON, checked byte by byte; optionally copied on the way, leaving parts out.
 *
 * Private to proto/json*.c. Of a request's JSON header only the names of keys are known here. */
#ifndef BAG_JSON_SCAN_H
#define BAG_JSON_SCAN_H

#include "json.h"

/* Where in a JSON header a value stands; what is copied and what is cut follows from it. */
enum bag_json_place {
    BAG_JSON_PLAIN,   /* checked and copied */
    BAG_JSON_DROPPED, /* checked; the copy gets null */
    BAG_JSON_ROOT,    /* the JSON header's object */
    BAG_JSON_ID,      /* its "id" */
    BAG_JSON_INPUTS,  /* its "inputs" */
    BAG_JSON_INPUT,   /* an element of them */
    BAG_JSON_DATA     /* an element's "data": an array is cut out */
};

struct bag_json_scan {
    const char *text, *at, *end;
    char *copy;              /* where the next byte of the copy goes */
    bool copying;            /* false inside a dropped value */
    unsigned depth;          /* of open containers */
    struct bag_arena *arena; /* for `data`; may be NULL where no place is a JSON header's */
    struct bag_text *data;
    size_t num_data, max_data;
    struct bag_text id;
    const char *wrong; /* what is wrong at `at`; NULL while all is well */
};

/* Checks the one value that the text must hold. `copy` has room for bag_json_copy_bytes. Returns
 * false with scan->wrong and scan->at set. */
bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place);

/* Room that a copy of `text_bytes` needs, whatever it holds. */
size_t bag_json_copy_bytes(size_t text_bytes);

#endif
