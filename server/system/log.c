/* Formats and writes log lines; see log.h. */
#include "log.h"

#include "monitor.h"
#include "thread_team.h"

#include "proto/text.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

/* The maximum length of a line; longer ones are truncated. The message about a rejected file, with
 * its path, fits. */
#define LINE_BYTES 8192

/* Values are truncated here, which leaves enough space for keys and numbers. */
#define VALUES_BYTES (LINE_BYTES - 1024)

static enum bag_log_format line_format = BAG_LOG_FORMAT_TEXT;
static enum bag_log_level min_level = BAG_LOG_LEVEL_INFO;

/* How long bag_log_stop waits for a reader. */
#define STOP_S 1

/* How long the writer pauses after writing, unless a line is urgent. It then writes many lines at
 * once and need not be woken for each. */
#define REST_NS 20000000

/* The writer does not pause if more bytes than this wait. */
#define MUCH_BYTES (BAG_LOG_BUFFER_BYTES / 4)

struct line {
    char text[LINE_BYTES];
    size_t bytes;
};

/* Lines that wait to be written, in a ring buffer; guarded by the lock. The writer reads the bytes
 * from `begin` on without the lock, because they are not overwritten before they are written. */
static struct {
    struct bag_monitor monitor; /* changed: there is something to write, or the thread must stop */
    pthread_t thread;
    bool runs, stops;
    bool waits, rests; /* the writer waits for any line; the writer pauses */
    bool urgent;
    size_t begin, bytes;
    uint64_t dropped, told; /* lines that were dropped, and those of them that were logged */
    char ring[BAG_LOG_BUFFER_BYTES];
} waiting = {.monitor.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const level_names[] = {BAG_LOG_LEVELS(BAG_NAME)};

void bag_log_configure(enum bag_log_format format, enum bag_log_level level)
{
    line_format = format;
    min_level = level;
}

/* Adds all of the bytes or none, so that no character is split. */
static inline void add_bytes(struct line *line, const char *text, size_t bytes, size_t most)
{
    if (bytes <= most - line->bytes && line->bytes <= most) {
        memcpy(line->text + line->bytes, text, bytes);
        line->bytes += bytes;
    }
}

static inline void add(struct line *line, const char *text)
{
    add_bytes(line, text, strlen(text), LINE_BYTES - 8);
}

/* Adds a key or the end of one, after which there is BAG_LOG_PADDING. */
static inline void add_key(struct line *line, const char *key, size_t bytes)
{
    const size_t padding = sizeof BAG_LOG_PADDING - 1;
    if (bytes > padding || line->bytes > LINE_BYTES - 8 - padding) {
        add_bytes(line, key, bytes, LINE_BYTES - 8);
    } else {
        memcpy(line->text + line->bytes, key, padding);
        line->bytes += bytes;
    }
}

/* The maximum length of a number with its sign. Keys and numbers always fit, because values end
 * before. */
#define NUMBER_BYTES (1 + BAG_DIGITS_BYTES)

static void add_number(struct line *line, int64_t number)
{
    if (line->bytes > LINE_BYTES - 8 - NUMBER_BYTES)
        return;
    char *end = bag_integer_put(line->text + line->bytes, number);
    line->bytes = (size_t)(end - line->text);
}

/* The ASCII characters that need no escaping. Control characters, quotes, backslashes and bytes
 * above 0x7F are not among them. */
static const bool is_plain[256] = {
    [' ' ... '!'] = true, ['#' ... '['] = true, [']' ... '~'] = true};

/* Returns how many bytes from `at` on need no escaping: a run of plain ASCII, or one longer
 * character. Returns 0 if the byte must be escaped. */
static size_t plain_bytes(const char *at, const char *end)
{
    const char *from = at;
    while (at < end && is_plain[(unsigned char)*at])
        at++;
    if (at > from || (unsigned char)*at < 0x80)
        return (size_t)(at - from);
    return (unsigned char)*at == 0xC2 && (unsigned char)at[1] < 0xA0 ? 0 : bag_utf8_bytes(at, end);
}

/* Adds an escaped byte. A byte that is not part of a character becomes \xNN with an escaped
 * backslash. */
static void add_escaped(struct line *line, unsigned char byte)
{
    static const char digits[] = "0123456789abcdef";
    char ascii[] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
    char other[] = {'\\', '\\', 'x', digits[byte >> 4], digits[byte & 15]};
    if (byte == '"' || byte == '\\')
        add_bytes(line, (char[]){'\\', (char)byte}, 2, VALUES_BYTES);
    else if (byte < 0x80)
        add_bytes(line, ascii, sizeof ascii, VALUES_BYTES);
    else
        add_bytes(line, other, sizeof other, VALUES_BYTES);
}

/* Adds a text run by run, and each byte that must be escaped between two runs. */
static __attribute__((noinline)) void add_runs(struct line *line, const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        size_t bytes = plain_bytes(text, end);
        size_t room = line->bytes < VALUES_BYTES ? VALUES_BYTES - line->bytes : 0;
        bool may_split = (unsigned char)*text < 0x80;
        if (bytes)
            add_bytes(line, text, bytes > room && may_split ? room : bytes, VALUES_BYTES);
        else
            add_escaped(line, (unsigned char)*text);
        text += bytes ? bytes : 1;
    }
}

