/* Updates that fail because of the disk or a table's index: the answers to the client, and the
 * state after a restart. */
#include "disk_fixture.h"
#include "memory_fixture.h"

#include "server/system/log.h"
#include "server/updates/updates.h"

#include <signal.h>
#include <sys/mman.h>

#define ROWS    8
#define COLUMNS 2

static struct fake_disk *disk;
static struct bag_updates updates;

static void start(enum bag_journal_sync sync)
{
    struct bag_updates_settings settings = {.journal_dir = "/data/journal",
                                            .sync = sync,
                                            .disk = &disk->calls,
                                            .journal_file_bytes = 1 << 20};
    assert_true(bag_updates_init(&updates, &settings));
}

static int set_up(void **state)
{
    (void)state;
    disk = make_disk(1);
    disk_make_folder(disk, "/data");
    disk_sync_folder(disk, "");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free_disk(disk);
    return 0;
}

/* A table of zeros. */
static void attach_as(const char *name, struct bag_table_memory *memory, enum bag_dtype dtype,
                      uint64_t through)
{
    struct bag_problem problem;
    int64_t shape[2] = {ROWS, COLUMNS};
    assert_true(create_table(dtype, 2, shape, memory, &problem));
    memset(memory->mapping, 0, ROWS * bag_row_bytes(&memory->table));
    struct bag_updates_table table = {.name = name, .memory = memory, .through = through};
    if (!bag_updates_attach(&updates, &table, &problem))
        fail_msg("%s", problem.text);
}

static void attach(struct bag_table_memory *memory, enum bag_dtype dtype, uint64_t through)
{
    attach_as("items", memory, dtype, through);
}

static void ignore_done(struct bag_update *update)
{
    (void)update;
}

static void stop(struct bag_table_memory *memory)
{
    bag_table_unload(memory);
    bag_updates_free(&updates);
}

/* Puts a row, as the table stores it; returns what was wrong, or NULL. */
static const char *put_row(struct bag_table_memory *memory, uint64_t id, const void *row)
{
    static struct bag_update update;
    update = (struct bag_update){
        .live = memory->live, .batch = {.count = 1, .ids = &id, .rows = row}, .done = ignore_done};
    bag_updates_run(&update);
    assert_true(update.failed != update.applied);
    return update.failed ? update.problem.text : NULL;
}

static const float ones[COLUMNS] = {1, 1};
static const uint16_t half_twos[COLUMNS] = {0x4000, 0x4000};

/* ---- syncs that fail ------------------------------------------------------------------------- */

static void check_after_power_loss(void)
{
    struct bag_table_memory again;
    bag_updates_free(&updates);
    crash(disk, true);
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&again, BAG_F32, 0);
    const float *rows = again.table.rows;
    assert_true(rows[3 * COLUMNS] == 1 && rows[5 * COLUMNS] == 2);
    stop(&again);
}

static int log_errors_only(void **state)
{
    (void)state;
    bag_log_configure(BAG_LOG_FORMAT_TEXT, BAG_LOG_LEVEL_ERROR);
    return 0;
}

AROUND_ALL(log_errors_only, NULL)

/* Rows of another type cannot follow in the same file those that could not be synced. */
TEST_BETWEEN(test_other_rows_after_a_failed_sync, set_up, tear_down)
{
    struct bag_table_memory f32, f16;
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&f32, BAG_F32, 0);
    assert_null(put_row(&f32, 3, ones));
    disk->fails = 1;
    bag_updates_sync(&updates);
    attach(&f16, BAG_F16, 0);
    assert_non_null(strstr(put_row(&f16, 5, half_twos), "a file cannot be begun"));
    disk->fails = 0;
    assert_null(put_row(&f16, 5, half_twos));
    bag_updates_sync(&updates);
    bag_table_unload(&f16);
    bag_table_unload(&f32);
    check_after_power_loss();
}

/* Acknowledged updates are safe after the next successful sync, even if no update follows. */
TEST_BETWEEN(test_next_sync_writes_again, set_up, tear_down)
{
    struct bag_table_memory f32;
    const float twos[COLUMNS] = {2, 2};
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach(&f32, BAG_F32, 0);
    assert_null(put_row(&f32, 3, ones));
    assert_null(put_row(&f32, 5, twos));
    disk->fails = 1;
    bag_updates_sync(&updates);
    bag_updates_sync(&updates);
    disk->fails = 0;
    bag_updates_sync(&updates);
    bag_table_unload(&f32);
    check_after_power_loss();
}

