/* The index of a keyed table: memory for kernels/keys.h, filled by several threads.
 *
 * Keys are read in pieces and go straight to their places: beside the index itself a piece for each
 * thread is held, and the eighth of the keys that has no room at first, 2 bytes for each key.
 * Called from any one thread at a time; the builders that it starts are joined before it returns.
 */
#ifndef BAG_KEYS_INDEX_H
#define BAG_KEYS_INDEX_H

#include "kernels/keys.h"
#include "proto/problem.h"

/* Told about progress from the loading thread: `done` of `total` bytes of this table so far. The
 * last call for a table that was loaded says that all are. */
typedef void bag_load_progress(void *context, size_t done_bytes, size_t total_bytes);

struct bag_keys_index {
    struct bag_keys keys;
    size_t mapping_bytes; /* of the lines, which are owned */
};

/* Where the keys come from. */
struct bag_keys_source {
    /* Puts `count` keys, those of rows first, first + 1, ..., into `keys`. Called by several
     * threads at once. */
    bool (*read)(void *context, size_t first, size_t count, uint64_t *keys,
                 struct bag_problem *problem);
    void *context;
    size_t num_keys;
    bool is_signed;    /* how messages show a key */
    size_t spare_keys; /* that may be added later */
};

/* Bytes of memory that an index of so many keys takes: at most 10 a key, and 1 KiB. */
size_t bag_keys_index_bytes(size_t num_keys);

/* Builds the index with `threads` builders (at least 1). Rejects a key that is duplicated, with the
 * rows of the first such pair. On failure nothing stays allocated. `progress` may be NULL; its
 * bytes are those of the keys, 8 each. */
bool bag_keys_index_build(const struct bag_keys_source *source, unsigned threads,
                          bag_load_progress *progress, void *context, struct bag_keys_index *index,
                          struct bag_problem *problem);

/* Gives the memory back; an index of zeros is allowed. */
void bag_keys_index_free(struct bag_keys_index *index);

#endif
