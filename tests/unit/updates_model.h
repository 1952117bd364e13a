/* A simple model of the rows of a table after updates, and functions that load such a table and
 * read it back. */
#pragma once

#include "memory_fixture.h"
#include "testing.h"

#define IDS     24
#define COLUMNS 3

/* The rows of a table. */
struct state {
    bool there[IDS];
    float rows[IDS][COLUMNS];
};

struct batch {
    bool deletes;
    size_t count;
    uint64_t ids[IDS];
    float rows[IDS][COLUMNS];
};

static uint64_t key_of(size_t id)
{
    return (uint64_t)id * UINT64_C(0x123456789abcdef1) - 5;
}

static void apply_to_state(struct state *state, const struct batch *batch)
{
    for (size_t i = 0; i < batch->count; i++) {
        state->there[batch->ids[i]] = !batch->deletes;
        if (!batch->deletes)
            memcpy(state->rows[batch->ids[i]], batch->rows[i], sizeof batch->rows[i]);
    }
}

/* Adds what follows a batch to it: of an id that is there twice the last place counts. */
static void merge(struct batch *merged, const struct batch *next)
{
    for (size_t i = 0; i < next->count; i++) {
        size_t at = 0;
        while (at < merged->count && merged->ids[at] != next->ids[i])
            at++;
        merged->count += at == merged->count;
        merged->ids[at] = next->ids[i];
        memcpy(merged->rows[at], next->rows[i], sizeof merged->rows[at]);
    }
}

static bool same_state(const struct state *a, const struct state *b)
{
    for (size_t i = 0; i < IDS; i++) {
        if (a->there[i] != b->there[i] ||
            (a->there[i] && memcmp(a->rows[i], b->rows[i], sizeof a->rows[i]) != 0))
            return false;
    }
    return true;
}

/* ---- tables ---------------------------------------------------------------------------------- */

struct key_list {
    uint64_t keys[IDS];
    size_t count;
};

static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    const struct key_list *list = context;
    (void)problem;
    (void)rows;
    memcpy(keys, list->keys + first, count * sizeof *keys);
    return true;
}

/* A loaded table, as the snapshot of a state. */
static void load(bool keyed, const struct state *state, struct bag_table_memory *memory)
{
    struct bag_problem problem;
    struct key_list list = {.count = 0};
    size_t rows = 0;
    for (size_t i = 0; i < IDS; i++)
        rows += !keyed || state->there[i];
    int64_t shape[2] = {(int64_t)rows + (keyed ? IDS : 0), COLUMNS};
    assert_true(create_table(BAG_F32, 2, shape, memory, &problem));
    for (size_t i = 0, row = 0; i < IDS; i++) {
        if (keyed && !state->there[i])
            continue;
        memcpy((float *)memory->mapping + row * COLUMNS, state->rows[i], sizeof state->rows[i]);
        list.keys[list.count++] = key_of(i);
        row++;
    }
    if (!keyed)
        return;
    struct bag_keys_source source = {read_keys, &list, rows, false, IDS, false};
    memory->spare_rows = IDS;
    memory->shape[0] = memory->table.num_rows = (int64_t)rows;
    memory->keys_dtype = BAG_U64;
    assert_true(bag_keys_index_build(&source, &(struct bag_load_options){.threads = 1},
                                     &memory->index, &problem));
}

static struct state read_table(bool keyed, const struct bag_table_memory *memory)
{
    struct state state = {.there = {false}};
    const float *rows = memory->table.rows;
    for (size_t i = 0; i < IDS; i++) {
        int64_t row = keyed ? bag_keys_find_one(&memory->index.keys, key_of(i)) : (int64_t)i;
        state.there[i] = row >= 0;
        if (row >= 0)
            memcpy(state.rows[i], rows + row * COLUMNS, sizeof state.rows[i]);
    }
    return state;
}
