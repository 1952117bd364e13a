/* Finds out what the path of a model stands for; see config.h. */
#include "config.h"

#include <string.h>

enum bag_path_kind bag_model_path_kind(const struct bag_model_config *model)
{
    static const struct {
        enum bag_path_kind kind;
        const char *prefix;
    } kinds[] = {
#define BAG_X(id, prefix) {BAG_PATH_##id, prefix},
        BAG_PATH_PREFIXES(BAG_X)
#undef BAG_X
    };
    if (!model->path)
        return BAG_PATH_NONE;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strncmp(model->path, kinds[i].prefix, strlen(kinds[i].prefix)) == 0)
            return kinds[i].kind;
    }
    return BAG_PATH_FILE;
}
