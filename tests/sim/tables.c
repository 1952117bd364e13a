/* The tables on the disk: those of the start, and versions that are published for a server that
 * polls; see sim.h. */
#include "clients.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The one that all schedules of the process have; its name must not be in a message. */
static char folder[64];

/* ---- files ----------------------------------------------------------------------------------- */

static FILE *create(const char *path)
{
    FILE *file = fopen(path, "wb");
    sim_require(file, "%s cannot be written", path);
    return file;
}

/* In that folder, which is the current one. */
__attribute__((format(printf, 1, 2))) static const char *path_of(const char *format, ...)
{
    static char path[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    return path;
}

static FILE *create_array(const char *path, const char *descr, const char *shape)
{
    char head[128];
    FILE *file = create(path);
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int count = snprintf(head + 10, sizeof head - 10,
                         "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    head[10 + count] = ' ';
    head[sizeof head - 1] = '\n';
    fwrite(head, 1, sizeof head, file);
    return file;
}

static void write_keys(const char *path)
{
    char shape[24];
    snprintf(shape, sizeof shape, "(%d,)", ROWS);
    FILE *file = create_array(path, "<i8", shape);
    for (size_t row = 0; row < ROWS; row++) {
        int64_t key = key_of(row);
        fwrite(&key, sizeof key, 1, file);
    }
    fclose(file);
}

/* In models/NAME/PLACE. */
static void write_table(size_t table, unsigned version, const char *place)
{
    const char *name = model_names[table];
    char shape[24];
    mkdir(path_of("models/%s", name), 0700);
    mkdir(path_of("models/%s/%s", name, place), 0700);
    snprintf(shape, sizeof shape, "(%d, %d)", ROWS, COLUMNS);
    FILE *file = create_array(path_of("models/%s/%s/values.npy", name, place), "<f4", shape);
    for (size_t row = 0; row < ROWS; row++) {
        float values[COLUMNS];
        for (size_t column = 0; column < COLUMNS; column++)
            values[column] = element(table, version, 0, row, column);
        fwrite(values, sizeof *values, COLUMNS, file);
    }
    fclose(file);
    if (table == K)
        write_keys(path_of("models/%s/%s/keys.npy", name, place));
}

static const char *number_of(unsigned version)
{
    static char text[8];
    snprintf(text, sizeof text, "%u", version);
    return text;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = create(path);
    fputs(text, file);
    fclose(file);
    chmod(path, 0600);
}

/* ---- the start ----------------------------------------------------------------------------- */

void sim_tables_write(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/bagserve-sim-XXXXXX", parent ? parent : "/tmp");
    sim_require(mkdtemp(folder) && chdir(folder) == 0, "no folder for the tables");
    mkdir(path_of("journal"), 0700);
    mkdir(path_of("models"), 0700);
    for (size_t table = 0; table < TABLES; table++) {
        for (unsigned version = 1; version <= VERSIONS; version++)
            write_table(table, version, number_of(version));
    }
    mkdir(path_of("models/both"), 0700);
    mkdir(path_of("models/both/1"), 0700);
    write_text(
        path_of("models/both/1/config.json"),
        "{\"features\":[{\"name\":\"f_a\",\"model\":\"a\"},{\"name\":\"f_b\",\"model\":\"b\"}]}");
    write_text(path_of("models/c/config.json"), "{\"reload\":\"unload_first\"}");
    write_text(path_of("models/b/config.json"), "{\"load\":\"map\"}");
    char config[64];
    snprintf(config, sizeof config, "{\"missing\":\"skip\",\"spare_rows\":%d}", KEYS - ROWS);
    write_text(path_of("models/k/config.json"), config);
    write_text(path_of("tokens"), "admin " TOKEN "\n");
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place)
{
    (void)status, (void)type;
    return place->level ? remove(path) : 0;
}

void sim_empty_folder(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void sim_tables_remove(void)
{
    sim_empty_folder(".");
    if (chdir("/") != 0 || rmdir(folder) != 0)
        fprintf(stderr, "%s is left\n", folder);
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* A version that is being written in its final place. */
struct half {
    size_t table;
    struct change *change;
};

/* A poll sees it, the next one that it has not changed; and it is loaded. */
static void is_published(struct change *change)
{
    change->done_ns = sim.now_ns + (2 * POLL_S + 1) * S;
}

static void complete(void *context)
{
    struct half *half = context;
    if (sim_has_stopped())
        return;
    write_table(half->table, half->change->version, number_of(half->change->version));
    is_published(half->change);
}

/* Some of its files are there, or a part of one. */
static void publish_half(size_t table, struct change *change)
{
    const char *name = model_names[table], *number = number_of(change->version);
    struct half *half = sim_alloc(sizeof *half);
    *half = (struct half){table, change};
    write_table(table, change->version, number);
    bool lacks_keys = table == K && sim_one_in(2);
    if (lacks_keys)
        unlink(path_of("models/%s/%s/keys.npy", name, number));
    else if (truncate(path_of("models/%s/%s/values.npy", name, number), (off_t)sim_below(300)) != 0)
        sim_fail("a file cannot be truncated");
    change->done_ns = UINT64_MAX;
    /* Without its keys it is a table without keys, if it does not change in two polls. */
    sim_at(sim.now_ns + sim_below((lacks_keys ? 1 : 3) * POLL_S * S), complete, half);
}

static void publish_whole(size_t table, struct change *change)
{
    char hidden[64];
    const char *name = model_names[table];
    write_table(table, change->version, ".new");
    snprintf(hidden, sizeof hidden, "models/%s/.new", name);
    if (rename(hidden, path_of("models/%s/%s", name, number_of(change->version))) != 0)
        sim_fail("a folder cannot be renamed");
    is_published(change);
}

/* Not of A and B: an answer of the collection over them could have two versions. C alone, since
 * others wait until its last request has ended. */
static void publish(void *context)
{
    bool of_c = context != NULL;
    size_t table = of_c ? C : sim_one_in(2) ? U : K;
    size_t count = history.num_changes[table];
    if (sim_has_stopped() || VERSIONS + count == MAX_VERSION)
        return;
    struct change *change = &history.changes[table][history.num_changes[table]++];
    *change = (struct change){VERSIONS + 1 + (unsigned)count, sim.now_ns, 0, POLLED};
    if (sim_one_in(3))
        publish_half(table, change);
    else
        publish_whole(table, change);
    sim_at(sim.now_ns + sim_below(3 * POLL_S * S), publish, context);
}

void sim_tables_publish(void)
{
    sim_at(sim.now_ns + sim_below(POLL_S * S), publish, sim_one_in(4) ? folder : NULL);
}

void sim_tables_forget_published(void)
{
    for (size_t table = 0; table < TABLES; table++) {
        for (size_t i = 0; story.polls && i < history.num_changes[table]; i++) {
            const char *path =
                path_of("models/%s/%u", model_names[table], history.changes[table][i].version);
            sim_empty_folder(path);
            rmdir(path);
        }
    }
}
