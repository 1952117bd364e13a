/* JSON arrays of numbers -> elements; see numbers.h.
 *
 * One loop walks brackets and commas. Wherever an element is expected it hands over to a run, which
 * reads elements for as long as they follow each other closely, in a loop of its dtype's own. */
#include "numbers.h"

#include <stdio.h>
#include <string.h>

/* In a run's loop everything stays in registers. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* An array while it is read. */
struct reader {
    const char *at, *end; /* the text not yet read */
    enum bag_dtype dtype;
    char *first, *out, *limit; /* the elements' room: all, what is free, its end */
    size_t count;              /* of elements that there should be */
    size_t surplus;            /* elements found beyond that: read, checked and dropped */
    const char *surplus_at;    /* the first of them */
    char dropped[8];
    struct bag_problem *problem;
};

/* Where the next element goes. `at` is its place in the text. */
static inline char *take_room(struct reader *reader, const char *at, size_t bytes)
{
    if (__builtin_expect(reader->out == reader->limit, 0)) {
        if (reader->surplus++ == 0)
            reader->surplus_at = at;
        reader->out = reader->dropped;
        reader->limit = reader->dropped + bytes;
    }
    char *room = reader->out;
    reader->out += bytes;
    return room;
}

/* After an element: the next one where only a comma, or one and a space, is between; NULL where
 * the loop over brackets and commas goes on. */
static inline const char *next_element(const char *at, const char *end)
{
    if (end - at < 3 || *at != ',')
        return NULL;
    /* Branches, because arrays keep to one style and the next load need not wait for them. */
    if (at[1] > ' ' && at[1] != '[')
        return at + 1;
    return at[1] == ' ' && at[2] > ' ' && at[2] != '[' ? at + 2 : NULL;
}

/* What may follow an element. */
static inline bool is_separator(char c)
{
    return c == ',' || c == ']' || c == '[' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Whether the text goes on with `word`. */
static inline bool word_is(const char *at, const char *end, const char *word)
{
    size_t bytes = strlen(word);
    return (size_t)(end - at) >= bytes && memcmp(at, word, bytes) == 0;
}

/* ---- rejections ------------------------------------------------------------------------------ */

/* Bytes of the token at `at`, up to what may follow an element. */
static size_t token_bytes(const struct reader *reader, const char *at)
{
    const char *stop = at;
    while (stop < reader->end && !is_separator(*stop))
        stop++;
    return (size_t)(stop - at);
}

/* Of the string that begins here, with its quotes; it may hold separators. 0 where none does. */
static size_t string_bytes(const struct reader *reader, const char *at)
{
    size_t left = (size_t)(reader->end - at), stop = 1;
    if (left == 0 || *at != '"')
        return 0;
    while (stop < left && at[stop] != '"')
        stop += at[stop] == '\\' ? 2 : 1;
    return stop < left ? stop + 1 : 0;
}

/* What there is where a number was expected. */
static void put_element(const struct reader *reader, const char *element, char *out, size_t room)
{
    size_t string = string_bytes(reader, element), bytes = token_bytes(reader, element);
    if (string)
        snprintf(out, room, "the string '%s'", bag_quote(element + 1, string - 2).text);
    else if (bytes)
        snprintf(out, room, "'%s'", bag_quote(element, bytes).text);
    else
        snprintf(out, room, "missing");
}

static size_t elements_found(const struct reader *reader)
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

/* Whether the element is an INT64's that UINT64 would hold: a key, perhaps. */
static bool fits_u64(const struct reader *reader, const char *element)
{
    const size_t bytes = token_bytes(reader, element), most_bytes = 20;
    size_t digits = 0;
    while (digits < bytes && element[digits] >= '0' && element[digits] <= '9')
        digits++;
    return reader->dtype == BAG_I64 && digits == bytes && bytes >= most_bytes - 1 &&
           (bytes < most_bytes ||
            (bytes == most_bytes && memcmp(element, "18446744073709551615", most_bytes) <= 0));
}

/* Rejects the element at `element`, for which room was taken; returns false. */
static bool reject_element(struct reader *reader, const char *element)
{
    char found[sizeof(struct bag_quoted) + 16], allowed[80];
    put_element(reader, element, found, sizeof found);
    put_allowed(reader->dtype, allowed, sizeof allowed);
    reader->at = element;
    return bag_problem_set(
        reader->problem, BAG_ERROR_BAD_REQUEST, "element %zu is %s; %s takes %s%s",
        elements_found(reader) - 1, found, bag_dtypes[reader->dtype].name, allowed,
        fits_u64(reader, element) ? "; send keys that are larger as UINT64" : "");
}

static bool reject_end(struct reader *reader)
{
    return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "the array is not closed");
}

