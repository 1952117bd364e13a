/* Random lengths and ids; see draw.h. */
#include "draw.h"

#include "config/synthetic.h"
#include "proto/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns a random number below `count`. */
static uint64_t below(uint64_t count, uint64_t *state)
{
    return (uint64_t)(((unsigned __int128)bag_random(state) * count) >> 64);
}

/* ---- how many ids a bag has ------------------------------------------------------------------ */

/* Parses a number of ids. */
static bool parse_count(const char *text, size_t bytes, uint64_t *count)
{
    char digits[16];
    int64_t value;
    if (bytes >= sizeof digits)
        return false;
    memcpy(digits, text, bytes);
    digits[bytes] = 0;
    if (!bag_integer_parse(digits, &value) || value < 0 || value > BAG_BENCH_MAX_IDS)
        return false;
    *count = (uint64_t)value;
    return true;
}

/* Parses N,N,... Returns false and leaves no list if the text is anything else. */
static bool parse_list(const char *text, struct bag_bench_lengths *lengths)
{
    size_t room = strlen(text);
    lengths->kind = BAG_BENCH_EACH;
    if (!(lengths->list = calloc(room + 1, sizeof *lengths->list)))
        return false;
    for (;; text++) {
        size_t bytes = strcspn(text, ",");
        if (!parse_count(text, bytes, &lengths->list[lengths->count++]))
            break;
        text += bytes;
        if (!*text)
            return true;
    }
    free(lengths->list);
    lengths->list = NULL;
    lengths->count = 0;
    return false;
}

bool bag_bench_lengths_parse(const char *text, struct bag_bench_lengths *lengths)
{
    static const char lognormal[] = "lognormal:";
    size_t bytes = strcspn(text, "-");
    int end = 0;
    *lengths = (struct bag_bench_lengths){.kind = BAG_BENCH_RANGE};
    if (strncmp(text, lognormal, sizeof lognormal - 1) == 0) { /* MEDIAN,SIGMA */
        lengths->kind = BAG_BENCH_LOGNORMAL;
        text += sizeof lognormal - 1;
        return sscanf(text, "%lf,%lf%n", &lengths->median, &lengths->sigma, &end) == 2 &&
               !text[end] && lengths->median >= 1 && lengths->median <= BAG_BENCH_MAX_IDS &&
               lengths->sigma >= 0 && lengths->sigma <= 10;
    }
    if (strchr(text, ','))
        return parse_list(text, lengths);
    /* N is the range N-N. */
    const char *high = text[bytes] ? text + bytes + 1 : text;
    return parse_count(text, bytes, &lengths->low) &&
           parse_count(high, strlen(high), &lengths->high) && lengths->low <= lengths->high;
}

/* Draws a length from a lognormal distribution, rounded and at least 1, by Box and Muller's
 * transform. */
static size_t lognormal_length(const struct bag_bench_lengths *lengths, uint64_t *state)
{
    double radius = sqrt(-2 * log1p(-bag_random_unit(state)));
    double normal = radius * cos(2 * M_PI * bag_random_unit(state));
    double length = round(lengths->median * exp(lengths->sigma * normal));
    return length < 1 ? 1 : length > BAG_BENCH_MAX_IDS ? BAG_BENCH_MAX_IDS : (size_t)length;
}

size_t bag_bench_shared_length(const struct bag_bench_lengths *lengths, uint64_t *state)
{
    size_t length = lengths->kind == BAG_BENCH_HISTORY ? lognormal_length(lengths, state) : 0;
    return length < lengths->high ? length : (size_t)lengths->high;
}

size_t bag_bench_length(const struct bag_bench_lengths *lengths, size_t place, size_t shared,
                        uint64_t *state)
{
    switch (lengths->kind) {
    case BAG_BENCH_LOGNORMAL:
        return lognormal_length(lengths, state);
    case BAG_BENCH_EACH:
        return lengths->list[place % lengths->count];
    case BAG_BENCH_HISTORY:
        return lengths->list[place % lengths->count] == BAG_MLPERF_HISTORY
                   ? shared
                   : lengths->list[place % lengths->count];
    case BAG_BENCH_SAMPLE:
        return lengths->list[below(lengths->count, state)];
    case BAG_BENCH_RANGE:
        break;
    }
    return lengths->low + below(lengths->high - lengths->low + 1, state);
}

/* ---- which ids ------------------------------------------------------------------------------- */

/* Returns the greatest common divisor, by Euclid's algorithm. */
static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Multiplies ranks by the golden section of the number of rows, so that frequent rows are far from
 * each other, as in a table that is ordered by a hash. The multiplier is coprime to the number of
 * rows: every rank has a row of its own. */
struct bag_bench_ids bag_bench_ids_of(uint64_t rows, double zipf)
{
    struct bag_bench_ids ids = {rows, zipf, (uint64_t)((double)rows * 0.6180339887)};
    ids.stride += ids.stride == 0;
    while (common_divisor(ids.stride, rows) != 1)
        ids.stride++;
    return ids;
}

/* Draws a rank by the continuous form of Zipf's law over 1 to rows + 1, whose integral has an
 * inverse. */
static uint64_t zipf_rank(double exponent, uint64_t rows, uint64_t *state)
{
    /* An exponent of 1 has another integral: the logarithm. */
    double power = 1 - exponent, unit = bag_random_unit(state), end = (double)rows + 1;
    double rank = exponent == 1 ? pow(end, unit) : pow(1 + unit * (pow(end, power) - 1), 1 / power);
    return rank >= 1 && rank < end ? (uint64_t)rank - 1 : rank < 1 ? 0 : rows - 1;
}

uint64_t bag_bench_id(const struct bag_bench_ids *ids, uint64_t *state)
{
    if (ids->zipf <= 0)
        return below(ids->rows, state);
    uint64_t rank = zipf_rank(ids->zipf, ids->rows, state);
    return (uint64_t)((unsigned __int128)rank * ids->stride % ids->rows);
}