/* Adds a text in double quotes, as much of it as fits. Does not split a character of several bytes.
 */
static void add_quoted(struct line *line, const char *text)
{
    size_t bytes = 0, room = line->bytes < VALUES_BYTES ? VALUES_BYTES - line->bytes : 0;
    while (is_plain[(unsigned char)text[bytes]])
        bytes++;
    add(line, "\"");
    if (!text[bytes] && bytes < room) /* most are ASCII, without anything to escape */
        add_bytes(line, text, bytes, VALUES_BYTES);
    else
        add_runs(line, text);
    add(line, "\"");
}

/* Returns the length of a value that needs no quotes in a text line, or 0 if it needs them. */
static size_t word_bytes(const char *text)
{
    const char *at = text, *end;
    while (*at != ' ' && is_plain[(unsigned char)*at])
        at++;
    if (!*at) /* most are ASCII */
        return (size_t)(at - text);
    end = at + strlen(at);
    for (size_t bytes; at < end && (bytes = plain_bytes(at, end)); at += bytes)
        ;
    return at == end && !strchr(text, ' ') ? (size_t)(at - text) : 0;
}

uint64_t bag_epoch_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Adds the time of day, which is that of the kernel's last tick, a few milliseconds ago. Reading
 * the exact time takes four times as long. */
static void add_time(struct line *line)
{
    static const char example[] = "2026-11-29T02:03:04.567Z";
    static _Thread_local struct {
        time_t second;
        char text[sizeof example];
    } last = {.second = -1};
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (now.tv_sec != last.second && gmtime_r(&now.tv_sec, &utc)) {
        strftime(last.text, sizeof last.text, "%Y-%m-%dT%H:%M:%S.000Z", &utc);
        last.second = now.tv_sec;
    }
    unsigned ms = (unsigned)(now.tv_nsec / 1000000);
    char *digits = last.text + sizeof example - sizeof "000Z";
    digits[0] = (char)('0' + ms / 100);
    digits[1] = (char)('0' + ms / 10 % 10);
    digits[2] = (char)('0' + ms % 10);
    add_bytes(line, last.text, sizeof example - 1, LINE_BYTES - 8);
}

static void add_json(struct line *line, enum bag_log_level level, const char *event,
                     const struct bag_log_field *fields)
{
    add(line, "{\"time\":\"");
    add_time(line);
    add(line, "\",\"level\":\"");
    add(line, level_names[level]);
    add(line, "\",\"event\":\"");
    add(line, event);
    add(line, "\"");
    for (; fields->key; fields++) {
        add_key(line, fields->key, fields->key_bytes);
        if (fields->text)
            add_quoted(line, fields->text);
        else
            add_number(line, fields->number);
    }
    line->text[line->bytes++] = '}';
}

