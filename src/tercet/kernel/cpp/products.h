// Matrix products in float, or in bfloat16 on CPUs with an instruction that multiplies two pairs of bfloat16 and adds
// both products to a float.
#pragma once
#include <algorithm>
#include <type_traits>

#include "tiles.h"
#include "vectors.h"

namespace {

// Left operand of a product, with the strides of rows and steps in elements.
template <typename A>
struct Left {
    const typename A::Number* data;
    Index row, step;

    Left from(Index r) const { return {data + r * row, row, step}; }
};

// Arithmetic of a product: the element type, and STEP, the number of elements that are multiplied in one step. The
// right operand is packed for it: each step has a row of at least WIDE columns.
struct Float32 {
    using Number = float;
    using Packed = float;
    static constexpr Index STEP = 1;
    static constexpr Index ROWS = 48;  // rows of the left operand per block

    static Wide multiply_add(const Number* left, Wide right, Wide sum) {
        return ::multiply_add(broadcast(*left), right, sum);
    }
    static Wide right(const Packed* x) { return read(x); }

    // Packs rows (count, K) as the right operand of a product along `count`: (whole, K) elements, with zeros for
    // missing rows. K is a multiple of WIDE here and below.
    template <typename X>
    static void pack_rows(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row++, y += K)
            for (Index k = 0; k < K; k += WIDE) write(y + k, row < count ? read(x + row * stride + k) : broadcast(0.0f));
    }
    // Packs rows (count, K) as the right operand of a product along K, which may be any number here: (K, whole)
    // elements. `whole` is a multiple of WIDE.
    template <typename X>
    static void pack_columns(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row += WIDE)
            for (Index k = 0; k < K; k += WIDE) {
                Wide numbers[WIDE];
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++)
                    numbers[i] = row + i < count ? read(x + (row + i) * stride + k, K - k) : broadcast(0.0f);
                transpose(numbers);
#pragma GCC unroll 16
                for (Index i = 0; i < WIDE; i++)
                    if (k + i < K) write(y + (k + i) * whole + row, numbers[i]);
            }
    }
    // Packs rows first to first + rows - 1, of which `count` exist, as the left operand of a product along `whole`:
    // (whole, K) elements.
    static void pack_left(const Number* x, Index stride, Index count, Index first, Index rows, Index, Index K, Packed* y) {
        pack_rows(x, stride, count, rows, K, y + first * K);
    }
    static Left<Float32> packed_left(const Packed* y, Index, Index K) { return {y, 1, K}; }
};

#ifdef __AVX512BF16__
struct Bfloat16 {
    using Number = uint16_t;  // bfloat16
    using Packed = uint32_t;  // a pair
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

