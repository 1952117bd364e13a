/* Prints `serve --help` and `serve --help-all`, and the manual page, made from the tables of
 * options.h, model_options.h and config.h.
 *
 * An entry of --help is a line "  --flag VALUE   default   VARIABLE" with its sentence indented
 * below. */
#include "config.h"
#include "model_options.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

/* The width of --help, and the indent of the sentences in it, in columns. */
#define WIDTH  80
#define INDENT 6

void bag_help_print_wrapped(FILE *stream, const char *text, int indent)
{
    int column = 0;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > 0 && column + 1 + word > WIDTH) {
            fputc('\n', stream);
            column = 0;
        }
        if (column == 0)
            column = fprintf(stream, "%*s%.*s", indent, "", word, text);
        else
            column += fprintf(stream, " %.*s", word, text);
        text += word;
        text += *text == ' ';
    }
    fputc('\n', stream);
}

/* Prints an entry of the help or of the manual. Default, variable and alias may be "". */
typedef void put_entry(FILE *stream, const char *name, const char *follows,
                       const char *default_text, const char *variable, const char *alias,
                       const char *sentence);

void bag_option_value_text(const struct bag_option *option, char *text, size_t text_bytes)
{
    const struct bag_setting *setting = &option->setting;
    if (setting->type != BAG_SETTING_CHOICE) {
        snprintf(text, text_bytes, "%s", setting->unit[0] ? setting->unit : "number");
        for (; *text; text++)
            *text = (char)toupper((unsigned char)*text);
        return;
    }
    *text = 0;
    for (size_t i = 0; i < setting->words.count; i++)
        bag_text_add(text, text_bytes, "%s%s", i ? "|" : "", setting->words.names[i]);
}

/* Prints the entry of an option, with its alias if it has one. */
static void put_option(FILE *stream, const struct bag_option *option, put_entry *put)
{
    char follows[40];
    const char *alias = bag_option_alias(option);
    bag_option_value_text(option, follows, sizeof follows);
    put(stream, bag_flag_of(option->setting.key).text, follows,
        option->default_text ? option->default_text : "", bag_variable_of(option->setting.key).text,
        alias ? bag_flag_of(alias).text : "", option->sentence);
}

/* Prints the options that name models, and the flags that are not options. */
static void put_sources(FILE *stream, put_entry *put)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        if (!bag_options[i].section[0])
            put_option(stream, &bag_options[i], put);
    }
#define BAG_X(id, key, follows, sentence) put(stream, "--" key, follows, "", "", "", sentence);
    BAG_FLAGS(BAG_X)
#undef BAG_X
}

/* Prints all options, with `heading` before each section. The lines of a section are adjacent in
 * options.h. */
static void put_sections(FILE *stream, const char *heading, put_entry *put)
{
    const char *section = "";
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_option *option = &bag_options[i];
        if (strcmp(option->section, section) != 0) {
            section = option->section;
            fprintf(stream, "%sSection \"%s\"\n", heading, section);
        }
        if (section[0])
            put_option(stream, option, put);
    }
}

/* Prints the keys of models, and of features after the text `features`. */
static void put_model_keys(FILE *stream, const char *features, put_entry *put)
{
#define BAG_X(key, sentence) put(stream, key, "", "", "", "", sentence);
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) \
    put(stream, key, "", "", "", "", sentence);
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
    fputs(features, stream);
#define BAG_X(key, sentence) put(stream, "features[]." key, "", "", "", "", sentence);
    BAG_FEATURE_IDENTITY(BAG_X)
#undef BAG_X
}

/* ---- the help -------------------------------------------------------------------------------- */

/* Prints a flag, its default and its variable in columns, or the variable below if the line would
 * be too wide. */
static void put_columns(FILE *stream, const char *left, const char *default_text,
                        const char *variable)
{
    char line[160];
    int variable_bytes = (int)strlen(variable);
    int bytes = snprintf(line, sizeof line, "  %-38s %-11s ", left, default_text);
    if (bytes + variable_bytes <= WIDTH)
        fprintf(stream, "%s%s\n", line, variable);
    else
        fprintf(stream, "  %-38s %s\n%*s\n", left, default_text, WIDTH, variable);
}

/* Prints an entry of the help. */
static void put_help(FILE *stream, const char *name, const char *follows, const char *default_text,
                     const char *variable, const char *alias, const char *sentence)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", name, *follows ? " " : "", follows);
    if (*default_text || *variable)
        put_columns(stream, left, default_text, variable);
    else
        fprintf(stream, "  %s\n", left);
    bag_help_print_wrapped(stream, sentence, INDENT);
    if (*alias)
        fprintf(stream, "%*sAlso accepted: %s.\n", INDENT, "", alias);
}

