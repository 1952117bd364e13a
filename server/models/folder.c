/* A folder of models -> the versions that are in it; see catalog.h. */
#include "catalog.h"

#include "proto/text.h"
#include "server/system/files.h"
#include "server/system/log.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The maximum size of a model's own config.json. */
#define CONFIG_FILE_BYTES (16u << 20)

/* ---- what is found --------------------------------------------------------------------------- */

static bool no_memory(const char *what, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", what);
}

/* Returns the version that was added last. */
static struct bag_model_config *last_of(struct bag_scan *scan)
{
    return &scan->found.models[scan->found.num_models - 1];
}

/* Sets the reason why a version cannot be served. */
static bool reject(struct bag_model_config *model, const struct bag_problem *why,
                   struct bag_problem *problem)
{
    if (!model->reason)
        model->reason = strdup(why->text);
    return model->reason || no_memory(model->name, problem);
}

/* Adds a version under a name that is valid. One that is there already is rejected: which of the
 * two is meant is not known. */
static bool add(struct bag_scan *scan, const char *name, const char *path, const char *version,
                bool *is_new, struct bag_problem *problem)
{
    struct bag_problem why;
    *is_new = bag_config_add_model(&scan->found, name, path, version, &why);
    if (*is_new)
        return true;
    size_t other = bag_config_find_version(&scan->found, name, version);
    if (why.kind == BAG_ERROR_CONFIGURATION && other < scan->found.num_models)
        return reject(&scan->found.models[other], &why, problem);
    *problem = why;
    return false;
}

/* Logs what became of a path, but only in the first scan: polls would repeat it each time. */
static void tell(const struct bag_scan *scan, enum bag_log_level level, const char *event,
                 const char *path, const char *why)
{
    if (scan->is_first)
        bag_log(level, event, BAG_LOG_TEXT("path", path), BAG_LOG_TEXT("reason", why));
}

/* Logs a file or folder that was probably meant to be served and is not. */
static void tell_skipped(const struct bag_scan *scan, const char *path, const char *why)
{
    tell(scan, BAG_LOG_LEVEL_WARNING, "skipped", path, why);
}

/* Logs a file that was probably not meant to be served. */
static void tell_ignored(const struct bag_scan *scan, const char *path, const char *why)
{
    tell(scan, BAG_LOG_LEVEL_INFO, "ignored", path, why);
}

/* Decides about a folder below the first one that cannot be read, or that has just gone. Returns
 * true if the scan goes on without it, which is so unless memory is short. */
static bool skip_unreadable(const struct bag_scan *scan, const char *path,
                            const struct bag_problem *problem)
{
    if (problem->kind == BAG_ERROR_FILE)
        tell_skipped(scan, path, problem->text);
    return problem->kind == BAG_ERROR_FILE;
}

/* ---- names of files -------------------------------------------------------------------------- */

/* Names of files that are one table together with others: the folder that they are in is the table.
 */
static const char *const set_names[] = {"keys.npy", "key", "emb_vector"};
static const char *const set_marks[] = {"_emb_keys.rank_", "_emb_values.rank_"};
#define INDEX_SUFFIX ".safetensors.index.json"
/* Name of the folder of updates beside a table. */
#define DELTAS_NAME "deltas"

#define SETTINGS_NAME "config.json"

/* Returns whether a file with this name is one of several that are a table together. */
static bool is_of_set(const char *name)
{
    bool found = bag_has_suffix(name, INDEX_SUFFIX);
    for (size_t i = 0; i < sizeof set_names / sizeof *set_names; i++)
        found |= strcmp(name, set_names[i]) == 0;
    for (size_t i = 0; i < sizeof set_marks / sizeof *set_marks; i++)
        found |= strstr(name, set_marks[i]) != NULL;
    return found;
}

