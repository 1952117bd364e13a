/* Applies environment variables and flags to the configuration; see config.h. */
#include "synthetic.h"

#include <stdlib.h>
#include <string.h>

/* ---- BAGSERVE_* variables -------------------------------------------------------------------- */

#define PREFIX "BAGSERVE_"

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Returns whether a name continues as Kubernetes writes a numbered port: like "8000_TCP" or
 * "8000_TCP_ADDR" at `text`, which follows "PORT_". `end` is the end of the name. */
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

/* Returns whether Kubernetes injected the variable.
 *
 * Kubernetes sets variables in every container for each Service of its namespace, named after the
 * Service. A Service called "bagserve" (or "bagserve-blue") causes BAGSERVE_SERVICE_HOST,
 * BAGSERVE_SERVICE_PORT, BAGSERVE_SERVICE_PORT_HTTP, BAGSERVE_PORT_8000_TCP_ADDR and so on. It also
 * causes BAGSERVE_PORT=tcp://10.0.0.1:8000, which is not a port. A server that rejected them could
 * not start beside its own Service. */
static bool is_service_variable(const char *name, size_t name_bytes, const char *value)
{
    const char *end = name + name_bytes;
    const char *rest = name + strlen("BAGSERVE");
    struct bag_text all = {name, name_bytes};
    if (bag_text_ends_with(all, "_SERVICE_HOST") || bag_text_ends_with(all, "_SERVICE_PORT") ||
        (bag_text_ends_with(all, "_PORT") &&
         (starts_with(value, "tcp://") || starts_with(value, "udp://") ||
          starts_with(value, "sctp://"))))
        return true;
    for (; (rest = strstr(rest, "_PORT_")) && rest < end; rest++) {
        if (bag_text_ends_with((struct bag_text){name, (size_t)(rest - name)}, "_SERVICE") ||
            is_numbered_port(rest + strlen("_PORT_"), end))
            return true;
    }
    return false;
}

/* Applies one "NAME=VALUE" whose name begins with the prefix. */
static bool apply_variable(struct bag_config *config, const char *entry,
                           struct bag_problem *problem)
{
    size_t name_bytes = strcspn(entry, "=");
    const char *value = entry[name_bytes] ? entry + name_bytes + 1 : "";
    const struct bag_option *option =
        bag_option_find((struct bag_text){entry, name_bytes}, bag_variable_of);
    struct bag_reason reason;
    if (is_service_variable(entry, name_bytes, value))
        return true;
    if (!option) {
        /* Reject a variable with the nearest known one as a suggestion. */
        struct bag_quoted written = bag_quote(entry, name_bytes);
        struct bag_suggestion suggestion = {.written = written.text};
        for (size_t i = 0; i < bag_num_options; i++)
            bag_suggest_offer(&suggestion, bag_variable_of(bag_options[i].setting.key).text);
        return bag_problem_set(
            problem, BAG_ERROR_CONFIGURATION, "unknown variable %s%s", written.text,
            bag_suggestion_is_near(&suggestion) ? bag_suggestion_question(&suggestion, "").text
                                                : "; 'bagserve serve --help-all' lists them");
    }
    bag_config_note_origin(config, option, BAG_ORIGIN_VARIABLE);
    if (bag_setting_apply(&option->setting, config, value, &reason))
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s=%s: %s",
                           bag_quote(entry, name_bytes).text, bag_quote(value, strlen(value)).text,
                           reason.text);
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

/* ---- flags: "--flag VALUE" or "--flag=VALUE", the last one counts ---------------------------- */

/* The flags that are not options. */
enum flag_id {
#define BAG_X(id, key, follows, sentence) FLAG_##id,
    BAG_FLAGS(BAG_X)
#undef BAG_X
        FLAG_OPTION,
    FLAG_UNKNOWN
};

static const struct {
    const char *key, *follows;
} plain_flags[] = {
#define BAG_X(id, key, follows, sentence) {key, follows},
    BAG_FLAGS(BAG_X)
#undef BAG_X
};

