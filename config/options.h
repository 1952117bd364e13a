/* The table of all options. Each line defines a flag, an environment variable, a key of the
 * configuration file, an entry of --help and a member of struct bag_option_values.
 *
 * X(member, "section", "key", TYPE, "default", minimum, maximum, "unit", "sentence")
 *
 * The flag is --key with '-' instead of '_', the variable is BAGSERVE_KEY, and the file has
 * {"section": {"key": value}}. Keys are unique over all sections. The key of a duration or a size
 * ends in its unit: _us, _ms, _s, _bytes. TYPE is one of
 *
 *   COUNT     an integer in the unit, from minimum to maximum
 *   BYTES     an integer of bytes, which may be written as 64MiB, 1GiB, 500KB
 *   SECONDS   seconds with up to three decimals, stored in milliseconds, as are the bounds
 *   TEXT      a string; minimum and maximum bound its length
 *   FILE      a path of bounded length, in a configuration file relative to that file's folder
 *   CHOICE_*  one of the words of a list below
 *
 * Messages name the unit, and --help prints it in capitals. "" means that a number has no unit. */
#pragma once

#include "kernels/bag.h"
#include "kernels/part.h"
#include "proto/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- one value that can be set --------------------------------------------------------------- */

/* The type of a value, its bounds, its member, and how it is parsed from text. Options and the keys
 * of models are lists of settings, so that a value has the same meaning and the same error messages
 * wherever it is written. */

enum bag_setting_type {
    BAG_SETTING_COUNT,   /* int64_t */
    BAG_SETTING_BYTES,   /* int64_t */
    BAG_SETTING_SECONDS, /* int64_t, in milliseconds */
    BAG_SETTING_KEY,     /* int64_t: 64 bits, with or without a sign */
    BAG_SETTING_TEXT,    /* char *, owned; minimum and maximum bound its length */
    BAG_SETTING_SHAPE,   /* struct bag_shape: "[100, 64]" */
    BAG_SETTING_CHOICE,  /* index of the word in its list */
    BAG_SETTING_BOOL,    /* JSON has true or false without quotes */
    BAG_SETTING_POLICY,  /* struct bag_version_policy: "all", "latest 2", "specific 1 3" */
    BAG_SETTING_PART     /* struct bag_part: "rows 0 of 3" */
};

/* Dimensions. The first may be -1 for any size. */
struct bag_shape {
    uint32_t rank; /* 0: not set */
    int64_t sizes[BAG_MAX_RANK];
};

/* Which of a model's valid versions are served. */
#define BAG_POLICY_MAX_VERSIONS 16
enum bag_version_policy_kind { BAG_VERSIONS_LATEST, BAG_VERSIONS_ALL, BAG_VERSIONS_SPECIFIC };
struct bag_version_policy {
    enum bag_version_policy_kind kind;
    int64_t numbers[BAG_POLICY_MAX_VERSIONS]; /* LATEST: the number of versions; SPECIFIC: the
                                                 versions */
    size_t count; /* length of `numbers`; 0: not set, which means the latest version */
};

/* The words of a choice, indexed by the enum. NULL: this member may not be chosen. */
struct bag_words {
    const char *const *names;
    size_t count;
};

struct bag_setting {
    const char *key;
    enum bag_setting_type type;
    size_t offset; /* offset of the member in the struct that all settings of the list belong to */
    int64_t minimum, maximum;
    bool is_path;     /* path of a file, in a document relative to the document's folder */
    const char *unit; /* such as "seconds"; "": none */
    struct bag_words words;
};

/* Initialisers for the columns that depend on TYPE, here and in model_options.h. */
#define BAG_TYPE_COUNT   .type = BAG_SETTING_COUNT
#define BAG_TYPE_BYTES   .type = BAG_SETTING_BYTES
#define BAG_TYPE_SECONDS .type = BAG_SETTING_SECONDS
#define BAG_TYPE_TEXT    .type = BAG_SETTING_TEXT
#define BAG_TYPE_FILE    .type = BAG_SETTING_TEXT, .is_path = true
#define BAG_TYPE_KEY     .type = BAG_SETTING_KEY
#define BAG_TYPE_SHAPE   .type = BAG_SETTING_SHAPE
#define BAG_TYPE_POLICY  .type = BAG_SETTING_POLICY
#define BAG_TYPE_PART    .type = BAG_SETTING_PART
#define BAG_TYPE_BOOL    .type = BAG_SETTING_BOOL, .words = {bag_bool_words, 2}
#define BAG_TYPE_CHOICE(LIST) \
    .type = BAG_SETTING_CHOICE, .words = {(const char *const[]){LIST(BAG_NAME)}, LIST(BAG_ONE)}

