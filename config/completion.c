/* Prints the completion scripts of bash, zsh and fish for commands, flags and their
 * values, made from the tables of options.h and config.h.
 *
 * The scripts of bash and zsh look at the word before the cursor. After a flag with choices they
 * offer the choices, after another flag with a value they offer files, and otherwise flags. The
 * script of fish has one declaration for each flag. */
#include "config.h"

#include <string.h>

#define SHELLS "bash zsh fish"
/* The condition for offering options in fish. */
#define FISH_SERVES "complete -c bagserve -n '__fish_seen_subcommand_from serve health' "

/* Prints the names of all flags of serve and health, with blanks after each. */
static void put_flags(FILE *stream)
{
    for (size_t i = 0; i < bag_num_options; i++)
        fprintf(stream, "%s ", bag_flag_of(bag_options[i].setting.key).text);
#define BAG_X(id, key, follows, sentence) fputs("--" key " ", stream);
    BAG_FLAGS(BAG_X)
#undef BAG_X
}

/* Prints the shell pattern of the words after which a flag may follow: words that are not flags,
 * and flags without a value. */
static void put_no_value(FILE *stream)
{
    fputs("    [!-]*", stream);
#define BAG_X(id, key, follows, sentence) \
    if (!*(follows))                      \
        fputs(" | --" key, stream);
    BAG_FLAGS(BAG_X)
#undef BAG_X
    fputs(") ", stream);
}

static void put_command_names(FILE *stream)
{
#define BAG_X(name, follows, sentence) fputs(#name " ", stream);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
}

/* Prints the words that a setting takes, if it is a choice. */
static void put_words(FILE *stream, const struct bag_setting *setting)
{
    for (size_t k = 0; setting->type == BAG_SETTING_CHOICE && k < setting->words.count; k++)
        fprintf(stream, "%s%s", k ? " " : "", setting->words.names[k]);
}

/* Prints a case for each flag that takes one of a few words, with the texts `before` and `behind`
 * around them. */
static void put_word_cases(FILE *stream, const char *before, const char *behind)
{
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_setting *setting = &bag_options[i].setting;
        if (setting->type != BAG_SETTING_CHOICE)
            continue;
        fprintf(stream, "    %s) %s", bag_flag_of(setting->key).text, before);
        put_words(stream, setting);
        fputs(behind, stream);
    }
}

/* The flags of convert, inspect, verify and bench, grouped by command. */
static const struct tool_flag {
    const char *command, *name, *follows, *sentence;
} tool_flags[] = {
#define BAG_X(command, id, name, follows, sentence) {#command, name, follows, sentence},
    BAG_CONVERT_FLAGS(BAG_X) BAG_INSPECT_FLAGS(BAG_X) BAG_VERIFY_FLAGS(BAG_X) BAG_BENCH_FLAGS(BAG_X)
#undef BAG_X
};
#define NUM_TOOL_FLAGS (sizeof tool_flags / sizeof *tool_flags)

/* Return whether the flag is the first, or the last, of its command. */
static bool is_first(size_t i)
{
    return i == 0 || strcmp(tool_flags[i].command, tool_flags[i - 1].command) != 0;
}
static bool is_last(size_t i)
{
    return i + 1 == NUM_TOOL_FLAGS || is_first(i + 1);
}

/* After a flag that has choices, the tools complete its choices. After any other flag that takes a
 * value, they complete files. Otherwise they complete flags for a word that begins with -, and
 * files for other words. */

static void put_tool_flags(FILE *stream, const char *command)
{
    for (size_t i = 0; i < NUM_TOOL_FLAGS; i++) {
        if (strcmp(tool_flags[i].command, command) == 0)
            fprintf(stream, "%s ", tool_flags[i].name);
    }
}

/* Returns whether the value of the flag is one of a few words. */
static bool has_values(const struct tool_flag *flag)
{
    return strchr(flag->follows, '|');
}

/* Prints the values of a flag with blanks between them. */
static void put_values(FILE *stream, const struct tool_flag *flag)
{
    for (const char *at = flag->follows; *at; at++)
        fputc(*at == '|' ? ' ' : *at, stream);
}

/* Prints a branch of the script for each of these commands. */
static void put_bash_tools(FILE *stream)
{
    for (size_t i = 0; i < NUM_TOOL_FLAGS; i++) {
        const struct tool_flag *flag = &tool_flags[i];
        if (is_first(i))
            fprintf(stream, "    *:%s)\n    case ${COMP_WORDS[COMP_CWORD - 1]} in\n",
                    flag->command);
        if (has_values(flag)) {
            fprintf(stream, "    %s) words='", flag->name);
            put_values(stream, flag);
            fputs("' ;;\n", stream);
        } else if (*flag->follows) {
            fprintf(stream, "    %s) ;;\n", flag->name);
        }
        if (is_last(i)) {
            fputs("    *) [[ $word != -* ]] || words='", stream);
            put_tool_flags(stream, flag->command);
            fputs("' ;;\n    esac ;;\n", stream);
        }
    }
}

