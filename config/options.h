/* The one table of options. A line here is a flag, an environment variable, a key of the
 * configuration file, a line of --help and a member of struct bag_option_values.
 *
 * X(member, "section", "key", TYPE, "default", minimum, maximum, "unit", "sentence")
 *
 * The flag is --key with '-' for '_', the variable BAGSERVE_KEY, and in the file it is
 * {"section": {"key": value}}; keys are unique over all sections. Keys of a duration or a size end
 * in its unit: _us, _ms, _s, _bytes. TYPE is one of
 *
 *   COUNT     an integer of the unit, from minimum to maximum
 *   BYTES     the same in bytes, which may be written 64MiB, 1GiB, 500KB
 *   TEXT      a string; minimum and maximum bound its length
 *   FILE      a path, likewise; in a configuration file relative to that file's folder
 *   CHOICE_*  one of the words of a list below
 *
 * Messages name the unit, and --help does in capitals; "" where a number has none. */
#ifndef BAG_OPTIONS_H
#define BAG_OPTIONS_H

#include "kernels/bag.h"
#include "kernels/part.h"
#include "proto/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- one value that can be set --------------------------------------------------------------- */

/* Its type, its bounds, where it is kept, and how a text becomes it. Options and the keys of a
 * model are lists of these, so that a value means the same and is rejected in the same words
 * wherever it is written. */

enum bag_setting_type {
    BAG_SETTING_COUNT,  /* int64_t */
    BAG_SETTING_BYTES,  /* int64_t */
    BAG_SETTING_KEY,    /* int64_t: 64 bits, with or without a sign */
    BAG_SETTING_TEXT,   /* char *, owned; minimum and maximum bound its length */
    BAG_SETTING_SHAPE,  /* struct bag_shape: "[100, 64]" */
    BAG_SETTING_CHOICE, /* an enum: the position among the words */
    BAG_SETTING_BOOL,   /* bool: true or false, which JSON has without quotes */
    BAG_SETTING_POLICY, /* struct bag_version_policy: "all", "latest 2", "specific 1 3" */
    BAG_SETTING_PART    /* struct bag_part: "rows 0 of 3" */
};

/* Dimensions, of which the first may be -1 for any. */
struct bag_shape {
    uint32_t rank; /* 0: not set */
    int64_t sizes[BAG_MAX_RANK];
};

/* Which versions of a model are served, of those that are good. */
#define BAG_POLICY_MAX_VERSIONS 16
enum bag_version_policy_kind { BAG_VERSIONS_LATEST, BAG_VERSIONS_ALL, BAG_VERSIONS_SPECIFIC };
struct bag_version_policy {
    enum bag_version_policy_kind kind;
    int64_t numbers[BAG_POLICY_MAX_VERSIONS]; /* LATEST: how many; SPECIFIC: which */
    size_t count;                             /* of `numbers`; 0: not set, the latest one */
};

/* Indexed by the enum; NULL where a member of the enum may not be chosen. */
struct bag_words {
    const char *const *names;
    size_t count;
};

struct bag_setting {
    const char *key;
    enum bag_setting_type type;
    size_t offset; /* of the member in the struct that all settings of the list are kept in */
    int64_t minimum, maximum;
    bool is_path;     /* of a file: in a document relative to the document's folder */
    const char *unit; /* "seconds"; "" where there is none */
    struct bag_words words;
};

/* Initialisers for the columns that depend on TYPE, here and in model_options.h. */
#define BAG_TYPE_COUNT  .type = BAG_SETTING_COUNT
#define BAG_TYPE_BYTES  .type = BAG_SETTING_BYTES
#define BAG_TYPE_TEXT   .type = BAG_SETTING_TEXT
#define BAG_TYPE_FILE   .type = BAG_SETTING_TEXT, .is_path = true
#define BAG_TYPE_KEY    .type = BAG_SETTING_KEY
#define BAG_TYPE_SHAPE  .type = BAG_SETTING_SHAPE
#define BAG_TYPE_POLICY .type = BAG_SETTING_POLICY
#define BAG_TYPE_PART   .type = BAG_SETTING_PART
#define BAG_TYPE_BOOL   .type = BAG_SETTING_BOOL, .words = {bag_bool_words, 2}
#define BAG_TYPE_CHOICE(LIST) \
    .type = BAG_SETTING_CHOICE, .words = {(const char *const[]){LIST(BAG_NAME)}, LIST(BAG_ONE)}

