/* Models of the table at `path`, and parts of them, from keys of a configuration. */
#pragma once

#include "server/tables/source.h"
#include "table_fixture.h"

static char keys_path[96];

static inline int set_up_both(void **state)
{
    int code = set_up(state);
    snprintf(keys_path, sizeof keys_path, "%s/keys.npy", directory);
    return code;
}

static inline int tear_down_both(void **state)
{
    unlink(keys_path);
    return tear_down(state);
}

/* Settings are name, value, ..., NULL. */
static inline struct bag_source *make_source(const char *const *settings)
{
    struct bag_config config;
    struct bag_problem problem;
    assert_true(bag_config_init(&config));
    assert_true(bag_config_add_model(&config, "t", path, "1", &problem));
    for (; *settings; settings += 2) {
        if (!bag_config_set_model_key(&config, 0, settings[0], settings[1], &problem))
            fail_msg("%s", problem.text);
    }
    struct bag_source *source = bag_source_make(&config.models[0], true);
    assert_non_null(source);
    bag_config_free(&config);
    return source;
}

static inline struct bag_stored_table *load_source(struct bag_source *source)
{
    struct bag_problem problem;
    const struct bag_load_options options = {.threads = 3};
    struct bag_stored_table *stored = NULL;
    if (!bag_source_open_table(source, &problem) ||
        !(stored = bag_source_load(source, &options, &problem)))
        fail_msg("%s", problem.text);
    return stored;
}

static inline const char *row_of(const struct bag_table_memory *memory, int64_t row)
{
    return (const char *)memory->table.rows + (size_t)row * bag_row_bytes(&memory->table);
}

/* Writes keys to `keys_path`, as many as there are rows. */
static inline void write_keys(const int64_t *keys, size_t count)
{
    char own[96], shape[32];
    memcpy(own, path, sizeof own);
    memcpy(path, keys_path, sizeof own);
    snprintf(shape, sizeof shape, "(%zu,)", count);
    write_table("<i8", "False", shape, keys, count * sizeof *keys);
    memcpy(path, own, sizeof own);
}