/* Leaves out entries with a leading dot, for scandir(). */
static int skip_hidden(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static bool is_directory(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* Called for each entry of a directory, in the order of version numbers. Returns false and sets
 * *problem to end the walk. */
typedef bool visit_entry(const char *path, const char *name, void *context,
                         struct bag_problem *problem);

/* Returns what to do about a folder that cannot be read. */
static const char *remedy_of(int error)
{
    switch (error) {
    case ENOENT:
        return "; make it, or mount the volume that has the models";
    case EACCES:
        return "; the server's user must be allowed to read it (chmod a+rX)";
    default:
        return "";
    }
}

/* Calls `visit` for each entry of a directory that is not hidden. Returns false and sets *problem
 * if the directory cannot be read or `visit` fails. */
static bool walk(const char *directory, visit_entry *visit, void *context,
                 struct bag_problem *problem)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, skip_hidden, versionsort);
    bool ok = count >= 0;
    if (!ok)
        bag_problem_set(problem, errno == ENOMEM ? BAG_ERROR_NO_MEMORY : BAG_ERROR_FILE,
                        "%s: cannot be read as a folder of models: %s%s", directory,
                        strerror(errno), remedy_of(errno));
    for (int i = 0; i < count; i++) {
        char *path = NULL;
        if (ok && asprintf(&path, "%s/%s", directory, entries[i]->d_name) < 0) {
            path = NULL;
            ok = no_memory(directory, problem);
        }
        ok = ok && visit(path, entries[i]->d_name, context, problem);
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    return ok;
}

/* ---- DIR/NAME/VERSION ------------------------------------------------------------------------ */

/* The files that were found in the folder of a version. */
struct version {
    struct bag_scan *scan;
    char *table, *settings; /* paths; owned */
    char *other;            /* path of a second table, allowed only in a set; owned */
    bool is_set;            /* the table is the folder */
    bool is_ready;          /* true: the folder has the ready_file, or needs none */
};

/* Notes what a file in the folder of a version is for. Ignores other files. */
static bool visit_version_file(const char *path, const char *name, void *context,
                               struct bag_problem *problem)
{
    struct version *version = context;
    const char *ready_file = version->scan->options->ready_file;
    bool settings = strcmp(name, SETTINGS_NAME) == 0;
    char **place = settings         ? &version->settings
                   : version->table ? &version->other
                                    : &version->table;
    if (ready_file && strcmp(name, ready_file) == 0)
        return version->is_ready = true;
    if (is_of_set(name))
        return version->is_set = true;
    if (!settings && !bag_source_is_table(name)) {
        bool is_source =
            version->scan->options->updates == BAG_SWITCH_ON && strcmp(name, DELTAS_NAME) == 0;
        if (!is_source)
            tell_ignored(version->scan, path, "no table (.npy, .npz, .safetensors)");
        return true;
    }
    if (*place)
        return true;
    *place = strdup(path);
    return *place || no_memory(path, problem);
}

/* Checks that the folder has one table, or a config.json. */
static bool check_files(const struct version *version, const char *path,
                        struct bag_problem *problem)
{
    if (!version->is_ready)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "%s: there is no %s in it yet",
                               path, version->scan->options->ready_file);
    if (version->other && !version->is_set)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: a version has one table, but the folder has %s, too",
                               version->other, version->table);
    return version->table || version->settings || version->is_set ||
           bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: no table (.npy, .npz, .safetensors) in it", path);
}

/* Applies a config.json to the version that was added last. */
static bool apply_settings(struct bag_scan *scan, const char *path, bool is_shared,
                           struct bag_problem *problem)
{
    size_t bytes;
    char *text = bag_file_read(path, CONFIG_FILE_BYTES, &bytes, problem);
    bool ok = text && bag_config_apply_model_file(&scan->found, scan->found.num_models - 1, path,
                                                  text, bytes, is_shared, problem);
    free(text);
    return ok;
}

/* ---- DIR/NAME -------------------------------------------------------------------------------- */

/* A folder of a model while its versions are visited. */
struct model {
    struct bag_scan *scan;
    const char *name;
    char *settings; /* the path of a config.json for all versions; owned; NULL: none */
    size_t versions;
    bool has_files; /* a table, or settings, are directly in the folder */
    char other[64]; /* a folder in it that is no version's; "": there is none */
};

