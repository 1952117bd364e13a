/* The decisions of server/models/steps.h: versions of a model, collections, failures, retained
 * versions.
 *
 * A version is written as its number, its files and what is in memory of it:
 *
 *   n new, b bad, B bad and named by a configuration, m still written to, s those that serve,
 *   h those of the retained version, g gone; then + if it serves, ! if it does and lacks updates,
 *   ^ if it does because collections pin it, and ~ if it is retained
 *
 * An action is written as the number and . none, K keep, R restore, L load, U mark unavailable;
 * then * for the default version, and ^ for one that only pins hold. A desired state is "VERSION of
 * NEWEST", "-VERSION" or "-" for unloaded. */
#include "testing.h"

#include "server/models/steps.h"

#include <inttypes.h>

#define MAX_VERSIONS 8

static const char file_letters[] = "gbmshn";  /* as in enum bag_files */
static const char action_letters[] = ".KRLU"; /* as in enum bag_action */
static const char *const outcome_names[] = {
#define BAG_X(outcome) #outcome,
    BAG_PLAN_OUTCOMES(BAG_X)
#undef BAG_X
};

/* Only compared with NULL. */
static struct bag_source *some_source;
static struct bag_model *const some_model = (struct bag_model *)(void *)&some_source;

/* The results of check_files(), and the number of its calls for each version. */
struct world {
    struct bag_version_plan versions[MAX_VERSIONS];
    enum bag_files files[MAX_VERSIONS];
    bool is_named[MAX_VERSIONS], is_behind[MAX_VERSIONS];
    unsigned checks[MAX_VERSIONS];
    size_t count;
};

