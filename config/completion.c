/* Prints the completion scripts of bash, zsh and fish for commands, flags and their
 * values, made from the tables of options.h and config.h.
 *
 * The scripts of bash and zsh look at the word before the cursor. After a flag with choices they
 * offer the choices, and after another flag with a value they offer files. Otherwise they offer
 * flags, but of a command that takes files only for a word that begins with -. The script of fish
 * has one declaration for each flag. */
#include "config.h"

#include <string.h>

#define SHELLS "bash zsh fish"

/* ---- flags ----------------------------------------------------------------------------------- */

/* A flag of a command. The flags of "serve" are also those of "health". */
struct flag {
    const char *command, *sentence;
    struct bag_spelling name;
    char follows[256]; /* "": the flag takes no value; "on|off": it takes one of these words */
};

/* The flags that are not options, grouped by command. */
static const struct {
    const char *command, *name, *follows, *sentence;
} others[] = {
#define BAG_X(id, key, follows, sentence) {"serve", "--" key, follows, sentence},
    BAG_FLAGS(BAG_X)
#undef BAG_X
#define BAG_X(command, id, name, follows, sentence) {#command, name, follows, sentence},
        BAG_CONVERT_FLAGS(BAG_X) BAG_INSPECT_FLAGS(BAG_X) BAG_VERIFY_FLAGS(BAG_X)
            BAG_BENCH_FLAGS(BAG_X)
#undef BAG_X
};
#define NUM_OTHERS (sizeof others / sizeof *others)

/* Sets *flag to the flag with this index: the options come first, so that the flags of each command
 * are adjacent. Returns false after the last one. */
static bool get_flag(size_t i, struct flag *flag)
{
    if (i >= bag_num_options + NUM_OTHERS)
        return false;
    *flag = (struct flag){.command = "serve"};
    if (i < bag_num_options) {
        flag->sentence = bag_options[i].sentence;
        flag->name = bag_flag_of(bag_options[i].setting.key);
        bag_option_value_text(&bag_options[i], flag->follows, sizeof flag->follows);
        return true;
    }
    i -= bag_num_options;
    flag->command = others[i].command;
    flag->sentence = others[i].sentence;
    flag->name = bag_key_of(others[i].name);
    snprintf(flag->follows, sizeof flag->follows, "%s", others[i].follows);
    return true;
}

/* Returns whether the flags of the command are also those of "health". Both take no files. */
static bool is_serve(const char *command)
{
    return strcmp(command, "serve") == 0;
}

/* Returns whether the value of the flag is one of a few words. */
static bool has_words(const struct flag *flag)
{
    return strchr(flag->follows, '|');
}

/* Prints the words that a flag takes with blanks between them, but not a form such as NAME=PATH. */
static void put_words(FILE *stream, const struct flag *flag)
{
    for (const char *at = flag->follows; *at;) {
        int bytes = (int)strcspn(at, "|");
        if (!memchr(at, '=', (size_t)bytes))
            fprintf(stream, "%.*s%s", bytes, at, at[bytes] ? " " : "");
        at += bytes + (at[bytes] == '|');
    }
}

/* Prints the names of the flags of a command with blanks between them. */
static void put_flags(FILE *stream, const char *command)
{
    struct flag flag;
    const char *blank = "";
    for (size_t i = 0; get_flag(i, &flag); i++) {
        if (strcmp(flag.command, command) != 0)
            continue;
        fprintf(stream, "%s%s", blank, flag.name.text);
        blank = " ";
    }
}

/* ---- bash and zsh ---------------------------------------------------------------------------- */

/* Prints the branch of a command: a case for each flag that takes a value, and its flags. */
static void put_branch(FILE *stream, const char *command)
{
    struct flag flag;
    fprintf(stream, "    %s)\n    case $before in\n",
            is_serve(command) ? "serve | health" : command);
    for (size_t i = 0; get_flag(i, &flag); i++) {
        if (strcmp(flag.command, command) != 0 || !*flag.follows)
            continue;
        fprintf(stream, "    %s) offered='", flag.name.text);
        if (has_words(&flag))
            put_words(stream, &flag);
        fputs("' ;;\n", stream);
    }
    fprintf(stream, "    *) %soffered='", is_serve(command) ? "" : "[[ $word != -* ]] || ");
    put_flags(stream, command);
    fputs("' ;;\n    esac ;;\n", stream);
}

/* Prints what the scripts of both shells have in common. It sets $offered to the words that may
 * complete $word, or to nothing for files. */
static void put_cases(FILE *stream)
{
    static const char *const commands[] = {"serve", "convert", "inspect", "verify", "bench"};
    fputs("    case $command in\n    '') offered='", stream);
#define BAG_X(name, follows, sentence) fputs(#name " ", stream);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    fputs("' ;;\n    completion) offered='" SHELLS "' ;;\n", stream);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        put_branch(stream, commands[i]);
    fputs("    esac\n", stream);
}

static void put_bash(FILE *stream)
{
    fputs(
        "_bagserve() {\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} offered=''\n"
        "    local command=${COMP_WORDS[1]}\n"
        "    ((COMP_CWORD > 1)) || command=''\n",
        stream);
    put_cases(stream);
    fputs("    if [[ $offered ]]; then COMPREPLY=($(compgen -W \"$offered\" -- \"$word\"))\n"
          "    else COMPREPLY=($(compgen -f -- \"$word\")); fi\n}\n"
          "complete -o default -F _bagserve bagserve\n",
          stream);
}

static void put_zsh(FILE *stream)
{
    fputs("#compdef bagserve\n"
          "local word=$words[CURRENT] before=$words[CURRENT-1] command=$words[2] offered=''\n"
          "((CURRENT > 2)) || command=''\n",
          stream);
    put_cases(stream);
    fputs("if [[ -n $offered ]]; then compadd -- ${=offered}; else _files; fi\n", stream);
}

/* ---- fish ------------------------------------------------------------------------------------ */

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

/* Prints declarations in place of a function. Fish offers files for a command without files among
 * its arguments only after flags that take a value (-F). */
static void put_fish(FILE *stream)
{
    struct flag flag;
#define BAG_X(name, follows, sentence)                                        \
    fputs("complete -c bagserve -n __fish_use_subcommand -a " #name, stream); \
    put_fish_text(stream, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    fputs("complete -c bagserve -f -n '__fish_seen_subcommand_from completion' -a '" SHELLS "'\n"
          "complete -c bagserve -f -n '__fish_seen_subcommand_from serve health'\n",
          stream);
    for (size_t i = 0; get_flag(i, &flag); i++) {
        fprintf(stream, "complete -c bagserve -n '__fish_seen_subcommand_from %s' -l %s",
                is_serve(flag.command) ? "serve health" : flag.command,
                flag.name.text + strlen("--"));
        if (*flag.follows)
            fputs(has_words(&flag) ? " -r -f -a '" : " -r -F", stream);
        if (has_words(&flag)) {
            put_words(stream, &flag);
            fputs("'", stream);
        }
        put_fish_text(stream, flag.sentence);
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
