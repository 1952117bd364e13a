/* The state of parsing a V2 JSON header. Private to proto/v2_*.c. */
#pragma once

#include "json.h"
#include "v2_request.h"

/* The largest integer that is unambiguous in cJSON's doubles: 2^53 may have been written as 2^53 +
 * 1. */
#define BAG_V2_LARGEST_EXACT 9007199254740991.0

struct bag_v2_reader {
    const char *body;
    size_t body_bytes;
    size_t next_binary; /* position of the next binary tensor in the body; at first the length of
                           the JSON header */
    struct bag_arena *arena;
    struct bag_json_header header;
    struct bag_v2_request *request;
    struct bag_problem *problem;
};

/* Parses the JSON header, which ends at reader->next_binary, and begins the request: sets its id,
 * and zeros. Returns false and sets the problem if the header is no object. On success the caller
 * frees reader->header.tree. */
bool bag_v2_read_header(struct bag_v2_reader *reader, const struct bag_json_limits *limits);

/* Fills the inputs of reader->request. Returns false and sets the problem if they are wrong. */
bool bag_v2_read_inputs(struct bag_v2_reader *reader);

/* Reads an integer from `low` to `high`. Returns false if the item is anything else. */
bool bag_v2_integer(const cJSON *item, double low, double high, int64_t *value);

/* Returns member `key` of an object, or NULL if the object or the member is absent or null. */
const cJSON *bag_v2_member(const cJSON *object, const char *key);

/* Finds "parameters" of a request or a tensor: NULL if it has none. Returns false and sets *problem
 * if they are neither an object nor null. */
bool bag_v2_read_parameters(const cJSON *object, const cJSON **parameters,
                            struct bag_problem *problem);

/* Returns the tensor with this name in a list of "inputs" or "outputs", or NULL if there is
 * none. */
const cJSON *bag_v2_find_tensor(const cJSON *list, const char *name);

/* Reads a part such as {"by": "rows", "index": 0, "of": 3}. Returns false if it is invalid. */
bool bag_v2_read_part(const cJSON *object, struct bag_part *part);

/* Reads the member "digest" of such an object. Returns false if it is not 16 hexadecimal digits in
 * lower case. If it is absent *digest is 0. */
bool bag_v2_read_digest(const cJSON *object, uint64_t *digest);

/* Allocates one element of `bytes` for each tensor of the list under `key`, and sets *count to
 * their number. Returns NULL and sets the problem if `list` is not a list or there is not enough
 * memory. */
void *bag_v2_elements(struct bag_v2_reader *reader, const char *key, const cJSON *list,
                      size_t bytes, size_t *count);

/* Copies a string into the arena, because the tree is freed when decoding ends. */
bool bag_v2_copy_text(struct bag_v2_reader *reader, const char *string, struct bag_text *text);

/* Reads the "name" of an element of "inputs" or "outputs". */
bool bag_v2_read_name(struct bag_v2_reader *reader, const cJSON *item, struct bag_text *name);

/* Return false and set the problem: the first one always, to NO_MEMORY; the second one if a
 * tensor's parameters name a region of shared memory. */
bool bag_v2_reject_memory(struct bag_problem *problem);
bool bag_v2_check_no_shared_memory(const cJSON *parameters, struct bag_problem *problem);

/* Returns false and sets the problem if a name occurs twice among `count` texts, which are `stride`
 * bytes apart. `what` is "input" or "output". */
bool bag_v2_check_unique(struct bag_v2_reader *reader, const struct bag_text *first, size_t stride,
                         size_t count, const char *what);