/* ---- what opening finds ---------------------------------------------------------------------- */

static uint64_t sequence_of(const struct bag_table_memory *memory)
{
    return memory->live->stream->sequence;
}

/* Two records were never synced, and the disk has only the second. A new record in the place of the
 * first is not followed by it. */
TEST_BETWEEN(test_torn_tail_is_gone, set_up, tear_down)
{
    struct bag_table_memory memory;
    start(BAG_JOURNAL_SYNC_OFF);
    attach(&memory, BAG_F32, 0);
    assert_null(put_row(&memory, 3, ones));
    assert_null(put_row(&memory, 5, ones));
    stop(&memory);
    int file = file_at(disk, "/data/journal/items/00000000000000000001.journal");
    assert_int_equal(disk->files[file].now_bytes, 64 + 2 * 64);
    disk->files[file].now[64 + 8] ^= 1;
    start(BAG_JOURNAL_SYNC_OFF);
    attach(&memory, BAG_F32, 0);
    assert_int_equal(sequence_of(&memory), 0);
    assert_null(put_row(&memory, 1, ones));
    stop(&memory);
    start(BAG_JOURNAL_SYNC_OFF);
    attach(&memory, BAG_F32, 0);
    assert_int_equal(sequence_of(&memory), 1);
    stop(&memory);
}

/* The process ends after so many calls of the first update, and the machine after the next one. */
static void check_first_file(long calls, uint64_t seed)
{
    struct bag_table_memory memory;
    disk->rng.state = seed;
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach(&memory, BAG_F32, 0);
    disk->calls_left = calls;
    put_row(&memory, 3, ones);
    stop(&memory);
    crash(disk, false);
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach(&memory, BAG_F32, 0);
    assert_null(put_row(&memory, 5, ones));
    uint64_t sequence = sequence_of(&memory);
    stop(&memory);
    crash(disk, true);
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach(&memory, BAG_F32, 0);
    assert_int_equal(sequence_of(&memory), sequence);
    assert_true(((const float *)memory.table.rows)[5 * COLUMNS] == 1);
    stop(&memory);
}

/* A file whose name was in the folder, and not on the disk yet, takes no record before it is. */
TEST_BETWEEN(test_names_are_safe_at_opening, set_up, tear_down)
{
    for (uint64_t i = 0; i < 20 * 8; i++) {
        check_first_file((long)(i / 8), i);
        tear_down(state);
        set_up(state);
    }
}

/* ---- updates that cannot be applied ---------------------------------------------------------- */

static bool read_keys(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                      struct bag_problem *problem)
{
    (void)rows;
    (void)context, (void)problem;
    for (size_t i = 0; i < count; i++)
        keys[i] = 100 + first + i;
    return true;
}

/* A keyed table of zeros, with the keys 100 to 103 and room for as many. */
static void attach_keyed(struct bag_table_memory *memory)
{
    struct bag_keys_source source = {read_keys, NULL, ROWS / 2, false, ROWS / 2, false};
    struct bag_problem problem;
    int64_t shape[2] = {ROWS, COLUMNS};
    assert_true(create_table(BAG_F32, 2, shape, memory, &problem));
    memset(memory->mapping, 0, ROWS * bag_row_bytes(&memory->table));
    memory->spare_rows = ROWS / 2;
    memory->shape[0] = memory->table.num_rows = ROWS / 2;
    memory->keys_dtype = BAG_U64;
    assert_true(bag_keys_index_build(&source, &(struct bag_load_options){.threads = 1},
                                     &memory->index, &problem));
    struct bag_updates_table table = {.name = "items", .memory = memory};
    if (!bag_updates_attach(&updates, &table, &problem))
        fail_msg("%s", problem.text);
}

/* Checking an update reserves the memory that applying it takes, before the update is written
 * anywhere. */
