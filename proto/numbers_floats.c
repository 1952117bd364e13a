/* Runs of floats: the grammar of JSON numbers and the three words beside them; see
 * numbers_reader.h. Rounding is decimal.h's. */
#include "decimal.h"
#include "numbers_reader.h"

/* An exponent beyond this is out of range, however many digits stand before it: no text has that
 * many bytes. */
#define EXPONENT_LIMIT INT64_C(100000000000000000)

/* Takes digits onto *digits, which wraps around where they are many; returns their end. */
static inline const char *take_digits(const char *at, const char *end, uint64_t *digits)
{
    unsigned count;
    do {
        uint64_t bytes = bag_digits_load(at, end);
        count = bag_digits_run(bytes);
        if (count == 0)
            break;
        *digits = *digits * bag_tens[count] + bag_digits_value(bytes, count);
        at += count;
    } while (count == 8);
    return at;
}

/* Reads "e-12" at `at`; returns its end, or NULL where it is malformed. */
static const char *read_exponent(const char *at, const char *end, int64_t *exponent)
{
    int64_t value = 0;
    at++;
    bool negative = at < end && *at == '-';
    at += negative || (at < end && *at == '+');
    const char *start = at;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (value < EXPONENT_LIMIT)
            value = 10 * value + (*at - '0');
    }
    *exponent += negative ? -value : value;
    return at > start ? at : NULL;
}

/* Keeps the first digits of a number that has too many. */
static void cut_digits(struct bag_decimal *decimal)
{
    unsigned kept = 0;
    decimal->digits = 0;
    for (size_t i = 0; i < decimal->text_bytes; i++) {
        unsigned digit = (unsigned)decimal->text[i] - '0';
        if (decimal->text[i] == '.' || (digit == 0 && kept == 0))
            continue;
        if (kept < BAG_DECIMAL_DIGITS) {
            decimal->digits = 10 * decimal->digits + digit;
            kept++;
        } else {
            decimal->more |= digit != 0;
            decimal->exponent++;
        }
    }
}

/* Reads a JSON number that has no sign; returns its end, or NULL where there is none. */
static inline const char *read_decimal(const char *at, const char *end, struct bag_decimal *decimal)
{
    const char *start = at;
    decimal->digits = 0;
    decimal->exponent = 0;
    decimal->more = false;
    at = take_digits(at, end, &decimal->digits);
    size_t count = (size_t)(at - start);
    if (count == 0 || (*start == '0' && count > 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = ++at;
        at = take_digits(at, end, &decimal->digits);
        if (at == fraction)
            return NULL;
        decimal->exponent = fraction - at;
        count += (size_t)(at - fraction);
    }
    decimal->text = start;
    decimal->text_bytes = (size_t)(at - start);
    if (at < end && (*at == 'e' || *at == 'E')) {
        at = read_exponent(at, end, &decimal->exponent);
        if (!at)
            return NULL;
    }
    if (count > BAG_DECIMAL_DIGITS)
        cut_digits(decimal);
    return at;
}

static const char *read_word(const char *at, const char *end, const char *word)
{
    return bag_number_word(at, end, word) ? at + strlen(word) : NULL;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static inline const char *read_f32(const char *at, const char *end, char *out)
{
    struct bag_decimal decimal;
    uint32_t bits = UINT32_C(0x7FC00000);
    decimal.negative = *at == '-';
    at += decimal.negative;
    const char *after = read_decimal(at, end, &decimal);
    if (after) {
        bits = bag_decimal_to_f32(&decimal);
        if (bits << 1 == UINT32_C(0xFF000000))
            return NULL;
    } else if ((after = read_word(at, end, "Infinity")) != NULL) {
        bits = UINT32_C(0x7F800000) | (uint32_t)decimal.negative << 31;
    } else if (!decimal.negative) {
        after = read_word(at, end, "NaN");
    }
    memcpy(out, &bits, sizeof bits);
    return after;
}

static inline const char *read_f64(const char *at, const char *end, char *out)
{
    struct bag_decimal decimal;
    uint64_t bits = UINT64_C(0x7FF8000000000000);
    decimal.negative = *at == '-';
    at += decimal.negative;
    const char *after = read_decimal(at, end, &decimal);
    if (after) {
        bits = bag_decimal_to_f64(&decimal);
        if (bits << 1 == UINT64_C(0xFFE0000000000000))
            return NULL;
    } else if ((after = read_word(at, end, "Infinity")) != NULL) {
        bits = UINT64_C(0x7FF0000000000000) | (uint64_t)decimal.negative << 63;
    } else if (!decimal.negative) {
        after = read_word(at, end, "NaN");
    }
    memcpy(out, &bits, sizeof bits);
    return after;
}

typedef const char *read_function(const char *at, const char *end, char *out);

static inline __attribute__((always_inline)) bool run(struct bag_number_reader *reader,
                                                      size_t bytes, read_function *read)
{
    const char *end = reader->end, *next = reader->at, *element, *after;
    do {
        element = next;
        after = read(element, end, bag_number_room(reader, element, bytes));
        if (!after)
            return bag_number_refuse(reader, element);
        next = bag_number_next(after, end);
    } while (next);
    return bag_number_pause(reader, element, after);
}

bool bag_number_run_f32(struct bag_number_reader *reader)
{
    return run(reader, 4, read_f32);
}

bool bag_number_run_f64(struct bag_number_reader *reader)
{
    return run(reader, 8, read_f64);
}