/* Adds a version with the settings of its model and its own. A version that is incomplete or wrong
 * is added with the reason. Returns false and sets *problem only if memory is short or the version
 * cannot be added at all. */
static bool add_version(const struct model *model, const struct version *files, const char *path,
                        const char *number, struct bag_problem *problem)
{
    struct bag_scan *scan = model->scan;
    struct bag_problem why;
    const char *table = files->is_set ? path : files->table;
    bool is_new;
    if (!add(scan, model->name, table, number, &is_new, problem))
        return false;
    if (!is_new)
        return true;
    bool ok = check_files(files, path, &why) &&
              (!model->settings || apply_settings(scan, model->settings, true, &why)) &&
              (!files->settings || apply_settings(scan, files->settings, false, &why)) &&
              (table || last_of(scan)->num_features ||
               bag_problem_set(&why, BAG_ERROR_CONFIGURATION,
                               "%s: neither a table (.npy, .npz, .safetensors) nor features in it",
                               path));
    /* Without a table and without features it is unfinished, and no collection. */
    if (!table && last_of(scan)->num_features == 0 && !(last_of(scan)->path = strdup(path)))
        return no_memory(path, problem);
    if (!ok && why.kind == BAG_ERROR_NO_MEMORY)
        *problem = why;
    return ok || (why.kind != BAG_ERROR_NO_MEMORY && reject(last_of(scan), &why, problem));
}

/* Returns whether the path is a folder named by a version number: a whole number from 1, without
 * leading zeros. */
static bool is_version(const char *path, const char *name)
{
    int64_t number;
    return strspn(name, "0123456789") == strlen(name) && *name != '0' &&
           bag_integer_parse(name, &number) && number <= BAG_LARGEST_EXACT && is_directory(path);
}

/* Adds the version in an entry of a model's folder. Skips what is not a version. */
static bool visit_version(const char *path, const char *name, void *context,
                          struct bag_problem *problem)
{
    struct model *model = context;
    struct version version = {.scan = model->scan, .is_ready = !model->scan->options->ready_file};
    bool is_settings = strcmp(name, SETTINGS_NAME) == 0;
    model->has_files |= is_settings || is_of_set(name) || bag_source_is_table(name);
    if (is_settings)
        return true;
    if (!is_version(path, name)) {
        tell_skipped(model->scan, path,
                     "it is no directory named by a version number, with one table in it");
        if (is_directory(path))
            snprintf(model->other, sizeof model->other, "%s", name);
        return true;
    }
    bool ok = walk(path, visit_version_file, &version, problem)
                  ? add_version(model, &version, path, name, problem)
                  : skip_unreadable(model->scan, path, problem);
    model->versions += ok;
    free(version.table);
    free(version.other);
    free(version.settings);
    return ok;
}

/* Adds version 1 of a model whose folder has no version, with that reason, so that the index of
 * models lists it. */
static bool add_without_version(const struct model *model, const char *path,
                                struct bag_problem *problem)
{
    struct bag_problem why;
    bool is_new;
    if (!add(model->scan, model->name, path, "1", &is_new, problem))
        return false;
    if (!is_new)
        return true;
    bag_problem_set(&why, BAG_ERROR_CONFIGURATION, "%s: no version directory (%s/1) in it%s%s%s",
                    path, path, *model->other ? "; '" : "",
                    bag_quote(model->other, strlen(model->other)).text,
                    *model->other ? "' is no version: those are whole numbers from 1" : "");
    return reject(last_of(model->scan), &why, problem);
}

/* Adds the versions in the folder of a model. Skips a folder in which nothing is meant to be
 * served.
 */
static bool visit_directory(struct bag_scan *scan, const char *path, const char *name,
                            struct bag_problem *problem)
{
    struct model model = {.scan = scan, .name = name};
    if (asprintf(&model.settings, "%s/" SETTINGS_NAME, path) < 0)
        return no_memory(path, problem);
    if (!bag_file_exists(model.settings)) {
        free(model.settings);
        model.settings = NULL;
    }
    bool ok = walk(path, visit_version, &model, problem) || skip_unreadable(scan, path, problem);
    if (ok && model.versions == 0 && !model.has_files && !*model.other)
        tell_skipped(scan, path,
                     "there is nothing to serve in it: a model has a table in NAME/VERSION/");
    else
        ok = ok && (model.versions || add_without_version(&model, path, problem));
    free(model.settings);
    return ok;
}