/* What the lists of words are made into: X(id, "word", ...). */
#define BAG_ID(id, ...)         id,
#define BAG_NAME(id, name, ...) name,
#define BAG_ONE(...)            +1

extern const char *const bag_bool_words[2];

/* Why a value was rejected: "must be from 0 to 65535". */
struct bag_reason {
    char text[256];
};

/* Sets the member in `base` from a text; false with the reason, and the member as it was. */
bool bag_setting_apply(const struct bag_setting *setting, void *base, const char *text,
                       struct bag_reason *reason);

/* What values the setting takes: the reason against one of another type. */
void bag_setting_describe(const struct bag_setting *setting, struct bag_reason *reason);

/* ---- the options ----------------------------------------------------------------------------- */

#define BAG_LOG_FORMATS(X)         \
    X(BAG_LOG_FORMAT_TEXT, "text") \
    X(BAG_LOG_FORMAT_JSON, "json")

#define BAG_LOG_LEVELS(X)               \
    X(BAG_LOG_LEVEL_ERROR, "error")     \
    X(BAG_LOG_LEVEL_WARNING, "warning") \
    X(BAG_LOG_LEVEL_INFO, "info")       \
    X(BAG_LOG_LEVEL_DEBUG, "debug")

/* When the journal of updates is on the disk: before an update is acknowledged, in intervals, or
 * when the system likes. */
#define BAG_JOURNAL_SYNCS(X)                 \
    X(BAG_JOURNAL_SYNC_ALWAYS, "always")     \
    X(BAG_JOURNAL_SYNC_INTERVAL, "interval") \
    X(BAG_JOURNAL_SYNC_OFF, "off")

/* How the models that are served may change; the words are Triton's. */
#define BAG_MODEL_CONTROLS(X)                 \
    X(BAG_MODEL_CONTROL_NONE, "none")         \
    X(BAG_MODEL_CONTROL_EXPLICIT, "explicit") \
    X(BAG_MODEL_CONTROL_POLL, "poll")

#define BAG_METRICS_WORDS(X)          \
    X(BAG_METRICS_ON, "on")           \
    X(BAG_METRICS_PRIVATE, "private") \
    X(BAG_METRICS_OFF, "off")

#define BAG_SWITCHES(X)      \
    X(BAG_SWITCH_OFF, "off") \
    X(BAG_SWITCH_ON, "on")

/* EXPLICIT: of the system's pool (vm.nr_hugepages). */
#define BAG_HUGEPAGES_KINDS(X)                  \
    X(BAG_HUGEPAGES_OFF, "off")                 \
    X(BAG_HUGEPAGES_TRANSPARENT, "transparent") \
    X(BAG_HUGEPAGES_EXPLICIT, "explicit")

#define BAG_NUMA_POLICIES(X) \
    X(BAG_NUMA_OFF, "off")   \
    X(BAG_NUMA_INTERLEAVE, "interleave")

#define BAG_LOADS(X)         \
    X(BAG_LOAD_COPY, "copy") \
    X(BAG_LOAD_MAP, "map")

#define BAG_PROXY_PROTOCOLS(X)       \
    X(BAG_PROXY_PROTOCOL_OFF, "off") \
    X(BAG_PROXY_PROTOCOL_V2, "v2")

