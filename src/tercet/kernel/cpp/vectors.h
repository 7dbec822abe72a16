// Vectors of floats, which all kernels use. Based on the compiler's vector extensions, so that they work on any CPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

using Index = int64_t;
constexpr int LANES = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
// Unaligned vector in memory. The compiler does not keep this type in registers, so it is not used for arithmetic.
typedef float StoredFloats __attribute__((vector_size(32), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(8), aligned(1), may_alias));
typedef uint16_t Halves __attribute__((vector_size(16), aligned(2), may_alias));

inline Floats load(const float* x) { return *(const StoredFloats*)x; }

inline Floats widen(const float* w) { return load(w); }
#ifdef __AVX2__  // the compiler has no fast code for these two
inline Floats widen(const int8_t* w) {
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)w)));
}
inline Floats widen(const uint16_t* w) {
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)w)), 16);
}
#else
inline Floats widen(const int8_t* w) {
    return __builtin_convertvector(__builtin_convertvector(*(const Bytes*)w, Ints), Floats);
}
inline Floats widen(const uint16_t* w) { return (Floats)(__builtin_convertvector(*(const Halves*)w, Words) << 16); }
#endif

inline float widen_one(float w) { return w; }
inline float widen_one(int8_t w) { return w; }
inline float widen_one(uint16_t w) {
    const uint32_t bits = uint32_t(w) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

// Rounds to the nearest bfloat16, ties to even.
inline void narrow(Floats x, uint16_t* y) {
    const Words bits = (Words)x;
    *(Halves*)y = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
}
inline void narrow(Floats x, float* y) { *(StoredFloats*)y = x; }

// Reads eight elements of a row from index i, or the remaining ones followed by `other`.
template <typename T>
inline Floats read(const T* row, Index i, Index count, float other) {
    if (i + LANES <= count) return widen(row + i);
    Floats numbers = Floats{} + other;
    for (Index lane = 0; i + lane < count; lane++) numbers[lane] = widen_one(row[i + lane]);
    return numbers;
}
template <typename T>
inline void write(Floats numbers, T* row, Index i, Index count) {
    if (i + LANES <= count) return narrow(numbers, row + i);
    T buffer[LANES];
    narrow(numbers, buffer);
    memcpy(row + i, buffer, (count - i) * sizeof(T));
}

inline float largest(Floats x) {
    float top = x[0];
    for (int lane = 1; lane < LANES; lane++) top = x[lane] > top ? x[lane] : top;
    return top;
}

// a * b + sum, rounded once if the CPU has FMA. With `a * b + sum` the compiler would round once in some loops and
// twice in others.
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#ifdef __FMA__
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}
// As above, and vectorized in loops. Without FMA, std::fma would be a slow function.
inline float multiply_add(float a, float b, float sum) {
#ifdef __FP_FAST_FMAF
    return std::fma(a, b, sum);
#else
    return a * b + sum;
#endif
}

// Transposes (LANES, LANES) elements.
inline void transpose(Floats (&rows)[LANES]) {
#ifdef __AVX__
    __m256 twos[LANES], fours[LANES];
    for (int i = 0; i < LANES; i += 2) {
        twos[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
        twos[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_shuffle_ps(twos[i + j], twos[i + j + 2], _MM_SHUFFLE(1, 0, 1, 0));
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(twos[i + j], twos[i + j + 2], _MM_SHUFFLE(3, 2, 3, 2));
        }
    for (int i = 0; i < 4; i++) {
        rows[i] = (Floats)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = (Floats)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) std::swap(((float*)&rows[i])[j], ((float*)&rows[j])[i]);
#endif
}

// The order of the sum is the same for one vector and for four.
inline float reduce_add(Floats s) { return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])); }
inline void reduce_add(Floats a, Floats b, Floats c, Floats d, float* sums) {
#ifdef __AVX__
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps((__m256)a, (__m256)b), _mm256_hadd_ps((__m256)c, (__m256)d));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    sums[0] = reduce_add(a), sums[1] = reduce_add(b), sums[2] = reduce_add(c), sums[3] = reduce_add(d);
#endif
}

// e^x for x <= 0 with an error of a few units in the last place. Below -87 the result is close to 0 instead of 0.
inline Floats exp(Floats x) {
    const Floats lowest = Floats{} - 87.0f;
    x = x < lowest ? lowest : x;
    const Floats shift = Floats{} + 12582912.0f;  // 1.5 2^23: adding it leaves an integer in the lowest bits
    const Floats whole = (x * 1.44269504f + shift) - shift;
    Floats r = multiply_add(whole, Floats{} - 0.693359375f, x);  // ln 2 in two parts, the first with few bits
    r = multiply_add(whole, Floats{} + 2.12194440e-4f, r);
    Floats p = Floats{} + 1.0f / 5040;
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = multiply_add(p, r, Floats{} + c);
    return p * (Floats)((__builtin_convertvector(whole, Ints) + 127) << 23);
}

