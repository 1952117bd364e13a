/* Parses the header of a safetensors file, and the index of a file in parts; see formats.h. */
#include "formats.h"

#include "json.h"
#include "text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The tensor whose rows BAG_SAFETENSORS_METADATA describes. */
#define DESCRIBED "values"

/* JSON numbers are not exact beyond 2^53. */
#define LARGEST_EXACT 9007199254740992.0

/* ---- the frame ------------------------------------------------------------------------------- */

/* Checks the length of the header. If the header is too long, or does not begin as one, the file
 * has another format, which the message names if it is known. */
static bool check_frame(const unsigned char *bytes, size_t count, struct bag_problem *problem)
{
    if (count < BAG_SAFETENSORS_PREAMBLE_BYTES)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file ends after %zu bytes; a safetensors file begins with the "
                               "length of its header in 8",
                               count);
    uint64_t length = bag_read_little(bytes, BAG_SAFETENSORS_PREAMBLE_BYTES);
    const bool is_other = count > BAG_SAFETENSORS_PREAMBLE_BYTES
                              ? bytes[BAG_SAFETENSORS_PREAMBLE_BYTES] != '{'
                              : length > BAG_SAFETENSORS_MAX_HEADER_BYTES;
    const char *kind = is_other ? bag_file_kind(bytes, count, false) : NULL;
    if (kind)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is not a safetensors file; it looks like %s", kind);
    if (length > BAG_SAFETENSORS_MAX_HEADER_BYTES)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the first 8 bytes say that the header has %" PRIu64
                               " bytes; at most %zu are read: is this a safetensors file?",
                               length, BAG_SAFETENSORS_MAX_HEADER_BYTES);
    if (length == 0)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the header is empty; it must be a JSON object");
    return true;
}

size_t bag_safetensors_header_bytes(const void *bytes, size_t count)
{
    struct bag_problem unused;
    return check_frame(bytes, count, &unused)
               ? BAG_SAFETENSORS_PREAMBLE_BYTES +
                     (size_t)bag_read_little(bytes, BAG_SAFETENSORS_PREAMBLE_BYTES)
               : 0;
}

/* Parses the header's JSON. Returns NULL and sets *problem if the file is truncated or the header
 * is not an object. */
static cJSON *parse_header(const void *bytes, size_t count, size_t header_bytes,
                           struct bag_problem *problem)
{
    const char *text = (const char *)bytes + BAG_SAFETENSORS_PREAMBLE_BYTES;
    if (count < header_bytes) {
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "the file is truncated: its header should end at byte %zu, but the file "
                        "ends after %zu",
                        header_bytes, count);
        return NULL;
    }
    if (*text != '{') {
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "the header does not begin with '{': this is no safetensors file");
        return NULL;
    }
    cJSON *tree = bag_json_parse(text, header_bytes - BAG_SAFETENSORS_PREAMBLE_BYTES, problem);
    if (!tree) {
        problem->kind = problem->kind == BAG_ERROR_BAD_REQUEST ? BAG_ERROR_FILE : problem->kind;
        bag_problem_prefix(problem, "the header");
    }
    return tree;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* X(name, bits of an element, dtype of a table, row format). Types without a dtype are known, but
 * cannot be pooled. */
#define SAFETENSORS_TYPES(X)            \
    X("F64", 64, F64, PLAIN)            \
    X("F32", 32, F32, PLAIN)            \
    X("F16", 16, F16, PLAIN)            \
    X("BF16", 16, BF16, PLAIN)          \
    X("F8_E4M3", 8, U8, F8_E4M3)        \
    X("F8_E5M2", 8, U8, F8_E5M2)        \
    X("I64", 64, I64, PLAIN)            \
    X("I32", 32, I32, PLAIN)            \
    X("I16", 16, I16, PLAIN)            \
    X("I8", 8, I8, PLAIN)               \
    X("U64", 64, U64, PLAIN)            \
    X("U32", 32, U32, PLAIN)            \
    X("U16", 16, U16, PLAIN)            \
    X("U8", 8, U8, PLAIN)               \
    X("BOOL", 8, DTYPE_COUNT, PLAIN)    \
    X("C64", 64, DTYPE_COUNT, PLAIN)    \
    X("F8_E8M0", 8, DTYPE_COUNT, PLAIN) \
    X("F6_E2M3", 6, DTYPE_COUNT, PLAIN) \
    X("F6_E3M2", 6, DTYPE_COUNT, PLAIN) \
    X("F4", 4, DTYPE_COUNT, PLAIN)

/* A type of elements that a header may name. */
struct type {
    const char *name;
    unsigned bits;
    enum bag_dtype dtype;
    enum bag_row_format row_format;
};

