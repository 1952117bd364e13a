/* Parses values from texts, and makes the list of options from options.h. */
#include "options.h"

#include "config.h"
#include "proto/cors.h"
#include "proto/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values: what is allowed ----------------------------------------------------------------- */

const char *const bag_bool_words[2] = {"false", "true"};

/* Writes "must be one of" and the words. Words that may not be chosen are left out. */
static void describe_words(const struct bag_words *words, struct bag_reason *reason)
{
    const char *comma = " ";
    snprintf(reason->text, sizeof reason->text, "must be one of");
    for (size_t i = 0; i < words->count; i++) {
        if (!words->names[i])
            continue;
        bag_text_add(reason->text, sizeof reason->text, "%s%s", comma, words->names[i]);
        comma = ", ";
    }
}

/* Writes "must be an integer from 0 to 65535 seconds". `what` is "an integer ", or "" if the value
 * was an integer. */
static void describe_range(const struct bag_setting *setting, const char *what,
                           struct bag_reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "must be %sfrom %" PRId64 " to %" PRId64 "%s%s",
             what, setting->minimum, setting->maximum, setting->unit[0] ? " " : "", setting->unit);
}

/* Writes bounds, which are in milliseconds, in seconds. */
static void describe_seconds(const struct bag_setting *setting, struct bag_reason *reason)
{
    snprintf(reason->text, sizeof reason->text,
             "must be from %g to %g %s, with up to three decimals", (double)setting->minimum / 1000,
             (double)setting->maximum / 1000, setting->unit);
}

/* Writes the bounds of a size. If the text was malformed, adds the forms that a size may have. */
static void describe_size(const struct bag_setting *setting, bool malformed,
                          struct bag_reason *reason)
{
    snprintf(reason->text, sizeof reason->text, "must be %sfrom %s to %s%s",
             malformed ? "a size " : "", bag_size_text(setting->minimum).text,
             bag_size_text(setting->maximum).text,
             malformed ? ", such as 1048576, 64MiB or 500KB" : "");
}

