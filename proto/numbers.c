/* JSON arrays of numbers: brackets, commas, counts and what is said when they are wrong; see
 * numbers.h. What an element looks like is left to the runs of numbers_reader.h. */
#include "numbers_reader.h"

#include <stdio.h>

/* ---- rejections --------------------------------------------------------------------------------
 */

/* Bytes of what stands at `at`, up to what may follow an element. */
static size_t token_bytes(const struct bag_number_reader *reader, const char *at)
{
    const char *stop = at;
    while (stop < reader->end && !bag_number_separator(*stop))
        stop++;
    return (size_t)(stop - at);
}

/* Of the string that begins here, with its quotes; it may hold separators. 0 where none does. */
static size_t string_bytes(const struct bag_number_reader *reader, const char *at)
{
    size_t left = (size_t)(reader->end - at), stop = 1;
    if (left == 0 || *at != '"')
        return 0;
    while (stop < left && at[stop] != '"')
        stop += at[stop] == '\\' ? 2 : 1;
    return stop < left ? stop + 1 : 0;
}

/* What stands where a number must. */
static void put_element(const struct bag_number_reader *reader, const char *element, char *out,
                        size_t room)
{
    size_t string = string_bytes(reader, element), bytes = token_bytes(reader, element);
    if (string)
        snprintf(out, room, "the string '%s'", bag_quote(element + 1, string - 2).text);
    else if (bytes)
        snprintf(out, room, "'%s'", bag_quote(element, bytes).text);
    else
        snprintf(out, room, "missing");
}

static size_t elements_found(const struct bag_number_reader *reader)
{
    if (reader->surplus)
        return reader->count + reader->surplus;
    return (size_t)(reader->out - reader->first) / bag_dtypes[reader->dtype].bytes;
}

/* Says what the dtype takes. */
static void put_allowed(enum bag_dtype dtype, char *out, size_t room)
{
    uint64_t most = UINT64_MAX >> (64 - 8 * bag_dtypes[dtype].bytes);
    if (dtype == BAG_BOOL)
        snprintf(out, room, "true and false");
    else if (bag_dtypes[dtype].kind == BAG_KIND_FLOAT)
        snprintf(out, room, "JSON numbers within its range, NaN, Infinity and -Infinity");
    else if (bag_dtypes[dtype].kind == BAG_KIND_UNSIGNED)
        snprintf(out, room, "integers from 0 to %llu", (unsigned long long)most);
    else
        snprintf(out, room, "integers from %lld to %lld", -(long long)(most / 2) - 1,
                 (long long)(most / 2));
}

bool bag_number_reject(struct bag_number_reader *reader, const char *element)
{
    char stands[sizeof(struct bag_quoted) + 16], allowed[80];
    put_element(reader, element, stands, sizeof stands);
    put_allowed(reader->dtype, allowed, sizeof allowed);
    reader->at = element;
    return bag_problem_set(reader->problem, 400, "element %zu is %s; %s takes %s",
                           elements_found(reader) - 1, stands, bag_dtypes[reader->dtype].name,
                           allowed);
}

static bool reject_end(struct bag_number_reader *reader)
{
    return bag_problem_set(reader->problem, 400, "the array is not closed");
}

/* Something stands where ',' or ']' must. */
static bool reject_separator(struct bag_number_reader *reader)
{
    if (reader->at == reader->end)
        return reject_end(reader);
    size_t bytes = token_bytes(reader, reader->at);
    return bag_problem_set(reader->problem, 400, "'%s' stands where ',' or ']' must",
                           bag_quote(reader->at, bytes ? bytes : 1).text);
}

/* The whole array was read: were there as many elements as there should be? */
static bool check_count(struct bag_number_reader *reader)
{
    size_t found = elements_found(reader);
    if (found == reader->count)
        return true;
    reader->at = reader->surplus ? reader->surplus_at : reader->at - 1;
    return bag_problem_set(reader->problem, 400, "\"data\" has %zu element%s, the shape needs %zu",
                           found, found == 1 ? "" : "s", reader->count);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static bool run_bools(struct bag_number_reader *reader)
{
    const char *next = reader->at, *element, *after;
    do {
        element = next;
        char *out = bag_number_room(reader, element, 1);
        bool yes = bag_number_word(element, reader->end, "true");
        if (!yes && !bag_number_word(element, reader->end, "false"))
            return bag_number_reject(reader, element);
        *out = yes;
        after = element + (yes ? 4 : 5);
        next = bag_number_next(after, reader->end);
    } while (next);
    return bag_number_pause(reader, element, after);
}

static bool read_run(struct bag_number_reader *reader)
{
    if (reader->at == reader->end)
        return reject_end(reader);
    switch (reader->dtype) {
    case BAG_BOOL:
        return run_bools(reader);
    case BAG_F32:
        return bag_number_run_f32(reader);
    case BAG_F64:
        return bag_number_run_f64(reader);
    default:
        return bag_number_run_integers(reader);
    }
}

static bool next_is(const struct bag_number_reader *reader, char byte)
{
    return reader->at < reader->end && *reader->at == byte;
}

static void skip_space(struct bag_number_reader *reader)
{
    while (next_is(reader, ' ') || next_is(reader, '\n') || next_is(reader, '\r') ||
           next_is(reader, '\t'))
        reader->at++;
}

static bool open_bracket(struct bag_number_reader *reader, unsigned *depth)
{
    if (++*depth > BAG_MAX_RANK)
        return bag_problem_set(reader->problem, 400, "arrays are nested more than %d deep",
                               BAG_MAX_RANK);
    reader->at++;
    skip_space(reader);
    return true;
}

static void close_brackets(struct bag_number_reader *reader, unsigned *depth)
{
    while (*depth && next_is(reader, ']')) {
        reader->at++;
        if (--*depth)
            skip_space(reader);
    }
}

static bool read_array(struct bag_number_reader *reader)
{
    unsigned depth = 0;
    if (!next_is(reader, '['))
        return bag_problem_set(reader->problem, 400, "\"data\" must be an array");
    for (;;) {
        if (next_is(reader, '[')) {
            if (!open_bracket(reader, &depth))
                return false;
            if (!next_is(reader, ']'))
                continue;
        } else {
            if (!read_run(reader))
                return false;
            skip_space(reader);
        }
        close_brackets(reader, &depth);
        if (depth == 0)
            return check_count(reader);
        if (!next_is(reader, ','))
            return reject_separator(reader);
        reader->at++;
        skip_space(reader);
    }
}

bool bag_numbers_parse(const char *text, size_t text_bytes, enum bag_dtype dtype, size_t count,
                       void *out, const char **end, const char **error_at,
                       struct bag_problem *problem)
{
    struct bag_number_reader reader = {.at = text,
                                       .end = text + text_bytes,
                                       .dtype = dtype,
                                       .first = out,
                                       .out = out,
                                       .limit = out,
                                       .count = count,
                                       .problem = problem};
    if (count)
        reader.limit += count * bag_dtypes[dtype].bytes;
    bool ok = read_array(&reader);
    *(ok ? end : error_at) = reader.at;
    return ok;
}
