/* Snapshots of models: what they hold, how requests hold them, and when they are freed. */
#include "memory_fixture.h"
#include "testing.h"

#include "server/models/snapshot.h"

/* ---- making ---------------------------------------------------------------------------------- */

static struct bag_model *make(const char *name, const char *version)
{
    struct bag_rules rules = {.default_index = -1};
    struct bag_stored_table *stored =
        bag_stored_table_make(&(struct bag_table_memory){.rank = 1}, 0);
    assert_non_null(stored);
    struct bag_model *model = bag_model_of_table(name, version, &rules, stored, NULL);
    assert_non_null(model);
    bag_stored_table_drop(stored);
    return model;
}

/* A snapshot that alone holds the models. */
static struct bag_snapshot *snapshot_of(struct bag_model *const *models, size_t count)
{
    struct bag_listed listed[16] = {{.model = NULL}};
    assert_in_range(count, 0, 16);
    for (size_t i = 0; i < count; i++)
        listed[i].model = models[i];
    struct bag_snapshot *snapshot = bag_snapshot_make(listed, count, 4);
    assert_non_null(snapshot);
    for (size_t i = 0; i < count; i++)
        bag_model_release(models[i]);
    return snapshot;
}

static void publish(struct bag_registry *registry, struct bag_snapshot *snapshot)
{
    struct bag_problem problem;
    if (!bag_registry_publish(registry, snapshot, &problem))
        fail_msg("%s", problem.text);
}

/* ---- finding --------------------------------------------------------------------------------- */

static void finds(const struct bag_snapshot *snapshot, const char *name, const char *version,
                  const char *found)
{
    const struct bag_model *model = bag_snapshot_find(snapshot, name, version);
    if (!found) {
        assert_null(model);
        return;
    }
    assert_non_null(model);
    assert_string_equal(model->name, name);
    assert_string_equal(model->version, found);
}

TEST(test_finds_versions)
{
    struct bag_model *models[] = {make("users", "2"), make("items", "10"), make("items", "9"),
                                  make("items", "1"), make("item", "3"),   make("users", "1")};
    struct bag_snapshot *snapshot = snapshot_of(models, COUNT_OF(models));
    size_t count;
    finds(snapshot, "items", "", "10");
    finds(snapshot, "items", "9", "9");
    finds(snapshot, "items", "1", "1");
    finds(snapshot, "items", "2", NULL);
    finds(snapshot, "items", "010", NULL);
    finds(snapshot, "item", "", "3");
    finds(snapshot, "users", "", "2");
    finds(snapshot, "", "", NULL);
    finds(snapshot, "zebras", "", NULL);
    struct bag_model *const *versions = bag_snapshot_versions(snapshot, "items", &count);
    assert_int_equal(count, 3);
    assert_string_equal(versions[0]->version, "1");
    assert_string_equal(versions[1]->version, "9");
    assert_string_equal(versions[2]->version, "10");
    assert_null(bag_snapshot_versions(snapshot, "itemsx", &count));
    assert_int_equal(count, 0);
    assert_null(snapshot->not_ready);
    bag_snapshot_free(snapshot);
}

TEST(test_an_empty_snapshot_finds_nothing)
{
    struct bag_snapshot *snapshot = snapshot_of(NULL, 0);
    finds(snapshot, "items", "", NULL);
    assert_null(snapshot->not_ready);
    bag_snapshot_free(snapshot);
}

/* A request without a version gets the highest version that answers requests, or else the highest
 * version. */
