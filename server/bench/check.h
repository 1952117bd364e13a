/* Replies compared with the tables' files, which are pooled here by the plain C kernels. */
#ifndef BAG_BENCH_CHECK_H
#define BAG_BENCH_CHECK_H

#include "query.h"

/* Sends options->checks requests one after the other. Every number of a reply must have the bits
 * that the files of options->tables give; floats may differ by as much as another order of addition
 * allows, because a server over shards adds the sums of parts. Sets the rules of *model, which is
 * the target's. Returns false and sets *problem; CONFLICT names a difference and its position. */
bool bag_bench_check(struct bag_bench_query *query, struct bag_client_model *model,
                     struct bag_problem *problem);

#endif
