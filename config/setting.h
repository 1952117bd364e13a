/* One value that can be set: its type, its bounds, where it is kept, and how a text becomes it.
 * Options and the keys of a model are lists of these, so that a value means the same and is
 * rejected in the same words wherever it is written. */
#ifndef BAG_SETTING_H
#define BAG_SETTING_H

#include "kernels/bag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bag_setting_type {
    BAG_SETTING_COUNT,  /* int64_t */
    BAG_SETTING_BYTES,  /* int64_t */
    BAG_SETTING_KEY,    /* int64_t: 64 bits, with or without a sign */
    BAG_SETTING_TEXT,   /* char *, owned; minimum and maximum bound its length */
    BAG_SETTING_SHAPE,  /* struct bag_shape: "[100, 64]" */
    BAG_SETTING_CHOICE, /* an enum: the position among the words */
    BAG_SETTING_BOOL    /* bool: true or false, which JSON has without quotes */
};

/* Dimensions, of which the first may be -1 for any. */
struct bag_shape {
    uint32_t rank; /* 0: not set */
    int64_t sizes[BAG_MAX_RANK];
};

/* Indexed by the enum; NULL where a member of the enum may not be chosen. */
struct bag_words {
    const char *const *names;
    size_t count;
};

struct bag_setting {
    const char *key;
    enum bag_setting_type type;
    size_t offset; /* of the member in the struct that all settings of the list are kept in */
    int64_t minimum, maximum;
    bool is_path;     /* of a file: in a document relative to the document's folder */
    const char *unit; /* "seconds"; "" where there is none */
    struct bag_words words;
};

/* Initialisers for the columns that depend on TYPE in options.h and model_options.h. */
#define BAG_TYPE_COUNT        .type = BAG_SETTING_COUNT
#define BAG_TYPE_BYTES        .type = BAG_SETTING_BYTES
#define BAG_TYPE_TEXT         .type = BAG_SETTING_TEXT
#define BAG_TYPE_FILE         .type = BAG_SETTING_TEXT, .is_path = true
#define BAG_TYPE_KEY          .type = BAG_SETTING_KEY
#define BAG_TYPE_SHAPE        .type = BAG_SETTING_SHAPE
#define BAG_TYPE_BOOL         .type = BAG_SETTING_BOOL, .words = BAG_WORDS(bag_bool_words)
#define BAG_TYPE_CHOICE(list) .type = BAG_SETTING_CHOICE, .words = BAG_WORDS(list)
#define BAG_WORDS(list)                       \
    {                                         \
        (list), sizeof(list) / sizeof *(list) \
    }

extern const char *const bag_bool_words[2];

/* Why a value was rejected: "must be from 0 to 65535". */
struct bag_reason {
    char text[256];
};

/* Sets the member in `base` from a text; false with the reason, and the member as it was. */
bool bag_setting_apply(const struct bag_setting *setting, void *base, const char *text,
                       struct bag_reason *reason);

/* What values the setting takes: the reason against one of another type. */
void bag_setting_describe(const struct bag_setting *setting, struct bag_reason *reason);

#endif
