/* Inference over tables that stay in their files. Private to server/infer. */
#ifndef BAG_MAPPED_H
#define BAG_MAPPED_H

#include "infer.h"

/* Pools a range; before each part of it the pages of the next one are asked for. */
void bag_mapped_pool(const struct bag_infer *infer, struct bag_split split);

/* When all is pooled: whether every row was there. Pools all of it again where a file was changed
 * meanwhile. False with *problem where a row is missing; the reply is then not to be sent. */
bool bag_mapped_check(struct bag_infer *infer, struct bag_problem *problem);

#endif
