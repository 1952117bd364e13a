/* Which versions are served: by policies, and by what was asked for. */
#include "testing.h"

#include "server/models/change.h"

#define MAX_VERSIONS 8

/* The versions 1, 2, ... `count`, of which those in `bad` cannot be served. */
struct versions {
    size_t count;
    uint64_t bad; /* bit i: version i + 1 */
    unsigned asked[MAX_VERSIONS];
};

static bool is_good(void *context, size_t position)
{
    struct versions *versions = context;
    versions->asked[position]++;
    return !(versions->bad >> position & 1);
}

static uint64_t choose(struct versions *versions, const struct bag_version_policy *policy,
                       const struct bag_wish *wish, uint64_t *preferred)
{
    uint64_t numbers[MAX_VERSIONS], chosen_bits = 0;
    bool chosen[MAX_VERSIONS];
    for (size_t i = 0; i < versions->count; i++)
        numbers[i] = i + 1;
    memset(versions->asked, 0, sizeof versions->asked);
    const struct bag_versions there = {numbers, versions->count, is_good, versions};
    size_t position = bag_versions_choose(&there, policy, wish, chosen);
    *preferred = position == SIZE_MAX ? 0 : numbers[position];
    for (size_t i = 0; i < versions->count; i++) {
        assert_true(versions->asked[i] <= 1);
        chosen_bits |= (uint64_t)chosen[i] << i;
    }
    return chosen_bits;
}

static void expect(struct versions versions, struct bag_version_policy policy, struct bag_wish wish,
                   uint64_t chosen, uint64_t preferred)
{
    uint64_t found;
    assert_int_equal(choose(&versions, &policy, &wish, &found), chosen);
    assert_int_equal(found, preferred);
}

#define LATEST(n)                                                         \
    (struct bag_version_policy)                                           \
    {                                                                     \
        .kind = BAG_VERSIONS_LATEST, .numbers = {n}, .count = (n) ? 1 : 0 \
    }
#define ALL                                  \
    (struct bag_version_policy)              \
    {                                        \
        .kind = BAG_VERSIONS_ALL, .count = 0 \
    }
#define FIVE(bits)                \
    (struct versions)             \
    {                             \
        .count = 5, .bad = (bits) \
    }
#define NOTHING       \
    (struct bag_wish) \
    {                 \
        .newest = 0   \
    }

static void test_policies(void **state)
{
    struct bag_version_policy specific = {
        .kind = BAG_VERSIONS_SPECIFIC, .numbers = {2, 4, 9}, .count = 3};
    (void)state;
    expect(FIVE(0), LATEST(0), NOTHING, 0x10, 5);
    expect(FIVE(0), LATEST(1), NOTHING, 0x10, 5);
    expect(FIVE(0), LATEST(3), NOTHING, 0x1c, 5);
    expect(FIVE(0), LATEST(9), NOTHING, 0x1f, 5);
    expect(FIVE(0), ALL, NOTHING, 0x1f, 5);
    expect(FIVE(0), specific, NOTHING, 0x0a, 4);
    expect(FIVE(0x10), LATEST(1), NOTHING, 0x08, 4);
    expect(FIVE(0x18), LATEST(2), NOTHING, 0x06, 3);
    expect(FIVE(0x08), specific, NOTHING, 0x02, 2);
    expect(FIVE(0x1f), ALL, NOTHING, 0, 0);
    expect((struct versions){.count = 0}, ALL, NOTHING, 0, 0);
}

static struct bag_wish wish_for(const char *version, bool unload, uint64_t newest)
{
    struct bag_wish wish = {.newest = 0};
    struct bag_control_item item = {.name = "items", .unload = unload};
    struct bag_problem problem;
    strcpy(item.version, version);
    assert_true(bag_wish_apply(&wish, &item, newest, &problem));
    return wish;
}

static void test_wishes(void **state)
{
    (void)state;
    expect(FIVE(0), LATEST(1), wish_for("3", false, 5), 0x04, 3);
    expect(FIVE(0), LATEST(2), wish_for("3", false, 5), 0x06, 3);
    expect(FIVE(0), ALL, wish_for("3", false, 5), 0x1f, 3);
    expect(FIVE(0x04), ALL, wish_for("3", false, 5), 0x1b, 5);
    expect(FIVE(0), ALL, wish_for("", true, 5), 0, 0);
    expect(FIVE(0), ALL, wish_for("5", true, 5), 0x0f, 4);
    expect(FIVE(0), LATEST(1), wish_for("5", true, 5), 0x08, 4);
    expect(FIVE(0), LATEST(1), wish_for("", false, 5), 0x10, 5);
}

static void test_wishes_follow_each_other(void **state)
{
    struct bag_wish wish = wish_for("5", true, 5);
    struct bag_control_item item = {.name = "items", .version = "4", .unload = true};
    struct bag_problem problem;
    (void)state;
    assert_true(bag_wish_apply(&wish, &item, 5, &problem));
    assert_true(bag_wish_apply(&wish, &item, 5, &problem));
    expect(FIVE(0), ALL, wish, 0x07, 3);
    item = (struct bag_control_item){.name = "items", .version = "5"};
    assert_true(bag_wish_apply(&wish, &item, 5, &problem));
    expect(FIVE(0), ALL, wish, 0x17, 5);
    item = (struct bag_control_item){.name = "items"};
    assert_true(bag_wish_apply(&wish, &item, 5, &problem));
    expect(FIVE(0), ALL, wish, 0x1f, 5);
}

static void test_room_for_unloaded_versions(void **state)
{
    struct bag_wish wish = {.newest = 0};
    struct bag_control_item item = {.name = "items", .unload = true};
    struct bag_problem problem;
    (void)state;
    for (int i = 1; i <= BAG_WISH_MAX_UNLOADED; i++) {
        snprintf(item.version, sizeof item.version, "%d", i);
        assert_true(bag_wish_apply(&wish, &item, 1, &problem));
    }
    strcpy(item.version, "1");
    assert_true(bag_wish_apply(&wish, &item, 1, &problem));
    strcpy(item.version, "1000");
    assert_false(bag_wish_apply(&wish, &item, 1, &problem));
    assert_int_equal(problem.kind, BAG_ERROR_CONFLICT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_wishes),
        cmocka_unit_test(test_wishes_follow_each_other),
        cmocka_unit_test(test_room_for_unloaded_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
