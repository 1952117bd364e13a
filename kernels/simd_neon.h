/* Vector operations in aarch64's Advanced SIMD: 8 lanes of f32 and 4 of f64, two registers
 * each.
 *
 * Loads and stores take any alignment and touch exactly the bytes of their lanes. */
#ifndef BAG_SIMD_NEON_H
#define BAG_SIMD_NEON_H

#include <arm_neon.h>
#include <string.h>

#define BAG_LANE static inline __attribute__((always_inline))

/* ---- f32 ------------------------------------------------------------------------------------- */

enum { f32v_lanes = 8 };
typedef struct {
    float32x4_t low, high;
} f32v;

BAG_LANE f32v f32v_zero(void)
{
    return (f32v){vdupq_n_f32(0), vdupq_n_f32(0)};
}

BAG_LANE f32v f32v_all(float value)
{
    return (f32v){vdupq_n_f32(value), vdupq_n_f32(value)};
}

BAG_LANE f32v f32v_add(f32v a, f32v b)
{
    return (f32v){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)};
}

BAG_LANE f32v f32v_divide(f32v a, f32v b)
{
    return (f32v){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)};
}

/* a * b + c, rounded once */
BAG_LANE f32v f32v_fused(f32v a, f32v b, f32v c)
{
    return (f32v){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

BAG_LANE float32x4_t larger_f32(float32x4_t so_far, float32x4_t value)
{
    uint32x4_t not_nan = vceqq_f32(value, value);
    return vbslq_f32(vornq_u32(vcgtq_f32(value, so_far), not_nan), value, so_far);
}

/* The larger, `so_far` where they are equal, a NaN where there is one. */
BAG_LANE f32v f32v_larger(f32v so_far, f32v value)
{
    return (f32v){larger_f32(so_far.low, value.low), larger_f32(so_far.high, value.high)};
}

BAG_LANE uint16x8_t load_8_halves(const char *from)
{
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from));
}

BAG_LANE uint8x8_t load_8_bytes(const char *from)
{
    return vld1_u8((const uint8_t *)from);
}

BAG_LANE f32v f32v_load_f32(const char *from)
{
    const uint8_t *bytes = (const uint8_t *)from;
    return (f32v){vreinterpretq_f32_u8(vld1q_u8(bytes)),
                  vreinterpretq_f32_u8(vld1q_u8(bytes + 16))};
}

BAG_LANE f32v from_halves(uint16x8_t halves)
{
    float16x8_t numbers = vreinterpretq_f16_u16(halves);
    return (f32v){vcvt_f32_f16(vget_low_f16(numbers)), vcvt_f32_f16(vget_high_f16(numbers))};
}

BAG_LANE f32v f32v_load_f16(const char *from)
{
    return from_halves(load_8_halves(from));
}

BAG_LANE f32v f32v_load_bf16(const char *from)
{
    uint16x8_t halves = load_8_halves(from);
    return (f32v){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
                  vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(halves), 16))};
}

BAG_LANE f32v from_codes(uint16x8_t codes)
{
    return (f32v){vcvtq_f32_u32(vmovl_u16(vget_low_u16(codes))),
                  vcvtq_f32_u32(vmovl_u16(vget_high_u16(codes)))};
}

BAG_LANE f32v f32v_load_u8(const char *from)
{
    return from_codes(vmovl_u8(load_8_bytes(from)));
}

/* A row of four-bit codes, two to a byte, the low ones first. */
struct f32v_u4 {
    f32v scale, bias;
};

BAG_LANE struct f32v_u4 f32v_u4_open(f32v scale, f32v bias)
{
    return (struct f32v_u4){scale, bias};
}

BAG_LANE f32v f32v_u4_columns(const struct f32v_u4 *row, const char *from)
{
    uint32_t four;
    memcpy(&four, from, sizeof four);
    uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    uint8x8_t codes = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    return f32v_fused(from_codes(vmovl_u8(codes)), row->scale, row->bias);
}

