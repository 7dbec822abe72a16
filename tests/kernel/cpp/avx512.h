// Emulation of the AVX-512 and AVX-512 BF16 instructions that the kernels use, for CPUs that lack them; only for tests.
// Included first, it compiles the kernels as for the level x86-64-v4-bf16. A pair of bfloat16 is multiplied and added
// with two roundings; the real instruction also flushes subnormal numbers to zero.
#pragma once
#include <immintrin.h>  // before the names below, whose functions in it require AVX-512

#include <cmath>
#include <cstdint>
#include <cstring>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512BF16__ 1

namespace avx512 {

typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));
using Mask = uint16_t;

template <typename Vector, typename From>
inline Vector load(const From* from) {
    Vector x;
    memcpy(&x, (const void*)from, sizeof x);
    return x;
}
template <typename Vector, typename To>
inline void store(To* to, Vector x) { memcpy((void*)to, &x, sizeof x); }

// Lanes outside the mask are neither read nor written.
template <typename Vector, typename Number, int LANES, typename From>
inline Vector load_some(unsigned mask, const From* from) {
    Vector x = {};
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1) memcpy((char*)&x + i * sizeof(Number), (const char*)from + i * sizeof(Number), sizeof(Number));
    return x;
}
template <typename Number, int LANES, typename To, typename Vector>
inline void store_some(To* to, unsigned mask, Vector x) {
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1) memcpy((char*)to + i * sizeof(Number), (const char*)&x + i * sizeof(Number), sizeof(Number));
}

template <typename F>
inline __m512 each(F f) {
    __m512 y;
    for (int i = 0; i < 16; i++) y[i] = f(i);
    return y;
}
inline __m512 choose(Mask mask, __m512 one, __m512 other) {
    return each([&](int i) { return mask >> i & 1 ? one[i] : other[i]; });
}
template <typename F>
inline Mask where(F f) {
    Mask mask = 0;
    for (int i = 0; i < 16; i++) mask = Mask(mask | int(bool(f(i))) << i);
    return mask;
}

inline float widen(uint16_t half) {
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
inline uint16_t narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? uint16_t(bits >> 16 | 64) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Interleave the numbers of two vectors within blocks of 128 bits; `NUMBERS` is the number per block.
template <typename Vector, int NUMBERS>
inline __m512i unpack(__m512i a, __m512i b, int from) {
    const Vector x = (Vector)a, y = (Vector)b;
    Vector both;
    for (int i = 0; i < 4 * NUMBERS; i += 2) {
        const int at = i / NUMBERS * NUMBERS + from + i % NUMBERS / 2;
        both[i] = x[at], both[i + 1] = y[at];
    }
    return (__m512i)both;
}
inline __m512i shuffle(__m512i a, __m512i b, int which) {
    const Longs x = (Longs)a, y = (Longs)b;
    Longs z;
    for (int i = 0; i < 4; i++) {
        const Longs& from = i < 2 ? x : y;  // GCC 12 with -fsanitize=undefined needs this name to read the right one
        for (int j = 0; j < 2; j++) z[2 * i + j] = from[2 * (which >> 2 * i & 3) + j];
    }
    return (__m512i)z;
}

inline Words widen_words(__m256i x) { return __builtin_convertvector((Halves)x, Words); }
inline __m256i narrow_all(__m512 x) {
    Halves y;
    for (int i = 0; i < 16; i++) y[i] = narrow(x[i]);
    return (__m256i)y;
}
inline __m512 multiply_pairs(__m512 sum, __m512i a, __m512i b) {
    const Words x = (Words)a, y = (Words)b;
    return each([&](int i) {
        const float high = std::fma(widen(uint16_t(x[i] >> 16)), widen(uint16_t(y[i] >> 16)), sum[i]);
        return std::fma(widen(uint16_t(x[i])), widen(uint16_t(y[i])), high);
    });
}
inline bool compare(float a, float b, int how) { return how == _CMP_NLT_UQ ? !(a < b) : a != b; }

}  // namespace avx512

