// Products of bfloat16 matrices, on CPUs that multiply pairs of such numbers and add the two in float.
#pragma once
#include "vectors.h"

#ifdef __AVX512BF16__
namespace {

using Half = uint16_t;  // a bfloat16
using Pair = uint32_t;  // two of them, which are multiplied and added in one step

inline __mmask16 first_lanes(Index count) { return count >= WIDE ? 0xffff : count <= 0 ? 0 : (1u << count) - 1; }

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

template <int ROWS, int VECTORS>
inline void tile(Left a, Right b, Index depth, float* c, Index stride, bool add) {
    Wide sums[ROWS][VECTORS];  // unrolled, or they would be in memory before and after
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = add ? read(c + r * stride + v * WIDE) : all(0.0f);
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
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_ps(c + r * stride + v * WIDE, sums[r][v]);
}

// c (rows, columns) = a b, or += where `add`; columns is a multiple of WIDE, depth counts pairs.
template <int VECTORS>
inline void columns_of(Left a, Right b, Index depth, Index rows, float* c, Index stride, bool add) {
    constexpr int ROWS = 24 / VECTORS;  // so many sums fit into the registers, and no product waits for the one before
    Index r = 0;
    for (; r + ROWS <= rows; r += ROWS) tile<ROWS, VECTORS>(a.from(r), b, depth, c + r * stride, stride, add);
    for (; r + 2 <= rows; r += 2) tile<2, VECTORS>(a.from(r), b, depth, c + r * stride, stride, add);
    for (; r < rows; r++) tile<1, VECTORS>(a.from(r), b, depth, c + r * stride, stride, add);
}
inline void multiply(Left a, Right b, Index depth, Index rows, Index columns, float* c, Index stride,
                     bool add = false) {
    Index n = 0;
    const auto rest = [&] { return Right{b.at + n, b.row}; };
    for (; n + 4 * WIDE <= columns; n += 4 * WIDE) columns_of<4>(a, rest(), depth, rows, c + n, stride, add);
    switch ((columns - n) / WIDE) {
        case 3: return columns_of<3>(a, rest(), depth, rows, c + n, stride, add);
        case 2: return columns_of<2>(a, rest(), depth, rows, c + n, stride, add);
        case 1: return columns_of<1>(a, rest(), depth, rows, c + n, stride, add);
    }
}

// Rows (count, K) as the right side of a product along `count`: (count / 2, K) pairs, to `whole` rows with zeros.
inline void pair_rows(const Half* x, Index stride, Index count, Index whole, Index K, Pair* y) {
    for (Index row = 0; row < whole; row += 2, y += K)
        for (Index k = 0; k < K; k += WIDE) {
            const auto half = [&](Index i) {
                return i < count ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(x + i * stride + k)))
                                 : _mm512_setzero_si512();
            };
            _mm512_storeu_si512(y + k, _mm512_or_si512(half(row), _mm512_slli_epi32(half(row + 1), 16)));
        }
}
// Rows (count, K) as the right side of a product along K: (K / 2, whole) pairs.
inline void pair_columns(const Half* x, Index stride, Index count, Index whole, Index K, Pair* y) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(int(stride)));
    for (Index row = 0; row < whole; row += WIDE)
        for (Index p = 0; p < K / 2; p++) {
            const Half* first = x + row * stride + 2 * p;
            const auto pairs =
                _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), first_lanes(count - row), places, first, 2);
            _mm512_storeu_si512(y + p * whole + row, pairs);
        }
}

}  // namespace
#endif
