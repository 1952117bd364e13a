/* libFuzzer: arrays of numbers. The first byte chooses the datatype, the second how many elements
 * there should be, the rest is the text after a '['. Accepted numbers must print to a text that
 * reads back to the same bits. A single float must have the value that the C library reads. */
#include "fuzz.h"

#include "proto/numbers.h"

static void check_prints_back(const void *data, size_t bytes, size_t count, enum bag_dtype dtype)
{
    struct bag_problem problem;
    const char *end = NULL, *error_at = NULL;
    char *text = malloc(count * bag_numbers_max_text(dtype) + 2), *again = malloc(bytes + 1);
    char *text_end = bag_numbers_print(data, count, dtype, text);
    require(bag_numbers_parse(text, (size_t)(text_end - text), dtype, count, again, &end, &error_at,
                              &problem));
    require(end == text_end && memcmp(data, again, bytes) == 0);
    free(again);
    free(text);
}

/* `text` is the array from its '[' on. */
static void check_value(const char *text, enum bag_dtype dtype, const void *data)
{
    const char *number = text + 1 + strspn(text + 1, "[ \t\r\n]");
    double f64 = strtod(number, NULL);
    float f32 = strtof(number, NULL);
    if (*number == 'N' || strchr(text, ',')) /* NaN has many bits; no number stands first */
        return;
    require(dtype != BAG_F64 || memcmp(data, &f64, sizeof f64) == 0);
    require(dtype != BAG_F32 || memcmp(data, &f32, sizeof f32) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct bag_problem problem;
    const char *end = NULL, *error_at = NULL;
    if (size < 2)
        return 0;
    enum bag_dtype dtype = (enum bag_dtype)(bytes[0] % BAG_DTYPE_COUNT);
    if (bag_numbers_max_text(dtype) == 0)
        dtype = BAG_F32;
    size_t count = bytes[1] % 8, text_bytes = size - 1,
           data_bytes = count * bag_dtypes[dtype].bytes;
    char *text = malloc(text_bytes), *data = malloc(data_bytes + !data_bytes);
    memcpy(text, bytes + 1, text_bytes);
    text[0] = '[';
    if (bag_numbers_parse(text, text_bytes, dtype, count, data, &end, &error_at, &problem)) {
        require(end > text && end <= text + text_bytes && end[-1] == ']');
        check_prints_back(data, data_bytes, count, dtype);
        char *whole = strndup(text, (size_t)(end - text));
        if (count == 1)
            check_value(whole, dtype, data);
        free(whole);
    } else {
        require(error_at >= text && error_at <= text + text_bytes);
        require(problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0]);
    }
    free(data);
    free(text);
    return 0;
}
