/* Runs a command, prints its JSON, and checks keys; see tools.h. */
#include "server/commands.h"
#include "server/tables/source.h"
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>

bool bag_tool_check_keys(const struct bag_source *source, unsigned threads,
                         struct bag_problem *problem)
{
    struct bag_keys_index index = {.mapping_bytes = 0};
    bool ok = bag_source_load_keys(source, threads, &index, problem);
    bag_keys_index_free(&index);
    return ok;
}

bool bag_tool_put(char *text, struct bag_problem *problem)
{
    bool ok = text && puts(text) >= 0;
    free(text);
    return ok || bag_problem_no_memory(problem);
}

int bag_tool_run(const struct bag_tool *tool, int argc, char *argv[], const char **values,
                 bag_tool_run_fn *run)
{
    const char *operands[BAG_TOOL_MAX_OPERANDS];
    struct bag_problem problem;
    if (bag_arguments_ask_help(argc, argv)) {
        bag_tool_print_help(stdout, tool);
        return BAG_EXIT_OK;
    }
    if (bag_tool_parse(tool, argc, argv, values, operands, &problem) &&
        run(operands, values, &problem))
        return BAG_EXIT_OK;
    fprintf(stderr, "bagserve: %s\n", problem.text);
    return bag_commands_exit_code(problem.kind);
}