/* clang-format off */
#define BAG_OPTIONS(X)                                                                             \
    X(host, "http", "host", TEXT, "127.0.0.1", 1, 255, "address",                                  \
      "Address to listen on; 0.0.0.0 or :: for all.")                                              \
    X(port, "http", "port", COUNT, "8000", 0, 65535, "",                                           \
      "TCP port to listen on; 0 takes a free one and logs it.")                                    \
    X(unix_path, "http", "unix", TEXT, NULL, 1, 107, "path",                                       \
      "Unix-domain socket to listen on, in place of host and port; absent: none.")                 \
    X(unix_permissions, "http", "unix_permissions", TEXT, "660", 1, 4, "octal",                    \
      "Who may connect to that socket: those who may write to it.")                                \
    X(admin_port, "http", "admin_port", COUNT, "0", 0, 65535, "",                                  \
      "TCP port of the admin listener, for health, metrics and models; it rejects inference. 0: "  \
      "none. The main listener answers requests for health and metrics, too.")                     \
    X(admin_socket, "http", "admin_socket", TEXT, NULL, 1, 107, "path",                            \
      "Unix-domain socket of the admin listener, in place of admin_port; unix_permissions are "    \
      "its own, too. Without a token_file it alone may change models: whoever may write to it.")   \
    X(max_body_bytes, "http", "max_body_bytes", BYTES, "64 MiB", 1, 64 * BAG_GIB, "bytes",         \
      "Largest request body; a larger one is answered 413 before it is read.")                     \
    X(max_reply_bytes, "http", "max_reply_bytes", BYTES, "64 MiB", 1, 64 * BAG_GIB, "bytes",       \
      "Largest reply; a request that would need more is answered 400 before any memory is asked "  \
      "for.")                                                                                      \
    X(max_reply_ratio, "http", "max_reply_ratio", COUNT, "1000", 0, 1000000000, "times",           \
      "Largest reply in relation to the request's body as it was sent; a request that would need " \
      "more is answered 400. 0: any.")                                                             \
    X(max_memory, "http", "max_memory", BYTES, "0", 0, 1024 * BAG_GIB, "bytes",                    \
      "Most memory that requests hold together: bodies as they arrive, decompressed bodies, results, " \
      "and replies until they are sent; further ones are answered 503. 0: half of what the machine " \
      "and the control group have left beside the tables.")                                        \
    X(max_connections, "http", "max_connections", COUNT, "4096", 1, 1000000, "connections",        \
      "Most open connections; a request on a further one is answered 503. The admin listener has " \
      "an eighth as many of its own, and four.")                                                   \
    X(max_connections_per_client, "http", "max_connections_per_client", COUNT, "0", 0, 1000000,    \
      "connections", "Most open connections from one address (of IPv6 from a network of 64 bits), " \
      "others are closed at once; 0 means half of max_connections, but at least 64.")              \
    X(trusted_proxies, "http", "trusted_proxies", TEXT, NULL, 1, 4095, "addresses",                \
      "Addresses and networks, such as 10.0.0.0/8, with commas between them, that bring the "      \
      "connections of many clients: max_connections_per_client does not hold for them.")           \
    X(proxy_protocol, "http", "proxy_protocol", CHOICE_PROXY_PROTOCOL, "off", 0, 0,                \
      "", "Whether connections of trusted_proxies to the main address begin with a header of the " \
      "PROXY protocol, which says whose they are; one without it is closed.")                      \
    X(host_names, "http", "host_names", TEXT, NULL, 1, 4095, "names",                              \
      "Names, with commas between them, by which requests may ask a server that listens on a loopback " \
      "address, beside localhost and addresses; a proxy on this machine passes on its own. *: any.") \
    X(idle_timeout_s, "http", "idle_timeout_s", COUNT, "75", 1, 86400, "seconds",                  \
      "A connection on which nothing moves for this long is closed.")                              \
    X(request_timeout_s, "http", "request_timeout_s", COUNT, "60", 1, 86400, "seconds",            \
      "How long a client may take to send a whole request, with its body, before it is cut off.")  \
    X(reply_timeout_s, "http", "reply_timeout_s", COUNT, "120", 1, 86400, "seconds",               \
      "How long a client may take to read a reply before it is cut off.")                          \
    X(reply_compression, "http", "reply_compression", CHOICE_SWITCH, "off", 0, 0, "",              \
      "Whether replies of inference from 16 KiB on are compressed for clients that accept it.")    \
    X(console, "http", "console", CHOICE_SWITCH, "on", 0, 0, "",                                   \
      "Whether / and /console show a page to browsers: what the server does, its models, a form "  \
      "to try a bag, its options.")                                                                \
    X(explain, "http", "explain", CHOICE_SWITCH, "on", 0, 0, "",                                   \
      "Whether a request's parameter explain adds to its reply what became of every bag.")         \
    X(token_file, "http", "token_file", FILE, NULL, 1, 4095, "file",                               \
      "File of access tokens, a line each: SCOPE TOKEN, with the scope infer, read or admin. "     \
      "Requests but those for health need one; absent: none does. SIGHUP reads it again.")         \
    X(cors_origins, "http", "cors_origins", TEXT, NULL, 1, 4095, "origins",                        \
      "Origins whose pages may ask from a browser, with commas between them, or * for all; "       \
      "absent: none.")                                                                             \
    X(model_control, "loading", "model_control", CHOICE_MODEL_CONTROL, "none", 0, 0,               \
      "", "Whether models change while the server runs: none, not at all; explicit, when asked to " \
      "on the admin listener (/v2/repository/models/M/load), or by SIGHUP; poll, also when their " \
      "files do.")                                                                                 \
    X(poll_seconds, "loading", "poll_seconds", COUNT, "15", 1, 86400, "seconds",                   \
      "With model_control poll, how often files are looked at; a version is loaded when it was "   \
      "the same twice.")                                                                           \
    X(ready_file, "loading", "ready_file", TEXT, NULL, 1, 255, "name",                             \
      "In a folder of models, a version counts when its folder has a file of this name; absent: "  \
      "when its files are whole.")                                                                 \
    X(load_bytes_per_second, "loading", "load_bytes_per_second", BYTES, "0", 0, 1024 * BAG_GIB,    \
      "bytes", "Most bytes of tables that are read in a second while serving, so that the memory " \
      "and disks of those who are served stay free; 0: any.")                                      \
    X(loops, "engine", "loops", COUNT, "0", 0, 256, "threads",                                     \
      "Threads that read requests and write replies; 0 means one for every eight processors, and "  \
      "one at least.")                                                                             \
    X(workers, "engine", "workers", COUNT, "0", 0, 1024, "threads",                                \
      "Threads that pool large requests; 0 means one per processor.")                              \
    X(max_queue_size, "engine", "max_queue_size", COUNT, "1024", 1, 10000000, "requests",          \
      "Most requests that wait for a worker; further ones are answered 503.")                      \
    X(max_queue_work_ms, "engine", "max_queue_work_ms", COUNT, "300", 1, 86400000, "milliseconds", \
      "Most work that waits for each worker, by how long such work took lately; further requests " \
      "are answered 503.")                                                                         \
    X(latency_target_ms, "engine", "latency_target_ms", COUNT, "0", 0, 86400000, "milliseconds",   \
      "In how long most requests that workers pool should be answered: further ones, which would " \
      "wait too long by how long others did lately, are answered 503; 0: only the limits above "   \
      "hold.")                                                                                     \
    X(inline_work_us, "engine", "inline_work_us", COUNT, "50", 0, 1000000,                         \
      "microseconds",                                                                              \
      "Requests estimated to take less are answered at once; others go to a worker.")              \
    X(default_timeout_us, "engine", "default_timeout_us", COUNT, "0", 0,                           \
      INT64_C(86400000000), "microseconds",                                                        \
      "A request that has waited longer for a worker is answered 503; 0: it waits for ever.")      \
    X(max_work_us_per_byte, "engine", "max_work_us_per_byte", COUNT, "50", 0, 1000000000,          \
      "microseconds",                                                                              \
      "Most work that a request may be for each byte of its body as it was sent, or of 1000 bytes " \
      "where it is shorter, by estimate; more is answered 400. 0: any.")                           \
    X(shard_timeout_ms, "engine", "shard_timeout_ms", COUNT, "5000", 1, 86400000, "milliseconds",  \
      "How long a shard may take to answer, of a model with shards; 504 then.")                    \
    X(isa, "engine", "isa", TEXT, NULL, 1, 64, "name",                                             \
      "Instruction set of the kernels: avx512, avx2, neon or generic. Absent: the best one.")      \
    X(drain_delay_s, "engine", "drain_delay_s", COUNT, "0", 0, 86400, "seconds",                   \
      "After SIGTERM, how long everything is still served, while readiness is 503 already, so "    \
      "that a load balancer can turn away first. With a delay, requests that come later still are " \
      "served, too, on connections that have begun.")                                              \
    X(drain_timeout_s, "engine", "drain_timeout_s", COUNT, "30", 0, 86400, "seconds",              \
      "After SIGTERM, how long running requests may take to finish before they are cut off.")      \
    X(updates, "updates", "updates", CHOICE_SWITCH, "off", 0, 0, "",                               \
      "Whether rows of tables may be changed (POST /v2/models/NAME/rows). Needs token_file, and a " \
      "token of scope admin, unless the admin listener is a Unix-domain socket.")                  \
    X(journal_dir, "updates", "journal_dir", FILE, NULL, 1, 900, "dir",                            \
      "Folder that updates are kept in, to be applied again at the next start and to reloaded "    \
      "tables; absent: they are lost with the process.")                                           \
    X(journal_sync, "updates", "journal_sync", CHOICE_JOURNAL_SYNC, "always", 0, 0, "",            \
      "When the journal is synced to the disk: always, before an update is acknowledged; interval, " \
      "every 100 ms; off, when the system likes.")                                                 \
    X(journal_kept_bytes, "updates", "journal_kept_bytes", BYTES, "1 GiB", 0,                      \
      1024 * BAG_GIB, "bytes",                                                                     \
      "How large a model's journal may be to keep updates for versions that are in its folder and " \
      "not loaded, so that they can be rolled back to; the oldest are removed.")                   \
    X(updates_memory, "updates", "updates_memory", BYTES, "64 MiB", 0, 1024 * BAG_GIB, "bytes",    \
      "Memory for updates without a journal_dir, which are applied again to versions that are "    \
      "loaded later; the oldest are dropped. A version that lacks dropped ones is not loaded.")    \
    X(load, "tables", "load", CHOICE_LOAD, "copy", 0, 0, "",                                       \
      "How tables come into memory: copy reads them whole before they are served; map leaves them " \
      "in their files, whose pages are read as requests need them. A model's own load goes first.") \
    X(max_table_bytes, "tables", "max_table_bytes", BYTES, "0", 0, 1024 * BAG_GIB, "bytes",        \
      "Most memory that all tables take together, with their keys' indexes and projections, and "  \
      "while one replaces another both; a load that would pass it is rejected before it begins. 0: " \
      "what the machine has left.")                                                                \
    X(hugepages, "tables", "hugepages", CHOICE_HUGEPAGES, "transparent", 0, 0, "",                 \
      "Pages of tables in memory: transparent asks the kernel for pages of 2 MiB, explicit takes " \
      "them from the system's pool and asks like that where it is too small, off keeps small ones.") \
    X(numa, "tables", "numa", CHOICE_NUMA, "off", 0, 0, "",                                        \
      "interleave spreads tables over all memory nodes, so that threads on all of them read them " \
      "equally fast; off leaves them where they are first written.")                               \
    X(metrics, "metrics", "metrics", CHOICE_METRICS, "on", 0, 0, "",                               \
      "on: requests are counted and timed, for /metrics and /v2/models/stats; private: /metrics is " \
      "only for the admin listener (admin_port), and for requests with a token; off: nothing is "  \
      "counted.")                                                                                  \
    X(metric_histograms, "metrics", "metric_histograms", COUNT, "100", 0, 1000000, "models",       \
      "Models and versions whose times /metrics shows as histograms, about 140 lines each: the "   \
      "first ones. All others have counters and Triton's sums.")                                   \
    X(log_format, "log", "log_format", CHOICE_LOG_FORMAT, "text", 0, 0, "",                        \
      "Format of the log lines on standard error.")                                                \
    X(log_level, "log", "log_level", CHOICE_LOG_LEVEL, "info", 0, 0, "",                           \
      "The least important lines that are still logged.")                                          \
    X(access_log, "log", "access_log", CHOICE_SWITCH, "off", 0, 0, "",                             \
      "Whether every request is logged, at level info.")                                           \
    X(slow_request_ms, "log", "slow_request_ms", COUNT, "0", 0, 86400000, "milliseconds",          \
      "Requests that take as long from their head to their answer are logged at level warning; "   \
      "0: none.")                                                                                  \
    X(otlp_endpoint, "log", "otlp_endpoint", TEXT, NULL, 1, 1023, "url",                           \
      "OpenTelemetry collector that spans of sampled requests are posted to, at URL/v1/traces, in " \
      "JSON; http alone. Absent: nothing is traced.")                                              \
    X(trace_sample, "log", "trace_sample", TEXT, "0.01", 1, 15, "fraction",                        \
      "Which part of the requests is traced, from 0 to 1, of those whose traceparent does not say " \
      "whether they are.")