// The widest vectors of the machine, with sixteen or eight floats. If fewer elements are left, the rest is 0 or
// `other`.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
constexpr Index WIDE = 16;
using Wide = __m512;
inline Wide broadcast(float x) { return _mm512_set1_ps(x); }
inline Wide read(const float* x) { return _mm512_loadu_ps(x); }
inline Wide read(const uint16_t* x) {
    return (Wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16);
}
inline void write(float* y, Wide x) { _mm512_storeu_ps(y, x); }
inline void write(uint16_t* y, Wide x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i*)y, (__m256i)_mm512_cvtneps_pbh(x));
#else
    narrow((Floats)_mm512_castps512_ps256(x), y);
    narrow((Floats)_mm512_castps512_ps256(_mm512_shuffle_f32x4(x, x, 0xee)), y + LANES);
#endif
}
inline Wide multiply_add(Wide a, Wide b, Wide sum) { return _mm512_fmadd_ps(a, b, sum); }
using Lanes = __mmask16;  // mask of lanes
inline Lanes first_lanes(Index count) {
    return Lanes(count >= WIDE ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}
inline Lanes nonzero_lanes(const uint8_t* x, Index count) {
    return _mm_test_epi8_mask(_mm_maskz_loadu_epi8(first_lanes(count), x), _mm_set1_epi8(-1));
}
inline Lanes lanes_above(Wide x, float other) { return _mm512_cmp_ps_mask(x, broadcast(other), _CMP_NLE_UQ); }
inline Wide select(Lanes lanes, Wide x, float other) { return _mm512_mask_blend_ps(lanes, broadcast(other), x); }
inline void set(Lanes& lanes, Index lane, bool counts) {
    lanes = Lanes((lanes & ~(1u << lane)) | (unsigned(counts) << lane));
}
inline Wide larger(Wide a, Wide b) { return _mm512_max_ps(a, b); }
inline Wide read(const float* x, Index count) { return _mm512_maskz_loadu_ps(first_lanes(count), x); }
inline Wide read(const uint16_t* x, Index count) {
    return (Wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), x)), 16);
}
inline void write(float* y, Wide x, Index count) { _mm512_mask_storeu_ps(y, first_lanes(count), x); }
inline void write(uint16_t* y, Wide x, Index count) {
    uint16_t rounded[WIDE];
    write(rounded, x);
    _mm256_mask_storeu_epi16(y, first_lanes(count), _mm256_loadu_si256((const __m256i*)rounded));
}
inline Floats add_halves(Wide x) {
    return (Floats)_mm512_castps512_ps256(x) + (Floats)_mm512_extractf32x8_ps(x, 1);
}
inline float largest(Wide x) { return _mm512_reduce_max_ps(x); }
inline float reduce_add(Wide x) { return _mm512_reduce_add_ps(x); }
inline Wide exp(Wide x) {  // the same, but 0 below -87
    const __mmask16 counts = _mm512_cmp_ps_mask(x, broadcast(-87.0f), _CMP_NLT_UQ);
    const Wide whole = _mm512_roundscale_ps(x * broadcast(1.44269504f), 0);
    const Wide r = multiply_add(whole, broadcast(2.12194440e-4f), multiply_add(whole, broadcast(-0.693359375f), x));
    Wide p = broadcast(1.0f / 5040);
    for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = multiply_add(p, r, broadcast(c));
    return _mm512_maskz_scalef_ps(counts, p, whole);
}
// Transposes (WIDE, WIDE) elements of 32 bits each.
inline void transpose(__m512i (&rows)[WIDE]) {
    __m512i twos[WIDE], fours[WIDE];
#pragma GCC unroll 8
    for (int i = 0; i < WIDE; i += 2) {
        twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < WIDE; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + j + 2]);
            fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + j + 2]);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        constexpr int EVEN = 0x88, ODD = 0xdd;
        const __m512i a = _mm512_shuffle_i32x4(fours[i], fours[4 + i], EVEN);
        const __m512i b = _mm512_shuffle_i32x4(fours[i], fours[4 + i], ODD);
        const __m512i c = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], EVEN);
        const __m512i d = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], ODD);
        rows[i] = _mm512_shuffle_i32x4(a, c, EVEN), rows[8 + i] = _mm512_shuffle_i32x4(a, c, ODD);
        rows[4 + i] = _mm512_shuffle_i32x4(b, d, EVEN), rows[12 + i] = _mm512_shuffle_i32x4(b, d, ODD);
    }
}
inline void transpose(Wide (&rows)[WIDE]) {
    __m512i words[WIDE];
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) words[i] = (__m512i)rows[i];
    transpose(words);