static void check_files(void *context, struct bag_version_plan *version)
{
    struct world *world = context;
    size_t i = (size_t)(version - world->versions);
    assert_non_null(version->source);
    version->files = world->files[i];
    version->is_named = world->is_named[i];
    version->is_behind = world->is_behind[i];
    world->checks[i]++;
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
            if (*end == '+' || *end == '!' || *end == '^')
                version->ready = some_model;
            version->is_pinned |= *end == '^';
            if (*end == '~')
                version->retained = some_model;
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

static struct bag_desired_state read_desired(const char *text)
{
    struct bag_desired_state desired = {.is_unloaded = strcmp(text, "-") == 0};
    if (*text == '-' && text[1])
        desired.unloaded[desired.num_unloaded++] = strtoull(text + 1, NULL, 10);
    else if (*text && *text != '-')
        sscanf(text, "%" SCNu64 " of %" SCNu64, &desired.default_version, &desired.newest);
    return desired;
}

/* Writes "1. 2L*", or the outcome and the failed version: "BAD 2". */
static void write_plan(const struct bag_model_plan *plan, enum bag_plan_outcome outcome, char *text)
{
    *text = 0;
    if (outcome != BAG_PLAN_ACTIONS) {
        text += sprintf(text, "%s", outcome_names[outcome]);
        if (plan->failed_version != SIZE_MAX)
            sprintf(text, " %llu", (unsigned long long)plan->versions[plan->failed_version].number);
        return;
    }
    for (size_t i = 0; i < plan->count; i++)
        text += sprintf(text, "%s%llu%c%s%s", i ? " " : "",
                        (unsigned long long)plan->versions[i].number,
                        action_letters[plan->versions[i].action], i == plan->preferred ? "*" : "",
                        plan->versions[i].action && plan->versions[i].is_pinned ? "^" : "");
}

struct plan_case {
    enum bag_change_kind kind;
    const char *policy, *there, *desired, *item, *want;
};

#define START  BAG_CHANGE_START
#define MODELS BAG_CHANGE_MODELS
#define POLL   BAG_CHANGE_POLL
#define AGAIN  BAG_CHANGE_CONFIGURATION

static const struct plan_case cases[] = {
    /* The start: what the policy names, of what is good. */
    {START, "latest 1", "1n 3n 7n", "", NULL, "1. 3. 7L*"},
    {START, "latest", "1n 3n 7n", "", NULL, "1. 3. 7L*"},
    {START, "latest 2", "1n 3n 7n", "", NULL, "1. 3L 7L*"},
    {START, "latest 9", "1n 3n 7n", "", NULL, "1L 3L 7L*"},
    {START, "all", "1n 3n 7n", "", NULL, "1L 3L 7L*"},
    {START, "specific 1 3 9", "1n 3n 7n", "", NULL, "1L 3L* 7."},
    {START, "latest 1", "1n 2n 3b 4b", "", NULL, "1. 2L* 3U 4U"},
    {START, "latest 1", "1b 2n", "", NULL, "1. 2L*"},
    {START, "latest 2", "1n 2b 3n", "", NULL, "1L 2U 3L*"},
    {START, "specific 1", "1n 2b", "", NULL, "1L* 2."},
    {START, "latest 1", "1b", "", NULL, "1U"},
    {START, "latest 1", "1n 2B", "", NULL, "NAMED_BAD 2"},
    {START, "latest 1", "1B 2n", "", NULL, "1. 2L*"},
    {START, "all", "", "", NULL, ""},
    {START, "all", "1n 2b 3n 4B", "", NULL, "NAMED_BAD 4"},
    {START, "all", "1b 2b", "", NULL, "1U 2U"},
    {START, "all", "1n 2n 3b", "", NULL, "1L 2L* 3U"},
    {START, "latest 2", "1n 2n 3b", "", NULL, "1L 2L* 3U"},
    {START, "specific 1 3", "1n 2b 3b", "", NULL, "1L* 2. 3U"},
    {START, "specific 9", "1n 2n", "", NULL, "1. 2."},
    {START, "specific 2", "1n 2B", "", NULL, "NAMED_BAD 2"},
    {START, "specific 1", "1n 2B", "", NULL, "1L* 2."},

    /* A load: what is in the folder now. */
    {MODELS, "latest 1", "1s+ 2n", "", "load", "1. 2L*"},
    {MODELS, "latest 1", "1s+", "", "load", "1K*"},
    {MODELS, "latest 1", "1n+", "", "load", "1L*"},
    {MODELS, "latest 1", "1s+ 2b", "", "load", "1K* 2U"},
    {MODELS, "latest 1", "1s+ 2b~", "", "load", "1K* 2U"},
    {MODELS, "latest 1", "1s+ 2B", "", "load", "1K* 2U"},
    {MODELS, "latest 1", "1s+ 2n", "", "load 1", "1K* 2."},
    {MODELS, "latest 1", "1n 2s+", "", "load 1", "1L* 2."},
    {MODELS, "latest 1", "1h~ 2s+", "", "load 1", "1R* 2."},
    {MODELS, "latest 1", "1n~ 2s+", "", "load 1", "1L* 2."},
    {MODELS, "latest 1", "1g~ 2s+", "", "load 1", "1R* 2."},
    {MODELS, "latest 2", "1n 2s+ 3s+", "", "load 2", "1L 2K* 3."},
    {MODELS, "all", "1s+ 2s+ 3s+", "", "load 2", "1K 2K* 3K"},
    {MODELS, "specific 1", "1s+ 2n", "", "load 2", "NOT_ALLOWED"},
    {MODELS, "latest 1", "1s+", "", "load 7", "NO_VERSION"},
    {MODELS, "latest 1", "", "", "load", "UNKNOWN"},
    {MODELS, "latest 1", "", "", "unload", "UNKNOWN"},
    {MODELS, "specific 1", "1s+ 2n", "", "unload 2", "1K* 2."},
    {MODELS, "latest 1", "1s+", "", "unload 7", "NO_VERSION"},
    {MODELS, "specific 1 2", "1s+ 2n", "", "load", "1K 2L*"},
    {MODELS, "specific 1 2", "1s+ 2s+", "", "load 1", "1K* 2K"},
    {MODELS, "all", "1s+ 2b", "", "load", "1K* 2U"},
    {MODELS, "latest 2", "1s+ 2n 3n", "", "load", "1. 2L 3L*"},

    /* Retained versions: a roll back reads nothing, unless the files are others. */
    {MODELS, "latest 1", "1h~ 2h~ 3s+", "", "load 2", "1. 2R* 3."},
    {MODELS, "latest 2", "1h~ 2s+ 3s+", "", "load 2", "1R 2K* 3."},
    {MODELS, "all", "1h~ 2s+", "-1", "load 1", "1R* 2K"},
    {MODELS, "latest 1", "1h~ 2s+", "", "unload 2", "1R* 2."},
    {MODELS, "latest 1", "1g~ 2s+", "", "unload 2", "1R* 2."},
    {MODELS, "latest 1", "1n~ 2s+", "", "unload 2", "1L* 2."},
    {POLL, "latest 1", "1g~ 2s+", "1 of 2", NULL, "1R* 2."},
    {POLL, "latest 1", "1h~ 2g+", "", NULL, "1. 2K*"},
    {POLL, "latest 1", "1h~ 2b", "", NULL, "1R* 2U"},
    {AGAIN, "latest 2", "1h~ 2s+", "", NULL, "1R 2K*"},
    {AGAIN, "latest 1", "1s+ 2h~", "1 of 2", NULL, "1K* 2."},

    /* The requested version is bad: the change is rejected, and the served versions stay. */
    {MODELS, "latest 1", "1b+", "", "load", "BAD 1"},
    {MODELS, "latest 1", "1b+", "", "load 1", "BAD 1"},
    {MODELS, "latest 1", "1s+ 2b", "", "load 2", "BAD 2"},
    {MODELS, "latest 1", "1b 2b", "", "load", "BAD 2"},
    {MODELS, "latest 1", "1b~ 2s+", "", "load 1", "BAD 1"},
    {MODELS, "all", "1b+ 2s+", "", "load", "1K 2K*"},
    {MODELS, "latest 1", "1n 2b+", "", "load", "BAD 2"},

    /* Unloading, and loading again. */
    {MODELS, "latest 1", "1n 2s+", "", "unload", "1. 2."},
    {MODELS, "latest 1", "1b+", "", "unload", "1."},
    {MODELS, "latest 1", "1n 2s+", "", "unload 2", "1L* 2."},
    {MODELS, "all", "1s+ 2s+", "", "unload 2", "1K* 2."},
    {MODELS, "latest 1", "1s+ 2n", "1 of 2", "unload 1", "1. 2L*"},
    {MODELS, "all", "1s+ 2n", "-2", "load", "1K 2L*"},
    {MODELS, "all", "1s+ 2n", "-2", "load 2", "1K 2L*"},
    {MODELS, "all", "1n 2n", "-", "load", "1L 2L*"},
    {MODELS, "all", "1s+ 2n 3n", "-2", "load 3", "1K 2. 3L*"},

    /* A version that lacks updates stays loaded beside others, and is read again to become the
     * default. */
    {MODELS, "latest 2", "1s! 2s+", "", "load", "1K 2K*"},
    {MODELS, "latest 1", "1s!", "", "load 1", "1L*"},
    {MODELS, "all", "1s! 2s+", "", "load 1", "1L* 2K"},
    {MODELS, "all", "1s! 2s+", "", "unload 2", "1L* 2."},
    {MODELS, "all", "1s+ 2s! 3s+", "", "unload 3", "1K* 2K 3."},
    {MODELS, "all", "1s! 2s! 3s+", "", "unload 3", "1K 2L* 3."},
    {AGAIN, "all", "1s+ 2s! 3s+", "2 of 3", NULL, "1K 2L* 3K"},

    /* Earlier requests of clients still hold. */
    {AGAIN, "latest 1", "1s+ 2n", "1 of 2", NULL, "1K* 2."},
    {AGAIN, "latest 1", "1n 2n", "-", NULL, "1. 2."},
    {AGAIN, "all", "1s+ 2n", "-2", NULL, "1K* 2."},
    {AGAIN, "all", "1s+ 2s+ 3s+", "2 of 3", NULL, "1K 2K* 3K"},
    {AGAIN, "latest 1", "1n+ 2b", "", NULL, "1L* 2U"},
    {AGAIN, "latest 1", "1s+ 2B", "", NULL, "NAMED_BAD 2"},
    {AGAIN, "latest 1", "1b+", "", NULL, "1K*"},

    /* Polling: what rests, and leaves what serves. */
    {POLL, "latest 1", "1s+ 2n", "", NULL, "1. 2L*"},
    {POLL, "latest 1", "1s+ 2m", "", NULL, "1K* 2."},
    {POLL, "latest 1", "1m+", "", NULL, "1K*"},
    {POLL, "latest 1", "1b+", "", NULL, "1K*"},
    {POLL, "latest 1", "1s+ 2b", "", NULL, "1K* 2U"},
    {POLL, "latest 1", "1s+ 2B", "", NULL, "1K* 2U"},
    {POLL, "latest 1", "1m", "", NULL, "1."},
    {POLL, "latest 1", "", "-", NULL, ""},
    {POLL, "all", "1s+ 2m 3n", "", NULL, "1K 2. 3L*"},
    {POLL, "latest 2", "1s+ 2s+ 3n", "", NULL, "1. 2K 3L*"},
    {POLL, "latest 1", "1s+ 2n", "-", NULL, "1. 2."},
    {POLL, "latest 1", "1s+ 2n", "-2", NULL, "1K* 2."},
    {POLL, "specific 1", "1s+ 2n", "", NULL, "1K* 2."},
    {POLL, "latest 1", "1m 2b", "", NULL, "1. 2U"},
    {POLL, "specific 2", "1s+", "", NULL, "UNCHANGED"},

    /* A model of shards: what they report is new, or the same as before; without a common version
     * its one version is bad, and the last one serves on. */
    {START, "latest 1", "3b", "", NULL, "3U"},
    {POLL, "latest 1", "3s+", "", NULL, "3K*"},
    {POLL, "latest 1", "3s+ 4n", "", NULL, "3. 4L*"},
    {POLL, "latest 1", "3b+", "", NULL, "3K*"},
    {POLL, "latest 1", "1b", "", NULL, "1U"},
    {MODELS, "latest 1", "3s+ 4b", "", "load 4", "BAD 4"},

    /* Pinned versions stay beside those of the policy, unless this request unloads them. */
    {POLL, "latest 1", "1s^ 2s+", "", NULL, "1K^ 2K*"},
    {POLL, "latest 1", "1s^ 2s+ 3n", "", NULL, "1K^ 2. 3L*"},
    {POLL, "latest 1", "1n^ 2s+", "", NULL, "1L^ 2K*"},
    {POLL, "latest 1", "1m^ 2s+", "", NULL, "1K^ 2K*"},
    {POLL, "latest 1", "1b^ 2s+", "", NULL, "1K^ 2K*"},
    {POLL, "latest 1", "1g^ 2s+", "", NULL, "1K^ 2K*"},
    {POLL, "latest 1", "1h^~ 2s+", "", NULL, "1R^ 2K*"},
    {POLL, "latest 1", "1s+ 2s^", "", NULL, "1. 2K*"},
    {POLL, "specific 2", "1s^", "", NULL, "UNCHANGED"},
    {AGAIN, "specific 2", "1s^ 2s+ 3s^", "", NULL, "1K^ 2K* 3K^"},
    {AGAIN, "latest 1", "1s^ 2s+", "-", NULL, "1K^ 2."},
    {MODELS, "latest 1", "1s^ 2s+", "", "load", "1K^ 2K*"},
    {MODELS, "latest 1", "1s^ 2s+", "", "load 1", "1K* 2."},
    {MODELS, "latest 1", "1s+ 2s^", "", "load 1", "1K* 2K^"},
    {MODELS, "latest 1", "1s^ 2s+", "", "unload 1", "1. 2K*"},
    {MODELS, "latest 1", "1s^ 2s+", "", "unload 2", "1K* 2."},
    {MODELS, "latest 1", "1s^ 2s+", "", "unload", "1. 2."},

    /* A version that was asked for stays until a newer one can be served. */
    {POLL, "latest 1", "1s+ 2n", "1 of 2", NULL, "1K* 2."},
    {POLL, "latest 1", "1s+ 2n 3b", "1 of 2", NULL, "1K* 2. 3U"},
    {POLL, "latest 1", "1s+ 2n 3m", "1 of 2", NULL, "1K* 2. 3."},
    {POLL, "specific 1 2", "1s+ 2s+ 3n", "1 of 2", NULL, "1K* 2K 3."},
    {POLL, "latest 1", "1s+ 2n 3n", "1 of 2", NULL, "1. 2. 3L*"},
    {POLL, "latest 1", "1s+ 2n 3n 4b", "1 of 2", NULL, "1. 2. 3L* 4U"},
    {MODELS, "latest 1", "1s+ 2n 3n", "1 of 2", "load", "1. 2. 3L*"}};

/* A plan for these versions. `item` is what a client asks for, in the words of read_item; NULL:
 * nothing. */
static struct bag_model_plan plan_of(enum bag_change_kind kind, const char *policy,
                                     struct bag_desired_state *desired, const char *item,
                                     struct world *world)
{
    static struct bag_control_item asked; /* the plan points to it */
    asked = read_item(item ? item : "");
    return (struct bag_model_plan){.kind = kind,
                                   .item = item ? &asked : NULL,
                                   .policy = read_policy(policy),
                                   .desired = desired,
                                   .versions = world->versions,
                                   .count = world->count,
                                   .check_files = check_files,
                                   .context = world};
}

TEST(test_plans_versions)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct plan_case *given = &cases[i];
        struct world world = read_versions(given->there);
        struct bag_desired_state desired = read_desired(given->desired);
        struct bag_model_plan plan =
            plan_of(given->kind, given->policy, &desired, given->item, &world);
        char got[256];
        for (size_t j = 0; j < world.count; j++)
            plan.serves |= world.versions[j].ready != NULL;
        write_plan(&plan, bag_plan_model(&plan), got);
        if (strcmp(got, given->want) != 0)
            fail_msg("case %zu (%s, '%s', '%s', %s): '%s' instead of '%s'", i, given->policy,
                     given->there, given->desired, given->item ? given->item : "nothing asked", got,
                     given->want);
        for (size_t j = 0; j < world.count; j++)
            assert_true(world.checks[j] <= 1);
    }
}

