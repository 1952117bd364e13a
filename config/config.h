/* The configuration: options and models from a file, the environment and flags.
 *
 * This folder turns what an operator writes into one struct bag_config. The struct has the value of
 * every option, and one struct bag_model_config for each version of a model. The folder also prints
 * what can be written: --help, the manual page and the completion scripts.
 *
 * Tables of declarations. Each option is one line of options.h, and each key of a model is one line
 * of model_options.h. A line generates the member of the struct, its parser, its bounds, its
 * messages and its line of --help. A setting (struct bag_setting) is that line at run time: a type,
 * bounds, and the offset of the member. The file, a variable and a flag therefore accept the same
 * values and report the same errors. Parsers that are written by hand for each source drift apart.
 *
 * Life of a configuration. bag_config_init() sets the defaults. The caller reads the file that
 * bag_config_find_path() names and passes its text to bag_config_apply_file(). Then it applies the
 * BAGSERVE_* variables and last the flags. Each source overrides those before it.
 * bag_config_validate() checks what depends on several values, once all sources are applied. After
 * that the options are read-only. After a failure the configuration is partly applied and can only
 * be freed.
 *
 * Models come from "models" of the file, from --table, from --synthetic, or from a folder. The
 * server scans a folder (server/models/folder.c). It adds each version with bag_config_add_model()
 * and applies the config.json beside the table with bag_config_apply_model_file(). When models may
 * change, a new configuration is built and compared by hashes; an existing one is never edited.
 *
 * A collection is a model without a table. Its features pool the rows of other models' tables, with
 * settings of their own or those of the table's model (bag_config_pooling). A model of shards has
 * addresses in place of a file (shards.h).
 *
 *   config.c   defaults and checks         models.c      models, versions and features
 *   options.c  values from texts           names.c       index of models by name
 *   file.c     configuration files         json.c        values and positions in a document
 *   flags.c    variables and flags         shards.c      addresses of shards
 *   help.c, completion.c, describe.c       texts for people, shells and the console
 *
 * No function here reads a file or the environment: texts and vectors are arguments. Tests and
 * fuzzers can therefore run all of it in memory. There is no global state. Any thread may use a
 * configuration that no other thread uses. */
#pragma once

#include "kernels/table.h"
#include "model_options.h"
#include "options.h"
#include "proto/json_writer.h"
#include "proto/problem.h"
#include "proto/v2_documents.h"

#include <stdio.h>

/* The program's commands. X(name, "arguments", "sentence") */
#define BAG_COMMANDS(X)                                                          \
    X(serve, "[flags]", "Load tables and answer requests.")                      \
    X(health, "[flags]", "Exit with 0 if a running server is ready.")            \
    X(convert, "[flags] IN OUT", "Convert or quantise a table, to safetensors.") \
    X(inspect, "[flags] FILE|DIR", "Describe tables, and how to serve them.")    \
    X(verify, "[flags] FILE|DIR", "Read all of a table and check it.")           \
    X(bench, "[flags] URL [MODEL]", "Measure the load that a server sustains.")  \
    X(completion, "bash|zsh|fish", "Print the completion script for a shell.")   \
    X(manual, "", "Print the manual page, for man.")                             \
    X(version, "", "Print version, compiler and libraries.")                     \
    X(help, "[COMMAND]", "Print this list, or help on a command or flag.")

/* The flags of the commands that work on files. X(command, ID, "--name", "value", "sentence").
 * Words separated by | are the allowed values; "" means that the flag takes no value. */
#define BAG_CONVERT_FLAGS(X)                                                                    \
    X(convert, DATATYPE, "--datatype", "FP32|FP16|BF16",                                        \
      "Type of the new table's elements. Without this and --row-format, rows are copied "       \
      "unchanged.")                                                                             \
    X(convert, ROW_FORMAT, "--row-format",                                                      \
      "int8|int4|f8_e4m3|f8_e5m2|int8_f16_front|int4_f16_front|f8_e4m3_scaled|f8_e5m2_scaled|"  \
      "int8_f16_back|int8_symmetric|int8_symmetric_f16|int2|int2_f16_front",                    \
      "Quantised rows.")                                                                        \
    X(convert, ORDER_BY, "--order-by", "COUNTS",                                                \
      "Sorts the rows of a keyed table by the numbers in this file, one for each row, largest " \
      "first. The hash_rows of IN,missing=hash,hash_rows=N stay first.")                        \
    X(convert, REPORT, "--report", "FILE", "Writes the errors as JSON. - is standard output.")  \
    X(convert, MAX_ERROR, "--max-error", "X",                                                   \
      "Maximum error of an element. If it is exceeded, nothing is written and the exit code "   \
      "is 1.")                                                                                  \
    X(convert, THREADS, "--threads", "N",                                                       \
      "Number of threads, up to 16. By default one for each processor.")                        \
    X(convert, FORCE, "--force", "", "Replaces OUT if it exists.")                              \
    X(convert, HELP, "--help", "", "Prints this.")