/* The arguments that have not been read yet. */
struct arguments {
    int count;
    char *const *next;
};

/* One flag as written. */
struct flag {
    const char *written; /* "--port" or "--port=80" */
    size_t name_bytes;   /* length of "--port" */
    enum flag_id id;
    const struct bag_option *option; /* option of a FLAG_OPTION */
    const char *value;               /* NULL: no value was given */
    bool takes_value;
};

/* Sets what the name of a flag stands for, and whether a value must follow. */
static void identify(struct flag *flag)
{
    struct bag_text name = {flag->written, flag->name_bytes};
    for (int id = 0; id < FLAG_OPTION; id++) {
        if (bag_text_is(name, bag_flag_of(plain_flags[id].key).text)) {
            flag->id = (enum flag_id)id;
            flag->takes_value = plain_flags[id].follows[0] != '\0';
            return;
        }
    }
    flag->option = bag_option_find(name, bag_flag_of);
    flag->id = flag->option ? FLAG_OPTION : FLAG_UNKNOWN;
    flag->takes_value = flag->option != NULL;
}

/* Returns whether a word begins with --. */
static bool looks_like_flag(const char *argument)
{
    return argument[0] == '-' && argument[1] == '-';
}

/* Reads the next flag with its value. Returns false if there is none. A word that begins with -- is
 * a value only after '=', so in "--host --port 80" the address is missing. */
static bool next_flag(struct arguments *left, struct flag *flag)
{
    if (left->count <= 0)
        return false;
    *flag = (struct flag){.written = *left->next, .name_bytes = strcspn(*left->next, "=")};
    left->next++;
    left->count--;
    identify(flag);
    if (flag->written[flag->name_bytes]) {
        flag->value = flag->written + flag->name_bytes + 1;
    } else if (flag->takes_value && left->count > 0 && !looks_like_flag(*left->next)) {
        flag->value = *left->next++;
        left->count--;
    }
    return true;
}

char *bag_path_find_tensor(char *path)
{
    static const char *const extensions[] = {".safetensors", ".index.json", ".npz"};
    for (char *at = strchr(path, '#'); at; at = strchr(at + 1, '#')) {
        char *name = at;
        while (name > path && name[-1] != '/')
            name--;
        if (!memchr(name, '.', (size_t)(at - name)))
            return at;
        for (size_t i = 0; i < sizeof extensions / sizeof *extensions; i++) {
            size_t bytes = strlen(extensions[i]);
            if ((size_t)(at - path) > bytes && memcmp(at - bytes, extensions[i], bytes) == 0)
                return at;
        }
    }
    return NULL;
}

/* Returns the last comma that begins ",word=", or NULL if there is none. */
static char *find_key(char *text)
{
    for (size_t at = strlen(text); at-- > 0;) {
        char *comma = text + at;
        size_t bytes = strspn(comma + 1, "abcdefghijklmnopqrstuvwxyz_");
        if (*comma == ',' && bytes > 0 && comma[1 + bytes] == '=')
            return comma;
    }
    return NULL;
}

/* Splits "PATH#TENSOR,key=value,..." from its end and applies the keys. `path` is left with the
 * path only. */
static bool apply_table_keys(struct bag_config *config, char *path, size_t index,
                             struct bag_problem *problem)
{
    for (char *comma; (comma = find_key(path));) {
        char *equals = strchr(comma, '=');
        *comma = *equals = 0;
        if (!bag_config_set_model_key(config, index, comma + 1, equals + 1, problem))
            return false;
    }
    char *tensor = bag_path_find_tensor(path);
    if (!tensor)
        return true;
    *tensor = 0;
    return bag_config_set_model_key(config, index, "tensor", tensor + 1, problem);
}

