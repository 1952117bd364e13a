/* Writes Prometheus' text format; see prometheus.h. */
#include "prometheus.h"

#include <string.h>

static void add(struct bag_prometheus *out, const char *text)
{
    bag_growing_put(&out->text, text, strlen(text));
}

/* Adds a text with a backslash before each of the `special` characters. */
static void add_escaped(struct bag_prometheus *out, const char *text, const char *special)
{
    for (size_t plain; *text; text += plain + (text[plain] != 0)) {
        plain = strcspn(text, special);
        bag_growing_put(&out->text, text, plain);
        if (text[plain] == '\n')
            add(out, "\\n");
        else if (text[plain])
            bag_growing_put(&out->text, (char[]){'\\', text[plain]}, 2);
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
    bag_growing_put(&out->text, digits, (size_t)(end - digits));
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

/* Begins a label, after "{" or a comma. */
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
    return bag_growing_end(&out->text);
}
