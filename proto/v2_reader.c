/* Functions that inputs and outputs share; see v2_reader.h. */
#include "v2_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An id of two bytes is an empty string and counts as none. */
bool bag_v2_read_header(struct bag_v2_reader *reader, const struct bag_json_limits *limits)
{
    *reader->request = (struct bag_v2_request){.encoding = BAG_V2_JSON};
    if (reader->next_binary == 0)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "the body is empty; it must be a JSON object with \"inputs\"");
    if (!bag_json_parse_header(reader->body, reader->next_binary, limits, reader->arena,
                               &reader->header, reader->problem))
        return false;
    if (reader->header.id.bytes > 2)
        reader->request->id = reader->header.id;
    if (cJSON_IsObject(reader->header.tree))
        return true;
    bag_json_free(reader->header.tree);
    return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                           "the request must be a JSON object with \"inputs\"");
}

bool bag_v2_reject_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory to decode the request");
}

bool bag_v2_integer(const cJSON *item, double low, double high, int64_t *value)
{
    if (!cJSON_IsNumber(item) || floor(item->valuedouble) != item->valuedouble)
        return false;
    if (item->valuedouble < low || item->valuedouble > high)
        return false;
    *value = (int64_t)item->valuedouble;
    return true;
}

const cJSON *bag_v2_member(const cJSON *object, const char *key)
{
    const cJSON *item = object ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
    return item && !cJSON_IsNull(item) ? item : NULL;
}

bool bag_v2_read_parameters(const cJSON *object, const cJSON **parameters,
                            struct bag_problem *problem)
{
    *parameters = bag_v2_member(object, "parameters");
    return !*parameters || cJSON_IsObject(*parameters) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "\"parameters\" must be an object");
}

const cJSON *bag_v2_find_tensor(const cJSON *list, const char *name)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        const char *text = bag_json_text(item, "name");
        if (text && strcmp(text, name) == 0)
            return item;
    }
    return NULL;
}

bool bag_v2_read_part(const cJSON *object, struct bag_part *part)
{
    const char *by = bag_json_text(object, "by");
    int64_t index, of;
    if (!by || !bag_v2_integer(bag_json_member(object, "of"), 1, BAG_MAX_PARTS, &of) ||
        !bag_v2_integer(bag_json_member(object, "index"), 0, (double)(of - 1), &index))
        return false;
    *part = (struct bag_part){bag_part_way_find(by, strlen(by)), (uint32_t)index, (uint32_t)of};
    return part->by != BAG_PART_WAY_COUNT;
}

bool bag_v2_read_digest(const cJSON *object, uint64_t *digest)
{
    const cJSON *item = bag_v2_member(object, "digest");
    const char *text = cJSON_GetStringValue(item);
    *digest = text ? strtoull(text, NULL, 16) : 0;
    return !item || (text && strlen(text) == BAG_DIGEST_BYTES - 1 &&
                     strspn(text, "0123456789abcdef") == BAG_DIGEST_BYTES - 1);
}

void *bag_v2_elements(struct bag_v2_reader *reader, const char *key, const cJSON *list,
                      size_t bytes, size_t *count)
{
    if (!cJSON_IsArray(list)) {
        bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                        "\"%s\" %smust be an array of tensors", key, list ? "" : "is missing; it ");
        return NULL;
    }
    *count = (size_t)cJSON_GetArraySize(list);
    void *elements = bag_arena_array(reader->arena, *count, bytes);
    if (!elements)
        bag_v2_reject_memory(reader->problem);
    return elements;
}

bool bag_v2_copy_text(struct bag_v2_reader *reader, const char *string, struct bag_text *text)
{
    size_t bytes = strlen(string);
    char *copy = bag_arena_alloc(reader->arena, bytes + 1);
    if (!copy)
        return bag_v2_reject_memory(reader->problem);
    memcpy(copy, string, bytes + 1);
    text->data = copy;
    text->bytes = bytes;
    return true;
}

bool bag_v2_check_no_shared_memory(const cJSON *parameters, struct bag_problem *problem)
{
    if (!bag_v2_member(parameters, "shared_memory_region"))
        return true;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "parameter shared_memory_region: shared memory is not supported; send "
                           "the tensor in the body");
}

bool bag_v2_read_name(struct bag_v2_reader *reader, const cJSON *item, struct bag_text *name)
{
    const cJSON *string = cJSON_IsObject(item) ? bag_v2_member(item, "name") : NULL;
    if (!cJSON_IsString(string))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "must be an object with a \"name\"");
    return bag_v2_copy_text(reader, string->valuestring, name);
}

/* Orders texts by their bytes; a text precedes a longer one that begins with it. */
static int compare_texts(const void *a, const void *b)
{
    const struct bag_text *x = a, *y = b;
    size_t shorter = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp(x->data, y->data, shorter);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Sorts the names before comparing neighbours, so that a hostile list of many tensors takes no
 * quadratic time. */
bool bag_v2_check_unique(struct bag_v2_reader *reader, const struct bag_text *first, size_t stride,
                         size_t count, const char *what)
{
    struct bag_text *names = bag_arena_array(reader->arena, count, sizeof *names);
    if (!names)
        return bag_v2_reject_memory(reader->problem);
    for (size_t i = 0; i < count; i++)
        names[i] = *(const struct bag_text *)((const char *)first + i * stride);
    if (count > 1)
        qsort(names, count, sizeof *names, compare_texts);
    for (size_t i = 1; i < count; i++) {
        if (bag_text_equal(names[i - 1], names[i]))
            return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "%s '%s' is duplicated",
                                   what, bag_quote(names[i].data, names[i].bytes).text);
    }
    return true;
}