/* Adds the table of --table NAME=PATH and applies the keys after the path. */
static bool apply_table(struct bag_config *config, const char *value, struct bag_problem *problem)
{
    const char *equals = strchr(value, '=');
    struct bag_quoted shown = bag_quote(value, strlen(value));
    char *name = equals ? strndup(value, (size_t)(equals - value)) : NULL;
    bool added = false;
    if (!equals || equals == value || !equals[1])
        bag_problem_set(problem, BAG_ERROR_USAGE, "--table %s: write NAME=PATH", shown.text);
    else if (!name)
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "--table %s: not enough memory", shown.text);
    else if (!(added = bag_config_add_model(config, name, equals + 1, "1", problem) &&
                       apply_table_keys(config, config->models[config->num_models - 1].path,
                                        config->num_models - 1, problem)))
        bag_problem_prefix(problem, "--table %s", shown.text);
    free(name);
    return added;
}

/* Applies a flag that is an option, and stores that a flag has set it. */
static bool apply_option(struct bag_config *config, const struct flag *flag,
                         struct bag_problem *problem)
{
    struct bag_reason reason;
    bag_config_note_origin(config, flag->option, BAG_ORIGIN_FLAG);
    if (bag_setting_apply(&flag->option->setting, config, flag->value, &reason))
        return true;
    const char *quote = flag->value[0] ? "" : "''";
    return bag_problem_set(problem, BAG_ERROR_USAGE, "%s %s%s: %s",
                           bag_quote(flag->written, flag->name_bytes).text, quote,
                           bag_quote(flag->value, strlen(flag->value)).text, reason.text);
}

/* Adds the table of "NAME=ROWSxELEMENTS,key=value,...". */
static bool add_synthetic(struct bag_config *config, char *text, struct bag_problem *problem)
{
    size_t bytes = strcspn(text, ",");
    char *keys = strdup(text + bytes);
    text[bytes] = 0;
    bool ok = keys ? bag_synthetic_add(config, text, problem) : bag_problem_no_memory(problem);
    if (ok && !apply_table_keys(config, keys, config->num_models - 1, problem)) {
        bag_problem_prefix(problem, "--synthetic %s", bag_quote(text, bytes).text);
        ok = false;
    } else if (ok && *keys) {
        ok = bag_problem_set(problem, BAG_ERROR_USAGE, "--synthetic %s: '%s' is no key=value",
                             bag_quote(text, bytes).text,
                             bag_quote(keys + 1, strlen(keys + 1)).text);
    }
    free(keys);
    return ok;
}

/* Adds a table, or selects the preset, whose tables are added after all flags, because a later flag
 * may set their size. */
static bool apply_synthetic(struct bag_config *config, const char *value,
                            struct bag_problem *problem)
{
    enum bag_synthetic_preset preset = bag_synthetic_find_preset(value);
    if (preset == BAG_SYNTHETIC_NONE) {
        char *text = strdup(value);
        bool ok = text ? add_synthetic(config, text, problem) : bag_problem_no_memory(problem);
        free(text);
        return ok;
    }
    config->synthetic_preset = preset;
    return true;
}

/* Reads the size of --synthetic-bytes, from 1 MiB to 1 TiB. */
static bool apply_synthetic_bytes(struct bag_config *config, const char *value,
                                  struct bag_problem *problem)
{
    const int64_t least = BAG_MIB, most = 1024 * BAG_GIB;
    return (bag_size_parse(value, &config->synthetic_bytes) && config->synthetic_bytes >= least &&
            config->synthetic_bytes <= most) ||
           bag_problem_set(problem, BAG_ERROR_USAGE,
                           "--synthetic-bytes %s: must be a size such as 8GiB, from 1 MiB to 1 TiB",
                           bag_quote(value, strlen(value)).text);
}

/* Adds the tables of the preset if there is one. Rejects --synthetic-bytes without a preset. */
static bool apply_preset(struct bag_config *config, struct bag_problem *problem)
{
    if (config->synthetic_preset == BAG_SYNTHETIC_NONE)
        return !config->synthetic_bytes ||
               bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--synthetic-bytes is for --synthetic " BAG_MLPERF_DLRM_V2_NAME
                               " and " BAG_MLPERF_DLRM_V3_NAME);
    int64_t bytes = config->synthetic_bytes ? config->synthetic_bytes : BAG_SYNTHETIC_BYTES;
    return bag_synthetic_add_preset(config, config->synthetic_preset, bytes, problem);
}

