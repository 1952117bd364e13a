/* Text as bytes; see text.h. */
#include "text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bag_text_add(char *text, size_t capacity, const char *format, ...)
{
    size_t used = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + used, capacity - used, format, values);
    va_end(values);
}

bool bag_text_is(struct bag_text text, const char *name)
{
    size_t i = 0;
    while (i < text.bytes && name[i] && name[i] == text.data[i])
        i++;
    return i == text.bytes && !name[i];
}

bool bag_text_equal(struct bag_text a, struct bag_text b)
{
    return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0;
}

bool bag_text_ends_with(struct bag_text text, const char *end)
{
    size_t bytes = strlen(end);
    return text.bytes > bytes && memcmp(text.data + text.bytes - bytes, end, bytes) == 0;
}

struct bag_text bag_text_without_blanks(const char *value)
{
    size_t bytes = strlen(value);
    while (bytes && (value[bytes - 1] == ' ' || value[bytes - 1] == '\t'))
        bytes--;
    return (struct bag_text){value, bytes};
}

size_t bag_utf8_bytes(const char *at, const char *end)
{
    /* The first byte gives the length. C0, C1 and F5 to FF never begin a character. */
    const unsigned char *s = (const unsigned char *)at;
    size_t left = (size_t)(end - at);
    size_t bytes = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || left < bytes)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    /* The second byte excludes overlong forms, surrogates, and characters beyond U+10FFFF. */
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return bytes;
}

void bag_text_hide_folders(char *text)
{
    static const char around[] = " \t\n'\"()";
    char *out = text;
    bool begins = true; /* a path may begin here */
    for (const char *at = text; *at;) {
        if (begins && *at == '/') {
            /* Move to the last component: to the byte after the last slash before the path's end.
             */
            for (const char *next = at; *next && !strchr(around, *next); next++)
                at = *next == '/' && next[1] && !strchr(around, next[1]) ? next + 1 : at;
        }
        begins = strchr(around, *at) != NULL;
        *out++ = *at++;
    }
    *out = 0;
}

bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        int byte = (unsigned char)segment[i];
        if (byte == '%') {
            if (count - i < 3)
                return false;
            int high = bag_hex_digit(segment[i + 1]), low = bag_hex_digit(segment[i + 2]);
            byte = high < 0 || low < 0 ? 0 : high * 16 + low;
            i += 2;
        }
        if (byte == 0 || used + 1 >= out_bytes)
            return false;
        out[used++] = (char)byte;
    }
    out[used] = 0;
    return true;
}

/* ---- numbers as people write them ------------------------------------------------------------ */

/* The units of 1024 come first, because only they are printed. */
static const struct {
    const char *name;
    int64_t bytes;
} units[] = {
    {"GiB", BAG_GIB},   {"MiB", BAG_MIB}, {"KiB", BAG_KIB},
    {"GB", 1000000000}, {"MB", 1000000},  {"KB", 1000},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool bag_length_parse(struct bag_text text, uint64_t *length)
{
    *length = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        if (!is_digit(text.data[i]) || *length > (INT64_MAX - 9) / 10)
            return false;
        *length = *length * 10 + (uint64_t)(text.data[i] - '0');
    }
    return text.bytes > 0;
}

/* Reads an integer and returns its end, or NULL if the text does not begin with one. Saturates on
 * overflow. */
static const char *take_integer(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    bool overflow = false;
    text += negative;
    if (!is_digit(*text) || (text[0] == '0' && is_digit(text[1])))
        return NULL;
    *value = 0;
    for (; is_digit(*text); text++) {
        int64_t digit = negative ? '0' - *text : *text - '0';
        overflow |= __builtin_mul_overflow(*value, 10, value);
        overflow |= __builtin_add_overflow(*value, digit, value);
    }
    if (overflow)
        *value = negative ? INT64_MIN : INT64_MAX;
    return text;
}

bool bag_integer_parse(const char *text, int64_t *value)
{
    const char *end = take_integer(text, value);
    return end && !*end;
}

bool bag_key_parse(const char *text, int64_t *bits)
{
    errno = 0;
    if (!bag_integer_parse(text, bits))
        return false;
    if (*text == '-')
        *bits = (int64_t)strtoll(text, NULL, 10);
    else
        *bits = (int64_t)strtoull(text, NULL, 10);
    return errno == 0;
}

bool bag_size_parse(const char *text, int64_t *bytes)
{
    const char *unit = take_integer(text, bytes);
    if (!unit || !*unit)
        return unit != NULL;
    unit += *unit == ' ';
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].name) != 0)
            continue;
        if (__builtin_mul_overflow(*bytes, units[i].bytes, bytes))
            *bytes = *text == '-' ? INT64_MIN : INT64_MAX;
        return true;
    }
    return false;
}