extern const char *const bag_bool_words[2];

/* The reason why a value was rejected, such as "must be from 0 to 65535". Callers put the name of
 * the flag, variable or key before it. */
struct bag_reason {
    char text[256];
};

/* Sets the member in `base` from a text. Returns false, sets *reason and leaves the member
 * unchanged if the text is invalid. */
bool bag_setting_apply(const struct bag_setting *setting, void *base, const char *text,
                       struct bag_reason *reason);

/* Describes the values that the setting accepts, as the reason for rejecting a value of another
 * type. */
void bag_setting_describe(const struct bag_setting *setting, struct bag_reason *reason);

/* ---- the options ----------------------------------------------------------------------------- */

/* The words of choices. X(enum constant, "word")
 *
 * The options below explain the words in their sentences. The order is that of the enums, which
 * may matter: levels of the log are compared. */
#define BAG_LOG_FORMATS(X)         \
    X(BAG_LOG_FORMAT_TEXT, "text") \
    X(BAG_LOG_FORMAT_JSON, "json")

#define BAG_LOG_LEVELS(X)               \
    X(BAG_LOG_LEVEL_ERROR, "error")     \
    X(BAG_LOG_LEVEL_WARNING, "warning") \
    X(BAG_LOG_LEVEL_INFO, "info")       \
    X(BAG_LOG_LEVEL_DEBUG, "debug")

/* When the journal of updates is synced to disk: before an update is acknowledged, periodically, or
 * when the system decides. */
#define BAG_JOURNAL_SYNCS(X)                 \
    X(BAG_JOURNAL_SYNC_ALWAYS, "always")     \
    X(BAG_JOURNAL_SYNC_INTERVAL, "interval") \
    X(BAG_JOURNAL_SYNC_OFF, "off")

/* How the served models may change. The words are Triton's. */
#define BAG_MODEL_CONTROLS(X)                 \
    X(BAG_MODEL_CONTROL_NONE, "none")         \
    X(BAG_MODEL_CONTROL_EXPLICIT, "explicit") \
    X(BAG_MODEL_CONTROL_POLL, "poll")

/* The readers of metrics. OFF also stops counting, and PRIVATE restricts readers only. */
#define BAG_METRICS_WORDS(X)          \
    X(BAG_METRICS_ON, "on")           \
    X(BAG_METRICS_PRIVATE, "private") \
    X(BAG_METRICS_OFF, "off")

/* Options that are on or off. A bool is written as true or false, and only in models. */
#define BAG_SWITCHES(X)      \
    X(BAG_SWITCH_OFF, "off") \
    X(BAG_SWITCH_ON, "on")

/* EXPLICIT uses the system's pool (vm.nr_hugepages). */
#define BAG_HUGEPAGES_KINDS(X)                  \
    X(BAG_HUGEPAGES_OFF, "off")                 \
    X(BAG_HUGEPAGES_TRANSPARENT, "transparent") \
    X(BAG_HUGEPAGES_EXPLICIT, "explicit")

/* The distribution of tables over the memory nodes of the machine. */
#define BAG_NUMA_POLICIES(X) \
    X(BAG_NUMA_OFF, "off")   \
    X(BAG_NUMA_INTERLEAVE, "interleave")

/* The place of rows while they are served: in memory, or in their mapped files. */
#define BAG_LOADS(X)         \
    X(BAG_LOAD_COPY, "copy") \
    X(BAG_LOAD_MAP, "map")