static void add_text(struct line *line, enum bag_log_level level, const char *event,
                     const struct bag_log_field *fields)
{
    static const char blanks[] = "        ";
    add_time(line);
    add(line, " ");
    add(line, level_names[level]);
    add(line, blanks + strlen(level_names[level]));
    add(line, event);
    for (; fields->key; fields++) {
        add(line, " "); /* then the name, without the punctuation of JSON */
        add_key(line, fields->key + 2, fields->key_bytes - 4);
        add(line, "=");
        const size_t bytes = fields->text ? word_bytes(fields->text) : 0;
        if (!fields->text)
            add_number(line, fields->number);
        else if (bytes)
            add_bytes(line, fields->text, bytes, VALUES_BYTES);
        else
            add_quoted(line, fields->text);
    }
}

static void make_line(struct line *line, enum bag_log_level level, const char *event,
                      const struct bag_log_field *fields)
{
    line->bytes = 0;
    if (line_format == BAG_LOG_FORMAT_JSON)
        add_json(line, level, event, fields);
    else
        add_text(line, level, event, fields);
    line->text[line->bytes++] = '\n';
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Writes all bytes. An error is ignored, because there is nowhere to report it. */
static void write_all(const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(STDERR_FILENO, text, bytes);
        if (written > 0) {
            text += written;
            bytes -= (size_t)written;
        } else if (written < 0 && errno == EAGAIN) {
            struct pollfd writable = {.fd = STDERR_FILENO, .events = POLLOUT};
            poll(&writable, 1, -1);
        } else if (written == 0 || errno != EINTR) {
            return;
        }
    }
}

/* Set while the last drawn text has no end of line. */
static struct {
    pthread_mutex_t lock;
    bool is_open;
} drawn = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define CLEAR_LINE "\r\x1b[K"

/* Writes lines, replacing the text that was drawn. */
static void write_lines(const char *text, size_t bytes)
{
    pthread_mutex_lock(&drawn.lock);
    if (drawn.is_open)
        write_all(CLEAR_LINE, sizeof CLEAR_LINE - 1);
    drawn.is_open = false;
    write_all(text, bytes);
    pthread_mutex_unlock(&drawn.lock);
}

void bag_log_draw(const char *text)
{
    size_t bytes = strlen(text);
    pthread_mutex_lock(&drawn.lock);
    write_all(text, bytes);
    drawn.is_open = bytes > 0 && text[bytes - 1] != '\n';
    pthread_mutex_unlock(&drawn.lock);
}

/* Returns whether the writer must not pause. The caller holds the lock. */
static bool is_due(void)
{
    return waiting.urgent || waiting.stops || waiting.bytes >= MUCH_BYTES;
}

/* Adds all of the line to the ring or nothing. The caller holds the lock. */
static bool put(const struct line *line)
{
    size_t end = (waiting.begin + waiting.bytes) % sizeof waiting.ring;
    size_t first = sizeof waiting.ring - end;
    if (line->bytes > sizeof waiting.ring - waiting.bytes)
        return false;
    if (first > line->bytes)
        first = line->bytes;
    memcpy(waiting.ring + end, line->text, first);
    memcpy(waiting.ring, line->text + first, line->bytes - first);
    waiting.bytes += line->bytes;
    if (waiting.waits || (waiting.rests && is_due())) {
        waiting.waits = waiting.rests = false;
        bag_monitor_wake_all(&waiting.monitor);
    }
    return true;
}

