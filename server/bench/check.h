/* Replies compared with the tables' files, which are pooled here by the plain C kernels.
 *
 * A fast server that answers wrong numbers is worth nothing, so --check compares some replies
 * before the measurement. The files of the tables are mapped or loaded here, and the pooling rules
 * are read from the server. Each request is drawn by the query, but with another seed than the
 * measured ones. It is sent alone, and its reply is compared element by element with the result of
 * the plain C kernels, which define every result.
 *
 * The bits of integers must be equal. Floats may differ if the server adds in another order, as a
 * coordinator does with the sums of its shards. The tolerance is computed for each element from the
 * magnitudes of the rows in its bag, so that it is as narrow as rounding allows. */
#pragma once

#include "query.h"

/* Sends options->checks requests one after the other. Every number of a reply must have the bits
 * that the files of options->tables give. Floats may differ by the tolerance that is described
 * above. Sets the rules of *model, which is the target's. Returns false and sets *problem; CONFLICT
 * names a difference and its position. */
bool bag_bench_check(struct bag_bench_query *query, struct bag_client_model *model,
                     struct bag_problem *problem);