static const struct type types[] = {
#define BAG_X(name, bits, dtype, row_format) {name, bits, BAG_##dtype, BAG_ROWS_##row_format},
    SAFETENSORS_TYPES(BAG_X)
#undef BAG_X
};

static const struct type *find_type(const char *name)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    }
    return NULL;
}

const char *bag_safetensors_type(const struct bag_table *table)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].row_format == table->row_format &&
            (types[i].dtype == table->dtype || table->row_format != BAG_ROWS_PLAIN))
            return types[i].name;
    }
    return "U8";
}

/* Prefixes the problem with "tensor 'NAME'". Returns false. */
static bool reject(const cJSON *item, struct bag_problem *problem)
{
    return bag_problem_prefix(problem, "tensor '%s'",
                              bag_quote(item->string, strlen(item->string)).text);
}

/* Returns whether the item is a whole number from 0 that JSON represents exactly. */
static bool is_count(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= LARGEST_EXACT &&
           item->valuedouble == (double)(uint64_t)item->valuedouble;
}

/* The position of a tensor, relative to the end of the header. */
struct place {
    uint64_t begin, end;
    const cJSON *item;
};

/* Reads the position of a tensor's data. */
static bool read_place(const cJSON *item, struct place *place, struct bag_problem *problem)
{
    const cJSON *offsets = bag_json_member(item, "data_offsets");
    const cJSON *begin = cJSON_IsArray(offsets) ? offsets->child : NULL;
    const cJSON *end = begin ? begin->next : NULL;
    if (!end || end->next || !is_count(begin) || !is_count(end) ||
        begin->valuedouble > end->valuedouble)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "'data_offsets' must be [begin, end], two whole numbers that do not "
                               "fall");
    *place = (struct place){(uint64_t)begin->valuedouble, (uint64_t)end->valuedouble, item};
    return true;
}

/* Sets *count to the product of the shape. Returns false if it overflows. */
static bool count_elements(const cJSON *shape, uint64_t *count)
{
    bool overflow = false, empty = false;
    *count = 1;
    for (const cJSON *size = shape->child; size; size = size->next) {
        uint64_t dimension = (uint64_t)size->valuedouble;
        empty |= dimension == 0;
        overflow |= __builtin_mul_overflow(*count, dimension ? dimension : 1, count);
    }
    *count = empty ? 0 : *count;
    return !overflow;
}

/* Checks that the shape is an array of whole numbers. */
static bool check_shape(const cJSON *item, struct bag_problem *problem)
{
    const cJSON *shape = bag_json_member(item, "shape");
    bool ok = cJSON_IsArray(shape);
    for (const cJSON *size = ok ? shape->child : NULL; size; size = size->next)
        ok = ok && is_count(size);
    return ok || bag_problem_set(problem, BAG_ERROR_FILE,
                                 "'shape' must be an array of whole numbers from 0");
}

/* Checks that the tensor's data has as many bytes as its elements take. An unknown type may have
 * any number. */
static bool check_bytes(const cJSON *item, const struct place *place, struct bag_problem *problem)
{
    const cJSON *name = bag_json_member(item, "dtype");
    const struct type *type = find_type(name->valuestring);
    uint64_t count, bits = 0, bytes = place->end - place->begin;
    if (!type)
        return true;
    if (!count_elements(bag_json_member(item, "shape"), &count) ||
        __builtin_mul_overflow(count, type->bits, &bits))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "its shape is too large for any file: the bits of its elements pass "
                               "2^64");
    if (bits % 8 == 0 && bits / 8 == bytes)
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "'data_offsets' give it %" PRIu64 " bytes, but its shape and dtype %s "
                           "take %" PRIu64,
                           bytes, type->name, bits / 8 + (bits % 8 != 0));
}

/* Checks one tensor of the header and sets *place. Returns false and sets *problem, which names the
 * tensor. */
static bool read_tensor(const cJSON *item, struct place *place, struct bag_problem *problem)
{
    if (!cJSON_IsObject(item))
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "it must be an object with 'dtype', 'shape' and 'data_offsets'");
    else if (!cJSON_IsString(bag_json_member(item, "dtype")))
        bag_problem_set(problem, BAG_ERROR_FILE, "'dtype' must be a string such as \"F32\"");
    else if (check_shape(item, problem) && read_place(item, place, problem) &&
             check_bytes(item, place, problem))
        return true;
    return reject(item, problem);
}

/* Checks that __metadata__ is an object of strings, as the format requires. */
static bool check_metadata(const cJSON *item, struct bag_problem *problem)
{
    bool ok = cJSON_IsObject(item);
    for (const cJSON *value = ok ? item->child : NULL; value; value = value->next)
        ok = ok && cJSON_IsString(value);
    return ok || bag_problem_set(problem, BAG_ERROR_FILE,
                                 "'" BAG_SAFETENSORS_METADATA "' must be an object of strings");
}

