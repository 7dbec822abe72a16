// y = (x wT) * scale + bias for few rows of x: every weight is read once from memory, in order, and meets all rows of x
// while it is near.
//
// x (M, K) float; w (N, K) float, bfloat16 or int8; scale (N) and bias (N) float, or null; y (M, N) float.
// bfloat16 is widened to float in registers. int8 meets x in 16 bits: each 1024 numbers of a row are whole multiples of
// 1/32767 of their largest, their products with the weights are added up exactly, and the sums go on in float. This is
// a third of the instructions that widening each weight to float takes.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "vectors.h"

namespace {

constexpr Index AHEAD = 16384;  // bytes between the weights in use and those that are fetched into the second cache
constexpr bool MANY_REGISTERS = WIDE > LANES;  // 32 vectors, else 16

// Rows of x in 16 bits.
class ShortRows {
    static constexpr Index PIECE = 1024;  // numbers with one scale. 1024 products of 16 by 8 bits fit into the lanes' 32.
    static constexpr float MOST = 32767, LEAST = 1e-30f;  // smaller numbers than these are zeros

    AlignedBuffer<int16_t> numbers;
    AlignedBuffer<float> scales;

public:
    const int16_t* at;
    const float* scale;
    Index row, pieces;  // from row to row: numbers, with zeros behind the last; and scales

    ShortRows() = default;
    ShortRows(const ShortRows&) = delete;

    static Index piece_end(Index k, Index K) { return std::min(k + PIECE, K); }

    void assign(const float* x, Index M, Index K) {
        row = up_to(K, SHORTS), pieces = (K + PIECE - 1) / PIECE;
        int16_t* to = numbers.of(M * row);
        float* scale_to = scales.of(M * pieces);
        for (Index m = 0; m < M; m++) {
            for (Index k = 0; k < K; k += PIECE)
                scale_to[m * pieces + k / PIECE] = shorten(x + m * K + k, to + m * row + k, piece_end(k, K) - k);
            memset(to + m * row + K, 0, (row - K) * sizeof(int16_t));
        }
        at = to, scale = scale_to;
    }

private:
    // What the whole numbers are multiples of; NaN if one of x is not finite.
    static float shorten(const float* x, int16_t* to, Index count) {
        float top = 0, zero = 0;
#pragma omp simd reduction(max : top) reduction(+ : zero)
        for (Index i = 0; i < count; i++) {
            top = std::max(top, std::abs(x[i]));
            zero += x[i] * 0.0f;
        }
        const float factor = top < LEAST ? 0 : MOST / top;
#pragma omp simd
        for (Index i = 0; i < count; i++) to[i] = int16_t(int32_t(__builtin_rintf(x[i] * factor)));
        return top < LEAST ? zero : top / MOST + zero;
    }
};

template <typename W>
struct Product {
    const float* x;
    const W* w;
    const float *scale, *bias;
    float* y;
    Index M, K, N;
    bool add;  // to what is in y

    static constexpr bool SHORT = std::is_same_v<W, int8_t>;

    template <int COLUMNS, int NUMBERS>
    static void fetch(const W* columns, Index k) {
        const char* ahead = (const char*)(columns + k * COLUMNS) + AHEAD;
#pragma GCC unroll 8
        for (Index line = 0; line < COLUMNS * NUMBERS * Index(sizeof(W)); line += 64) __builtin_prefetch(ahead + line, 0, 2);
    }