TEST(test_the_default_version_is_ready)
{
    struct bag_model *models[] = {
        make("a", "1"), make("a", "2"),
        bag_model_without_table("a", "3", BAG_MODEL_UNAVAILABLE, "half copied"),
        bag_model_without_table("b", "1", BAG_MODEL_LOADING, "soon"),
        bag_model_without_table("b", "2", BAG_MODEL_UNLOADING, "late")};
    struct bag_snapshot *snapshot = snapshot_of(models, COUNT_OF(models));
    finds(snapshot, "a", "", "2");
    finds(snapshot, "a", "3", "3");
    finds(snapshot, "b", "", "2");
    assert_int_equal(bag_snapshot_find(snapshot, "a", "3")->state, BAG_MODEL_UNAVAILABLE);
    assert_string_equal(bag_snapshot_find(snapshot, "a", "3")->reason, "half copied");
    assert_string_equal(bag_snapshot_find(snapshot, "a", "2")->reason, "");
    assert_string_equal(snapshot->not_ready->name, "b");
    bag_snapshot_free(snapshot);
}

TEST(test_features_are_found_by_name)
{
    static const char *const names[] = {"user", "a", "user.recent", "user.", "use", "zz"};
    struct bag_feature features[COUNT_OF(names)] = {{.name = NULL}};
    struct bag_model *items = make("items", "2");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        features[i].name = (char *)(uintptr_t)names[i];
        features[i].model = items;
        features[i].rules.default_index = (int64_t)i;
    }
    struct bag_model *model = bag_model_of_features("c", "1", features, COUNT_OF(names));
    assert_non_null(model);
    assert_true(bag_model_is_collection(model));
    bag_model_release(items); /* the collection holds it */
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const struct bag_feature *feature = bag_model_feature(model, names[i], strlen(names[i]));
        assert_ptr_equal(feature, &model->features[i]);
        assert_int_equal(feature->rules.default_index, i);
        assert_ptr_equal(feature->memory, items->memory);
        assert_string_equal(feature->model->name, "items");
    }
    assert_ptr_equal(bag_model_feature(model, "user.recent", 4), &model->features[0]);
    assert_null(bag_model_feature(model, "a\0b", 3));
    assert_null(bag_model_feature(model, "", 0));
    assert_null(bag_model_feature(model, "zzz", 3));
    assert_ptr_equal(bag_model_feature(items, BAG_EMBEDDINGS, strlen(BAG_EMBEDDINGS)),
                     &items->features[0]);
    bag_model_release(model);
}

/* ---- readers --------------------------------------------------------------------------------- */

static void count_call(void *context)
{
    ++*(int *)context;
}

/* A registry with a first snapshot of one model, and a reader of it. */
struct world {
    struct bag_registry registry;
    struct bag_reader reader;
    int woken, left;
};

static void set_up(struct world *world)
{
    struct bag_model *models[] = {make("a", "1")};
    memset(world, 0, sizeof *world);
    assert_true(bag_registry_init(&world->registry, 4));
    world->registry.on_left = count_call;
    world->registry.left_context = &world->left;
    publish(&world->registry, snapshot_of(models, 1));
    assert_true(bag_reader_open(&world->reader, &world->registry, count_call, &world->woken));
}

static void tear_down(struct world *world)
{
    bag_reader_close(&world->reader);
    bag_registry_free(&world->registry);
}

static void publish_one(struct world *world, const char *version)
{
    struct bag_model *models[] = {make("a", version)};
    publish(&world->registry, snapshot_of(models, 1));
}

/* A request keeps the snapshot that it began with; the next one has the new one; the old one is
 * left with its last request, and only then freed. */
TEST(test_a_request_keeps_its_snapshot)
{
    struct world world;
    set_up(&world);
    struct bag_snapshot *first = bag_snapshot_acquire(&world.reader);
    assert_ptr_equal(bag_snapshot_acquire(&world.reader), first);
    publish_one(&world, "2");
    assert_int_equal(world.woken, 1);
    struct bag_snapshot *second = bag_snapshot_acquire(&world.reader);
    assert_ptr_not_equal(second, first);
    assert_true(second->generation > first->generation);
    finds(first, "a", "", "1");
    finds(second, "a", "", "2");
    bag_snapshot_release(&world.reader, first);
    assert_int_equal(world.left, 0);
    assert_int_equal(bag_registry_collect(&world.registry), 0);
    finds(first, "a", "", "1");
    bag_snapshot_release(&world.reader, first);
    assert_int_equal(world.left, 1);
    assert_int_equal(bag_registry_collect(&world.registry), 1);
    assert_int_equal(bag_registry_collect(&world.registry), 0);
    bag_snapshot_release(&world.reader, second);
    assert_int_equal(world.left, 1); /* the current one is not left */
    tear_down(&world);
}