#define BAG_INSPECT_FLAGS(X)                                               \
    X(inspect, JSON, "--json", "", "Prints JSON, for programs.")           \
    X(inspect, ALL, "--all", "", "Reads all values, also beyond 256 MiB.") \
    X(inspect, HELP, "--help", "", "Prints this.")
#define BAG_VERIFY_FLAGS(X)                                              \
    X(verify, FINITE, "--finite", "",                                    \
      "Values must be finite: NaN and infinities make a table invalid.") \
    X(verify, HELP, "--help", "", "Prints this.")

#define BAG_BENCH_FLAGS(X)                                                                         \
    X(bench, PRESET, "--preset", "small|candidates|mlperf-dlrm-v2|mlperf-dlrm-v3",                 \
      "Workload of a request. small, the default: 1 bag of 10 ids. candidates: the bag of a "      \
      "user and those of 2,000 candidates, 10 ids each. mlperf-dlrm-v2: the 26 features of "       \
      "MLPerf's DLRM-v2. mlperf-dlrm-v3: the 5 features of DLRM-v3, with a row for each id: a "    \
      "history of 7,000 items at the mean and 2,048 candidates, each with its category, and a "    \
      "user, by Zipf's law.")                                                                      \
    X(bench, BAGS, "--bags", "N", "Bags in a request, for each feature of a collection.")          \
    X(bench, IDS, "--ids", "IDS",                                                                  \
      "Ids in a bag: N, LOW-HIGH, lognormal:MEDIAN,SIGMA, or N,N,... for one feature, or one "     \
      "bag, after the other. The name of a file of numbers (text or .npy) stands for a random "    \
      "one of them.")                                                                              \
    X(bench, ZIPF, "--zipf", "S",                                                                  \
      "Draws ids by Zipf's law with this exponent; the frequent ones are scattered over the "      \
      "table. By default all ids are equally frequent.")                                           \
    X(bench, KEYS, "--keys", "PATH",                                                               \
      "Keys of a keyed table: a .npy file, FILE#ARRAY, or the table's folder. FEATURE=PATH names " \
      "them for a feature of a collection, and may be repeated.")                                  \
    X(bench, ROWS, "--rows", "ROWS",                                                               \
      "Draws ids below ROWS, for a server that does not report its number of rows, or for some "   \
      "of them. N,N,... has a number for each feature; for a single table, one for each bag, "     \
      "whose rows follow those of the bag before.")                                                \
    X(bench, UNIQUE, "--unique", "",                                                               \
      "Sends each id of a feature once, as clients do with unique. For features that are not "     \
      "pooled.")                                                                                   \
    X(bench, WEIGHTS, "--weights", "", "Sends a weight with each id.")                             \
    X(bench, BODY, "--body", "binary|json",                                                        \
      "Form of the tensors in requests and replies. binary by default.")                           \
    X(bench, REDUCTION, "--reduction", "sum|mean|max|sqrtn|none",                                  \
      "How bags are pooled. By default the model decides.")                                        \
    X(bench, BODIES, "--bodies", "N",                                                              \
      "Number of different requests, which are sent in turn. By default as many as 64 MiB hold, "  \
      "at most 16384.")                                                                            \
    X(bench, SEED, "--seed", "N", "Seed of ids and times. 1 by default.")                          \
    X(bench, GET, "--get", "PATH", "Sends GET PATH instead of inference requests.")                \
    X(bench, CONNECTIONS, "--connections", "N",                                                    \
      "Maximum number of connections. 64 by default. A request that is due while all are busy "    \
      "waits for one, and its latency includes the wait.")                                         \
    X(bench, UNIX, "--unix", "PATH",                                                               \
      "Connects to a Unix-domain socket instead of the URL's host.")                               \
    X(bench, TOKEN_FILE, "--token-file", "FILE",                                                   \
      "Sends the first token in the file with each request.")                                      \
    X(bench, RATE, "--rate", "R",                                                                  \
      "Sends requests at a rate, regardless of earlier ones. R:SECONDS,R:SECONDS and so on: "      \
      "several rates follow each other without a pause.")                                          \
    X(bench, CONSTANT, "--constant", "",                                                           \
      "With --rate and --sweep: requests are due at equal intervals. By default they are due at "  \
      "random times (Poisson).")                                                                   \
    X(bench, CLOSED, "--closed", "",                                                               \
      "Each connection sends its next request as soon as it has its reply.")                       \
    X(bench, SWEEP, "--sweep", "",                                                                 \
      "Finds the highest rate whose p99 stays within --slo-ms. This is the default, and takes "    \
      "half a minute, and minutes below 1,000 requests a second. Without a verdict the exit "      \
      "code is 3, and the report says what hindered one.")                                         \
    X(bench, SLO, "--slo-ms", "MS", "Objective of a sweep: p99 in milliseconds. 10 by default.")   \
    X(bench, DURATION, "--duration", "SECONDS",                                                    \
      "Duration of a run. 10 by default. In a sweep 1.5, or as long as 1,000 requests take (at "   \
      "most 10), and at least ten times --slo-ms.")                                                \
    X(bench, REQUESTS, "--requests", "N", "With --closed: maximum number of requests.")            \
    X(bench, WARMUP, "--warmup", "SECONDS",                                                        \
      "Time before the first run, which is not counted. 1 by default.")                            \
    X(bench, REPORT, "--report", "FILE",                                                           \
      "Writes the workload and the measurements as JSON. - is standard output.")                   \
    X(bench, HTML, "--html", "FILE",                                                               \
      "Writes a page with plots, which needs no other file and no network.")                       \
    X(bench, COMPARE, "--compare", "FILE",                                                         \
      "Shows an earlier --report beside this one, and says if its workload was another one.")      \
    X(bench, LOG, "--log", "FILE",                                                                 \
      "Writes a line for each request: when it was due (s), its delay in the generator and its "   \
      "latency (us), and the status, 0 for none.")                                                 \
    X(bench, CHECK, "--check", "N",                                                                \
      "Compares N replies with the tables' files (--table), pooled by this program, before it "    \
      "measures. A difference ends it with exit code 1.")                                          \
    X(bench, TABLE, "--table", "NAME=PATH",                                                        \
      "Files of a model's table, as 'serve --table NAME=PATH' takes them: a file, FILE#ARRAY or "  \
      "a folder. Rows are of the server's format. May be repeated.")                               \
    X(bench, HELP, "--help", "", "Prints this help.")