/* Serves one version of a table for a pin. */
TEST(test_plans_pinned_version)
{
    static const struct {
        const char *there, *item, *want;
    } pins[] = {{"1n", NULL, "1L^"},      {"1s+", NULL, "1K^"},      {"1b", NULL, "1U^"},
                {"1b+", NULL, "1K^"},     {"1m", NULL, "1."},        {"1m+", NULL, "1K^"},
                {"1h~", NULL, "1R^"},     {"1g~", NULL, "1R^"},      {"1g", NULL, "1."},
                {"1b~", NULL, "1U^"},     {"1n", "load 2", "1L^"},   {"1n", "unload 2", "1L^"},
                {"1n", "unload 1", "1."}, {"1s+", "unload 1", "1."}, {"1s+", "unload", "1."}};
    for (size_t i = 0; i < COUNT_OF(pins); i++) {
        struct bag_desired_state desired = {.is_unloaded = false};
        struct world world = read_versions(pins[i].there);
        struct bag_model_plan plan = plan_of(POLL, "specific 9", &desired, pins[i].item, &world);
        char got[64];
        plan.preferred = SIZE_MAX;
        bag_plan_pinned(&plan, &plan.versions[0]);
        write_plan(&plan, BAG_PLAN_ACTIONS, got);
        assert_string_equal(got, pins[i].want);
    }
}

