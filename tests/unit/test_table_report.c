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

static const struct bag_inspected_tensor tensors[] = {
    {.name = (char[]){"weights"}, .datatype = "UINT8", .rank = 2, .shape = {3, 12}, .bytes = 36}};

static const struct bag_inspect_report inspected = {.tensors = tensors,
                                                    .num_tensors = 1,
                                                    .has_table = true,
                                                    .rows = 3,
                                                    .row_elements = 4,
                                                    .sampled_rows = 3,
                                                    .nan = 1,
                                                    .untold_row_bytes = 2,
                                                    .serving_bytes = 36,
                                                    .datatype = "FP32",
                                                    .row_format = "int8",
                                                    .path = "/t.safetensors",
                                                    .tensor = "weights"};

static char *print_inspect(void)
{
    return bag_inspect_report_print(&inspected);
}

#define CONFIGURATION                                                                      \
    "{\"models\":[{\"name\":\"table\",\"path\":\"/t.safetensors\",\"tensor\":\"weights\"," \
    "\"row_format\":\"int8\",\"row_elements\":4}]}"

TEST(test_inspect)
{
    expect_text(print_inspect,
                "{\"tensors\":[{\"name\":\"weights\",\"datatype\":\"UINT8\",\"shape\":[3,12],"
                "\"bytes\":36}],\"keyed\":false,\"rows\":3,\"row_elements\":4,"
                "\"datatype\":\"FP32\",\"row_format\":\"int8\",\"sampled_rows\":3,\"nan\":1,"
                "\"inf\":0,\"zero_rows\":0,\"duplicate_rows\":0,\"implausible_rows\":0,"
                "\"possible_row_formats\":[{\"row_format\":\"f8_e4m3\",\"row_elements\":2},"
                "{\"row_format\":\"f8_e5m2\",\"row_elements\":2}],\"serving_bytes\":36,"
                "\"configuration\":" CONFIGURATION "}");
}

static char *print_configuration(void)
{
    return bag_inspect_configuration_print(&inspected);
}

TEST(test_configuration)
{
    expect_text(print_configuration, CONFIGURATION);
}

static char *print_models(void)
{
    static const struct bag_inspected_model models[] = {{.name = "a",
                                                         .version = "1",
                                                         .datatype = "FP32",
                                                         .row_format = "int8",
                                                         .rank = 2,
                                                         .shape = {3, 4},
                                                         .row_bytes = 12,
                                                         .keyed = true,
                                                         .serving_bytes = 100,
                                                         .hash_rows = 2,
                                                         .default_index = -1},
                                                        {.name = "b",
                                                         .version = "18446744073709551615",
                                                         .datatype = "FP16",
                                                         .row_format = "plain",
                                                         .rank = 3,
                                                         .shape = {1, 2, 5},
                                                         .row_bytes = 20,
                                                         .is_mapped = true,
                                                         .is_locked = true,
                                                         .serving_bytes = 20,
                                                         .mapped_bytes = 20,
                                                         .default_index = 7}};
    return bag_inspected_models_print(models, 2);
}

TEST(test_models)
{
    expect_text(print_models,
                "{\"models\":[{\"name\":\"a\",\"version\":\"1\",\"datatype\":\"FP32\","
                "\"row_format\":\"int8\",\"shape\":[3,4],\"row_bytes\":12,\"keyed\":true,"
                "\"load\":\"copy\",\"mlock\":false,\"serving_bytes\":100,\"mapped_bytes\":0,"
                "\"hash_rows\":2,\"default_index\":-1},{\"name\":\"b\","
                "\"version\":\"18446744073709551615\",\"datatype\":\"FP16\","
                "\"row_format\":\"plain\",\"shape\":[1,2,5],\"row_bytes\":20,\"keyed\":false,"
                "\"load\":\"map\",\"mlock\":true,\"serving_bytes\":20,\"mapped_bytes\":20,"
                "\"hash_rows\":0,\"default_index\":7}]}");
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
