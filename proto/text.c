/* Text as bytes; see text.h. */
#include "text.h"

bool bag_text_is(struct bag_text text, const char *name)
{
    return text.bytes == strlen(name) && memcmp(text.data, name, text.bytes) == 0;
}

bool bag_text_equal(struct bag_text a, struct bag_text b)
{
    return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0;
}

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

bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        int byte = (unsigned char)segment[i];
        if (byte == '%') {
            if (count - i < 3)
                return false;
            int high = bag_hex_digit(segment[i + 1]), low = bag_hex_digit(segment[i + 2]);
            byte = high < 0 || low < 0 ? 0 : high * 16 + low;
            i += 2;
        }
        if (byte == 0 || used + 1 >= out_bytes)
            return false;
        out[used++] = (char)byte;
    }
    out[used] = 0;
    return true;
}
