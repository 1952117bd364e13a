/* libFuzzer: what a client reads of a server that may be anybody. The first byte chooses which. */
#include "fuzz.h"

#include "proto/bench_report.h"
#include "proto/http_client.h"
#include "proto/v2_client.h"

static void read_head(const char *text, size_t bytes)
{
    struct bag_reply_head head;
    struct bag_problem problem;
    if (bag_reply_head_parse(text, bytes, &head, &problem))
        require(head.status >= 100 && head.status <= 999 && head.json_bytes <= head.body_bytes);
}

static void read_model(const char *text, size_t bytes)
{
    struct bag_client_model model;
    struct bag_problem problem;
    if (!bag_client_read_model(text, bytes, &model, &problem))
        return;
    require(model.name && model.num_tables >= 1);
    for (size_t i = 0; i < model.num_tables; i++)
        require(model.tables[i].name && model.tables[i].rows >= -1);
    bag_client_read_rules(text, bytes, &model, &problem);
    bag_client_model_free(&model);
}

static void read_names(const char *text, size_t bytes)
{
    struct bag_client_names names;
    struct bag_problem problem;
    if (bag_client_read_names(text, bytes, &names, &problem))
        bag_client_names_free(&names);
}

static void read_output(const char *text, size_t bytes)
{
    struct bag_client_output found;
    struct bag_problem problem;
    char sentence[20];
    uint64_t number = 0;
    for (size_t json_bytes = 0; json_bytes <= bytes + 1; json_bytes += 1 + bytes / 4) {
        if (bag_client_find_output(text, bytes, json_bytes, "a", 2, 1, &found, &problem))
            require((const char *)found.data >= text + json_bytes &&
                    (const char *)found.data + 2 * bag_dtypes[found.dtype].bytes <= text + bytes);
    }
    bag_client_read_error(text, bytes, sentence, sizeof sentence);
    require(strlen(sentence) < sizeof sentence);
    if (bag_client_read_number(text, bytes, "parameters", "a", &number) ||
        bag_client_read_number(text, bytes, NULL, "a", &number))
        require(number < (uint64_t)1 << 53);
}

/* A report that was printed and read again must have the same mode and number of runs. */
static void read_report(const char *text, size_t bytes)
{
    struct bag_bench_report report, again;
    struct bag_problem problem;
    if (!bag_bench_report_parse(text, bytes, &report, &problem))
        return;
    char *printed = bag_bench_report_print(&report);
    if (printed && bag_bench_report_parse(printed, strlen(printed), &again, &problem)) {
        require(again.num_runs == report.num_runs && again.mode == report.mode);
        bag_bench_report_free(&again);
    }
    free(printed);
    bag_bench_report_free(&report);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static void (*const readers[])(const char *, size_t) = {read_head, read_model, read_names,
                                                            read_output, read_report};
    if (count == 0)
        return 0;
    char *text = malloc(count > 1 ? count - 1 : 1); /* exact: one byte beyond is found */
    memcpy(text, bytes + 1, count - 1);
    readers[bytes[0] % (sizeof readers / sizeof *readers)](text, count - 1);
    free(text);
    return 0;
}