/* What f32v_u4_columns returns is in order already. */
BAG_LANE f32v f32v_u4_in_order(f32v values)
{
    return values;
}

/* One f16 number in every lane. */
BAG_LANE f32v f32v_all_f16(const char *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return from_halves(vdupq_n_u16(half));
}

BAG_LANE f32v f32v_load_e5m2(const char *from)
{
    return from_halves(vshll_n_u8(load_8_bytes(from), 8));
}

/* Sign and magnitude move to where f16 has them, 2^8 too small; the NaN gets a full exponent. */
BAG_LANE f32v f32v_load_e4m3(const char *from)
{
    uint16x8_t bytes = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(load_8_bytes(from))));
    uint16x8_t nan = vdupq_n_u16(0x7f);
    uint16x8_t nans = vceqq_u16(vandq_u16(bytes, nan), nan);
    uint16x8_t halves = vandq_u16(vshlq_n_u16(bytes, 7), vdupq_n_u16(0xbf80));
    f32v small = from_halves(vorrq_u16(halves, nans));
    return (f32v){vmulq_n_f32(small.low, 256), vmulq_n_f32(small.high, 256)};
}

BAG_LANE void f32v_store_f32(char *to, f32v values)
{
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_f32(values.low));
    vst1q_u8((uint8_t *)to + 16, vreinterpretq_u8_f32(values.high));
}

BAG_LANE void f32v_store_f16(char *to, f32v values)
{
    float16x8_t halves = vcombine_f16(vcvt_f16_f32(values.low), vcvt_f16_f32(values.high));
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_f16(halves));
}

BAG_LANE uint16x4_t to_bf16(float32x4_t values)
{
    uint32x4_t bits = vreinterpretq_u32_f32(values);
    uint32x4_t upper = vshrq_n_u32(bits, 16);
    uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    uint32x4_t nan = vorrq_u32(upper, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(values, values), rounded, nan));
}

BAG_LANE void f32v_store_bf16(char *to, f32v values)
{
    uint16x8_t halves = vcombine_u16(to_bf16(values.low), to_bf16(values.high));
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_u16(halves));
}

/* ---- f64 ------------------------------------------------------------------------------------- */

enum { f64v_lanes = 4 };
typedef struct {
    float64x2_t low, high;
} f64v;

BAG_LANE f64v f64v_zero(void)
{
    return (f64v){vdupq_n_f64(0), vdupq_n_f64(0)};
}

BAG_LANE f64v f64v_all(double value)
{
    return (f64v){vdupq_n_f64(value), vdupq_n_f64(value)};
}

BAG_LANE f64v f64v_add(f64v a, f64v b)
{
    return (f64v){vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)};
}

BAG_LANE f64v f64v_divide(f64v a, f64v b)
{
    return (f64v){vdivq_f64(a.low, b.low), vdivq_f64(a.high, b.high)};
}

BAG_LANE f64v f64v_fused(f64v a, f64v b, f64v c)
{
    return (f64v){vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high)};
}

BAG_LANE float64x2_t larger_f64(float64x2_t so_far, float64x2_t value)
{
    uint64x2_t not_nan = vceqq_f64(value, value);
    uint64x2_t nan = veorq_u64(not_nan, vdupq_n_u64(UINT64_MAX));
    return vbslq_f64(vorrq_u64(vcgtq_f64(value, so_far), nan), value, so_far);
}

BAG_LANE f64v f64v_larger(f64v so_far, f64v value)
{
    return (f64v){larger_f64(so_far.low, value.low), larger_f64(so_far.high, value.high)};
}

BAG_LANE f64v f64v_load_f64(const char *from)
{
    const uint8_t *bytes = (const uint8_t *)from;
    return (f64v){vreinterpretq_f64_u8(vld1q_u8(bytes)),
                  vreinterpretq_f64_u8(vld1q_u8(bytes + 16))};
}

BAG_LANE void f64v_store_f64(char *to, f64v values)
{
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_f64(values.low));
    vst1q_u8((uint8_t *)to + 16, vreinterpretq_u8_f64(values.high));
}

#endif
