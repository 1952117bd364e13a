/* Prometheus' text format; see prometheus.h. */
#include "prometheus.h"

#include "proto/text.h"

#include <string.h>

static void put(struct bag_prometheus *out, const char *text)
{
    fputs_unlocked(text, out->stream);
}

/* The characters that the format gives a meaning are written with a backslash. */
static void put_escaped(struct bag_prometheus *out, const char *text, const char *special)
{
    for (size_t plain; *text; text += plain + (text[plain] != 0)) {
        plain = strcspn(text, special);
        fwrite_unlocked(text, 1, plain, out->stream);
        if (text[plain] == '\n')
            put(out, "\\n");
        else if (text[plain])
            put(out, (char[]){'\\', text[plain], 0});
    }
}

/* 1500000 ns -> 0.0015 */
static void put_value(struct bag_prometheus *out, uint64_t value, bool ns)
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
    *end = 0;
    put(out, digits);
}

void bag_prometheus_family(struct bag_prometheus *out, const char *name, const char *type,
                           const char *sentence, const char *unit)
{
    fprintf(out->stream, "# HELP %s ", name);
    put_escaped(out, sentence, "\\\n");
    put(out, " Unit: ");
    put_escaped(out, unit, "\\\n");
    fprintf(out->stream, ".\n# TYPE %s %s\n", name, type);
}

void bag_prometheus_sample(struct bag_prometheus *out, const char *name, const char *suffix)
{
    put(out, name);
    put(out, suffix);
    out->labelled = false;
}

static void begin_label(struct bag_prometheus *out, const char *key)
{
    put(out, out->labelled ? "," : "{");
    out->labelled = true;
    put(out, key);
    put(out, "=\"");
}

void bag_prometheus_label(struct bag_prometheus *out, const char *key, const char *value)
{
    begin_label(out, key);
    put_escaped(out, value, "\\\n\"");
    put(out, "\"");
}

void bag_prometheus_bound(struct bag_prometheus *out, uint64_t bound, bool ns)
{
    begin_label(out, "le");
    put_value(out, bound, ns);
    put(out, "\"");
}

void bag_prometheus_value(struct bag_prometheus *out, uint64_t value, bool ns)
{
    put(out, out->labelled ? "} " : " ");
    put_value(out, value, ns);
    put(out, "\n");
}