/* The header that trusted proxies send before a connection's first request. */
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
      "Permissions of that socket, in octal digits. Users who may write to it may connect.")       \
    X(admin_port, "http", "admin_port", COUNT, "0", 0, 65535, "",                                  \
      "TCP port of the admin listener, for health, metrics and models. It rejects "                \
      "inference. The main listener answers requests for health and metrics, too. 0: no "          \
      "admin listener.")                                                                           \
    X(admin_socket, "http", "admin_socket", TEXT, NULL, 1, 107, "path",                            \
      "Unix-domain socket of the admin listener, instead of admin_port. unix_permissions "         \
      "applies to it, too. Without a token_file, only users who may write to this socket "         \
      "can change models.")                                                                        \
    X(max_body_bytes, "http", "max_body_bytes", BYTES, "64 MiB", 1, 64 * BAG_GIB, "bytes",         \
      "Maximum size of a request body. A larger one is answered 413 before it is read.")           \
    X(max_reply_bytes, "http", "max_reply_bytes", BYTES, "320 MiB", 1, 64 * BAG_GIB, "bytes",       \
      "Maximum size of a reply. A request that would need more is answered 400 before "            \
      "memory is reserved.")                                                                       \
    X(max_reply_ratio, "http", "max_reply_ratio", COUNT, "1000", 0, 1000000000, "times",           \
      "Maximum number of bytes in a reply for each byte of the request body as it was sent. "      \
      "Counts only bags beyond the number of ids and 16,384 more. A request that would need "      \
      "more is answered 400. 0: unlimited.")                                                       \
    X(max_memory, "http", "max_memory", BYTES, "0", 0, 1024 * BAG_GIB, "bytes",                    \
      "Maximum memory of all requests together: bodies as they arrive, decompressed "              \
      "bodies, results, and replies until they are sent. Further requests are answered "           \
      "503. 0: half of the memory that the machine and the control group have left beside "        \
      "the tables.")                                                                               \
    X(max_connections, "http", "max_connections", COUNT, "4096", 1, 1000000, "connections",        \
      "Maximum number of open connections. A request on a further one is answered 503. If one "    \
      "client has many of these, the next ones are closed. The admin listener has its own limit, " \
      "an eighth of this and four more.")                                                          \
    X(max_connections_per_client, "http", "max_connections_per_client", COUNT, "0", 0, 1000000,    \
      "connections",                                                                               \
      "Maximum number of open connections from one client (an IPv4 address or an IPv6 "            \
      "/64). Further ones are closed. 0: half of max_connections, but at least 64.")               \
    X(trusted_proxies, "http", "trusted_proxies", TEXT, NULL, 1, 4095, "addresses",                \
      "Addresses and networks of proxies, separated by commas, such as 10.0.0.0/8. "               \
      "max_connections_per_client does not apply to them, because they forward the "               \
      "connections of many clients.")                                                              \
    X(proxy_protocol, "http", "proxy_protocol", CHOICE_PROXY_PROTOCOL, "off", 0, 0,                \
      "",                                                                                          \
      "v2: connections of trusted_proxies to the main listener must begin with a header of "       \
      "the PROXY protocol, which names the client. off: they count as the proxy's.")               \
    X(host_names, "http", "host_names", TEXT, NULL, 1, 4095, "names",                              \
      "Host names, separated by commas, that requests may use if the server listens on a "         \
      "loopback address, in addition to localhost and addresses. A proxy on this machine "         \
      "passes such names on. *: any name.")                                                        \
    X(idle_timeout_s, "http", "idle_timeout_s", COUNT, "75", 1, 86400, "seconds",                  \
      "A connection without any traffic for this long is closed.")                                 \
    X(request_timeout_s, "http", "request_timeout_s", COUNT, "60", 1, 86400, "seconds",            \
      "Maximum time in which a client must send a whole request.")                                 \
    X(reply_timeout_s, "http", "reply_timeout_s", COUNT, "120", 1, 86400, "seconds",               \
      "Maximum time in which a client must read a whole reply.")                                   \
    X(reply_compression, "http", "reply_compression", CHOICE_SWITCH, "off", 0, 0, "",              \
      "Compress replies of inference from 16 KiB on, for clients that accept it.")                 \
    X(console, "http", "console", CHOICE_SWITCH, "on", 0, 0, "",                                   \
      "Serve the web console at / and /console, and keep the last 15 minutes for it.")             \
    X(explain, "http", "explain", CHOICE_SWITCH, "on", 0, 0, "",                                   \
      "Allow the request parameter explain, which reports how each bag was pooled.")               \
    X(token_file, "http", "token_file", FILE, NULL, 1, 4095, "file",                               \
      "File of access tokens, one line for each: SCOPE TOKEN. The scope is infer, read or "        \
      "admin. All requests except health checks then need a token. SIGHUP reads the file "         \
      "again. Absent: no tokens.")                                                                 \
    X(cors_origins, "http", "cors_origins", TEXT, NULL, 1, 4095, "origins",                        \
      "Origins whose web pages may send requests, separated by commas, or * for all. "             \
      "Absent: none.")                                                                             \
    X(model_control, "loading", "model_control", CHOICE_MODEL_CONTROL, "none", 0, 0,               \
      "",                                                                                          \
      "Whether models can change while the server runs. none: they cannot. explicit: on "          \
      "request at the admin listener (/v2/repository/models/M/load) and on SIGHUP. poll: "         \
      "also when their files change.")                                                             \
    X(poll_ms, "loading", "poll_seconds", SECONDS, "15", 100, 86400000, "seconds",                 \
      "With model_control poll, the interval between two checks of the files, from 0.1. A "       \
      "version is loaded if two checks found it unchanged, or if it has the ready_file. Files "    \
      "without a header must also be as large as the configuration or the served version says.")   \
    X(ready_file, "loading", "ready_file", TEXT, NULL, 1, 255, "name",                             \
      "Name of a file that marks a version in a folder of models as complete. Absent: a "          \
      "version is complete when its files are whole.")                                             \
    X(load_bytes_per_second, "loading", "load_bytes_per_second", BYTES, "0", 0, 1024 * BAG_GIB,    \
      "bytes",                                                                                     \
      "Maximum rate at which tables are read while the server serves, which leaves memory "        \
      "and disks to requests. 0: unlimited.")                                                      \
    X(loops, "engine", "loops", COUNT, "0", 0, 256, "threads",                                     \
      "Threads that read requests and write replies. 0: one for every eight processors, at "       \
      "least one.")                                                                                \
    X(workers, "engine", "workers", COUNT, "0", 0, 1024, "threads",                                \
      "Threads that pool large requests. 0: one for each processor.")                              \
    X(max_queue_size, "engine", "max_queue_size", COUNT, "1024", 1, 10000000, "requests",          \
      "Maximum number of requests that wait for a worker. Further ones are answered 503.")         \
    X(max_queue_work_ms, "engine", "max_queue_work_ms", COUNT, "300", 1, 86400000, "milliseconds", \
      "Maximum work that waits for each worker, estimated from recent requests. Further "          \
      "requests are answered 503.")                                                                \
    X(latency_target_ms, "engine", "latency_target_ms", COUNT, "0", 0, 86400000, "milliseconds",   \
      "Target latency of requests that workers pool. Requests that would miss it are "             \
      "answered 503. 0: no target.")                                                               \
    X(inline_work_us, "engine", "inline_work_us", COUNT, "50", 0, 1000000,                         \
      "microseconds",                                                                              \
      "Requests that are estimated to take less than this are answered by the loop. Others "       \
      "go to a worker.")                                                                           \
    X(default_timeout_us, "engine", "default_timeout_us", COUNT, "0", 0,                           \
      INT64_C(86400000000), "microseconds",                                                        \
      "Maximum time that a request waits for a worker before it is answered 503. 0: "              \
      "unlimited.")                                                                                \
    X(max_work_us_per_byte, "engine", "max_work_us_per_byte", COUNT, "50", 0, 1000000000,          \
      "microseconds",                                                                              \
      "Maximum estimated work of a request for each byte of its body as it was sent, "             \
      "counting at least 2000 bytes. More is answered 400. 0: unlimited.")                         \
    X(shard_timeout_ms, "engine", "shard_timeout_ms", COUNT, "5000", 1, 86400000, "milliseconds",  \
      "Maximum time in which a shard must answer. A request that needs a slower one is "           \
      "answered 504.")                                                                             \
    X(isa, "engine", "isa", TEXT, NULL, 1, 64, "name",                                             \
      "Instruction set of the kernels: avx512, avx2, neon or generic. Absent: the best one.")      \
    X(drain_delay_s, "engine", "drain_delay_s", COUNT, "0", 0, 86400, "seconds",                   \
      "After SIGTERM, time during which readiness is 503 but everything is still served, "         \
      "so that load balancers can remove the server first.")                                       \
    X(drain_timeout_s, "engine", "drain_timeout_s", COUNT, "30", 0, 86400, "seconds",              \
      "After SIGTERM, time that running requests get to finish before they are aborted.")          \
    X(updates, "updates", "updates", CHOICE_SWITCH, "off", 0, 0, "",                               \
      "Allow changes of rows (POST /v2/models/NAME/rows). Needs token_file and a token of "        \
      "scope admin, unless the admin listener is a Unix-domain socket.")                           \
    X(journal_dir, "updates", "journal_dir", FILE, NULL, 1, 900, "dir",                            \
      "Folder of the journal. Updates in it are applied again after a restart and to "             \
      "versions that are loaded later. Absent: updates are lost when the process ends.")           \
    X(journal_sync, "updates", "journal_sync", CHOICE_JOURNAL_SYNC, "always", 0, 0, "",            \
      "When the journal is synced to disk. always: before an update is acknowledged. "             \
      "interval: every 100 ms. off: when the system decides.")                                     \
    X(journal_kept_bytes, "updates", "journal_kept_bytes", BYTES, "1 GiB", 0,                      \
      1024 * BAG_GIB, "bytes",                                                                     \
      "Maximum size of a model's journal that is kept for versions that are in its folder "        \
      "but not loaded, so that the model can be rolled back to them. The oldest updates "          \
      "are removed.")                                                                              \
    X(updates_memory, "updates", "updates_memory", BYTES, "64 MiB", 0, 1024 * BAG_GIB, "bytes",    \
      "Memory for updates if there is no journal_dir. They are applied to versions that "          \
      "are loaded later. The oldest are dropped, and a version that lacks dropped ones is "        \
      "not loaded.")                                                                               \
    X(load, "tables", "load", CHOICE_LOAD, "copy", 0, 0, "",                                       \
      "copy: read tables into memory before they are served. map: leave them in their "            \
      "files, whose pages are read when requests need them. A model's own load takes "             \
      "precedence.")                                                                               \
    X(max_table_bytes, "tables", "max_table_bytes", BYTES, "0", 0, 1024 * BAG_GIB, "bytes",        \
      "Maximum memory of all tables with their key indexes and projections. While one "            \
      "table replaces another, both count. A load that would exceed it is rejected before "        \
      "it starts. 0: the memory that the machine has left.")                                       \
    X(hugepages, "tables", "hugepages", CHOICE_HUGEPAGES, "transparent", 0, 0, "",                 \
      "Pages of tables in memory. transparent: ask the kernel for pages of 2 MiB. "                \
      "explicit: take them from the system's pool, and if it is too small continue as with "       \
      "transparent. off: small pages.")                                                            \
    X(numa, "tables", "numa", CHOICE_NUMA, "off", 0, 0, "",                                        \
      "interleave: spread tables over all memory nodes, so that all threads read them "            \
      "equally fast. off: leave them on the node where they are first written.")                   \
    X(metrics, "metrics", "metrics", CHOICE_METRICS, "on", 0, 0, "",                               \
      "on: count and time requests, for /metrics and /v2/models/stats. private: serve "            \
      "/metrics only on the admin listener and to requests with a token. off: count "              \
      "nothing.")                                                                                  \
    X(metric_histograms, "metrics", "metric_histograms", COUNT, "100", 0, 1000000, "models",       \
      "Number of models and versions for which /metrics has histograms, about 140 lines "          \
      "each, and metrics of features. All others have counters and Triton's sums.")                \
    X(log_format, "log", "log_format", CHOICE_LOG_FORMAT, "text", 0, 0, "",                        \
      "Format of the log lines on standard error.")                                                \
    X(log_level, "log", "log_level", CHOICE_LOG_LEVEL, "info", 0, 0, "",                           \
      "Least severe level that is logged.")                                                        \
    X(access_log, "log", "access_log", CHOICE_SWITCH, "off", 0, 0, "",                             \
      "Log every request at level info.")                                                          \
    X(slow_request_ms, "log", "slow_request_ms", COUNT, "0", 0, 86400000, "milliseconds",          \
      "Log requests that take at least this long, from their head to their reply, at level "       \
      "warning. 0: none.")                                                                         \
    X(otlp_endpoint, "log", "otlp_endpoint", TEXT, NULL, 1, 1023, "url",                           \
      "OpenTelemetry collector that receives spans of sampled requests at URL/v1/traces, "         \
      "in JSON over http. A URL that ends with /v1/traces is taken as it is. OTEL_SERVICE_NAME "   \
      "and OTEL_RESOURCE_ATTRIBUTES name the service. Absent: no tracing.")                                                    \
    X(trace_sample, "log", "trace_sample", TEXT, "0.01", 1, 15, "fraction",                        \
      "Fraction of requests to trace, from 0 to 1. Does not apply to requests whose "              \
      "traceparent header decides.")

