/* The kernels for AVX-512. Only this file is compiled for it, and it runs only if the processor has
 * it. AVX2, which every such processor has, pools rows that are narrower than a vector. */
#if defined(__x86_64__)
#include "keys_line.h"
#include "pool_loop.h"

/* A test may name a header that emulates the instructions. */
#ifdef BAG_INTRINSICS_HEADER
#include BAG_INTRINSICS_HEADER
#else
#include <immintrin.h>
#endif

/* ---- vectors --------------------------------------------------------------------------------- */

/* Defines the operations that vectors of f32 and f64 share. Loads and stores take any alignment and
 * access exactly the bytes of their lanes. `fused` is a * b + c, rounded once. `larger` is `so_far`
 * if both are equal, and a NaN if one of them is. The instruction returns its second operand if
 * both are equal or either is a NaN. */
#define DEFINE_VECTOR(vector, type, count, real, own, s)                       \
    enum { vector##_lanes = count };                                           \
    typedef type vector;                                                       \
                                                                               \
    BAG_LANE vector vector##_zero(void)                                        \
    {                                                                          \
        return _mm512_setzero_##s();                                           \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_all(real value)                                   \
    {                                                                          \
        return _mm512_set1_##s(value);                                         \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_add(vector a, vector b)                           \
    {                                                                          \
        return _mm512_add_##s(a, b);                                           \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_multiply(vector a, vector b)                      \
    {                                                                          \
        return _mm512_mul_##s(a, b);                                           \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_divide(vector a, vector b)                        \
    {                                                                          \
        return _mm512_div_##s(a, b);                                           \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_fused(vector a, vector b, vector c)               \
    {                                                                          \
        return _mm512_fmadd_##s(a, b, c);                                      \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_larger(vector so_far, vector value)               \
    {                                                                          \
        __mmask16 nan = _mm512_cmp_##s##_mask(value, value, _CMP_UNORD_Q);     \
        return _mm512_mask_mov_##s(_mm512_max_##s(value, so_far), nan, value); \
    }                                                                          \
                                                                               \
    BAG_LANE vector vector##_load_##own(const char *from)                      \
    {                                                                          \
        return _mm512_loadu_##s((const real *)(const void *)from);             \
    }                                                                          \
                                                                               \
    BAG_LANE void vector##_store_##own(char *to, vector values)                \
    {                                                                          \
        _mm512_storeu_##s((real *)(void *)to, values);                         \
    }

DEFINE_VECTOR(f32v, __m512, 16, float, f32, ps)
DEFINE_VECTOR(f64v, __m512d, 8, double, f64, pd)

BAG_LANE __m128i load_16_bytes(const char *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

BAG_LANE __m256i load_16_halves(const char *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

BAG_LANE f32v f32v_load_f16(const char *from)
{
    return _mm512_cvtph_ps(load_16_halves(from));
}

BAG_LANE f32v f32v_load_bf16(enum bag_parity part, const char *from)
{
    if (part == BAG_PARITY_EVEN)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
    if (part == BAG_PARITY_ODD)
        return _mm512_castsi512_ps(
            _mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32((int)0xffff0000)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_halves(from)), 16));
}

BAG_LANE f32v f32v_load_u8(const char *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16_bytes(from)));
}

BAG_LANE f32v f32v_load_s8(const char *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16_bytes(from)));
}

/* Loads the codes of four bytes, four in a byte, the lowest ones first. */
BAG_LANE f32v f32v_load_u2(const char *from)
{
    const __m512i places =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    int codes;
    memcpy(&codes, from, sizeof codes);
    __m512i all = _mm512_srlv_epi32(_mm512_set1_epi32(codes), places);
    return _mm512_cvtepi32_ps(_mm512_and_si512(all, _mm512_set1_epi32(3)));
}

/* Returns an f16 number in every lane. */
BAG_LANE f32v f32v_all_f16(const char *from)
{
    short half;
    memcpy(&half, from, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}

/* A row of 4-bit codes, two in a byte, the low ones first: the 16 possible values, from which the
 * codes select. */
struct f32v_u4 {
    f32v values;
};

BAG_LANE struct f32v_u4 f32v_u4_open(f32v scale, f32v bias)
{
    const f32v codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (struct f32v_u4){_mm512_fmadd_ps(codes, scale, bias)};
}

/* Returns the values of 8 bytes, with those of the first four bytes in the even lanes.
 * f32v_u4_in_order orders the results. The selection ignores the bits above a code. */
BAG_LANE f32v f32v_u4_columns(const struct f32v_u4 *row, enum bag_parity part, const char *from)
{
    (void)part;
    const __m512i places =
        _mm512_setr_epi32(0, 0, 4, 4, 8, 8, 12, 12, 16, 16, 20, 20, 24, 24, 28, 28);
    long long codes;
    memcpy(&codes, from, sizeof codes);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi64(codes), places), row->values);
}

BAG_LANE f32v f32v_u4_in_order(f32v values)
{
    const __m512i places = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm512_permutexvar_ps(places, values);
}

BAG_LANE f32v f32v_load_e5m2(const char *from)
{
    __m256i bytes = _mm256_cvtepu8_epi16(load_16_bytes(from));
    return _mm512_cvtph_ps(_mm256_slli_epi16(bytes, 8));
}

/* Moves sign and magnitude to their positions in f16. The result is 2^8 too small, which `scale`
 * corrects. The NaN gets a full exponent. */
BAG_LANE f32v f32v_load_e4m3(const char *from, f32v scale)
{
    __m256i bytes = _mm256_cvtepi8_epi16(load_16_bytes(from));
    __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
    __m256i nans = _mm256_cmpeq_epi16(magnitudes, _mm256_set1_epi16(0x7f));
    __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16((short)0xbf80));
    return f32v_multiply(_mm512_cvtph_ps(_mm256_or_si256(halves, nans)), scale);
}

BAG_LANE void f32v_store_f16(char *to, f32v values)
{
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Rounds to bf16, in the upper halves. */
BAG_LANE __m512i round_bf16(enum bag_bf16_of of, f32v values)
{
    __m512i bits = _mm512_castps_si512(values);
    if (of == BAG_BF16_OF_ONE)
        return bits;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
    if (of == BAG_BF16_OF_SUMS)
        return rounded;
    __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(1 << 22));
    __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(rounded, is_nan, nan);
}

/* Stores the results of a pair of vectors with sums of bf16 numbers. */
BAG_LANE void f32v_store_bf16_pair(enum bag_bf16_of of, char *to, f32v even, f32v odd)
{
    __m512i low = _mm512_srli_epi32(round_bf16(of, even), 16), high = round_bf16(of, odd);
    __m512i upper = _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000));
    _mm512_storeu_si512(to, _mm512_or_si512(low, upper));
}

