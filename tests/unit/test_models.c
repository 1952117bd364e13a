/* Changes of models in a folder of real files: what is published of them, whatever becomes of a
 * change. Each change is made on the thread of the test. */
#include "testing.h"

#include "server/memory/memory.h"
#include "server/models/carry_out.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a server's models ----------------------------------------------------------------------- */

static struct {
    char root[64];
    struct bag_config config;
    struct bag_registry registry;
    struct bag_shards *shards;
    struct bag_models models;
    struct bag_updates updates; /* used by tests that change rows */
    struct bag_problem problem;
    int log, stderr_before; /* the file that the log is written to; standard error */
} world, *const w = &world;

static bag_gemm_fn *no_gemm(struct bag_problem *problem)
{
    bag_problem_set(problem, BAG_ERROR_SYSTEM, "there is no BLAS");
    return NULL;
}

static int set_up(void **state)
{
    char *arguments[] = {(char[]){"--models"}, w->root};
    (void)state;
    memset(w, 0, sizeof *w);
    strcpy(w->root, "/tmp/test_models.XXXXXX");
    assert_non_null(mkdtemp(w->root));
    assert_true(bag_config_init(&w->config));
    assert_true(bag_config_apply_flags(&w->config, 2, arguments, &w->problem));
    assert_true(bag_registry_init(&w->registry, 1));
    assert_non_null(w->shards = bag_shards_make());
    w->models = (struct bag_models){.registry = &w->registry,
                                    .config = &w->config,
                                    .options = &w->config.options,
                                    .load_gemm = no_gemm};
    const struct bag_updates_settings settings = {.kept_bytes = 4096};
    assert_true(bag_updates_init(&w->updates, &settings));
    assert_true(bag_monitor_init(&w->models.monitor));
    assert_int_equal(pthread_mutex_init(&w->models.status.lock, NULL), 0);
    bag_pages_configure(&w->config.options);
    FILE *file = tmpfile();
    assert_non_null(file);
    w->log = dup(fileno(file));
    fclose(file);
    w->stderr_before = dup(STDERR_FILENO);
    dup2(w->log, STDERR_FILENO);
    return 0;
}

static int remove_one(const char *path, const struct stat *state, int kind, struct FTW *at)
{
    (void)state, (void)kind, (void)at;
    return remove(path);
}

