/* The kernels for AVX2, FMA and F16C. Only this file is compiled for them, and it runs only if the
 * processor has them. */
#if defined(__x86_64__)
#include "keys_line.h"
#include "pool_loop.h"

#include <immintrin.h>

/* ---- vectors --------------------------------------------------------------------------------- */

/* Defines the operations that vectors of f32 and f64 share. Loads and stores take any alignment and
 * access exactly the bytes of their lanes. `fused` is a * b + c, rounded once. `larger` is `so_far`
 * if both are equal, and a NaN if one of them is. The instruction returns its second operand if
 * both are equal or either is a NaN. */
#define DEFINE_VECTOR(vector, type, count, real, own, s)                     \
    enum { vector##_lanes = count };                                         \
    typedef type vector;                                                     \
                                                                             \
    BAG_LANE vector vector##_zero(void)                                      \
    {                                                                        \
        return _mm256_setzero_##s();                                         \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_all(real value)                                 \
    {                                                                        \
        return _mm256_set1_##s(value);                                       \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_add(vector a, vector b)                         \
    {                                                                        \
        return _mm256_add_##s(a, b);                                         \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_multiply(vector a, vector b)                    \
    {                                                                        \
        return _mm256_mul_##s(a, b);                                         \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_divide(vector a, vector b)                      \
    {                                                                        \
        return _mm256_div_##s(a, b);                                         \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_fused(vector a, vector b, vector c)             \
    {                                                                        \
        return _mm256_fmadd_##s(a, b, c);                                    \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_larger(vector so_far, vector value)             \
    {                                                                        \
        vector nan = _mm256_cmp_##s(value, value, _CMP_UNORD_Q);             \
        return _mm256_blendv_##s(_mm256_max_##s(value, so_far), value, nan); \
    }                                                                        \
                                                                             \
    BAG_LANE vector vector##_load_##own(const char *from)                    \
    {                                                                        \
        return _mm256_loadu_##s((const real *)(const void *)from);           \
    }                                                                        \
                                                                             \
    BAG_LANE void vector##_store_##own(char *to, vector values)              \
    {                                                                        \
        _mm256_storeu_##s((real *)(void *)to, values);                       \
    }

DEFINE_VECTOR(f32v, __m256, 8, float, f32, ps)
DEFINE_VECTOR(f64v, __m256d, 4, double, f64, pd)

BAG_LANE f32v f32v_load_f16(const char *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
}

BAG_LANE f32v f32v_load_bf16(enum bag_parity part, const char *from)
{
    const __m256i *two = (const __m256i *)(const void *)from;
    if (part == BAG_PARITY_EVEN)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(two), 16));
    if (part == BAG_PARITY_ODD)
        return _mm256_castsi256_ps(
            _mm256_and_si256(_mm256_loadu_si256(two), _mm256_set1_epi32((int)0xffff0000)));
    __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

BAG_LANE __m128i load_8_bytes(const char *from)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)from);
}

BAG_LANE f32v f32v_load_u8(const char *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8_bytes(from)));
}

BAG_LANE f32v f32v_load_s8(const char *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_8_bytes(from)));
}

/* Loads the codes of two bytes, four in a byte, the lowest ones first. */
BAG_LANE f32v f32v_load_u2(const char *from)
{
    const __m256i places = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    uint16_t codes;
    memcpy(&codes, from, sizeof codes);
    __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(codes), places);
    return _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32(3)));
}

/* A row of 4-bit codes, two in a byte, the low ones first. */
struct f32v_u4 {
    f32v scale, bias;
};

BAG_LANE struct f32v_u4 f32v_u4_open(f32v scale, f32v bias)
{
    return (struct f32v_u4){scale, bias};
}

/* Returns the codes of 8 bytes: all low ones, or all high ones. */
BAG_LANE __m256i load_u4_part(bool high, const char *from)
{
    __m256i bytes = _mm256_cvtepu8_epi32(load_8_bytes(from));
    return high ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(15));
}

