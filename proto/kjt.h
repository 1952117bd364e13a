/* KeyedJaggedTensor's layout: the bags of many features in a few flat tensors.
 *
 *   values   [N]          indices: all of the first feature, then all of the second, ...
 *   lengths  [F*B]        how many of them each bag has, B bags for each of F features; or
 *   offsets  [F*B + 1]    where each bag begins, and at last where the last one ends
 *   weights  [N]          FP32, optional
 *
 * Reading it checks that lengths or offsets cover all values, and leaves for every feature what a
 * request for its table alone would have brought.
 * Nothing is copied but the offsets. */
#ifndef BAG_KJT_H
#define BAG_KJT_H

#include "arena.h"
#include "problem.h"

#define BAG_KJT_INPUTS(X) \
    X(VALUES, "values")   \
    X(LENGTHS, "lengths") \
    X(OFFSETS, "offsets") \
    X(WEIGHTS, "weights")

enum bag_kjt_input {
#define BAG_X(id, name) BAG_KJT_##id,
    BAG_KJT_INPUTS(BAG_X)
#undef BAG_X
        BAG_KJT_INPUT_COUNT
};

extern const char *const bag_kjt_input_names[BAG_KJT_INPUT_COUNT];

/* The features that the layout is of, for its messages. */
struct bag_kjt_features {
    size_t count; /* at least 1 */
    const char *(*name_of)(const void *context, size_t feature);
    const void *context;
};

struct bag_kjt {
    const struct bag_tensor *tensors[BAG_KJT_INPUT_COUNT]; /* NULL: not sent; set by the caller */
    size_t num_bags;                                       /* of each feature */
    int64_t *offsets; /* [F, B + 1], each feature's from 0; in the arena */
    size_t *firsts;   /* [F + 1], where each feature's values begin; in the arena */
};

/* Checks the tensors and fills the rest; false with *problem, which names the tensor, the feature
 * and the bag. */
bool bag_kjt_read(struct bag_kjt *kjt, const struct bag_kjt_features *features,
                  struct bag_arena *arena, struct bag_problem *problem);

/* One feature's part as tensors of the offsets form; its offsets have an end for the last bag. */
struct bag_kjt_part {
    struct bag_tensor indices, offsets, weights;
};

/* Fills the part of a feature; of weights only where there are some. */
void bag_kjt_part(const struct bag_kjt *kjt, size_t feature, struct bag_kjt_part *part);

#endif
