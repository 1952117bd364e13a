/* What is told of the models; see report.h. */
#include "report.h"

#include "config/shards.h"
#include "server/system/log.h"

#include <stdio.h>
#include <string.h>

/* The models that answer, each once, as many as fit. */
static void list_names(struct bag_reader *reader, char *text, size_t room)
{
    struct bag_snapshot *snapshot = bag_snapshot_acquire(reader);
    const char *last = "";
    size_t used = 0;
    for (size_t i = 0; i < snapshot->count; i++) {
        const struct bag_model *model = snapshot->models[i]; /* by name */
        if (model->state != BAG_MODEL_READY || strcmp(model->name, last) == 0)
            continue;
        bool fits = used + strlen(model->name) + sizeof ", , ..." <= room;
        used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "",
                                 fits ? model->name : "...");
        last = model->name;
        if (!fits)
            break;
    }
    bag_snapshot_release(reader, snapshot);
}

void bag_report_ready(const struct bag_reconciler *reconciler, struct bag_reader *reader,
                      const char *url)
{
    char names[400] = "";
    list_names(reader, names, sizeof names);
    bag_log(BAG_LOG_LEVEL_INFO, "ready", BAG_LOG_NUMBER("models", reconciler->first_models),
            BAG_LOG_NUMBER("bytes", reconciler->first_bytes), BAG_LOG_TEXT("url", url),
            BAG_LOG_TEXT("names", names));
}

static void print_model(const struct bag_source *source)
{
    const struct bag_model_config *model = source->model;
    const struct bag_table *table = &source->table;
    const struct bag_part *part = &model->part;
    printf("%s version %s: ", model->name, model->version);
    if (bag_source_is_collection(source)) {
        printf("%zu feature%s\n", source->num_features, source->num_features == 1 ? "" : "s");
        return;
    }
    printf("%lld rows of %zu elements, %s", (long long)table->num_rows, table->row_elements,
           bag_dtypes[table->dtype].name);
    if (table->row_format != BAG_ROWS_PLAIN)
        printf(" as %s rows", bag_row_format_names[table->row_format]);
    fputs(bag_source_is_keyed(source) ? ", with keys" : "", stdout);
    if (part->of)
        printf("; of it part %u of %u by %s, %zu bytes", part->index, part->of,
               bag_part_way_names[part->by], bag_source_table_bytes(source));
    putchar('\n');
}

/* Whether a model, or a table of a collection, is on shards, which are not asked. */
static bool is_of_shards(const struct bag_config *config, const struct bag_model_config *model)
{
    bool found = bag_model_is_front(model);
    for (size_t i = 0; i < model->num_features && !found; i++) {
        const struct bag_model_config *table =
            bag_config_find_model(config, model->features[i].model);
        found = table && bag_model_is_front(table);
    }
    return found;
}

/* What is served as soon as shards have answered; returns how many models that are. */
static size_t print_models_of_shards(const struct bag_config *config)
{
    size_t count = 0;
    for (size_t i = 0; i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        struct bag_shard_address address;
        struct bag_problem ignored;
        size_t shards = 0;
        if (!is_of_shards(config, model))
            continue;
        count++;
        for (const char *at = model->path; at && bag_shards_next(&at, &address, &ignored);)
            shards++;
        if (shards)
            printf("%s: the table of %zu shard%s\n", model->name, shards, shards == 1 ? "" : "s");
        else
            printf("%s: %zu feature%s, of shards, too\n", model->name, model->num_features,
                   model->num_features == 1 ? "" : "s");
    }
    return count;
}

void bag_report_checked(const struct bag_reconciler *reconciler)
{
    size_t cursor = 0;
    for (const struct bag_source *source; (source = bag_reconciler_next(reconciler, &cursor));)
        print_model(source);
    size_t of_shards = print_models_of_shards(reconciler->config);
    size_t count = reconciler->first_models + of_shards;
    printf("The configuration is valid: %zu model%s, %zu bytes of tables%s.\n", count,
           count == 1 ? "" : "s", reconciler->first_bytes,
           of_shards ? "; shards were not asked" : "");
}
