/* Checks whole arrays of ids with vectors of BAG_ID_VECTOR_BYTES. Included once for plain C and
 * once for each instruction set, which define that before.
 *
 * The loops have no branches, comparisons or early exits, because most instruction sets compare
 * 64-bit integers slowly. Every fault shows in the sign of a difference. */
#include "pool_entries.h"

/* Keeps a vector in its register. GCC would load it again for each use, which takes twice as
 * long. */
#if defined(__x86_64__) && (BAG_ID_VECTOR_BYTES <= 32 || defined(__AVX512F__))
#define BAG_KEEP_LOADED(vector) __asm__("" : "+x"(vector))
#elif defined(__aarch64__)
#define BAG_KEEP_LOADED(vector) __asm__("" : "+w"(vector))
#else
#define BAG_KEEP_LOADED(vector) (void)(vector)
#endif

/* Evaluates to whether any lane of a vector has its sign set. */
#if BAG_ID_VECTOR_BYTES == 64 && defined(__AVX512DQ__)
#define BAG_ANY_SIGN(bits, vector) (_mm512_movepi##bits##_mask((__m512i)(vector)) != 0)
#elif BAG_ID_VECTOR_BYTES == 32 && defined(__AVX2__)
#define BAG_MOVEMASK_32(vector)    _mm256_movemask_ps((__m256)(vector))
#define BAG_MOVEMASK_64(vector)    _mm256_movemask_pd((__m256d)(vector))
#define BAG_ANY_SIGN(bits, vector) (BAG_MOVEMASK_##bits(vector) != 0)
#else
#define BAG_ANY_SIGN(bits, vector) any_sign(bits, &(vector))

static inline bool any_sign(int bits, const void *vector)
{
    const uint64_t sign = bits == 64 ? UINT64_C(1) << 63 : UINT64_C(0x8000000080000000);
    uint64_t words[BAG_ID_VECTOR_BYTES / 8] BAG_UNSET, all = 0;
    memcpy(words, vector, sizeof words);
    for (size_t i = 0; i < BAG_ID_VECTOR_BYTES / 8; i++)
        all |= words[i];
    return all & sign;
}
#endif

/* Defines functions that find wrong ids: negative ones unless they are allowed, those above `high`
 * (at least -1), and with `ascending` those less than the one before them. A difference overflows
 * only with a negative id, whose own sign is enough. `any_negative` and `ascending` are constants
 * of each call. The ids after the last whole vector are checked with the vector that ends at the
 * array's end. `steps` counts the ids from the first one on that are one more than the one before
 * them; the first one counts. Its last vector, too, ends at the array's end. */