TEST_BETWEEN(test_check_reserves, set_up, tear_down)
{
    struct bag_table_memory memory;
    const uint64_t keys[3] = {100, 7, 8};
    struct bag_rows_batch batch = {.count = 3, .ids = keys};
    struct bag_problem problem;
    bool changes_keys;
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach_keyed(&memory);
    assert_true(bag_live_rows_check(memory.live, &batch, &changes_keys, &problem));
    assert_true(changes_keys && memory.live->found_room >= 3 && memory.live->freed_room >= 2);
    stop(&memory);
}

/* As if every place of the index were taken. */
static const char *put_in_full_index(struct bag_table_memory *memory, uint64_t key)
{
    struct bag_keys *keys = &memory->index.keys;
    size_t bytes = keys->num_lines * sizeof *keys->lines;
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, keys->lines, bytes);
    for (size_t i = 0; i < keys->num_lines; i++)
        memset(keys->lines[i].words, 0xff, sizeof keys->lines[i].words);
    const char *why = put_row(memory, key, ones);
    memcpy(keys->lines, copy, bytes);
    free(copy);
    return why;
}

static void check_keys(struct bag_table_memory *memory)
{
    assert_true(bag_keys_find_one(&memory->index.keys, 7) < 0);
    int64_t row = bag_keys_find_one(&memory->index.keys, 8);
    assert_true(row >= 0 && ((const float *)memory->table.rows)[row * COLUMNS] == 1);
    assert_int_equal(memory->live->stream->sequence, 2);
}

/* An update that was reported as failed is absent after a restart too, and its number is free. */
static void check_failed_update(enum bag_journal_sync sync)
{
    struct bag_table_memory memory;
    start(sync);
    attach_keyed(&memory);
    assert_null(put_row(&memory, 100, ones));
    assert_non_null(strstr(put_in_full_index(&memory, 7), "no place for a new key"));
    assert_int_equal(memory.live->stream->sequence, 1);
    stop(&memory);
    crash(disk, false);
    start(sync);
    attach_keyed(&memory);
    assert_int_equal(memory.live->stream->sequence, 1);
    assert_non_null(put_in_full_index(&memory, 7));
    assert_null(put_row(&memory, 8, ones));
    check_keys(&memory);
    bag_updates_sync(&updates);
    stop(&memory);
    crash(disk, true);
    start(sync);
    attach_keyed(&memory);
    check_keys(&memory);
    stop(&memory);
}

TEST_BETWEEN(test_failed_update_is_taken_back, set_up, tear_down)
{
    check_failed_update(BAG_JOURNAL_SYNC_ALWAYS);
    tear_down(state);
    set_up(state);
    check_failed_update(BAG_JOURNAL_SYNC_INTERVAL);
}

/* Updates of one group are checked one after the other: the room that an earlier one of them takes
 * is not there for a later one, which fails before it is written. */
TEST_BETWEEN(test_room_is_given_once_in_a_group, set_up, tear_down)
{
    struct bag_table_memory memory;
    const uint64_t three[] = {200, 201, 202}, two[] = {210, 211}, last[] = {220}, there[] = {100};
    const struct {
        const uint64_t *ids;
        size_t count;
        uint64_t sequence; /* 0: it is rejected */
    } cases[] = {{three, 3, 1}, {two, 2, 0}, {last, 1, 2}, {two, 1, 0}, {there, 1, 3}};
    float rows[3 * COLUMNS] = {1, 1, 1, 1, 1, 1};
    struct bag_update group[COUNT_OF(cases)];
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach_keyed(&memory);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        group[i] = (struct bag_update){
            .live = memory.live,
            .batch = {.count = cases[i].count, .ids = cases[i].ids, .rows = (const char *)rows},
            .done = ignore_done};
        STAILQ_NEXT(&group[i], next) = i + 1 < COUNT_OF(cases) ? &group[i + 1] : NULL;
    }
    bag_updates_run(&group[0]);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(group[i].applied, cases[i].sequence > 0);
        if (group[i].applied)
            assert_int_equal(group[i].sequence, cases[i].sequence);
        else
            assert_int_equal(group[i].problem.kind, BAG_ERROR_TABLE_FULL);
    }
    stop(&memory);
    crash(disk, false);
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach_keyed(&memory);
    assert_int_equal(memory.live->stream->sequence, 3);
    assert_true(bag_keys_find_one(&memory.index.keys, 220) >= 0);
    assert_true(bag_keys_find_one(&memory.index.keys, 210) < 0);
    stop(&memory);
}

