/* Finds eight keys at a time with AVX-512. Included by keys_find.h. */

#define FIND_LANES 8

BAG_LANE __m512i find_set(uint64_t value)
{
    return _mm512_set1_epi64((long long)value);
}

/* ---- home lines ------------------------------------------------------------------------------ */

BAG_LANE __m512i find_load(const struct bag_ids *ids, size_t first, __mmask8 lanes)
{
    const char *data = ids->data;
    return ids->wide ? _mm512_maskz_loadu_epi64(lanes, data + first * sizeof(int64_t))
                     : _mm512_cvtepi32_epi64(
                           _mm256_maskz_loadu_epi32(lanes, data + first * sizeof(int32_t)));
}

/* Computes bag_keys_hash of eight keys. */
BAG_LANE __m512i find_hash(const struct bag_keys *keys, __m512i key)
{
    const uint64_t *seed = keys->seed.words;
    key = _mm512_mullo_epi64(_mm512_xor_si512(key, find_set(seed[0])), find_set(seed[1] | 1));
    key = _mm512_xor_si512(key, _mm512_srli_epi64(key, 32));
    key = _mm512_mullo_epi64(_mm512_add_epi64(key, find_set(seed[2])), find_set(seed[3] | 1));
    return _mm512_xor_si512(key, _mm512_srli_epi64(key, 32));
}

/* Returns the high halves of the products with the number of lines, which is below 2^37. */
BAG_LANE __m512i find_line(const struct bag_keys *keys, __m512i hash)
{
    const __m512i lower = find_set(keys->num_lines), upper = find_set(keys->num_lines >> 32);
    __m512i top = _mm512_srli_epi64(hash, 32);
    __m512i low = _mm512_srli_epi64(_mm512_mul_epu32(hash, lower), 32);
    __m512i middle = _mm512_add_epi64(_mm512_mul_epu32(top, lower), low);
    __m512i other = _mm512_add_epi64(_mm512_mul_epu32(hash, upper),
                                     _mm512_and_si512(middle, find_set(UINT32_MAX)));
    __m512i high = _mm512_add_epi64(_mm512_srli_epi64(middle, 32), _mm512_mul_epu32(top, upper));
    return _mm512_add_epi64(high, _mm512_srli_epi64(other, 32));
}

