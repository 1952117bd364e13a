/* A whole command of one table; see tools.h. */
#include "server/commands.h"
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>

struct bag_source *bag_tool_find(const char *in, struct bag_problem *problem)
{
    struct bag_config config;
    struct bag_source *source = NULL;
    char *value = NULL, flag[] = "--table";
    if (!bag_config_init(&config) || asprintf(&value, "table=%s", in) < 0) {
        bag_problem_no_memory(problem);
        value = NULL;
    } else if (bag_config_apply_flags(&config, 2, (char *[]){flag, value}, problem)) {
        if (config.models[0].part.of)
            bag_problem_set(problem, BAG_ERROR_USAGE,
                            "%s: part is what a server loads; this command takes whole tables", in);
        else if (!(source = bag_source_make(&config.models[0], true)))
            bag_problem_no_memory(problem);
    }
    if (source)
        source->is_unnamed = true;
    free(value);
    bag_config_free(&config);
    return source;
}

int bag_tool_run(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                 bag_tool_run_fn *run)
{
    const char *in;
    struct bag_problem problem;
    if (bag_arguments_ask_help(argc, argv)) {
        bag_tool_print_help(stdout, tool);
        return BAG_EXIT_OK;
    }
    bool ok = bag_tool_parse(tool, argc, argv, values, &in, &problem) && run(in, values, &problem);
    if (!ok)
        fprintf(stderr, "bagserve: %s\n", problem.text);
    return ok ? BAG_EXIT_OK : bag_commands_exit_code(problem.kind);
}
