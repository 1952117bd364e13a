/* A V2 JSON header while it is read. Private to proto/v2_*.c. */
#ifndef BAG_V2_READER_H
#define BAG_V2_READER_H

#include "json.h"
#include "v2_request.h"

/* The largest integer that no other number of a text becomes in cJSON's doubles: of 2^53 one cannot
 * know whether it was 2^53 + 1. */
#define BAG_V2_LARGEST_EXACT 9007199254740991.0

struct bag_v2_reader {
    const char *body;
    size_t body_bytes;
    size_t next_binary; /* where the next binary tensor starts in the body */
    struct bag_arena *arena;
    struct bag_json_header header;
    struct bag_v2_request *request;
    struct bag_problem *problem;
};

/* Fills the inputs of reader->request; false with the problem set. */
bool bag_v2_read_inputs(struct bag_v2_reader *reader);

/* An integral number from `low` to `high`; false for anything else. */
bool bag_v2_integer(const cJSON *item, double low, double high, int64_t *value);

/* Member `key` of an object; NULL where either is absent or null. */
const cJSON *bag_v2_member(const cJSON *object, const char *key);

/* Finds "parameters" of a request or a tensor: NULL if it has none. Returns false and sets *problem
 * if they are neither an object nor null. */
bool bag_v2_read_parameters(const cJSON *object, const cJSON **parameters,
                            struct bag_problem *problem);

/* The tensor of that name in a list of "inputs" or "outputs"; NULL where there is none. */
const cJSON *bag_v2_find_tensor(const cJSON *list, const char *name);

/* {"by": "rows", "index": 0, "of": 3}; false where it is no part that can be. */
bool bag_v2_read_part(const cJSON *object, struct bag_part *part);

/* Reads the member "digest" of such an object. Returns false if it is not 16 hexadecimal digits in
 * lower case. If it is absent *digest is 0. */
bool bag_v2_read_digest(const cJSON *object, uint64_t *digest);

/* Elements of `bytes` each, one for each tensor of the list under `key`; *count says how many. NULL
 * with the problem set where it is no list. */
void *bag_v2_elements(struct bag_v2_reader *reader, const char *key, const cJSON *list,
                      size_t bytes, size_t *count);

/* Copies a string into the arena: the tree is freed when decoding ends. */
bool bag_v2_copy_text(struct bag_v2_reader *reader, const char *string, struct bag_text *text);

/* The "name" of an element of "inputs" or "outputs". */
bool bag_v2_read_name(struct bag_v2_reader *reader, const cJSON *item, struct bag_text *name);

/* False with the problem set: always, of kind NO_MEMORY; or where a tensor's parameters name a
 * region of shared memory. */
bool bag_v2_reject_memory(struct bag_problem *problem);
bool bag_v2_check_no_shared_memory(const cJSON *parameters, struct bag_problem *problem);

/* False with the problem set where a name is duplicated among `count` texts, `stride` bytes apart.
 * `what` is "input" or "output". */
bool bag_v2_check_unique(struct bag_v2_reader *reader, const struct bag_text *first, size_t stride,
                         size_t count, const char *what);

#endif
