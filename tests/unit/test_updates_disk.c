/* Updates, snapshots and restarts on a disk that tears, reorders and loses what was not synced.
 *
 * Every seed is one story. Tables are loaded from snapshots. Batches arrive alone and together,
 * with right numbers, repeated numbers and gaps, or merged into ranges, which may begin with
 * applied updates. Calls of the disk fail, versions are reloaded, and the process or the machine
 * stops in the middle. A model of a few lines knows what every number left behind. Acknowledged
 * updates must exist in their order after every restart. A failed update may exist only if its
 * answer said so.
 *
 *   test_updates_disk [COUNT [FIRST]]    so many stories, from a seed on; 300 without arguments */
#include "disk_fixture.h"
#include "updates_model.h"

#include "server/system/log.h"
#include "server/updates/updates.h"

#define MAX_SEQ   400
#define MAX_TRIES 32
#define TOGETHER  5

/* Limit of the memory for updates. */
#define UNBOUNDED ((size_t)1 << 40)

struct story {
    uint64_t seed;
    struct rng rng;
    struct fake_disk *disk;
    bool keyed;
    enum bag_journal_sync sync;
    bool in_memory;    /* there is no journal, */
    size_t kept_bytes; /* and so much memory for what it would hold */

    struct state states[MAX_SEQ];  /* after each number */
    struct batch batches[MAX_SEQ]; /* batch of each number */
    uint64_t acknowledged;         /* last number that was acknowledged */
    /* Batches that may have the numbers after it, because the disk failed while they were
     * written. */
    struct batch tries[MAX_SEQ][MAX_TRIES];
    size_t num_tries[MAX_SEQ];

    struct bag_updates updates;
    struct version {
        struct bag_table_memory memory;
        uint64_t through;
    } versions[2]; /* the served one, and one that may be held beside it */
    size_t num_versions;
    uint64_t oldest_snapshot; /* oldest snapshot from which a server must be able to start */
    size_t lost_syncs;        /* before the last restart */
    size_t restarts, applied, ranges, failed, reloads, rejected, powers;
};

