/* Writes Prometheus' text format; see prometheus.h. */
#include "prometheus.h"

#include "proto/text.h"

#include <stdlib.h>
#include <string.h>

/* The initial size of a text's buffer, which doubles when it is full. */
#define FIRST_BYTES 16384

/* Reserves `bytes` more bytes. Returns false if there is not enough memory, now or in an earlier
 * call. */
static bool reserve(struct bag_prometheus *out, size_t bytes)
{
    if (out->failed || bytes <= out->room - out->bytes)
        return !out->failed;
    size_t room = out->room ? 2 * out->room : FIRST_BYTES;
    while (room - out->bytes < bytes)
        room *= 2;
    char *text = realloc(out->text, room);
    out->failed = !text;
    if (text) {
        out->text = text;
        out->room = room;
    }
    return !out->failed;
}

static void add_bytes(struct bag_prometheus *out, const char *bytes, size_t count)
{
    if (!reserve(out, count))
        return;
    memcpy(out->text + out->bytes, bytes, count);
    out->bytes += count;
}

static void add(struct bag_prometheus *out, const char *text)
{
    add_bytes(out, text, strlen(text));
}

/* Adds a text with a backslash before each of the `special` characters. */
static void add_escaped(struct bag_prometheus *out, const char *text, const char *special)
{
    for (size_t plain; *text; text += plain + (text[plain] != 0)) {
        plain = strcspn(text, special);
        add_bytes(out, text, plain);
        if (text[plain] == '\n')
            add(out, "\\n");
        else if (text[plain])
            add_bytes(out, (char[]){'\\', text[plain]}, 2);
    }
}

/* Adds a value. With `ns`, it is printed in seconds: 1500000 ns -> 0.0015. */
static void add_value(struct bag_prometheus *out, uint64_t value, bool ns)
{
    char digits[BAG_DIGITS_BYTES + 11];
    char *end = bag_digits_put(digits, ns ? value / 1000000000 : value);
    uint64_t rest = ns ? value % 1000000000 : 0;
    if (rest)
        *end++ = '.';
    for (uint64_t unit = 100000000; rest; unit /= 10) {
        *end++ = (char)('0' + rest / unit);
        rest %= unit;
    }
    add_bytes(out, digits, (size_t)(end - digits));
}

void bag_prometheus_family(struct bag_prometheus *out, const char *name, const char *type,
                           const char *sentence, const char *unit)
{
    add(out, "# HELP ");
    add(out, name);
    add(out, " ");
    add_escaped(out, sentence, "\\\n");
    add(out, " Unit: ");
    add_escaped(out, unit, "\\\n");
    add(out, ".\n# TYPE ");
    add(out, name);
    add(out, " ");
    add(out, type);
    add(out, "\n");
}

void bag_prometheus_sample(struct bag_prometheus *out, const char *name, const char *suffix)
{
    add(out, name);
    add(out, suffix);
    out->labelled = false;
}

static void begin_label(struct bag_prometheus *out, const char *key)
{
    add(out, out->labelled ? "," : "{");
    out->labelled = true;
    add(out, key);
    add(out, "=\"");
}

void bag_prometheus_label(struct bag_prometheus *out, const char *key, const char *value)
{
    begin_label(out, key);
    add_escaped(out, value, "\\\n\"");
    add(out, "\"");
}

void bag_prometheus_bound(struct bag_prometheus *out, uint64_t bound, bool ns)
{
    begin_label(out, "le");
    add_value(out, bound, ns);
    add(out, "\"");
}

void bag_prometheus_value(struct bag_prometheus *out, uint64_t value, bool ns)
{
    add(out, out->labelled ? "} " : " ");
    add_value(out, value, ns);
    add(out, "\n");
}

char *bag_prometheus_end(struct bag_prometheus *out)
{
    add_bytes(out, "", 1);
    if (!out->failed)
        return out->text;
    free(out->text);
    return NULL;
}