/* Applies one flag. Flags that only print are left to the caller. */
static bool apply_flag(struct bag_config *config, const struct flag *flag,
                       struct bag_problem *problem)
{
    if (flag->id == FLAG_UNKNOWN) {
        /* Reject an unknown flag with the nearest known one, or an argument that is not a flag. */
        struct bag_quoted written = bag_quote(flag->written, flag->name_bytes);
        struct bag_suggestion suggestion = {.written = written.text};
        if (!looks_like_flag(flag->written))
            return bag_problem_set(
                problem, BAG_ERROR_USAGE,
                "unexpected argument '%s'; flags begin with --, and --help lists them",
                bag_quote(flag->written, strlen(flag->written)).text);
        for (size_t i = 0; i < bag_num_options; i++)
            bag_suggest_offer(&suggestion, bag_flag_of(bag_options[i].setting.key).text);
        for (int id = 0; id < FLAG_OPTION; id++)
            bag_suggest_offer(&suggestion, bag_flag_of(plain_flags[id].key).text);
        return bag_problem_set(problem, BAG_ERROR_USAGE, "unknown flag %s%s", written.text,
                               bag_suggestion_is_near(&suggestion)
                                   ? bag_suggestion_question(&suggestion, "").text
                                   : "; --help-all lists them");
    }
    if (flag->takes_value != (flag->value != NULL)) {
        /* Reject a known flag that has a value but takes none, or lacks its value. */
        struct bag_quoted name = bag_quote(flag->written, flag->name_bytes);
        struct bag_reason reason = {"must be NAME=PATH"};
        if (!flag->takes_value)
            return bag_problem_set(problem, BAG_ERROR_USAGE, "%s takes no value", name.text);
        if (flag->option)
            bag_setting_describe(&flag->option->setting, &reason);
        return bag_problem_set(problem, BAG_ERROR_USAGE, "%s: a value is missing; it %s", name.text,
                               reason.text);
    }
    switch (flag->id) {
    case FLAG_TABLE:
        return apply_table(config, flag->value, problem);
    case FLAG_DEMO:
        config->demo = true;
        return true;
    case FLAG_SYNTHETIC:
        return apply_synthetic(config, flag->value, problem);
    case FLAG_SYNTHETIC_BYTES:
        return apply_synthetic_bytes(config, flag->value, problem);
    case FLAG_CHECK:
        config->check = true;
        return true;
    case FLAG_OPTION:
        return apply_option(config, flag, problem);
    case FLAG_VERSION: /* the caller has printed it already */
    case FLAG_HELP:
    case FLAG_HELP_ALL:
    case FLAG_UNKNOWN:
        break;
    }
    return true;
}

bool bag_config_apply_flags(struct bag_config *config, int argc, char *const argv[],
                            struct bag_problem *problem)
{
    struct arguments left = {argc, argv};
    struct flag flag;
    while (next_flag(&left, &flag)) {
        if (!apply_flag(config, &flag, problem))
            return false;
    }
    return apply_preset(config, problem);
}

/* ---- where the configuration file is --------------------------------------------------------- */

const char *bag_config_find_path(int argc, char *const argv[], char *const environment[])
{
    struct bag_spelling variable = bag_variable_of("config");
    size_t bytes = strlen(variable.text);
    struct arguments left = {argc, argv};
    struct flag flag;
    /* The last --config wins over the variable, as it does for other options. */
    const char *path = NULL;
    for (; *environment; environment++) {
        if (strncmp(*environment, variable.text, bytes) == 0 && (*environment)[bytes] == '=')
            path = *environment + bytes + 1;
    }
    while (next_flag(&left, &flag)) {
        if (flag.option && strcmp(flag.option->setting.key, "config") == 0 && flag.value)
            path = flag.value;
    }
    return path && *path ? path : NULL;
}
