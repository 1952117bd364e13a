/* Text as bytes: parts of it, UTF-8, percent-encoding, digits, sizes such as 64MiB, and the name
 * that is nearest to a misspelt one. */
#ifndef BAG_TEXT_H
#define BAG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A part of a text, borrowed and not NUL-terminated. */
struct bag_text {
    const char *data; /* NULL: none */
    size_t bytes;
};

/* Whether the text is exactly `name`. */
bool bag_text_is(struct bag_text text, const char *name);

bool bag_text_equal(struct bag_text a, struct bag_text b);

/* FNV-1a of the bytes, on from `hash`, which is BAG_HASH_START at first. */
#define BAG_HASH_START UINT64_C(14695981039346656037)
static inline uint64_t bag_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (const unsigned char *at = data, *end = at + bytes; at < end; at++)
        hash = (hash ^ *at) * UINT64_C(1099511628211);
    return hash;
}

static inline uint64_t bag_hash_word(uint64_t hash, uint64_t word)
{
    return bag_hash_bytes(hash, &word, sizeof word);
}

/* How a digest of 64 bits is written, and room for it with the NUL. */
#define BAG_DIGEST_PRINT "%016" PRIx64
#define BAG_DIGEST_BYTES 17

/* Whether there is more in the text than its end, which is `end`. */
bool bag_text_ends_with(struct bag_text text, const char *end);
static inline bool bag_has_suffix(const char *name, const char *suffix)
{
    return bag_text_ends_with((struct bag_text){name, strlen(name)}, suffix);
}

/* The value of a header line without the blanks behind it, which are no part of it. */
struct bag_text bag_text_without_blanks(const char *value);

/* Bytes (2 to 4) of the multi-byte UTF-8 character that starts at `at` < `end`; 0 where it is
 * invalid, truncated by `end`, overlong, a surrogate or beyond U+10FFFF, or where the byte starts
 * none. */
size_t bag_utf8_bytes(const char *at, const char *end);

/* Decodes `count` bytes of a path segment with percent-encoding (RFC 3986) into `out`, which has
 * room for `out_bytes` with the NUL that ends it. False where a '%' is not followed by two
 * hexadecimal digits, where a NUL byte would come out, or where there is too little room. */
bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes);

/* Leaves of every absolute path in the text its last part: "in /srv/a/t.npy: ..." becomes "in
 * t.npy: ...". A path begins after a blank, a quote or a parenthesis, and goes on to the next. */
void bag_text_hide_folders(char *text);

/* The value of a hexadecimal digit, or -1. */
static inline int bag_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Digits of the largest count. */
#define BAG_DIGITS_BYTES 20

/* Writes the decimal digits of `value`; returns their end. No NUL is added. For headers and small
 * replies, where printf's formatting would cost more than the rest. */
static inline char *bag_digits_put(char *out, uint64_t value)
{
    size_t bytes = 1;
    for (uint64_t least = 10; bytes < BAG_DIGITS_BYTES && value >= least; least *= 10)
        bytes++;
    for (char *at = out + bytes; at > out; value /= 10)
        *--at = (char)('0' + value % 10);
    return out + bytes;
}

/* Writes a text without the NUL that ends it; returns its end. Likewise. */
static inline char *bag_text_put(char *out, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

#define BAG_KIB INT64_C(1024)
#define BAG_MIB (1024 * BAG_KIB)
#define BAG_GIB (1024 * BAG_MIB)

/* A decimal integer without superfluous zeros and nothing around it; false for other texts. One
 * beyond 64 bits becomes the nearest int64_t. */
bool bag_integer_parse(const char *text, int64_t *value);

/* The same, and after at most one space a unit may follow: KiB, MiB, GiB (of 1024), KB, MB, GB (of
 * 1000). */
bool bag_size_parse(const char *text, int64_t *bytes);

/* Such an integer of 64 bits, with or without a sign: from -2^63 to 2^64 - 1, as its bits. */
bool bag_key_parse(const char *text, int64_t *bits);

/* "64 MiB", "1 byte", "1000 bytes": exact, in the largest unit of 1024 that divides it. By value,
 * so that it can stand in an argument list: bag_size_text(n).text */
struct bag_size_text {
    char text[32];
};
struct bag_size_text bag_size_text(int64_t bytes);

/* "Did you mean ...?": the candidate nearest to what was written, whatever the case of letters.
 * Offer the candidates one after the other; nothing is allocated, and a candidate may be gone after
 * its offer. */
struct bag_suggestion {
    const char *written; /* borrowed */
    char nearest[64];    /* "" before the first offer; the first one among equals */
    size_t distance;     /* inserted, removed, replaced and swapped characters between the two;
                            1 where the candidate begins with what was written */
};

void bag_suggest_offer(struct bag_suggestion *suggestion, const char *candidate);

#endif
