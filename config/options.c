/* The list of options made from options.h, and a configuration's beginning and end. */
#include "config.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list -------------------------------------------------------------------------------- */

#define BAG_X(id, name) name,
static const char *const log_formats[] = {BAG_LOG_FORMATS(BAG_X)};
static const char *const log_levels[] = {BAG_LOG_LEVELS(BAG_X)};
static const char *const switches[] = {BAG_SWITCHES(BAG_X)};
#undef BAG_X

#define BAG_TYPE_CHOICE_LOG_FORMAT BAG_TYPE_CHOICE(log_formats)
#define BAG_TYPE_CHOICE_LOG_LEVEL  BAG_TYPE_CHOICE(log_levels)
#define BAG_TYPE_CHOICE_SWITCH     BAG_TYPE_CHOICE(switches)

#define BAG_DEFAULT_COUNT             .default_number
#define BAG_DEFAULT_BYTES             .default_number
#define BAG_DEFAULT_TEXT              .default_text
#define BAG_DEFAULT_FILE              .default_text
#define BAG_DEFAULT_CHOICE_LOG_FORMAT .default_number
#define BAG_DEFAULT_CHOICE_LOG_LEVEL  .default_number
#define BAG_DEFAULT_CHOICE_SWITCH     .default_number

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
        BAG_DEFAULT_##TYPE = (default_),                                                        \
    },
#define BAG_IN_OPTIONS(member, ...) BAG_OPTION(options.member, __VA_ARGS__)

const struct bag_option bag_options[] = {BAG_SOURCES(BAG_OPTION) BAG_OPTIONS(BAG_IN_OPTIONS)};
const size_t bag_num_options = sizeof bag_options / sizeof *bag_options;

/* ---- spellings ------------------------------------------------------------------------------- */

/* Not toupper: a key is ASCII whatever the locale. */
static char upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c;
}

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

/* ---- beginning and end ----------------------------------------------------------------------- */

/* False without memory. */
static bool set_default(const struct bag_option *option, struct bag_config *config)
{
    void *member = (char *)config + option->setting.offset;
    switch (option->setting.type) {
    case BAG_SETTING_TEXT:
        *(char **)member = option->default_text ? strdup(option->default_text) : NULL;
        return *(char **)member || !option->default_text;
    case BAG_SETTING_CHOICE:
        *(unsigned *)member = (unsigned)option->default_number;
        return true;
    default:
        *(int64_t *)member = option->default_number;
        return true;
    }
}

bool bag_config_init(struct bag_config *config)
{
    bool ok = true;
    memset(config, 0, sizeof *config);
    for (size_t i = 0; i < bag_num_options; i++)
        ok &= set_default(&bag_options[i], config);
    return ok;
}

void bag_config_free(struct bag_config *config)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].setting.type == BAG_SETTING_TEXT)
            free(*(char **)((char *)config + bag_options[i].setting.offset));
    }
    for (size_t i = 0; i < config->num_models; i++)
        bag_model_config_free(&config->models[i]);
    free(config->models);
    memset(config, 0, sizeof *config);
}

bool bag_config_validate(const struct bag_config *config, struct bag_problem *problem)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        const char *const *member =
            (const char *const *)((const char *)config + bag_options[i].setting.offset);
        if (bag_options[i].default_text && !*member)
            return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                                   "not enough memory for the configuration");
    }
    if (config->options.cors_origins && !bag_cors_check(config->options.cors_origins, problem))
        return false;
    if (!bag_config_check_models(config, problem))
        return false;
    if (config->num_models || config->models_dir || config->demo)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "there is nothing to serve: name tables with --table NAME=PATH, a "
                           "folder with --models DIR or a file with --config FILE, or try --demo");
}
