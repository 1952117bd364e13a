/* Where the configuration comes from: files, environment, flags, a directory of models; see
 * commands.h. */
#include "commands.h"

#include "server/system/log.h"
#include "server/system/text_file.h"
#include "server/table/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Configuration files are read up to this. */
#define CONFIG_FILE_BYTES (16u << 20)

/* ---- files and flags ------------------------------------------------------------------------- */

static bool apply_file(struct bag_config *config, const char *path, struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_file(config, path, text, bytes, problem);
    if (!text)
        bag_problem_prefix(problem, "configuration file");
    free(text);
    return ok;
}

bool bag_configure(struct bag_config *config, int argc, char *argv[], struct bag_problem *problem)
{
    const char *path = bag_config_find_path(argc, argv, environ);
    if (!bag_config_init(config))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    return (!path || apply_file(config, path, problem)) &&
           bag_config_apply_environment(config, environ, problem) &&
           bag_config_apply_flags(config, argc, argv, problem);
}

bool bag_arguments_have(int argc, char *argv[], const char *flag)
{
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], flag) == 0)
            return true;
    }
    return false;
}

/* ---- a directory of models ------------------------------------------------------------------- */

/* What a table's file may end with; a model of its own in a folder of models is an .npy file. */
#define TABLE_SUFFIX ".npy"
static const char *const table_suffixes[] = {TABLE_SUFFIX, ".npz", ".safetensors"};

/* Names of files that are one table with others: the folder they are in stands for it. */
static const char *const set_names[] = {"keys.npy", "key", "emb_vector"};
static const char *const set_marks[] = {"_emb_keys.rank_", "_emb_values.rank_"};
#define INDEX_SUFFIX ".safetensors.index.json"

static bool has_suffix(const char *name, const char *suffix)
{
    size_t bytes = strlen(name), tail = strlen(suffix);
    return bytes > tail && strcmp(name + bytes - tail, suffix) == 0;
}

static bool is_table(const char *name)
{
    bool table = false;
    for (size_t i = 0; i < sizeof table_suffixes / sizeof *table_suffixes; i++)
        table |= has_suffix(name, table_suffixes[i]);
    return table;
}

static bool is_of_set(const char *name)
{
    bool found = has_suffix(name, INDEX_SUFFIX);
    for (size_t i = 0; i < sizeof set_names / sizeof *set_names; i++)
        found |= strcmp(name, set_names[i]) == 0;
    for (size_t i = 0; i < sizeof set_marks / sizeof *set_marks; i++)
        found |= strstr(name, set_marks[i]) != NULL;
    return found;
}

static int skip_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool is_directory(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* One directory's entries in order, each given to `visit` with its path. */
typedef bool visit_entry(const char *path, const char *name, void *context,
                         struct bag_problem *problem);

static bool walk(const char *directory, visit_entry *visit, void *context,
                 struct bag_problem *problem)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, skip_hidden, versionsort);
    bool ok = count >= 0;
    if (!ok)
        bag_problem_set(problem, BAG_ERROR_FILE, "%s: cannot be read as a folder of models: %s",
                        directory, strerror(errno));
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (ok && asprintf(&path, "%s/%s", directory, entries[i]->d_name) < 0)
            ok = bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", directory);
        ok = ok && visit(path, entries[i]->d_name, context, problem);
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return ok;
}

/* ---- DIR/NAME/VERSION ------------------------------------------------------------------------ */

struct version {
    struct bag_config *config;
    const char *name, *version;
    char *table, *settings; /* paths; owned */
    char *other;            /* of another table, which only parts of one may be; owned */
    bool is_set;            /* the table is the folder */
};

static bool visit_version_file(const char *path, const char *name, void *context,
                               struct bag_problem *problem)
{
    struct version *version = context;
    bool settings = strcmp(name, "config.json") == 0;
    char **place = settings         ? &version->settings
                   : version->table ? &version->other
                                    : &version->table;
    if (is_of_set(name)) {
        version->is_set = true;
        return true;
    }
    if (!settings && !is_table(name)) {
        bag_log(BAG_LOG_LEVEL_INFO, "ignored", BAG_LOG_TEXT("path", path));
        return true;
    }
    if (*place)
        return true;
    *place = strdup(path);
    return *place || bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", path);
}

static bool add_version(struct version *version, const char *path, struct bag_problem *problem)
{
    struct bag_config *config = version->config;
    size_t bytes;
    if (version->other && !version->is_set)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: a version has one table, but the folder has %s, too",
                               version->other, version->table);
    if (!version->table && !version->settings && !version->is_set)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: no table (*" TABLE_SUFFIX ") in it", path);
    const char *table = version->is_set ? path : version->table;
    if (!bag_config_add_model(config, version->name, table, version->version, problem)) {
        bag_problem_prefix(problem, "%s", path);
        return false;
    }
    if (!version->settings)
        return true;
    char *text = bag_file_read(version->settings, CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_model_file(config, config->num_models - 1, version->settings,
                                                  text, bytes, problem);
    free(text);
    return ok;
}

static bool visit_version(const char *path, const char *name, void *context,
                          struct bag_problem *problem)
{
    struct version version = *(struct version *)context;
    if (strspn(name, "0123456789") != strlen(name) || !is_directory(path))
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: must be a directory named by a version number, with one "
                               "table in it",
                               path);
    version.version = name;
    bool ok =
        walk(path, visit_version_file, &version, problem) && add_version(&version, path, problem);
    free(version.table);
    free(version.other);
    free(version.settings);
    return ok;
}

/* ---- DIR ------------------------------------------------------------------------------------- */

static bool add_file(struct bag_config *config, const char *path, const char *name,
                     struct bag_problem *problem)
{
    char *stem = strndup(name, strlen(name) - strlen(TABLE_SUFFIX));
    bool ok = stem ? bag_config_add_model(config, stem, path, "1", problem)
                   : bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    if (!ok)
        bag_problem_prefix(problem, "%s", path);
    free(stem);
    return ok;
}

static bool visit_model(const char *path, const char *name, void *context,
                        struct bag_problem *problem)
{
    struct version version = {.config = context, .name = name};
    size_t before = version.config->num_models;
    if (is_directory(path)) {
        if (!walk(path, visit_version, &version, problem))
            return false;
        if (version.config->num_models == before)
            return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                                   "%s: no version directory (%s/1) in it", path, path);
        return true;
    }
    if (has_suffix(name, TABLE_SUFFIX))
        return add_file(context, path, name, problem);
    bag_log(BAG_LOG_LEVEL_INFO, "ignored", BAG_LOG_TEXT("path", path));
    return true;
}

bool bag_configure_models_dir(struct bag_config *config, const char *directory,
                              struct bag_problem *problem)
{
    return walk(directory, visit_model, config, problem);
}

/* ---- the demo ----------------------------------------------------------------------------------
 */

bool bag_configure_demo(struct bag_config *config, struct bag_problem *problem)
{
#define BAG_X(name, ...)                                                         \
    if (!bag_config_add_model(config, name, BAG_DEMO_PREFIX name, "1", problem)) \
        return false;
    BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    return bag_config_add_model(config, BAG_DEMO_COLLECTION, NULL, "1", problem) &&
           bag_config_apply_model_file(config, config->num_models - 1, "--demo", BAG_DEMO_FEATURES,
                                       strlen(BAG_DEMO_FEATURES), problem);
}