/* If all files are gone, a poll keeps what serves, unless a request unloaded it. */
TEST(test_plans_without_files)
{
    static const struct {
        enum bag_change_kind kind;
        const char *desired, *item, *want;
    } gone[] = {{POLL, "", NULL, "UNCHANGED"},
                {POLL, "-", NULL, ""},
                {AGAIN, "", NULL, ""},
                {MODELS, "", "load", "BAD"},
                {MODELS, "", "unload", ""}};
    for (size_t i = 0; i < COUNT_OF(gone); i++) {
        struct bag_desired_state desired = read_desired(gone[i].desired);
        struct world none = {.count = 0};
        struct bag_model_plan plan =
            plan_of(gone[i].kind, "latest 1", &desired, gone[i].item, &none);
        char got[64];
        plan.serves = true;
        write_plan(&plan, bag_plan_model(&plan), got);
        assert_string_equal(got, gone[i].want);
    }
}

/* The files of versions that no policy would serve are not opened. */
TEST(test_checks_files_only_if_needed)
{
    struct world world = read_versions("1n 2n 3b 4n");
    struct bag_desired_state desired = {.default_version = 3};
    struct bag_model_plan plan = plan_of(MODELS, "latest 1", &desired, NULL, &world);
    assert_int_equal(bag_plan_model(&plan), BAG_PLAN_ACTIONS);
    const unsigned want[] = {0, 1, 1, 0};
    assert_memory_equal(world.checks, want, sizeof want);
    assert_int_equal(plan.preferred, 1);
}