/* Other accepted names of an option, as a flag, a variable and a key. They are Triton's. X("name",
 * "key") */
#define BAG_OPTION_ALIASES(X)                                                                      \
    X("inline_work_microseconds", "inline_work_us")                                                \
    X("default_timeout_microseconds", "default_timeout_us")

/* The sources of models. These settings are like the lines above, but they have no section in the
 * file (it has "models_dir" and "models"), and they are members of struct bag_config itself. */
#define BAG_SOURCES(X)                                                                             \
    X(config_path, "", "config", FILE, NULL, 1, 4095, "file",                                      \
      "Configuration file in JSON. Environment variables and flags take precedence over it.")      \
    X(models_dir, "", "models", FILE, NULL, 1, 4095, "dir",                                        \
      "Folder of models: DIR/NAME.npy (.npz, .safetensors), or DIR/NAME/VERSION/ with one "        \
      "table and an optional config.json. In the file: \"models_dir\".")

/* The common options besides models. `serve --help` shows only these. */
#define BAG_COMMON_OPTIONS(X)                                                                      \
    X("host") X("port") X("admin_port") X("token_file") X("model_control") X("max_memory")         \
    X("workers") X("latency_target_ms") X("load") X("log_format")

/* Flags that are not options. X(ID, "key", "value", "sentence") */
#define BAG_FLAGS(X)                                                                               \
    X(TABLE, "table", "NAME=PATH", "Serve the table in a file as a model. May be repeated.")       \
    X(DEMO, "demo", "", "Serve the built-in demonstration tables.")                                \
    X(SYNTHETIC, "synthetic", "NAME=ROWSxELEMENTS|mlperf-dlrm-v2|mlperf-dlrm-v3",                  \
      "Serve generated rows for measurements: one table, or a preset. The presets are the 26 "     \
      "tables of DLRM-v2 with a collection named dlrm, and the 3 of DLRM-v3 with dlrm_v3. Tables " \
      "may be repeated.")                                                                          \
    X(SYNTHETIC_BYTES, "synthetic-bytes", "BYTES",                                                 \
      "Total size of a preset's tables. The largest ones are shortened to fit. 1 GiB by "          \
      "default.")                                                                                  \
    X(CHECK, "check", "",                                                                          \
      "Check everything that serving needs except memory, list the models and exit.")              \
    X(VERSION, "version", "", "Print the version and exit.")                                       \
    X(HELP, "help", "", "Print the common options and exit. -h does the same.")                    \
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