/* Other names that are accepted for an option, as a flag, a variable and a key: Triton's.
 * X("name", "key") */
#define BAG_OPTION_ALIASES(X)                                                                      \
    X("inline_work_microseconds", "inline_work_us")                                                \
    X("default_timeout_microseconds", "default_timeout_us")

/* Where models come from. Like the lines above, but no section of the file holds them (it has
 * "models_dir" and "models"), and they are members of struct bag_config itself. */
#define BAG_SOURCES(X)                                                                             \
    X(config_path, "", "config", FILE, NULL, 1, 4095, "file",                                      \
      "Configuration file (JSON); variables and flags override what it says.")                     \
    X(models_dir, "", "models", FILE, NULL, 1, 4095, "dir",                                        \
      "Folder of models: DIR/NAME.npy (.npz, .safetensors), or DIR/NAME/VERSION/ with one table file and an optional "  \
      "config.json. In the file: \"models_dir\".")

/* What people set, beside models: `serve --help` shows these alone. */
#define BAG_COMMON_OPTIONS(X)                                                                      \
    X("host") X("port") X("admin_port") X("token_file") X("model_control") X("max_memory")         \
    X("workers") X("latency_target_ms") X("load") X("log_format")

/* Flags that are nothing but flags. X(ID, "key", "what follows", "sentence") */
#define BAG_FLAGS(X)                                                                               \
    X(TABLE, "table", "NAME=PATH", "Serve the table in a file as a model; may be repeated.")       \
    X(DEMO, "demo", "", "Serve the built-in demonstration tables.")                                \
    X(SYNTHETIC, "synthetic", "NAME=ROWSxELEMENTS|mlperf-dlrm-v2",                                 \
      "Serve made-up rows, to measure with: a table, or a preset of 26 and the collection dlrm of " \
      "them; may be repeated.")                                                                    \
    X(SYNTHETIC_BYTES, "synthetic-bytes", "BYTES",                                                 \
      "Bytes of a preset's tables: the largest are shortened to fit. 1 GiB by default.")           \
    X(CHECK, "check", "", "Check all that serving does, but for memory; list the models, then exit.") \
    X(VERSION, "version", "", "Print the version and exit.")                                       \
    X(HELP, "help", "", "Print the options that most people set, and exit; so does -h.")           \
    X(HELP_ALL, "help-all", "", "Print all options and the keys of models, and exit.")

