/* What is to become of versions: from what there is, what serves and what is asked for, to steps.
 *
 * A version is written as its number, its files and what is in memory of it:
 *
 *   n new, b bad, B bad and named by a configuration, m still written to, s those that serve,
 *   h those that are held, g gone; then + where it serves, ! where it does and lacks
 *   updates, and ~ where it is held
 *
 * and a step as the number and . none, S stay, R return, M make, X reject; then * for the default
 * version. What was asked for before is "VERSION of NEWEST", "-VERSION" or "-" for unloaded. */
#include "testing.h"

#include "server/models/steps.h"

#include <inttypes.h>

#define MAX_VERSIONS 8

static const char file_letters[] = "gbmshn"; /* as in enum bag_files */
static const char step_letters[] = ".SRMX";  /* as in enum bag_step */
static const char *const outcome_names[] = {
#define BAG_X(outcome) #outcome,
    BAG_PLAN_OUTCOMES(BAG_X)
#undef BAG_X
};

/* Nothing looks into them. */
static struct bag_source *some_source;
static struct bag_model *const some_model = (struct bag_model *)(void *)&some_source;

/* What looking at the versions finds, and how often each was looked at. */
struct world {
    struct bag_version_plan versions[MAX_VERSIONS];
    enum bag_files files[MAX_VERSIONS];
    bool is_named[MAX_VERSIONS], is_behind[MAX_VERSIONS];
    unsigned looks[MAX_VERSIONS];
    size_t count;
};

static void look(void *context, struct bag_version_plan *version)
{
    struct world *world = context;
    size_t i = (size_t)(version - world->versions);
    assert_non_null(version->source);
    version->files = world->files[i];
    version->is_named = world->is_named[i];
    version->is_behind = world->is_behind[i];
    world->looks[i]++;
}

static struct world read_versions(const char *text)
{
    struct world world = {.count = 0};
    while (*text) {
        char *end;
        struct bag_version_plan *version = &world.versions[world.count];
        version->number = strtoull(text, &end, 10);
        char letter = *end == 'B' ? 'b' : *end;
        world.is_named[world.count] = *end == 'B';
        world.files[world.count] = (enum bag_files)(strchr(file_letters, letter) - file_letters);
        version->source = letter != 'g' ? &some_source : NULL;
        for (end++; *end && *end != ' '; end++) {
            world.is_behind[world.count] |= *end == '!';
            if (*end == '+' || *end == '!')
                version->ready = some_model;
            if (*end == '~')
                version->held = some_model;
        }
        text = end + strspn(end, " ");
        world.count++;
    }
    return world;
}

static struct bag_version_policy read_policy(const char *text)
{
    struct bag_version_policy policy = {.kind = BAG_VERSIONS_ALL};
    if (strcmp(text, "all") == 0)
        return policy;
    policy.kind = strncmp(text, "latest", 6) == 0 ? BAG_VERSIONS_LATEST : BAG_VERSIONS_SPECIFIC;
    for (text = strchr(text, ' '); text; text = strchr(text + 1, ' '))
        policy.numbers[policy.count++] = atoll(text);
    return policy;
}

static struct bag_control_item read_item(const char *text)
{
    struct bag_control_item item = {.name = "t", .unload = strncmp(text, "unload", 6) == 0};
    const char *number = strchr(text, ' ');
    if (number)
        strcpy(item.version, number + 1);
    return item;
}

static struct bag_wish read_wish(const char *text)
{
    struct bag_wish wish = {.is_unloaded = strcmp(text, "-") == 0};
    if (*text == '-' && text[1])
        wish.unloaded[wish.num_unloaded++] = strtoull(text + 1, NULL, 10);
    else if (*text && *text != '-')
        sscanf(text, "%" SCNu64 " of %" SCNu64, &wish.default_version, &wish.newest);
    return wish;
}

/* "1. 2M*", or the outcome with the culprit's number: "BAD 2". */
static void write_plan(const struct bag_name_plan *plan, enum bag_plan_outcome outcome, char *text)
{
    *text = 0;
    if (outcome != BAG_PLAN_STEPS) {
        text += sprintf(text, "%s", outcome_names[outcome]);
        if (plan->culprit != SIZE_MAX)
            sprintf(text, " %llu", (unsigned long long)plan->versions[plan->culprit].number);
        return;
    }
    for (size_t i = 0; i < plan->count; i++)
        text +=
            sprintf(text, "%s%llu%c%s", i ? " " : "", (unsigned long long)plan->versions[i].number,
                    step_letters[plan->versions[i].step], i == plan->preferred ? "*" : "");
}