    // `pairs_of` returns sixteen pairs with one element each from `low` and `high`. `pairs_along` returns pairs of
    // adjacent elements of x, of which `numbers` exist.
    static __m512i pairs_of(Wide low, Wide high) {
        const auto wide = [](Wide x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); };
        return _mm512_or_si512(wide(low), _mm512_slli_epi32(wide(high), 16));
    }
    static __m512i pairs_of(const Number* low, const Number* high) {
        const auto wide = [](const Number* x) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)); };
        return _mm512_or_si512(wide(low), high ? _mm512_slli_epi32(wide(high), 16) : _mm512_setzero_si512());
    }
    static __m512i pairs_of(const float* low, const float* high) {
        return pairs_of(read(low), high ? read(high) : broadcast(0.0f));
    }
    static __m512i pairs_along(const Number* x, Index numbers) {
        return _mm512_maskz_loadu_epi32(first_lanes(numbers / 2), x);
    }
    static __m512i pairs_along(const float* x, Index numbers) {
        return (__m512i)_mm512_cvtne2ps_pbh(numbers > WIDE ? read(x + WIDE) : broadcast(0.0f), read(x));
    }

    // (whole / 2, K) pairs.
    template <typename X>
    static void pack_rows(const X* x, Index stride, Index count, Index whole, Index K, Packed* y) {
        for (Index row = 0; row < whole; row += 2, y += K)
            for (Index k = 0; k < K; k += WIDE) {
                const X* data = x + row * stride + k;
                const auto pairs =
                    row < count ? pairs_of(data, row + 1 < count ? data + stride : nullptr) : _mm512_setzero_si512();
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
                    const Number* data = x + r * stride + k;
                    pairs[i] =
                        r < count ? pairs_of(data, r + 1 < count ? data + stride : nullptr) : _mm512_setzero_si512();
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

// Right operand, packed in panels of PANEL columns, which are multiplied at once. A panel is contiguous, so that
// consecutive steps are close in memory. The last panel has the remaining columns.
template <typename A>
struct Right {
    const typename A::Packed* data;
    Index steps, columns;  // of the packed matrix
    Index step = 0, column = 0;  // start of this operand

    Right from(Index steps_on, Index columns_on) const {
        return {data, steps, columns, step + steps_on, column + columns_on};
    }
};
// Columns of one panel, with the stride of steps.
template <typename A>
struct Panel {
    const typename A::Packed* data;
    Index row;
};

// Initial values of the sums, with rows `row` elements apart; null for zeros.
struct InitialSums {
    const float* data = nullptr;
    Index row = 0;

    InitialSums from(Index r, Index n) const { return {data ? data + r * row + n : data, row}; }
};

// Vectors of columns per block, and sums per block: they fit into the registers and hide the latency of the products.
constexpr int VECTORS_AT_ONCE = WIDE > LANES ? 4 : 2, SUMS_AT_ONCE = WIDE > LANES ? 24 : 12;
constexpr Index PANEL = VECTORS_AT_ONCE * WIDE;  // columns

template <int ROWS, int VECTORS, typename A, typename Y>
inline void tile(Left<A> a, Panel<A> b, Index depth, Y* y, Index stride, InitialSums initial) {
    Wide sums[ROWS][VECTORS];  // unrolled, otherwise they would be in memory
#pragma GCC unroll 24
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) sums[r][v] = initial.data ? read(initial.from(r, v * WIDE).data) : broadcast(0.0f);
    for (Index p = 0; p < depth; p++) {
        decltype(A::right(b.data)) right[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) right[v] = A::right(b.data + p * b.row + v * WIDE);
#pragma GCC unroll 24
        for (int r = 0; r < ROWS; r++) {
            const auto* left = a.data + r * a.row + p * a.step;
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
// The same with AMX tiles. Consecutive steps of a row are contiguous.
template <int VECTORS, typename Y>
inline void multiply_columns_amx(Left<Bfloat16> a, Panel<Bfloat16> b, Index depth, Index rows, Y* y, Index stride,
                             InitialSums initial) {
    asm volatile("" ::: "memory");  // GCC's tile loads do not declare that they read memory
    const auto all_rows = [&](auto is_second, Index n) {  // a pair of tile columns stays in the cache for all rows
        const auto block = [&](auto is_lower, Index r, Index count) {
            multiply_tiles<is_lower, is_second>(a.from(r).data, a.row, b.data + n, b.row, depth, count, y + r * stride + n,
                                                stride, initial.from(r, n).data, initial.row);
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
inline void multiply_columns(Left<A> a, Panel<A> b, Index depth, Index rows, Y* y, Index stride, InitialSums initial) {
#ifdef __AMX_BF16__
    if constexpr (std::is_same_v<A, Bfloat16>) return multiply_columns_amx<VECTORS>(a, b, depth, rows, y, stride, initial);
#endif
    constexpr int ROWS = SUMS_AT_ONCE / VECTORS;
    Index r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        tile<ROWS, VECTORS>(a.from(r), b, depth, y + r * stride, stride, initial.from(r, 0));
    for (; r + 2 <= rows; r += 2) tile<2, VECTORS>(a.from(r), b, depth, y + r * stride, stride, initial.from(r, 0));
    for (; r < rows; r++) tile<1, VECTORS>(a.from(r), b, depth, y + r * stride, stride, initial.from(r, 0));
}
// y (rows, columns) = initial + a b, stored as Y. columns is a multiple of WIDE, depth is the number of steps.
template <typename A, typename Y>
inline void multiply(Left<A> a, Right<A> b, Index depth, Index rows, Index columns, Y* y, Index stride,
                     InitialSums initial = {}) {
    for (Index n = 0; n < columns;) {
        const Index place = b.column + n, begin = place / PANEL * PANEL, width = std::min(PANEL, b.columns - begin);
        const Index vectors = std::min(begin + width - place, columns - n) / WIDE;
        const Panel<A> panel{b.data + begin * b.steps + b.step * width + place - begin, width};
        const auto columns_from_n = [&](auto count) {
            multiply_columns<count>(a, panel, depth, rows, y + n, stride, initial.from(0, n));
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

// Packs rows (count, K) as the right operand of a product along `count`, in panels: (whole / STEP, K).
template <typename A, typename X>
inline Right<A> pack_row_panels(const X* x, Index stride, Index count, Index whole, Index K, typename A::Packed* y) {
    for (Index k = 0; k < K; k += PANEL)
        A::pack_rows(x + k, stride, count, whole, std::min(PANEL, K - k), y + k * (whole / A::STEP));
    return {y, whole / A::STEP, K};
}
// Packs rows (count, K) as the right operand of a product along K, in panels: (K / STEP, whole).
template <typename A, typename X>
inline Right<A> pack_column_panels(const X* x, Index stride, Index count, Index whole, Index K, typename A::Packed* y) {
    for (Index row = 0; row < whole; row += PANEL)
        A::pack_columns(x + row * stride, stride, count - row, std::min(PANEL, whole - row), K, y + row * (K / A::STEP));
    return {y, K / A::STEP, whole};
}

}  // namespace
