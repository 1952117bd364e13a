/* Measures documents on the loop's thread, with many models and a collection of many features. */
#include "loop_fixture.h"

#define MODELS   2000
#define FEATURES 1000

#define FEATURE "a_feature_of_forty_eight_letters_and_digits_%04d"

/* Models of one small table, and a collection over the first of them. */
static void write_models(void)
{
    char *config = malloc((MODELS + FEATURES) * 100 + 1000);
    assert_non_null(config);
    int used = sprintf(config, "{\"models\":[");
    for (int i = 0; i < MODELS; i++)
        used += sprintf(config + used, "{\"name\":\"m%d\",\"path\":\"t.npy\"},", i);
    used += sprintf(config + used, "{\"name\":\"wide\",\"features\":[");
    for (int i = 0; i < FEATURES; i++)
        used += sprintf(config + used, "%s{\"name\":\"" FEATURE "\",\"model\":\"m0\"}",
                        i ? "," : "", i);
    used += sprintf(config + used, "]}]}");
    write_table(2, 4);
    write_file("c.json", config, (size_t)used);
    free(config);
}

static int start(void **state)
{
    (void)state;
    return start_server(write_models);
}

AROUND_ALL(start, stop_server)

static void expect_short(const char *path, int status, const char *body)
{
    struct message message = {path, "", body, body ? strlen(body) : 0};
    expect_short_turns(path, status, &message);
}

TEST(test_documents)
{
    static const char *const paths[] = {"/v2/health/ready",        "/v2",
                                        "/v2/models/items",        "/v2/models/items/config",
                                        "/v2/models/stats",        "/metrics",
                                        "/openapi.json",           "/v2/models",
                                        "/v2/models/wide",         "/",
                                        "/v2/models/wide/config",  "/v2/models/m7",
                                        "/v2/models/wide/ready",   "/v2/models/wide/stats",
                                        "/v2/server/models",       "/v2/server/options",
                                        "/v2/models/wide/metrics", "/console",
                                        "/console/chart.min.js"};
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        expect_short(paths[i], 200, NULL);
    expect_short("/v2/models/nobody", 404, NULL);
    expect_short("/v2/repository/index", 200, "");
}

/* A name that is not known is compared with those of all features. */
TEST(test_names_that_are_not_known)
{
    static const char input[] =
        "{\"inputs\":[{\"name\":\"a_feature_of_fifty_eight_letters_and_digits_99999.indices\","
        "\"datatype\":\"INT64\",\"shape\":[1,1],\"data\":[0]}]}";
    static const char output[] =
        "{\"inputs\":[{\"name\":\"a_feature_of_forty_eight_letters_and_digits_0000.indices\","
        "\"datatype\":\"INT64\",\"shape\":[1,1],\"data\":[0]}],\"outputs\":[{\"name\":"
        "\"a_feature_of_fifty_eight_letters_and_digits_99999\"}]}";
    expect_short("/v2/models/wide/infer", 400, input);
    expect_short("/v2/models/wide/infer", 400, output);
}

/* Known after the first time. */
TEST(test_a_long_header)
{
    const int inputs = 400;
    char *body = malloc(inputs * 200 + 100), headers[64];
    assert_non_null(body);
    int used = sprintf(body, "{\"inputs\":[");
    for (int i = 0; i < inputs; i++)
        used +=
            sprintf(body + used,
                    "%s{\"name\":\"" FEATURE ".indices\",\"datatype\":\"INT64\",\"shape\":[1,1],"
                    "\"parameters\":{\"binary_data_size\":8}}",
                    i ? "," : "", i);
    used += sprintf(body + used, "]}");
    assert_in_range(used, 50000, 65536);
    snprintf(headers, sizeof headers, "Inference-Header-Content-Length: %d\r\n", used);
    memset(body + used, 0, 8 * (size_t)inputs);
    struct message message = {"/v2/models/wide/infer", headers, body,
                              (size_t)used + 8 * (size_t)inputs};
    expect_short_turns("a header of 400 inputs", 200, &message);
    free(body);
}
