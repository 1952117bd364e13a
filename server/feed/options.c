/* The command line of bagserve-feed; see feed.h. */
#include "feed.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: bagserve-feed --brokers HOST:PORT[,...] --topic T --model M --server URL [flags]\n"
    "\n"
    "Brings the messages of one partition of a Kafka topic to one model of a bagserve server, "
    "which\n"
    "runs with --updates on. A message's value is the body that POST /v2/models/M/rows takes, "
    "JSON\n"
    "or binary (then with the header Inference-Header-Content-Length); its offset + 1 is its "
    "number.\n"
    "It begins behind the last number that the server has, and goes on where it was whatever is\n"
    "restarted.\n"
    "\n"
    "  --brokers HOST:PORT[,...]  where the cluster is\n"
    "  --topic T                  the topic\n"
    "  --partition P              its partition; to be said where the topic has several\n"
    "  --model M                  the model whose rows change\n"
    "  --server URL               http://HOST:PORT, https://..., or unix:PATH; of the second "
    "listener\n"
    "                             where the server has one\n"
    "  --token-file F             the server's file of tokens; the first of scope admin is used\n"
    "  --on-error stop|skip       what becomes of a message that the server rejects (stop): stop "
    "with\n"
    "                             its offset and the server's sentence, or pass it over\n"
    "  --dead-letter T2           passes skipped messages on to this topic\n"
    "  --max-rows N               merges messages to batches of so many rows (10000)\n"
    "  --max-wait-ms N            waits so long for more messages once there is one (10)\n"
    "  --metrics-port P           answers GET /metrics on this port\n"
    "  --librdkafka KEY=VALUE     sets a property of librdkafka, as security.protocol=ssl; "
    "repeatable\n"
    "  --help, --version\n"
    "\n"
    "SIGTERM ends it with exit code 0. Exit code 1: a message was rejected, or the topic does not\n"
    "have what follows the server's rows; 2: wrong usage.\n";

#define AT(member) offsetof(struct bag_feed_options, member)

/* Flags that set a member of the options: a text, or a number from `low` to `high` if `high` is not
 * 0. */
static const struct {
    const char *name;
    size_t member;
    int low, high;
} plain[] = {
    {"--brokers", AT(brokers), 0, 0},
    {"--topic", AT(topic), 0, 0},
    {"--model", AT(model), 0, 0},
    {"--server", AT(server), 0, 0},
    {"--token-file", AT(token_file), 0, 0},
    {"--dead-letter", AT(dead_letter), 0, 0},
    {"--partition", AT(partition), 0, INT32_MAX},
    {"--max-rows", AT(max_rows), 1, 10000000},
    {"--max-wait-ms", AT(max_wait_ms), 0, 60000},
    {"--metrics-port", AT(metrics_port), 1, 65535},
};

/* The first NEEDED flags are required. */
enum { PLAIN = sizeof plain / sizeof *plain, NEEDED = 4 };

/* Prints what is wrong with a flag. Returns false. */
static bool reject(const char *what, const char *value, const char *right)
{
    fprintf(stderr, "bagserve-feed: %s %s%s%s%s\n", what, value ? "is \"" : "", value ? value : "",
            value ? "\"; it must be " : "", right);
    return false;
}

/* Reads a number from `low` to `high`. Returns false after printing what is wrong. */
static bool read_number(const char *flag, const char *text, int low, int high, int *number)
{
    char *end, right[64];
    errno = 0;
    long value = strtol(text, &end, 10);
    *number = (int)value;
    snprintf(right, sizeof right, "a number from %d to %d", low, high);
    return (*text && !*end && !errno && value >= low && value <= high) || reject(flag, text, right);
}

static bool read_flag(struct bag_feed_options *options, int flag, char *value)
{
    if (flag < PLAIN) {
        char *member = (char *)options + plain[flag].member;
        if (plain[flag].high)
            return read_number(plain[flag].name, value, plain[flag].low, plain[flag].high,
                               (int *)(void *)member);
        *(const char **)(void *)member = value;
        return true;
    }
    switch (flag) {
    case 'e':
        options->skips = strcmp(value, "skip") == 0;
        return options->skips || strcmp(value, "stop") == 0 ||
               reject("--on-error", value, "stop or skip");
    case 'k':
        if (!strchr(value, '='))
            return reject("--librdkafka", value, "KEY=VALUE");
        if (options->num_settings == BAG_FEED_MAX_SETTINGS)
            return reject("--librdkafka", NULL, "is there too often");
        options->settings[options->num_settings++] = value;
        return true;
    default: /* getopt printed what is wrong */
        fputs("bagserve-feed: --help lists the flags\n", stderr);
        return false;
    }
}

/* Checks what concerns several flags, or flags that are missing. */
static bool check(const struct bag_feed_options *options)
{
    for (size_t i = 0; i < NEEDED; i++) {
        const char *text =
            *(const char *const *)(const void *)((const char *)options + plain[i].member);
        if (!text || !*text)
            return reject(plain[i].name, NULL, "is missing; --help says what it is");
    }
    if (strncmp(options->server, "http://", 7) != 0 &&
        strncmp(options->server, "https://", 8) != 0 && strncmp(options->server, "unix:", 5) != 0)
        return reject("--server", options->server, "http://HOST:PORT, https://... or unix:PATH");
    return !options->dead_letter || options->skips ||
           reject("--dead-letter", NULL, "needs --on-error skip");
}

bool bag_feed_options_read(struct bag_feed_options *options, int argc, char *argv[], int *exit_code)
{
    struct option flags[PLAIN + 5] = {[PLAIN] = {"on-error", required_argument, NULL, 'e'},
                                      {"librdkafka", required_argument, NULL, 'k'},
                                      {"help", no_argument, NULL, 'h'},
                                      {"version", no_argument, NULL, 'v'}};
    int flag;
    for (int i = 0; i < PLAIN; i++)
        flags[i] = (struct option){plain[i].name + 2, required_argument, NULL, i};
    *options = (struct bag_feed_options){.partition = -1, .max_rows = 10000, .max_wait_ms = 10};
    *exit_code = 2;
    while ((flag = getopt_long(argc, argv, "h", flags, NULL)) != -1) {
        if (flag == 'h' || flag == 'v') {
            fputs(flag == 'h' ? help : "bagserve-feed " BAG_VERSION "\n", stdout);
            *exit_code = 0;
            return false;
        }
        if (!read_flag(options, flag, optarg))
            return false;
    }
    if (optind < argc)
        return reject("the argument", argv[optind], "a flag");
    return check(options);
}
