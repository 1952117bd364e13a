/* What commands share; see commands.h. */
#include "commands.h"

#include "file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool apply_file(struct bag_config *config, const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, BAG_CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_file(config, path, text, bytes, problem);
    if (!text)
        bag_problem_prefix(problem, "configuration file");
    free(text);
    return ok;
}

bool bag_commands_configure(struct bag_config *config, int argc, char *argv[],
                            struct bag_problem *problem)
{
    const char *path = bag_config_find_path(argc, argv, environ);
    bag_config_init(config);
    return (!path || apply_file(config, path, problem)) &&
           bag_config_apply_environment(config, environ, problem) &&
           bag_config_apply_flags(config, argc, argv, problem);
}

bool bag_commands_have(int argc, char *argv[], const char *flag)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return true;
    }
    return false;
}