struct bag_size_text bag_size_text(int64_t bytes)
{
    struct bag_size_text shown;
    for (size_t i = 0; bytes > 0 && i < sizeof units / sizeof *units; i++) {
        if (units[i].bytes % BAG_KIB == 0 && bytes % units[i].bytes == 0) {
            snprintf(shown.text, sizeof shown.text, "%" PRId64 " %s", bytes / units[i].bytes,
                     units[i].name);
            return shown;
        }
    }
    snprintf(shown.text, sizeof shown.text, "%" PRId64 " byte%s", bytes, bytes == 1 ? "" : "s");
    return shown;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

/* The number of characters of a name that are compared. */
#define COMPARED_BYTES 48

/* Ignores case, so that PORT is nearest to port. */
static unsigned char letter_of(char byte)
{
    return (unsigned char)tolower((unsigned char)byte);
}

/* Returns the edit distance of Damerau and Levenshtein with swaps of neighbours only. It computes
 * one column of the table of distances at a time. Each cell is two bits: whether it is one more, or
 * one less, than the cell above it (Hyyro's algorithm). A client's unknown name is compared with
 * the names of up to a thousand features, and computing cell by cell would take 15 us for each. */
static size_t distance_of(const char *a, const char *b)
{
    uint64_t places[256] = {0}; /* for each letter, a bit for each position in `a` */
    size_t a_bytes = strnlen(a, COMPARED_BYTES), b_bytes = strnlen(b, COMPARED_BYTES);
    if (a_bytes == 0)
        return b_bytes;
    for (size_t i = 0; i < a_bytes; i++)
        places[letter_of(a[i])] |= UINT64_C(1) << i;
    uint64_t more = UINT64_MAX, less = 0; /* one more than the cell above; one less */
    uint64_t diagonal = 0;                /* equal to the cell up and left */
    uint64_t before = 0;                  /* matches of the previous letter */
    size_t distance = a_bytes;            /* value of the lowest cell */
    for (size_t j = 0; j < b_bytes; j++) {
        uint64_t same = places[letter_of(b[j])];
        uint64_t swapped = ((~diagonal & same) << 1) & before;
        diagonal = (((same & more) + more) ^ more) | same | less | swapped;
        uint64_t right_more = less | ~(diagonal | more), right_less = diagonal & more;
        distance += right_more >> (a_bytes - 1) & 1;
        distance -= right_less >> (a_bytes - 1) & 1;
        right_more = right_more << 1 | 1;
        more = right_less << 1 | ~(diagonal | right_more);
        less = right_more & diagonal;
        before = same;
    }
    return distance;
}

void bag_suggest_offer(struct bag_suggestion *suggestion, const char *candidate)
{
    size_t distance = distance_of(suggestion->written, candidate);
    size_t written_bytes = strlen(suggestion->written);
    if (distance > 1 && written_bytes &&
        strncmp(candidate, suggestion->written, written_bytes) == 0)
        distance = 1; /* the beginning of a name counts as one wrong letter */
    if (suggestion->nearest[0] && distance >= suggestion->distance)
        return;
    snprintf(suggestion->nearest, sizeof suggestion->nearest, "%s", candidate);
    suggestion->distance = distance;
}

bool bag_suggestion_is_near(const struct bag_suggestion *suggestion)
{
    const char *written = suggestion->written, *nearest = suggestion->nearest;
    size_t written_bytes = strnlen(written, COMPARED_BYTES);
    size_t nearest_bytes = strnlen(nearest, COMPARED_BYTES);
    size_t longer = written_bytes > nearest_bytes ? written_bytes : nearest_bytes;
    size_t common = 0; /* a long common beginning such as BAGSERVE_ does not make names similar */
    while (common < written_bytes && letter_of(written[common]) == letter_of(nearest[common]))
        common++;
    return suggestion->distance < longer && 3 * suggestion->distance <= longer - common + 2;
}

struct bag_question bag_suggestion_question(const struct bag_suggestion *suggestion,
                                            const char *quote)
{
    struct bag_question question = {""};
    if (!bag_suggestion_is_near(suggestion))
        return question;
    snprintf(question.text, sizeof question.text, "; did you mean %s%s%s?", quote,
             suggestion->nearest, quote);
    for (char *at = question.text; *at; at++)
        *at = iscntrl((unsigned char)*at) ? '?' : *at;
    return question;
}

/* ---- texts that grow ------------------------------------------------------------------------- */

void bag_growing_put(struct bag_growing_text *out, const char *bytes, size_t count)
{
    enum { FIRST_BYTES = 1024 };
    if (!out->failed && count > out->room - out->bytes) {
        size_t room = out->room ? 2 * out->room : FIRST_BYTES;
        while (room - out->bytes < count)
            room *= 2;
        char *text = realloc(out->text, room);
        out->failed = !text;
        if (text) {
            out->text = text;
            out->room = room;
        }
    }
    if (out->failed)
        return;
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
}

char *bag_growing_end(struct bag_growing_text *out)
{
    bag_growing_put(out, "", 1);
    if (!out->failed)
        return out->text;
    free(out->text);
    return NULL;
}
