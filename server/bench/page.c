/* The page of a report: one file that needs no server and no network; see session.h.
 *
 * page.html is the frame. Its marks @NAME@ are replaced by the console's style and helpers, by
 * Chart.js with its licence, by page.js, and by the reports as JSON. All that a server or a file
 * may have chosen is in the JSON, in which no "<" is left, and page.js shows it as text. The page's
 * policy lets only scripts with the page's own random nonce run. */
#include "server/console/console.h"
#include "session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

extern const struct bag_embedded bag_bench_page[];

struct page {
    char nonce[33];        /* 32 hexadecimal digits */
    char *report, *before; /* owned; JSON */
};

/* ---- parts ----------------------------------------------------------------------------------- */

static void write_file(FILE *stream, const struct bag_embedded *file)
{
    fwrite(file->text, 1, file->bytes, stream);
}

/* Writes the file with this name of a list of embedded files. */
static void write_named(FILE *stream, const struct bag_embedded *list, const char *name)
{
    for (; list->name; list++) {
        if (strcmp(list->name, name) == 0)
            write_file(stream, list);
    }
}

/* Writes JSON into a script element, which "</script>" in a text would end. */
static void write_json(FILE *stream, const char *json)
{
    for (size_t bytes; *json; json += bytes + (json[bytes] == '<')) {
        bytes = strcspn(json, "<");
        fwrite(json, 1, bytes, stream);
        if (json[bytes])
            fputs("\\u003c", stream);
    }
}

/* Returns whether the name at `at` is that of this mark. */
static bool is_mark(const char *at, size_t bytes, const char *mark)
{
    return strlen(mark) == bytes && memcmp(at, mark, bytes) == 0;
}

/* Writes the replacement of the mark with this name. */
static void write_mark(FILE *stream, const char *mark, size_t bytes, const struct page *page)
{
    if (is_mark(mark, bytes, "NONCE"))
        fputs(page->nonce, stream);
    else if (is_mark(mark, bytes, "STYLE"))
        write_named(stream, bag_console_parts, "console.css");
    else if (is_mark(mark, bytes, "CHART"))
        write_file(stream, &bag_chart_js[0]);
    else if (is_mark(mark, bytes, "LICENCE"))
        write_file(stream, &bag_chart_js[1]);
    else if (is_mark(mark, bytes, "REPORT"))
        write_json(stream, page->report);
    else if (is_mark(mark, bytes, "BEFORE"))
        write_json(stream, page->before ? page->before : "null");
    else {
        write_named(stream, bag_console_parts, "dom.js");
        write_named(stream, bag_console_parts, "format.js");
        write_named(stream, bag_bench_page, "page.js");
    }
}

/* ---- the page -------------------------------------------------------------------------------- */

/* Writes the frame with its marks replaced. */
static void write_frame(FILE *stream, const char *frame, const struct page *page)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    /* A mark is @NAME@ in capitals. Any other @ is written unchanged. */
    for (const char *at; (at = strchr(frame, '@')); frame = at) {
        fwrite(frame, 1, (size_t)(at - frame), stream);
        size_t bytes = strspn(at + 1, letters);
        if (bytes && at[1 + bytes] == '@') {
            write_mark(stream, at + 1, bytes, page);
            at += bytes + 2;
        } else {
            fputc(*at++, stream);
        }
    }
    fputs(frame, stream);
}

/* Prints 16 random bytes in hexadecimal. Returns false without randomness. */
static bool make_nonce(char *nonce, size_t capacity)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(nonce + 2 * i, capacity - 2 * i, "%02x", bytes[i]);
    return true;
}

bool bag_bench_write_page(const struct bag_bench_session *session, FILE *stream)
{
    struct page page = {.report = bag_bench_report_print(&session->report)};
    if (session->has_before)
        page.before = bag_bench_report_print(&session->before);
    bool ok = page.report && (page.before || !session->has_before) &&
              make_nonce(page.nonce, sizeof page.nonce);
    if (ok)
        write_frame(stream, bag_bench_page[0].text, &page);
    free(page.report);
    free(page.before);
    return ok;
}