/* Describes values that have a form of their own. */
static void describe_form(enum bag_setting_type type, struct bag_reason *reason)
{
    if (type == BAG_SETTING_KEY)
        snprintf(
            reason->text, sizeof reason->text,
            "must be an integer of 64 bits: a number from -2^53 + 1 to 2^53 - 1, or a text, such "
            "as \"18446744073709551615\"");
    else if (type == BAG_SETTING_SHAPE)
        snprintf(
            reason->text, sizeof reason->text,
            "must be an array of 1 to %d whole numbers, such as [-1, 64]: only the first may be "
            "-1, for any",
            BAG_MAX_RANK);
    else if (type == BAG_SETTING_PART)
        snprintf(reason->text, sizeof reason->text,
                 "must be {\"by\": WAY, \"index\": I, \"of\": N} and nothing else, WAY rows, "
                 "columns or keys, N from 1 to %d, I from 0 to N - 1; as a text rows 0 of 3",
                 BAG_MAX_PARTS);
    else
        snprintf(reason->text, sizeof reason->text,
                 "must be \"all\", {\"latest\": N} or {\"specific\": [1, 3]} with 1 to %d "
                 "versions; as a text all, latest 2 or specific 1 3",
                 BAG_POLICY_MAX_VERSIONS);
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
    case BAG_SETTING_SECONDS:
        describe_seconds(setting, reason);
        break;
    case BAG_SETTING_KEY:
    case BAG_SETTING_SHAPE:
    case BAG_SETTING_POLICY:
    case BAG_SETTING_PART:
        describe_form(setting->type, reason);
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

/* ---- values: from a text --------------------------------------------------------------------- */

/* Sets the reason to the values that the setting accepts. Returns false. */
static bool reject(const struct bag_setting *setting, struct bag_reason *reason)
{
    bag_setting_describe(setting, reason);
    return false;
}

/* Parses an integer, or a size with its unit. The reason for rejecting a number outside the bounds
 * does not say that it must be an integer. */
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

/* Parses "15" or "0.25": digits, and up to three more after a point. */
static bool apply_seconds(const struct bag_setting *setting, int64_t *member, const char *text,
                          struct bag_reason *reason)
{
    const size_t whole_bytes = strcspn(text, ".");
    const char *decimals = text[whole_bytes] ? text + whole_bytes + 1 : NULL;
    const size_t num_decimals = decimals ? strspn(decimals, "0123456789") : 0;
    char whole[16];
    int64_t seconds, ms = 0;
    snprintf(whole, sizeof whole, "%.*s", (int)(whole_bytes < 16 ? whole_bytes : 0), text);
    if (!bag_integer_parse(whole, &seconds) || seconds < 0 || seconds > setting->maximum / 1000 ||
        (decimals && (num_decimals < 1 || num_decimals > 3 || decimals[num_decimals])))
        return reject(setting, reason);
    /* Missing decimals count as zeros. */
    for (size_t i = 0; i < 3; i++)
        ms = 10 * ms + (i < num_decimals ? decimals[i] - '0' : 0);
    /* `seconds` is at most the maximum, so that this does not overflow. */
    ms += 1000 * seconds;
    if (ms < setting->minimum || ms > setting->maximum)
        return reject(setting, reason);
    *member = ms;
    return true;
}

/* Reads one dimension. Returns the ',' or ']' after it, or NULL if there is none. */
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

/* Parses "[100, 64]". */
static bool apply_shape(const struct bag_setting *setting, struct bag_shape *member,
                        const char *text, struct bag_reason *reason)
{
    struct bag_shape shape = {.rank = 0};
    const char *at = *text == '[' ? text : NULL;
    /* Only the first dimension may be -1. */
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

/* Reads numbers from 1, each after a space. */
static bool read_versions(const char *at, struct bag_version_policy *policy)
{
    char number[24];
    for (; *at == ' ' && policy->count < BAG_POLICY_MAX_VERSIONS; policy->count++) {
        size_t bytes = strcspn(++at, " ");
        snprintf(number, sizeof number, "%.*s", bytes < sizeof number ? (int)bytes : 0, at);
        if (!bag_integer_parse(number, &policy->numbers[policy->count]) ||
            policy->numbers[policy->count] < 1)
            return false;
        at += bytes;
    }
    return !*at && policy->count > 0;
}

/* Parses "all", "latest N" or "specific N ...". */
static bool apply_policy(const struct bag_setting *setting, struct bag_version_policy *member,
                         const char *text, struct bag_reason *reason)
{
    static const char latest[] = "latest", specific[] = "specific";
    struct bag_version_policy policy = {.kind = BAG_VERSIONS_ALL};
    bool ok = true;
    if (strncmp(text, latest, strlen(latest)) == 0) {
        policy.kind = BAG_VERSIONS_LATEST;
        ok = read_versions(text + strlen(latest), &policy) && policy.count == 1;
    } else if (strncmp(text, specific, strlen(specific)) == 0) {
        policy.kind = BAG_VERSIONS_SPECIFIC;
        ok = read_versions(text + strlen(specific), &policy);
    } else {
        ok = strcmp(text, "all") == 0;
    }
    if (!ok)
        return reject(setting, reason);
    *member = policy;
    return true;
}

/* Parses "rows 0 of 3". */
static bool apply_part(const struct bag_setting *setting, struct bag_part *member, const char *text,
                       struct bag_reason *reason)
{
    char way[16], index[16], of[16];
    int end = 0;
    int64_t numbers[2] = {0, 0};
    bool ok = sscanf(text, "%15[a-z] %15[0-9] of %15[0-9]%n", way, index, of, &end) == 3 &&
              !text[end] && bag_integer_parse(index, &numbers[0]) &&
              bag_integer_parse(of, &numbers[1]);
    enum bag_part_by by = ok ? bag_part_way_find(way, strlen(way)) : BAG_PART_WAY_COUNT;
    if (by == BAG_PART_WAY_COUNT || numbers[1] > BAG_MAX_PARTS || numbers[0] >= numbers[1])
        return reject(setting, reason);
    *member = (struct bag_part){by, (uint32_t)numbers[0], (uint32_t)numbers[1]};
    return true;
}

/* Stores a copy of the text and frees the one before it. */
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

bool bag_setting_apply(const struct bag_setting *setting, void *base, const char *text,
                       struct bag_reason *reason)
{
    void *member = (char *)base + setting->offset;
    switch (setting->type) {
    case BAG_SETTING_COUNT:
    case BAG_SETTING_BYTES:
        return apply_number(setting, member, text, reason);
    case BAG_SETTING_SECONDS:
        return apply_seconds(setting, member, text, reason);
    case BAG_SETTING_KEY:
        return bag_key_parse(text, member) || reject(setting, reason);
    case BAG_SETTING_SHAPE:
        return apply_shape(setting, member, text, reason);
    case BAG_SETTING_TEXT:
        return apply_text(setting, member, text, reason);
    case BAG_SETTING_POLICY:
        return apply_policy(setting, member, text, reason);
    case BAG_SETTING_PART:
        return apply_part(setting, member, text, reason);
    case BAG_SETTING_CHOICE:
    case BAG_SETTING_BOOL:
        break;
    }
    /* Find the word in the list of the setting, and store its index, or a bool. */
    for (unsigned i = 0; i < setting->words.count; i++) {
        if (!setting->words.names[i] || strcmp(text, setting->words.names[i]) != 0)
            continue;
        if (setting->type == BAG_SETTING_CHOICE)
            *(unsigned *)member =
                i; /* both compilers store an enum without negative members as unsigned */
        else
            *(bool *)member = i == 1;
        return true;
    }
    return reject(setting, reason);
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The initialisers of choices, by TYPE. Their lists are in options.h. */
#define BAG_TYPE_CHOICE_JOURNAL_SYNC   BAG_TYPE_CHOICE(BAG_JOURNAL_SYNCS)
#define BAG_TYPE_CHOICE_HUGEPAGES      BAG_TYPE_CHOICE(BAG_HUGEPAGES_KINDS)
#define BAG_TYPE_CHOICE_NUMA           BAG_TYPE_CHOICE(BAG_NUMA_POLICIES)
#define BAG_TYPE_CHOICE_LOAD           BAG_TYPE_CHOICE(BAG_LOADS)
#define BAG_TYPE_CHOICE_LOG_FORMAT     BAG_TYPE_CHOICE(BAG_LOG_FORMATS)
#define BAG_TYPE_CHOICE_LOG_LEVEL      BAG_TYPE_CHOICE(BAG_LOG_LEVELS)
#define BAG_TYPE_CHOICE_METRICS        BAG_TYPE_CHOICE(BAG_METRICS_WORDS)
#define BAG_TYPE_CHOICE_SWITCH         BAG_TYPE_CHOICE(BAG_SWITCHES)
#define BAG_TYPE_CHOICE_PROXY_PROTOCOL BAG_TYPE_CHOICE(BAG_PROXY_PROTOCOLS)
#define BAG_TYPE_CHOICE_MODEL_CONTROL  BAG_TYPE_CHOICE(BAG_MODEL_CONTROLS)

/* The initialiser of one option. `place` is the member of struct bag_config. */
#define BAG_OPTION(place, section_, key_, TYPE, default_, minimum_, maximum_, unit_, sentence_) \
    {                                                                                           \
        .setting = {.key = (key_),                                                              \
                    .offset = offsetof(struct bag_config, place),                               \
                    .minimum = (minimum_),                                                      \
                    .maximum = (maximum_),                                                      \
                    .unit = (unit_),                                                            \
                    BAG_TYPE_##TYPE},                                                           \
        .section = (section_),                                                                  \
        .sentence = (sentence_),                                                                \
        .default_text = (default_),                                                             \
    },
#define BAG_IN_OPTIONS(member, ...) BAG_OPTION(options.member, __VA_ARGS__)

const struct bag_option bag_options[] = {BAG_SOURCES(BAG_OPTION) BAG_OPTIONS(BAG_IN_OPTIONS)};
const size_t bag_num_options = sizeof bag_options / sizeof *bag_options;

/* ---- spellings ------------------------------------------------------------------------------- */

/* Unlike toupper, ignores the locale, because keys are ASCII. */
static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

/* Returns the key with a prefix, as a flag (with - in place of _) or as a variable (in capitals).
 */
static struct bag_spelling spell_as(const char *prefix, const char *key, bool flag)
{
    struct bag_spelling spelling;
    size_t used = strlen(prefix);
    memcpy(spelling.text, prefix, used);
    for (; *key && used + 1 < sizeof spelling.text; key++)
        spelling.text[used++] = !flag ? upper(*key) : *key == '_' ? '-' : *key;
    spelling.text[used] = '\0';
    return spelling;
}

struct bag_spelling bag_key_of(const char *key)
{
    struct bag_spelling spelling;
    snprintf(spelling.text, sizeof spelling.text, "%s", key);
    return spelling;
}

struct bag_spelling bag_flag_of(const char *key)
{
    return spell_as("--", key, true);
}

struct bag_spelling bag_variable_of(const char *key)
{
    return spell_as("BAGSERVE_", key, false);
}

/* ---- finding --------------------------------------------------------------------------------- */

static const struct {
    const char *name, *key;
} aliases[] = {
#define BAG_X(name, key) {name, key},
    BAG_OPTION_ALIASES(BAG_X)
#undef BAG_X
};

const struct bag_option *bag_option_find(struct bag_text text,
                                         struct bag_spelling (*spell)(const char *key))
{
    /* An alias is found as the key that it stands for. */
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        struct bag_spelling key = spell(aliases[i].key);
        if (bag_text_is(text, spell(aliases[i].name).text))
            return bag_option_find((struct bag_text){key.text, strlen(key.text)}, spell);
    }
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_text_is(text, spell(bag_options[i].setting.key).text))
            return &bag_options[i];
    }
    return NULL;
}

const char *bag_option_alias(const struct bag_option *option)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        if (strcmp(aliases[i].key, option->setting.key) == 0)
            return aliases[i].name;
    }
    return NULL;
}
