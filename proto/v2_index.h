/* Requests for the repository's index. Must not know: models, sockets. */
#ifndef BAG_V2_INDEX_H
#define BAG_V2_INDEX_H

#include "problem.h"

/* Reads the body of POST /v2/repository/index: nothing, or an object whose "ready" says whether
 * only models that are ready are wanted. Other keys are ignored. */
bool bag_v2_index_read(const char *body, size_t body_bytes, bool *ready_only,
                       struct bag_problem *problem);

#endif
