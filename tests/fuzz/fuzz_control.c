/* libFuzzer: bodies that ask for loading and unloading. The first byte chooses the kind. A body
 * that is read must fulfil the promises of the header file, and must be read as the same when it is
 * written out again. */
#include "fuzz.h"

#include "proto/v2_request.h"

static bool is_text(const char *text, size_t room)
{
    return memchr(text, 0, room) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    struct bag_control control;
    struct bag_problem problem = {.kind = BAG_ERROR_COUNT};
    if (count == 0)
        return 0;
    char *body = malloc(count); /* exact: one byte beyond is found */
    require(body);
    memcpy(body, bytes + 1, count - 1);
    bool ok = bag_control_read(body, count - 1, (bytes[0] & 1) ? NULL : "items", bytes[0] & 2,
                               &control, &problem);
    if (ok) {
        require(control.count >= 1 && control.count <= BAG_CONTROL_MAX_ITEMS);
        for (size_t i = 0; i < control.count; i++) {
            const struct bag_control_item *item = &control.items[i];
            require(is_text(item->name, sizeof item->name) && *item->name);
            require(is_text(item->version, sizeof item->version) && *item->version != '0');
            require(strspn(item->version, "0123456789") == strlen(item->version));
            for (size_t j = 0; j < i; j++)
                require(strcmp(control.items[j].name, item->name) != 0);
        }
        char *text = bag_control_describe(&control, true);
        require(text && strstr(text, "\"done\":true"));
        free(text);
    } else {
        require(problem.kind == BAG_ERROR_BAD_REQUEST && problem.text[0] && !control.items);
    }
    bag_control_free(&control);
    free(body);
    return 0;
}
