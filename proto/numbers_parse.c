/* Parses JSON arrays of numbers; see numbers.h.
 *
 * One loop walks over brackets and commas. At each element it calls a run, which is a loop for the
 * array's dtype. The run reads elements as long as only commas and single spaces separate them. */
#include "numbers.h"
#include "text.h"

#include <stdio.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* After each byte of a block of integers, this many can be read. */
#define REACH_BYTES 8

/* Keeps everything in registers in the loop of a run. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* An array that is being parsed. */
struct reader {
    const char *at, *end; /* the text not yet read */
    enum bag_dtype dtype;
    char *first, *out,
        *limit;     /* memory of the elements: its start, the next free element, its end */
    size_t count;   /* number of elements that the shape requires */
    size_t surplus; /* number of elements beyond `count`, which are read, checked and dropped */
    const char *surplus_at; /* first of the surplus elements */
    char dropped[8];
    struct bag_problem *problem;
};

/* Returns the memory for the next element, which is at `at` in the text. */
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

/* Returns the next element if only a comma, or a comma and a space, separate it from the last one.
 * Otherwise returns NULL, and the loop over brackets and commas continues. */
static inline const char *next_element(const char *at, const char *end)
{
    if (end - at < 3 || *at != ',')
        return NULL;
    /* Branches are faster here: an array keeps to one style, so they are predicted, and the next
     * load need not wait for them. */
    if (at[1] > ' ' && at[1] != '[')
        return at + 1;
    return at[1] == ' ' && at[2] > ' ' && at[2] != '[' ? at + 2 : NULL;
}

