/* A text becomes a value, or a reason why it cannot; see setting.h. */
#include "setting.h"

#include "proto/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bag_bool_words[2] = {"false", "true"};

/* ---- what is allowed ------------------------------------------------------------------------- */

static void describe_words(const struct bag_words *words, struct bag_reason *reason)
{
    size_t used = (size_t)snprintf(reason->text, sizeof reason->text, "must be one of");
    const char *comma = " ";
    for (size_t i = 0; i < words->count && used < sizeof reason->text; i++) {
        if (!words->names[i])
            continue;
        used += (size_t)snprintf(reason->text + used, sizeof reason->text - used, "%s%s", comma,
                                 words->names[i]);
        comma = ", ";
    }
}

/* "must be AN INTEGER from 0 to 65535 seconds". `what` is "" for a value that was one. */
static void describe_range(const struct bag_setting *setting, const char *what,
                           struct bag_reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "must be %sfrom %" PRId64 " to %" PRId64 "%s%s",
             what, setting->minimum, setting->maximum, setting->unit[0] ? " " : "", setting->unit);
}

static void describe_size(const struct bag_setting *setting, bool malformed,
                          struct bag_reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "must be %sfrom %s to %s%s",
             malformed ? "a size " : "", bag_size_text(setting->minimum).text,
             bag_size_text(setting->maximum).text,
             malformed ? ", such as 1048576, 64MiB or 500KB" : "");
}

void bag_setting_describe(const struct bag_setting *setting, struct bag_reason *reason)
{
    switch (setting->type) {
    case BAG_SETTING_COUNT:
        describe_range(setting, "an integer ", reason);
        break;
    case BAG_SETTING_BYTES:
        describe_size(setting, true, reason);
        break;
    case BAG_SETTING_KEY:
        snprintf(
            reason->text, sizeof reason->text,
            "must be an integer of 64 bits: a number from -2^53 + 1 to 2^53 - 1, or a text, such "
            "as \"18446744073709551615\"");
        break;
    case BAG_SETTING_SHAPE:
        snprintf(
            reason->text, sizeof reason->text,
            "must be an array of 1 to %d whole numbers, such as [-1, 64]: only the first may be "
            "-1, for any",
            BAG_MAX_RANK);
        break;
    case BAG_SETTING_TEXT:
        snprintf(reason->text, sizeof reason->text,
                 "must be a text of %" PRId64 " to %" PRId64 " bytes", setting->minimum,
                 setting->maximum);
        break;
    case BAG_SETTING_BOOL:
        snprintf(reason->text, sizeof reason->text, "must be true or false");
        break;
    case BAG_SETTING_CHOICE:
        describe_words(&setting->words, reason);
        break;
    }
}

/* ---- setting --------------------------------------------------------------------------------- */

static bool reject(const struct bag_setting *setting, struct bag_reason *reason)
{
    bag_setting_describe(setting, reason);
    return false;
}

static bool apply_number(const struct bag_setting *setting, int64_t *member, const char *text,
                         struct bag_reason *reason)
{
    bool bytes = setting->type == BAG_SETTING_BYTES;
    int64_t value;
    if (!(bytes ? bag_size_parse : bag_integer_parse)(text, &value))
        return reject(setting, reason);
    if (value < setting->minimum || value > setting->maximum) {
        if (bytes)
            describe_size(setting, false, reason);
        else
            describe_range(setting, "", reason);
        return false;
    }
    *member = value;
    return true;
}

static bool apply_key(const struct bag_setting *setting, int64_t *member, const char *text,
                      struct bag_reason *reason)
{
    return bag_key_parse(text, member) || reject(setting, reason);
}

/* One dimension and what ends it, ',' or ']'; NULL where there is none. */
static const char *read_dimension(const char *at, int64_t least, int64_t *size)
{
    char number[24];
    at += strspn(at, " ");
    size_t bytes = strcspn(at, ",] ");
    snprintf(number, sizeof number, "%.*s", bytes < sizeof number ? (int)bytes : 0, at);
    at += bytes + strspn(at + bytes, " ");
    bool ok = bag_integer_parse(number, size) && *size >= least && (*at == ',' || *at == ']');
    return ok ? at : NULL;
}

/* "[100, 64]" */
static bool apply_shape(const struct bag_setting *setting, struct bag_shape *member,
                        const char *text, struct bag_reason *reason)
{
    struct bag_shape shape = {.rank = 0};
    const char *at = *text == '[' ? text : NULL;
    do {
        if (at && shape.rank < BAG_MAX_RANK)
            at = read_dimension(at + 1, shape.rank ? 0 : -1, &shape.sizes[shape.rank]);
        else
            at = NULL;
        shape.rank++;
    } while (at && *at == ',');
    if (!at || at[1])
        return reject(setting, reason);
    *member = shape;
    return true;
}

static bool apply_text(const struct bag_setting *setting, char **member, const char *text,
                       struct bag_reason *reason)
{
    size_t bytes = strlen(text);
    if (bytes < (size_t)setting->minimum || bytes > (size_t)setting->maximum)
        return reject(setting, reason);
    char *copy = strdup(text);
    if (!copy) {
        snprintf(reason->text, sizeof reason->text, "not enough memory");
        return false;
    }
    free(*member);
    *member = copy;
    return true;
}

static bool apply_word(const struct bag_setting *setting, void *member, const char *text,
                       struct bag_reason *reason)
{
    for (unsigned i = 0; i < setting->words.count; i++) {
        if (!setting->words.names[i] || strcmp(text, setting->words.names[i]) != 0)
            continue;
        if (setting->type == BAG_SETTING_CHOICE)
            *(unsigned *)member = i; /* what both compilers keep an enum without negatives in */
        else
            *(bool *)member = i == 1;
        return true;
    }
    return reject(setting, reason);
}

bool bag_setting_apply(const struct bag_setting *setting, void *base, const char *text,
                       struct bag_reason *reason)
{
    void *member = (char *)base + setting->offset;
    switch (setting->type) {
    case BAG_SETTING_COUNT:
    case BAG_SETTING_BYTES:
        return apply_number(setting, member, text, reason);
    case BAG_SETTING_KEY:
        return apply_key(setting, member, text, reason);
    case BAG_SETTING_SHAPE:
        return apply_shape(setting, member, text, reason);
    case BAG_SETTING_TEXT:
        return apply_text(setting, member, text, reason);
    case BAG_SETTING_CHOICE:
    case BAG_SETTING_BOOL:
        break;
    }
    return apply_word(setting, member, text, reason);
}