struct plan_case {
    enum bag_change_kind kind;
    const char *policy, *there, *wish, *item, *want;
};

#define START  BAG_CHANGE_START
#define MODELS BAG_CHANGE_MODELS
#define POLL   BAG_CHANGE_POLL
#define AGAIN  BAG_CHANGE_CONFIGURATION

static const struct plan_case cases[] = {
    /* The start: what the policy names, of what is good. */
    {START, "latest 1", "1n 3n 7n", "", NULL, "1. 3. 7M*"},
    {START, "latest", "1n 3n 7n", "", NULL, "1. 3. 7M*"},
    {START, "latest 2", "1n 3n 7n", "", NULL, "1. 3M 7M*"},
    {START, "latest 9", "1n 3n 7n", "", NULL, "1M 3M 7M*"},
    {START, "all", "1n 3n 7n", "", NULL, "1M 3M 7M*"},
    {START, "specific 1 3 9", "1n 3n 7n", "", NULL, "1M 3M* 7."},
    {START, "latest 1", "1n 2n 3b 4b", "", NULL, "1. 2M* 3X 4X"},
    {START, "latest 1", "1b 2n", "", NULL, "1. 2M*"},
    {START, "latest 2", "1n 2b 3n", "", NULL, "1M 2X 3M*"},
    {START, "specific 1", "1n 2b", "", NULL, "1M* 2."},
    {START, "latest 1", "1b", "", NULL, "1X"},
    {START, "latest 1", "1n 2B", "", NULL, "NAMED_BAD 2"},
    {START, "latest 1", "1B 2n", "", NULL, "1. 2M*"},
    {START, "all", "", "", NULL, ""},

    /* A load: what is in the folder now. */
    {MODELS, "latest 1", "1s+ 2n", "", "load", "1. 2M*"},
    {MODELS, "latest 1", "1s+", "", "load", "1S*"},
    {MODELS, "latest 1", "1n+", "", "load", "1M*"},
    {MODELS, "latest 1", "1s+ 2b", "", "load", "1S* 2X"},
    {MODELS, "latest 1", "1s+ 2b~", "", "load", "1S* 2X"},
    {MODELS, "latest 1", "1s+ 2B", "", "load", "1S* 2X"},
    {MODELS, "latest 1", "1s+ 2n", "", "load 1", "1S* 2."},
    {MODELS, "latest 1", "1n 2s+", "", "load 1", "1M* 2."},
    {MODELS, "latest 1", "1h~ 2s+", "", "load 1", "1R* 2."},
    {MODELS, "latest 1", "1n~ 2s+", "", "load 1", "1M* 2."},
    {MODELS, "latest 1", "1g~ 2s+", "", "load 1", "1R* 2."},
    {MODELS, "latest 2", "1n 2s+ 3s+", "", "load 2", "1M 2S* 3."},
    {MODELS, "all", "1s+ 2s+ 3s+", "", "load 2", "1S 2S* 3S"},
    {MODELS, "specific 1", "1s+ 2n", "", "load 2", "NOT_ALLOWED"},
    {MODELS, "latest 1", "1s+", "", "load 7", "NO_VERSION"},
    {MODELS, "latest 1", "", "", "load", "UNKNOWN"},

    /* What was asked for is bad: the change is refused, and what serves goes on. */
    {MODELS, "latest 1", "1b+", "", "load", "BAD 1"},
    {MODELS, "latest 1", "1b+", "", "load 1", "BAD 1"},
    {MODELS, "latest 1", "1s+ 2b", "", "load 2", "BAD 2"},
    {MODELS, "latest 1", "1b 2b", "", "load", "BAD 2"},
    {MODELS, "latest 1", "1b~ 2s+", "", "load 1", "BAD 1"},
    {MODELS, "all", "1b+ 2s+", "", "load", "1S 2S*"},
    {MODELS, "latest 1", "1n 2b+", "", "load", "BAD 2"},

    /* Unloading, and loading again. */
    {MODELS, "latest 1", "1n 2s+", "", "unload", "1. 2."},
    {MODELS, "latest 1", "1b+", "", "unload", "1."},
    {MODELS, "latest 1", "1n 2s+", "", "unload 2", "1M* 2."},
    {MODELS, "all", "1s+ 2s+", "", "unload 2", "1S* 2."},
    {MODELS, "latest 1", "1s+ 2n", "1 of 2", "unload 1", "1. 2M*"},
    {MODELS, "all", "1s+ 2n", "-2", "load", "1S 2M*"},
    {MODELS, "all", "1s+ 2n", "-2", "load 2", "1S 2M*"},
    {MODELS, "all", "1n 2n", "-", "load", "1M 2M*"},
    {MODELS, "all", "1s+ 2n 3n", "-2", "load 3", "1S 2. 3M*"},

    /* One that lacks updates goes on beside others, and is read again to become the default. */
    {MODELS, "latest 2", "1s! 2s+", "", "load", "1S 2S*"},
    {MODELS, "latest 1", "1s!", "", "load 1", "1M*"},
    {MODELS, "all", "1s! 2s+", "", "load 1", "1M* 2S"},
    {MODELS, "all", "1s! 2s+", "", "unload 2", "1M* 2."},
    {MODELS, "all", "1s+ 2s! 3s+", "", "unload 3", "1S* 2S 3."},
    {MODELS, "all", "1s! 2s! 3s+", "", "unload 3", "1S 2M* 3."},
    {AGAIN, "all", "1s+ 2s! 3s+", "2 of 3", NULL, "1S 2M* 3S"},

    /* What was asked for before is remembered. */
    {AGAIN, "latest 1", "1s+ 2n", "1 of 2", NULL, "1S* 2."},
    {AGAIN, "latest 1", "1n 2n", "-", NULL, "1. 2."},
    {AGAIN, "all", "1s+ 2n", "-2", NULL, "1S* 2."},
    {AGAIN, "all", "1s+ 2s+ 3s+", "2 of 3", NULL, "1S 2S* 3S"},
    {AGAIN, "latest 1", "1n+ 2b", "", NULL, "1M* 2X"},
    {AGAIN, "latest 1", "1s+ 2B", "", NULL, "NAMED_BAD 2"},
    {AGAIN, "latest 1", "1b+", "", NULL, "1S*"},

    /* Polling: what rests, and leaves what serves. */
    {POLL, "latest 1", "1s+ 2n", "", NULL, "1. 2M*"},
    {POLL, "latest 1", "1s+ 2m", "", NULL, "1S* 2."},
    {POLL, "latest 1", "1m+", "", NULL, "1S*"},
    {POLL, "latest 1", "1b+", "", NULL, "1S*"},
    {POLL, "latest 1", "1s+ 2b", "", NULL, "1S* 2X"},
    {POLL, "latest 1", "1s+ 2B", "", NULL, "1S* 2X"},
    {POLL, "latest 1", "1m", "", NULL, "1."},
    {POLL, "latest 1", "", "-", NULL, ""},

    /* A version that was asked for stays until a newer one can be served. */
    {POLL, "latest 1", "1s+ 2n", "1 of 2", NULL, "1S* 2."},
    {POLL, "latest 1", "1s+ 2n 3b", "1 of 2", NULL, "1S* 2. 3."},
    {POLL, "latest 1", "1s+ 2n 3m", "1 of 2", NULL, "1S* 2. 3."},
    {POLL, "latest 1", "1s+ 2n 3n", "1 of 2", NULL, "1. 2. 3M*"},
    {POLL, "latest 1", "1s+ 2n 3n 4b", "1 of 2", NULL, "1. 2. 3M* 4X"},
    {MODELS, "latest 1", "1s+ 2n 3n", "1 of 2", "load", "1. 2. 3M*"},
};

