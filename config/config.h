/* What an operator may choose: options and models, from a file, the environment and flags.
 *
 * Sources are applied in this order, and each overrides those before: defaults, file, BAGSERVE_*
 * variables, flags. After a failure the configuration is partly applied and can only be freed. The
 * table in options.h declares every option, the one in model_options.h every key of a model;
 * parsing, --help and messages are made from them.
 *
 * Texts and vectors come in as arguments: the server reads files and the environment. */
#ifndef BAG_CONFIG_H
#define BAG_CONFIG_H

#include "kernels/table.h"
#include "model_options.h"
#include "options.h"
#include "proto/json_writer.h"
#include "proto/problem.h"
#include "proto/v2_documents.h"

#include <stdio.h>

/* The program's commands. X(name, "what follows", "sentence") */
#define BAG_COMMANDS(X)                                                                           \
    X(serve, "[flags]", "Load tables and answer requests; serve --help lists the flags.")         \
    X(health, "[flags]", "Exit with 0 if the server on --host and --port is ready.")              \
    X(convert, "[flags] IN OUT", "Convert a table to a safetensors file, quantised if you like.") \
    X(inspect, "[flags] FILE|DIR", "Say what is in a table's file, and how to serve it.")         \
    X(verify, "[flags] FILE|DIR", "Read all of a table and say whether it is valid.")             \
    X(bench, "[flags] URL [MODEL]", "Measure how much a server holds, and how fast it answers.")  \
    X(completion, "bash|zsh|fish", "Print what completes commands and flags in a shell.")         \
    X(manual, "", "Print the manual page, for man.")                                              \
    X(version, "", "Print version, commit, compiler and libraries.")                              \
    X(help, "[COMMAND]", "Print this, or the help of a command.")

/* The flags of the commands that work on files: X(command, ID, "--name", "what follows",
 * "sentence"). Words with | between them are the values that a flag takes; "" means that it takes
 * none. */
#define BAG_CONVERT_FLAGS(X)                                                                      \
    X(convert, DATATYPE, "--datatype", "FP32|FP16|BF16",                                          \
      "Elements of the new table. Without this and --row-format rows stay as they are.")          \
    X(convert, ROW_FORMAT, "--row-format",                                                        \
      "int8|int4|f8_e4m3|f8_e5m2|int8_f16_front|int4_f16_front|f8_e4m3_scaled|f8_e5m2_scaled|"    \
      "int8_f16_back|int8_symmetric|int8_symmetric_f16|int2|int2_f16_front",                      \
      "Quantised rows.")                                                                          \
    X(convert, ORDER_BY, "--order-by", "COUNTS",                                                  \
      "Puts the rows of a keyed table in order of these numbers, one a row, the largest first; "  \
      "those of IN,missing=hash,hash_rows=N stay the first.")                                     \
    X(convert, REPORT, "--report", "FILE", "Writes what was lost as JSON; - is standard output.") \
    X(convert, MAX_ERROR, "--max-error", "X",                                                     \
      "The largest error of an element; beyond it nothing is written and the exit code is 1.")    \
    X(convert, THREADS, "--threads", "N",                                                         \
      "Threads, up to 16; as many as there are processors by default.")                           \
    X(convert, FORCE, "--force", "", "Replaces OUT where it exists.")                             \
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
      "What a request asks for: 1 bag of 10 ids; the bag of a user and those of 2,000 "            \
      "candidates, 10 ids each; the 26 features of MLPerf's DLRM-v2; or the 5 of DLRM-v3, a row "  \
      "for each id: a history of 7,000 items at the mean and 2,048 candidates, each with its "     \
      "category, and a user, by Zipf's law. small by default.")                                    \
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
      "Sends requests at a rate, whatever became of earlier ones. R:SECONDS,R:SECONDS and so on: " \
      "several rates follow each other without a pause.")                                          \
    X(bench, CONSTANT, "--constant", "",                                                           \
      "With --rate and --sweep: requests are due at equal intervals. By default they are due at "  \
      "random times (Poisson).")                                                                   \
    X(bench, CLOSED, "--closed", "",                                                               \
      "Each connection sends its next request as soon as it has its reply.")                       \
    X(bench, SWEEP, "--sweep", "",                                                                 \
      "Finds the highest rate whose p99 stays within --slo-ms. This is the default, and takes "    \
      "half a minute.")                                                                            \
    X(bench, SLO, "--slo-ms", "MS", "Objective of a sweep: p99 in milliseconds. 10 by default.")   \
    X(bench, DURATION, "--duration", "SECONDS",                                                    \
      "Duration of a run. 10 by default, 1.5 in a sweep.")                                         \
    X(bench, REQUESTS, "--requests", "N", "With --closed: maximum number of requests.")            \
    X(bench, WARMUP, "--warmup", "SECONDS",                                                        \
      "Time before the first run, which is not counted. 1 by default.")                            \
    X(bench, REPORT, "--report", "FILE",                                                           \
      "Writes the workload and what was measured as JSON; - is standard output.")                  \
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