/* clang-format on */

enum bag_hugepages { BAG_HUGEPAGES_KINDS(BAG_ID) };
enum bag_numa { BAG_NUMA_POLICIES(BAG_ID) };
enum bag_load { BAG_LOADS(BAG_ID) BAG_LOAD_COUNT };
enum bag_journal_sync { BAG_JOURNAL_SYNCS(BAG_ID) };
enum bag_log_format { BAG_LOG_FORMATS(BAG_ID) };
enum bag_log_level { BAG_LOG_LEVELS(BAG_ID) };
enum bag_model_control { BAG_MODEL_CONTROLS(BAG_ID) };
enum bag_proxy_protocol { BAG_PROXY_PROTOCOLS(BAG_ID) };
enum bag_metrics_word { BAG_METRICS_WORDS(BAG_ID) };
enum bag_switch { BAG_SWITCHES(BAG_ID) };

#define BAG_C_COUNT                 int64_t
#define BAG_C_BYTES                 int64_t
#define BAG_C_TEXT                  char *
#define BAG_C_FILE                  char *
#define BAG_C_CHOICE_JOURNAL_SYNC   enum bag_journal_sync
#define BAG_C_CHOICE_HUGEPAGES      enum bag_hugepages
#define BAG_C_CHOICE_NUMA           enum bag_numa
#define BAG_C_CHOICE_LOAD           enum bag_load
#define BAG_C_CHOICE_LOG_FORMAT     enum bag_log_format
#define BAG_C_CHOICE_LOG_LEVEL      enum bag_log_level
#define BAG_C_CHOICE_METRICS        enum bag_metrics_word
#define BAG_C_CHOICE_SWITCH         enum bag_switch
#define BAG_C_CHOICE_PROXY_PROTOCOL enum bag_proxy_protocol
#define BAG_C_CHOICE_MODEL_CONTROL  enum bag_model_control

