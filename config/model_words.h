/* The words and types behind TYPE in model_options.h, for those who make settings of its lists.
 * Private to config/model_json.c and features_json.c. */
#ifndef BAG_MODEL_WORDS_H
#define BAG_MODEL_WORDS_H

#include "kernels/pool.h"
#include "model_options.h"
#include "setting.h"

/* Tables hold numbers, so that the other types have no word. */
#define BAG_TABLE_SIGNED(name)   name
#define BAG_TABLE_UNSIGNED(name) name
#define BAG_TABLE_FLOAT(name)    name
#define BAG_TABLE_OTHER(name)    NULL
static const char *const dtypes[] = {
#define BAG_X(id, name, bytes, kind) BAG_TABLE_##kind(name),
    BAG_DTYPES(BAG_X)
#undef BAG_X
};

#define BAG_X(id, name) name,
static const char *const reductions[] = {BAG_REDUCTIONS(BAG_X)};
static const char *const row_formats[] = {BAG_ROW_FORMATS(BAG_X)};
static const char *const out_of_range[] = {BAG_OUT_OF_RANGE(BAG_X)};
#undef BAG_X

#define BAG_TYPE_CHOICE_DTYPE        BAG_TYPE_CHOICE(dtypes)
#define BAG_TYPE_CHOICE_REDUCTION    BAG_TYPE_CHOICE(reductions)
#define BAG_TYPE_CHOICE_ROW_FORMAT   BAG_TYPE_CHOICE(row_formats)
#define BAG_TYPE_EITHER_OUT_OF_RANGE BAG_TYPE_EITHER(out_of_range)

/* The initialiser of one key's setting, for a member of `type`. */
#define BAG_MODEL_SETTING(type, member, key_, TYPE, minimum_, maximum_)                \
    {                                                                                  \
        .key = (key_), .offset = offsetof(struct type, member), .minimum = (minimum_), \
        .maximum = (maximum_), .unit = "", BAG_TYPE_##TYPE                             \
    }

#endif
