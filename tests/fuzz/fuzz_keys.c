/* libFuzzer: the index of keys. The first byte chooses the number of lines, the next the seed, the
 * rest is keys of 8 bytes. Every key that was added must be found with its row, a duplicate must be
 * one, and nothing else may be found. */
#include "kernels/keys.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define MAX_KEYS 256

static void require(bool promise)
{
    if (!promise)
        abort();
}

static uint64_t key_at(const uint8_t *keys, size_t i)
{
    uint64_t key;
    memcpy(&key, keys + 8 * i, 8);
    return key;
}

/* The first row among `count` that has the key, or -1. */
static int64_t search(const uint8_t *keys, size_t count, uint64_t key)
{
    for (size_t i = 0; i < count; i++) {
        if (key_at(keys, i) == key)
            return (int64_t)i;
    }
    return -1;
}

static void check_keys(const struct bag_keys *index, const uint8_t *keys, size_t added)
{
    static int64_t rows[MAX_KEYS];
    struct bag_ids ids = {keys, added, true};
    require(bag_keys_find(index, &ids, NULL, rows) == 0);
    for (size_t i = 0; i < added; i++) {
        uint64_t other = key_at(keys, i) + 1;
        require(rows[i] == (int64_t)i);
        require(bag_keys_find_one(index, other) == search(keys, added, other));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 2)
        return 0;
    size_t num_keys = (count - 2) / 8, stopped = 0;
    if (num_keys > MAX_KEYS)
        num_keys = MAX_KEYS;
    struct bag_keys index = {.num_lines = 1 + bytes[0], .seed = {{bytes[1], bytes[1], 1, 2}}};
    index.lines = aligned_alloc(64, index.num_lines * sizeof *index.lines);
    memset(index.lines, 0, index.num_lines * sizeof *index.lines);
    const uint8_t *keys = bytes + 2;
    int64_t other = -1;
    enum bag_keys_outcome outcome = bag_keys_add(&index, keys, num_keys, 0, &stopped, &other);
    size_t added = outcome == BAG_KEYS_ADDED ? num_keys : stopped;
    if (outcome == BAG_KEYS_DUPLICATE)
        require(other >= 0 && other == search(keys, added, key_at(keys, stopped)));
    if (outcome == BAG_KEYS_CROWDED)
        require(added >= index.num_lines * BAG_KEYS_PER_LINE);
    check_keys(&index, keys, added);
    free(index.lines);
    return 0;
}
