// Products of bfloat16 matrices, on CPUs that multiply pairs of such numbers and add the two in float.
#pragma once
#include "vectors.h"

#ifdef __AVX512BF16__
namespace {

using Half = uint16_t;  // a bfloat16
using Pair = uint32_t;  // two of them, which are multiplied and added in one step

// A matrix on the left of a product: from row to row and from pair to pair, in halves.
struct Left {
    const Half* at;
    Index row, pair;

    Left from(Index r) const { return {at + r * row, row, pair}; }
};
// One on the right: a row of pairs for every two of its rows, so many pairs apart.
struct Right {
    const Pair* at;
    Index row;
};

// What the sums begin with: a row for each row of the product, `row` numbers apart; or nothing.
struct Before {
    const float* at = nullptr;
    Index row = 0;

    Before from(Index r, Index n) const { return {at ? at + r * row + n : at, row}; }
};

template <int ROWS, int VECTORS, typename Y>
inline void tile(Left a, Right b, Index depth, Y* y, Index stride, Before before) {
    Wide sums[ROWS][VECTORS];  // unrolled, or they would be in memory before and after
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = before.at ? read(before.from(r, v * WIDE).at) : all(0.0f);
    for (Index p = 0; p < depth; p++) {
        __m512bh right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) right[v] = (__m512bh)_mm512_loadu_si512(b.at + p * b.row + v * WIDE);
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++) {
            int pair;
            memcpy(&pair, a.at + r * a.row + p * a.pair, sizeof pair);
            const __m512bh left = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], left, right[v]);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) write(y + r * stride + v * WIDE, sums[r][v]);
}

template <int VECTORS, typename Y>
inline void columns_of(Left a, Right b, Index depth, Index rows, Y* y, Index stride, Before before) {
    constexpr int ROWS = 24 / VECTORS;  // so many sums fit into the registers, and no product waits for the one before
    Index r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        tile<ROWS, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
    for (; r + 2 <= rows; r += 2) tile<2, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
    for (; r < rows; r++) tile<1, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
}
// y (rows, columns) = a b and what was before, in float or bfloat16; columns is a multiple of WIDE, depth counts pairs.
template <typename Y>
inline void multiply(Left a, Right b, Index depth, Index rows, Index columns, Y* y, Index stride, Before before = {}) {
    Index n = 0;
    const auto rest = [&] { return Right{b.at + n, b.row}; };
    for (; n + 4 * WIDE <= columns; n += 4 * WIDE)
        columns_of<4>(a, rest(), depth, rows, y + n, stride, before.from(0, n));
    switch ((columns - n) / WIDE) {
        case 3: return columns_of<3>(a, rest(), depth, rows, y + n, stride, before.from(0, n));
        case 2: return columns_of<2>(a, rest(), depth, rows, y + n, stride, before.from(0, n));
        case 1: return columns_of<1>(a, rest(), depth, rows, y + n, stride, before.from(0, n));
    }
}

// Sixteen pairs of numbers, of two vectors (low, high) or of one, and of the latter no more than there are.
inline __m512i pairs_of(Wide low, Wide high) {
    const auto wide = [](Wide x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); };
    return _mm512_or_si512(wide(low), _mm512_slli_epi32(wide(high), 16));
}
inline __m512i pairs_of(const Half* low, const Half* high) {
    const auto wide = [](const Half* x) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)); };
    return _mm512_or_si512(wide(low), high ? _mm512_slli_epi32(wide(high), 16) : _mm512_setzero_si512());
}
inline __m512i pairs_of(const float* low, const float* high) {
    return pairs_of(read(low), high ? read(high) : all(0.0f));
}
inline __m512i pairs_along(const Half* x, Index numbers) { return _mm512_maskz_loadu_epi32(first_lanes(numbers / 2), x); }
inline __m512i pairs_along(const float* x, Index numbers) {
    return (__m512i)_mm512_cvtne2ps_pbh(numbers > WIDE ? read(x + WIDE) : all(0.0f), read(x));
}

// (WIDE, WIDE) of them, transposed.
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

// Rows (count, K), halves or floats, as the right side of a product along `count`: (whole / 2, K) pairs; where there is
// no such row they are zeros. K is a multiple of WIDE here and below.
template <typename X>
inline void pair_rows(const X* x, Index stride, Index count, Index whole, Index K, Pair* y) {
    for (Index row = 0; row < whole; row += 2, y += K)
        for (Index k = 0; k < K; k += WIDE) {
            const X* at = x + row * stride + k;
            const auto pairs = row < count ? pairs_of(at, row + 1 < count ? at + stride : nullptr) : _mm512_setzero_si512();
            _mm512_storeu_si512(y + k, pairs);
        }
}
// Rows (count, K) as the right side of a product along K: (K / 2, whole) pairs; `whole` is a multiple of WIDE.
template <typename X>
inline void pair_columns(const X* x, Index stride, Index count, Index whole, Index K, Pair* y) {
    for (Index row = 0; row < whole; row += WIDE)
        for (Index k = 0; k < K; k += 2 * WIDE) {
            __m512i pairs[WIDE];
#pragma GCC unroll 16
            for (Index i = 0; i < WIDE; i++)
                pairs[i] = row + i < count ? pairs_along(x + (row + i) * stride + k, K - k) : _mm512_setzero_si512();
            transpose(pairs);
            for (Index p = 0; p < WIDE && k / 2 + p < K / 2; p++)
                _mm512_storeu_si512(y + (k / 2 + p) * whole + row, pairs[p]);
        }
}

}  // namespace
#endif
