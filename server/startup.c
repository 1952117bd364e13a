/* From configured models to loaded ones; see startup.h. */
#include "startup.h"

#include "log.h"
#include "table/demo.h"
#include "table/progress.h"
#include "table/row_format.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool is_demo(const struct bag_model_config *model)
{
    return strncmp(model->path, BAG_DEMO_PREFIX, strlen(BAG_DEMO_PREFIX)) == 0;
}

/* The model's rules, complete for a table of that shape. */
static bool complete_rules(const struct bag_model_config *model, const struct bag_table *table,
                           struct bag_rules *rules, struct bag_problem *problem)
{
    struct bag_fault fault;
    *rules = model->rules;
    rules->output_dtype =
        model->output_datatype == BAG_DTYPE_COUNT ? table->dtype : model->output_datatype;
    if (bag_rules_check(table, rules, &fault) == BAG_STATUS_OK)
        return true;
    bag_problem_from_fault(problem, &fault);
    bag_problem_prefix(problem, "model '%s' (%s)", model->name, model->path);
    return false;
}

static bool take_format(const struct bag_model_config *model, struct bag_table *table,
                        uint32_t rank, struct bag_problem *problem)
{
    if (bag_table_take_format(table, rank, model->row_format, problem))
        return true;
    bag_problem_prefix(problem, "model '%s' (%s)", model->name, model->path);
    return false;
}

/* ---- looking --------------------------------------------------------------------------------- */

static bool open_model(struct bag_startup *startup, size_t i, struct bag_problem *problem)
{
    const struct bag_model_config *model = &startup->config->models[i];
    struct bag_table_file *file = &startup->files[i];
    struct bag_rules rules;
    if (is_demo(model))
        return true;
    if (!bag_table_file_open(model->path, model->datatype, file, problem))
        return false;
    struct bag_table table = {.dtype = file->npy.dtype,
                              .num_rows = file->npy.shape[0],
                              .row_elements = file->npy.row_elements};
    if (!take_format(model, &table, file->npy.rank, problem) ||
        !complete_rules(model, &table, &rules, problem))
        return false;
    if (__builtin_add_overflow(startup->total_bytes, bag_table_file_bytes(file),
                               &startup->total_bytes))
        return bag_problem_set(problem, 500, "the tables are larger than any memory");
    return true;
}

bool bag_startup_open(struct bag_startup *startup, const struct bag_config *config,
                      struct bag_problem *problem)
{
    startup->config = config;
    startup->total_bytes = 0;
    startup->files = calloc(config->num_models + 1, sizeof *startup->files);
    if (!startup->files)
        return bag_problem_set(problem, 500, "not enough memory");
    for (size_t i = 0; i < config->num_models; i++) {
        if (!open_model(startup, i, problem))
            return false;
    }
    return bag_memory_check(startup->total_bytes, problem);
}

void bag_startup_close(struct bag_startup *startup)
{
    free(startup->files);
    startup->files = NULL;
}

/* ---- loading --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void print_progress(void *context, const char *text)
{
    const struct bag_progress *progress = context;
    if (!progress->terminal)
        bag_log(BAG_LOG_LEVEL_INFO, "loading", BAG_LOG_TEXT("message", text));
    else if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody watches */
}

static void on_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    (void)total_bytes;
    bag_progress_update(context, done_bytes, now_ns());
}

static bool load_demo(const char *name, struct bag_table_memory *memory,
                      struct bag_problem *problem)
{
#define BAG_X(demo, maker)       \
    if (strcmp(name, demo) == 0) \
        return maker(memory, problem);
    BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    return bag_problem_set(problem, 500, "there is no demo table '%s'", name);
}

static bool load_file(const char *name, const struct bag_table_file *file,
                      struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_progress progress;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    bag_progress_init(&progress, print_progress, &progress, isatty(STDERR_FILENO));
    bag_progress_start(&progress, name, bag_table_file_bytes(file), now_ns());
    bool sound = bag_table_load(file, processors > 0 ? (unsigned)processors : 1, on_progress,
                                &progress, memory, problem);
    if (sound)
        bag_progress_finish(&progress, now_ns());
    else
        bag_progress_abandon(&progress);
    return sound;
}

static bool load_model(struct bag_startup *startup, size_t i, struct bag_registry *registry,
                       struct bag_problem *problem)
{
    const struct bag_model_config *model = &startup->config->models[i];
    struct bag_table_memory memory;
    struct bag_rules rules;
    bool loaded = is_demo(model)
                      ? load_demo(model->path + strlen(BAG_DEMO_PREFIX), &memory, problem)
                      : load_file(model->name, &startup->files[i], &memory, problem);
    if (!loaded)
        return false;
    bool sound = take_format(model, &memory.table, memory.rank, problem) &&
                 complete_rules(model, &memory.table, &rules, problem);
    if (memory.table.row_format != BAG_ROWS_PLAIN)
        memory.shape[1] = (int64_t)memory.table.row_elements;
    if (sound && !bag_registry_add(registry, model->name, model->version, &rules, &memory))
        sound = bag_problem_set(problem, 500, "model '%s': not enough memory", model->name);
    if (!sound)
        bag_table_unload(&memory);
    return sound;
}

bool bag_startup_load(struct bag_startup *startup, struct bag_registry *registry,
                      struct bag_problem *problem)
{
    for (size_t i = 0; i < startup->config->num_models; i++) {
        if (!load_model(startup, i, registry, problem))
            return false;
    }
    return true;
}
