/* The program's entry: finds the command. */
#include "commands.h"
#include "config/config.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int print_help(FILE *stream)
{
    fputs("bagserve serves embedding tables: it pools bags of rows and returns the vectors.\n"
          "\n"
          "Usage:\n",
          stream);
#define BAG_X(name, follows, sentence) \
    fprintf(stream, "  bagserve %-28s%s\n", #name " " follows, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    fputs("\n"
          "A first try:\n"
          "  bagserve serve --demo\n"
          "  curl http://127.0.0.1:8000/v2/models\n",
          stream);
    return stream == stderr ? BAG_EXIT_USAGE : 0;
}

/* ---- the commands, each with the arguments after its name -------------------------------------
 */

static int run_serve(int argc, char *argv[])
{
    return bag_cmd_serve(argc, argv);
}

static int run_health(int argc, char *argv[])
{
    return bag_cmd_health(argc, argv);
}

static int run_completion(int argc, char *argv[])
{
    if (argc == 1 && bag_config_print_completion(stdout, argv[0]))
        return 0;
    fputs("bagserve: completion needs the name of a shell: bash, zsh or fish\n", stderr);
    return BAG_EXIT_USAGE;
}

static int run_manual(int argc, char *argv[])
{
    (void)argc, (void)argv;
    bag_config_print_manual(stdout, BAG_VERSION);
    return 0;
}

static int run_version(int argc, char *argv[])
{
    (void)argc, (void)argv;
    puts("bagserve " BAG_VERSION);
    return 0;
}

static int run_help(int argc, char *argv[])
{
    (void)argc, (void)argv;
    return print_help(stdout);
}

static const struct {
    const char *name;
    int (*run)(int argc, char *argv[]);
} commands[] = {
#define BAG_X(name, ...) {#name, run_##name},
    BAG_COMMANDS(BAG_X)
#undef BAG_X
        {"--version", run_version},
    {"--help", run_help},
    {"-h", run_help},
};

/* A descriptor below 3 that is closed would be given to something else, which then gets what is
 * printed and logged. */
static bool open_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return false;
    }
    return true;
}

int main(int argc, char *argv[])
{
    if (!open_standard_streams())
        return BAG_EXIT_FAILED;
    const char *command = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, command) == 0)
            return commands[i].run(argc - 2, argv + 2);
    }
    if (*command)
        fprintf(stderr, "bagserve: unknown command '%s'; 'bagserve help' lists them\n", command);
    else
        print_help(stderr);
    return BAG_EXIT_USAGE;
}
