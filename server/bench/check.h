/* Answers compared with pooling of the generator's own, from the tables' files. */
#ifndef BAG_BENCH_CHECK_H
#define BAG_BENCH_CHECK_H

#include "query.h"

/* Asks options->checks requests one after the other, and compares each number with what the files
 * of options->tables give in twice the precision: it must be as near as the adding of floats
 * allows. False with *problem (CONFLICT: a difference, with its place). `model`, the target's, gets
 * its rules. */
bool bag_bench_check(struct bag_bench_query *query, struct bag_client_model *model,
                     struct bag_problem *problem);

#endif