    // To sums in lanes, those over K of rows m.. and of these columns.
    template <int ROWS, int COLUMNS, bool FETCH>
    void add_up_lanes(Index m, const W* columns, const ShortRows&, Wide (&sums)[ROWS][COLUMNS]) const {
        const float* rows = x + m * K;
        const auto step = [&](Index k, const auto&... count) {
            if constexpr (FETCH) fetch<COLUMNS, WIDE>(columns, k);
            Wide wide[COLUMNS];
#pragma GCC unroll 8
            for (int c = 0; c < COLUMNS; c++) wide[c] = read(columns + c * K + k, count...);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Wide numbers = read(rows + r * K + k, count...);
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++) sums[r][c] = multiply_add(numbers, wide[c], sums[r][c]);
            }
        };
        Index k = 0;
        for (; k + WIDE <= K; k += WIDE) step(k);
        if (k < K) step(k, K - k);
    }

    // The same with x in 16 bits. A function of its own for each, or the compiler keeps one's sums in memory.
    template <int ROWS, int COLUMNS, bool FETCH>
    void add_up_shorts(Index m, const W* columns, const ShortRows& shorts, Wide (&sums)[ROWS][COLUMNS]) const {
        const int16_t* rows = shorts.at + m * shorts.row;
        const float* scales = shorts.scale + m * shorts.pieces;
        for (Index first = 0, piece = 0; first < K; first = ShortRows::piece_end(first, K), piece++) {
            WholeSums whole[ROWS][COLUMNS];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++) whole[r][c] = no_whole_sums();
            const auto step = [&](Index k, const auto&... count) {
                if constexpr (FETCH) fetch<COLUMNS, SHORTS>(columns, k);
                Shorts wide[COLUMNS];
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++) wide[c] = widen_to_shorts(columns + c * K + k, count...);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    const Shorts numbers = load_shorts(rows + r * shorts.row + k);
#pragma GCC unroll 8
                    for (int c = 0; c < COLUMNS; c++) whole[r][c] = add_products(numbers, wide[c], whole[r][c]);
                }
            };
            const Index end = ShortRows::piece_end(first, K);
            Index k = first;
            for (; k + SHORTS <= end; k += SHORTS) step(k);
            if (k < end) step(k, end - k);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                const Wide factor = all(scales[r * shorts.pieces + piece]);
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++)
                    sums[r][c] = multiply_add(as_floats(whole[r][c]), factor, sums[r][c]);
            }
        }
    }

    // Rows m.. and columns n.., ROWS x COLUMNS of y, whose sums stay in registers throughout.
    template <int ROWS, int COLUMNS, bool FETCH>
    void tile(Index m, Index n, const ShortRows& shorts) const {
        Wide sums[ROWS][COLUMNS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = all(0.0f);
        if constexpr (SHORT)
            add_up_shorts<ROWS, COLUMNS, FETCH>(m, w + n * K, shorts, sums);
        else
            add_up_lanes<ROWS, COLUMNS, FETCH>(m, w + n * K, shorts, sums);
        constexpr int ALL = ROWS * COLUMNS;
        float totals[ALL];  // in one order whatever the tile: a row owes its neighbours nothing
        const auto halves = [&](int i) { return add_halves(sums[i / COLUMNS][i % COLUMNS]); };
#pragma GCC unroll 8
        for (int i = 0; i + 4 <= ALL; i += 4) add_up(halves(i), halves(i + 1), halves(i + 2), halves(i + 3), totals + i);
#pragma GCC unroll 4
        for (int i = ALL - ALL % 4; i < ALL; i++) totals[i] = add_up(halves(i));
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                const float sum = totals[r * COLUMNS + c];
                const float scaled = scale ? sum * scale[n + c] : sum;
                const float value = bias ? scaled + bias[n + c] : scaled;
                float& place = y[(m + r) * N + n + c];
                place = add ? place + value : value;
            }
        }
    }

    // As many rows at a time as MOST, and what is left of them. The first ones fetch the weights for all.
    template <int MOST, int COLUMNS>
    void all_rows(Index n, const ShortRows& shorts) const {
        if (M < MOST) return left_over<MOST - 1, COLUMNS, true>(0, n, shorts);
        tile<MOST, COLUMNS, true>(0, n, shorts);
        Index m = MOST;
        for (; m + MOST <= M; m += MOST) tile<MOST, COLUMNS, false>(m, n, shorts);
        left_over<MOST - 1, COLUMNS, false>(m, n, shorts);
    }
    template <int ROWS, int COLUMNS, bool FETCH>
    void left_over(Index m, Index n, const ShortRows& shorts) const {
        if constexpr (ROWS > 0) {
            if (M - m == ROWS) return tile<ROWS, COLUMNS, FETCH>(m, n, shorts);
            left_over<ROWS - 1, COLUMNS, FETCH>(m, n, shorts);
        }
    }

    template <int MOST, int COLUMNS>
    ThreadRange::Range tiles(ThreadRange range, const ShortRows& shorts) const {
        const auto [first, last] = range.of((N + COLUMNS - 1) / COLUMNS);
        for (Index block = first; block < last; block++) {
            Index n = block * COLUMNS;
            if (n + COLUMNS <= N)
                all_rows<MOST, COLUMNS>(n, shorts);
            else
                for (; n < N; n++) all_rows<MOST, 1>(n, shorts);
        }
        return {first * COLUMNS, last * COLUMNS < N ? last * COLUMNS : N};
    }

    // One thread's share: these columns of y.
    ThreadRange::Range share(ThreadRange range, ShortRows& shorts) const {
        if constexpr (SHORT) shorts.assign(x, M, K);
        if (M == 1) return tiles<1, 8>(range, shorts);
        if (M == 2) return tiles<2, MANY_REGISTERS ? 8 : 4>(range, shorts);
        if constexpr (SHORT && MANY_REGISTERS)
            if (M > 4) return tiles<8, 3>(range, shorts);
        return tiles<4, MANY_REGISTERS ? 6 : 3>(range, shorts);
    }
};

}  // namespace