void bag_config_print_help(FILE *stream, bool all)
{
    fputs("Usage: bagserve serve [--FLAG VALUE]...\n"
          "\n"
          "  bagserve serve --models models           all tables in models/NAME/VERSION/\n"
          "  bagserve serve --table items=items.npy   one table, as the model \"items\"\n"
          "  bagserve serve --config bagserve.json    the models and options of a file\n"
          "  bagserve serve --models models --check   checks the models and exits\n"
          "\n"
          "Each option is a flag, an environment variable and a key in a section of the\n"
          "configuration file: --log-level debug, BAGSERVE_LOG_LEVEL=debug and\n"
          "{\"log\": {\"log_level\": \"debug\"}} are the same. Flags override variables,\n"
          "and variables override the file. Sizes are written as 67108864, 64MiB (of 1024)\n"
          "or 500KB (of 1000).\n"
          "\n"
          "Models\n",
          stream);
    put_sources(stream, put_help);
    if (!all) {
        /* Print the options that most operators need. */
        static const char *const keys[] = {BAG_COMMON_OPTIONS(BAG_ID)};
        fputs("\nCommon options\n", stream);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
            put_option(stream,
                       bag_option_find((struct bag_text){keys[i], strlen(keys[i])}, bag_key_of),
                       put_help);
        fprintf(stream,
                "\nbagserve serve --help-all prints all %zu options, and the keys of models.\n",
                bag_num_options);
        return;
    }
    put_sections(stream, "\n", put_help);
    fputs("\nKeys of an entry of \"models\" in the configuration file. All but the first three\n"
          "are also keys of the config.json in a model's folder.\n",
          stream);
    put_model_keys(
        stream,
        "\nKeys of an entry of \"features\", which a model may have in place of a path. A\n"
        "feature may also have the keys above from \"reduction\" to \"bias\". A key that it\n"
        "lacks has the value of its table's model.\n",
        put_help);
}

/* Returns whether a topic of the help means the flag with this name, with or without its dashes,
 * and with "_" in place of "-". */
static bool is_topic(const char *topic, const char *flag)
{
    topic += strspn(topic, "-");
    flag += strspn(flag, "-");
    for (; *topic && *flag && (*topic == *flag || (*topic == '_' && *flag == '-')); topic++)
        flag++;
    return !*topic && !*flag;
}

bool bag_config_print_topic(FILE *stream, const char *topic)
{
    bool found = false;
    if (strcmp(topic, "options") == 0 || strcmp(topic, "flags") == 0) {
        bag_config_print_help(stream, true);
        return true;
    }
    for (size_t i = 0; i < bag_num_options && !found; i++) {
        if ((found = is_topic(topic, bag_flag_of(bag_options[i].setting.key).text)))
            put_option(stream, &bag_options[i], put_help);
    }
#define BAG_X(id, key, follows, sentence)         \
    if (!found && (found = is_topic(topic, key))) \
        put_help(stream, "--" key, follows, "", "", "", sentence);
    BAG_FLAGS(BAG_X)
#undef BAG_X
    if (found)
        fputs("\nAn option of 'bagserve serve'; 'bagserve serve --help-all' prints all.\n", stream);
        /* Other commands may have a flag of the same name. */
#define BAG_X(command, id, name, follows, sentence)                                                \
    if (is_topic(topic, name) && strcmp(name, "--help") != 0) {                                    \
        fputs(found ? "\n" : "", stream);                                                          \
        put_help(stream, name, follows, "", "", "", sentence);                                     \
        fputs("\nA flag of 'bagserve " #command "'; 'bagserve " #command " --help' prints all.\n", \
              stream);                                                                             \
        found = true;                                                                              \
    }
    BAG_CONVERT_FLAGS(BAG_X)
    BAG_INSPECT_FLAGS(BAG_X)
    BAG_VERIFY_FLAGS(BAG_X)
    BAG_BENCH_FLAGS(BAG_X)
#undef BAG_X
    return found;
}

/* ---- the manual page (roff with the macros of man) ------------------------------------------- */

/* Prints a text for roff. Hyphens stay copyable, no line begins with a request,
 * and a line may be broken after a bar. */
static void put_text(FILE *stream, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stream);
    for (; *text; text++) {
        if (*text == '-' || *text == '\\')
            fputc('\\', stream);
        fputc(*text == '\\' ? 'e' : *text, stream);
        if (*text == '|')
            fputs("\\:", stream);
    }
}