static bool is_metadata(const cJSON *item)
{
    return strcmp(item->string, BAG_SAFETENSORS_METADATA) == 0;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Orders tensors by their first byte, and those with the same first byte by their end. Empty ones
 * thus come first, so that they do not count as an overlap. */
static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Reports an overlap with the tensor before, or a hole after it. Returns false. */
static bool reject_place(const struct place *place, const struct place *before, uint64_t end,
                         struct bag_problem *problem)
{
    if (place->begin < end)
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "it begins at byte %" PRIu64 " of the data, inside '%s', which ends at "
                        "%" PRIu64,
                        place->begin,
                        bag_quote(before->item->string, strlen(before->item->string)).text, end);
    else
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "it begins at byte %" PRIu64 " of the data, but the data before it ends "
                        "at %" PRIu64 "; there must be no holes",
                        place->begin, end);
    return reject(place->item, problem);
}

/* Sorts the tensors by position and checks that they fill the file. */
static bool check_places(struct place *places, size_t count, uint64_t data_bytes,
                         struct bag_problem *problem)
{
    uint64_t end = 0;
    qsort(places, count, sizeof *places, compare_places);
    for (size_t i = 0; i < count; i++) {
        if (places[i].begin != end)
            return reject_place(&places[i], i ? &places[i - 1] : NULL, end, problem);
        end = places[i].end;
    }
    if (end > data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: it has %" PRIu64
                               " bytes of data, the header promises %" PRIu64,
                               data_bytes, end);
    if (end < data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is too long: it has %" PRIu64
                               " bytes of data, the header promises %" PRIu64
                               "; nothing may follow the last tensor",
                               data_bytes, end);
    return true;
}

/* Checks all tensors of a header, each by itself and then their positions. */
static bool check_tensors(const cJSON *tree, uint64_t data_bytes, struct bag_problem *problem)
{
    size_t capacity = (size_t)cJSON_GetArraySize(tree), count = 0;
    struct place *places = calloc(capacity + 1, sizeof *places);
    if (!places)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %zu tensors", capacity);
    bool ok = true;
    for (const cJSON *item = tree->child; ok && item; item = item->next)
        ok = is_metadata(item) ? check_metadata(item, problem)
                               : read_tensor(item, &places[count++], problem);
    ok = ok && check_places(places, count, data_bytes, problem);
    free(places);
    return ok;
}

bool bag_safetensors_parse(const void *bytes, size_t count, uint64_t file_bytes,
                           struct bag_safetensors *file, struct bag_problem *problem)
{
    memset(file, 0, sizeof *file);
    if (!check_frame(bytes, count, problem))
        return false;
    file->data_offset = bag_safetensors_header_bytes(bytes, count);
    file->tree = parse_header(bytes, count, file->data_offset, problem);
    if (!file->tree)
        return false;
    file->metadata = bag_json_member(file->tree, BAG_SAFETENSORS_METADATA);
    uint64_t data_bytes = file_bytes > file->data_offset ? file_bytes - file->data_offset : 0;
    if (check_tensors(file->tree, data_bytes, problem))
        return true;
    bag_safetensors_free(file);
    return false;
}

void bag_safetensors_free(struct bag_safetensors *file)
{
    bag_json_free(file->tree);
    file->tree = NULL;
    file->metadata = NULL;
}

/* ---- tables ---------------------------------------------------------------------------------- */

const char *bag_safetensors_next(const struct bag_safetensors *file, const struct cJSON **cursor)
{
    const cJSON *item = *cursor ? (*cursor)->next : file->tree->child;
    if (item && is_metadata(item))
        item = item->next;
    *cursor = item;
    return item ? item->string : NULL;
}

const char *bag_safetensors_metadata(const struct bag_safetensors *file, const char *key)
{
    return bag_json_text(file->metadata, key);
}

bool bag_safetensors_next_note(const struct bag_safetensors *file, const struct cJSON **cursor,
                               struct bag_safetensors_note *note)
{
    const cJSON *first = file->metadata ? file->metadata->child : NULL;
    const cJSON *item = *cursor ? (*cursor)->next : first;
    *cursor = item;
    if (item)
        *note = (struct bag_safetensors_note){item->string, item->valuestring};
    return item != NULL;
}

const struct cJSON *bag_safetensors_find(const struct bag_safetensors *file, const char *name)
{
    const cJSON *item = bag_json_member(file->tree, name);
    return item && !is_metadata(item) ? item : NULL;
}

