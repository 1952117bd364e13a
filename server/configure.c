/* Where the configuration comes from (files, environment, flags, the demo), and the instruction set
 * of the kernels; see commands.h. */
#include "commands.h"
#include "kernels/isa.h"
#include "loops.h"
#include "server/system/files.h"
#include "server/tables/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Configuration files are read up to this. */
#define CONFIG_FILE_BYTES (16u << 20)

/* ---- files and flags ------------------------------------------------------------------------- */

static bool apply_file(struct bag_config *config, const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_file(config, path, text, bytes, problem);
    if (!text)
        bag_problem_prefix(problem, "configuration file");
    free(text);
    return ok;
}

bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem)
{
    const char *path = bag_config_find_path(argc, argv, environ);
    if (!bag_config_init(config))
        return bag_problem_no_memory(problem);
    if ((path && !apply_file(config, path, problem)) ||
        !bag_config_apply_environment(config, environ, problem)) {
        if (problem->kind == BAG_ERROR_USAGE)
            problem->kind = BAG_ERROR_CONFIGURATION;
        return false;
    }
    return bag_config_apply_flags(config, argc, argv, problem);
}

bool bag_arguments_have(int argc, char *argv[], const char *flag)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return true;
    }
    return false;
}

bool bag_arguments_ask_help(int argc, char *argv[])
{
    return bag_arguments_have(argc, argv, "--help") || bag_arguments_have(argc, argv, "-h");
}

/* ---- the demo -------------------------------------------------------------------------------- */

static bool add_demo(struct bag_config *config, struct bag_problem *problem)
{
#define BAG_X(name, ...)                                                         \
    if (!bag_config_add_model(config, name, BAG_DEMO_PREFIX name, "1", problem)) \
        return false;
    BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    return bag_config_add_model(config, BAG_DEMO_COLLECTION, NULL, "1", problem) &&
           bag_config_apply_model_file(config, config->num_models - 1, "--demo", BAG_DEMO_FEATURES,
                                       strlen(BAG_DEMO_FEATURES), false, problem);
}

bool bag_configure_serve(struct bag_config *config, int argc, char *argv[],
                         struct bag_problem *problem)
{
    if (!bag_configure(config, argc, argv, problem) || (config->demo && !add_demo(config, problem)))
        return false;
    if (config->options.workers == 0)
        config->options.workers = uv_available_parallelism();
    if (config->options.loops == 0)
        config->options.loops = bag_loops_default(uv_available_parallelism());
    return true;
}

/* ---- instruction sets ------------------------------------------------------------------------ */

struct names {
    char text[96];
};

/* "generic, avx2": those that this processor can run. */
static struct names usable_names(void)
{
    struct names names = {""};
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++) {
        if (bag_isa_usable((enum bag_isa)isa))
            bag_text_add(names.text, sizeof names.text, "%s%s", *names.text ? ", " : "",
                         bag_isa_names[isa]);
    }
    return names;
}

bool bag_isa_choose(const char *name, struct bag_problem *problem)
{
    size_t name_bytes = name ? strlen(name) : 0;
    enum bag_isa isa = name_bytes ? bag_isa_find(name, name_bytes) : bag_isa_best();
    if (isa == BAG_ISA_COUNT)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "isa '%s' is not known; this processor can run: %s",
                               bag_quote(name, name_bytes).text, usable_names().text);
    if (!bag_isa_usable(isa))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "isa '%s': this processor cannot run it; it can: %s",
                               bag_isa_names[isa], usable_names().text);
    bag_isa_use(isa);
    return true;
}
