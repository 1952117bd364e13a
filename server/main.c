/* The program's entry, which finds the command. `serve` is in cmd_serve.c; small commands are
 * here. */
#include "commands.h"
#include "config/config.h"
#include "proto/network.h"
#include "proto/proxy.h"
#include "proto/text.h"
#include "server/http/message.h"
#include "server/system/deadline.h"
#include "server/system/sockets.h"
#include "server/system/thread_team.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- bagserve health ------------------------------------------------------------------------- */

/* Checks whether a running server is ready, for probes in images without a shell or curl. The exit
 * code is 0 if it is. */

/* Less than the usual timeout of probes, so that the reason can still be printed. */
#define TIMEOUT_S 2

#define TEXT_OF(number)       #number
#define TEXT_OF_MACRO(number) TEXT_OF(number)
#define TIMEOUT_TEXT          TEXT_OF_MACRO(TIMEOUT_S) " seconds"

static const char health_help[] =
    "Usage: bagserve health [--host HOST] [--port PORT] [--unix PATH] [--config FILE]\n"
    "\n"
    "Asks the server on HOST and PORT, or on the socket PATH, whether it is ready.\n"
    "They are taken from flags, the environment or a file, as by 'bagserve serve'.\n"
    "Exit code 0: ready; 1: not ready or not reachable. An answer that takes longer\n"
    "than " TIMEOUT_TEXT " counts as none.\n";

/* Returns the address to connect to. For a server on all addresses this is the loopback address. */
static const char *address_to_ask(const char *host)
{
    if (strcmp(host, "0.0.0.0") == 0)
        return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

static void on_alarm(int number)
{
    static const char text[] = "bagserve: no answer within " TIMEOUT_TEXT "\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)number, (void)ignored;
    _exit(BAG_EXIT_FAILED);
}

static int connect_to(const struct bag_option_values *options, struct bag_problem *problem)
{
    return options->unix_path
               ? bag_unix_connect(options->unix_path, problem)
               : bag_deadline_connect_host(address_to_ask(options->host), options->port,
                                           bag_deadline_in_ms(2 * TIMEOUT_S * 1000), problem);
}

/* Sends a PROXY header without a client if the server expects one from this address. */
static bool introduce(int fd, const struct bag_option_values *options, struct bag_problem *problem)
{
    static const char local[] = BAG_PROXY_SIGNATURE "\x20\0\0";
    struct bag_networks proxies;
    struct sockaddr_storage own = {0};
    socklen_t bytes = sizeof own;
    if (options->proxy_protocol != BAG_PROXY_PROTOCOL_V2)
        return true;
    if (!bag_networks_parse(&proxies, options->trusted_proxies, problem))
        return false;
    getsockname(fd, (struct sockaddr *)&own, &bytes);
    struct bag_http_peer peer = bag_http_peer_of(&own);
    return !(peer.known && bag_networks_have(&proxies, peer.address)) ||
           send(fd, local, sizeof local, MSG_NOSIGNAL) == (ssize_t)sizeof local ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "the server has closed the connection");
}

/* Returns the explanation in a reply: its body, or its first line if it has no body. Removes blanks
 * at its end and replaces characters that are not printable ASCII by '?', because any process may
 * have answered. */
static const char *explain(char *answer)
{
    char *body = strstr(answer, "\r\n\r\n");
    char *text = body && body[4] ? body + 4 : answer;
    if (text == answer)
        text[strcspn(text, "\r\n")] = 0;
    for (size_t end = strlen(text); end > 0 && isspace((unsigned char)text[end - 1]); end--)
        text[end - 1] = 0;
    for (char *at = text; *at; at++)
        *at = isprint((unsigned char)*at) ? *at : '?';
    return text;
}

static bool ask(int fd, struct bag_problem *problem)
{
    static const char request[] = "GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n"
                                  "Connection: close\r\n\r\n";
    char text[4096] = "";
    size_t used = 0;
    ssize_t count = send(fd, request, sizeof request - 1, MSG_NOSIGNAL);
    while (count > 0 && used + 1 < sizeof text &&
           (count = recv(fd, text + used, sizeof text - 1 - used, 0)) > 0)
        used += (size_t)count;
    if (used == 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "the connection was closed without an answer");
    if (strncmp(text, "HTTP/1.1 200 ", 13) == 0)
        return true;
    return bag_problem_set(problem, BAG_ERROR_NOT_READY, "not ready: %s", explain(text));
}

static int bag_cmd_health(int argc, char *argv[])
{
    struct bag_config config;
    struct bag_problem problem;
    if (bag_arguments_ask_help(argc, argv)) {
        fputs(health_help, stdout);
        return BAG_EXIT_OK;
    }
    bool ok = bag_configure(&config, argc, argv, &problem);
    if (ok) {
        /* Limits the time of the whole command, including the look-up of a name, a full backlog of
         * a socket, and a reply that arrives byte by byte. */
        struct sigaction action = {.sa_handler = on_alarm};
        sigaction(SIGALRM, &action, NULL);
        alarm(TIMEOUT_S);
        int fd = connect_to(&config.options, &problem);
        ok = fd >= 0 && introduce(fd, &config.options, &problem) && ask(fd, &problem);
        if (fd >= 0)
            close(fd);
    }
    if (!ok)
        fprintf(stderr, "bagserve: %s\n", problem.text);
    bag_config_free(&config);
    return ok ? BAG_EXIT_OK : bag_commands_exit_code(problem.kind);
}