/* Writes the first lines of the ring. The caller holds the lock, which is released meanwhile. */
static void write_first(void)
{
    size_t begin = waiting.begin, bytes = sizeof waiting.ring - begin;
    if (bytes > waiting.bytes)
        bytes = waiting.bytes;
    waiting.urgent = false;
    bag_monitor_unlock(&waiting.monitor);
    write_lines(waiting.ring + begin, bytes);
    bag_monitor_lock(&waiting.monitor);
    waiting.begin = (begin + bytes) % sizeof waiting.ring;
    waiting.bytes -= bytes;
    /* Log how many lines were dropped, if that fits. */
    struct line line BAG_UNSET;
    if (waiting.dropped == waiting.told)
        return;
    make_line(&line, BAG_LOG_LEVEL_WARNING, "log lines dropped",
              (const struct bag_log_field[]){
                  BAG_LOG_NUMBER("count", waiting.dropped - waiting.told),
                  BAG_LOG_TEXT("reason", "the reader of the log does not keep up"),
                  {0}});
    if (put(&line))
        waiting.told = waiting.dropped;
}

static void *write_waiting(void *context)
{
    (void)context;
    bag_monitor_lock(&waiting.monitor);
    for (;;) {
        while (waiting.bytes == 0 && !waiting.stops) {
            waiting.waits = true;
            bag_monitor_wait(&waiting.monitor, UINT64_MAX);
        }
        waiting.waits = false;
        if (waiting.bytes == 0)
            break;
        do
            write_first();
        while (waiting.begin == 0 && waiting.bytes > 0); /* the part that wrapped around */
        /* Pause, so that several lines are written together. */
        const uint64_t until_ns = uv_hrtime() + REST_NS;
        do
            waiting.rests = true;
        while (!is_due() && bag_monitor_wait(&waiting.monitor, until_ns));
        waiting.rests = false;
    }
    waiting.runs = false;
    bag_monitor_wake_all(&waiting.monitor);
    bag_monitor_unlock(&waiting.monitor);
    return NULL;
}

bool bag_log_start(struct bag_problem *problem)
{
    if (!bag_monitor_init_condition(&waiting.monitor))
        return bag_problem_no_memory(problem);
    waiting.begin = 0;
    waiting.runs = true;
    waiting.stops = false;
    int error = bag_thread_start(&waiting.thread, write_waiting, NULL);
    if (!error)
        return true;
    waiting.runs = false;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "no thread can be started for the log: %s",
                           strerror(error));
}

/* A thread that is blocked by its reader is left running until the process ends. */
void bag_log_stop(void)
{
    const uint64_t until_ns = uv_hrtime() + STOP_S * UINT64_C(1000000000);
    bag_monitor_lock(&waiting.monitor);
    bool started = waiting.runs;
    waiting.stops = true;
    if (started)
        bag_monitor_wake_all(&waiting.monitor);
    while (waiting.runs && bag_monitor_wait(&waiting.monitor, until_ns))
        continue;
    bool ended = started && !waiting.runs;
    bag_monitor_unlock(&waiting.monitor);
    if (ended)
        pthread_join(waiting.thread, NULL);
}

uint64_t bag_log_dropped(void)
{
    bag_monitor_lock(&waiting.monitor);
    uint64_t dropped = waiting.dropped;
    bag_monitor_unlock(&waiting.monitor);
    return dropped;
}

static void log_line(enum bag_log_level level, bool urgent, const char *event,
                     const struct bag_log_field *fields)
{
    struct line line BAG_UNSET;
    if (level > min_level)
        return;
    make_line(&line, level, event, fields);
    bag_monitor_lock(&waiting.monitor);
    bool is_later = waiting.runs;
    waiting.urgent |= urgent;
    if (is_later && !put(&line))
        waiting.dropped++;
    bag_monitor_unlock(&waiting.monitor);
    if (!is_later)
        write_lines(line.text, line.bytes);
}

void bag_log_fields(enum bag_log_level level, const char *event, const struct bag_log_field *fields)
{
    log_line(level, true, event, fields);
}

void bag_log_often_fields(enum bag_log_level level, const char *event,
                          const struct bag_log_field *fields)
{
    log_line(level, false, event, fields);
}
