/* Reports on table files: their JSON, and that they are never printed without a part for which
 * there was no memory. */
#include "testing.h"

#include "proto/formats.h"
#include "proto/json.h"

/* ---- allocations of cJSON, of which one fails ------------------------------------------------ */

static size_t allocations, failing; /* failing: which one, from 1; 0: none */

static void *allocate(size_t bytes)
{
    return ++allocations == failing ? NULL : malloc(bytes);
}

static char *print_with(char *(*print)(void), size_t which)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
    allocations = 0;
    failing = which;
    char *text = print();
    cJSON_InitHooks(NULL);
    return text;
}

/* Prints without a fault, then with each allocation failing: NULL, or the same text. Returns the
 * text. */
static char *print_always(char *(*print)(void))
{
    char *text = print_with(print, 0);
    size_t count = allocations;
    assert_non_null(text);
    for (size_t which = 1; which <= count; which++) {
        char *other = print_with(print, which);
        if (other && strcmp(other, text) != 0)
            fail_msg("without allocation %zu of %zu: %s", which, count, other);
        free(other);
    }
    return text;
}

static void expect_text(char *(*print)(void), const char *expected)
{
    struct bag_problem problem;
    char *text = print_always(print);
    cJSON *tree = bag_json_parse(text, strlen(text), &problem);
    char *shown = cJSON_PrintUnformatted(tree);
    assert_string_equal(shown, expected);
    free(shown);
    bag_json_free(tree);
    free(text);
}

/* ---- reports --------------------------------------------------------------------------------- */

static char *print_convert(void)
{
    struct bag_convert_report report = {
        .rows = {.rows = 2, .elements = 4, .squared = 2, .max = 1, .cosines = 1},
        .bags = {.rows = 1, .elements = 2, .squared = 1, .max = 0.5, .cosines = 0.5},
        .worst = {.rows = {{1, UINT64_MAX, 0.5, 1}}, .count = 1},
        .keys_dtype = BAG_U64,
        .row_elements = 2,
        .ids_per_bag = 20,
        .reduction = "sum"};
    return bag_convert_report_print(&report);
}

TEST(test_convert)
{
    expect_text(print_convert,
                "{\"rows\":2,\"row_elements\":2,\"mean_squared_error\":0.5,\"max_error\":1,"
                "\"mean_cosine\":0.5,\"worst_rows\":[{\"row\":1,\"key\":1.8446744073709552e+19,"
                "\"mean_squared_error\":0.5,\"max_error\":1}],\"bags\":{\"bags\":1,"
                "\"ids_per_bag\":20,\"reduction\":\"sum\",\"mean_squared_error\":0.5,"
                "\"max_error\":0.5,\"mean_cosine\":0.5}}");
}

/* The header of a written file: a length of 8 bytes, which may hold zeros, and its JSON. */
static char *print_header(void)
{
    static const int64_t shapes[2][2] = {{2, 3}, {2}};
    static const struct bag_safetensors_entry entries[] = {{"values", "F32", 2, shapes[0], 24},
                                                           {"keys", "I64", 1, shapes[1], 16}};
    static const struct bag_safetensors_note notes[] = {{"row_format", "plain"}};
    size_t bytes;
    char *header = bag_safetensors_print(entries, 2, notes, 1, &bytes);
    char *text = header ? strndup(header + BAG_SAFETENSORS_PREAMBLE_BYTES,
                                  bytes - BAG_SAFETENSORS_PREAMBLE_BYTES)
                        : NULL;
    free(header);
    return text;
}

TEST(test_header)
{
    expect_text(print_header,
                "{\"__metadata__\":{\"row_format\":\"plain\"},\"values\":{\"dtype\":\"F32\","
                "\"shape\":[2,3],\"data_offsets\":[0,24]},\"keys\":{\"dtype\":\"I64\","
                "\"shape\":[2],\"data_offsets\":[24,40]}}");
}
