/* `bagserve place`: says which node has which tables, and writes what each node and the front are
 * started with. */
#include "config/shards.h"
#include "place.h"
#include "proto/text.h"
#include "server/commands.h"
#include "server/memory/memory.h"
#include "server/system/arguments.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_ADDRESS "http://node-{index}:8000"

enum { BAG_PLACE_FLAGS(BAG_TOOL_ID) FLAG_COUNT };
static const struct bag_tool_flag flags[] = {BAG_PLACE_FLAGS(BAG_TOOL_FLAG)};

static const struct bag_tool tool = {
    "bagserve place --memory BYTES [flags] CONFIG",
    "Packs the tables of a configuration over several servers, whole where they fit and in parts\n"
    "where they do not, and writes the configuration of each, and that of a front that answers "
    "for\n"
    "all of them. Only the heads of files are read. Exit code 1: they do not fit.\n",
    flags,
    FLAG_COUNT,
    1,
    1};

/* ---- flags ----------------------------------------------------------------------------------- */

static bool read_memory(const char *text, uint64_t *bytes, struct bag_problem *problem)
{
    int64_t value;
    if (!text)
        return bag_problem_set(
            problem, BAG_ERROR_USAGE,
            "--memory is missing: the bytes of tables that a node may hold, such "
            "as 64GiB");
    if (!bag_size_parse(text, &value) || value < 1)
        return bag_problem_set(problem, BAG_ERROR_USAGE,
                               "--memory %s: must be a size of at least 1 byte, such as 64GiB",
                               bag_quote(text, strlen(text)).text);
    *bytes = (uint64_t)value;
    return true;
}

static bool read_flags(struct bag_place *place, const char *const *values,
                       struct bag_problem *problem)
{
    size_t nodes = 0;
    if (!read_memory(values[FLAG_MEMORY], &place->placement.memory_bytes, problem) ||
        (values[FLAG_NODES] &&
         !bag_tool_number("--nodes", values[FLAG_NODES], 1, BAG_PLACE_MAX_NODES, &nodes, problem)))
        return false;
    const char *by = values[FLAG_BY] ? values[FLAG_BY] : "rows";
    place->by_columns = strcmp(by, "columns") == 0;
    if (!place->by_columns && strcmp(by, "rows") != 0)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "--by %s: must be rows or columns",
                               bag_quote(by, strlen(by)).text);
    place->placement.num_nodes = (uint32_t)nodes;
    place->address = values[FLAG_ADDRESS] ? values[FLAG_ADDRESS] : DEFAULT_ADDRESS;
    return true;
}

/* Once it is known how many nodes there are. */
static bool check_address(const struct bag_place *place, struct bag_problem *problem)
{
    struct bag_shard_address parsed;
    if (place->placement.num_nodes > 1 && !strstr(place->address, "{index}"))
        return bag_problem_set(
            problem, BAG_ERROR_USAGE,
            "--address %s: must have {index} where the number of a node stands, such "
            "as " DEFAULT_ADDRESS,
            bag_quote(place->address, strlen(place->address)).text);
    char *address = bag_divided_address(place->address, place->placement.num_nodes - 1);
    const char *at = address;
    if (!address)
        return bag_problem_no_memory(problem);
    bool ok = bag_shards_next(&at, &parsed, problem) && !*at;
    free(address);
    return ok ||
           bag_problem_set(problem, BAG_ERROR_USAGE,
                           "--address %s: must be http://HOST:PORT or unix:PATH, with {index} "
                           "where the number of a node stands, such as " DEFAULT_ADDRESS,
                           bag_quote(place->address, strlen(place->address)).text);
}

/* ---- what is told ---------------------------------------------------------------------------- */

static double percent_of(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

static void tell_node(const struct bag_place *place, uint32_t node, double rate)
{
    const struct bag_placement *placement = &place->placement;
    const struct bag_place_node *at = &placement->nodes[node];
    size_t tables = 0, parts = 0;
    for (size_t i = 0; i < placement->num_items; i++) {
        const struct bag_place_item *item = &placement->items[i];
        for (uint32_t j = 0; j < item->parts; j++) {
            tables += item->parts == 1 && item->nodes[j] == node;
            parts += item->parts > 1 && item->nodes[j] == node;
        }
    }
    printf("node-%-5u %7zu %7zu %12s %5.1f %%", node, tables, parts,
           bag_format_bytes(at->bytes).text, percent_of(at->bytes, placement->memory_bytes));
    if (rate > 0)
        printf(" %6.1f %%", 100 * at->rate / rate);
    putchar('\n');
}

static void tell(const struct bag_place *place)
{
    const struct bag_placement *placement = &place->placement;
    double rate = 0;
    for (size_t i = 0; i < placement->num_items; i++)
        rate += placement->items[i].rate;
    printf("%-10s %7s %7s %12s %7s%s\n", "node", "tables", "parts", "bytes", "full",
           rate > 0 ? "    rate" : "");
    for (uint32_t node = 0; node < placement->num_nodes; node++)
        tell_node(place, node, rate);
    for (size_t i = 0; i < placement->num_items; i++) {
        if (placement->items[i].parts > 1)
            printf("%s (%s) is in %u parts\n", placement->items[i].name,
                   bag_format_bytes(placement->items[i].bytes).text, placement->items[i].parts);
    }
    printf("%zu table%s of %s on %u node%s", placement->num_items,
           placement->num_items == 1 ? "" : "s", bag_format_bytes(placement->bytes).text,
           placement->num_nodes, placement->num_nodes == 1 ? "" : "s");
    if (placement->num_before > 0)
        printf("; %s are elsewhere than before (%.1f %%)",
               bag_format_bytes(placement->moved_bytes).text,
               percent_of(placement->moved_bytes, placement->bytes));
    putchar('\n');
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool read_all_metrics(struct bag_place *place, int argc, char *argv[],
                             struct bag_problem *problem)
{
    int at = 0;
    for (const char *path; (path = bag_tool_next(&tool, FLAG_METRICS, argc, argv, &at)) != NULL;) {
        if (!bag_place_read_metrics(place, path, problem))
            return false;
    }
    return true;
}

static bool run(struct bag_place *place, int argc, char *argv[], struct bag_problem *problem)
{
    const char *values[FLAG_COUNT], *path;
    if (!bag_tool_parse(&tool, argc, argv, values, &path, problem))
        return false;
    const char *folder = values[FLAG_OUT];
    if (!read_flags(place, values, problem) || !bag_place_read(place, path, problem) ||
        !read_all_metrics(place, argc, argv, problem) ||
        (folder && !bag_place_read_before(place, folder, problem)) ||
        !bag_place_pack(&place->placement, problem) || !check_address(place, problem) ||
        (folder && !bag_place_write(place, folder, problem)))
        return false;
    tell(place);
    return true;
}

int bag_cmd_place(int argc, char *argv[])
{
    struct bag_problem problem;
    struct bag_place place = {0};
    if (bag_arguments_ask_help(argc, argv)) {
        bag_tool_print_help(stdout, &tool);
        return BAG_EXIT_OK;
    }
    bool ok = run(&place, argc, argv, &problem);
    bag_place_free(&place);
    if (!ok)
        fprintf(stderr, "bagserve: %s\n", problem.text);
    return ok ? BAG_EXIT_OK : bag_commands_exit_code(problem.kind);
}
