/* What the writers of V2 documents share; see v2_document.h. */
#include "v2_document.h"

char *bag_v2_print(cJSON *tree, bool whole)
{
    char *text = whole ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

bool bag_v2_add_strings(cJSON *tree, const char *key, const char *const *strings, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(tree, key);
    bool whole = list != NULL;
    for (size_t i = 0; whole && i < count; i++) {
        cJSON *item = cJSON_CreateString(strings[i]);
        whole = item && cJSON_AddItemToArray(list, item);
    }
    return whole;
}

cJSON *bag_v2_add_item(cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    if (cJSON_AddItemToArray(list, item))
        return item;
    cJSON_Delete(item);
    return NULL;
}
