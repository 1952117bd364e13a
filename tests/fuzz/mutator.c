/* libFuzzer changes inputs that frame a JSON text as trees, too, beside its own changes of bytes.
 * The frame is one or two bytes before the text; two are the text's size, 0 for all of it, and what
 * follows is binary (fuzz_request.c). */
#include "fuzz.h"
#include "trees.h"

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t capacity);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t capacity, unsigned seed);

#define MAX_JSON ((size_t)0x7fff)

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t capacity, unsigned seed)
{
    static char text[MAX_JSON];
    size_t frame = count > 1 && bytes[1] == '{' ? 1 : 2;
    size_t json = count > frame ? bag_tree_bytes((char *)bytes + frame, count - frame) : 0;
    if (seed % 3 == 0 || json == 0 || json > MAX_JSON)
        return LLVMFuzzerMutate(bytes, count, capacity);
    memcpy(text, bytes + frame, json);
    size_t rest = count - frame - json;
    size_t room = capacity - frame - rest < MAX_JSON ? capacity - frame - rest : MAX_JSON;
    size_t changed = bag_tree_change(text, json, room, BAG_TREE_ANY, seed);
    memmove(bytes + frame + changed, bytes + frame + json, rest);
    memcpy(bytes + frame, text, changed);
    if (frame == 2 && (bytes[0] || bytes[1] & 127)) {
        bytes[0] = (uint8_t)changed;
        bytes[1] = (uint8_t)((bytes[1] & 128) | changed >> 8);
    }
    return frame + changed + rest;
}
