/* libFuzzer: the index of keys. Two bytes choose the number of lines, and the next byte the seed.
 * The rest is runs of 10 bytes: a key, the distance to the next key (a power of two), and the
 * number of keys in steps of 16. There are up to 256 keys, or 2048 for one seed in 32, which takes
 * 2 ms. The index must find every key that was added, with its row, must report duplicates, and
 * must find nothing else. The same holds after keys were removed and put back with other rows. */
#include "fuzz.h"

#include "kernels/keys.h"

#define MAX_KEYS ((size_t)2048)
#define RUN      10

static uint64_t keys[MAX_KEYS];
static struct bag_keys_entry sorted[MAX_KEYS], crowded[MAX_KEYS];

static size_t read_runs(const uint8_t *bytes, size_t count, size_t max_keys)
{
    size_t num_keys = 0;
    for (; count >= RUN; bytes += RUN, count -= RUN) {
        uint64_t key;
        memcpy(&key, bytes, sizeof key);
        for (size_t i = 0; i < 1 + bytes[9] * (size_t)16 && num_keys < max_keys; i++)
            keys[num_keys++] = key + ((uint64_t)i << bytes[8] % 64);
    }
    return num_keys;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = ((const struct bag_keys_entry *)a)->key;
    uint64_t y = ((const struct bag_keys_entry *)b)->key;
    return (x > y) - (x < y);
}

static bool in_table(uint64_t key, size_t num_keys)
{
    struct bag_keys_entry wanted = {key, 0};
    return bsearch(&wanted, sorted, num_keys, sizeof *sorted, compare) != NULL;
}

/* The keys, of which every third may be gone, and the next number after each. */
static void check_keys(const struct bag_keys *index, size_t num_keys, bool third_gone)
{
    static int64_t rows[MAX_KEYS];
    struct bag_ids ids = {keys, num_keys, true};
    size_t missing = bag_keys_find(index, &ids, rows);
    require(missing == (third_gone ? (num_keys + 2) / 3 : 0));
    for (size_t i = 0; i < num_keys; i++) {
        bool gone = third_gone && i % 3 == 0;
        require(rows[i] == (gone ? -1 : (int64_t)i));
        require(bag_keys_find_one(index, keys[i]) == rows[i]);
        if (!in_table(keys[i] + 1, num_keys))
            require(bag_keys_find_one(index, keys[i] + 1) == -1);
    }
}

/* Full as it is, the index may not take all of them back. */
static void remove_and_put_back(const struct bag_keys *index, size_t num_keys)
{
    int64_t other;
    for (size_t i = 0; i < num_keys; i += 3)
        require(bag_keys_remove(index, keys[i]) == (int64_t)i);
    check_keys(index, num_keys, true);
    for (size_t i = 0; i < num_keys; i += 3) {
        enum bag_keys_outcome outcome = bag_keys_insert(index, keys[i], (int64_t)i, &other);
        require(outcome != BAG_KEYS_DUPLICATE);
        require(bag_keys_find_one(index, keys[i]) == (outcome == BAG_KEYS_ADDED ? (int64_t)i : -1));
        if (outcome == BAG_KEYS_CROWDED)
            return;
    }
    check_keys(index, num_keys, false);
}

static enum bag_keys_outcome build(const struct bag_keys *index, size_t num_keys)
{
    size_t num_crowded, stopped;
    int64_t other;
    if (!bag_keys_fill(index, keys, num_keys, 0, crowded, &num_crowded))
        return BAG_KEYS_DUPLICATE;
    return bag_keys_insert_all(index, crowded, num_crowded, &stopped, &other);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count < 3)
        return 0;
    size_t num_keys = read_runs(bytes + 3, count - 3, bytes[2] % 32 ? 256 : MAX_KEYS),
           most = bytes[0] | (size_t)bytes[1] << 8;
    /* Sort the keys; whether one is there twice. */
    bool twice = false;
    for (size_t i = 0; i < num_keys; i++)
        sorted[i] = (struct bag_keys_entry){keys[i], (int64_t)i};
    qsort(sorted, num_keys, sizeof *sorted, compare);
    for (size_t i = 1; i < num_keys; i++)
        twice |= sorted[i].key == sorted[i - 1].key;
    struct bag_keys index = bag_keys_for(num_keys > most ? num_keys : most);
    size_t line_bytes = index.num_lines * sizeof *index.lines;
    uint64_t seed = (1 + bytes[2]) * UINT64_C(0x9e3779b97f4a7c15);
    index.seed = (struct bag_keys_seed){{seed, seed ^ seed >> 32, seed << 7, ~seed}};
    index.lines = aligned_alloc(64, line_bytes);
    require(index.lines != NULL);
    memset(index.lines, 0, line_bytes);
    enum bag_keys_outcome outcome = build(&index, num_keys);
    if (outcome != BAG_KEYS_CROWDED)
        require((outcome == BAG_KEYS_DUPLICATE) == twice);
    if (outcome == BAG_KEYS_ADDED) {
        check_keys(&index, num_keys, false);
        remove_and_put_back(&index, num_keys);
    }
    free(index.lines);
    return 0;
}