#define require(story, condition)                                                     \
    do {                                                                              \
        if (!(condition))                                                             \
            fail_msg("seed %llu, update %llu: %s", (unsigned long long)(story)->seed, \
                     (unsigned long long)(story)->acknowledged, #condition);          \
    } while (0)

/* ---- versions -------------------------------------------------------------------------------- */

static bool attach(struct story *story, uint64_t through, struct bag_problem *problem)
{
    struct version *version = &story->versions[story->num_versions];
    version->through = through;
    load(story->keyed, &story->states[through], &version->memory);
    struct bag_updates_table table = {
        .name = "items", .memory = &version->memory, .through = through};
    if (bag_updates_attach(&story->updates, &table, problem)) {
        story->num_versions++;
        return true;
    }
    bag_table_unload(&version->memory);
    return false;
}

/* ---- starting -------------------------------------------------------------------------------- */

/* Finds which tries lead from a state to another in so many steps; keeps the states between. */
static bool explain(struct story *story, uint64_t from, uint64_t to, const struct state *want)
{
    if (from == to)
        return same_state(&story->states[from], want);
    for (size_t i = 0; i < story->num_tries[from + 1]; i++) {
        story->states[from + 1] = story->states[from];
        story->batches[from + 1] = story->tries[from + 1][i];
        apply_to_state(&story->states[from + 1], &story->tries[from + 1][i]);
        if (explain(story, from + 1, to, want))
            return true;
    }
    return false;
}

static void start(struct story *story, bool lost_power)
{
    struct bag_updates_settings settings = {
        .journal_dir = story->in_memory ? NULL : "/data/journal",
        .kept_bytes = story->kept_bytes,
        .sync = story->sync,
        .disk = &story->disk->calls,
        .journal_file_bytes = 500 + rng_below(&story->rng, 3000)};
    struct bag_problem problem;
    /* A snapshot may be newer than all that is in the journal. */
    uint64_t span = story->acknowledged - story->oldest_snapshot;
    uint64_t through = story->oldest_snapshot + rng_next(&story->rng) % (span + 1);
    assert_true(bag_updates_init(&story->updates, &settings));
    story->num_versions = 0;
    if (!attach(story, through, &problem))
        fail_msg("seed %llu, update %llu, start from %llu: %s", (unsigned long long)story->seed,
                 (unsigned long long)story->acknowledged, (unsigned long long)through,
                 problem.text);
    struct state now = read_table(story->keyed, &story->versions[0].memory);
    uint64_t sequence = story->versions[0].memory.live->stream->sequence;
    /* That is the last acknowledged one, unless the machine or a failed sync lost updates that were
     * acknowledged without a sync. */
    bool kept = story->sync == BAG_JOURNAL_SYNC_ALWAYS || (!lost_power && !story->lost_syncs);
    uint64_t least = kept ? story->acknowledged : story->oldest_snapshot;
    require(story, sequence >= (least > through ? least : through));
    if (sequence <= story->acknowledged)
        require(story, same_state(&now, &story->states[sequence]));
    else
        require(story, explain(story, story->acknowledged, sequence, &now));
    for (uint64_t i = sequence + 1; i < MAX_SEQ; i++)
        story->num_tries[i] = 0;
    story->acknowledged = sequence;
}

/* Everything in memory goes; what the disk has stays as a crash leaves it. */
static void stop(struct story *story, bool loses_power)
{
    for (size_t i = 0; i < story->num_versions; i++) {
        if (story->oldest_snapshot > story->versions[i].through || i == 0)
            story->oldest_snapshot = story->versions[i].through;
    }
    story->disk->calls_left = 0;
    while (story->num_versions)
        bag_table_unload(&story->versions[--story->num_versions].memory);
    bag_updates_free(&story->updates);
    require(story, story->disk->open_files == 0);
    story->lost_syncs = story->disk->lost_syncs;
    story->disk->lost_syncs = 0;
    crash(story->disk, loses_power);
    story->restarts++;
    story->powers += loses_power;
}

/* ---- updates --------------------------------------------------------------------------------- */

/* A batch of which each row is unique. */
static struct batch make_batch(struct story *story, const struct state *state)
{
    struct batch batch = {.deletes = story->keyed && rng_below(&story->rng, 4) == 0};
    for (size_t i = 0; i < IDS; i++) {
        if (rng_below(&story->rng, 3) || (batch.deletes && !state->there[i]))
            continue;
        batch.ids[batch.count] = i;
        for (size_t j = 0; j < COLUMNS; j++)
            batch.rows[batch.count][j] = (float)(rng_next(&story->rng) >> 40);
        batch.count++;
    }
    return batch;
}

static void ignore_done(struct bag_update *update)
{
    (void)update;
}

struct asked {
    struct bag_update update;
    struct batch batch;
    uint64_t ids[IDS];
};

/* The update of asked->batch. */
static void prepare(struct story *story, struct asked *asked)
{
    for (size_t i = 0; i < asked->batch.count; i++)
        asked->ids[i] = story->keyed ? key_of(asked->batch.ids[i]) : asked->batch.ids[i];
    asked->update = (struct bag_update){
        .live = story->versions[0].memory.live,
        .batch = {.deletes = asked->batch.deletes,
                  .count = asked->batch.count,
                  .ids = asked->ids,
                  .rows = asked->batch.deletes ? NULL : (const char *)asked->batch.rows},
        .done = ignore_done};
}

static void ask(struct story *story, struct asked *asked, const struct state *state)
{
    asked->batch = make_batch(story, state);
    prepare(story, asked);
}

static void remember_try(struct story *story, uint64_t sequence, const struct batch *batch)
{
    if (sequence < MAX_SEQ && story->num_tries[sequence] < MAX_TRIES)
        story->tries[sequence][story->num_tries[sequence]++] = *batch;
}

static bool is_storage(const struct bag_update *update)
{
    return update->failed && update->problem.kind == BAG_ERROR_STORAGE;
}

/* Returns whether the answer says that the update may be there after a restart. */
static bool may_be_applied(const struct bag_update *update)
{
    return is_storage(update) && strstr(update->problem.text, "may be applied");
}

/* The next number was this batch's. */
static void acknowledge(struct story *story, const struct batch *batch)
{
    uint64_t sequence = ++story->acknowledged;
    story->states[sequence] = story->states[sequence - 1];
    apply_to_state(&story->states[sequence], batch);
    story->batches[sequence] = *batch;
    story->num_tries[sequence] = 0;
    story->applied++;
}

/* `one_failed`: one that was asked before it, together with it. */
static void take_outcome(struct story *story, const struct asked *asked, bool *one_failed)
{
    const struct bag_update *update = &asked->update;
    if (update->applied) {
        require(story, !update->failed && update->sequence == story->acknowledged + 1);
        acknowledge(story, &asked->batch);
        return;
    }
    require(story, update->failed && (is_storage(update) || *one_failed));
    /* The failed batch may have any of the next TOGETHER numbers. */
    for (uint64_t i = 0; may_be_applied(update) && i < TOGETHER; i++)
        remember_try(story, story->acknowledged + 1 + i, &asked->batch);
    *one_failed = true;
    story->failed++;
}

/* One to a few updates at once; with numbers, or with the next ones. */
static void send(struct story *story)
{
    struct asked asked[TOGETHER];
    size_t count = 1 + rng_below(&story->rng, TOGETHER);
    struct state state = story->states[story->acknowledged];
    bool numbered = rng_below(&story->rng, 2), one_failed = false;
    for (size_t i = 0; i < count; i++) {
        ask(story, &asked[i], &state);
        asked[i].update.sequence = numbered ? story->acknowledged + 1 + i : 0;
        STAILQ_NEXT(&asked[i].update, next) = i + 1 < count ? &asked[i + 1].update : NULL;
        apply_to_state(&state, &asked[i].batch);
    }
    bag_updates_run(&asked[0].update);
    for (size_t i = 0; i < count; i++)
        take_outcome(story, &asked[i], &one_failed);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* One update for several numbers, of which some may have been used. */
static void send_range(struct story *story)
{
    struct batch parts[TOGETHER], merged = {.count = 0};
    /* Make batches of one kind that follow the acknowledged updates. */
    struct state state = story->states[story->acknowledged];
    size_t most = 1 + rng_below(&story->rng, TOGETHER), count = 0;
    while (count < most) {
        parts[count] = make_batch(story, &state);
        if (rng_below(&story->rng, 8) == 0)
            parts[count].count = 0;
        if (count && parts[count].deletes != parts[0].deletes)
            break;
        apply_to_state(&state, &parts[count++]);
    }
    uint64_t last = story->acknowledged, first = last + 1;
    while (first > 1 && story->batches[first - 1].deletes == parts[0].deletes &&
           rng_below(&story->rng, 2))
        first--;
    for (uint64_t i = first; i <= last; i++)
        merge(&merged, &story->batches[i]);
    for (size_t i = 0; i < count; i++)
        merge(&merged, &parts[i]);
    merged.deletes = parts[0].deletes;
    struct asked asked = {.batch = merged};
    prepare(story, &asked);
    asked.update.first_sequence = first;
    asked.update.sequence = last + count;
    bag_updates_run(&asked.update);
    for (size_t i = 0; i < count; i++) {
        if (asked.update.applied)
            acknowledge(story, &parts[i]);
        else if (may_be_applied(&asked.update))
            remember_try(story, last + 1 + i, &parts[i]);
    }
    require(story, asked.update.applied || is_storage(&asked.update));
    require(story, !asked.update.applied || asked.update.sequence == story->acknowledged);
    story->failed += !asked.update.applied;
    story->ranges += asked.update.applied;
}

/* A number that was used changes nothing, and one that is too high is rejected. */
static void send_wrong(struct story *story)
{
    struct asked asked;
    uint64_t last = story->acknowledged, ahead = 2 + rng_below(&story->rng, 3);
    ask(story, &asked, &story->states[last]);
    asked.update.sequence = last + ahead;
    asked.update.first_sequence = ahead > 2 ? last + 2 : 0;
    bag_updates_run(&asked.update);
    require(story, asked.update.failed);
    require(story, asked.update.problem.kind == BAG_ERROR_CONFLICT);
    if (last == 0)
        return;
    asked.update.sequence = 1 + rng_below(&story->rng, (unsigned)last);
    asked.update.first_sequence = ahead > 2 ? 1 : 0;
    bag_updates_run(&asked.update);
    require(story, !asked.update.failed && !asked.update.applied);
}

/* ---- stories --------------------------------------------------------------------------------- */

static void check_versions(struct story *story)
{
    for (size_t i = 0; i < story->num_versions; i++) {
        struct state state = read_table(story->keyed, &story->versions[i].memory);
        require(story, same_state(&state, &story->states[story->acknowledged]));
    }
}

/* A version from a newer snapshot, at first beside the one before. */
static void reload(struct story *story)
{
    struct bag_problem problem;
    uint64_t from = story->in_memory ? 0 : story->versions[0].through;
    uint64_t span = story->acknowledged - from;
    if (!attach(story, from + rng_next(&story->rng) % (span + 1), &problem)) {
        require(story, !story->in_memory || story->kept_bytes < UNBOUNDED);
        story->rejected++;
        return; /* the served version stays */
    }
    if (rng_below(&story->rng, 2))
        send(story);
    check_versions(story);
    bag_table_unload(&story->versions[0].memory);
    /* The struct moves, as no model's does. */
    struct bag_live_rows *live = story->versions[1].memory.live;
    story->versions[0] = story->versions[1];
    live->memory = &story->versions[0].memory;
    story->num_versions = 1;
    story->reloads++;
}

static void live(struct story *story)
{
    unsigned steps = 1 + rng_below(&story->rng, 12);
    struct fake_disk *disk = story->disk;
    disk->fails = rng_below(&story->rng, 2) ? 0 : 4 + rng_below(&story->rng, 40);
    if (rng_below(&story->rng, 2))
        disk->calls_left = rng_below(&story->rng, 60);
    for (unsigned i = 0; i < steps && story->acknowledged + 2 * TOGETHER < MAX_SEQ; i++) {
        disk->full = disk->calls_left < 0 && rng_below(&story->rng, 10) == 0;
        unsigned what = rng_below(&story->rng, 10);
        if (what < 4)
            send(story);
        else if (what < 6)
            send_range(story);
        else if (what < 7)
            send_wrong(story);
        else if (what < 8 && disk->calls_left < 0)
            reload(story);
        else
            bag_updates_sync(&story->updates);
        check_versions(story);
    }
    disk->fails = 0;
}

static struct story *begin(uint64_t seed)
{
    struct story *story = calloc(1, sizeof *story);
    assert_non_null(story);
    story->seed = seed;
    story->rng.state = seed * 2 + 1;
    story->disk = make_disk(seed * 2 + 2);
    story->keyed = rng_below(&story->rng, 2);
    story->sync = rng_below(&story->rng, 3) ? BAG_JOURNAL_SYNC_ALWAYS
                                            : (enum bag_journal_sync)rng_below(&story->rng, 3);
    for (size_t i = 0; i < IDS; i++)
        story->states[0].there[i] = !story->keyed || rng_below(&story->rng, 2);
    return story;
}

static void end(struct story *story, struct story *sum)
{
    sum->restarts += story->restarts;
    sum->applied += story->applied;
    sum->ranges += story->ranges;
    sum->failed += story->failed;
    sum->reloads += story->reloads;
    sum->rejected += story->rejected;
    sum->powers += story->powers;
    free_disk(story->disk);
    free(story);
}

static void run_story(uint64_t seed, struct story *sum)
{
    struct story *story = begin(seed);
    unsigned lives = 2 + rng_below(&story->rng, 4);
    bool loses_power = false;
    disk_make_folder(story->disk, "/data");
    disk_sync_folder(story->disk, "");
    for (unsigned i = 0; i < lives; i++) {
        start(story, loses_power);
        live(story);
        loses_power = rng_below(&story->rng, 2);
        stop(story, loses_power);
    }
    start(story, loses_power);
    stop(story, false);
    end(story, sum);
}

/* One life without a journal: what a version lacks comes from memory, within its bound. */
static void run_memory_story(uint64_t seed, struct story *sum)
{
    struct story *story = begin(seed);
    story->in_memory = true;
    story->kept_bytes = rng_below(&story->rng, 2) ? UNBOUNDED : rng_below(&story->rng, 3000);
    start(story, false);
    while (story->acknowledged + 2 * TOGETHER < MAX_SEQ) {
        if (rng_below(&story->rng, 3))
            send(story);
        else
            send_range(story);
        if (rng_below(&story->rng, 2))
            reload(story);
        check_versions(story);
    }
    require(story, story->updates.kept_bytes <= story->kept_bytes);
    stop(story, false);
    end(story, sum);
}

static uint64_t count = 300, first = 1;

/* ---- failed syncs ---------------------------------------------------------------------------- */

/* Sends updates while syncs fail, and restarts: only what was acknowledged is there, and the
 * numbers after it are free for other batches. */
static void run_failed_sync(uint64_t seed, size_t together, unsigned failing, bool loses_power)
{
    struct story *story = begin(seed);
    struct asked asked[TOGETHER];
    bool one_failed = false;
    story->sync = BAG_JOURNAL_SYNC_ALWAYS;
    disk_make_folder(story->disk, "/data");
    disk_sync_folder(story->disk, "");
    start(story, false);
    for (size_t i = seed % 2; i < 2; i++)
        send(story);
    for (size_t i = 0; i < together; i++) {
        asked[i].batch = make_batch(story, &story->states[story->acknowledged]);
        asked[i].batch.deletes = false;
        prepare(story, &asked[i]);
        asked[i].update.sequence = story->acknowledged + 1 + i;
        STAILQ_NEXT(&asked[i].update, next) = i + 1 < together ? &asked[i + 1].update : NULL;
    }
    story->disk->failing_syncs = failing;
    bag_updates_run(&asked[0].update);
    for (size_t i = 0; i < together; i++) {
        require(story, failing == UINT_MAX || !may_be_applied(&asked[i].update));
        take_outcome(story, &asked[i], &one_failed);
    }
    require(story, one_failed);
    check_versions(story);
    uint64_t last = story->acknowledged;
    stop(story, loses_power);
    start(story, loses_power);
    require(story, story->acknowledged == last || failing == UINT_MAX);
    send(story);
    check_versions(story);
    stop(story, true);
    start(story, true);
    stop(story, false);
    free_disk(story->disk);
    free(story);
}

static int read_arguments(void **state)
{
    (void)state;
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_ERROR);
    if (testing.arguments[0]) {
        count = strtoull(testing.arguments[0], NULL, 10);
        first = testing.arguments[1] ? strtoull(testing.arguments[1], NULL, 10) : first;
    }
    return 0;
}

AROUND_ALL(read_arguments, NULL)

/* Tests single updates and groups of updates. */
TEST(test_failed_syncs_are_taken_back)
{
    for (uint64_t i = 0; i < 8 * 40; i++)
        run_failed_sync(1 + i / 8, i % 2 ? 3 : 1, i / 2 % 2 ? UINT_MAX : 1, i / 4 % 2);
}

/* Returns the totals of all stories, which the caller frees. */
static struct story *run_stories(void (*run)(uint64_t seed, struct story *sum))
{
    struct story *sum = calloc(1, sizeof *sum);
    assert_non_null(sum);
    for (uint64_t seed = first; seed < first + count; seed++)
        run(seed, sum);
    printf(
        "%llu stories: %zu updates applied, %zu ranges, %zu failed, %zu reloads, %zu rejected, %zu "
        "restarts, %zu without power\n",
        (unsigned long long)count, sum->applied, sum->ranges, sum->failed, sum->reloads,
        sum->rejected, sum->restarts, sum->powers);
    return sum;
}

TEST(test_memory_stories)
{
    struct story *sum = run_stories(run_memory_story);
    assert_true(sum->reloads > count && sum->rejected);
    free(sum);
}

TEST(test_stories)
{
    struct story *sum = run_stories(run_story);
    assert_true(sum->applied > count && sum->ranges && sum->failed && sum->reloads && sum->powers);
    free(sum);
}