BAG_LANE void find_homes(const struct bag_keys *keys, const struct bag_ids *ids, size_t first,
                         size_t count, struct find_homes *homes)
{
    const __m128i dropped = _mm_cvtsi32_si128((int)(64 - bag_keys_hash_bits(keys)));
    const __m128i low_bits = _mm_cvtsi32_si128((int)keys->low_bits);
    const __m512i probe = find_set(UINT64_C(1) << bag_keys_probe_shift(keys));
    for (size_t i = 0; i < count; i += FIND_LANES) {
        __mmask8 lanes = (__mmask8)(count - i < FIND_LANES ? (1u << (count - i)) - 1 : 0xff);
        __m512i hash = find_hash(keys, find_load(ids, first + i, lanes));
        __m512i rest =
            _mm512_srl_epi64(_mm512_mullo_epi64(hash, find_set(keys->num_lines)), dropped);
        __m512i line = _mm512_slli_epi64(find_line(keys, hash), 6);
        _mm512_store_si512(&homes->lines[i],
                           _mm512_add_epi64(find_set((uintptr_t)keys->lines), line));
        _mm512_store_si512(&homes->words[i],
                           _mm512_or_si512(_mm512_sll_epi64(rest, low_bits), probe));
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The contents of the lines of a block. */
struct find_found {
    _Alignas(64) uint64_t words[FIND_BLOCK]; /* words of the matching slots */
    uint8_t high[FIND_BLOCK]; /* high bits of their rows; if no slot matches, the line's `passed` */
    uint8_t matches[FIND_BLOCK]; /* results of MATCH_SLOTS */
};

/* Reads the lines. Returns whether a slot changed meanwhile. The byte after the rows' high bits
 * acts as an eighth slot, which always matches. */
BAG_LANE bool find_read(const struct bag_keys *keys, const struct find_homes *homes, size_t count,
                        struct find_found *found)
{
    uint64_t changed = 0;
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++) {
        const struct bag_keys_line *line = homes->lines[i];
        unsigned matches = MATCH_SLOTS(keys, line, homes->words[i]);
        uint32_t slot = _tzcnt_u32(matches);
        const uint64_t *word = (const uint64_t *)line + slot;
        uint64_t before = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        found->high[i] = __atomic_load_n((const uint8_t *)line->high + slot, __ATOMIC_ACQUIRE);
        found->matches[i] = (uint8_t)matches;
        found->words[i] = before;
        changed |= before ^ __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    return changed != 0;
}

/* Returns which of eight keys are not at home but may be elsewhere. `passed` is in the position of
 * the rows' high bits. */
BAG_LANE __mmask8 find_passed(const struct bag_keys *keys, __mmask8 absent, __m512i passed,
                              __m512i words)
{
    __m512i lowest = _mm512_srl_epi64(words, _mm_cvtsi32_si128((int)keys->low_bits));
    __m512i classes = _mm512_srli_epi64(
        _mm512_mul_epu32(_mm512_and_si512(lowest, find_set(0xff)), find_set(BAG_KEYS_CLASSES)), 8);
    return _mm512_mask_test_epi64_mask(absent, passed, _mm512_sllv_epi64(find_set(1), classes));
}

BAG_LANE void find_note(size_t first, __mmask8 noted, struct find_later *later)
{
    const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    __m512i positions = _mm512_add_epi64(find_set(first), lanes);
    _mm512_storeu_si512(&later->positions[later->count],
                        _mm512_maskz_compress_epi64(noted, positions));
    later->count += (unsigned)__builtin_popcount(noted);
}

static __attribute__((noinline)) size_t find_changed(const struct bag_keys *keys,
                                                     const struct find_homes *homes, size_t first,
                                                     size_t count, int64_t *rows,
                                                     struct find_later *later)
{
    return find_each(keys, homes, first, count, rows, later);
}

/* Finds the keys of a block like find_each, which is called for the block again if a slot changed
 * meanwhile. */
BAG_LANE size_t find_block(const struct bag_keys *keys, const struct find_homes *homes,
                           size_t first, size_t count, int64_t *rows, struct find_later *later)
{
    const __m512i rests = find_set(~UINT64_C(0) << keys->low_bits);
    const __m128i low_bits = _mm_cvtsi32_si128((int)keys->low_bits);
    struct find_found found BAG_UNSET;
    size_t num_absent = 0, num_later = later->count;
    bool changed = find_read(keys, homes, count, &found);
    for (size_t i = 0; i < count; i += FIND_LANES) {
        __mmask8 lanes = (__mmask8)(count - i < FIND_LANES ? (1u << (count - i)) - 1 : 0xff);
        __m512i words = _mm512_load_si512(&homes->words[i]);
        __m512i low = _mm512_xor_si512(words, _mm512_load_si512(&found.words[i]));
        __m512i high = _mm512_cvtepu8_epi64(_mm_loadu_si64(&found.high[i]));
        __m512i matches = _mm512_cvtepu8_epi64(_mm_loadu_si64(&found.matches[i]));
        __m512i row = _mm512_or_si512(_mm512_sll_epi64(high, low_bits), low);
        __mmask8 absent = _mm512_mask_testn_epi64_mask(lanes, matches, find_set(0x7f));
        changed |= _mm512_mask_test_epi64_mask(lanes & ~absent, low, rests) != 0;
        row = _mm512_mask_set1_epi64(row, absent, -1);
        _mm512_mask_storeu_epi64(rows + first + i, lanes, row);
        num_absent += (unsigned)__builtin_popcount(absent);
        find_note(first + i, find_passed(keys, absent, high, words), later);
    }
    if (__builtin_expect(!changed, 1))
        return num_absent;
    later->count = num_later;
    return find_changed(keys, homes, first, count, rows, later);
}