static int tear_down(void **state)
{
    (void)state;
    dup2(w->stderr_before, STDERR_FILENO);
    close(w->stderr_before);
    close(w->log);
    bag_models_free(&w->models);
    bag_registry_free(&w->registry);
    bag_updates_free(&w->updates);
    bag_shards_free(w->shards);
    bag_monitor_free(&w->models.monitor);
    bag_config_free(&w->config);
    return nftw(w->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

AROUND_EACH(set_up, tear_down)

/* ---- files ----------------------------------------------------------------------------------- */

/* Writes a file of the folder, which appears complete. */
static void write_file(const char *path, const void *bytes, size_t count)
{
    char full[256], hidden[256];
    snprintf(full, sizeof full, "%s/%s", w->root, path);
    snprintf(hidden, sizeof hidden, "%s/.new", w->root);
    for (char *at = full + strlen(w->root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(full, 0700);
        *at = '/';
    }
    FILE *file = fopen(hidden, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(hidden, full), 0);
}

/* Writes a table of one row of one element, or a part of its bytes. */
static void write_row(const char *path, float value, size_t cut)
{
    char file[80] = "\x93NUMPY\x01\x00\x3a\x00"
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}\n";
    memcpy(file + 68, &value, sizeof value);
    write_file(path, file, 72 - cut);
}

/* Writes a table of one row of two elements. */
static void write_wide_row(const char *path)
{
    static const char file[77] = "\x93NUMPY\x01\x00\x3a\x00"
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}\n";
    write_file(path, file, 76);
}

/* Publishes a version of a model. */
static void publish(const char *name, unsigned version)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%u/table.npy", name, version);
    write_row(path, (float)version, 0);
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Scans the folder and makes a change: of what a request asks for, or of all. */
static bool change(enum bag_change_kind kind, const struct bag_control *control)
{
    struct bag_catalog catalog;
    struct bag_change_plan plan;
    bool ok =
        bag_catalog_scan(&catalog, &w->config, &w->config.options, w->shards, false, &w->problem) &&
        bag_models_attach(&w->models, &catalog, &w->problem);
    bag_catalog_free(&catalog);
    assert_true(ok);
    w->models.num_changes++;
    w->models.num_polls += kind == BAG_CHANGE_POLL;
    bag_change_plan_init(&plan, &w->models, kind, control);
    ok =
        bag_change_plan_decide(&plan, &w->problem) && bag_change_plan_carry_out(&plan, &w->problem);
    if (!ok)
        bag_change_plan_show_bad(&plan);
    bag_change_plan_free(&plan);
    bag_models_detach(&w->models);
    return ok;
}

static void start(void)
{
    if (!change(BAG_CHANGE_START, NULL))
        fail_msg("%s", w->problem.text);
}

/* Polls until files that do not change are trusted. */
static bool poll_twice(void)
{
    return change(BAG_CHANGE_POLL, NULL) && change(BAG_CHANGE_POLL, NULL);
}

/* Loads or unloads a group, as "a b/2 -c": the policy's versions of a, version 2 of b; c is
 * unloaded. */
static bool load(const char *words)
{
    struct bag_control_item items[8] = {{.name = ""}};
    struct bag_control control = {.items = items};
    char text[128], *rest, *word;
    snprintf(text, sizeof text, "%s", words);
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        struct bag_control_item *item = &items[control.count++];
        item->unload = *word == '-';
        sscanf(word + item->unload, "%128[^/]/%20s", item->name, item->version);
    }
    return change(BAG_CHANGE_MODELS, &control);
}

/* Writes what is published as "a/1 READY* b/2 LOADING"; * marks the default version, ! a remark. */
static const char *listed(void)
{
    static char text[512];
    const struct bag_snapshot *now = w->registry.current;
    *text = 0;
    for (size_t i = 0; i < now->count; i++) {
        const struct bag_model *model = now->listed[i]->model;
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%s/%s %s%s%s", i ? " " : "", model->name,
                 model->version, bag_model_state_names[model->state],
                 now->listed[i]->is_default ? "*" : "", now->listed[i]->remark ? "!" : "");
    }
    return text;
}

/* Returns how many lines of the log have both words. */
static size_t count_logged(const char *event, const char *word)
{
    static char text[1 << 18];
    ssize_t bytes = pread(w->log, text, sizeof text - 1, 0);
    size_t count = 0;
    assert_true(bytes >= 0);
    text[bytes] = 0;
    char *rest;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        count += strstr(line, event) && strstr(line, word);
    return count;
}

static uint64_t failed(void)
{
    return w->models.status.now.num_failed;
}

/* ---- polls ----------------------------------------------------------------------------------- */

TEST(test_changes_many_names_at_once)
{
    char name[16];
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "t%u", i);
        publish(name, 1);
    }
    start();
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "t%u", i);
        publish(name, 2);
    }
    uint64_t before = w->registry.generation;
    assert_true(poll_twice());
    assert_int_equal(w->registry.generation, before + 2); /* LOADING, then READY */
    const struct bag_snapshot *now = w->registry.current;
    assert_int_equal(now->count, 1000);
    for (size_t i = 0; i < now->count; i++) {
        const struct bag_model *model = now->models[i];
        assert_int_equal(model->state, BAG_MODEL_READY);
        assert_int_equal(model->version_number, 2);
        assert_true(*(const float *)model->memory->table.rows == 2);
    }
    assert_true(poll_twice());
    assert_int_equal(w->registry.generation, before + 2);
}