/* If the disk does not accept the removal either, no update follows a record that may exist. */
TEST_BETWEEN(test_failed_update_that_stays, set_up, tear_down)
{
    struct bag_table_memory memory;
    start(BAG_JOURNAL_SYNC_INTERVAL);
    attach_keyed(&memory);
    assert_null(put_row(&memory, 100, ones));
    disk->truncates_fail = true;
    assert_non_null(strstr(put_in_full_index(&memory, 7), "may be applied then"));
    assert_non_null(strstr(put_row(&memory, 8, ones), "stop here"));
    stop(&memory);
}

/* ---- several models -------------------------------------------------------------------------- */

/* A disk on which syncs of the first model's files wait until the test releases them. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static int slow_file = -1;
static bool is_syncing, may_sync;
static size_t num_done;

static int slow_sync(void *context, int file)
{
    pthread_mutex_lock(&gate);
    is_syncing |= file == slow_file;
    pthread_cond_broadcast(&gate_changed);
    while (file == slow_file && !may_sync)
        pthread_cond_wait(&gate_changed, &gate);
    pthread_mutex_unlock(&gate);
    return disk_sync(context, file);
}

static void count_done(struct bag_update *update)
{
    assert_true(update->applied);
    pthread_mutex_lock(&gate);
    num_done++;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate);
}

static void await_gate(const bool *flag, const size_t *number, size_t wanted)
{
    pthread_mutex_lock(&gate);
    while (flag ? !*flag : *number < wanted)
        pthread_cond_wait(&gate_changed, &gate);
    pthread_mutex_unlock(&gate);
}

static void submit(struct bag_update *update, struct bag_table_memory *memory)
{
    static const uint64_t id = 1;
    *update = (struct bag_update){.live = memory->live,
                                  .batch = {.count = 1, .ids = &id, .rows = (const char *)ones},
                                  .done = count_done};
    bag_updates_submit(update);
}

/* While one journal is being synced, updates of other models are acknowledged, and tables of theirs
 * come and go. */
TEST_BETWEEN(test_slow_journals_hold_up_none, set_up, tear_down)
{
    struct bag_table_memory slow, fast, more;
    struct bag_update first, second, others[3];
    struct bag_problem problem;
    start(BAG_JOURNAL_SYNC_ALWAYS);
    attach(&slow, BAG_F32, 0);
    assert_null(put_row(&slow, 0, ones));
    slow_file = file_at(disk, "/data/journal/items/00000000000000000001.journal");
    disk->calls.sync = slow_sync;
    attach_as("others", &fast, BAG_F32, 0);
    assert_true(bag_updates_start(&updates, &problem));
    submit(&first, &slow);
    await_gate(&is_syncing, NULL, 0);
    submit(&second, &slow);
    for (size_t i = 0; i < 3; i++) {
        submit(&others[i], &fast);
        await_gate(NULL, &num_done, i + 1);
    }
    attach_as("others", &more, BAG_F32, 0);
    bag_table_unload(&more);
    assert_int_equal(sequence_of(&fast), 3);
    assert_int_equal(sequence_of(&slow), 1);
    pthread_mutex_lock(&gate);
    may_sync = true;
    pthread_cond_broadcast(&gate_changed);
    pthread_mutex_unlock(&gate);
    await_gate(NULL, &num_done, 5);
    assert_int_equal(sequence_of(&slow), 3);
    assert_true(first.sequence == 2 && second.sequence == 3);
    bag_updates_stop(&updates);
    bag_table_unload(&slow);
    stop(&fast);
}

/* ---- updates in memory ----------------------------------------------------------------------- */

static char *faulting;
static int lock_result = -1;

