/* Open sources -> models: their elements are read, checked, and put together. On the changing
 * thread. */
#ifndef BAG_TABLE_MODEL_LOAD_H
#define BAG_TABLE_MODEL_LOAD_H

#include "snapshot.h"
#include "source.h"

/* Bytes of files that loading its table reads: 0 where it is made, or mapped and not read before it
 * is used. */
size_t bag_source_read_bytes(const struct bag_source *source);

/* Reads a table and makes its model, which takes over the source. NULL with *problem; the source
 * then stays the caller's. `gemm` is for its projection, NULL: there is none to be had. */
struct bag_model *bag_model_load(struct bag_source *source, const struct bag_load_options *options,
                                 bag_gemm_fn *gemm, struct bag_problem *problem);

/* Makes a collection over the models of its features' tables, in their order; likewise. */
struct bag_model *bag_model_load_collection(struct bag_source *source,
                                            struct bag_model *const *tables, bag_gemm_fn *gemm,
                                            struct bag_problem *problem);

#endif
