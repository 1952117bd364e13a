/* Log lines; see log.h. Must not know: what is logged, or why. */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A longer line is cut; the message of a refused file, with its path, fits. */
#define LINE_BYTES 8192

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

static void add_byte(struct line *line, char byte)
{
    if (line->bytes < LINE_BYTES - 8) /* room for the end of a JSON line */
        line->text[line->bytes++] = byte;
}

static void add(struct line *line, const char *text)
{
    while (*text)
        add_byte(line, *text++);
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

/* In double quotes; control characters cannot start a new line or steer a terminal. */
static void add_quoted(struct line *line, const char *text)
{
    add_byte(line, '"');
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (byte == '"' || byte == '\\')
            add_format(line, "\\%c", byte);
        else if (byte < 0x20 || byte == 0x7F)
            add_format(line, "\\u%04x", byte);
        else
            add_byte(line, *text);
    }
    add_byte(line, '"');
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
    add_format(line, "\",\"level\":\"%s\",\"event\":", level_names[level]);
    add_quoted(line, event);
    for (; fields->key; fields++) {
        add_byte(line, ',');
        add_quoted(line, fields->key);
        add_byte(line, ':');
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
        else if (*fields->text && !strpbrk(fields->text, " \"\\\t\r\n\x1b\x7f"))
            add(line, fields->text);
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