/* The ways in which a new table replaces another version (BAG_RELOADS). */
enum bag_reload { BAG_RELOADS(BAG_ID) };

/* The words of BAG_SHARD_KEYS. They choose when a model of shards is ready, how it answers without
 * one of the shards, and when a shard is queried a second time. */
enum bag_shard_ready { BAG_SHARD_READIES(BAG_ID) };
enum bag_shard_absent { BAG_SHARD_ABSENTS(BAG_ID) };
enum bag_shard_hedge { BAG_SHARD_HEDGES(BAG_ID) };

/* One feature of a collection as configured. It pools the rows of another model's table. Strings
 * are owned. */
struct bag_feature_config {
    char *name;       /* as a model's name, but not "embeddings" */
    char *model;      /* model that has the table */
    uint64_t version; /* version of that model; 0: the default one */
    uint32_t set; /* bit i: setting i of BAG_POOLING_KEYS, then BAG_PROJECTION_KEYS, is set here */
    struct bag_rules rules;                 /* only the settings in `set` are valid */
    enum bag_dtype output_datatype;         /* only valid if in `set` */
    enum bag_row_format output_row_format;  /* only valid if in `set` */
    enum bag_missing out_of_range, missing; /* only valid if in `set` */
    char *projection, *bias;                /* files; NULL: not set */
};