/* The types of the members, by TYPE. */
#define BAG_C_COUNT                 int64_t
#define BAG_C_BYTES                 int64_t
#define BAG_C_SECONDS               int64_t
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

/* The values of all options. Strings are owned. */
struct bag_option_values {
#define BAG_X(member, section, key, type, ...) BAG_C_##type member;
    BAG_OPTIONS(BAG_X)
#undef BAG_X
};

/* ---- the list of them ------------------------------------------------------------------------ */

/* An option at run time: one element of bag_options for each line of BAG_SOURCES and BAG_OPTIONS.
 */
struct bag_option {
    struct bag_setting setting; /* setting of a member of struct bag_config */
    const char *section;        /* "" for those of BAG_SOURCES */
    const char *default_text;   /* in a flag's form; NULL: none */
    const char *sentence;
};

enum { BAG_OPTION_COUNT = BAG_SOURCES(BAG_ONE) BAG_OPTIONS(BAG_ONE) };

/* All options. The sources come first, and the lines of a section are adjacent. */
extern const struct bag_option bag_options[];
extern const size_t bag_num_options;

/* The source of an option's value. X(ID, "word") */
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

/* A key in another spelling, by value: bag_flag_of("log_level").text */
struct bag_spelling {
    char text[64];
};
struct bag_spelling bag_key_of(const char *key);      /* "log_level" */
struct bag_spelling bag_flag_of(const char *key);     /* "--log-level" */
struct bag_spelling bag_variable_of(const char *key); /* "BAGSERVE_LOG_LEVEL" */

/* Returns the option whose key or alias has the spelling `text`, or NULL if there is none. */
const struct bag_option *bag_option_find(struct bag_text text,
                                         struct bag_spelling (*spell)(const char *key));

/* Returns the alias of an option's key, or NULL if it has none. */
const char *bag_option_alias(const struct bag_option *option);

/* Prints the placeholder of the flag's value: SECONDS, BYTES, text|json. */
void bag_option_value_text(const struct bag_option *option, char *text, size_t text_bytes);
