// Products of matrices: in float, or in pairs of bfloat16 on CPUs that multiply two of them and add both in float at once.
#pragma once
#include <algorithm>
#include <type_traits>

#include "tiles.h"
#include "vectors.h"

namespace {

// A matrix on the left of a product: from row to row and from step to step, in numbers.
template <typename A>
struct Left {
    const typename A::Number* at;
    Index row, step;

    Left from(Index r) const { return {at + r * row, row, step}; }
};

// How numbers are multiplied: what a matrix holds, and what of it meets in one step, STEP numbers. The right side of a
// product is packed for it: a row of WIDE columns and more for each step.
struct Float32 {
    using Number = float;
    using Packed = float;
    static constexpr Index STEP = 1;
    static constexpr Index ROWS = 48;  // of the left side that are multiplied at a time

    static Wide multiply_add(const Number* left, Wide right, Wide sum) { return ::multiply_add(all(*left), right, sum); }
    static Wide right(const Packed* x) { return read(x); }

    // Rows (count, K) as the right side of a product along `count`: (whole, K) numbers; where there is no such row they are
    // zeros. K is a multiple of WIDE here and below.
    template <typename X>
    static void pack_rows(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row++, y += K)
            for (Index k = 0; k < K; k += WIDE) write(y + k, row < count ? read(x + row * stride + k) : all(0.0f));
    }
    // Rows (count, K) as the right side of a product along K, of any number here: (K, whole) numbers; `whole` is a multiple
    // of WIDE.
    template <typename X>
    static void pack_columns(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row += WIDE)
            for (Index k = 0; k < K; k += WIDE) {
                Wide numbers[WIDE];
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++)
                    numbers[i] = row + i < count ? read(x + (row + i) * stride + k, K - k) : all(0.0f);
                transpose(numbers);
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++)
                    if (k + i < K) write(y + (k + i) * whole + row, numbers[i]);
            }
    }
    // Rows first to first + rows, `count` of which are there, as the left side of a product along all `whole`, and that
    // side. (whole, K) numbers.
    static void pack_left(const Number* x, Index stride, Index count, Index first, Index rows, Index, Index K, Packed* y) {
        pack_rows(x, stride, count, rows, K, y + first * K);
    }
    static Left<Float32> packed_left(const Packed* y, Index, Index K) { return {y, 1, K}; }
};

#ifdef __AVX512BF16__
struct Bfloat16 {
    using Number = uint16_t;  // a bfloat16
    using Packed = uint32_t;  // two of them
    static constexpr Index STEP = 2;
#ifdef __AMX_BF16__
    static constexpr Index ROWS = 128;
#else
    static constexpr Index ROWS = 48;
#endif

    static Wide multiply_add(const Number* left, __m512bh right, Wide sum) {
        int pair;
        memcpy(&pair, left, sizeof pair);
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(pair), right);
    }
    static __m512bh right(const Packed* x) { return (__m512bh)_mm512_loadu_si512(x); }

    // Sixteen pairs of numbers, of two vectors (low, high) or of one, and of the latter no more than there are.
    static __m512i pairs_of(Wide low, Wide high) {
        const auto wide = [](Wide x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); };
        return _mm512_or_si512(wide(low), _mm512_slli_epi32(wide(high), 16));
    }
    static __m512i pairs_of(const Number* low, const Number* high) {
        const auto wide = [](const Number* x) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)); };
        return _mm512_or_si512(wide(low), high ? _mm512_slli_epi32(wide(high), 16) : _mm512_setzero_si512());
    }
    static __m512i pairs_of(const float* low, const float* high) {
        return pairs_of(read(low), high ? read(high) : all(0.0f));
    }
    static __m512i pairs_along(const Number* x, Index numbers) { return _mm512_maskz_loadu_epi32(first_lanes(numbers / 2), x); }
    static __m512i pairs_along(const float* x, Index numbers) {
        return (__m512i)_mm512_cvtne2ps_pbh(numbers > WIDE ? read(x + WIDE) : all(0.0f), read(x));
    }

    // (whole / 2, K) pairs.
    template <typename X>
    static void pack_rows(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row += 2, y += K)
            for (Index k = 0; k < K; k += WIDE) {
                const X* at = x + row * stride + k;
                const auto pairs = row < count ? pairs_of(at, row + 1 < count ? at + stride : nullptr) : _mm512_setzero_si512();
                _mm512_storeu_si512(y + k, pairs);
            }
    }
    // (K / 2, whole) pairs.
    template <typename X>
    static void pack_columns(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
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
    // (K, whole / 2) pairs.
    static void pack_left(const Number* x, Index stride, Index count, Index first, Index rows, Index whole, Index K, Packed* y) {
        for (Index k = 0; k < K; k += WIDE)
            for (Index row = 0; row < rows; row += 2 * WIDE) {
                __m512i pairs[WIDE];
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++) {
                    const Index r = row + 2 * i;
                    const Number* at = x + r * stride + k;
                    pairs[i] = r < count ? pairs_of(at, r + 1 < count ? at + stride : nullptr) : _mm512_setzero_si512();
                }
                transpose(pairs);
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++)
                    _mm512_mask_storeu_epi32(y + ((k + i) * whole + first + row) / 2, first_lanes((rows - row) / 2), pairs[i]);
            }
    }
    static Left<Bfloat16> packed_left(const Packed* y, Index whole, Index) { return {(const Number*)y, whole, STEP}; }
};
#endif

// One on the right, packed in panels of as many columns as are multiplied at once, the last one of what is left, next to
// each other in memory: from step to step it is never far.
template <typename A>
struct Right {
    const typename A::Packed* at;
    Index steps, columns;        // of all that is packed
    Index step = 0, column = 0;  // from which it is taken