/* The kinds of paths that are no file. X(ID, how the path begins) */
#define BAG_PATH_PREFIXES(X)     \
    X(SHARDS, BAG_SHARDS_PREFIX) \
    X(DEMO, BAG_DEMO_PREFIX)     \
    X(SYNTHETIC, BAG_SYNTHETIC_PREFIX)

#define BAG_SHARDS_PREFIX    "shards:"    /* addresses follow, separated by blanks (shards.h) */
#define BAG_DEMO_PREFIX      "demo:"      /* the name of a table of --demo follows */
#define BAG_SYNTHETIC_PREFIX "synthetic:" /* NAME=ROWSxELEMENTS follows (synthetic.h) */

enum bag_path_kind {
    BAG_PATH_NONE, /* there is no path: the model is a collection */
    BAG_PATH_FILE, /* any other path */
#define BAG_X(id, prefix) BAG_PATH_##id,
    BAG_PATH_PREFIXES(BAG_X)
#undef BAG_X
};

/* One model as configured: a table, or a collection of features. All strings are owned by the
 * struct bag_config around it. */
struct bag_model_config {
    char *name; /* [A-Za-z0-9._-]{1,128}, no leading dot */
    char *path; /* the table's file, or what enum bag_path_kind lists; NULL: a collection */
    struct bag_feature_config *features; /* owned; features of a collection */
    size_t num_features;
    char *version;           /* decimal number from 1; "1" unless configured */
    enum bag_dtype datatype; /* type of the file's elements; BAG_DTYPE_COUNT: as in the file */
    enum bag_row_format row_format;       /* format of FP32 rows that a file stores as bytes */
    int64_t row_elements;                 /* elements of such a row; 0: not set */
    char *tensor, *keys_tensor;           /* names in the file; NULL or empty: not set */
    char *keys;                           /* file of keys; NULL or empty: not set */
    struct bag_shape shape;               /* shape of a file without a header */
    struct bag_v2_shown shown;            /* inputs that its metadata lists */
    struct bag_part part;                 /* part to load; part.of is 0 for the whole table */
    int64_t spare_rows;                   /* rows for keys that updates add */
    int64_t updates_through;              /* last update that the file includes; -1: not set */
    enum bag_load load;                   /* BAG_LOAD_COUNT: as the option `load` */
    bool warm, lock_pages;                /* for mapped tables */
    char *shard_model, *shard_token_file; /* for models of shards; NULL or empty: not set */
    enum bag_shard_ready shard_ready;
    enum bag_shard_absent absent;
    enum bag_shard_hedge hedge;
    uint32_t set;                   /* as for a feature; in a model of shards the shards decide the
                                       other settings */
    enum bag_dtype output_datatype; /* BAG_DTYPE_COUNT: the table's type */
    enum bag_row_format output_row_format; /* PLAIN: none */
    struct bag_rules
        rules; /* output_dtype, missing and keyed are not set: the table decides them */
    enum bag_missing out_of_range, missing; /* for dense and for keyed tables;
                                               BAG_MISSING_COUNT: not set */
    char *projection, *bias;                /* files; NULL or empty: none */
    struct bag_version_policy version_policy;
    int64_t keep_versions;
    enum bag_reload reload;
    char *
        reason; /* reason why a model in a folder of models cannot be served; NULL: none is known */
};

/* Returns what the model's path stands for. */
enum bag_path_kind bag_model_path_kind(const struct bag_model_config *model);

/* Returns whether the model has shards in place of a file. */
static inline bool bag_model_has_shards(const struct bag_model_config *model)
{
    return bag_model_path_kind(model) == BAG_PATH_SHARDS;
}

/* An index of names (names.h). An empty index is all zeros. */
struct bag_names {
    struct bag_name *slots; /* owned; the names are borrowed */
    size_t num_slots, count;
};

/* The presets of --synthetic. */
enum bag_synthetic_preset { BAG_SYNTHETIC_NONE, BAG_SYNTHETIC_DLRM_V2, BAG_SYNTHETIC_DLRM_V3 };

