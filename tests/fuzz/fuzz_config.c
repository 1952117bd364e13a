/* libFuzzer: configuration files. The first byte says whether it is the whole configuration or a
 * model's own; either is applied or rejected with a sentence, and nothing is left behind. */
#include "fuzz.h"

#include "config/config.h"

static bool apply(struct bag_config *config, bool model, const char *text, size_t text_bytes,
                  struct bag_problem *problem)
{
    if (!model)
        return bag_config_apply_file(config, "f.json", text, text_bytes, problem) &&
               bag_config_validate(config, problem);
    return bag_config_add_model(config, "m", "m.npy", "1", problem) &&
           bag_config_apply_model_file(config, 0, "config.json", text, text_bytes, false, problem);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    struct bag_config config;
    if (count == 0)
        return 0;
    char *text = malloc(count > 1 ? count - 1 : 1); /* exact: one byte beyond is found */
    memcpy(text, bytes + 1, count - 1);
    bag_config_init(&config);
    if (!apply(&config, bytes[0] & 1, text, count - 1, &problem)) {
        /* A command line and a file without models have nothing to serve, which is wrong usage. */
        bool has_nothing = problem.kind == BAG_ERROR_USAGE && config.num_models == 0;
        require((problem.kind == BAG_ERROR_CONFIGURATION || has_nothing) && problem.text[0]);
    }
    for (size_t i = 0; i < config.num_models; i++)
        require(bag_model_name_valid(config.models[i].name) && config.models[i].path[0]);
    bag_config_free(&config);
    free(text);
    return 0;
}