BAG_LANE void f32v_store_bf16(enum bag_bf16_of of, char *to, f32v values)
{
    __m512i upper = _mm512_srli_epi32(round_bf16(of, values), 16);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(upper));
}

/* Orders the columns of a pair of vectors. */
BAG_LANE void f32v_interleave(f32v *even, f32v *odd)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    f32v first = _mm512_permutex2var_ps(*even, low, *odd);
    *odd = _mm512_permutex2var_ps(*even, high, *odd);
    *even = first;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns the slots that match, like bag_keys_match, and bit 7. Later reads are not moved before
 * it. */
static inline unsigned match_slots(const struct bag_keys *keys, const struct bag_keys_line *line,
                                   uint64_t word)
{
    const __m512i rests =
        _mm512_maskz_set1_epi64(0x7f, (long long)(~UINT64_C(0) << keys->low_bits));
    __m512i words = _mm512_load_si512(line);
    __atomic_signal_fence(__ATOMIC_ACQUIRE);
    __m512i others = _mm512_xor_si512(words, _mm512_set1_epi64((long long)word));
    return _mm512_testn_epi64_mask(others, rests);
}

#define MATCH_SLOTS match_slots
#include "keys_find.h"

/* ---- kernels --------------------------------------------------------------------------------- */

/* There are 32 registers. Tiles of 16 vectors leave enough for elements of every kind; two tiles
 * are as fast as one of 9 to 15 vectors. */
#define BAG_KERNELS      bag_avx512_kernels
#define BAG_BELOW        &bag_avx2_kernels
#define BAG_NARROW_ROWS  0
#define BAG_PAIRED(kind) ((kind) == BAG_KIND_OF_BF16)
/* clang-format off */
#define BAG_TILES(X, ...) \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8) \
    X(__VA_ARGS__, 16)
/* clang-format on */
#define BAG_WIDE_TILES(X, ...)
#define BAG_FEW_TILES(X, ...) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 4)
#define BAG_FIND_KEYS         find_keys
#define BAG_ID_VECTOR_BYTES   64
#define BAG_FAR               4
#define BAG_TO_FIRST          1
#define BAG_ADDS_FUSED        1
#include "pool_instances.h"
#endif
