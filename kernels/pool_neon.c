/* The kernels for the Advanced SIMD of aarch64, which every such processor has. */
#if defined(__aarch64__)
#include "pool_loop.h"

#include <arm_neon.h>

/* ---- vectors --------------------------------------------------------------------------------- */

/* Defines the operations that vectors of f32 and f64 share. A vector has two registers. Loads and
 * stores take any alignment and access exactly the bytes of their lanes. `fused` is a * b + c,
 * rounded once. `larger` is `so_far` if both are equal, and a NaN if one of them is. */
#define DEFINE_VECTOR(vector, half, real, bits)                                              \
    enum { vector##_lanes = 256 / bits };                                                    \
    typedef struct {                                                                         \
        half low, high;                                                                      \
    } vector;                                                                                \
                                                                                             \
    BAG_LANE vector vector##_all(real value)                                                 \
    {                                                                                        \
        return (vector){vdupq_n_f##bits(value), vdupq_n_f##bits(value)};                     \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_zero(void)                                                      \
    {                                                                                        \
        return vector##_all(0);                                                              \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_add(vector a, vector b)                                         \
    {                                                                                        \
        return (vector){vaddq_f##bits(a.low, b.low), vaddq_f##bits(a.high, b.high)};         \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_multiply(vector a, vector b)                                    \
    {                                                                                        \
        return (vector){vmulq_f##bits(a.low, b.low), vmulq_f##bits(a.high, b.high)};         \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_divide(vector a, vector b)                                      \
    {                                                                                        \
        return (vector){vdivq_f##bits(a.low, b.low), vdivq_f##bits(a.high, b.high)};         \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_fused(vector a, vector b, vector c)                             \
    {                                                                                        \
        return (vector){vfmaq_f##bits(c.low, a.low, b.low),                                  \
                        vfmaq_f##bits(c.high, a.high, b.high)};                              \
    }                                                                                        \
                                                                                             \
    BAG_LANE half larger_f##bits(half so_far, half value)                                    \
    {                                                                                        \
        return vbslq_f##bits(                                                                \
            vornq_u##bits(vcgtq_f##bits(value, so_far), vceqq_f##bits(value, value)), value, \
            so_far);                                                                         \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_larger(vector so_far, vector value)                             \
    {                                                                                        \
        return (vector){larger_f##bits(so_far.low, value.low),                               \
                        larger_f##bits(so_far.high, value.high)};                            \
    }                                                                                        \
                                                                                             \
    BAG_LANE vector vector##_load_f##bits(const char *from)                                  \
    {                                                                                        \
        const uint8_t *bytes = (const uint8_t *)from;                                        \
        return (vector){vreinterpretq_f##bits##_u8(vld1q_u8(bytes)),                         \
                        vreinterpretq_f##bits##_u8(vld1q_u8(bytes + 16))};                   \
    }                                                                                        \
                                                                                             \
    BAG_LANE void vector##_store_f##bits(char *to, vector values)                            \
    {                                                                                        \
        vst1q_u8((uint8_t *)to, vreinterpretq_u8_f##bits(values.low));                       \
        vst1q_u8((uint8_t *)to + 16, vreinterpretq_u8_f##bits(values.high));                 \
    }

DEFINE_VECTOR(f32v, float32x4_t, float, 32)
DEFINE_VECTOR(f64v, float64x2_t, double, 64)

BAG_LANE uint16x8_t load_8_halves(const char *from)
{
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t *)from));
}

BAG_LANE uint8x8_t load_8_bytes(const char *from)
{
    return vld1_u8((const uint8_t *)from);
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

BAG_LANE f32v f32v_load_bf16(enum bag_parity part, const char *from)
{
    (void)part;
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

BAG_LANE f32v f32v_load_s8(const char *from)
{
    int16x8_t codes = vmovl_s8(vreinterpret_s8_u8(load_8_bytes(from)));
    return (f32v){vcvtq_f32_s32(vmovl_s16(vget_low_s16(codes))),
                  vcvtq_f32_s32(vmovl_s16(vget_high_s16(codes)))};
}

/* Loads the codes of two bytes, four in a byte, the lowest ones first. */
BAG_LANE f32v f32v_load_u2(const char *from)
{
    static const int16_t places[] = {0, -2, -4, -6, -8, -10, -12, -14};
    uint16_t codes;
    memcpy(&codes, from, sizeof codes);
    uint16x8_t all = vshlq_u16(vdupq_n_u16(codes), vld1q_s16(places));
    return from_codes(vandq_u16(all, vdupq_n_u16(3)));
}

/* A row of 4-bit codes, two in a byte, the low ones first. */
struct f32v_u4 {
    f32v scale, bias;
};

BAG_LANE struct f32v_u4 f32v_u4_open(f32v scale, f32v bias)
{
    return (struct f32v_u4){scale, bias};
}

BAG_LANE f32v f32v_u4_columns(const struct f32v_u4 *row, enum bag_parity part, const char *from)
{
    (void)part;
    uint32_t four;
    memcpy(&four, from, sizeof four);
    uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    uint8x8_t codes = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    return f32v_fused(from_codes(vmovl_u8(codes)), row->scale, row->bias);
}

/* The columns of f32v_u4_columns are in order already. */
BAG_LANE f32v f32v_u4_in_order(f32v values)
{
    return values;
}

/* Returns an f16 number in every lane. */
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

/* Moves sign and magnitude to their positions in f16. The result is 2^8 too small, which `scale`
 * corrects. The NaN gets a full exponent. */
BAG_LANE f32v f32v_load_e4m3(const char *from, f32v scale)
{
    uint16x8_t bytes = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(load_8_bytes(from))));
    uint16x8_t nan = vdupq_n_u16(0x7f);
    uint16x8_t nans = vceqq_u16(vandq_u16(bytes, nan), nan);
    uint16x8_t halves = vandq_u16(vshlq_n_u16(bytes, 7), vdupq_n_u16(0xbf80));
    return f32v_multiply(from_halves(vorrq_u16(halves, nans)), scale);
}

BAG_LANE void f32v_store_f16(char *to, f32v values)
{
    float16x8_t halves = vcombine_f16(vcvt_f16_f32(values.low), vcvt_f16_f32(values.high));
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_f16(halves));
}

BAG_LANE uint16x4_t to_bf16(enum bag_bf16_of of, float32x4_t values)
{
    uint32x4_t bits = vreinterpretq_u32_f32(values);
    uint32x4_t upper = vshrq_n_u32(bits, 16);
    if (of == BAG_BF16_OF_ONE)
        return vmovn_u32(upper);
    uint32x4_t odd = vandq_u32(upper, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    if (of == BAG_BF16_OF_SUMS)
        return vmovn_u32(rounded);
    uint32x4_t nan = vorrq_u32(upper, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(values, values), rounded, nan));
}

BAG_LANE void f32v_store_bf16(enum bag_bf16_of of, char *to, f32v values)
{
    uint16x8_t halves = vcombine_u16(to_bf16(of, values.low), to_bf16(of, values.high));
    vst1q_u8((uint8_t *)to, vreinterpretq_u8_u16(halves));
}

/* No kind is summed in pairs. */
BAG_LANE void f32v_interleave(f32v *even, f32v *odd)
{
    (void)even;
    (void)odd;
}

BAG_LANE void f32v_store_bf16_pair(enum bag_bf16_of of, char *to, f32v even, f32v odd)
{
    (void)of;
    (void)to;
    (void)even;
    (void)odd;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* There are 32 registers, two for a vector. */
#define BAG_KERNELS      bag_neon_kernels
#define BAG_BELOW        NULL
#define BAG_NARROW_ROWS  0
#define BAG_PAIRED(kind) ((void)(kind), false)
/* clang-format off */
#define BAG_TILES(X, ...) \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8)
/* clang-format on */
#define BAG_WIDE_TILES(X, ...)
#define BAG_FEW_TILES(X, ...) X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 4)
#define BAG_FIND_KEYS         bag_ref_keys_find
#define BAG_ID_VECTOR_BYTES   16
#define BAG_FAR               2
#define BAG_TO_FIRST          0
#define BAG_ADDS_FUSED        0
#include "pool_instances.h"
#endif