    Right from(Index steps_on, Index columns_on) const { return {at, steps, columns, step + steps_on, column + columns_on}; }
};
// A part of one panel: from step to step.
template <typename A>
struct Panel {
    const typename A::Packed* at;
    Index row;
};

// What the sums begin with: a row for each row of the product, `row` numbers apart; or nothing.
struct Before {
    const float* at = nullptr;
    Index row = 0;

    Before from(Index r, Index n) const { return {at ? at + r * row + n : at, row}; }
};

// Vectors of columns at a time, and so many sums that they fit into the registers and no product waits for the one before.
constexpr int VECTORS_AT_ONCE = WIDE > LANES ? 4 : 2, SUMS_AT_ONCE = WIDE > LANES ? 24 : 12;
constexpr Index PANEL = VECTORS_AT_ONCE * WIDE;  // columns

template <int ROWS, int VECTORS, typename A, typename Y>
inline void tile(Left<A> a, Panel<A> b, Index depth, Y* y, Index stride, Before before) {
    Wide sums[ROWS][VECTORS];  // unrolled, or they would be in memory before and after
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = before.at ? read(before.from(r, v * WIDE).at) : all(0.0f);
    for (Index p = 0; p < depth; p++) {
        decltype(A::right(b.at)) right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) right[v] = A::right(b.at + p * b.row + v * WIDE);
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++) {
            const auto* left = a.at + r * a.row + p * a.step;
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[r][v] = A::multiply_add(left, right[v], sums[r][v]);
        }
    }
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) write(y + r * stride + v * WIDE, sums[r][v]);
}

#ifdef __AMX_BF16__
// The same by tiles; from step to step numbers lie next to each other.
template <int VECTORS, typename Y>
inline void columns_by_tiles(Left<Bfloat16> a, Panel<Bfloat16> b, Index depth, Index rows, Y* y, Index stride,
                             Before before) {
    asm volatile("" ::: "memory");  // GCC's tile loads do not say that they read memory
    const auto all_rows = [&](auto is_second, Index n) {  // a pair of columns of tiles stays near while all rows pass by
        const auto block = [&](auto is_lower, Index r, Index count) {
            multiply_tiles<is_lower, is_second>(a.from(r).at, a.row, b.at + n, b.row, depth, count, y + r * stride + n,
                                                stride, before.from(r, n).at, before.row);
        };
        Index r = 0;
        for (; r + TILE < rows; r += 2 * TILE) block(std::true_type{}, r, std::min(2 * TILE, rows - r));
        if (r < rows) block(std::false_type{}, r, rows - r);
    };
    Index n = 0;
    for (; n + 2 * TILE <= VECTORS * WIDE; n += 2 * TILE) all_rows(std::true_type{}, n);
    if (n < VECTORS * WIDE) all_rows(std::false_type{}, n);
}
#endif

template <int VECTORS, typename A, typename Y>
inline void columns_of(Left<A> a, Panel<A> b, Index depth, Index rows, Y* y, Index stride, Before before) {
#ifdef __AMX_BF16__
    if constexpr (std::is_same_v<A, Bfloat16>) return columns_by_tiles<VECTORS>(a, b, depth, rows, y, stride, before);
#endif
    constexpr int ROWS = SUMS_AT_ONCE / VECTORS;
    Index r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        tile<ROWS, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
    for (; r + 2 <= rows; r += 2) tile<2, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
    for (; r < rows; r++) tile<1, VECTORS>(a.from(r), b, depth, y + r * stride, stride, before.from(r, 0));
}
// y (rows, columns) = a b and what was before, as Y holds it; columns is a multiple of WIDE, depth counts steps.
template <typename A, typename Y>
inline void multiply(Left<A> a, Right<A> b, Index depth, Index rows, Index columns, Y* y, Index stride,
                     Before before = {}) {
    for (Index n = 0; n < columns;) {
        const Index place = b.column + n, begin = place / PANEL * PANEL, width = std::min(PANEL, b.columns - begin);
        const Index vectors = std::min(begin + width - place, columns - n) / WIDE;
        const Panel<A> panel{b.at + begin * b.steps + b.step * width + place - begin, width};
        const auto columns_from_n = [&](auto count) {
            columns_of<count>(a, panel, depth, rows, y + n, stride, before.from(0, n));
        };
        switch (vectors) {
            case 4: columns_from_n(std::integral_constant<int, std::min(4, VECTORS_AT_ONCE)>{}); break;
            case 3: columns_from_n(std::integral_constant<int, std::min(3, VECTORS_AT_ONCE)>{}); break;
            case 2: columns_from_n(std::integral_constant<int, 2>{}); break;
            default: columns_from_n(std::integral_constant<int, 1>{});
        }
        n += vectors * WIDE;
    }
}

// Rows (count, K) as the right side of a product along `count`, in panels: (whole / STEP, K).
template <typename A, typename X>
inline Right<A> pack_row_panels(const X* x, Index stride, Index count, Index whole, Index K, typename A::Packed* y) {
    for (Index k = 0; k < K; k += PANEL)
        A::pack_rows(x + k, stride, count, whole, std::min(PANEL, K - k), y + k * (whole / A::STEP));
    return {y, whole / A::STEP, K};
}
// Rows (count, K) as the right side of a product along K, in panels: (K / STEP, whole).
template <typename A, typename X>
inline Right<A> pack_column_panels(const X* x, Index stride, Index count, Index whole, Index K, typename A::Packed* y) {
    for (Index row = 0; row < whole; row += PANEL)
        A::pack_columns(x + row * stride, stride, count - row, std::min(PANEL, whole - row), K, y + row * (K / A::STEP));
    return {y, K / A::STEP, whole};
}

}  // namespace