#define BAG_DEFINE_IDS_VALID(bits)                                                                \
    typedef uint##bits##_t ids##bits##v __attribute__((vector_size(BAG_ID_VECTOR_BYTES)));        \
                                                                                                  \
    static inline uint##bits##_t id##bits##_at(const char *ids, size_t position)                  \
    {                                                                                             \
        uint##bits##_t id;                                                                        \
        memcpy(&id, ids + position * sizeof id, sizeof id);                                       \
        return id;                                                                                \
    }                                                                                             \
                                                                                                  \
    static inline ids##bits##v ids##bits##_at(const char *ids, size_t position)                   \
    {                                                                                             \
        ids##bits##v some;                                                                        \
        memcpy(&some, ids + position * sizeof(uint##bits##_t), sizeof some);                      \
        return some;                                                                              \
    }                                                                                             \
                                                                                                  \
    static inline bool ascends_##bits(const char *ids, size_t count)                              \
    {                                                                                             \
        const size_t lanes = BAG_ID_VECTOR_BYTES * 8 / bits;                                      \
        ids##bits##v wrong = {0};                                                                 \
        uint##bits##_t signs = id##bits##_at(ids, 0);                                             \
        for (size_t i = 1; count > lanes && i < count; i += lanes) {                              \
            size_t at = i + lanes <= count ? i : count - lanes;                                   \
            ids##bits##v some = ids##bits##_at(ids, at);                                          \
            BAG_KEEP_LOADED(some);                                                                \
            wrong |= some | (some - ids##bits##_at(ids, at - 1));                                 \
        }                                                                                         \
        for (size_t i = 1; count <= lanes && i < count; i++)                                      \
            signs |= id##bits##_at(ids, i) | (id##bits##_at(ids, i) - id##bits##_at(ids, i - 1)); \
        return !(signs >> (bits - 1)) && !BAG_ANY_SIGN(bits, wrong);                              \
    }                                                                                             \
                                                                                                  \
    static inline bool all_step_##bits(const char *ids, size_t at)                                \
    {                                                                                             \
        ids##bits##v step = ids##bits##_at(ids, at) - ids##bits##_at(ids, at - 1);                \
        ids##bits##v others = (ids##bits##v)(step != 1);                                          \
        return !BAG_ANY_SIGN(bits, others);                                                       \
    }                                                                                             \
                                                                                                  \
    static inline size_t steps_##bits(const char *ids, size_t count)                              \
    {                                                                                             \
        const size_t lanes = BAG_ID_VECTOR_BYTES * 8 / bits;                                      \
        size_t at = 1;                                                                            \
        while (at + lanes <= count && all_step_##bits(ids, at))                                   \
            at += lanes;                                                                          \
        if (count > lanes && at + lanes > count && all_step_##bits(ids, count - lanes))           \
            return count;                                                                         \
        while (at < count && id##bits##_at(ids, at) == id##bits##_at(ids, at - 1) + 1)            \
            at++;                                                                                 \
        return at;                                                                                \
    }                                                                                             \
                                                                                                  \
    static inline ids##bits##v outside_##bits(const char *ids, size_t position,                   \
                                              uint##bits##_t high, bool any_negative)             \
    {                                                                                             \
        ids##bits##v some = ids##bits##_at(ids, position);                                        \
        BAG_KEEP_LOADED(some);                                                                    \
        return any_negative ? (high - some) & ~some : (high - some) | some;                       \
    }                                                                                             \
                                                                                                  \
    static inline __attribute__((always_inline)) bool in_range_##bits(                            \
        const char *ids, size_t count, uint##bits##_t high, bool any_negative)                    \
    {                                                                                             \
        const size_t lanes = BAG_ID_VECTOR_BYTES * 8 / bits;                                      \
        uint##bits##_t signs = 0;                                                                 \
        if (count >= lanes) {                                                                     \
            ids##bits##v wrong = outside_##bits(ids, count - lanes, high, any_negative);          \
            for (size_t i = 0; i < count - lanes; i += lanes)                                     \
                wrong |= outside_##bits(ids, i, high, any_negative);                              \
            return !BAG_ANY_SIGN(bits, wrong);                                                    \
        }                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                      \
            uint##bits##_t id = id##bits##_at(ids, i);                                            \
            signs |= any_negative ? (high - id) & ~id : (high - id) | id;                         \
        }                                                                                         \
        return !(signs >> (bits - 1));                                                            \
    }

BAG_DEFINE_IDS_VALID(32)
BAG_DEFINE_IDS_VALID(64)

/* Returns a bound of INT32 ids, none of which exceeds INT32_MAX. */
static inline uint32_t narrow_high(int64_t high)
{
    return high > INT32_MAX ? INT32_MAX : (uint32_t)high;
}

/* Returns whether no id is above `high`, and none is negative unless that is allowed. */
static bool ids_in_range(const void *ids, size_t count, bool wide, int64_t high, bool any_negative)
{
    if (wide)
        return any_negative ? in_range_64(ids, count, (uint64_t)high, true)
                            : in_range_64(ids, count, (uint64_t)high, false);
    return any_negative ? in_range_32(ids, count, narrow_high(high), true)
                        : in_range_32(ids, count, narrow_high(high), false);
}

/* Returns whether no id is negative or less than the one before it. There must be at least one. */
static bool ids_ascend(const void *ids, size_t count, bool wide)
{
    return wide ? ascends_64(ids, count) : ascends_32(ids, count);
}
