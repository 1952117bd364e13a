#include "v2_answers.h"

#include "v2_reader.h"

#include <stdio.h>
#include <string.h>

bool bag_v2_answer_number(const char *text, size_t bytes, const char *within, const char *name,
                          uint64_t *number)
{
    int64_t value = 0;
    cJSON *tree = cJSON_ParseWithLength(text, bytes);
    const cJSON *object = within ? bag_v2_member(tree, within) : tree;
    const cJSON *item = bag_v2_member(object, name);
    bool found = item && bag_v2_integer(item, 0, BAG_V2_LARGEST_EXACT, &value);
    if (found)
        *number = (uint64_t)value;
    cJSON_Delete(tree);
    return found;
}

void bag_v2_answer_error(const char *text, size_t bytes, char *sentence, size_t room)
{
    cJSON *tree = cJSON_ParseWithLength(text, bytes);
    const cJSON *item = bag_v2_member(tree, "error");
    if (cJSON_IsString(item))
        snprintf(sentence, room, "%s", item->valuestring);
    else
        snprintf(sentence, room, "%.*s", (int)(bytes < room ? bytes : room - 1), text);
    for (char *at = sentence; *at; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7F)
            *at = '?';
    }
    cJSON_Delete(tree);
}