BAG_LANE f32v f32v_u4_columns(const struct f32v_u4 *row, enum bag_parity part, const char *from)
{
    if (part != BAG_PARITY_BOTH) {
        f32v values = _mm256_cvtepi32_ps(load_u4_part(part == BAG_PARITY_ODD, from));
        return f32v_fused(values, row->scale, row->bias);
    }
    const __m256i places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    int codes;
    memcpy(&codes, from, sizeof codes);
    __m256i all = _mm256_srlv_epi32(_mm256_set1_epi32(codes), places);
    f32v values = _mm256_cvtepi32_ps(_mm256_and_si256(all, _mm256_set1_epi32(15)));
    return f32v_fused(values, row->scale, row->bias);
}

/* The columns of f32v_u4_columns are in order already. */
BAG_LANE f32v f32v_u4_in_order(f32v values)
{
    return values;
}

/* Returns an f16 number in every lane. */
BAG_LANE f32v f32v_all_f16(const char *from)
{
    short half;
    memcpy(&half, from, sizeof half);
    return _mm256_cvtph_ps(_mm_set1_epi16(half));
}

BAG_LANE f32v f32v_load_e5m2(const char *from)
{
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), load_8_bytes(from)));
}

/* Moves sign and magnitude to their positions in f16. The result is 2^8 too small, which `scale`
 * corrects. The NaN gets a full exponent. */
BAG_LANE f32v f32v_load_e4m3(const char *from, f32v scale)
{
    __m128i bytes = _mm_cvtepi8_epi16(load_8_bytes(from));
    __m128i magnitudes = _mm_and_si128(bytes, _mm_set1_epi16(0x7f));
    __m128i nans = _mm_cmpeq_epi16(magnitudes, _mm_set1_epi16(0x7f));
    __m128i halves = _mm_and_si128(_mm_slli_epi16(bytes, 7), _mm_set1_epi16((short)0xbf80));
    return f32v_multiply(_mm256_cvtph_ps(_mm_or_si128(halves, nans)), scale);
}

BAG_LANE __m128i f16_of(f32v values)
{
    return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

BAG_LANE void f32v_store_f16(char *to, f32v values)
{
    _mm_storeu_si128((__m128i *)(void *)to, f16_of(values));
}

/* Rounds to bf16, in the upper halves. */
BAG_LANE __m256i round_bf16(enum bag_bf16_of of, f32v values)
{
    __m256i bits = _mm256_castps_si256(values);
    if (of == BAG_BF16_OF_ONE)
        return bits;
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
    if (of == BAG_BF16_OF_SUMS)
        return rounded;
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(1 << 22));
    f32v is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(is_nan));
}

/* Stores the results of a pair of vectors with sums of bf16 numbers. */
BAG_LANE void f32v_store_bf16_pair(enum bag_bf16_of of, char *to, f32v even, f32v odd)
{
    __m256i low = _mm256_srli_epi32(round_bf16(of, even), 16), high = round_bf16(of, odd);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_blend_epi16(low, high, 0xaa));
}

