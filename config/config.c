/* Initialises, frees, compares and checks a configuration; see config.h. */
#include "config.h"

#include "proto/cors.h"
#include "proto/http_client.h"
#include "proto/network.h"
#include "proto/otlp.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool bag_config_init(struct bag_config *config)
{
    bool ok = true;
    memset(config, 0, sizeof *config);
    struct bag_reason reason;
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        ok &= !option->default_text ||
              bag_setting_apply(&option->setting, config, option->default_text, &reason);
    }
    return ok;
}

void bag_config_note_origin(struct bag_config *config, const struct bag_option *option,
                            enum bag_origin origin)
{
    config->origins[option - bag_options] = (unsigned char)origin;
}

/* Returns whether two texts are equal. NULL equals only NULL. */
static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool bag_config_same_options(const struct bag_config *a, const struct bag_config *b)
{
    bool same = true;
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_setting *setting = &bag_options[i].setting;
        const char *x = (const char *)a + setting->offset, *y = (const char *)b + setting->offset;
        if (!bag_options[i].section[0])
            continue; /* one of BAG_SOURCES */
        if (setting->type == BAG_SETTING_TEXT)
            same &= is_same_text(*(char *const *)x, *(char *const *)y);
        else if (setting->type == BAG_SETTING_CHOICE)
            same &= *(const unsigned *)x == *(const unsigned *)y;
        else
            same &= *(const int64_t *)x == *(const int64_t *)y;
    }
    return same;
}

void bag_config_free(struct bag_config *config)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].setting.type == BAG_SETTING_TEXT)
            free(*(char **)((char *)config + bag_options[i].setting.offset));
    }
    bag_config_free_models(config);
    memset(config, 0, sizeof *config);
}

bool bag_config_reject_value(const struct bag_config *config, const char *key,
                             struct bag_problem *problem)
{
    problem->kind = BAG_ERROR_CONFIGURATION;
    for (size_t i = 0; i < bag_num_options; i++) {
        if (strcmp(bag_options[i].setting.key, key) == 0 && config->origins[i] == BAG_ORIGIN_FLAG)
            problem->kind = BAG_ERROR_USAGE;
    }
    return false;
}

/* Checks that trace_sample is a fraction from 0 to 1. It is a text, because options have no type
 * for fractions. */
static bool check_sample(const char *sample, struct bag_problem *problem)
{
    double fraction;
    return bag_fraction_parse(sample, &fraction) ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "trace_sample '%s': must be a fraction from 0 to 1, such as 0.01",
                           bag_quote(sample, strlen(sample)).text);
}

/* Checks that otlp_endpoint is absent or an http URL. The client of the server speaks no TLS. */
static bool check_endpoint(const char *endpoint, struct bag_problem *problem)
{
    struct bag_url url;
    if (endpoint && strncasecmp(endpoint, "https:", 6) == 0)
        return bag_problem_set(
            problem, BAG_ERROR_CONFIGURATION,
            "otlp_endpoint: https is not spoken; run a collector on this machine, "
            "name it by http, and let it pass spans on");
    if (endpoint && strncasecmp(endpoint, "http://", 7) != 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "otlp_endpoint '%s': must be a URL that begins with http://",
                               bag_quote(endpoint, strlen(endpoint)).text);
    return !endpoint || bag_url_parse(endpoint, &url, problem) ||
           bag_problem_prefix(problem, "otlp_endpoint");
}

/* Checks the values that are texts of several parts, and proxy_protocol, which depends on another
 * option. Returns false and sets *problem, of the kind that the source of the value requires. */
static bool check_values(const struct bag_config *config, struct bag_problem *problem)
{
    const struct bag_option_values *options = &config->options;
    struct bag_networks networks;
    if (options->cors_origins && !bag_cors_check(options->cors_origins, problem))
        return bag_config_reject_value(config, "cors_origins", problem);
    if (!bag_networks_parse(&networks, options->trusted_proxies, problem))
        return bag_config_reject_value(config, "trusted_proxies", problem);
    if (!check_sample(options->trace_sample, problem))
        return bag_config_reject_value(config, "trace_sample", problem);
    if (!check_endpoint(options->otlp_endpoint, problem))
        return bag_config_reject_value(config, "otlp_endpoint", problem);
    if (options->proxy_protocol != BAG_PROXY_PROTOCOL_V2 || options->trusted_proxies)
        return true;
    bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                    "proxy_protocol v2 needs trusted_proxies: the addresses that may say "
                    "whose connections they bring");
    return bag_config_reject_value(config, "proxy_protocol", problem);
}

bool bag_config_validate(const struct bag_config *config, struct bag_problem *problem)
{
    /* A text that is absent although it has a default was lost when memory was exhausted. */
    for (size_t i = 0; i < bag_num_options; i++) {
        const char *const *member =
            (const char *const *)((const char *)config + bag_options[i].setting.offset);
        if (bag_options[i].default_text && bag_options[i].setting.type == BAG_SETTING_TEXT &&
            !*member)
            return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                                   "not enough memory for the configuration");
    }
    if (!check_values(config, problem))
        return false;
    /* Features may be of tables in a folder of models, which is read later. */
    if (!config->models_dir && !bag_config_check_models(config, problem))
        return false;
    if (config->num_models || config->models_dir || config->demo)
        return true;
    return bag_problem_set(problem, BAG_ERROR_USAGE,
                           "there is nothing to serve: name tables with --table NAME=PATH, a "
                           "folder with --models DIR or a file with --config FILE, or try --demo");
}