/* How a table takes the place of another version. */
enum bag_reload { BAG_RELOADS(BAG_ID) };

/* When a model of shards is ready, what is done without one of them, and when one is asked twice.
 */
enum bag_shard_ready { BAG_SHARD_READIES(BAG_ID) };
enum bag_shard_absent { BAG_SHARD_ABSENTS(BAG_ID) };
enum bag_shard_hedge { BAG_SHARD_HEDGES(BAG_ID) };

/* One feature of a collection as configured: the bags of another model's table. Strings are owned.
 */
struct bag_feature_config {
    char *name;                             /* as a model's; not "embeddings" */
    char *model;                            /* whose table it is */
    uint32_t set;                           /* bit i: the i-th of BAG_POOLING_KEYS is set here */
    struct bag_rules rules;                 /* what of them is set */
    enum bag_dtype output_datatype;         /* likewise */
    enum bag_row_format output_row_format;  /* likewise */
    enum bag_missing out_of_range, missing; /* likewise */
    char *projection, *bias;                /* files; NULL: not set */
};

/* One model as configured: a table, or a collection of features. All strings are owned by the
 * struct bag_config around it. */
struct bag_model_config {
    char *name; /* [A-Za-z0-9._-]{1,128}, no leading dot */
    char *path; /* the table's file, or BAG_SHARDS_PREFIX and addresses (shards.h); NULL: a
                   collection */
    struct bag_feature_config *features; /* owned; of a collection */
    size_t num_features;
    char *version;           /* a decimal number from 1, "1" where nothing says otherwise */
    enum bag_dtype datatype; /* of the file's elements; BAG_DTYPE_COUNT: what the file says */
    enum bag_row_format row_format;       /* of a file of bytes that stand for FP32 rows */
    int64_t row_elements;                 /* of its rows; 0: not said */
    char *tensor, *keys_tensor;           /* names in the file; NULL or empty: not said */
    char *keys;                           /* a file; NULL or empty: not said */
    struct bag_shape shape;               /* of a file without a header */
    struct bag_v2_shown shown;            /* by its metadata */
    struct bag_part part;                 /* that is loaded; of 0: the whole table */
    int64_t spare_rows;                   /* for keys that updates add */
    int64_t updates_through;              /* the last update that the file includes; -1: not said */
    enum bag_load load;                   /* BAG_LOAD_COUNT: as the option says */
    bool warm, lock_pages;                /* of a mapped table */
    char *shard_model, *shard_token_file; /* of shards; NULL or empty: not said */
    enum bag_shard_ready shard_ready;
    enum bag_shard_absent absent;
    enum bag_shard_hedge hedge;
    uint32_t set;                   /* of shards: bit i: the i-th of BAG_POOLING_KEYS is set here;
                                       the others are as the shards say */
    enum bag_dtype output_datatype; /* BAG_DTYPE_COUNT: the table's */
    enum bag_row_format output_row_format; /* PLAIN: none */
    struct bag_rules rules; /* output_dtype, missing and keyed are not set: the table decides */
    enum bag_missing out_of_range, missing; /* of dense and of keyed tables; BAG_MISSING_COUNT: not
                                               said */
    char *projection, *bias;                /* files; NULL or empty: none */
    struct bag_version_policy version_policy;
    int64_t keep_versions;
    enum bag_reload reload;
    char *reason; /* why it cannot be served, where a folder of models was searched; NULL: nothing
                     is known against it */
};

