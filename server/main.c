/* The program's entry: finds the command. */
#include "commands.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int print_help(FILE *stream)
{
    fputs("bagserve serves embedding tables: it pools bags of rows and returns the vectors.\n"
          "\n"
          "Usage:\n"
          "  bagserve serve [flags]   load tables and answer requests (serve --help lists the "
          "flags)\n"
          "  bagserve health [flags]  exit 0 if a server on --host and --port is ready\n"
          "  bagserve version         print the version\n"
          "  bagserve help            print this\n"
          "\n"
          "A first try:\n"
          "  bagserve serve --demo\n"
          "  curl http://127.0.0.1:8000/v2/models\n",
          stream);
    return stream == stderr ? BAG_EXIT_USAGE : 0;
}

static int print_version(void)
{
    puts("bagserve " BAG_VERSION);
    return 0;
}

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
    if (strcmp(command, "serve") == 0)
        return bag_cmd_serve(argc - 2, argv + 2);
    if (strcmp(command, "health") == 0)
        return bag_cmd_health(argc - 2, argv + 2);
    if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0)
        return print_version();
    if (strcmp(command, "help") == 0 || strcmp(command, "--help") == 0 ||
        strcmp(command, "-h") == 0)
        return print_help(stdout);
    if (*command)
        fprintf(stderr, "bagserve: unknown command '%s'; 'bagserve help' lists them\n", command);
    else
        print_help(stderr);
    return BAG_EXIT_USAGE;
}