/* Prints a branch of the script for each of these commands. The function _files of zsh completes
 * files. */
static void put_zsh_tools(FILE *stream)
{
    for (size_t i = 0; i < NUM_TOOL_FLAGS; i++) {
        const struct tool_flag *flag = &tool_flags[i];
        if (is_first(i))
            fprintf(stream, "%s)\n    case $words[CURRENT-1] in\n", flag->command);
        if (has_values(flag)) {
            fprintf(stream, "    %s) compadd ", flag->name);
            put_values(stream, flag);
            fputs(" ;;\n", stream);
        } else if (*flag->follows) {
            fprintf(stream, "    %s) _files ;;\n", flag->name);
        }
        if (is_last(i)) {
            fputs("    *) if [[ $words[CURRENT] == -* ]]; then compadd -- ", stream);
            put_tool_flags(stream, flag->command);
            fputs("; else _files; fi ;;\n    esac ;;\n", stream);
        }
    }
}

/* Prints the script for bash: commands, the flags of commands that take options, their words, and
 * files otherwise. */
static void put_bash(FILE *stream)
{
    fputs("_bagserve() {\n    local word=${COMP_WORDS[COMP_CWORD]} words=''\n"
          "    case $COMP_CWORD:${COMP_WORDS[1]} in\n    1:*) words='",
          stream);
    put_command_names(stream);
    fputs("' ;;\n    2:completion) words='" SHELLS "' ;;\n    *:serve | *:health)\n"
          "    case ${COMP_WORDS[COMP_CWORD - 1]} in\n",
          stream);
    put_word_cases(stream, "words='", "' ;;\n");
    put_no_value(stream);
    fputs("words='", stream);
    put_flags(stream);
    fputs("' ;;\n    *) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n    esac ;;\n", stream);
    put_bash_tools(stream);
    fputs("    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n}\n"
          "complete -o default -F _bagserve bagserve\n",
          stream);
}

/* Prints the script for zsh, which completes the same words as that for bash. */
static void put_zsh(FILE *stream)
{
    fputs("#compdef bagserve\nif (( CURRENT == 2 )); then\n    compadd ", stream);
    put_command_names(stream);
    fputs("\n    return\nfi\ncase $words[2] in\ncompletion) compadd " SHELLS " ;;\nserve|health)\n"
          "    case $words[CURRENT-1] in\n",
          stream);
    put_word_cases(stream, "compadd ", " ;;\n");
    put_no_value(stream);
    fputs("compadd -- ", stream);
    put_flags(stream);
    fputs(";;\n    *) _files ;;\n    esac ;;\n", stream);
    put_zsh_tools(stream);
    fputs("*) _files ;;\nesac\n", stream);
}

/* Prints a sentence in single quotes, as fish reads it. */
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

/* Prints a declaration for each flag of these commands. */
static void put_fish_tools(FILE *stream)
{
    for (size_t i = 0; i < NUM_TOOL_FLAGS; i++) {
        const struct tool_flag *flag = &tool_flags[i];
        fprintf(stream, "complete -c bagserve -n '__fish_seen_subcommand_from %s' %s-l %s",
                flag->command, *flag->follows ? "-r " : "", flag->name + strlen("--"));
        if (has_values(flag)) {
            fputs(" -f -a '", stream);
            put_values(stream, flag);
            fputs("'", stream);
        }
        put_fish_text(stream, flag->sentence);
    }
}

/* Prints the script for fish: declarations in place of a function. */
static void put_fish(FILE *stream)
{
#define BAG_X(name, follows, sentence)                                        \
    fputs("complete -c bagserve -n __fish_use_subcommand -a " #name, stream); \
    put_fish_text(stream, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    fputs("complete -c bagserve -f -n '__fish_seen_subcommand_from completion' -a '" SHELLS "'\n"
          /* Offers files (-F) only after flags that take a value. */
          FISH_SERVES "-f\n",
          stream);
#define BAG_X(id, key, follows, sentence)                                 \
    fprintf(stream, FISH_SERVES "%s-l " key, *(follows) ? "-r -F " : ""); \
    put_fish_text(stream, sentence);
    BAG_FLAGS(BAG_X)
#undef BAG_X
    for (size_t i = 0; i < bag_num_options; i++) {
        const struct bag_setting *setting = &bag_options[i].setting;
        fprintf(stream, FISH_SERVES "-r -l %s", bag_flag_of(setting->key).text + strlen("--"));
        if (setting->type == BAG_SETTING_CHOICE) {
            fputs(" -f -a '", stream);
            put_words(stream, setting);
            fputs("'", stream);
        } else {
            fputs(" -F", stream);
        }
        put_fish_text(stream, bag_options[i].sentence);
    }
    put_fish_tools(stream);
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
