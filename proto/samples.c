/* Samples of a metric; see samples.h. */
#include "samples.h"

#include <math.h>
#include <stdlib.h>

/* Behind a label's value, whose quote has begun at `at`; NULL where it does not end. */
static const char *skip_value(const char *at)
{
    for (at++; *at && *at != '\n' && *at != '"'; at++) {
        if (*at == '\\' && at[1] && at[1] != '\n')
            at++;
    }
    return *at == '"' ? at + 1 : NULL;
}

/* Reads {name="value",...} and returns its end; NULL where it is not that. */
static const char *read_labels(const char *at, const char *label, struct bag_text *value)
{
    const size_t bytes = strlen(label);
    while (*++at != '}') {
        const char *name = at, *end;
        at += strcspn(at, "=\n");
        if (at[0] != '=' || at[1] != '"' || !(end = skip_value(at + 1)))
            return NULL;
        if ((size_t)(at - name) == bytes && memcmp(name, label, bytes) == 0)
            *value = (struct bag_text){at + 2, (size_t)(end - 1 - (at + 2))};
        at = end;
        if (*at == '}')
            break;
        if (*at != ',')
            return NULL;
    }
    return at + 1;
}

static bool read_sample(const char *line, const char *metric, const char *label,
                        struct bag_sample *sample)
{
    const size_t bytes = strlen(metric);
    char *end;
    sample->label = (struct bag_text){NULL, 0};
    if (strncmp(line, metric, bytes) != 0)
        return false;
    line += bytes;
    if (*line == '{' && !(line = read_labels(line, label, &sample->label)))
        return false;
    if (*line != ' ')
        return false;
    sample->value = strtod(line + 1, &end);
    return end != line + 1 && isfinite(sample->value) && strchr(" \r\n", *end);
}

bool bag_samples_next(const char **at, const char *metric, const char *label,
                      struct bag_sample *sample)
{
    while (**at) {
        const char *line = *at;
        *at += strcspn(line, "\n");
        *at += **at == '\n';
        if (read_sample(line, metric, label, sample))
            return true;
    }
    return false;
}