/* ---- help and the other commands ------------------------------------------------------------- */

static int print_help(FILE *stream)
{
    fputs("bagserve serves embedding tables: it pools bags of rows and returns the vectors.\n"
          "\n"
          "Usage: bagserve COMMAND\n",
          stream);
#define BAG_X(name, follows, sentence) fprintf(stream, "  %-30s%s\n", #name " " follows, sentence);
    BAG_COMMANDS(BAG_X)
#undef BAG_X
    fputs("\n"
          "A first try:\n"
          "  bagserve serve --demo\n"
          "  curl http://127.0.0.1:8000/v2/models\n",
          stream);
    return stream == stderr ? BAG_EXIT_USAGE : 0;
}

static int bag_cmd_completion(int argc, char *argv[])
{
    if (argc == 1 && bag_config_print_completion(stdout, argv[0]))
        return 0;
    fputs("bagserve: completion needs the name of a shell: bash, zsh or fish\n", stderr);
    return BAG_EXIT_USAGE;
}

static int bag_cmd_manual(int argc, char *argv[])
{
    (void)argc, (void)argv;
    bag_config_print_manual(stdout, BAG_VERSION);
    return 0;
}

static int bag_cmd_help(int argc, char *argv[]);

/* The commands. Each gets the arguments after its name. */
static const struct command {
    const char *name;
    int (*run)(int argc, char *argv[]);
    const char *follows, *sentence;
} commands[] = {
#define BAG_X(name, follows, sentence) {#name, bag_cmd_##name, follows, sentence},
    BAG_COMMANDS(BAG_X)
#undef BAG_X
        {"--version", bag_cmd_version, "", "Print version, commit, compiler and libraries."},
    {"--help", bag_cmd_help, "", "Print the list of commands."},
    {"-h", bag_cmd_help, "", "Print the list of commands."},
};

/* Returns the command with this name, or NULL. */
static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    return NULL;
}

/* Prints that there is no command with this name, and the nearest one. Returns the exit code. */
static int reject_command(const char *name)
{
    struct bag_quoted written = bag_quote(name, strlen(name));
    struct bag_suggestion suggestion = {.written = written.text};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        bag_suggest_offer(&suggestion, commands[i].name);
    fprintf(stderr, "bagserve: unknown command '%s'%s 'bagserve help' lists them\n", written.text,
            bag_suggestion_is_near(&suggestion) ? bag_suggestion_question(&suggestion, "'").text
                                                : ";");
    return BAG_EXIT_USAGE;
}

static int bag_cmd_help(int argc, char *argv[])
{
    char flag[] = "--help";
    if (argc == 0)
        return print_help(stdout);
    const struct command *command = find_command(argv[0]);
    if (!command)
        return bag_config_print_topic(stdout, argv[0]) ? BAG_EXIT_OK : reject_command(argv[0]);
    if (strstr(command->follows, "[flags]"))
        return command->run(1, (char *[]){flag});
    printf("Usage: bagserve %s%s%s\n\n%s\n", command->name, *command->follows ? " " : "",
           command->follows, command->sentence);
    return BAG_EXIT_OK;
}

/* Opens the standard streams that are closed. Otherwise another file would get their descriptor,
 * and then what is printed and logged. */
static bool open_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return false;
    }
    return true;
}

static int run_command(int argc, char *argv[])
{
    if (argc < 2 || !*argv[1])
        return print_help(stderr);
    const struct command *command = find_command(argv[1]);
    return command ? command->run(argc - 2, argv + 2) : reject_command(argv[1]);
}

/* The arguments of main and its result. */
struct invocation {
    int argc;
    char **argv;
    int exit_code;
};

static void *run_invocation(void *context)
{
    struct invocation *invocation = context;
    invocation->exit_code = run_command(invocation->argc, invocation->argv);
    return NULL;
}

/* If main's stack is too small (ulimit -s), the command runs on a thread with a stack of sufficient
 * size. */
int main(int argc, char *argv[])
{
    struct invocation invocation = {argc, argv, BAG_EXIT_FAILED};
    struct rlimit stack;
    pthread_t thread;
    if (!open_standard_streams())
        return BAG_EXIT_FAILED;
    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= BAG_STACK_BYTES)
        return run_command(argc, argv);
    int error = bag_thread_start(&thread, run_invocation, &invocation);
    if (error)
        fprintf(stderr, "bagserve: no thread can be started: %s\n", strerror(error));
    else
        pthread_join(thread, NULL);
    return invocation.exit_code;
}