TEST(test_passes_over_bad_versions)
{
    publish("a", 1);
    write_row("a/2/table.npy", 2, 1);
    start();
    assert_string_equal(listed(), "a/1 READY* a/2 UNAVAILABLE");
    assert_int_equal(count_logged("model unavailable", "table.npy"), 1);
    assert_true(poll_twice() && load("a"));
    assert_string_equal(listed(), "a/1 READY* a/2 UNAVAILABLE");
    assert_int_equal(count_logged("model unavailable", "table.npy"), 1);
    assert_int_equal(failed(), 1);
    assert_false(load("a/2"));
    assert_int_equal(w->problem.kind, BAG_ERROR_BAD_REQUEST);
    assert_string_equal(listed(), "a/1 READY* a/2 UNAVAILABLE");
    write_row("a/1/table.npy", 1, 1); /* what was read goes on serving */
    assert_true(poll_twice());
    assert_string_equal(listed(), "a/1 READY*! a/2 UNAVAILABLE");
    assert_int_equal(count_logged("not loaded", "a/1"), 1);
    assert_int_equal(failed(), 2);
    publish("a", 2);
    assert_true(poll_twice());
    assert_string_equal(listed(), "a/2 READY*");
}

TEST(test_trusts_no_files_of_a_poll_that_is_repeated)
{
    publish("a", 1);
    start();
    publish("a", 2);
    assert_true(change(BAG_CHANGE_POLL, NULL));
    for (unsigned i = 0; i < 2; i++) { /* with the same number */
        w->models.num_polls--;
        assert_true(change(BAG_CHANGE_POLL, NULL));
        assert_string_equal(listed(), "a/1 READY*");
    }
    w->models.num_polls--;
    write_row("a/2/table.npy", 3, 0);
    assert_true(change(BAG_CHANGE_POLL, NULL) && change(BAG_CHANGE_POLL, NULL));
    assert_string_equal(listed(), "a/2 READY*");
    write_row("a/2/table.npy", 4, 0);
    assert_true(poll_twice());
    write_row("a/2/table.npy", 5, 0); /* after the same poll has trusted what was there before */
    w->models.num_polls--;
    assert_true(change(BAG_CHANGE_POLL, NULL));
    const struct bag_model *a = bag_snapshot_find(w->registry.current, "a", "");
    assert_true(*(const float *)a->memory->table.rows == 4);
}

/* ---- all or none ----------------------------------------------------------------------------- */

TEST(test_undoes_a_group_that_fails)
{
    static const char keys[] = "\x93NUMPY\x01\x00\x38\x00"
                               "{'descr':'<i8','fortran_order':False,'shape':(2,)}     \n"
                               "\7\0\0\0\0\0\0\0\7\0\0\0\0\0\0";
    static const char rows[] = "\x93NUMPY\x01\x00\x38\x00"
                               "{'descr':'<f4','fortran_order':False,'shape':(2, 1)}   \n"
                               "\0\0\0\0\0\0\0";
    publish("a", 1);
    publish("b", 1);
    publish("d", 1);
    start();
    publish("a", 2);
    publish("d", 2);
    write_file("b/2/keys.npy", keys, sizeof keys);
    write_file("b/2/values.npy", rows, sizeof rows);
    write_file("n/1/keys.npy", keys, sizeof keys);
    write_file("n/1/values.npy", rows, sizeof rows);
    const char *bad[] = {"a b/2", "a d/1 b/2", "-a b/2", "b/2 a/1", "a n"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(load(bad[i]));
        if (!strstr(w->problem.text, "key 7"))
            fail_msg("%s: %s", bad[i], w->problem.text);
        const struct bag_model *model = bag_snapshot_find(w->registry.current, "a", "");
        assert_true(model->state == BAG_MODEL_READY && model->version_number == 1);
        const struct bag_name *a = bag_models_find(&w->models, "a"),
                              *d = bag_models_find(&w->models, "d");
        assert_false(a->desired.is_unloaded || a->desired.default_version ||
                     d->desired.default_version || a->is_decided);
    }
    /* The new versions that could have been read are listed as what the group has made of them. */
    assert_string_equal(listed(),
                        "a/1 READY* a/2 UNAVAILABLE b/1 READY* b/2 UNAVAILABLE d/1 READY* "
                        "n/1 UNAVAILABLE");
    assert_true(load("a"));
    assert_true(poll_twice());
    assert_string_equal(listed(),
                        "a/2 READY* b/1 READY* b/2 UNAVAILABLE d/2 READY* n/1 UNAVAILABLE");
}

