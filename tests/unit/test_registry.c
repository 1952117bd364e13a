/* Models by name and version: order, the highest version, what is not there. */
#include "testing.h"

#include "server/table/registry.h"

static void add(struct bag_registry *registry, const char *name, const char *version)
{
    struct bag_rules rules = {.default_index = -1};
    struct bag_table_memory memory = {.rank = 1};
    assert_true(bag_registry_add(registry, name, version, &rules, &memory));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_versions),
        cmocka_unit_test(test_an_empty_registry_finds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