/* Something else than ',' or ']'. */
static bool reject_separator(struct reader *reader)
{
    if (reader->at == reader->end)
        return reject_end(reader);
    size_t bytes = token_bytes(reader, reader->at);
    return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                           "expected ',' or ']' instead of '%s'",
                           bag_quote(reader->at, bytes ? bytes : 1).text);
}

/* The whole array was read: were there as many elements as there should be? */
static bool check_count(struct reader *reader)
{
    size_t found = elements_found(reader);
    if (found == reader->count)
        return true;
    reader->at = reader->surplus ? reader->surplus_at : reader->at - 1;
    return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                           "\"data\" has %zu element%s, the shape needs %zu", found,
                           found == 1 ? "" : "s", reader->count);
}

/* Ends a run after the element that goes from `element` to `after`. */
static inline bool end_run(struct reader *reader, const char *element, const char *after)
{
    if (after < reader->end && !is_separator(*after))
        return reject_element(reader, element);
    reader->at = after;
    return true;
}

/* ---- integers, exact over 64 bits ------------------------------------------------------------ */

/* Reads the digits of a number of 8 digits or more; NULL where it does not fit 64 bits. */
static const char *read_long(const char *at, const char *end, uint64_t *magnitude)
{
    unsigned count;
    do {
        uint64_t bytes = bag_digits_load(at, end);
        count = bag_digits_run(bytes);
        if (__builtin_mul_overflow(*magnitude, bag_tens[count], magnitude) ||
            __builtin_add_overflow(*magnitude, bag_digits_value(bytes, count), magnitude))
            return NULL;
        at += count;
    } while (count == 8);
    return at;
}

/* Reads a JSON integer without its sign; returns its end, or NULL where there is none. */
static inline const char *read_magnitude(const char *at, const char *end, uint64_t *magnitude)
{
    uint64_t bytes = bag_digits_load(at, end);
    unsigned count = bag_digits_run(bytes);
    if (count == 0 || ((bytes & 0xFF) == '0' && count > 1))
        return NULL;
    *magnitude = bag_digits_value(bytes, count);
    return count < 8 ? at + count : read_long(at + count, end, magnitude);
}

/* The largest magnitudes of elements of `bytes` bytes. */
struct range {
    uint64_t positive, negative;
};

static inline struct range range_of(size_t bytes, bool is_signed)
{
    uint64_t most = UINT64_MAX >> (64 - 8 * bytes);
    return is_signed ? (struct range){most / 2, most / 2 + 1} : (struct range){most, 0};
}

/* Reads an element of one to seven digits behind which another digit follows closely, as nearly all
 * ids are, by one load; returns where that digit is. NULL for everything else. */
static ALWAYS_INLINE const char *read_short(const char *at, const char *end, uint64_t *value)
{
    if (end - at < 10)
        return NULL;
    uint64_t bytes = bag_digits_load(at, end);
    unsigned count = bag_digits_run(bytes);
    if (count == 0 || count == 8 || ((bytes & 0xFF) == '0' && count > 1) || at[count] != ',')
        return NULL;
    at += count + 1;
    if (*at == ' ')
        at++;
    *value = bag_digits_value(bytes, count);
    return *at >= '0' && *at <= '9' ? at : NULL;
}

static ALWAYS_INLINE bool run_integers(struct reader *reader, size_t bytes, bool is_signed)
{
    const struct range range = range_of(bytes, is_signed);
    const char *end = reader->end;
    for (const char *element = reader->at, *next;; element = next) {
        uint64_t magnitude = 0;
        char *out = take_room(reader, element, bytes);
        next = read_short(element, end, &magnitude);
        if (next && magnitude <= range.positive) {
            memcpy(out, &magnitude, bytes);
            continue;
        }
        magnitude = 0;
        bool negative = __builtin_expect(*element == '-', 0);
        const char *after = read_magnitude(element + negative, end, &magnitude);
        if (!after || magnitude > (negative ? range.negative : range.positive))
            return reject_element(reader, element);
        uint64_t value = negative ? 0 - magnitude : magnitude;
        memcpy(out, &value, bytes); /* the low bytes */
        next = next_element(after, end);
        if (!next)
            return end_run(reader, element, after);
    }
}