/* Returns 100 for each table that gets the updates of a model, and 1 for each of its readers. */
static int count_live(const char *name)
{
    const struct bag_updates_stream *stream = bag_updates_find(&w->updates, name);
    const struct bag_live_rows *at;
    const struct bag_live_reader *reader;
    int count = 0;
    SLIST_FOREACH(at, &stream->tables, next)
    {
        count += 100;
        SLIST_FOREACH(reader, &at->readers, next)
        {
            count++;
        }
    }
    return count;
}

/* Asserts that no name and no version has anything left of a change. */
static void check_undone(void)
{
    for (size_t i = 0; i < w->models.num_names; i++) {
        const struct bag_name *name = w->models.names[i];
        assert_false(name->is_decided || name->is_retried || name->desired.default_version);
        for (size_t j = 0; j < name->count; j++) {
            const struct bag_version *version = name->versions[j];
            assert_null(version->next.model);
            assert_null(version->source);
            assert_null(version->stored);
            assert_null(version->made);
            assert_false(version->is_announced);
            assert_int_equal(version->oldest_through, 0);
        }
    }
}

/* Fails for the counters of a/1, which is not served when they are asked for. */
static bool lacks_counters(void *context, size_t slot)
{
    const struct bag_slot *of = &w->registry.slots[slot];
    (void)context;
    return strcmp(of->name, "a") != 0 || strcmp(of->version, "1") != 0;
}

/* A group reads a table, enters a collection into it, closes the updates of a version that it
 * replaces by a retained one, and then cannot be published. */
TEST(test_undoes_all_of_a_group_that_is_not_published)
{
    static const char keeps[] = "{\"keep_versions\": 1}",
                      over[] = "{\"features\": [{\"name\": \"f\", \"model\": \"t\"}]}";
    w->models.updates = &w->updates;
    write_file("a/config.json", keeps, strlen(keeps));
    write_file("c/1/config.json", over, strlen(over));
    publish("a", 1);
    publish("t", 1);
    start();
    write_wide_row("a/2/table.npy");
    assert_true(load("a"));
    const char *before = "a/2 READY* c/1 READY* t/1 READY*";
    assert_string_equal(listed(), before);
    const int live_a = count_live("a"), live_t = count_live("t");
    assert_int_equal(live_a, 202); /* a/1 is retained */
    assert_int_equal(live_t, 102); /* the table's own model, and the collection's feature */
    publish("t", 2);
    w->registry.on_slot = lacks_counters;
    assert_false(load("t c a/1"));
    assert_int_equal(w->problem.kind, BAG_ERROR_NO_MEMORY);
    assert_string_equal(listed(), "a/2 READY* c/1 READY* t/1 READY* t/2 UNAVAILABLE");
    check_undone();
    const struct bag_model *a = bag_snapshot_find(w->registry.current, "a", "");
    assert_null(a->memory->live->closed_by);
    assert_int_equal(count_live("a"), live_a);
    assert_int_equal(count_live("t"), live_t);
    w->registry.on_slot = NULL;
    assert_true(load("t c a/1"));
    assert_string_equal(listed(), "a/1 READY* c/1 READY* t/2 READY*");
}