#define _mm512_set1_ps(x) (__m512{} + (x))
#define _mm512_set1_epi32(x) ((__m512i)(avx512::Ints{} + (x)))
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_loadu_ps(p) avx512::load<__m512>(p)
#define _mm512_loadu_si512(p) avx512::load<__m512i>(p)
#define _mm512_storeu_ps(p, x) avx512::store(p, x)
#define _mm512_storeu_si512(p, x) avx512::store(p, x)
#define _mm512_maskz_loadu_ps(mask, p) (avx512::load_some<__m512, float, 16>(mask, p))
#define _mm512_maskz_loadu_epi32(mask, p) (avx512::load_some<__m512i, int32_t, 16>(mask, p))
#define _mm256_maskz_loadu_epi16(mask, p) (avx512::load_some<__m256i, int16_t, 16>(mask, p))
#define _mm_maskz_loadu_epi8(mask, p) (avx512::load_some<__m128i, int8_t, 16>(mask, p))
#define _mm512_mask_storeu_ps(p, mask, x) (avx512::store_some<float, 16>(p, mask, x))
#define _mm512_mask_storeu_epi32(p, mask, x) (avx512::store_some<int32_t, 16>(p, mask, x))
#define _mm256_mask_storeu_epi16(p, mask, x) (avx512::store_some<int16_t, 16>(p, mask, x))
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_sub_ps(a, b) ((a) - (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_max_ps(a, b) ((a) > (b) ? (a) : (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_slli_epi32(x, bits) ((__m512i)((avx512::Words)(x) << (bits)))
#define _mm512_cvtepu16_epi32(x) ((__m512i)avx512::widen_words(x))
#define _mm512_fmadd_ps(a, b, c) avx512::each([x = (a), y = (b), z = (c)](int i) { return std::fma(x[i], y[i], z[i]); })
#define _mm512_fmsub_ps(a, b, c) avx512::each([x = (a), y = (b), z = (c)](int i) { return std::fma(x[i], y[i], -z[i]); })
#define _mm512_mask_blend_ps(mask, a, b) avx512::choose(mask, b, a)
#define _mm512_maskz_mov_ps(mask, x) avx512::choose(mask, x, __m512{})
#define _mm512_mask_mul_ps(other, mask, a, b) avx512::choose(mask, (a) * (b), other)
#define _mm512_cmp_ps_mask(a, b, how) \
    avx512::where([x = (a), y = (b)](int i) { return avx512::compare(x[i], y[i], how); })
#define _mm_test_epi8_mask(a, b) \
    avx512::where([x = (__v16qi)((a) & (b))](int i) { return x[i]; })
#define _mm512_roundscale_ps(x, how) avx512::each([y = (x)](int i) { return std::nearbyint(y[i]); })
#define _mm512_maskz_scalef_ps(mask, x, y) \
    avx512::choose(mask, avx512::each([a = (x), b = (y)](int i) { return std::ldexp(a[i], b[i] == b[i] ? int(b[i]) : 0) + 0 * b[i]; }), __m512{})
#define _mm512_reduce_add_ps(x) [y = (x)] { float sum = 0; for (int i = 0; i < 16; i++) sum += y[i]; return sum; }()
#define _mm512_reduce_max_ps(x) [y = (x)] { float top = y[0]; for (int i = 1; i < 16; i++) top = y[i] > top ? y[i] : top; return top; }()
#define _mm512_castps512_ps256(x) avx512::load<__m256>(&(const __m512&)(x))
#define _mm512_shuffle_f32x4(a, b, which) ((__m512)avx512::shuffle((__m512i)(a), (__m512i)(b), which))
#define _mm512_shuffle_i32x4(a, b, which) avx512::shuffle(a, b, which)
#define _mm512_unpacklo_epi32(a, b) (avx512::unpack<avx512::Ints, 4>(a, b, 0))
#define _mm512_unpackhi_epi32(a, b) (avx512::unpack<avx512::Ints, 4>(a, b, 2))
#define _mm512_unpacklo_epi64(a, b) (avx512::unpack<avx512::Longs, 2>(a, b, 0))
#define _mm512_unpackhi_epi64(a, b) (avx512::unpack<avx512::Longs, 2>(a, b, 1))
#define _mm512_cvtneps_pbh(x) avx512::narrow_all(x)
#define _mm512_dpbf16_ps(sum, a, b) avx512::multiply_pairs(sum, (__m512i)(a), (__m512i)(b))
#define _mm512_cvtne2ps_pbh(high, low) \
    [h = avx512::narrow_all(high), l = avx512::narrow_all(low)] { __m512i y; memcpy(&y, &l, 32); memcpy((char*)&y + 32, &h, 32); return y; }()
