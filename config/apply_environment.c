/* BAGSERVE_* variables -> configuration. */
#include "option_list.h"
#include "proto/text.h"

#include <string.h>

#define PREFIX "BAGSERVE_"

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static bool ends_with(const char *text, size_t bytes, const char *end)
{
    size_t end_bytes = strlen(end);
    return bytes >= end_bytes && memcmp(text + bytes - end_bytes, end, end_bytes) == 0;
}

/* Whether "..._PORT_8000_TCP" or "..._PORT_8000_TCP_ADDR" is how the name goes on after `text`,
 * which stands behind a "PORT_". */
static bool is_numbered_port(const char *text, const char *end)
{
    static const char *const protocols[] = {"_TCP", "_UDP", "_SCTP"};
    size_t digits = strspn(text, "0123456789");
    for (size_t i = 0; digits && i < 3; i++) {
        size_t bytes = strlen(protocols[i]);
        if (starts_with(text + digits, protocols[i])) {
            const char *rest = text + digits + bytes;
            return rest == end || *rest == '_';
        }
    }
    return false;
}

static bool is_link(const char *value)
{
    return starts_with(value, "tcp://") || starts_with(value, "udp://") ||
           starts_with(value, "sctp://");
}

/* Kubernetes gives every container variables for each Service of its namespace, named after the
 * Service. One called "bagserve" (or "bagserve-blue") brings BAGSERVE_SERVICE_HOST,
 * BAGSERVE_SERVICE_PORT, BAGSERVE_SERVICE_PORT_HTTP, BAGSERVE_PORT_8000_TCP_ADDR and so on, and
 * BAGSERVE_PORT=tcp://10.0.0.1:8000, which is no port. Nobody wrote them as configuration, and a
 * server that rejected them would not start beside its own Service. */
static bool is_service_variable(const char *name, size_t name_bytes, const char *value)
{
    const char *end = name + name_bytes;
    const char *rest = name + strlen("BAGSERVE");
    if (ends_with(name, name_bytes, "_SERVICE_HOST") ||
        ends_with(name, name_bytes, "_SERVICE_PORT"))
        return true;
    if (ends_with(name, name_bytes, "_PORT") && is_link(value))
        return true;
    for (; (rest = strstr(rest, "_PORT_")) && rest < end; rest++) {
        if (ends_with(name, (size_t)(rest - name), "_SERVICE") ||
            is_numbered_port(rest + strlen("_PORT_"), end))
            return true;
    }
    return false;
}

static const struct bag_option *find_variable(const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        struct bag_spelling variable = bag_variable_of(bag_options[i].setting.key);
        if (strlen(variable.text) == name_bytes && memcmp(variable.text, name, name_bytes) == 0)
            return &bag_options[i];
    }
    return NULL;
}

static bool reject_unknown(const char *name, size_t name_bytes, struct bag_problem *problem)
{
    struct bag_quoted written = bag_quote(name, name_bytes);
    struct bag_suggestion suggestion = {.written = written.text};
    for (size_t i = 0; i < bag_num_options; i++)
        bag_suggest_offer(&suggestion, bag_variable_of(bag_options[i].setting.key).text);
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "unknown variable %s; did you mean %s?", written.text,
                           suggestion.nearest);
}

/* One "NAME=VALUE" whose name starts with the prefix. */
static bool apply_variable(struct bag_config *config, const char *entry,
                           struct bag_problem *problem)
{
    size_t name_bytes = strcspn(entry, "=");
    const char *value = entry[name_bytes] ? entry + name_bytes + 1 : "";
    const struct bag_option *option = find_variable(entry, name_bytes);
    struct bag_reason reason;
    if (is_service_variable(entry, name_bytes, value))
        return true;
    if (!option)
        return reject_unknown(entry, name_bytes, problem);
    if (bag_setting_apply(&option->setting, config, value, &reason))
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s=%s: %s",
                           bag_variable_of(option->setting.key).text,
                           bag_quote(value, strlen(value)).text, reason.text);
}

bool bag_config_apply_environment(struct bag_config *config, char *const environment[],
                                  struct bag_problem *problem)
{
    for (; *environment; environment++) {
        if (starts_with(*environment, PREFIX) && !apply_variable(config, *environment, problem))
            return false;
    }
    return true;
}
