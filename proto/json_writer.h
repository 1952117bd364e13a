/* Writes JSON documents: replies, reports and spans.
 *
 *     struct bag_json_writer json = {.is_pretty = false};
 *     bag_json_open(&json, NULL, '{');
 *     BAG_JSON_WRITE(&json, BAG_KEY("name", name), BAG_KEY("rows", rows));
 *     bag_json_texts(&json, "versions", versions, count);
 *     text = bag_json_end(&json);
 *
 * A writer puts the commas, escapes texts, and remembers that memory was exhausted: only the end
 * says so. Texts are UTF-8, and NULL is written as null. Writers may be used on any thread. */
#pragma once

#include "text.h"

struct bag_json_writer {
    bool is_pretty; /* in lines for people */
    struct bag_growing_text text;
    unsigned depth;  /* open objects and arrays, at most 63 */
    uint64_t arrays; /* bit i: container i is an array */
};

/* One member of an object. A member whose key is NULL is not written. */
struct bag_json_member {
    const char *key;
    enum { BAG_JSON_TEXT, BAG_JSON_COUNT, BAG_JSON_INTEGER, BAG_JSON_REAL, BAG_JSON_FLAG } kind;
    union {
        const char *text;
        uint64_t count;
        int64_t integer;
        double real; /* written as null if it is not finite */
        bool flag;
    } value;
};

/* Make members of each type; see BAG_KEY. The texts are borrowed. */
static inline struct bag_json_member bag_key_text(const char *key, const char *text)
{
    return (struct bag_json_member){key, BAG_JSON_TEXT, {.text = text}};
}
static inline struct bag_json_member bag_key_count(const char *key, uint64_t count)
{
    return (struct bag_json_member){key, BAG_JSON_COUNT, {.count = count}};
}
static inline struct bag_json_member bag_key_integer(const char *key, int64_t integer)
{
    return (struct bag_json_member){key, BAG_JSON_INTEGER, {.integer = integer}};
}
static inline struct bag_json_member bag_key_real(const char *key, double real)
{
    return (struct bag_json_member){key, BAG_JSON_REAL, {.real = real}};
}
static inline struct bag_json_member bag_key_flag(const char *key, bool flag)
{
    return (struct bag_json_member){key, BAG_JSON_FLAG, {.flag = flag}};
}

/* Makes a member by the type of its value. There is none for int, which is also the type of a
 * comparison: a flag must be a bool. */
#define BAG_KEY(name, content) \
    _Generic((content),             \
        char *: bag_key_text,       \
        const char *: bag_key_text, \
        uint64_t: bag_key_count,    \
        uint32_t: bag_key_count,    \
        int64_t: bag_key_integer,   \
        double: bag_key_real,       \
        bool: bag_key_flag)((name), (content))

/* BAG_KEY if a condition holds, otherwise a member that is not written. */
#define BAG_KEY_IF(condition, name, content) \
    ((condition) ? BAG_KEY(name, content) : (struct bag_json_member){.key = NULL})

/* Writes members. */
void bag_json_write(struct bag_json_writer *json, const struct bag_json_member *members,
                    size_t count);
#define BAG_JSON_WRITE(json, ...)                                          \
    bag_json_write(json, (const struct bag_json_member[]){__VA_ARGS__},    \
                   sizeof((const struct bag_json_member[]){__VA_ARGS__}) / \
                       sizeof(struct bag_json_member))

/* Open an object '{' or an array '[', and close the last one that is open. `key` is the key in the
 * object around it. It is NULL for an element of an array and for the whole document. */
void bag_json_open(struct bag_json_writer *json, const char *key, char bracket);
void bag_json_close(struct bag_json_writer *json);

/* Writes a number as a member, or as an element of an array if `key` is NULL. */
void bag_json_count(struct bag_json_writer *json, const char *key, uint64_t count);

/* Write arrays of texts, and of integers. */
void bag_json_texts(struct bag_json_writer *json, const char *key, const char *const *texts,
                    size_t count);
void bag_json_integers(struct bag_json_writer *json, const char *key, const int64_t *integers,
                       size_t count);

/* Writes `value`, which must be valid JSON, without changing it. */
void bag_json_raw(struct bag_json_writer *json, const char *key, const char *value);

/* Closes what is open and returns the text, which the caller frees. Returns NULL if memory is
 * exhausted. */
char *bag_json_end(struct bag_json_writer *json);

/* Returns a document of these members alone. */
#define BAG_JSON_DOCUMENT(...)                                                \
    bag_json_document((const struct bag_json_member[]){__VA_ARGS__},          \
                      sizeof((const struct bag_json_member[]){__VA_ARGS__}) / \
                          sizeof(struct bag_json_member))
char *bag_json_document(const struct bag_json_member *members, size_t count);