/* ---- DIR ------------------------------------------------------------------------------------- */

#define BAD_NAME "a model's name must be 1 to 128 of A-Z a-z 0-9 . _ - with no dot in front"

/* Returns whether the name is that of a part in a set of files, such as table-00001-of-00002. */
static bool is_part(const char *stem)
{
    const char *mark = strstr(stem, "-of-");
    return mark && mark[4] && strspn(mark + 4, "0123456789") == strlen(mark + 4);
}

/* Adds a file in the folder of models as version 1 of a model. */
static bool add_file(struct bag_scan *scan, const char *path, const char *name,
                     struct bag_problem *problem)
{
    char *stem = strndup(name, (size_t)(strrchr(name, '.') - name));
    bool ok = stem || no_memory(path, problem), is_new;
    if (ok && is_part(stem))
        tell_skipped(scan, path, "it looks like a part of a set, whose files go to NAME/VERSION/");
    else if (ok && bag_model_name_valid(stem))
        ok = add(scan, stem, path, "1", &is_new, problem);
    else if (ok)
        tell_skipped(scan, path, BAD_NAME);
    free(stem);
    return ok;
}

/* The file in which exporters describe the tables that they wrote beside it. */
#define EXPORTED_NAME "bagserve.json"

static bool is_same_file(const char *path, const char *other)
{
    struct stat a, b;
    return other && stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* Returns whether a configuration names models, and not only the folder that it is in. */
static bool names_models(const char *path)
{
    struct bag_problem why;
    struct bag_config config;
    size_t bytes;
    char *text = bag_file_read(path, CONFIG_FILE_BYTES, &bytes, &why);
    bool is_known =
        bag_config_init(&config) && text && bag_config_apply_file(&config, path, text, bytes, &why);
    bool names = !is_known || config.num_models > 0;
    bag_config_free(&config);
    free(text);
    return names;
}

/* Logs why a file that is not a table is ignored. A configuration of an exporter that is not in use
 * gets a hint, because its reductions are not applied. */
static void tell_file(const struct bag_scan *scan, const char *path, const char *name)
{
    struct bag_problem why;
    if (strcmp(name, EXPORTED_NAME) != 0) {
        tell_ignored(scan, path,
                     "a file here is a model where it is NAME.npy, NAME.npz or NAME.safetensors; "
                     "others go to NAME/VERSION/");
        return;
    }
    if (!scan->is_first || is_same_file(path, scan->config->config_path) || !names_models(path))
        return;
    bag_problem_set(&why, BAG_ERROR_CONFIGURATION,
                    "reductions and other settings in it are not used where the folder is named; "
                    "to use them: --config %s",
                    path);
    tell_skipped(scan, path, why.text);
}

/* The folder that a zip archive made by macOS has beside its content. */
#define ARCHIVE_REST "__MACOSX"

/* Adds the model in an entry of the folder of models. */
static bool visit_model(const char *path, const char *name, void *context,
                        struct bag_problem *problem)
{
    struct bag_scan *scan = context;
    bool is_folder = is_directory(path);
    if (strcmp(name, ARCHIVE_REST) == 0) {
        tell_ignored(scan, path, "it is what macOS adds to zip archives, and no model");
        return true;
    }
    if (!is_folder && !bag_source_is_table(name)) {
        tell_file(scan, path, name);
        return true;
    }
    if (is_folder && !bag_model_name_valid(name)) {
        tell_skipped(scan, path, BAD_NAME);
        return true;
    }
    return is_folder ? visit_directory(scan, path, name, problem)
                     : add_file(scan, path, name, problem);
}

bool bag_scan_folder(struct bag_scan *scan, struct bag_problem *problem)
{
    return walk(scan->config->models_dir, visit_model, scan, problem);
}