struct bag_config {
    struct bag_option_values options; /* one member for each line of options.h */
    unsigned char
        origins[BAG_OPTION_COUNT];   /* enum bag_origin of each option, indexed as bag_options */
    struct bag_model_config *models; /* owned; in the order in which they were configured */
    size_t num_models;               /* number of models; each version counts as one */
    struct bag_names names; /* index of the models, by name and version, and by name alone for the
                                highest version */
    bool demo;              /* --demo */
    enum bag_synthetic_preset synthetic_preset; /* --synthetic with the name of a preset */
    int64_t synthetic_bytes;                    /* --synthetic-bytes; 0: not set */
    bool check;                                 /* --check */
    char *config_path;                          /* --config or BAGSERVE_CONFIG; NULL: none */
    char *models_dir; /* --models, BAGSERVE_MODELS or "models_dir"; NULL: none */
};

/* Sets everything to its default. Returns false if there is not enough memory. The caller must call
 * bag_config_free in either case. */
bool bag_config_init(struct bag_config *config);

/* Frees all members and sets the struct to zeros. */
void bag_config_free(struct bag_config *config);

/* Returns the path in the last --config among the flags, or else in BAGSERVE_CONFIG. Returns NULL
 * if there is none or it is empty. The path is borrowed from its source. The caller calls this
 * first, because the file is applied first. */
const char *bag_config_find_path(int argc, char *const argv[], char *const environment[]);

/* Applies the text of a configuration file (JSON, described in config/examples/README.md). Relative
 * paths are relative to the folder of `file_name`, which messages name. Returns false and sets
 * *problem if the text is wrong. The message about an unknown key names the nearest known key. */
bool bag_config_apply_file(struct bag_config *config, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem);

/* Applies BAGSERVE_* variables. Returns false and sets *problem if one is unknown or wrong. Ignores
 * the variables that Kubernetes injects for a Service named bagserve. */
bool bag_config_apply_environment(struct bag_config *config, char *const environment[],
                                  struct bag_problem *problem);

/* Applies flags, as "--flag VALUE" or "--flag=VALUE". Then adds the tables of a preset. The first
 * flag is argv[0], which is not the program. Ignores --help and --version, for which the caller
 * prints. Returns false and sets *problem if a flag is wrong. */
bool bag_config_apply_flags(struct bag_config *config, int argc, char *const argv[],
                            struct bag_problem *problem);

/* Stores where the value of an option came from. */
void bag_config_note_origin(struct bag_config *config, const struct bag_option *option,
                            enum bag_origin origin);

/* Changes the kind of the problem with an option's value to BAG_ERROR_USAGE if a flag set the
 * option, else to BAG_ERROR_CONFIGURATION. Returns false. */
bool bag_config_reject_value(const struct bag_config *config, const char *key,
                             struct bag_problem *problem);

/* Writes all options as a JSON array "options" of {"key", "section", "value", "default", "source",
 * "unit", "about"}. Unless `shows_folders`, paths are written without their folders. */
void bag_config_write_options(const struct bag_config *config, bool shows_folders,
                              struct bag_json_writer *json);

/* Adds a model with the defaults of model_options.h. Copies `name`, `path` and `version`. A
 * collection has no path and gets its features later. Returns false and sets *problem if the name
 * or version is invalid, or another model has both; the message then names both paths. */
bool bag_config_add_model(struct bag_config *config, const char *name, const char *path,
                          const char *version, struct bag_problem *problem);

/* Adds a copy of another configuration's model, whose name and version must be new. Returns false
 * if there is not enough memory. */
bool bag_config_add_copy(struct bag_config *config, const struct bag_model_config *model);

/* Sets a key of BAG_MODEL_KEYS of the model at config->models[index] from a text, as in the flag
 * --table NAME=PATH,key=value. Returns false and sets *problem if the key is unknown, with the
 * nearest known key, or the value is wrong. */
bool bag_config_set_model_key(struct bag_config *config, size_t index, const char *key,
                              const char *value, struct bag_problem *problem);

/* Returns the position of "#TENSOR" in a path: the first '#' after a known extension, or after a
 * folder whose name has no dot. Returns NULL if there is none. */
char *bag_path_find_tensor(char *path);

/* Applies the text of a model's own config.json to the model at config->models[index]. Its keys are
 * those of an entry of "models" without name, path and version, which the folder determines, and
 * without shards. `is_shared` marks the file of a folder around all versions, which must have no
 * features. Returns false and sets *problem if the text is wrong. */