static void test_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct plan_case *given = &cases[i];
        struct world world = read_versions(given->there);
        struct bag_wish wish = read_wish(given->wish);
        struct bag_control_item item = read_item(given->item ? given->item : "");
        struct bag_name_plan plan = {.kind = given->kind,
                                     .item = given->item ? &item : NULL,
                                     .policy = read_policy(given->policy),
                                     .wish = &wish,
                                     .versions = world.versions,
                                     .count = world.count,
                                     .look = look,
                                     .context = &world};
        char got[256];
        for (size_t j = 0; j < world.count; j++)
            plan.serves |= world.versions[j].ready != NULL;
        write_plan(&plan, bag_plan_name(&plan), got);
        if (strcmp(got, given->want) != 0)
            fail_msg("case %zu (%s, '%s', '%s', %s): '%s' instead of '%s'", i, given->policy,
                     given->there, given->wish, given->item ? given->item : "nothing asked", got,
                     given->want);
        for (size_t j = 0; j < world.count; j++)
            assert_true(world.looks[j] <= 1);
    }
}

/* Files that have all gone leave what serves while polling, unless it was unloaded. */
static void test_gone(void **state)
{
    static const struct {
        enum bag_change_kind kind;
        const char *wish, *item, *want;
    } gone[] = {{POLL, "", NULL, "STAYS"},
                {POLL, "-", NULL, ""},
                {AGAIN, "", NULL, ""},
                {MODELS, "", "load", "BAD"},
                {MODELS, "", "unload", ""}};
    (void)state;
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        struct bag_wish wish = read_wish(gone[i].wish);
        struct bag_control_item item = read_item(gone[i].item ? gone[i].item : "");
        struct bag_name_plan plan = {.kind = gone[i].kind,
                                     .item = gone[i].item ? &item : NULL,
                                     .policy = read_policy("latest 1"),
                                     .wish = &wish,
                                     .serves = true};
        char got[64];
        write_plan(&plan, bag_plan_name(&plan), got);
        assert_string_equal(got, gone[i].want);
    }
}