/* An idle loop moves on when it is woken, past snapshots that it never read. */
TEST(test_an_idle_reader_moves_on)
{
    struct world world;
    set_up(&world);
    publish_one(&world, "2");
    publish_one(&world, "3");
    assert_int_equal(world.woken, 2);
    assert_int_equal(world.left, 0);
    bag_reader_move(&world.reader);
    assert_int_equal(world.left, 2);
    assert_int_equal(bag_registry_collect(&world.registry), 2);
    bag_reader_move(&world.reader);
    assert_int_equal(world.left, 2);
    tear_down(&world);
}

/* The last of several readers leaves it to be freed; one that is closed counts no more. */
TEST(test_all_readers_must_leave)
{
    struct world world;
    struct bag_reader second, third, beyond[2];
    set_up(&world);
    assert_true(bag_reader_open(&second, &world.registry, count_call, &world.woken));
    assert_true(bag_reader_open(&third, &world.registry, count_call, &world.woken));
    assert_true(bag_reader_open(&beyond[0], &world.registry, count_call, &world.woken));
    assert_false(bag_reader_open(&beyond[1], &world.registry, count_call, &world.woken));
    bag_reader_close(&beyond[0]);
    struct bag_snapshot *held = bag_snapshot_acquire(&second);
    publish_one(&world, "2");
    assert_int_equal(world.woken, 3);
    bag_reader_move(&world.reader);
    bag_reader_move(&second);
    bag_reader_close(&third);
    assert_int_equal(world.left, 0);
    bag_snapshot_release(&second, held);
    assert_int_equal(world.left, 1);
    assert_int_equal(bag_registry_collect(&world.registry), 1);
    bag_reader_close(&second);
    publish_one(&world, "3");
    assert_int_equal(world.woken, 4); /* once more, by the one reader that is left */
    tear_down(&world);
}