/* Returns whether the character may follow an element. */
static inline bool is_separator(char c)
{
    return c == ',' || c == ']' || c == '[' || c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Returns whether the text continues with `word`. */
static inline bool word_is(const char *at, const char *end, const char *word)
{
    size_t bytes = strlen(word);
    return (size_t)(end - at) >= bytes && memcmp(at, word, bytes) == 0;
}

/* ---- rejections ------------------------------------------------------------------------------ */

/* Returns the length of the token at `at`, up to a separator. */
static size_t token_bytes(const struct reader *reader, const char *at)
{
    const char *stop = at;
    while (stop < reader->end && !is_separator(*stop))
        stop++;
    return (size_t)(stop - at);
}

/* Returns the length of the string at `at` with its quotes. The string may contain separators.
 * Returns 0 if there is no string. */
static size_t string_bytes(const struct reader *reader, const char *at)
{
    size_t left = (size_t)(reader->end - at), stop = 1;
    if (left == 0 || *at != '"')
        return 0;
    while (stop < left && at[stop] != '"')
        stop += at[stop] == '\\' ? 2 : 1;
    return stop < left ? stop + 1 : 0;
}

/* Returns the number of elements for which take_room() was called, including surplus ones. */
static size_t elements_found(const struct reader *reader)
{
    if (reader->surplus)
        return reader->count + reader->surplus;
    return (size_t)(reader->out - reader->first) / bag_dtypes[reader->dtype].bytes;
}

/* Prints which values the dtype accepts. */
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

/* Returns whether an element that does not fit INT64 would fit UINT64. It may be a key. */
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

/* Rejects the element at `element`, for which take_room() was called. Returns false. */
static bool reject_element(struct reader *reader, const char *element)
{
    char found[sizeof(struct bag_quoted) + 16], allowed[80];
    /* At ']', an element is only expected after a comma. */
    if (element < reader->end && *element == ']') {
        reader->at = element;
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "no comma may precede ']'");
    }
    /* Describe what the text has in place of a number. */
    size_t room = sizeof found;
    size_t string = string_bytes(reader, element), bytes = token_bytes(reader, element);
    if (string)
        snprintf(found, room, "the string '%s'", bag_quote(element + 1, string - 2).text);
    else if (bytes)
        snprintf(found, room, "'%s'", bag_quote(element, bytes).text);
    else
        snprintf(found, room, "missing");
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

/* Checks the number of elements after the whole array was read. */
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

/* Ends a run after the element between `element` and `after`. */
static inline bool end_run(struct reader *reader, const char *element, const char *after)
{
    if (after < reader->end && !is_separator(*after))
        return reject_element(reader, element);
    reader->at = after;
    return true;
}

/* ---- integers, exact over 64 bits ------------------------------------------------------------ */

/* Reads the remaining digits of a number with 8 or more. Returns NULL if the number does not fit
 * into 64 bits. */
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

/* Reads a JSON integer without its sign. Returns its end, or NULL if there is none. */
static inline const char *read_magnitude(const char *at, const char *end, uint64_t *magnitude)
{
    uint64_t bytes = bag_digits_load(at, end);
    unsigned count = bag_digits_run(bytes);
    if (count == 0 || ((bytes & 0xFF) == '0' && count > 1))
        return NULL;
    *magnitude = bag_digits_value(bytes, count);
    return count < 8 ? at + count : read_long(at + count, end, magnitude);
}

/* The largest magnitudes of an element's type. */
struct range {
    uint64_t positive, negative;
};

/* Returns the range of integers of this size. */
static inline struct range range_of(size_t bytes, bool is_signed)
{
    uint64_t most = UINT64_MAX >> (64 - 8 * bytes);
    return is_signed ? (struct range){most / 2, most / 2 + 1} : (struct range){most, 0};
}

/* Marks those of the next 64 bytes that are not digits: bit i is the mark of at[i]. Bytes that are
 * not followed by REACH_BYTES more are left out. */
static inline uint64_t mark_others(const char *at, const char *end)
{
    uint64_t marks = 0;
    unsigned bytes = 0;
#if defined(__SSE2__)
    const __m128i shift = _mm_set1_epi8(INT8_MAX - '9'), least = _mm_set1_epi8(INT8_MAX - 9);
    for (; bytes < 64 && end - at >= 16 + REACH_BYTES; bytes += 16, at += 16) {
        /* Digits become the largest of all bytes. */
        __m128i shifted = _mm_add_epi8(_mm_loadu_si128((const __m128i *)at), shift);
        uint64_t others = (uint64_t)_mm_movemask_epi8(_mm_cmplt_epi8(shifted, least));
        marks = marks >> 16 | others << 48;
    }
#else
    for (; bytes < 64 && end - at >= 8 + REACH_BYTES; bytes += 8, at += 8)
        marks = marks >> 8 | bag_digits_others(bag_digits_load(at, end)) << 56;
#endif
    return bytes ? marks >> (64 - bytes) : 0;
}

/* Returns the value of the first 1 to 8 of REACH_BYTES bytes, which are digits. */
static ALWAYS_INLINE uint64_t block_value(const char *at, size_t count)
{
    uint64_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bag_digits_join(bytes << (64 - 8 * count));
}

/* Returns the value of 1 to 19 digits, each of which is followed by REACH_BYTES more. */
static ALWAYS_INLINE uint64_t marked_value(const char *at, size_t count)
{
    if (count <= 8)
        return block_value(at, count);
    uint64_t value = block_value(at, 8);
    if (count > 16) {
        at += 8;
        count -= 8;
        value = value * bag_tens[8] + block_value(at, 8);
    }
    return value * bag_tens[count - 8] + block_value(at + 8, count - 8);
}

/* Reads integers of up to 19 digits that are followed by a comma. The ends of all of them are found
 * at once, because a search for the end of one would wait for that of the one before. Returns the
 * end of the last one, or NULL if there is none. The next element may be anything. */
static ALWAYS_INLINE const char *read_block(struct reader *reader, const char *element,
                                            size_t bytes, struct range range)
{
    char *out = reader->out;
    const char *block = element, *after = NULL, *limit = reader->limit;
    for (uint64_t marks = mark_others(block, reader->end); marks && out != limit;
         marks &= marks - 1) {
        bool negative = *element == '-';
        if (__builtin_expect(negative, 0)) {
            element++;
            marks &= marks - 1;
            if (!marks)
                break;
        }
        const char *stop = block + (unsigned)__builtin_ctzll(marks);
        size_t count = (size_t)(stop - element);
        if (*stop != ',' || count - 1 >= 19 || (*element == '0' && count > 1))
            break;
        uint64_t magnitude = marked_value(element, count);
        if (magnitude > (negative ? range.negative : range.positive))
            break;
        uint64_t value = negative ? 0 - magnitude : magnitude;
        memcpy(out, &value, bytes); /* the low bytes */
        out += bytes;
        after = stop;
        element = stop + 1;
        if (*element == ' ') {
            element++;
            marks &= marks - 1;
        }
    }
    reader->out = out;
    return after;
}

/* Reads a run of integers. `bytes` and `is_signed` are constants in each call, so that the compiler
 * makes a loop for each type. */
static ALWAYS_INLINE bool run_integers(struct reader *reader, size_t bytes, bool is_signed)
{
    const struct range range = range_of(bytes, is_signed);
    const char *end = reader->end;
    for (const char *element = reader->at, *next;; element = next) {
        const char *after = read_block(reader, element, bytes, range);
        if (!after) {
            uint64_t magnitude = 0;
            char *out = take_room(reader, element, bytes);
            bool negative = *element == '-';
            after = read_magnitude(element + negative, end, &magnitude);
            if (!after || magnitude > (negative ? range.negative : range.positive))
                return reject_element(reader, element);
            uint64_t value = negative ? 0 - magnitude : magnitude;
            memcpy(out, &value, bytes); /* the low bytes */
        }
        next = next_element(after, end);
        if (!next)
            return end_run(reader, element, after);
    }
}

/* Reads a run of integers of the reader's dtype. */
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

/* Reads any element without its sign. Returns its end, or NULL if there is none. */
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

/* Reads a number d.ddd whose digits fit into 64 bits. Up to 15 digits after the point, no branch
 * depends on their number, because among 6 to 9 digits the branch would often be mispredicted.
 * Returns NULL for all other elements, which read_any() reads. */
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
    if (count == 16) { /* as doubles are often printed */
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

/* Reads a run of floats of `bytes` bytes. */
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
            /* The address of `bits` is not passed to a function that is not inline, because it
             * would then live in memory. */
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

/* Reads a run of the words true and false. */
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

/* Reads elements up to the next bracket, or to white space other than one space after a comma. */
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
    reader->at = bag_space_skip(reader->at, reader->end);
}

/* Reads the whole array. Brackets may be nested in any way, because only the flat order of the
 * elements counts. */
static bool read_array(struct reader *reader)
{
    unsigned depth = 0;
    if (!next_is(reader, '['))
        return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST, "\"data\" must be an array");
    for (;;) {
        if (next_is(reader, '[')) {
            /* Take a '[' and the white space after it. Reject arrays that are nested too deep. */
            if (++depth > BAG_MAX_RANK)
                return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                                       "arrays are nested more than %d deep", BAG_MAX_RANK);
            reader->at++;
            skip_space(reader);
            if (!next_is(reader, ']'))
                continue;
        } else {
            if (!read_run(reader))
                return false;
            skip_space(reader);
        }
        /* Take brackets as long as there are any. Take no white space after the last one, which
         * ends the array. */
        while (depth && next_is(reader, ']')) {
            reader->at++;
            if (--depth)
                skip_space(reader);
        }
        if (depth == 0)
            return check_count(reader);
        if (!next_is(reader, ',')) {
            /* Reject a character that is neither ',' nor ']'. */
            if (reader->at == reader->end)
                return reject_end(reader);
            size_t bytes = token_bytes(reader, reader->at);
            return bag_problem_set(reader->problem, BAG_ERROR_BAD_REQUEST,
                                   "expected ',' or ']' instead of '%s'",
                                   bag_quote(reader->at, bytes ? bytes : 1).text);
        }
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
    /* An element takes two bytes of text with its comma or bracket, so a text has no room for more.
     */
    size_t most = text_bytes / 2, room = count < most ? count : most;
    if (room)
        reader.limit += room * bag_dtypes[dtype].bytes;
    bool ok = read_array(&reader);
    *(ok ? end : error_at) = reader.at;
    return ok;
}
