/* Synthetic tables for measurements: their shapes, and presets with several tables.
 *
 * A synthetic table is a model whose path is a description in place of a file. The loader
 * (server/tables/made.c) generates its rows. A server can then be measured without files of
 * hundreds of gigabytes. A preset adds the tables of a published benchmark and the collection over
 * them. `bagserve bench` has the same presets and knows the number of ids of each bag. */
#pragma once

#include "config.h"

/* clang-format off */
/* The tables of MLPerf's DLRM-v2 benchmark, as published. X(rows, ids in a bag) */
#define BAG_MLPERF_DLRM_V2(X)                                                                      \
    X(40000000, 3) X(39060, 2) X(17295, 1) X(7424, 2) X(20265, 6) X(3, 1) X(7122, 1) X(1543, 1)    \
    X(63, 1) X(40000000, 7) X(3067956, 3) X(405282, 8) X(10, 1) X(2209, 6) X(11938, 9) X(155, 5)   \
    X(4, 1) X(976, 1) X(14, 1) X(40000000, 12) X(40000000, 100) X(40000000, 27) X(590152, 10)      \
    X(12973, 3) X(108, 1) X(36, 1)
#define BAG_MLPERF_DLRM_V2_NAME       "mlperf-dlrm-v2"
#define BAG_MLPERF_DLRM_V2_COLLECTION "dlrm"
#define BAG_MLPERF_DLRM_V2_TABLES     26
#define BAG_MLPERF_DLRM_V2_ELEMENTS   128

/* The tables of MLPerf's DLRM-v3 benchmark, FP16, as published: X(name, rows). Its features, which
 * are not pooled: X(name, table, ids). BAG_MLPERF_HISTORY stands for the length of a user's history,
 * which differs between requests. */
#define BAG_MLPERF_DLRM_V3_TABLES(X)                                                               \
    X("item_id", 1000000000) X("item_category_id", 128) X("user_id", 10000000)
#define BAG_MLPERF_DLRM_V3_FEATURES(X)                                                             \
    X("item_id", "item_id", BAG_MLPERF_HISTORY) X("item_candidate_id", "item_id", 2048)            \
    X("item_category_id", "item_category_id", BAG_MLPERF_HISTORY)                                  \
    X("item_candidate_category_id", "item_category_id", 2048) X("user_id", "user_id", 1)
#define BAG_MLPERF_DLRM_V3_NAME       "mlperf-dlrm-v3"
#define BAG_MLPERF_DLRM_V3_COLLECTION "dlrm_v3"
#define BAG_MLPERF_DLRM_V3_ELEMENTS   512
#define BAG_MLPERF_HISTORY            UINT64_MAX
/* clang-format on */

/* Default size of the tables of a preset, in bytes. */
#define BAG_SYNTHETIC_BYTES BAG_GIB

/* Parses NAME=ROWSxELEMENTS, with 1 to 2^40 rows and 1 to 65536 elements. Returns false if the text
 * is anything else. */
bool bag_synthetic_parse(const char *text, int64_t *rows, int64_t *elements);

/* Adds the table that NAME=ROWSxELEMENTS describes. Returns false and sets *problem if the text is
 * invalid. */
bool bag_synthetic_add(struct bag_config *config, const char *text, struct bag_problem *problem);

/* Returns the preset with this name; BAG_SYNTHETIC_NONE if there is none. */
enum bag_synthetic_preset bag_synthetic_find_preset(const char *name);

/* Adds the tables and the collection of a preset. If they would take more than `bytes`, the largest
 * ones are shortened to the same number of rows. Returns false and sets *problem if a name is taken
 * already, or without memory. */
bool bag_synthetic_add_preset(struct bag_config *config, enum bag_synthetic_preset preset,
                              int64_t bytes, struct bag_problem *problem);
