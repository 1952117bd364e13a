/* Text as bytes: borrowed parts, UTF-8, percent-encoding, decimal digits, sizes such as 64MiB, and
 * suggestions for misspelt names. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A part of a text. It is borrowed and not NUL-terminated. */
struct bag_text {
    const char *data; /* NULL: none */
    size_t bytes;
};

/* Appends to a text in memory of `capacity` bytes. Text beyond it is cut off. */
void bag_text_add(char *text, size_t capacity, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns whether the text is exactly `name`. */
bool bag_text_is(struct bag_text text, const char *name);

/* Returns whether both texts have the same bytes. */
bool bag_text_equal(struct bag_text a, struct bag_text b);

/* Returns the FNV-1a hash of the bytes, continued from `hash`, which is BAG_HASH_START for the
 * first bytes. */
#define BAG_HASH_START UINT64_C(14695981039346656037)
static inline uint64_t bag_hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    for (const unsigned char *at = data, *end = at + bytes; at < end; at++)
        hash = (hash ^ *at) * UINT64_C(1099511628211);
    return hash;
}

/* Returns the hash continued with the bytes of a number. */
static inline uint64_t bag_hash_word(uint64_t hash, uint64_t word)
{
    return bag_hash_bytes(hash, &word, sizeof word);
}

/* The printf format of a 64-bit digest, and its size with the NUL. */
#define BAG_DIGEST_PRINT "%016" PRIx64
#define BAG_DIGEST_BYTES 17

/* Writes a digest as BAG_DIGEST_PRINT does, with a NUL. Requests to shards have one, and printf
 * would take as long as the rest of their headers. */
static inline void bag_digest_put(char text[BAG_DIGEST_BYTES], uint64_t digest)
{
    for (size_t i = BAG_DIGEST_BYTES - 1; i-- > 0; digest >>= 4)
        text[i] = "0123456789abcdef"[digest & 15];
    text[BAG_DIGEST_BYTES - 1] = 0;
}

/* Returns whether the text ends with `end` and is longer than it. */
bool bag_text_ends_with(struct bag_text text, const char *end);
static inline bool bag_has_suffix(const char *name, const char *suffix)
{
    return bag_text_ends_with((struct bag_text){name, strlen(name)}, suffix);
}

/* Returns the value of a header line without trailing blanks. */
struct bag_text bag_text_without_blanks(const char *value);

/* Returns the number of bytes (2 to 4) of the multi-byte UTF-8 character that starts at `at` <
 * `end`. Returns 0 if there is no such character: it is invalid, truncated by `end`, overlong, a
 * surrogate, or beyond U+10FFFF. */
size_t bag_utf8_bytes(const char *at, const char *end);

/* Decodes `count` bytes of a percent-encoded path segment (RFC 3986) into `out`, which has a
 * capacity of `out_bytes` including the final NUL. Returns false if a '%' is not followed by two
 * hexadecimal digits, if the result would contain a NUL byte, or if it does not fit. */
bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes);

/* Replaces every absolute path in the text by its last component: "in /srv/a/t.npy: ..." becomes
 * "in t.npy: ...". A path begins after a blank, a quote or a parenthesis and extends to the next
 * one. */
void bag_text_hide_folders(char *text);

/* Returns the value of a hexadecimal digit, or -1. */
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

/* Returns the first byte from `at` on that is no white space of JSON, or `end`. */
static inline const char *bag_space_skip(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Number of digits of the largest uint64_t. */
#define BAG_DIGITS_BYTES 20

/* Writes the decimal digits of `value` without a NUL and returns their end. It is for headers and
 * small replies, for which printf would cost more than everything else. */
static inline char *bag_digits_put(char *out, uint64_t value)
{
    size_t bytes = 1;
    for (uint64_t least = 10; bytes < BAG_DIGITS_BYTES && value >= least; least *= 10)
        bytes++;
    for (char *at = out + bytes; at > out; value /= 10)
        *--at = (char)('0' + value % 10);
    return out + bytes;
}

/* Writes a number likewise, with a minus sign if it is negative. */
static inline char *bag_integer_put(char *out, int64_t value)
{
    if (value < 0)
        *out++ = '-';
    return bag_digits_put(out, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

/* Writes a text without its NUL and returns its end. */
static inline char *bag_text_put(char *out, const char *text)
{
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

/* A text that grows. If memory is exhausted, it drops all that is appended later, and
 * bag_growing_end returns NULL. A writer therefore checks only once. An empty text is all zeros. */
struct bag_growing_text {
    char *text; /* owned */
    size_t bytes, room;
    bool failed;
};

/* Appends bytes. */
void bag_growing_put(struct bag_growing_text *out, const char *bytes, size_t count);

/* Ends the text with a NUL and returns it; the caller frees it. Returns NULL, and frees what was
 * written, if memory was exhausted. */
char *bag_growing_end(struct bag_growing_text *out);

#define BAG_KIB INT64_C(1024)
#define BAG_MIB (1024 * BAG_KIB)
#define BAG_GIB (1024 * BAG_MIB)

/* Parses the length in a header of HTTP: digits alone, also leading zeros. Returns false if the
 * text is anything else, or the length exceeds 2^63 - 1. */
bool bag_length_parse(struct bag_text text, uint64_t *length);

/* Parses a decimal integer. Returns false if the text is anything else, has leading zeros or
 * blanks. A value beyond 64 bits becomes the nearest int64_t. */
bool bag_integer_parse(const char *text, int64_t *value);

/* Parses a decimal integer that may be followed by at most one space and a unit: KiB, MiB, GiB (of
 * 1024), KB, MB, GB (of 1000). */
bool bag_size_parse(const char *text, int64_t *bytes);

/* Parses a key, a decimal integer from -2^63 to 2^64 - 1, and stores its 64 bits. */
bool bag_key_parse(const char *text, int64_t *bits);

/* Returns "64 MiB", "1 byte", "1000 bytes": the exact size in the largest unit of 1024 that divides
 * it. The result is a value, so that bag_size_text(n).text can be an argument. */
struct bag_size_text {
    char text[32];
};
struct bag_size_text bag_size_text(int64_t bytes);

/* The state of a search for "did you mean ...?": the candidate nearest to a misspelt word,
 * regardless of case. The caller offers candidates one after the other. Nothing is allocated, and a
 * candidate need not outlive its offer. */
struct bag_suggestion {
    const char *written; /* borrowed */
    char nearest[64];    /* "" before the first offer; the first one among equals */
    size_t distance; /* edit distance (insertions, removals, replacements, swaps); at most 1 if the
                        candidate begins with the word */
};

/* Compares one more candidate with the word. */
void bag_suggest_offer(struct bag_suggestion *suggestion, const char *candidate);

/* Returns whether the nearest candidate is similar enough to be what was meant: at most a third of
 * the letters after their common beginning differ. */
bool bag_suggestion_is_near(const struct bag_suggestion *suggestion);

/* The question "; did you mean 'NEAREST'?", or an empty text if no candidate is near. It is a value
 * for an argument list. `quote` is put around the name, and may be "". Control characters of
 * the name become '?'. */
struct bag_question {
    char text[96];
};
struct bag_question bag_suggestion_question(const struct bag_suggestion *suggestion,
                                            const char *quote);