BAG_LANE __m128i bf16_of(enum bag_bf16_of of, f32v values)
{
    __m256i upper = _mm256_srli_epi32(round_bf16(of, values), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

BAG_LANE void f32v_store_bf16(enum bag_bf16_of of, char *to, f32v values)
{
    _mm_storeu_si128((__m128i *)(void *)to, bf16_of(of, values));
}

/* Orders the columns of a pair of vectors. */
BAG_LANE void f32v_interleave(f32v *even, f32v *odd)
{
    f32v low = _mm256_unpacklo_ps(*even, *odd), high = _mm256_unpackhi_ps(*even, *odd);
    *even = _mm256_permute2f128_ps(low, high, 0x20);
    *odd = _mm256_permute2f128_ps(low, high, 0x31);
}

/* ---- rows narrower than a vector ------------------------------------------------------------- */

/* Rows narrower than a vector. Their columns are in the lanes of two parts, which have the same
 * power of two of columns: the first ones, and the last ones, which may overlap them. So exactly
 * the row is read, and exactly the result is written. */
struct f32v_some {
    size_t count, part, last; /* columns of the row and of a part; first column of the last part */
    __m256i places;           /* column that each lane holds */
};

struct f64v_some {
    size_t count, part, last;
};

BAG_LANE size_t columns_of_part(size_t count)
{
    return count >= 4 ? 4 : count >= 2 ? 2 : 1;
}

BAG_LANE struct f32v_some f32v_some_of(size_t count)
{
    size_t part = columns_of_part(count), last = count - part;
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i is_last = _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32((int)part - 1));
    __m256i later = _mm256_add_epi32(lanes, _mm256_set1_epi32((int)last - (int)part));
    return (struct f32v_some){count, part, last, _mm256_blendv_epi8(lanes, later, is_last)};
}

BAG_LANE struct f64v_some f64v_some_of(size_t count)
{
    size_t part = columns_of_part(count);
    return (struct f64v_some){count, part, count - part};
}

BAG_LANE f32v f32v_load_some_f32(const char *from, const struct f32v_some *some)
{
    const char *last = from + some->last * sizeof(float);
    if (some->part == 4)
        return _mm256_insertf128_ps(
            _mm256_castps128_ps256(_mm_loadu_ps((const float *)(const void *)from)),
            _mm_loadu_ps((const float *)(const void *)last), 1);
    if (some->part == 2)
        return _mm256_zextps128_ps256(
            _mm_castsi128_ps(_mm_unpacklo_epi64(load_8_bytes(from), load_8_bytes(last))));
    return _mm256_broadcast_ss((const float *)(const void *)from);
}

BAG_LANE f64v f64v_load_some_f64(const char *from, const struct f64v_some *some)
{
    if (some->part == 1)
        return _mm256_broadcast_sd((const double *)(const void *)from);
    const char *last = from + some->last * sizeof(double);
    return _mm256_insertf128_pd(
        _mm256_castpd128_pd256(_mm_loadu_pd((const double *)(const void *)from)),
        _mm_loadu_pd((const double *)(const void *)last), 1);
}

/* Loads the parts of a row whose elements have two bytes or one. */
BAG_LANE __m128i load_parts(const char *from, const struct f32v_some *some, size_t element_bytes)
{
    const char *last = from + some->last * element_bytes;
    size_t bytes = some->part * element_bytes;
    if (bytes == 8)
        return _mm_unpacklo_epi64(load_8_bytes(from), load_8_bytes(last));
    uint64_t low = bag_load_some(from, bytes), high = bag_load_some(last, bytes);
    return _mm_cvtsi64_si128((long long)(low | high << 8 * bytes));
}

/* Loads the codes or elements of a row whose elements have less than 32 bits. The codes of INT8,
 * INT4 and INT2 rows are in order. */
BAG_LANE __m128i f32v_load_some(enum bag_row_kind kind, const char *from,
                                const struct f32v_some *some)
{
    const size_t bits = bag_kind_bits(kind);
    if (kind == BAG_KIND_OF_INT8 || bits < 8)
        return _mm_cvtsi64_si128((long long)bag_load_some(from, (some->count * bits + 7) / 8));
    return load_parts(from, some, bits / 8);
}

/* Arranges ordered columns into the two parts. */
BAG_LANE f32v f32v_part(f32v values, const struct f32v_some *some)
{
    return _mm256_permutevar8x32_ps(values, some->places);
}

/* Writes two parts of `part_bytes` each, to `to` and `last` bytes after it. */
BAG_LANE void store_parts(char *to, size_t last, size_t part_bytes, __m256i parts)
{
    __m128i low = _mm256_castsi256_si128(parts);
    long long first_bytes = _mm_cvtsi128_si64(low);
    if (part_bytes == 16) {
        _mm_storeu_si128((__m128i *)(void *)to, low);
        _mm_storeu_si128((__m128i *)(void *)(to + last), _mm256_extracti128_si256(parts, 1));
    } else if (part_bytes == 8) {
        _mm_storel_epi64((__m128i *)(void *)to, low);
        _mm_storel_epi64((__m128i *)(void *)(to + last), _mm_unpackhi_epi64(low, low));
    } else if (part_bytes == 4) {
        long long last_bytes = first_bytes >> 32;
        memcpy(to, &first_bytes, 4);
        memcpy(to + last, &last_bytes, 4);
    } else {
        memcpy(to, &first_bytes, 2);
    }
}

BAG_LANE void f32v_store_some(enum bag_dtype dtype, enum bag_bf16_of of, char *to,
                              const struct f32v_some *some, f32v values)
{
    size_t bytes = dtype == BAG_F32 ? sizeof(float) : sizeof(uint16_t);
    __m256i parts = dtype == BAG_F32   ? _mm256_castps_si256(values)
                    : dtype == BAG_F16 ? _mm256_zextsi128_si256(f16_of(values))
                                       : _mm256_zextsi128_si256(bf16_of(of, values));
    store_parts(to, some->last * bytes, some->part * bytes, parts);
}

BAG_LANE void f64v_store_some(enum bag_dtype dtype, enum bag_bf16_of of, char *to,
                              const struct f64v_some *some, f64v values)
{
    (void)dtype;
    (void)of;
    size_t part_bytes = some->part * sizeof(double);
    store_parts(to, some->last * sizeof(double), part_bytes, _mm256_castpd_si256(values));
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns which of four words equal `word` except for the low bits. */
static inline unsigned match_four(__m256i words, uint64_t word, __m256i rests)
{
    __m256i others = _mm256_xor_si256(words, _mm256_set1_epi64x((long long)word));
    __m256i equal = _mm256_cmpeq_epi64(_mm256_and_si256(others, rests), _mm256_setzero_si256());
    return (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(equal));
}

/* Returns the slots that match, like bag_keys_match, and bit 7. Later reads are not moved before
 * it. */
static inline unsigned match_slots(const struct bag_keys *keys, const struct bag_keys_line *line,
                                   uint64_t word)
{
    const __m256i rests = _mm256_set1_epi64x((long long)(~UINT64_C(0) << keys->low_bits));
    const __m256i *halves = (const __m256i *)(const void *)line;
    __m256i first = _mm256_load_si256(halves), last = _mm256_load_si256(halves + 1);
    __atomic_signal_fence(__ATOMIC_ACQUIRE);
    unsigned matches = match_four(first, word, rests) | match_four(last, word, rests) << 4;
    return matches | 1u << BAG_KEYS_PER_LINE;
}

#define MATCH_SLOTS match_slots
#include "keys_find.h"

/* ---- kernels --------------------------------------------------------------------------------- */

/* There are 16 registers. A tile of 13 vectors leaves one for an element, and two for scale and
 * bias: rows of 100 columns take 0.9 of the time of two tiles. */
#define BAG_KERNELS      bag_avx2_kernels
#define BAG_BELOW        NULL
#define BAG_NARROW_ROWS  1
#define BAG_PAIRED(kind) ((kind) == BAG_KIND_OF_BF16 || (kind) == BAG_KIND_OF_INT4)
/* clang-format off */
#define BAG_TILES(X, ...) \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8)
/* clang-format on */
#define BAG_WIDE_TILES(X, ...) X(__VA_ARGS__, 13)
#define BAG_FEW_TILES(X, ...)  X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 4)
#define BAG_FIND_KEYS          find_keys
#define BAG_ID_VECTOR_BYTES    32
#define BAG_FAR                1
#define BAG_TO_FIRST           0
#define BAG_ADDS_FUSED         0
#include "pool_instances.h"
#endif