/* The attaching thread writes to the table for the first time: notes whether another thread could
 * take the lock of all streams now. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    if (!faulting || (char *)info->si_addr < faulting || (char *)info->si_addr >= faulting + 4096)
        abort();
    mprotect(faulting, 4096, PROT_READ | PROT_WRITE);
    faulting = NULL;
    lock_result = pthread_mutex_trylock(&updates.lock);
    if (lock_result == 0)
        pthread_mutex_unlock(&updates.lock);
}

static void start_in_memory(size_t bytes)
{
    struct bag_updates_settings settings = {.kept_bytes = bytes};
    assert_true(bag_updates_init(&updates, &settings));
}

/* While a table gets the updates that are kept in memory, other models' streams go on. */
TEST(test_kept_updates_hold_up_no_stream)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    struct bag_table_memory memory, other;
    struct bag_problem problem;
    int64_t shape[2] = {4096 / sizeof(float) / COLUMNS, COLUMNS};
    start_in_memory(1 << 20);
    attach(&memory, BAG_F32, 0);
    assert_null(put_row(&memory, 3, ones));
    assert_null(put_row(&memory, 5, ones));
    assert_true(create_table(BAG_F32, 2, shape, &other, &problem));
    memset(other.mapping, 0, 4096);
    faulting = other.mapping;
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    assert_int_equal(mprotect(other.mapping, 4096, PROT_READ), 0);
    struct bag_updates_table table = {.name = "items", .version = 2, .memory = &other};
    assert_true(bag_updates_attach(&updates, &table, &problem));
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_int_equal(lock_result, 0);
    assert_true(((const float *)other.table.rows)[3 * COLUMNS] == 1 &&
                ((const float *)other.table.rows)[5 * COLUMNS] == 1);
    bag_table_unload(&other);
    stop(&memory);
}

/* Puts the first rows in one update. */
static void put_rows(struct bag_table_memory *memory, size_t count)
{
    static const uint64_t ids[ROWS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const float rows[ROWS][COLUMNS] = {{1, 1}, {1, 1}};
    struct bag_update update = {.live = memory->live,
                                .batch = {.count = count, .ids = ids, .rows = (const char *)rows},
                                .done = ignore_done};
    bag_updates_run(&update);
    assert_true(update.applied);
}

/* Returns whether another version of the model, which includes no update, can be attached. If not,
 * it lacks the first one. */
static bool attaches_again(const char *name)
{
    struct bag_table_memory memory;
    struct bag_problem problem;
    int64_t shape[2] = {ROWS, COLUMNS};
    struct bag_updates_table table = {.name = name, .version = 2, .memory = &memory};
    assert_true(create_table(BAG_F32, 2, shape, &memory, &problem));
    memset(memory.mapping, 0, sizeof(float) * ROWS * COLUMNS);
    bool ok = bag_updates_attach(&updates, &table, &problem);
    if (ok)
        assert_true(((const float *)memory.table.rows)[0] == 1);
    else
        assert_non_null(strstr(problem.text, "lacks updates 1 to 1"));
    bag_table_unload(&memory);
    return ok;
}

/* The stream that keeps the most bytes makes room for others, and knows what it does not have. */
static void check_room(const char *first, const char *second, bool first_is_larger)
{
    struct bag_table_memory memories[2];
    const char *names[2] = {first, second};
    int large = first_is_larger ? 0 : 1, small = 1 - large;
    start_in_memory(1 << 20);
    for (int i = 0; i < 2; i++)
        attach_as(names[i], &memories[i], BAG_F32, 0);
    put_rows(&memories[large], ROWS);
    size_t large_bytes = updates.kept_bytes;
    put_rows(&memories[small], 1);
    size_t small_bytes = updates.kept_bytes - large_bytes;
    updates.settings.kept_bytes = updates.kept_bytes;
    put_rows(&memories[small], 1);
    assert_int_equal(updates.kept_bytes, 2 * small_bytes);
    assert_false(attaches_again(names[large]));
    assert_true(attaches_again(names[small]));
    bag_table_unload(&memories[0]);
    stop(&memories[1]);
}

TEST(test_largest_stream_makes_room)
{
    check_room("a", "b", true);
    check_room("a", "b", false);
}

/* Each of many streams is found by its name, and no other. */
TEST(test_streams_are_found_by_name)
{
    start_in_memory(1 << 20);
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "table-%d", i * 7919 % 300);
        assert_null(bag_updates_find(&updates, name));
        struct bag_updates_stream *stream = bag_updates_make_stream(&updates, name);
        assert_non_null(stream);
        assert_ptr_equal(bag_updates_find(&updates, name), stream);
    }
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "table-%d", i);
        assert_string_equal(bag_updates_find(&updates, name)->name, name);
    }
    assert_null(bag_updates_find(&updates, "table-300"));
    bag_updates_free(&updates);
}
