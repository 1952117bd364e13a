/* What the writers of V2 documents share. Private to proto/v2_*.c. */
#ifndef BAG_V2_DOCUMENT_H
#define BAG_V2_DOCUMENT_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

/* Prints and frees the tree. A tree that is missing a part for want of memory prints without it,
 * which cJSON reports nowhere but in the part's NULL: `whole` carries that, and NULL is returned.
 */
char *bag_v2_print(cJSON *tree, bool whole);

/* Adds an array of strings; false without memory. */
bool bag_v2_add_strings(cJSON *tree, const char *key, const char *const *strings, size_t count);

/* Adds an empty object to an array; NULL without memory. */
cJSON *bag_v2_add_item(cJSON *list);

#endif
