/* The grammar of JSON, checked byte by byte; optionally copied on the way, leaving parts out.
 *
 * Private to proto/json*.c. Must not know: cJSON, what an JSON header means beyond its key names.
 */
#ifndef BAG_JSON_SCAN_H
#define BAG_JSON_SCAN_H

#include "json.h"

/* Where in an JSON header a value stands; what is copied and what is cut follows from it. */
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
    struct bag_arena *arena; /* for `data`; may be NULL where no place is an JSON header's */
    struct bag_json_span *data;
    size_t num_data, max_data;
    struct bag_json_span id;
    const char *wrong; /* what is wrong at `at`; NULL while all is well */
};

/* Checks the one value that the text must hold. `copy` has room for bag_json_copy_bytes. Returns
 * false with scan->wrong and scan->at set. */
bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place);

/* Room that a copy of `text_bytes` needs, whatever it holds. */
size_t bag_json_copy_bytes(size_t text_bytes);

/* The line and column of a byte of the text. */
struct bag_json_position bag_json_position_of(const char *text, const char *at);

/* ---- between json_scan.c and json_scan_text.c ------------------------------------------------ */

/* Notes what is wrong, keeping the first finding; returns false. */
bool bag_json_fail(struct bag_json_scan *scan, const char *wrong);

/* Copies bytes, where the scan is copying. */
void bag_json_put(struct bag_json_scan *scan, const char *bytes, size_t count);

bool bag_json_next_is(const struct bag_json_scan *scan, char byte);

/* Takes `byte`, or fails with `wrong`. */
bool bag_json_expect(struct bag_json_scan *scan, char byte, const char *wrong);

/* Take one string, number or word. */
bool bag_json_scan_string(struct bag_json_scan *scan);
bool bag_json_scan_number(struct bag_json_scan *scan);
bool bag_json_scan_word(struct bag_json_scan *scan, const char *word);

/* Whether the key between its quotes is `name`, escapes included. */
bool bag_json_key_is(const char *key, const char *end, const char *name);

#endif
