/* The names for the lists of bag.h, table.h, part.h and isa.h. */
#include "isa.h"
#include "part.h"
#include "table.h"

#include <string.h>

const struct bag_dtype_info bag_dtypes[BAG_DTYPE_COUNT] = {
#define BAG_X(id, name, bytes, kind) [BAG_##id] = {name, bytes, BAG_KIND_##kind},
    BAG_DTYPES(BAG_X)
#undef BAG_X
};

const char *const bag_reduction_names[BAG_REDUCTION_COUNT] = {BAG_REDUCTIONS(BAG_NAME)};

const char *const bag_input_names[BAG_INPUT_COUNT] = {BAG_INPUTS(BAG_NAME)};

const char *const bag_status_keywords[BAG_STATUS_COUNT] = {BAG_STATUSES(BAG_NAME)};

const char *const bag_missing_names[BAG_MISSING_COUNT] = {BAG_MISSINGS(BAG_NAME)};

const char *const bag_form_names[BAG_FORM_COUNT] = {BAG_FORMS(BAG_NAME)};

const char *const bag_row_format_names[BAG_ROW_FORMAT_COUNT] = {BAG_ROW_FORMATS(BAG_NAME)};

const char *const bag_part_way_names[BAG_PART_WAY_COUNT] = {BAG_PART_WAYS(BAG_NAME)};

const char *const bag_isa_names[BAG_ISA_COUNT] = {BAG_ISAS(BAG_NAME)};

static bool is_word(const char *word, const char *name, size_t name_bytes)
{
    return strlen(word) == name_bytes && memcmp(word, name, name_bytes) == 0;
}

/* Returns the index of a name among `count`, or `count` if it is not there. */
static unsigned find(const char *const *words, unsigned count, const char *name, size_t name_bytes)
{
    unsigned i = 0;
    while (i < count && !is_word(words[i], name, name_bytes))
        i++;
    return i;
}

enum bag_dtype bag_dtype_find(const char *name, size_t name_bytes)
{
    unsigned i = 0;
    while (i < BAG_DTYPE_COUNT && !is_word(bag_dtypes[i].name, name, name_bytes))
        i++;
    return (enum bag_dtype)i;
}

enum bag_reduction bag_reduction_find(const char *name, size_t name_bytes)
{
    return (enum bag_reduction)find(bag_reduction_names, BAG_REDUCTION_COUNT, name, name_bytes);
}

enum bag_row_format bag_row_format_find(const char *name, size_t name_bytes)
{
    return (enum bag_row_format)find(bag_row_format_names, BAG_ROW_FORMAT_COUNT, name, name_bytes);
}

enum bag_part_by bag_part_way_find(const char *name, size_t name_bytes)
{
    return (enum bag_part_by)find(bag_part_way_names, BAG_PART_WAY_COUNT, name, name_bytes);
}

enum bag_isa bag_isa_find(const char *name, size_t name_bytes)
{
    return (enum bag_isa)find(bag_isa_names, BAG_ISA_COUNT, name, name_bytes);
}
