/* Reports about the models; see report.h. */
#include "report.h"

#include "config/shards.h"

#include <stdio.h>
#include <string.h>

static void print_model(const struct bag_source *source)
{
    const struct bag_model_config *model = source->model;
    const struct bag_table *table = &source->table;
    const struct bag_part *part = &model->part;
    printf("%s version %s: ", model->name, model->version);
    if (bag_source_is_collection(source)) {
        const char *before = "; ";
        printf("%zu feature%s", source->num_features, source->num_features == 1 ? "" : "s");
        for (size_t i = 0; i < model->num_features; i++) {
            const struct bag_feature_config *feature = &model->features[i];
            if (feature->version)
                printf("%s%s pins %s version %llu", before, feature->name, feature->model,
                       (unsigned long long)feature->version);
            before = feature->version ? ", " : before;
        }
        putchar('\n');
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
    fputs(table->num_rows == 0 ? "; it has no row that a request could ask for" : "", stdout);
    putchar('\n');
}

/* Prints the models that will be served when their shards have answered. Returns their number. */
static size_t print_models_of_shards(const struct bag_config *config, const struct bag_check *check)
{
    size_t count = 0;
    for (size_t i = 0; i < config->num_models; i++) {
        const struct bag_model_config *model = &config->models[i];
        struct bag_shard_address address;
        struct bag_problem ignored;
        size_t shards = 0;
        if (!bag_config_uses_shards(config, model) ||
            bag_check_find(check, model->name, model->version))
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

void bag_report_checked(const struct bag_reconciler *reconciler, const struct bag_check *check)
{
    size_t cursor = 0;
    for (const struct bag_source *source; (source = bag_reconciler_next(reconciler, &cursor));) {
        if (!bag_check_find(check, source->model->name, source->model->version))
            print_model(source);
    }
    size_t of_shards = print_models_of_shards(reconciler->models.config, check);
    size_t count = reconciler->first_models + of_shards;
    fflush(stdout);
    for (size_t i = 0; i < check->count; i++)
        fprintf(stderr, "%s version %s: cannot be served: %s\n", check->faults[i].name,
                check->faults[i].version, check->faults[i].reason);
    if (check->count == 0)
        printf("The configuration is valid: %zu model%s, %zu bytes of tables%s.\n", count,
               count == 1 ? "" : "s", reconciler->first_bytes,
               of_shards ? "; shards were not asked" : "");
}
