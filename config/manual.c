/* The manual page and the shells' completions, made from the tables that --help is made from. */
#include "config.h"
#include "model_options.h"

#include <string.h>

/* ---- the manual page (roff with the macros of man) ------------------------------------------- */

/* Text as roff shows it: hyphens that can be copied, no request at the start of a line. */
static void put_text(FILE *stream, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stream);
    for (; *text; text++) {
        if (*text == '-' || *text == '\\')
            fputc('\\', stream);
        fputc(*text == '\\' ? 'e' : *text, stream);
    }
}

/* An entry of a list: a name in bold, what follows it in italics, and its sentence. */
static void put_entry(FILE *stream, const char *name, const char *follows, const char *sentence)
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
    fputc('\n', stream);
}

static void put_option(FILE *stream, const struct bag_option *option)
{
    char follows[40], default_text[32], sentence[1024];
    bag_option_value_text(option, follows, sizeof follows);
    bag_option_default_text(option, default_text, sizeof default_text);
    snprintf(sentence, sizeof sentence, "%s%s%s%s Variable: %s.", option->sentence,
             *default_text ? " Default: " : "", default_text, *default_text ? "." : "",
             bag_variable_of(option->setting.key).text);
    put_entry(stream, bag_flag_of(option->setting.key).text, follows, sentence);
}

static void put_commands(FILE *stream)
{
    fputs(".SH COMMANDS\n", stream);
#define BAG_X(name, follows, sentence) put_entry(stream, #name, follows, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
}

static void put_options(FILE *stream)
{
    const char *section = "";
    fputs(
        ".SH OPTIONS\nOf\n.BR serve .\nEach is a flag, a variable of the environment and a key in "
        "a section of the configuration file. Flags override variables, and variables override "
        "the file. Sizes may be written 67108864, 64MiB (of 1024) or 500KB (of 1000).\n",
        stream);
#define BAG_X(id, key, follows, sentence) put_entry(stream, "--" key, follows, sentence);
    BAG_FLAGS(BAG_X)
#undef BAG_X
    for (size_t i = 0; i < bag_num_options; i++) {
        if (strcmp(bag_options[i].section, section) != 0) {
            section = bag_options[i].section;
            fprintf(stream, ".SS Section \"%s\"\n", section);
        }
        put_option(stream, &bag_options[i]);
    }
}

static void put_model_keys(FILE *stream)
{
    fputs(".SH MODELS\nKeys of an entry of\n.I models\nin the configuration file, and of the "
          "config.json in a model's folder.\n",
          stream);
#define BAG_X(key, sentence) put_entry(stream, key, "", sentence);
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) put_entry(stream, key, "", sentence);
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
}

void bag_config_print_manual(FILE *stream, const char *version)
{
    fprintf(stream,
            ".TH BAGSERVE 1 \"\" \"bagserve %s\" \"User Commands\"\n"
            ".SH NAME\nbagserve \\- inference server for embedding bags\n"
            ".SH SYNOPSIS\n.B bagserve\n.I command\n.RI [ flags ]\n"
            ".SH DESCRIPTION\nbagserve keeps embedding tables in memory, takes lists of ids over "
            "HTTP (Open Inference Protocol, with Triton's binary tensors), pools the rows of each "
            "bag and sends back one vector per bag.\n",
            version);
    put_commands(stream);
    put_options(stream);
    put_model_keys(stream);
    fputs(
        ".SH SIGNALS\n.TP\n.BR SIGTERM ,\\  SIGINT\nStop: readiness becomes 503, running requests "
        "are finished, the exit status is 0. A second one stops at once.\n"
        ".SH EXIT STATUS\n0: as asked. 1: it failed, standard error says why. 2: the command line "
        "or the configuration is wrong.\n"
        ".SH EXAMPLES\n.nf\nbagserve serve \\-\\-demo\n"
        "bagserve serve \\-\\-table items=items.npy \\-\\-port 8080\n"
        "bagserve serve \\-\\-config bagserve.json \\-\\-check\n.fi\n",
        stream);
}

/* ---- completions ----------------------------------------------------------------------------- */

static void put_flags(FILE *stream)
{
    for (size_t i = 0; i < bag_num_options; i++)
        fprintf(stream, "%s ", bag_flag_of(bag_options[i].setting.key).text);
#define BAG_X(id, key, follows, sentence) fputs("--" key " ", stream);
    BAG_FLAGS(BAG_X)
#undef BAG_X
}

static void put_command_names(FILE *stream)
{
#define BAG_X(name, follows, sentence) fputs(#name " ", stream);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
}

/* A case for each flag that takes one of a few words. */
static void put_bash_words(FILE *stream)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_setting *setting = &bag_options[i].setting;
        if (setting->type != BAG_SETTING_CHOICE)
            continue;
        fprintf(stream, "    %s) words='", bag_flag_of(setting->key).text);
        for (size_t k = 0; k < setting->words.count; k++)
            fprintf(stream, "%s ", setting->words.names[k]);
        fputs("' ;;\n", stream);
    }
}

/* Flags and their words; files for all other values. */
static void put_bash(FILE *stream)
{
    fputs("_bagserve() {\n    local word=${COMP_WORDS[COMP_CWORD]} words=''\n"
          "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n",
          stream);
    put_bash_words(stream);
    fputs("    --*) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n    bagserve) words='",
          stream);
    put_command_names(stream);
    fputs("' ;;\n    *) words='", stream);
    put_flags(stream);
    fputs("' ;;\n    esac\n    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
          "complete -o default -F _bagserve bagserve\n",
          stream);
}

static void put_zsh(FILE *stream)
{
    fputs("#compdef bagserve\nif (( CURRENT == 2 )); then\n    compadd ", stream);
    put_command_names(stream);
    fputs("\nelif [[ $words[CURRENT-1] == --* ]]; then\n    _files\nelse\n    compadd -- ", stream);
    put_flags(stream);
    fputs("\nfi\n", stream);
}

/* A sentence in single quotes, as fish reads it. */
static void put_fish_text(FILE *stream, const char *text)
{
    fputs(" -d '", stream);
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            fputc('\\', stream);
        fputc(*text, stream);
    }
    fputs("'\n", stream);
}

static void put_fish(FILE *stream)
{
#define BAG_X(name, follows, sentence)                                        \
    fputs("complete -c bagserve -n __fish_use_subcommand -a " #name, stream); \
    put_fish_text(stream, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    for (size_t i = 0; i < bag_num_options; i++) {
        fprintf(stream, "complete -c bagserve -r -l %s",
                bag_flag_of(bag_options[i].setting.key).text + strlen("--"));
        put_fish_text(stream, bag_options[i].sentence);
    }
}

bool bag_config_print_completion(FILE *stream, const char *shell)
{
    static const struct {
        const char *shell;
        void (*put)(FILE *stream);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(shells[i].shell, shell) == 0) {
            shells[i].put(stream);
            return true;
        }
    }
    return false;
}