/* Prints an entry of a list: a name in bold, its value in italics, and its sentence, followed by
 * the default and the variable. */
static void put_manual(FILE *stream, const char *name, const char *follows,
                       const char *default_text, const char *variable, const char *alias,
                       const char *sentence)
{
    fputs(".TP\n\\fB", stream);
    put_text(stream, name);
    fputs("\\fR", stream);
    if (*follows) {
        fputs(" \\fI", stream);
        put_text(stream, follows);
        fputs("\\fR", stream);
    }
    fputc('\n', stream);
    put_text(stream, sentence);
    if (*alias) {
        fputs(" Also accepted: ", stream);
        put_text(stream, alias);
        fputc('.', stream);
    }
    if (*default_text)
        fprintf(stream, " Default: %s.", default_text);
    if (*variable)
        fprintf(stream, " Variable: %s.", variable);
    fputc('\n', stream);
}

void bag_config_print_manual(FILE *stream, const char *version)
{
    fprintf(stream,
            ".TH BAGSERVE 1 \"\" \"bagserve %s\" \"User Commands\"\n"
            ".nh\n.ad l\n" /* neither hyphenation, which would break names, nor wide gaps */
            ".SH NAME\nbagserve \\- inference server for embedding bags\n"
            ".SH SYNOPSIS\n.B bagserve\n.I command\n.RI [ flags ]\n"
            ".SH DESCRIPTION\nbagserve keeps embedding tables in memory, takes lists of ids over "
            "HTTP (Open Inference Protocol, with Triton's binary tensors), pools the rows of each "
            "bag and returns one vector per bag.\n",
            version);
    /* Print the commands and the flags of those that have a list of their own. */
    fputs(".SH COMMANDS\n", stream);
#define BAG_X(name, follows, sentence) put_manual(stream, #name, follows, "", "", "", sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
#define BAG_X(command, id, name, follows, sentence) \
    put_manual(stream, name, follows, "", "", "", sentence);
    fputs(".SS Flags of convert\n", stream);
    BAG_CONVERT_FLAGS(BAG_X)
    fputs(".SS Flags of inspect\n", stream);
    BAG_INSPECT_FLAGS(BAG_X)
    fputs(".SS Flags of verify\n", stream);
    BAG_VERIFY_FLAGS(BAG_X)
    fputs(".SS Flags of bench\n", stream);
    BAG_BENCH_FLAGS(BAG_X)
#undef BAG_X
    fputs(".SH OPTIONS\nThe options of\n.BR serve .\nEach is a flag, an environment variable and a "
          "key in a section of the configuration file. Flags override variables, and variables "
          "override the file. Sizes are written as 67108864, 64MiB (of 1024) or 500KB (of 1000).\n",
          stream);
    put_sources(stream, put_manual);
    put_sections(stream, ".SS ", put_manual);
    fputs(".SH MODELS\nKeys of an entry of\n.I models\nin the configuration file. All but the "
          "first three are also keys of the config.json in a model's folder.\n",
          stream);
    put_model_keys(stream,
                   ".SS Features of a collection\nA feature may also have the keys above from\n.I "
                   "reduction\nto\n.IR bias .\nA key that it lacks has the value of its table's "
                   "model.\n",
                   put_manual);
    fputs(
        ".SH SIGNALS\n.TP\n.BR SIGTERM ,\\  SIGINT\nStop. Readiness becomes 503, running requests "
        "are finished, and the exit status is 0. A second signal stops immediately.\n"
        ".TP\n.B SIGHUP\nReload the access tokens and, with\n.BR \\-\\-model\\-control ,\n"
        "the configured models.\n"
        ".SH EXIT STATUS\n0: success. 1: the command failed; standard error says why. 2: the "
        "command line, the configuration or a file is wrong;\n.B serve\nends with 2 only if its "
        "command line is wrong. 3:\n.B bench\nmeasured, but a sweep has no verdict.\n"
        ".SH ENVIRONMENT\nBAGSERVE_...: the options, as listed above. OTEL_SERVICE_NAME and "
        "OTEL_RESOURCE_ATTRIBUTES name the service in traces.\n"
        ".SH EXAMPLES\n.nf\nbagserve serve \\-\\-demo\n"
        "bagserve serve \\-\\-table items=items.npy \\-\\-port 8080\n"
        "bagserve serve \\-\\-config bagserve.json \\-\\-check\n.fi\n",
        stream);
}
