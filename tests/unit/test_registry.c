/* Models by name and version: order, the highest version, what is not there. */
#include "testing.h"

#include "server/table/registry.h"

static void add(struct bag_registry *registry, const char *name, const char *version)
{
    struct bag_rules rules = {.default_index = -1};
    struct bag_table_memory memory = {.rank = 1};
    assert_true(bag_registry_add(registry, name, version, &rules, &memory, NULL));
}

static void finds(const struct bag_registry *registry, const char *name, const char *version,
                  const char *found)
{
    const struct bag_model *model = bag_registry_find(registry, name, version);
    if (!found) {
        assert_null(model);
        return;
    }
    assert_non_null(model);
    assert_string_equal(model->name, name);
    assert_string_equal(model->version, found);
}

static void test_finds_versions(void **state)
{
    struct bag_registry registry;
    size_t count;
    (void)state;
    assert_true(bag_registry_init(&registry, 6));
    add(&registry, "users", "2");
    add(&registry, "items", "10");
    add(&registry, "items", "9");
    add(&registry, "items", "1");
    add(&registry, "item", "3");
    add(&registry, "users", "1");
    finds(&registry, "items", "", "10");
    finds(&registry, "items", "9", "9");
    finds(&registry, "items", "1", "1");
    finds(&registry, "items", "2", NULL);
    finds(&registry, "items", "010", NULL);
    finds(&registry, "item", "", "3");
    finds(&registry, "users", "", "2");
    finds(&registry, "", "", NULL);
    finds(&registry, "zebras", "", NULL);
    const struct bag_model *models = bag_registry_versions(&registry, "items", &count);
    assert_int_equal(count, 3);
    assert_string_equal(models[0].version, "1");
    assert_string_equal(models[1].version, "9");
    assert_string_equal(models[2].version, "10");
    assert_null(bag_registry_versions(&registry, "itemsx", &count));
    assert_int_equal(count, 0);
    bag_registry_free(&registry);
}

static void test_an_empty_registry_finds_nothing(void **state)
{
    struct bag_registry registry;
    (void)state;
    assert_true(bag_registry_init(&registry, 0));
    finds(&registry, "items", "", NULL);
    bag_registry_free(&registry);
}

static void test_features_are_found_by_name(void **state)
{
    static const char *const names[] = {"user", "a", "user.recent", "user.", "use", "zz"};
    struct bag_feature features[COUNT_OF(names)] = {{.name = NULL}};
    struct bag_registry registry;
    (void)state;
    assert_true(bag_registry_init(&registry, 3));
    add(&registry, "items", "1");
    add(&registry, "items", "2");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        features[i].name = (char *)(uintptr_t)names[i];
        features[i].table = "items";
        features[i].rules.default_index = (int64_t)i;
    }
    assert_true(bag_registry_add_collection(&registry, "c", "1", features, COUNT_OF(names)));
    const struct bag_model *model = bag_registry_find(&registry, "c", "");
    assert_true(bag_model_is_collection(model));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const struct bag_feature *feature = bag_model_feature(model, names[i], strlen(names[i]));
        assert_ptr_equal(feature, &model->features[i]);
        assert_int_equal(feature->rules.default_index, i);
        assert_ptr_equal(feature->memory, bag_registry_find(&registry, "items", "2")->memory);
    }
    assert_ptr_equal(bag_model_feature(model, "user.recent", 4), &model->features[0]);
    assert_null(bag_model_feature(model, "a\0b", 3));
    assert_null(bag_model_feature(model, "", 0));
    assert_null(bag_model_feature(model, "zzz", 3));
    const struct bag_model *items = bag_registry_find(&registry, "items", "1");
    assert_ptr_equal(bag_model_feature(items, BAG_EMBEDDINGS, strlen(BAG_EMBEDDINGS)),
                     &items->features[0]);
    bag_registry_free(&registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_versions),
        cmocka_unit_test(test_an_empty_registry_finds_nothing),
        cmocka_unit_test(test_features_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