static bool read_integers(struct reader *reader)
{
    bool is_signed = bag_dtypes[reader->dtype].kind == BAG_KIND_SIGNED;
    switch (bag_dtypes[reader->dtype].bytes) {
    case 1:
        return is_signed ? run_integers(reader, 1, true) : run_integers(reader, 1, false);
    case 2:
        return is_signed ? run_integers(reader, 2, true) : run_integers(reader, 2, false);
    case 4:
        return is_signed ? run_integers(reader, 4, true) : run_integers(reader, 4, false);
    default:
        return is_signed ? run_integers(reader, 8, true) : run_integers(reader, 8, false);
    }
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* Reads any element but for its sign; returns its end, or NULL where there is none. */
static __attribute__((noinline)) const char *
read_any(const char *at, const char *end, struct bag_float_format format, uint64_t *bits)
{
    const char *after = bag_decimal_read(at, end, format, bits);
    if (after)
        return *bits < format.infinity ? after : NULL;
    *bits = format.infinity;
    if (word_is(at, end, "Infinity"))
        return at + 8;
    *bits |= UINT64_C(1) << (format.fraction_bits - 1);
    return word_is(at, end, "NaN") && at[-1] != '-' ? at + 3 : NULL;
}

/* Reads d.ddd whose digits fit 64 bits, and with up to 15 after the point has no branch that
 * depends on how many: among 6 to 9 it would often be foretold wrongly. NULL for everything else,
 * which read_any reads. */
static ALWAYS_INLINE const char *read_common(const char *at, const char *end,
                                             struct bag_float_format format, uint64_t *bits)
{
    if (end - at < 18 || at[1] != '.' || *at < '0' || *at > '9')
        return NULL;
    uint64_t digits = (uint64_t)(*at - '0');
    uint64_t front = bag_digits_load(at + 2, end), back = bag_digits_load(at + 10, end);
    unsigned fronts = bag_digits_run(front), backs = fronts == 8 ? bag_digits_run(back) : 0;
    unsigned count = fronts + backs, lasts = 0;
    digits = digits * bag_tens[fronts] + bag_digits_value(front, fronts);
    digits = digits * bag_tens[backs] + bag_digits_value(back, backs);
    if (count == 16) { /* as doubles have it */
        uint64_t last = bag_digits_load(at + 18, end);
        lasts = bag_digits_run(last);
        if (__builtin_mul_overflow(digits, bag_tens[lasts], &digits) ||
            __builtin_add_overflow(digits, bag_digits_value(last, lasts), &digits))
            return NULL;
        count += lasts;
    }
    at += 2 + count;
    if (count == 0 || lasts == 8 || digits == 0 || at == end || *at == 'e' || *at == 'E')
        return NULL;
    return bag_decimal_round(digits, -(int)count, false, format, bits) ? at : NULL;
}

static ALWAYS_INLINE bool run_floats(struct reader *reader, size_t bytes,
                                     struct bag_float_format format)
{
    const char *end = reader->end, *next = reader->at, *element, *after;
    do {
        element = next;
        char *out = take_room(reader, element, bytes);
        bool negative = *element == '-';
        uint64_t bits = 0;
        after = read_common(element + negative, end, format, &bits);
        if (!after) {
            uint64_t any = 0;
            after = read_any(element + negative, end, format, &any);
            if (!after)
                return reject_element(reader, element);
            bits = any;
        }
        bits |= (uint64_t)negative << (8 * bytes - 1);
        memcpy(out, &bits, bytes);
        next = next_element(after, end);
    } while (next);
    return end_run(reader, element, after);
}

/* ---- booleans -------------------------------------------------------------------------------- */

static bool run_bools(struct reader *reader)
{
    const char *next = reader->at, *element, *after;
    do {
        element = next;
        char *out = take_room(reader, element, 1);
        bool yes = word_is(element, reader->end, "true");
        if (!yes && !word_is(element, reader->end, "false"))
            return reject_element(reader, element);
        *out = yes;
        after = element + (yes ? 4 : 5);
        next = next_element(after, reader->end);
    } while (next);
    return end_run(reader, element, after);
}

/* ---- brackets and commas --------------------------------------------------------------------- */

static bool read_run(struct reader *reader)
{
    if (reader->at == reader->end)
        return reject_end(reader);
    switch (reader->dtype) {
    case BAG_BOOL:
        return run_bools(reader);
    case BAG_F32:
        return run_floats(reader, 4, BAG_F32_FORMAT);
    case BAG_F64:
        return run_floats(reader, 8, BAG_F64_FORMAT);
    default:
        return read_integers(reader);
    }
}

static bool next_is(const struct reader *reader, char byte)
{
    return reader->at < reader->end && *reader->at == byte;
}

static void skip_space(struct reader *reader)
{
    while (next_is(reader, ' ') || next_is(reader, '\n') || next_is(reader, '\r') ||
           next_is(reader, '\t'))
        reader->at++;
}

static bool open_bracket(struct reader *reader, unsigned *depth)
{
    if (++*depth > BAG_MAX_RANK)
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                               "arrays are nested more than %d deep", BAG_MAX_RANK);
    reader->at++;
    skip_space(reader);
    return true;
}

static void close_brackets(struct reader *reader, unsigned *depth)
{
    while (*depth && next_is(reader, ']')) {
        reader->at++;
        if (--*depth)
            skip_space(reader);
    }
}

static bool read_array(struct reader *reader)
{
    unsigned depth = 0;
    if (!next_is(reader, '['))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "\"data\" must be an array");
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
    struct reader reader = {.at = text,
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