#pragma GCC unroll 16
    for (int i = 0; i < WIDE; i++) rows[i] = (Wide)words[i];
}
#else
constexpr Index WIDE = LANES;
using Wide = Floats;
#ifdef __AVX__
inline Wide broadcast(float x) { return _mm256_set1_ps(x); }
#else
inline Wide broadcast(float x) { return Wide{x, x, x, x, x, x, x, x}; }
#endif
template <typename T>
inline Wide read(const T* x) { return widen(x); }
template <typename T>
inline void write(T* y, Wide x) { narrow(x, y); }
inline Floats add_halves(Wide x) { return x; }
using Lanes = Ints;  // mask of lanes: -1 or 0
inline Lanes first_lanes(Index count) { return Ints{0, 1, 2, 3, 4, 5, 6, 7} < int(count < WIDE ? count : WIDE); }
inline Lanes nonzero_lanes(const uint8_t* x, Index count) {
    Bytes bytes = {};
    if (count > 0) memcpy(&bytes, x, count < WIDE ? count : WIDE);
    return __builtin_convertvector(bytes, Ints) != 0;
}
inline Lanes lanes_above(Wide x, float other) { return ~(x <= other); }  // also true for NaN
inline Wide select(Lanes lanes, Wide x, float other) { return lanes ? x : broadcast(other); }
inline void set(Lanes& lanes, Index lane, bool counts) { lanes[lane] = -int(counts); }
inline Wide larger(Wide a, Wide b) { return a > b ? a : b; }
template <typename T>
inline Wide read(const T* x, Index count) { return read(x, 0, count, 0); }
template <typename T>
inline void write(T* y, Wide x, Index count) { write(x, y, 0, count); }
#endif

// Vectors of 16-bit integers, twice as many as floats, and 32-bit sums of pairs of their products.
#if defined(__AVX512BW__) && defined(__AVX512VL__)
using Shorts = __m512i;
using IntegerSums = __m512i;
inline IntegerSums zero_integer_sums() { return _mm512_setzero_si512(); }
inline Shorts load_shorts(const int16_t* x) { return _mm512_loadu_si512(x); }
inline Shorts widen_to_shorts(const int8_t* x) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)x)); }
inline IntegerSums add_products(Shorts a, Shorts b, IntegerSums sum) {
#ifdef __AVX512VNNI__
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));  // with the intrinsic, GCC 12 copies each sum twice
    return sum;
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
inline Wide as_floats(IntegerSums x) { return _mm512_cvtepi32_ps(x); }
#elif defined(__AVX2__)
using Shorts = __m256i;
using IntegerSums = __m256i;
inline IntegerSums zero_integer_sums() { return _mm256_setzero_si256(); }
inline Shorts load_shorts(const int16_t* x) { return _mm256_loadu_si256((const __m256i*)x); }
inline Shorts widen_to_shorts(const int8_t* x) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)x)); }
inline IntegerSums add_products(Shorts a, Shorts b, IntegerSums sum) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
inline Wide as_floats(IntegerSums x) { return (Wide)_mm256_cvtepi32_ps(x); }
#else
typedef int16_t ShortHalf __attribute__((vector_size(16)));
typedef int8_t SignedBytes __attribute__((vector_size(8)));
struct Shorts { ShortHalf low, high; };
using IntegerSums = Ints;
inline IntegerSums zero_integer_sums() { return IntegerSums{}; }
inline Shorts load_shorts(const int16_t* x) {
    Shorts y;
    memcpy(&y, x, sizeof y);
    return y;
}
inline Shorts widen_to_shorts(const int8_t* x) {
    SignedBytes low, high;
    memcpy(&low, x, sizeof low), memcpy(&high, x + sizeof low, sizeof high);
    return {__builtin_convertvector(low, ShortHalf), __builtin_convertvector(high, ShortHalf)};
}
inline IntegerSums add_products(Shorts a, Shorts b, IntegerSums sum) {
    const auto wide = [](ShortHalf x) { return __builtin_convertvector(x, Ints); };
    return sum + wide(a.low) * wide(b.low) + wide(a.high) * wide(b.high);
}
inline Wide as_floats(IntegerSums x) { return __builtin_convertvector(x, Floats); }
#endif
constexpr Index SHORTS = 2 * WIDE;
inline Shorts widen_to_shorts(const int8_t* x, Index count) {
    int8_t buffer[SHORTS] = {};
    memcpy(buffer, x, count);
    return widen_to_shorts(buffer);
}

inline Index round_up(Index count, Index step) { return (count + step - 1) / step * step; }

// A buffer that is aligned to a cache line. Vectors that cross a line boundary are read at half the speed.
template <typename X>
struct AlignedBuffer {
    std::vector<X> storage;

    X* reserve(Index count) {
        constexpr Index LINE = 64;
        if (Index(storage.size()) < count + LINE) storage.resize(count + LINE);
        return (X*)((uintptr_t(storage.data()) + LINE - 1) / LINE * LINE);
    }
};

// A thread's number, which determines its part of the work.
struct ThreadRange {
    int thread, threads;

    struct Range {
        Index first, last;
    };
    Range split(Index count) const { return {count * thread / threads, count * (thread + 1) / threads}; }
};

}  // namespace
