/* UTF-8, one character at a time; see utf8.h. */
#include "utf8.h"

size_t bag_utf8_bytes(const char *at, const char *end)
{
    const unsigned char *s = (const unsigned char *)at;
    size_t left = (size_t)(end - at);
    size_t bytes = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || left < bytes)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return bytes;
}