/* A load of an older version holds until a version appears that is newer than all that existed. */
TEST(test_desired_state_remembers_newest)
{
    static const struct {
        enum bag_change_kind kind;
        const char *item, *there, *want;
    } asked[] = {{MODELS, "load 1", "1n 2s+ 5n", "1L* 2. 5."},
                 {POLL, NULL, "1s+ 2n 5n", "1K* 2. 5."},
                 {POLL, NULL, "1s+ 2n 5n 6n", "1. 2. 5. 6L*"},
                 {MODELS, "load 2", "1n 2n 5n 6s+", "1. 2L* 5. 6."},
                 {MODELS, "load", "1n 2s+ 5n 6n", "1. 2. 5. 6L*"},
                 {POLL, NULL, "1n 2n 5n 6s+", "1. 2. 5. 6K*"}};
    struct bag_desired_state desired = {.newest = 0};
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        struct world world = read_versions(asked[i].there);
        struct bag_model_plan plan =
            plan_of(asked[i].kind, "latest 1", &desired, asked[i].item, &world);
        char got[128];
        plan.serves = true;
        write_plan(&plan, bag_plan_model(&plan), got);
        assert_string_equal(got, asked[i].want);
    }
}

TEST(test_limits_unloaded_versions)
{
    struct bag_desired_state desired = {.newest = 0};
    struct bag_control_item item = {.name = "t", .unload = true};
    for (int i = 1; i <= BAG_MAX_UNLOADED_VERSIONS; i++) {
        snprintf(item.version, sizeof item.version, "%d", i);
        assert_true(bag_desired_state_apply(&desired, &item, 1));
    }
    strcpy(item.version, "1");
    assert_true(bag_desired_state_apply(&desired, &item, 1));
    strcpy(item.version, "1000");
    assert_false(bag_desired_state_apply(&desired, &item, 1));
    assert_true(bag_desired_state_unloads(&desired, 64));
    assert_false(bag_desired_state_unloads(&desired, 1000));
}

