/* AVX-512 by SIMDe on processors without it, and the conversions that SIMDe lacks, by halves. */
#pragma once

#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#pragma GCC diagnostic pop

static inline simde__m512i join_halves(__m256i low, __m256i high)
{
    return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1);
}

static inline __m256i half_of(simde__m512i all, int which)
{
    return which ? simde_mm512_extracti64x4_epi64(all, 1) : simde_mm512_castsi512_si256(all);
}

static inline simde__m512 emulated_cvtepi32_ps(simde__m512i numbers)
{
    __m256i low = _mm256_castps_si256(_mm256_cvtepi32_ps(half_of(numbers, 0)));
    __m256i high = _mm256_castps_si256(_mm256_cvtepi32_ps(half_of(numbers, 1)));
    return simde_mm512_castsi512_ps(join_halves(low, high));
}

static inline simde__m512 emulated_cvtph_ps(__m256i halves)
{
    __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    return simde_mm512_castsi512_ps(
        join_halves(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

static inline __m256i emulated_cvtps_ph(simde__m512 values)
{
    simde__m512i bits = simde_mm512_castps_si512(values);
    __m128i low = _mm256_cvtps_ph(_mm256_castsi256_ps(half_of(bits, 0)), _MM_FROUND_TO_NEAREST_INT);
    __m128i high =
        _mm256_cvtps_ph(_mm256_castsi256_ps(half_of(bits, 1)), _MM_FROUND_TO_NEAREST_INT);
    return _mm256_set_m128i(high, low);
}

static inline simde__m512i emulated_cvtepu8_epi32(__m128i bytes)
{
    return join_halves(_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}

static inline simde__m512i emulated_cvtepi8_epi32(__m128i bytes)
{
    return join_halves(_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}

static inline simde__m512i emulated_cvtepu8_epi64(__m128i bytes)
{
    return join_halves(_mm256_cvtepu8_epi64(bytes), _mm256_cvtepu8_epi64(_mm_srli_si128(bytes, 4)));
}

static inline simde__m512i emulated_cvtepu16_epi32(__m256i halves)
{
    return join_halves(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(halves)),
                       _mm256_cvtepu16_epi32(_mm256_extracti128_si256(halves, 1)));
}

static inline __m256i emulated_cvtepi32_epi16(simde__m512i numbers)
{
    int32_t wide[16];
    int16_t narrow[16];
    memcpy(wide, &numbers, sizeof wide);
    for (int i = 0; i < 16; i++)
        narrow[i] = (int16_t)wide[i];
    __m256i result;
    memcpy(&result, narrow, sizeof result);
    return result;
}

/* Newer versions of SIMDe have some of them. */
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi64
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_ps                emulated_cvtepi32_ps
#define _mm512_cvtph_ps                   emulated_cvtph_ps
#define _mm512_cvtps_ph(values, rounding) emulated_cvtps_ph(values)
#define _mm512_cvtepu8_epi32              emulated_cvtepu8_epi32
#define _mm512_cvtepi8_epi32              emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi64              emulated_cvtepu8_epi64
#define _mm512_cvtepu16_epi32             emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi16             emulated_cvtepi32_epi16