TEST(test_goes_on_after_a_load_that_is_cancelled)
{
    publish("a", 1);
    start();
    publish("a", 2);
    publish("b", 1);
    atomic_store(&w->models.cancelled, true);
    assert_false(load("a b"));
    assert_int_equal(w->problem.kind, BAG_ERROR_DRAINING);
    assert_string_equal(listed(), "a/1 READY* a/2 UNAVAILABLE b/1 UNAVAILABLE");
    assert_int_equal(count_logged("model unavailable", "stopping"), 2);
    atomic_store(&w->models.cancelled, false);
    assert_true(load("a b"));
    assert_string_equal(listed(), "a/2 READY* b/1 READY*");
}

TEST(test_publishes_again_what_cannot_be_unloaded_first)
{
    static const char settings[] = "{\"reload\": \"unload_first\"}";
    write_file("a/config.json", settings, strlen(settings));
    publish("a", 1);
    start();
    struct bag_model *read =
        bag_model_retain(bag_models_find(&w->models, "a")->versions[0]->now.model);
    write_row("a/1/table.npy", 2, 0);
    atomic_store(&w->models.cancelled, true); /* instead of waiting for the request that reads it */
    assert_false(load("a"));
    assert_int_equal(w->problem.kind, BAG_ERROR_DRAINING);
    assert_string_equal(listed(), "a/1 READY*");
    assert_ptr_equal(bag_snapshot_find(w->registry.current, "a", ""), read);
    atomic_store(&w->models.cancelled, false);
    bag_model_release(read);
    assert_true(load("a"));
    assert_string_equal(listed(), "a/1 READY*");
}

/* ---- collections ----------------------------------------------------------------------------- */

TEST(test_passes_over_collections_that_do_not_fit)
{
    static const char good[] = "{\"features\": [{\"name\": \"f\", \"model\": \"t\"}]}",
                      bad[] = "{\"features\": [{\"name\": \"f\", \"model\": \"t\", "
                              "\"default_index\": 100}]}";
    publish("t", 1);
    write_file("c/1/config.json", good, strlen(good));
    start();
    write_file("c/2/config.json", bad, strlen(bad));
    const char *want = "c/1 READY* c/2 UNAVAILABLE t/1 READY*";
    assert_true(poll_twice());
    assert_string_equal(listed(), want);
    assert_true(load("c"));
    assert_string_equal(listed(), want);
    publish("t", 2); /* the collection follows its table */
    assert_true(poll_twice());
    assert_string_equal(listed(), "c/1 READY* c/2 UNAVAILABLE t/2 READY*");
    const struct bag_model *c = bag_snapshot_find(w->registry.current, "c", ""),
                           *t = bag_snapshot_find(w->registry.current, "t", "");
    assert_ptr_equal(c->features[0].model, t);
    assert_false(load("-t"));
    assert_int_equal(w->problem.kind, BAG_ERROR_CONFLICT);
    assert_true(load("-t -c"));
    assert_string_equal(listed(), "c/1 UNAVAILABLE c/2 UNAVAILABLE t/2 UNAVAILABLE");
}

/* ---- what is remembered ---------------------------------------------------------------------- */

TEST(test_forgets_what_is_gone)
{
    publish("a", 1);
    publish("b", 1);
    start();
    char path[128];
    snprintf(path, sizeof path, "%s/b", w->root);
    assert_true(load("-b"));
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    assert_true(poll_twice());
    assert_string_equal(listed(), "a/1 READY* b/1 UNAVAILABLE"); /* as long as it is unloaded */
    snprintf(path, sizeof path, "%s/a/2", w->root);
    write_row("a/2/table.npy", 2, 1);
    assert_true(poll_twice());
    assert_int_equal(bag_models_find(&w->models, "a")->count, 2);
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    assert_true(poll_twice());
    assert_int_equal(bag_models_find(&w->models, "a")->count, 1);
}