/* ---- collections ----------------------------------------------------------------------------- */

static const char *const collection_actions[] = {[BAG_COLLECTION_KEEP] = "keep",
                                                 [BAG_COLLECTION_LOAD] = "load",
                                                 [BAG_COLLECTION_UNLOAD] = "unload",
                                                 [BAG_COLLECTION_MARK_UNAVAILABLE] = "unavailable",
                                                 [BAG_COLLECTION_REFUSE_UNLOAD] = "refuse",
                                                 [BAG_COLLECTION_FAIL] = "fail"};

/* Reads words: published (it serves, and stays unless its tables do not), ready (a version that
 * serves is read again), requested, dependents, retried, named, folder, lacks, same, updates. */
static struct bag_collection_plan read_collection(enum bag_change_kind kind, const char *words)
{
    bool is_published = strstr(words, "published") != NULL;
    return (struct bag_collection_plan){.kind = kind,
                                        .is_published = is_published,
                                        .was_ready = is_published || strstr(words, "ready"),
                                        .is_requested = strstr(words, "requested"),
                                        .unloads_dependents = strstr(words, "dependents"),
                                        .is_retried = strstr(words, "retried"),
                                        .is_named = strstr(words, "named"),
                                        .has_folder_table = strstr(words, "folder"),
                                        .lacks_table = strstr(words, "lacks"),
                                        .has_same_tables = strstr(words, "same"),
                                        .takes_updates = strstr(words, "updates")};
}

