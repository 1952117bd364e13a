/* The options of options.h as a list, for those who walk over all of them. Private to config. */
#ifndef BAG_OPTION_LIST_H
#define BAG_OPTION_LIST_H

#include "config.h"
#include "setting.h"

struct bag_option {
    struct bag_setting setting; /* kept in struct bag_config */
    const char *section;        /* "" for those of BAG_SOURCES */
    const char *default_text;   /* of TEXT; NULL: none */
    int64_t default_number;     /* of all others */
    const char *sentence;
};

extern const struct bag_option bag_options[];
extern const size_t bag_num_options;

/* The option of that key; NULL where there is none. */
const struct bag_option *bag_option_find(const char *key);

/* A key as it is written elsewhere, by value: bag_flag_of("log_level").text */
struct bag_spelling {
    char text[64];
};
struct bag_spelling bag_flag_of(const char *key);     /* "--log-level" */
struct bag_spelling bag_variable_of(const char *key); /* "BAGSERVE_LOG_LEVEL" */

#endif