/* Where names are (names.h). */
struct bag_names {
    struct bag_name *slots; /* owned; the names in them are not */
    size_t num_slots, count;
};

/* The presets of --synthetic. */
enum bag_synthetic_preset { BAG_SYNTHETIC_NONE, BAG_SYNTHETIC_DLRM_V2, BAG_SYNTHETIC_DLRM_V3 };

struct bag_config {
    struct bag_option_values options;        /* one member per line of options.h */
    unsigned char origins[BAG_OPTION_COUNT]; /* enum bag_origin of each, as in bag_options */
    struct bag_model_config *models;         /* owned; in the order they were named */
    size_t num_models;
    struct bag_names names; /* of models: each name with its version, and alone for its highest */
    bool demo;              /* --demo */
    enum bag_synthetic_preset synthetic_preset; /* --synthetic with the name of a preset */
    int64_t synthetic_bytes;                    /* --synthetic-bytes; 0: not said */
    bool check;                                 /* --check */
    char *config_path;                          /* --config or BAGSERVE_CONFIG; NULL: none */
    char *models_dir; /* --models, BAGSERVE_MODELS or "models_dir"; NULL: none */
};

/* Everything at its default. False without memory; in any case bag_config_free is due. */
bool bag_config_init(struct bag_config *config);
void bag_config_free(struct bag_config *config);

/* The path in --config among the flags, or else in BAGSERVE_CONFIG in the environment; to be called
 * first, because the file is applied first. NULL where there is none. Borrowed from its source. */
const char *bag_config_find_path(int argc, char *const argv[], char *const environment[]);

/* Applies the text of a configuration file (JSON, described in config/examples/README.md).
 * Relative paths in it are relative to the folder of `file_name`, which messages name.
 * Unknown keys are errors that name the nearest known key. */
bool bag_config_apply_file(struct bag_config *config, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem);

/* Applies BAGSERVE_* variables. An unknown BAGSERVE_ name is an error, unless it has the shape of
 * those that Kubernetes injects for a Service of that name. */
bool bag_config_apply_environment(struct bag_config *config, char *const environment[],
                                  struct bag_problem *problem);

/* Applies flags: argv[0] is the first flag, not the program. "--flag VALUE" and "--flag=VALUE".
 * --help and --version change nothing: printing is up to the caller. */
bool bag_config_apply_flags(struct bag_config *config, int argc, char *const argv[],
                            struct bag_problem *problem);

/* Notes where the value of an option came from. */
void bag_config_note_origin(struct bag_config *config, const struct bag_option *option,
                            enum bag_origin origin);

/* Makes the problem with an option's value BAG_ERROR_USAGE if a flag set it, else
 * BAG_ERROR_CONFIGURATION. Returns false. */
bool bag_config_reject_value(const struct bag_config *config, const char *key,
                             struct bag_problem *problem);

/* All options as a JSON array of {"key", "section", "value", "default", "source", "unit", "about"},
 * on the heap; NULL without memory. Paths are without their folders unless `shows_folders`. */
void bag_config_write_options(const struct bag_config *config, bool shows_folders,
                              struct bag_json_writer *json);

/* Adds a model with the defaults of model_options.h. `name`, `path` and `version` are copied; a
 * collection has no path, and gets its features later. Rejects an invalid name or version, and a
 * name and version that another model has (naming both paths). */
bool bag_config_add_model(struct bag_config *config, const char *name, const char *path,
                          const char *version, struct bag_problem *problem);

/* Adds a copy of another configuration's model, under a name and version that are not there yet.
 * False without memory. */
bool bag_config_add_copy(struct bag_config *config, const struct bag_model_config *model);

