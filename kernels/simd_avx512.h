/* Vector operations in AVX-512 (F, BW, DQ, VL): 16 lanes of f32, 8 of f64.
 *
 * Loads and stores take any alignment and touch exactly the bytes of their lanes. A test may name a
 * header that emulates the instructions. */
#ifndef BAG_SIMD_AVX512_H
#define BAG_SIMD_AVX512_H

#ifdef BAG_INTRINSICS_HEADER
#include BAG_INTRINSICS_HEADER
#else
#include <immintrin.h>
#endif
#include <string.h>

#define BAG_LANE static inline __attribute__((always_inline))

/* ---- f32 ------------------------------------------------------------------------------------- */

enum { f32v_lanes = 16 };
typedef __m512 f32v;

BAG_LANE f32v f32v_zero(void)
{
    return _mm512_setzero_ps();
}

BAG_LANE f32v f32v_all(float value)
{
    return _mm512_set1_ps(value);
}

BAG_LANE f32v f32v_add(f32v a, f32v b)
{
    return _mm512_add_ps(a, b);
}

BAG_LANE f32v f32v_divide(f32v a, f32v b)
{
    return _mm512_div_ps(a, b);
}

/* a * b + c, rounded once */
BAG_LANE f32v f32v_fused(f32v a, f32v b, f32v c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* The larger, `so_far` where they are equal, a NaN where there is one. The instruction gives its
 * second operand where they are equal or either is a NaN. */
BAG_LANE f32v f32v_larger(f32v so_far, f32v value)
{
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(_mm512_max_ps(value, so_far), nan, value);
}

BAG_LANE __m128i load_16_bytes(const char *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

BAG_LANE __m256i load_16_halves(const char *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

BAG_LANE f32v f32v_load_f32(const char *from)
{
    return _mm512_loadu_ps(from);
}

BAG_LANE f32v f32v_load_f16(const char *from)
{
    return _mm512_cvtph_ps(load_16_halves(from));
}

BAG_LANE f32v f32v_load_bf16(const char *from)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_halves(from)), 16));
}

BAG_LANE f32v f32v_load_u8(const char *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_16_bytes(from)));
}

/* One f16 number in every lane. */
BAG_LANE f32v f32v_all_f16(const char *from)
{
    short half;
    memcpy(&half, from, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}

/* A row of four-bit codes, two to a byte, the low ones first: its 16 possible values, which the
 * codes select. */
struct f32v_u4 {
    f32v values;
};

BAG_LANE struct f32v_u4 f32v_u4_open(f32v scale, f32v bias)
{
    const f32v codes = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return (struct f32v_u4){_mm512_fmadd_ps(codes, scale, bias)};
}

/* The values of 8 bytes, those of the first four bytes in the even lanes: f32v_u4_in_order puts
 * what becomes of them in order. The selection takes no notice of bits above a code's. */
BAG_LANE f32v f32v_u4_columns(const struct f32v_u4 *row, const char *from)
{
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

/* Sign and magnitude move to where f16 has them, 2^8 too small; the NaN gets a full exponent. */
BAG_LANE f32v f32v_load_e4m3(const char *from)
{
    __m256i bytes = _mm256_cvtepi8_epi16(load_16_bytes(from));
    __m256i magnitudes = _mm256_and_si256(bytes, _mm256_set1_epi16(0x7f));
    __m256i nans = _mm256_cmpeq_epi16(magnitudes, _mm256_set1_epi16(0x7f));
    __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(bytes, 7), _mm256_set1_epi16((short)0xbf80));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(halves, nans)), _mm512_set1_ps(256));
}

BAG_LANE void f32v_store_f32(char *to, f32v values)
{
    _mm512_storeu_ps(to, values);
}

BAG_LANE void f32v_store_f16(char *to, f32v values)
{
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

BAG_LANE void f32v_store_bf16(char *to, f32v values)
{
    __m512i bits = _mm512_castps_si512(values);
    __m512i upper = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    __m512i nan = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, is_nan, nan);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtepi32_epi16(rounded));
}

/* ---- f64 ------------------------------------------------------------------------------------- */

enum { f64v_lanes = 8 };
typedef __m512d f64v;

BAG_LANE f64v f64v_zero(void)
{
    return _mm512_setzero_pd();
}

BAG_LANE f64v f64v_all(double value)
{
    return _mm512_set1_pd(value);
}

BAG_LANE f64v f64v_add(f64v a, f64v b)
{
    return _mm512_add_pd(a, b);
}

BAG_LANE f64v f64v_divide(f64v a, f64v b)
{
    return _mm512_div_pd(a, b);
}

BAG_LANE f64v f64v_fused(f64v a, f64v b, f64v c)
{
    return _mm512_fmadd_pd(a, b, c);
}

BAG_LANE f64v f64v_larger(f64v so_far, f64v value)
{
    __mmask8 nan = _mm512_cmp_pd_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_pd(_mm512_max_pd(value, so_far), nan, value);
}

BAG_LANE f64v f64v_load_f64(const char *from)
{
    return _mm512_loadu_pd(from);
}

BAG_LANE void f64v_store_f64(char *to, f64v values)
{
    _mm512_storeu_pd(to, values);
}

#endif
