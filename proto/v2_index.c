/* Requests for the repository's index; see v2_index.h. */
#include "v2_index.h"

#include "v2_reader.h"

bool bag_v2_index_read(const char *body, size_t body_bytes, bool *ready_only,
                       struct bag_problem *problem)
{
    *ready_only = false;
    if (body_bytes == 0)
        return true;
    cJSON *tree = bag_json_parse(body, body_bytes, problem);
    if (!tree) {
        bag_problem_prefix(problem, "malformed JSON");
        return false;
    }
    const cJSON *ready = cJSON_IsObject(tree) ? bag_v2_member(tree, "ready") : NULL;
    bool ok = true;
    if (!cJSON_IsObject(tree))
        ok = bag_problem_set(problem, 400, "the request must be empty or a JSON object");
    else if (ready && !cJSON_IsBool(ready))
        ok = bag_problem_set(problem, 400, "\"ready\" must be true or false");
    *ready_only = cJSON_IsTrue(ready);
    bag_json_free(tree);
    return ok;
}