/* Sets a key of BAG_MODEL_KEYS for the model at config->models[index] from a text, as the flag
 * --table NAME=PATH,key=value does. Rejects an unknown key, naming the nearest one. */
bool bag_config_set_model_key(struct bag_config *config, size_t index, const char *key,
                              const char *value, struct bag_problem *problem);

/* Where "#TENSOR" begins: at the first '#' behind a known extension, or behind a folder, whose name
 * has no dot; NULL: nowhere. */
char *bag_path_find_tensor(char *path);

/* Applies the text of a model's own config.json (the same keys as an entry of "models", without
 * name, path and version, which its folder says) to the model at config->models[index]. That of a
 * folder around all versions, for which `is_shared` is true, has no features. */
bool bag_config_apply_model_file(struct bag_config *config, size_t index, const char *file_name,
                                 const char *text, size_t text_bytes, bool is_shared,
                                 struct bag_problem *problem);

/* Checks what depends on several options or models: that there is something to serve, that features
 * name tables that exist (where there is no folder of models, which may have them), that origins,
 * networks, fractions and URLs are well-formed. A wrong value of a flag is BAG_ERROR_USAGE. */
bool bag_config_validate(const struct bag_config *config, struct bag_problem *problem);

/* What is wrong with one of its models: a feature of a model that it does not have, or that is no
 * table's, a bias without a projection. */
bool bag_config_check_model(const struct bag_config *config, const struct bag_model_config *model,
                            struct bag_problem *problem);

/* The same of all of them. */
bool bag_config_check_models(const struct bag_config *config, struct bag_problem *problem);

/* The highest version of the model of that name; NULL where there is none. */
const struct bag_model_config *bag_config_find_model(const struct bag_config *config,
                                                     const char *name);

/* The place in config->models of a name and version; num_models where they are not there. */
size_t bag_config_find_version(const struct bag_config *config, const char *name,
                               const char *version);

/* How a feature pools: as its table's model says, but for what is set for itself. Fills of *pooling
 * what BAG_POOLING_KEYS are, with the meanings of struct bag_model_config. `feature` is NULL for
 * the table's own model. */
void bag_config_pooling(const struct bag_model_config *table,
                        const struct bag_feature_config *feature,
                        struct bag_feature_config *pooling);

/* The file of the matrix that a model's pooled rows are multiplied by, and that of the bias; those
 * of a feature, which takes over both from its table's model where it has no matrix of its own.
 * NULL: none. `feature` may be NULL. */
const char *bag_config_projection(const struct bag_model_config *table,
                                  const struct bag_feature_config *feature, const char **bias);

/* Whether all options are the same; models may differ. */
bool bag_config_same_options(const struct bag_config *a, const struct bag_config *b);

/* Frees the models; the options stay. */
void bag_config_free_models(struct bag_config *config);

/* Frees what the model owns. */
void bag_model_config_free(struct bag_model_config *model);

/* Makes a copy, which owns what it has. False without memory: it is zeros then, to free or not. */
bool bag_model_config_copy(struct bag_model_config *copy, const struct bag_model_config *model);

/* A number that differs where something else is configured; and where what is made of the model's
 * files differs: of its path and BAG_FILE_KEYS. */
uint64_t bag_model_config_hash(const struct bag_model_config *model);
uint64_t bag_model_config_hash_files(const struct bag_model_config *model);

/* Whether the name may be a model's. */
bool bag_model_name_valid(const char *name);

/* Prints a text of words with single blanks between them in lines of at most 80 columns, each after
 * `indent` blanks. */
void bag_help_print_wrapped(FILE *stream, const char *text, int indent);

/* Prints flags with their variables, units, defaults and sentences: those that most people set, or
 * all of them and the keys of models. */
void bag_config_print_help(FILE *stream, bool all);

/* Prints the manual page, in roff with the macros of man(7). */
void bag_config_print_manual(FILE *stream, const char *version);

/* Prints what completes commands and flags in "bash", "zsh" or "fish"; false for another shell. */
bool bag_config_print_completion(FILE *stream, const char *shell);

#endif
