/* Errors as a kind and a sentence; see problem.h. */
#include "problem.h"

#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The number of bytes of a client's text that a message shows. */
#define QUOTED_BYTES 64

const char *const bag_error_codes[BAG_ERROR_COUNT] = {
#define BAG_X(kind, code) [BAG_ERROR_##kind] = code,
    BAG_ERRORS(BAG_X)
#undef BAG_X
};

/* Removes a character that was cut off by the end of the buffer. */
static void trim_broken_end(char *text)
{
    size_t bytes = strlen(text), start = bytes;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0 || (unsigned char)text[start - 1] < 0x80)
        return;
    start--;
    if (bag_utf8_bytes(text + start, text + bytes) != bytes - start)
        text[start] = 0;
}

bool bag_problem_set(struct bag_problem *problem, enum bag_error kind, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    trim_broken_end(problem->text);
    problem->kind = kind;
    problem->input = NULL;
    problem->position = BAG_PROBLEM_NOWHERE;
    return false;
}

bool bag_problem_at(struct bag_problem *problem, const char *input, size_t position)
{
    problem->input = input;
    problem->position = position;
    return false;
}

bool bag_problem_no_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
}

bool bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
{
    char text[BAG_PROBLEM_TEXT_BYTES];
    va_list arguments;
    memcpy(text, problem->text, sizeof text);
    va_start(arguments, format);
    vsnprintf(problem->text, sizeof problem->text, format, arguments);
    va_end(arguments);
    size_t used = strlen(problem->text);
    snprintf(problem->text + used, sizeof problem->text - used, ": %s", text);
    trim_broken_end(problem->text);
    return false;
}

/* ---- sentences of the kernels' findings ------------------------------------------------------ */

/* The sentences of faults. A field in braces stands for a member of the fault:
 *
 *   {input}      the tensor, the place of the problem
 *   {indices}    the same if it is always this one; so for the names of all inputs
 *   {position}   a flat position in the tensor
 *   {value}      the value there, as a signed number
 *   {key}        the value there, as a number of the type of the keys
 *   {reduction}  the reduction in force
 *   {low} {high} the allowed range, including both
 *   {got} {want} the dtypes
 *
 * {value thing} prints the number and the noun, in the plural unless the number is 1. The other
 * numbers work likewise. */
