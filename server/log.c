/* Log lines; see log.h. Must not know: what is logged, or why. */
#include "log.h"

#include "proto/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A longer line is cut; the message of a rejected file, with its path, fits. */
#define LINE_BYTES 8192

/* Values end here at the latest: what stands around them is short. */
#define VALUES_BYTES (LINE_BYTES - 1024)

static enum bag_log_format line_format = BAG_LOG_FORMAT_TEXT;
static enum bag_log_level least_level = BAG_LOG_LEVEL_INFO;

struct line {
    char text[LINE_BYTES];
    size_t bytes;
};

static const char *const level_names[] = {
#define BAG_X(id, name) name,
    BAG_LOG_LEVELS(BAG_X)
#undef BAG_X
};

void bag_log_configure(enum bag_log_format format, enum bag_log_level level)
{
    line_format = format;
    least_level = level;
}

/* All of the bytes or none, so that no character is cut. */
static void add_bytes(struct line *line, const char *text, size_t bytes, size_t most)
{
    if (bytes <= most - line->bytes && line->bytes <= most) {
        memcpy(line->text + line->bytes, text, bytes);
        line->bytes += bytes;
    }
}

static void add(struct line *line, const char *text)
{
    add_bytes(line, text, strlen(text), LINE_BYTES - 8);
}

__attribute__((format(printf, 2, 3))) static void add_format(struct line *line, const char *format,
                                                             ...)
{
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    add(line, text);
}

/* How many bytes of a value stand as they are: 0 for what would start a new line, steer a terminal,
 * end a quoted value or is no character. */
static size_t plain_bytes(const char *text, const char *end)
{
    unsigned char byte = (unsigned char)*text;
    if (byte < 0x80)
        return byte >= 0x20 && byte != 0x7F && byte != '"' && byte != '\\';
    return byte == 0xC2 && (unsigned char)text[1] < 0xA0 ? 0 : bag_utf8_bytes(text, end);
}

/* In double quotes. A byte that belongs to no character becomes \xNN, itself quoted. */
static void add_quoted(struct line *line, const char *text)
{
    const char *end = text + strlen(text);
    add(line, "\"");
    while (text < end) {
        unsigned char byte = (unsigned char)*text;
        char escaped[8];
        size_t bytes = plain_bytes(text, end);
        if (bytes)
            add_bytes(line, text, bytes, VALUES_BYTES);
        else if (byte == '"' || byte == '\\')
            add_bytes(line, (char[]){'\\', *text}, 2, VALUES_BYTES);
        else
            add_bytes(line, escaped,
                      (size_t)sprintf(escaped, byte < 0x80 ? "\\u%04x" : "\\\\x%02x", byte),
                      VALUES_BYTES);
        text += bytes ? bytes : 1;
    }
    add(line, "\"");
}

/* Whether a value can do without quotes in a line of text. */
static bool is_word(const char *text)
{
    const char *at = text, *end = text + strlen(text);
    for (size_t bytes; at < end && *at != ' ' && (bytes = plain_bytes(at, end)); at += bytes)
        ;
    return at > text && at == end;
}

static void add_time(struct line *line)
{
    struct timespec now;
    struct tm utc;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    add_format(line, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

static void add_json(struct line *line, enum bag_log_level level, const char *event,
                     const struct bag_log_field *fields)
{
    add(line, "{\"time\":\"");
    add_time(line);
    add_format(line, "\",\"level\":\"%s\",\"event\":\"%s\"", level_names[level], event);
    for (; fields->key; fields++) {
        add_format(line, ",\"%s\":", fields->key);
        if (fields->text)
            add_quoted(line, fields->text);
        else
            add_format(line, "%lld", (long long)fields->number);
    }
    line->text[line->bytes++] = '}';
}

static void add_text(struct line *line, enum bag_log_level level, const char *event,
                     const struct bag_log_field *fields)
{
    add_time(line);
    add_format(line, " %-7s ", level_names[level]);
    add(line, event);
    for (; fields->key; fields++) {
        add_format(line, " %s=", fields->key);
        if (!fields->text)
            add_format(line, "%lld", (long long)fields->number);
        else if (is_word(fields->text))
            add_bytes(line, fields->text, strlen(fields->text), VALUES_BYTES);
        else
            add_quoted(line, fields->text);
    }
}

void bag_log_fields(enum bag_log_level level, const char *event, const struct bag_log_field *fields)
{
    struct line line;
    if (level > least_level)
        return;
    line.bytes = 0;
    if (line_format == BAG_LOG_FORMAT_JSON)
        add_json(&line, level, event, fields);
    else
        add_text(&line, level, event, fields);
    line.text[line.bytes++] = '\n';
    /* There is nobody to tell that the log cannot be written. */
    if (write(STDERR_FILENO, line.text, line.bytes) < 0)
        return;
}