/* A model that both snapshots have is freed with the second of them. */
TEST(test_snapshots_share_models)
{
    struct world world;
    set_up(&world);
    struct bag_model *shared = bag_snapshot_acquire(&world.reader)->models[0];
    struct bag_model *models[] = {shared, make("b", "1")};
    shared->holders++; /* this test's, which snapshot_of drops */
    publish(&world.registry, snapshot_of(models, 2));
    bag_snapshot_release(&world.reader, world.reader.at);
    bag_reader_move(&world.reader);
    assert_int_equal(bag_registry_collect(&world.registry), 1);
    assert_ptr_equal(bag_snapshot_find(world.reader.at, "a", ""), shared);
    assert_int_equal(shared->holders, 1);
    tear_down(&world);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static struct {
    size_t begun[8], count;
    bool fail;
} slots;

static bool begin_slot(void *context, size_t slot)
{
    (void)context;
    slots.begun[slots.count++] = slot;
    return !slots.fail;
}

static size_t slot_of(struct world *world, const char *name, const char *version)
{
    return bag_snapshot_find(atomic_load(&world->registry.current), name, version)->slot;
}

/* A name and version keeps its slot while others come and go, even if it is loaded again. Another
 * version gets a slot only when no snapshot uses the slot any more. */
TEST(test_slots_are_stable)
{
    struct world world;
    struct bag_problem problem;
    memset(&slots, 0, sizeof slots);
    set_up(&world);
    world.registry.on_slot = begin_slot;
    assert_int_equal(slot_of(&world, "a", "1"), 0);
    struct bag_model *both[] = {make("a", "2"), make("a", "1")};
    publish(&world.registry, snapshot_of(both, 2));
    assert_int_equal(slot_of(&world, "a", "1"), 0);
    assert_int_equal(slot_of(&world, "a", "2"), 1);
    publish_one(&world, "2");
    assert_int_equal(slot_of(&world, "a", "2"), 1);
    struct bag_model *early[] = {make("a", "2"), make("a", "3")};
    publish(&world.registry, snapshot_of(early, 2)); /* 0 is still read */
    assert_int_equal(slot_of(&world, "a", "3"), 2);
    bag_reader_move(&world.reader);
    bag_registry_collect(&world.registry);
    struct bag_model *late[] = {make("a", "2"), make("a", "4")};
    publish(&world.registry, snapshot_of(late, 2));
    assert_int_equal(slot_of(&world, "a", "4"), 0);
    assert_int_equal(slots.count, 3);
    assert_int_equal(slots.begun[2], 0);
    slots.fail = true;
    struct bag_model *last[] = {make("a", "2"), make("a", "5")};
    struct bag_snapshot *rejected = snapshot_of(last, 2);
    assert_false(bag_registry_publish(&world.registry, rejected, &problem));
    assert_string_equal(problem.text, "model 'a' version 5: no memory for its counters");
    bag_snapshot_free(rejected);
    assert_int_equal(slot_of(&world, "a", "4"), 0);
    tear_down(&world);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define THREADS   3
#define SNAPSHOTS 300

static atomic_bool stop;

/* A loop: holds up to 8 requests at a time, each of which sees one version in all models. */
static void *read_on(void *context)
{
    struct bag_reader *reader = context;
    struct bag_snapshot *held[8] = {NULL};
    for (size_t i = 0; !atomic_load(&stop); i++) {
        struct bag_snapshot **request = &held[i * 7 % 8];
        if (*request) {
            uint64_t version = bag_snapshot_find(*request, "a", "")->version_number;
            assert_int_equal(bag_snapshot_find(*request, "b", "")->version_number, version);
            assert_true(*(const uint64_t *)(*request)->models[0]->memory->mapping == version);
            bag_snapshot_release(reader, *request);
        }
        *request = bag_snapshot_acquire(reader);
    }
    for (size_t i = 0; i < 8; i++) {
        if (held[i])
            bag_snapshot_release(reader, held[i]);
    }
    bag_reader_close(reader);
    return NULL;
}

static void ignore(void *context)
{
    (void)context;
}

/* A model whose memory holds its version. */
static struct bag_model *make_full(const char *name, uint64_t version)
{
    char text[24];
    struct bag_rules rules = {.default_index = -1};
    struct bag_table_memory memory;
    struct bag_problem problem;
    snprintf(text, sizeof text, "%llu", (unsigned long long)version);
    assert_true(create_table(BAG_U64, 1, (int64_t[]){1}, &memory, &problem));
    memcpy(memory.mapping, &version, sizeof version);
    struct bag_stored_table *stored = bag_stored_table_make(&memory, 0);
    assert_non_null(stored);
    struct bag_model *model = bag_model_of_table(name, text, &rules, stored, NULL);
    assert_non_null(model);
    bag_stored_table_drop(stored);
    return model;
}

static void publish_full(struct bag_registry *registry, uint64_t version)
{
    struct bag_model *models[] = {make_full("a", version), make_full("b", version)};
    publish(registry, snapshot_of(models, 2));
}

TEST(test_threads_read_while_snapshots_change)
{
    struct bag_registry registry;
    struct bag_reader readers[THREADS];
    pthread_t threads[THREADS];
    size_t freed = 0;
    atomic_store(&stop, false);
    assert_true(bag_registry_init(&registry, THREADS));
    publish_full(&registry, 1);
    for (int i = 0; i < THREADS; i++) {
        assert_true(bag_reader_open(&readers[i], &registry, ignore, NULL));
        assert_int_equal(pthread_create(&threads[i], NULL, read_on, &readers[i]), 0);
    }
    for (uint64_t version = 2; version <= SNAPSHOTS; version++) {
        publish_full(&registry, version);
        freed += bag_registry_collect(&registry);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    freed += bag_registry_collect(&registry);
    assert_int_equal(freed, SNAPSHOTS - 1);
    bag_registry_free(&registry);
}