/* Versions that no policy would serve are not opened. */
static void test_looks_only_where_it_matters(void **state)
{
    struct world world = read_versions("1n 2n 3b 4n");
    struct bag_wish wish = {.default_version = 3};
    struct bag_name_plan plan = {.kind = MODELS,
                                 .policy = read_policy("latest 1"),
                                 .wish = &wish,
                                 .versions = world.versions,
                                 .count = world.count,
                                 .look = look,
                                 .context = &world};
    (void)state;
    assert_int_equal(bag_plan_name(&plan), BAG_PLAN_STEPS);
    const unsigned want[] = {0, 1, 1, 0};
    assert_memory_equal(world.looks, want, sizeof want);
    assert_int_equal(plan.preferred, 1);
}

/* Going back to a version remembers which was the newest then. */
static void test_wishes_remember_the_newest(void **state)
{
    static const struct {
        enum bag_change_kind kind;
        const char *item, *there, *want;
    } asked[] = {{MODELS, "load 1", "1n 2s+ 5n", "1M* 2. 5."},
                 {POLL, NULL, "1s+ 2n 5n", "1S* 2. 5."},
                 {POLL, NULL, "1s+ 2n 5n 6n", "1. 2. 5. 6M*"},
                 {MODELS, "load 2", "1n 2n 5n 6s+", "1. 2M* 5. 6."},
                 {MODELS, "load", "1n 2s+ 5n 6n", "1. 2. 5. 6M*"},
                 {POLL, NULL, "1n 2n 5n 6s+", "1. 2. 5. 6S*"}};
    struct bag_wish wish = {.newest = 0};
    (void)state;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct world world = read_versions(asked[i].there);
        struct bag_control_item item = read_item(asked[i].item ? asked[i].item : "");
        struct bag_name_plan plan = {.kind = asked[i].kind,
                                     .item = asked[i].item ? &item : NULL,
                                     .policy = read_policy("latest 1"),
                                     .wish = &wish,
                                     .versions = world.versions,
                                     .count = world.count,
                                     .serves = true,
                                     .look = look,
                                     .context = &world};
        char got[128];
        write_plan(&plan, bag_plan_name(&plan), got);
        assert_string_equal(got, asked[i].want);
    }
}

static void test_room_for_unloaded_versions(void **state)
{
    struct bag_wish wish = {.newest = 0};
    struct bag_control_item item = {.name = "t", .unload = true};
    (void)state;
    for (int i = 1; i <= BAG_WISH_MAX_UNLOADED; i++) {
        snprintf(item.version, sizeof item.version, "%d", i);
        assert_true(bag_wish_apply(&wish, &item, 1));
    }
    strcpy(item.version, "1");
    assert_true(bag_wish_apply(&wish, &item, 1));
    strcpy(item.version, "1000");
    assert_false(bag_wish_apply(&wish, &item, 1));
    assert_true(bag_wish_unloads(&wish, 64));
    assert_false(bag_wish_unloads(&wish, 1000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_looks_only_where_it_matters),
        cmocka_unit_test(test_wishes_remember_the_newest),
        cmocka_unit_test(test_room_for_unloaded_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