TEST(test_plans_collections)
{
    static const struct {
        enum bag_change_kind kind;
        const char *words, *want;
    } given[] = {{START, "", "load"},
                 {START, "named", "load"},
                 {POLL, "published same", "keep"},
                 {POLL, "published", "load"},
                 {AGAIN, "ready same", "load"}, /* the rules of the table may be different */
                 {MODELS, "published same", "keep"},
                 {MODELS, "published", "load"},
                 {MODELS, "requested", "load"},

                 /* A table that a collection needs goes: never silently. */
                 {MODELS, "published lacks", "refuse"},
                 {MODELS, "published lacks dependents", "unload"},
                 {POLL, "published lacks", "refuse"},
                 {AGAIN, "published lacks", "refuse"},
                 {AGAIN, "published lacks dependents", "refuse"},

                 /* A table is not there. A version that was only found does not fail a change. */
                 {START, "lacks", "unavailable"},
                 {START, "named lacks", "fail"},
                 {START, "named lacks folder", "unavailable"},
                 {AGAIN, "named lacks folder", "unavailable"},
                 {AGAIN, "named lacks folder ready", "fail"},
                 {POLL, "named lacks", "unavailable"},
                 {POLL, "lacks ready", "unavailable"},
                 {MODELS, "requested lacks", "fail"},
                 {MODELS, "retried lacks", "unavailable"},
                 {MODELS, "retried named lacks", "unavailable"},
                 {MODELS, "named lacks folder", "fail"}};
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        struct bag_collection_plan plan = read_collection(given[i].kind, given[i].words);
        const char *got = collection_actions[bag_plan_collection(&plan)];
        if (strcmp(got, given[i].want) != 0)
            fail_msg("case %zu (%s): %s instead of %s", i, given[i].words, got, given[i].want);
    }
}