bool bag_config_apply_model_file(struct bag_config *config, size_t index, const char *file_name,
                                 const char *text, size_t text_bytes, bool is_shared,
                                 struct bag_problem *problem);

/* Checks what depends on several options or models. There must be something to serve, features must
 * name existing tables, and origins, networks, fractions and URLs must be well-formed. With a
 * folder of models, features and tables are checked later. Returns false and sets *problem if a
 * check fails. A wrong value is BAG_ERROR_USAGE if a flag set it, else BAG_ERROR_CONFIGURATION. */
bool bag_config_validate(const struct bag_config *config, struct bag_problem *problem);

/* Checks one of the models. Returns false and sets *problem if a feature names a model that does
 * not exist or has no table, or a bias has no projection. */
bool bag_config_check_model(const struct bag_config *config, const struct bag_model_config *model,
                            struct bag_problem *problem);

/* Checks all models with bag_config_check_model. Returns false and sets *problem at the first one
 * that fails. */
bool bag_config_check_models(const struct bag_config *config, struct bag_problem *problem);

/* Returns the highest version of the model with this name, or NULL if there is none. */
const struct bag_model_config *bag_config_find_model(const struct bag_config *config,
                                                     const char *name);

/* Returns the index in config->models of a name and version, or num_models if there is none. */
size_t bag_config_find_version(const struct bag_config *config, const char *name,
                               const char *version);

/* Sets the pooling settings of *pooling to those of a feature: its own, and those of its table's
 * model for the others. Values have the meanings of struct bag_model_config. `feature` is NULL for
 * the table's own model. Texts and names are not set. */
void bag_config_pooling(const struct bag_model_config *table,
                        const struct bag_feature_config *feature,
                        struct bag_feature_config *pooling);

/* Returns the file of the projection of a model or a feature, or NULL if there is none, and sets
 * *bias to the file of the bias or NULL. A feature without a projection of its own uses both files
 * of its table's model. `feature` may be NULL. */
const char *bag_config_projection(const struct bag_model_config *table,
                                  const struct bag_feature_config *feature, const char **bias);

/* Returns whether all options of the sections are equal. The sources (BAG_SOURCES: the file and the
 * folder of models) and the models may differ. */
bool bag_config_same_options(const struct bag_config *a, const struct bag_config *b);

/* Frees the models. The options stay. */
void bag_config_free_models(struct bag_config *config);

/* Frees the members that the model owns. */
void bag_model_config_free(struct bag_model_config *model);

/* Copies a model. The copy owns its members. Returns false if there is not enough memory; *copy is
 * then zeroed and may be freed. */
bool bag_model_config_copy(struct bag_model_config *copy, const struct bag_model_config *model);

/* Return a hash of a model's configuration without its name and version. The second one covers only
 * BAG_FILE_KEYS and BAG_SHARD_KEYS, so it changes if the rows in memory would. Without the paths it
 * is the same for links to a file: the caller then hashes the files themselves. */
uint64_t bag_model_config_hash(const struct bag_model_config *model);
uint64_t bag_model_config_hash_files(const struct bag_model_config *model, bool with_paths);

/* Sets *number to the version that a text names. Returns false if that is no whole number from 1
 * that JSON can represent exactly. */
bool bag_model_version_parse(const char *version, uint64_t *number);

/* Returns whether the name is valid for a model: 1 to 128 characters of A-Z a-z 0-9 . _ - without a
 * leading dot. */
bool bag_model_name_valid(const char *name);

/* Prints words that are separated by single blanks in lines of at most 80 columns, indented by
 * `indent` blanks. */
void bag_help_print_wrapped(FILE *stream, const char *text, int indent);

/* Prints flags with their variables, units, defaults and sentences. Prints the common ones, or all
 * of them and the keys of models if `all` is set. */
void bag_config_print_help(FILE *stream, bool all);

/* Prints the help of a flag of any command, which may be written without its dashes, or of all
 * options for "options". Returns false if there is no such topic. */
bool bag_config_print_topic(FILE *stream, const char *topic);

/* Prints the manual page, in roff with the macros of man(7). */
void bag_config_print_manual(FILE *stream, const char *version);

/* Prints the completion script of "bash", "zsh" or "fish". Returns false for another shell. */
bool bag_config_print_completion(FILE *stream, const char *shell);
