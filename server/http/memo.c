/* The last path; see memo.h. */
#include "memo.h"

#include <string.h>

bool bag_http_memo_is_of(const struct bag_http_memo *memo, const char *method, const char *path)
{
    return strcmp(method, "POST") == 0 && strcmp(path, memo->path) == 0;
}

void bag_http_memo_keep(struct bag_http_memo *memo, const char *path,
                        const struct bag_http_route *route, const struct bag_model *model)
{
    if (strlen(path) >= sizeof memo->path)
        return;
    strcpy(memo->path, path);
    memo->route = route;
    memo->model = model;
}
