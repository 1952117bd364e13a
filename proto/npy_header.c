/* A strict reader of the one Python literal that .npy headers hold; see npy_header.h.
 *
 * Must not know: element types, sizes, what the numbers are used for. */
#include "npy_header.h"

#include <string.h>

struct cursor {
    const char *text, *at, *end;
    struct bag_problem *problem;
};

/* ---- characters ------------------------------------------------------------------------------ */

/* `wrong` is a finding at the cursor. */
static bool fail(const struct cursor *cursor, const char *wrong)
{
    return bag_problem_set(cursor->problem, 400, "the .npy header is malformed at its byte %zu: %s",
                           (size_t)(cursor->at - cursor->text), wrong);
}

static void skip_space(struct cursor *cursor)
{
    while (cursor->at < cursor->end && (*cursor->at == ' ' || *cursor->at == '\t' ||
                                        *cursor->at == '\n' || *cursor->at == '\r'))
        cursor->at++;
}

static bool next_is(const struct cursor *cursor, char byte)
{
    return cursor->at < cursor->end && *cursor->at == byte;
}

/* Takes `byte` and the white space on both sides of it; false where something else stands there. */
static bool take(struct cursor *cursor, char byte)
{
    skip_space(cursor);
    if (!next_is(cursor, byte))
        return false;
    cursor->at++;
    skip_space(cursor);
    return true;
}

static bool take_word(struct cursor *cursor, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(cursor->end - cursor->at) < bytes || memcmp(cursor->at, word, bytes) != 0)
        return false;
    cursor->at += bytes;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A string in either kind of quotes. Escapes never occur in the headers of plain arrays. */
static bool read_string(struct cursor *cursor, const char **string, size_t *bytes)
{
    if (!next_is(cursor, '\'') && !next_is(cursor, '"'))
        return fail(cursor, "a quoted string must stand here");
    char quote = *cursor->at++;
    const char *start = cursor->at;
    for (; cursor->at < cursor->end; cursor->at++) {
        if (*cursor->at == quote) {
            *string = start;
            *bytes = (size_t)(cursor->at++ - start);
            return true;
        }
        if (*cursor->at == '\\' || (unsigned char)*cursor->at < ' ')
            return fail(cursor, "strings must not hold escapes or control characters");
    }
    return fail(cursor, "the string is not closed");
}

static bool read_descr(struct cursor *cursor, struct bag_npy_header *header)
{
    if (next_is(cursor, '[') || next_is(cursor, '(') || next_is(cursor, '{'))
        return bag_problem_set(cursor->problem, 400,
                               "the array is structured (several fields in one element); a table "
                               "must hold plain numbers");
    return read_string(cursor, &header->descr, &header->descr_bytes);
}

static bool read_fortran_order(struct cursor *cursor, struct bag_npy_header *header)
{
    header->fortran_order = take_word(cursor, "True");
    return header->fortran_order || take_word(cursor, "False") ||
           fail(cursor, "'fortran_order' must be True or False");
}

static bool is_digit(const struct cursor *cursor)
{
    return cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9';
}

static bool read_dimension(struct cursor *cursor, int64_t *dimension)
{
    if (!is_digit(cursor))
        return fail(cursor, "a dimension must be a whole number from 0");
    bool leading_zero = *cursor->at == '0';
    int64_t value = 0;
    do {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *cursor->at - '0', &value))
            return fail(cursor, "the dimension passes 2^63 - 1");
        cursor->at++;
        if (leading_zero && is_digit(cursor))
            return fail(cursor, "a number must not begin with 0");
    } while (is_digit(cursor));
    if (next_is(cursor, 'L')) /* as Python 2 wrote long integers */
        cursor->at++;
    *dimension = value;
    return true;
}

/* A tuple: (), (3,), (3, 4) or (3, 4,). Without its comma, (3) is a number to Python. */
static bool read_shape(struct cursor *cursor, struct bag_npy_header *header)
{
    bool comma = true;
    if (!take(cursor, '('))
        return fail(cursor, "'shape' must be a tuple such as (3, 4)");
    while (!next_is(cursor, ')')) {
        if (!comma)
            return fail(cursor, "',' or ')' must follow a dimension");
        if (header->rank == BAG_MAX_RANK)
            return fail(cursor, "the array has more than 32 dimensions");
        if (!read_dimension(cursor, &header->shape[header->rank++]))
            return false;
        comma = take(cursor, ',');
        skip_space(cursor);
    }
    if (header->rank == 1 && !comma)
        return fail(cursor, "a shape of one dimension must have a comma, as in (3,)");
    cursor->at++;
    return true;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

/* X(name, its reader). A missing key is reported in this order. */
#define NPY_KEYS(X)                        \
    X("descr", read_descr)                 \
    X("fortran_order", read_fortran_order) \
    X("shape", read_shape)

static const struct {
    const char *name;
    bool (*read)(struct cursor *cursor, struct bag_npy_header *header);
} keys[] = {
#define BAG_X(name, read) {name, read},
    NPY_KEYS(BAG_X)
#undef BAG_X
};

enum { NUM_KEYS = sizeof keys / sizeof keys[0] };

static size_t find_key(const char *name, size_t bytes)
{
    size_t key = 0;
    while (key < NUM_KEYS &&
           (strlen(keys[key].name) != bytes || memcmp(keys[key].name, name, bytes) != 0))
        key++;
    return key;
}

static bool read_entry(struct cursor *cursor, struct bag_npy_header *header, bool seen[NUM_KEYS])
{
    const char *name;
    size_t bytes;
    if (!read_string(cursor, &name, &bytes))
        return false;
    size_t key = find_key(name, bytes);
    if (key == NUM_KEYS)
        return bag_problem_set(cursor->problem, 400,
                               "the .npy header has the unknown key '%s'; its keys are 'descr', "
                               "'fortran_order' and 'shape'",
                               bag_quote(name, bytes).text);
    if (seen[key])
        return bag_problem_set(cursor->problem, 400, "the .npy header has the key '%s' twice",
                               keys[key].name);
    seen[key] = true;
    if (!take(cursor, ':'))
        return fail(cursor, "':' must follow the key");
    return keys[key].read(cursor, header);
}

static bool read_dictionary(struct cursor *cursor, struct bag_npy_header *header,
                            bool seen[NUM_KEYS])
{
    bool comma = true;
    if (!take(cursor, '{'))
        return fail(cursor, "a dictionary must begin here with '{'");
    while (!take(cursor, '}')) {
        if (!comma)
            return fail(cursor, "',' or '}' must follow a value");
        if (!read_entry(cursor, header, seen))
            return false;
        comma = take(cursor, ',');
    }
    return cursor->at == cursor->end || fail(cursor, "nothing may follow the dictionary");
}

bool bag_npy_header_read(const char *text, size_t text_bytes, struct bag_npy_header *header,
                         struct bag_problem *problem)
{
    struct cursor cursor = {.text = text, .at = text, .end = text + text_bytes, .problem = problem};
    bool seen[NUM_KEYS] = {false};
    memset(header, 0, sizeof *header);
    if (!read_dictionary(&cursor, header, seen))
        return false;
    for (size_t key = 0; key < NUM_KEYS; key++)
        if (!seen[key])
            return bag_problem_set(problem, 400, "the .npy header has no key '%s'", keys[key].name);
    return true;
}