static const char *const fault_texts[BAG_STATUS_COUNT] = {
    [BAG_STATUS_OK] = "ok",
    [BAG_STATUS_TABLE_RANK] = "the table is a scalar; it must have at least one dimension",
    [BAG_STATUS_UNSUPPORTED_REDUCTION] =
        "reduction sqrtn needs a floating-point table; this one is {got}: use sum, mean or max",
    [BAG_STATUS_OUTPUT_DTYPE] = "output_datatype {got} cannot be made from a table of {want}: only "
                                "FP16, BF16 and FP32 convert among each other",
    [BAG_STATUS_MISSING_INPUT] = "input '{input}' is missing",
    [BAG_STATUS_UNEXPECTED_INPUT] =
        "input '{input}' cannot be combined with the other inputs: send 'offsets', or "
        "'segment_ids' with an optional 'num_segments', or 2-D 'indices' alone",
    [BAG_STATUS_INDICES_DTYPE] = "'{indices}' has datatype {got}; it must be INT32 or INT64",
    [BAG_STATUS_INDICES_RANK] = "'{indices}' has {value dimension}; it must have {low}: [ids] with "
                                "'offsets' or 'segment_ids', [bags, ids of each] without",
    [BAG_STATUS_OFFSETS_DTYPE] = "'{offsets}' has datatype {got}; it must be INT32 or INT64",
    [BAG_STATUS_OFFSETS_RANK] = "'{offsets}' has {value dimension}; it must have 1",
    [BAG_STATUS_SEGMENT_IDS_DTYPE] =
        "'{segment_ids}' has datatype {got}; it must be INT32 or INT64",
    [BAG_STATUS_SEGMENT_IDS_RANK] = "'{segment_ids}' has {value dimension}; it must have 1",
    [BAG_STATUS_SEGMENT_IDS_SHAPE_MISMATCH] =
        "'{segment_ids}' has {value element}; 'indices' has {low}: both must have the same number",
    [BAG_STATUS_SEGMENTS_NOT_SUPPORTED] =
        "'{input}' cannot be combined with reduction none, which has one row for each of 'indices'",
    [BAG_STATUS_NUM_SEGMENTS_DTYPE] =
        "'{num_segments}' has datatype {got}; it must be INT32 or INT64",
    [BAG_STATUS_NUM_SEGMENTS_NOT_SCALAR] =
        "'{num_segments}' has {value element} in {low dimension}; it must have shape [] or [1]",
    [BAG_STATUS_NUM_SEGMENTS_NEGATIVE] = "'{num_segments}' is {value}; it must be at least 0",
    [BAG_STATUS_DEFAULT_INDEX_DTYPE] =
        "'{default_index}' has datatype {got}; it must be INT32 or INT64",
    [BAG_STATUS_DEFAULT_INDEX_NOT_SCALAR] =
        "'{default_index}' has {value element} in {low dimension}; it must have shape [] or [1]",
    [BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE] =
        "'{default_index}' is {value}; it must be -1 (zeros) or a row from {low} to {high}",
    [BAG_STATUS_INDEX_TYPE_MISMATCH] = "'{input}' has datatype {got} while 'indices' has {want}; "
                                       "this model requires one type for all index tensors",
    [BAG_STATUS_WEIGHTS_NOT_SUPPORTED] =
        "'{per_sample_weights}' cannot be combined with reduction {reduction}; use sum or sqrtn, "
        "leave the weights out, or configure weighted_mean for mean",
    [BAG_STATUS_WEIGHTS_DTYPE_MISMATCH] =
        "'{per_sample_weights}' has datatype {got}; it must be {want} for this table",
    [BAG_STATUS_WEIGHTS_SHAPE_MISMATCH] =
        "'{per_sample_weights}' has {value element} in {low dimension}; it must have the shape of "
        "'indices' ({high element})",
    [BAG_STATUS_PADDING_IDX_OUT_OF_RANGE] =
        "padding_idx is {value}; it must be from {low} to {high}",
    [BAG_STATUS_OFFSETS_TOO_SHORT] =
        "'{offsets}' is empty; with include_last_offset it must have at least 1 element",
    [BAG_STATUS_OFFSET_OUT_OF_RANGE] = "'{offsets}' at position {position} is {value}; it must be "
                                       "from {low} to {high}, the number of indices",
    [BAG_STATUS_OFFSETS_NOT_MONOTONIC] = "'{offsets}' at position {position} is {value}, less than "
                                         "{low} before it; offsets must not decrease",
    [BAG_STATUS_OFFSETS_NOT_STARTING_AT_ZERO] =
        "'{offsets}' at position {position} is {value}; this model requires it to be 0",
    [BAG_STATUS_KEYS_DTYPE] = "'{input}' has datatype {got}; keys must be INT32, INT64 or UINT64",
    [BAG_STATUS_KEY_MISSING] =
        "'{indices}' at position {position} is {key}, a key that the table does not have",
    [BAG_STATUS_DEFAULT_KEY_MISSING] =
        "'{default_index}' is {key}, a key that the table does not have",
    [BAG_STATUS_DEFAULT_ROW_NEEDED] = "'{default_index}' is -1, but indices outside the table are "
                                      "to get its row: it must be from "
                                      "{low} to {high}",
    [BAG_STATUS_INDEX_OUT_OF_RANGE] = "'{indices}' at position {position} is {value}; it must be "
                                      "from {low} to {high}, the last row",
    [BAG_STATUS_ROW_OF_OTHER_PART] =
        "'{indices}' at position {position} is {value}, a row of another part: this server has "
        "part "
        "{low} of {high} by rows; with the parameter partial its sums leave out ids of others",
    [BAG_STATUS_KEY_OF_OTHER_PART] =
        "'{indices}' at position {position} is {key}, a key of another part: this server has part "
        "{low} of {high} by keys; with the parameter partial its sums leave out ids of others",
    [BAG_STATUS_DEFAULT_OF_OTHER_PART] = "'{default_index}' is {key}, which is of another part: "
                                         "this server has part {low} of {high}",
    [BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE] =
        "'{segment_ids}' at position {position} is {value}; it must be from {low} to {high}, less "
        "than 'num_segments'",
    [BAG_STATUS_SEGMENT_IDS_NOT_SORTED] = "'{segment_ids}' at position {position} is {value}, less "
                                          "than {low} before it; segment ids must not decrease",
    [BAG_STATUS_RESULT_TOO_LARGE] =
        "the result would have {value bag}, by '{input}', of {low byte} each; the limit "
        "(max_reply_bytes) is {high byte}",
};

/* The sentences for an empty range: a table without rows, or no segments. */
static const char *const empty_texts[BAG_STATUS_COUNT] = {
    [BAG_STATUS_DEFAULT_INDEX_OUT_OF_RANGE] =
        "'{default_index}' is {value}; it must be -1 (zeros), as the table has no rows",
    [BAG_STATUS_PADDING_IDX_OUT_OF_RANGE] = "padding_idx is {value}; the table has no rows",
    [BAG_STATUS_DEFAULT_ROW_NEEDED] =
        "'{default_index}' is -1, but indices outside the table are to get its row: the table has "
        "none",
    [BAG_STATUS_INDEX_OUT_OF_RANGE] =
        "'{indices}' at position {position} is {value}; the table has no rows",
    [BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE] = "'{segment_ids}' at position {position} is {value}; "
                                           "'num_segments' is 0, so that there must "
                                           "be none",
};