/* After a collection could not be opened over its tables, and after they were loaded. */
TEST(test_plans_failed_collections)
{
    static const struct {
        enum bag_change_kind kind;
        const char *words;
        enum bag_error why;
        const char *unopened, *unloadable;
    } given[] = {{START, "", BAG_ERROR_FILE, "unavailable", "fail"},
                 {START, "named", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {START, "named updates", BAG_ERROR_CONFIGURATION, "fail", "unavailable"},
                 {START, "named updates", BAG_ERROR_NO_MEMORY, "fail", "fail"},
                 {AGAIN, "named updates", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {START, "named folder", BAG_ERROR_CONFIGURATION, "unavailable", "unavailable"},
                 {START, "named folder", BAG_ERROR_FILE, "fail", "fail"},
                 {START, "named folder", BAG_ERROR_NO_MEMORY, "fail", "fail"},
                 {AGAIN, "named folder", BAG_ERROR_CONFIGURATION, "unavailable", "unavailable"},
                 {AGAIN, "named folder ready", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {POLL, "", BAG_ERROR_CONFIGURATION, "unavailable", "fail"},
                 {POLL, "named", BAG_ERROR_CONFIGURATION, "unavailable", "unavailable"},
                 {POLL, "named", BAG_ERROR_NO_MEMORY, "unavailable", "fail"},
                 {POLL, "named ready", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {POLL, "ready", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {POLL, "published", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {MODELS, "requested", BAG_ERROR_CONFIGURATION, "fail", "fail"},
                 {MODELS, "", BAG_ERROR_CONFIGURATION, "unavailable", "fail"},
                 {MODELS, "retried named", BAG_ERROR_FILE, "unavailable", "unavailable"},
                 {MODELS, "retried named", BAG_ERROR_NO_MEMORY, "fail", "fail"}};
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        struct bag_collection_plan plan = read_collection(given[i].kind, given[i].words);
        const char *unopened =
            collection_actions[bag_plan_unopened_collection(&plan, given[i].why)];
        const char *unloadable =
            collection_actions[bag_plan_unloadable_collection(&plan, given[i].why)];
        if (strcmp(unopened, given[i].unopened) != 0 ||
            strcmp(unloadable, given[i].unloadable) != 0)
            fail_msg("case %zu (%s): %s, %s instead of %s, %s", i, given[i].words, unopened,
                     unloadable, given[i].unopened, given[i].unloadable);
    }
}

/* ---- versions that cannot be loaded ---------------------------------------------------------- */

TEST(test_skips_failed_versions)
{
    for (int i = 0; i < 4; i++) {
        enum bag_change_kind kind = (const enum bag_change_kind[]){START, MODELS, POLL, AGAIN}[i];
        assert_true(bag_plan_skips_failed(kind, true, 10 * BAG_FAILURE_NS));
        assert_int_equal(bag_plan_skips_failed(kind, false, BAG_FAILURE_NS - 1), kind == POLL);
        assert_false(bag_plan_skips_failed(kind, false, BAG_FAILURE_NS));
    }
}

TEST(test_goes_without_failed_versions)
{
    static const struct {
        enum bag_change_kind kind;
        bool is_default, is_named;
        enum bag_error why;
        bool want;
    } given[] = {{START, true, false, BAG_ERROR_FILE, true},
                 {START, true, true, BAG_ERROR_FILE, false},
                 {START, true, false, BAG_ERROR_NO_MEMORY, true},
                 {START, true, false, BAG_ERROR_DRAINING, false},
                 {POLL, true, false, BAG_ERROR_FILE, true},
                 {POLL, true, false, BAG_ERROR_NO_MEMORY, true},
                 {MODELS, true, false, BAG_ERROR_FILE, false},
                 {MODELS, false, false, BAG_ERROR_FILE, true},
                 {MODELS, false, true, BAG_ERROR_FILE, false},
                 {MODELS, false, false, BAG_ERROR_NO_MEMORY, false},
                 {AGAIN, true, false, BAG_ERROR_FILE, false},
                 {AGAIN, false, false, BAG_ERROR_FILE, true},
                 {AGAIN, false, false, BAG_ERROR_DRAINING, false}};
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        if (bag_plan_goes_without(given[i].kind, given[i].is_default, given[i].is_named,
                                  given[i].why) != given[i].want)
            fail_msg("case %zu", i);
    }
}

TEST(test_starts_without_models_that_lack_updates)
{
    assert_true(bag_plan_starts_without(START, true, false, BAG_ERROR_FILE));
    assert_true(bag_plan_starts_without(START, false, true, BAG_ERROR_FILE));
    assert_false(bag_plan_starts_without(START, false, false, BAG_ERROR_FILE));
    assert_false(bag_plan_starts_without(START, true, true, BAG_ERROR_NO_MEMORY));
    assert_false(bag_plan_starts_without(MODELS, true, true, BAG_ERROR_FILE));
    assert_false(bag_plan_starts_without(POLL, true, true, BAG_ERROR_FILE));
}

/* ---- retained versions ----------------------------------------------------------------------- */

/* Oldest first: "u" serves again, "r" is retained; the result has "x" for what is released. */
TEST(test_releases_retained_versions)
{
    static const struct {
        const char *versions;
        size_t limit;
        const char *want;
    } given[] = {
        {"", 2, ""},         {"r", 0, "x"},           {"rr", 1, "xr"},   {"rr", 2, "rr"},
        {"rrrr", 2, "xxrr"}, {"u", 3, "x"},           {"rur", 2, "rxr"}, {"ruru", 1, "xxrx"},
        {"uuu", 9, "xxx"},   {"rrr", SIZE_MAX, "rrr"}};
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        size_t count = strlen(given[i].versions);
        bool is_used[8], releases[8];
        char got[9] = "";
        for (size_t j = 0; j < count; j++)
            is_used[j] = given[i].versions[j] == 'u';
        bag_plan_retained(is_used, count, given[i].limit, releases);
        for (size_t j = 0; j < count; j++)
            got[j] = releases[j] ? 'x' : given[i].versions[j];
        assert_string_equal(got, given[i].want);
    }
}
