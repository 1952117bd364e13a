/* Writes JSON documents; see json_writer.h. */
#include "json_writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void put(struct bag_json_writer *json, const char *text)
{
    bag_growing_put(&json->text, text, strlen(text));
}

/* Writes a string with its quotes. Escapes only what JSON requires and copies UTF-8. */
static void put_text(struct bag_json_writer *json, const char *text)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    put(json, "\"");
    for (const char *at = text; *at; at++) {
        const char *plain = at;
        while ((unsigned char)*at >= ' ' && *at != '"' && *at != '\\')
            at++;
        bag_growing_put(&json->text, plain, (size_t)(at - plain));
        if (!*at)
            break;
        const char *found = strchr(special, *at);
        char escape[8] = {'\\', found ? letters[found - special] : 0};
        if (!found)
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*at);
        put(json, escape);
    }
    put(json, "\"");
}

/* Begins a line of a document for people, indented by tabs. */
static void put_line(struct bag_json_writer *json, unsigned depth)
{
    put(json, "\n");
    for (unsigned i = 0; i < depth; i++)
        put(json, "\t");
}

/* Writes what precedes a value: a comma unless the value is the first of its container, and the key
 * if there is one. The last byte that was written shows whether it is the first. */
static void begin_value(struct bag_json_writer *json, const char *key)
{
    const struct bag_growing_text *text = &json->text;
    const char last = text->bytes ? text->text[text->bytes - 1] : '[';
    if (last != '[' && last != '{')
        put(json, json->is_pretty && !key ? ", " : ",");
    if (!key)
        return;
    if (json->is_pretty)
        put_line(json, json->depth);
    put_text(json, key);
    put(json, json->is_pretty ? ":\t" : ":");
}

void bag_json_open(struct bag_json_writer *json, const char *key, char bracket)
{
    begin_value(json, key);
    bag_growing_put(&json->text, &bracket, 1);
    json->depth++;
    json->arrays = json->arrays << 1 | (bracket == '[');
}

void bag_json_close(struct bag_json_writer *json)
{
    const bool is_array = json->arrays & 1;
    json->arrays >>= 1;
    json->depth--;
    if (json->is_pretty && !is_array)
        put_line(json, json->depth);
    put(json, is_array ? "]" : "}");
}

/* Prints a number with 15 digits, or with 17 if it would otherwise read back as another one. NaN
 * and infinity become null. */
static void print_real(char *text, size_t capacity, double real)
{
    if (!isfinite(real)) {
        strcpy(text, "null");
        return;
    }
    snprintf(text, capacity, "%.15g", real);
    if (strtod(text, NULL) != real)
        snprintf(text, capacity, "%.17g", real);
}

void bag_json_count(struct bag_json_writer *json, const char *key, uint64_t count)
{
    char digits[BAG_DIGITS_BYTES + 1];
    *bag_digits_put(digits, count) = 0;
    bag_json_raw(json, key, digits);
}

void bag_json_write(struct bag_json_writer *json, const struct bag_json_member *members,
                    size_t count)
{
    for (const struct bag_json_member *at = members; at < members + count; at++) {
        char text[32] = "null";
        if (!at->key)
            continue;
        if (at->kind == BAG_JSON_COUNT) {
            bag_json_count(json, at->key, at->value.count);
            continue;
        }
        begin_value(json, at->key);
        if (at->kind == BAG_JSON_TEXT && at->value.text) {
            put_text(json, at->value.text);
            continue;
        }
        if (at->kind == BAG_JSON_INTEGER)
            *bag_integer_put(text, at->value.integer) = 0;
        else if (at->kind == BAG_JSON_REAL)
            print_real(text, sizeof text, at->value.real);
        else if (at->kind == BAG_JSON_FLAG)
            strcpy(text, at->value.flag ? "true" : "false");
        put(json, text);
    }
}

void bag_json_texts(struct bag_json_writer *json, const char *key, const char *const *texts,
                    size_t count)
{
    bag_json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        begin_value(json, NULL);
        put_text(json, texts[i]);
    }
    bag_json_close(json);
}

void bag_json_integers(struct bag_json_writer *json, const char *key, const int64_t *integers,
                       size_t count)
{
    bag_json_open(json, key, '[');
    for (size_t i = 0; i < count; i++) {
        char text[24];
        *bag_integer_put(text, integers[i]) = 0;
        bag_json_raw(json, NULL, text);
    }
    bag_json_close(json);
}

void bag_json_raw(struct bag_json_writer *json, const char *key, const char *value)
{
    begin_value(json, key);
    put(json, value);
}

char *bag_json_end(struct bag_json_writer *json)
{
    while (json->depth)
        bag_json_close(json);
    return bag_growing_end(&json->text);
}

char *bag_json_document(const struct bag_json_member *members, size_t count)
{
    struct bag_json_writer json = {.is_pretty = false};
    bag_json_open(&json, NULL, '{');
    bag_json_write(&json, members, count);
    return bag_json_end(&json);
}