/* Returns the sentence of a fault. */
static const char *text_of(const struct bag_fault *fault)
{
    if (fault->high < fault->low && empty_texts[fault->status])
        return empty_texts[fault->status];
    if (fault->status == BAG_STATUS_SEGMENT_ID_OUT_OF_RANGE && fault->high == INT64_MAX)
        return "'{segment_ids}' at position {position} is {value}; it must be at least 0";
    return fault_texts[fault->status];
}

/* Returns the name of the input that a {field} stands for, or NULL. `field` is its name without the
 * opening brace. */
static const char *input_of(const char *field, const struct bag_fault *fault)
{
    if (strncmp(field, "input}", 6) == 0)
        return bag_input_names[fault->input];
    for (size_t i = 0; i < BAG_INPUT_COUNT; i++) {
        size_t bytes = strlen(bag_input_names[i]);
        if (strncmp(field, bag_input_names[i], bytes) == 0 && field[bytes] == '}')
            return bag_input_names[i];
    }
    return NULL;
}

/* Writes the value of a {field}. */
static int put_field(char *out, size_t room, const char *field, const struct bag_fault *fault)
{
    const char *input = input_of(field, fault);
    if (input)
        return snprintf(out, room, "%s", input);
    if (strncmp(field, "got}", 4) == 0)
        return snprintf(out, room, "%s", bag_dtypes[fault->got].name);
    if (strncmp(field, "reduction}", 10) == 0)
        return snprintf(out, room, "%s", bag_reduction_names[fault->reduction]);
    if (strncmp(field, "want}", 5) == 0)
        return snprintf(out, room, "%s", bag_dtypes[fault->want].name);
    if (strncmp(field, "key}", 4) == 0)
        return snprintf(out, room, fault->got == BAG_U64 ? "%llu" : "%lld",
                        (unsigned long long)fault->value);
    int64_t number = strncmp(field, "position", 8) == 0 ? fault->position
                     : strncmp(field, "value", 5) == 0  ? fault->value
                     : strncmp(field, "low", 3) == 0    ? fault->low
                                                        : fault->high;
    /* Write a number, and its noun if `thing` has one after a blank. */
    const char *thing = field + strcspn(field, " }");
    int bytes = (int)strcspn(thing, "}");
    return snprintf(out, room, "%lld%.*s%s", (long long)number, bytes, thing,
                    bytes && number != 1 ? "s" : "");
}

bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault)
{
    const char *at = text_of(fault);
    size_t used = 0;
    problem->kind = BAG_ERROR_BAD_REQUEST;
    problem->input = NULL;
    problem->position = strstr(at, "{position}") ? (size_t)fault->position : BAG_PROBLEM_NOWHERE;
    /* Copy the sentence and replace its fields. snprintf returns the length that a field would
     * have, so `used` may exceed the buffer once, which ends the loop. */
    while (*at && used + 1 < sizeof problem->text) {
        if (*at == '{') {
            if (!problem->input)
                problem->input = input_of(at + 1, fault);
            used +=
                (size_t)put_field(problem->text + used, sizeof problem->text - used, at + 1, fault);
            at += strcspn(at, "}") + 1;
        } else {
            problem->text[used++] = *at++;
        }
    }
    problem->text[used < sizeof problem->text ? used : sizeof problem->text - 1] = 0;
    return false;
}

/* ---- a client's bytes ------------------------------------------------------------------------ */

struct bag_quoted bag_quote(const char *bytes, size_t count)
{
    /* The longest result has four characters for each of the 64 bytes, and "...". */
    struct bag_quoted quoted;
    const char *end = bytes + (count < QUOTED_BYTES ? count : QUOTED_BYTES);
    char *out = quoted.text;
    if (count > QUOTED_BYTES) { /* do not cut a character */
        for (int i = 0; i < 3 && ((unsigned char)*end & 0xC0) == 0x80; i++)
            end--;
    }
    while (bytes < end) {
        unsigned char byte = (unsigned char)*bytes;
        size_t whole = byte >= 0x80 ? bag_utf8_bytes(bytes, end) : 1;
        bool control = byte < 0x20 || byte == 0x7F ||
                       (whole == 2 && byte == 0xC2 && (unsigned char)bytes[1] < 0xA0);
        if (whole && !control && byte != '"' && byte != '\'' && byte != '\\') {
            memcpy(out, bytes, whole);
            out += whole;
            bytes += whole;
        } else {
            out += sprintf(out, "\\x%02x", byte);
            bytes++;
        }
    }
    strcpy(out, count > QUOTED_BYTES ? "..." : "");
    return quoted;
}
