/* What a request asks to be loaded and unloaded: the bodies of
 *
 *     POST /v2/repository/models/M/load      {"parameters": {"version": "3"}, "wait": false}
 *     POST /v2/repository/models/M/unload    {"parameters": {"unload_dependents": true}}
 *     POST /v2/repository/load               {"models": [{"name": "a", "version": "3"},
 *                                                        {"name": "b", "unload": true}]}
 *
 * An empty body asks for the defaults. A version is a text of digits or a number. */
#ifndef BAG_CONTROL_H
#define BAG_CONTROL_H

#include "problem.h"

/* Most models in one request. */
#define BAG_CONTROL_MAX_ITEMS 1024

struct bag_control_item {
    char name[129];
    char version[21]; /* decimal; empty: as the model's policy says, or all of them */
    bool unload;
};

struct bag_control {
    struct bag_control_item *items; /* owned; no two of one name */
    size_t count;                   /* at least 1 */
    bool wait;                      /* for the end, before the answer */
    bool unload_dependents;         /* collections over unloaded tables, too */
};

/* Reads the body of a request about one model. BAD_REQUEST with *problem where it is malformed, or
 * brings Triton's `config` or files, which are not supported. */
bool bag_control_read_model(const char *body, size_t bytes, const char *model, bool unload,
                            struct bag_control *control, struct bag_problem *problem);

/* The same of a group. */
bool bag_control_read_group(const char *body, size_t bytes, struct bag_control *control,
                            struct bag_problem *problem);

/* Frees what was read; zeros are allowed. */
void bag_control_free(struct bag_control *control);

/* {"models": [{"name", "version"}, ...], "done": true}: what was asked for, and whether it is done
 * or only begun. On the heap; NULL without memory. */
char *bag_control_describe(const struct bag_control *control, bool done);

#endif