/* Strings are owned. */
struct bag_option_values {
#define BAG_X(member, section, key, type, ...) BAG_C_##type member;
    BAG_OPTIONS(BAG_X)
#undef BAG_X
};

/* ---- the list of them ------------------------------------------------------------------------ */

struct bag_option {
    struct bag_setting setting; /* of a member of struct bag_config */
    const char *section;        /* "" for those of BAG_SOURCES */
    const char *default_text;   /* as a flag would say it; NULL: none */
    const char *sentence;
};

#define BAG_X(...) +1
enum { BAG_OPTION_COUNT = BAG_SOURCES(BAG_X) BAG_OPTIONS(BAG_X) };
#undef BAG_X

extern const struct bag_option bag_options[];
extern const size_t bag_num_options;

/* X(ID, "word"): where the value of an option comes from. */
#define BAG_ORIGINS(X)      \
    X(DEFAULT, "default")   \
    X(FILE, "file")         \
    X(VARIABLE, "variable") \
    X(FLAG, "flag")
enum bag_origin {
#define BAG_X(id, word) BAG_ORIGIN_##id,
    BAG_ORIGINS(BAG_X)
#undef BAG_X
};

/* A key as it is written elsewhere, by value: bag_flag_of("log_level").text */
struct bag_spelling {
    char text[64];
};
struct bag_spelling bag_key_of(const char *key);      /* "log_level" */
struct bag_spelling bag_flag_of(const char *key);     /* "--log-level" */
struct bag_spelling bag_variable_of(const char *key); /* "BAGSERVE_LOG_LEVEL" */

/* The option whose key, or an alias of it, is written like `text`; NULL where there is none. */
const struct bag_option *bag_option_find(struct bag_text text,
                                         struct bag_spelling (*spell)(const char *key));

/* The alias of an option's key; NULL where it has none. */
const char *bag_option_alias(const struct bag_option *option);

/* What follows the flag: SECONDS, BYTES, text|json. */
void bag_option_value_text(const struct bag_option *option, char *text, size_t text_bytes);

#endif