/* Reads from BAG_SAFETENSORS_METADATA how the rows of the tensor, whose type is U8, are encoded. */
static bool describe_rows(const struct bag_safetensors *file, struct bag_safetensors_tensor *tensor,
                          struct bag_problem *problem)
{
    const char *format = bag_safetensors_metadata(file, "row_format");
    const char *elements = bag_safetensors_metadata(file, "row_elements");
    int64_t count = 0;
    if (!format)
        return true;
    tensor->row_format = bag_row_format_find(format, strlen(format));
    if (tensor->row_format == BAG_ROW_FORMAT_COUNT)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "'" BAG_SAFETENSORS_METADATA
                               "' says row_format '%s', which is not known",
                               bag_quote(format, strlen(format)).text);
    if (elements && (!bag_integer_parse(elements, &count) || count < 1))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "'" BAG_SAFETENSORS_METADATA
                               "' says row_elements '%s'; it must be a number from 1",
                               bag_quote(elements, strlen(elements)).text);
    tensor->row_elements = (size_t)count;
    return true;
}

/* Describes a tensor of a known type as a table's elements. */
static bool describe_layout(const struct bag_safetensors *file, const cJSON *item,
                            enum bag_dtype dtype, struct bag_npy *layout,
                            struct bag_problem *problem)
{
    int64_t sizes[BAG_MAX_RANK];
    uint32_t rank = 0;
    struct place place;
    if (cJSON_GetArraySize(bag_json_member(item, "shape")) > BAG_MAX_RANK)
        return bag_problem_set(problem, BAG_ERROR_FILE, "it has more than %d dimensions",
                               BAG_MAX_RANK);
    for (const cJSON *size = bag_json_member(item, "shape")->child; size; size = size->next)
        sizes[rank++] = (int64_t)size->valuedouble;
    return read_place(item, &place, problem) &&
           bag_npy_describe(dtype, rank, sizes, file->data_offset + place.begin, layout, problem);
}

bool bag_safetensors_describe(const struct bag_safetensors *file, const struct cJSON *item,
                              struct bag_safetensors_tensor *tensor, struct bag_problem *problem)
{
    tensor->type = bag_json_member(item, "dtype")->valuestring;
    const struct type *type = find_type(tensor->type);
    if (!type || type->dtype == BAG_DTYPE_COUNT) {
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "its dtype %s cannot be pooled; a table has floats of 8, 16, 32 or 64 bits "
                        "or integers of 8 to 64",
                        bag_quote(tensor->type, strlen(tensor->type)).text);
        return reject(item, problem);
    }
    tensor->row_format = type->row_format;
    tensor->row_elements = 0;
    bool may_be_quantised = strcmp(item->string, DESCRIBED) == 0 && strcmp(type->name, "U8") == 0;
    if ((may_be_quantised && !describe_rows(file, tensor, problem)) ||
        !describe_layout(file, item, type->dtype, &tensor->layout, problem))
        return reject(item, problem);
    if (type->row_format != BAG_ROWS_PLAIN)
        tensor->row_elements = tensor->layout.row_elements;
    return true;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Checks that the index maps tensors to names of files in its own folder. */
static bool check_index(const cJSON *tree, struct bag_problem *problem)
{
    const cJSON *map = cJSON_IsObject(tree) ? bag_json_member(tree, "weight_map") : NULL;
    if (!cJSON_IsObject(map))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the index must be an object with 'weight_map', an object of the "
                               "tensors' files");
    for (const cJSON *item = map->child; item; item = item->next) {
        const char *name = cJSON_IsString(item) ? item->valuestring : "";
        if (*name && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            continue;
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "its file must be a name in the folder of the index, without '/'");
        return reject(item, problem);
    }
    return true;
}

bool bag_safetensors_index_parse(const char *text, size_t bytes,
                                 struct bag_safetensors_index *index, struct bag_problem *problem)
{
    index->tree = bag_json_parse(text, bytes, problem);
    if (index->tree && check_index(index->tree, problem))
        return true;
    if (problem->kind == BAG_ERROR_BAD_REQUEST)
        problem->kind = BAG_ERROR_FILE;
    bag_safetensors_index_free(index);
    return false;
}

void bag_safetensors_index_free(struct bag_safetensors_index *index)
{
    bag_json_free(index->tree);
    index->tree = NULL;
}

const char *bag_safetensors_index_file(const struct bag_safetensors_index *index,
                                       const char *tensor)
{
    return cJSON_GetStringValue(
        bag_json_member(bag_json_member(index->tree, "weight_map"), tensor));
}

const char *bag_safetensors_index_next(const struct bag_safetensors_index *index,
                                       const struct cJSON **cursor)
{
    const cJSON *item =
        *cursor ? (*cursor)->next : bag_json_member(index->tree, "weight_map")->child;
    *cursor = item;
    return item ? item->string : NULL;
}
