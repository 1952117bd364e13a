/* Errors as a kind and a sentence; see problem.h. */
#include "problem.h"

#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Bytes of a client's text that a message shows. */
#define QUOTED_BYTES 64

/* Drops a character that the end of the buffer has cut in two. */
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
    return false;
}

void bag_problem_prefix(struct bag_problem *problem, const char *format, ...)
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
}

/* ---- sentences of the kernels' findings ------------------------------------------------------ */

/* Writes a number, and what it counts where `thing` says that behind a blank. */
static int put_number(char *out, size_t room, int64_t number, const char *thing)
{
    int bytes = (int)strcspn(thing, "}");
    return snprintf(out, room, "%lld%.*s%s", (long long)number, bytes, thing,
                    bytes && number != 1 ? "s" : "");
}

/* Writes what the {field} stands for; `field` is its name without the braces. */
static int put_field(char *out, size_t room, const char *field, const struct bag_fault *fault)
{
    if (strncmp(field, "input}", 6) == 0)
        return snprintf(out, room, "%s", bag_input_names[fault->input]);
    if (strncmp(field, "got}", 4) == 0)
        return snprintf(out, room, "%s", bag_dtypes[fault->got].name);
    if (strncmp(field, "reduction}", 10) == 0)
        return snprintf(out, room, "%s", bag_reduction_names[fault->reduction]);
    if (strncmp(field, "want}", 5) == 0)
        return snprintf(out, room, "%s", bag_dtypes[fault->want].name);
    int64_t number = strncmp(field, "position", 8) == 0 ? fault->position
                     : strncmp(field, "value", 5) == 0  ? fault->value
                     : strncmp(field, "low", 3) == 0    ? fault->low
                                                        : fault->high;
    return put_number(out, room, number, field + strcspn(field, " }"));
}

bool bag_problem_from_fault(struct bag_problem *problem, const struct bag_fault *fault)
{
    const char *at = bag_statuses[fault->status].text;
    size_t used = 0;
    while (*at && used + 1 < sizeof problem->text) {
        if (*at == '{') {
            used +=
                (size_t)put_field(problem->text + used, sizeof problem->text - used, at + 1, fault);
            at += strcspn(at, "}") + 1;
        } else {
            problem->text[used++] = *at++;
        }
    }
    problem->text[used < sizeof problem->text ? used : sizeof problem->text - 1] = 0;
    problem->kind = BAG_ERROR_BAD_REQUEST;
    return false;
}

/* ---- a client's bytes ------------------------------------------------------------------------ */

struct bag_quoted bag_quote(const char *bytes, size_t count)
{
    struct bag_quoted quoted;
    const char *end = bytes + (count < QUOTED_BYTES ? count : QUOTED_BYTES);
    char *out = quoted.text;
    if (count > QUOTED_BYTES) { /* not in the middle of a character */
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
