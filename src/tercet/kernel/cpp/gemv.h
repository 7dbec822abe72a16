// y = (x wT) * scale + bias for few rows of x. Each weight is read once from memory, in order, and multiplied by all
// rows of x.
//
// x (M, K) float; w (N, K) float, bfloat16 or int8; scale (N) and bias (N) float, or null; y (M, N) float. bfloat16 is
// widened to float in registers. For int8 weights, x is rounded to 16 bits: each 1024 elements of a row become integer
// multiples of 1/32767 of their largest magnitude. Their products with the weights are summed exactly as integers, and
// these sums are added up in float. This takes a third of the instructions of widening each weight to float.
#pragma once
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "vectors.h"

namespace {

constexpr Index PREFETCH_BYTES = 16384;  // prefetch distance in bytes, into the second-level cache
constexpr bool MANY_REGISTERS = WIDE > LANES;  // true: 32 vector registers, false: 16

// Rows of x, rounded to integers of 16 bits.
class ShortRows {
    static constexpr Index PIECE = 1024;  // elements per scale; 1024 / WIDE products of 16 by 8 bits fit into 32 bits
    static constexpr float MAX_SHORT = 32767, MIN_MAGNITUDE = 1e-30f;  // pieces with a lower maximum become zero

    AlignedBuffer<int16_t> numbers;
    AlignedBuffer<float> scales;

public:
    const int16_t* data;
    const float* scale;
    Index row, pieces;  // elements per row, padded with zeros; scales per row

    ShortRows() = default;
    ShortRows(const ShortRows&) = delete;

    static Index piece_end(Index k, Index K) { return std::min(k + PIECE, K); }

    void assign(const float* x, Index M, Index K) {
        row = round_up(K, SHORTS), pieces = (K + PIECE - 1) / PIECE;
        int16_t* to = numbers.reserve(M * row);
        float* scale_to = scales.reserve(M * pieces);
        for (Index m = 0; m < M; m++) {
            for (Index k = 0; k < K; k += PIECE)
                scale_to[m * pieces + k / PIECE] = shorten(x + m * K + k, to + m * row + k, piece_end(k, K) - k);
            memset(to + m * row + K, 0, (row - K) * sizeof(int16_t));
        }
        data = to, scale = scale_to;
    }

private:
    // Rounds a piece of a row. Returns the scale of the integers; NaN if an element of x is not finite.
    static float shorten(const float* x, int16_t* to, Index count) {
        float top = 0, zero = 0;
#pragma omp simd reduction(max : top) reduction(+ : zero)
        for (Index i = 0; i < count; i++) {
            top = std::max(top, std::abs(x[i]));
            zero += x[i] * 0.0f;
        }
        const float factor = top < MIN_MAGNITUDE ? 0 : MAX_SHORT / top;
#pragma omp simd
        for (Index i = 0; i < count; i++) to[i] = int16_t(int32_t(__builtin_rintf(x[i] * factor)));
        return top < MIN_MAGNITUDE ? zero : top / MAX_SHORT + zero;
    }
};

template <typename W>
struct Product {
    const float* x;
    const W* w;
    const float *scale, *bias;
    float* y;
    Index M, K, N;
    bool add;  // add to y instead of storing

    static constexpr bool SHORT = std::is_same_v<W, int8_t>;

    template <int COLUMNS, int NUMBERS>
    static void fetch(const W* columns, Index k) {
        const char* ahead = (const char*)(columns + k * COLUMNS) + PREFETCH_BYTES;
#pragma GCC unroll 8
        for (Index line = 0; line < COLUMNS * NUMBERS * Index(sizeof(W)); line += 64) __builtin_prefetch(ahead + line, 0, 2);
    }

    // Adds the products of rows m to m + ROWS - 1 of x with these columns to the sums. A sum has one part in each lane.
    template <int ROWS, int COLUMNS, bool FETCH>
    void accumulate(Index m, const W* columns, const ShortRows&, Wide (&sums)[ROWS][COLUMNS]) const {
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

    // The same for int8 weights and x in 16 bits. In a common function, the compiler would keep the sums in memory.
    template <int ROWS, int COLUMNS, bool FETCH>
    void accumulate_shorts(Index m, const W* columns, const ShortRows& shorts, Wide (&sums)[ROWS][COLUMNS]) const {
        const int16_t* rows = shorts.data + m * shorts.row;
        const float* scales = shorts.scale + m * shorts.pieces;
        for (Index first = 0, piece = 0; first < K; first = ShortRows::piece_end(first, K), piece++) {
            IntegerSums whole[ROWS][COLUMNS];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++) whole[r][c] = zero_integer_sums();
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
                const Wide factor = broadcast(scales[r * shorts.pieces + piece]);
#pragma GCC unroll 8
                for (int c = 0; c < COLUMNS; c++)
                    sums[r][c] = multiply_add(as_floats(whole[r][c]), factor, sums[r][c]);
            }
        }
    }

    // Computes a block of ROWS x COLUMNS of y, whose sums stay in registers.
    template <int ROWS, int COLUMNS, bool FETCH>
    void tile(Index m, Index n, const ShortRows& shorts) const {
        Wide sums[ROWS][COLUMNS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
            for (int c = 0; c < COLUMNS; c++) sums[r][c] = broadcast(0.0f);
        if constexpr (SHORT)
            accumulate_shorts<ROWS, COLUMNS, FETCH>(m, w + n * K, shorts, sums);
        else
            accumulate<ROWS, COLUMNS, FETCH>(m, w + n * K, shorts, sums);
        constexpr int COUNT = ROWS * COLUMNS;
        float totals[COUNT];  // in the same order for all block sizes, so that a row does not depend on the others
        const auto halves = [&](int i) { return add_halves(sums[i / COLUMNS][i % COLUMNS]); };
#pragma GCC unroll 8
        for (int i = 0; i + 4 <= COUNT; i += 4)
            reduce_add(halves(i), halves(i + 1), halves(i + 2), halves(i + 3), totals + i);
#pragma GCC unroll 4
        for (int i = COUNT - COUNT % 4; i < COUNT; i++) totals[i] = reduce_add(halves(i));
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

    // Computes blocks of MAX_ROWS rows, and then the remaining rows. Only the first block prefetches weights.
    template <int MAX_ROWS, int COLUMNS>
    void all_rows(Index n, const ShortRows& shorts) const {
        if (M < MAX_ROWS) return remaining_rows<MAX_ROWS - 1, COLUMNS, true>(0, n, shorts);
        tile<MAX_ROWS, COLUMNS, true>(0, n, shorts);
        Index m = MAX_ROWS;
        for (; m + MAX_ROWS <= M; m += MAX_ROWS) tile<MAX_ROWS, COLUMNS, false>(m, n, shorts);
        remaining_rows<MAX_ROWS - 1, COLUMNS, false>(m, n, shorts);
    }
    template <int ROWS, int COLUMNS, bool FETCH>
    void remaining_rows(Index m, Index n, const ShortRows& shorts) const {
        if constexpr (ROWS > 0) {
            if (M - m == ROWS) return tile<ROWS, COLUMNS, FETCH>(m, n, shorts);
            remaining_rows<ROWS - 1, COLUMNS, FETCH>(m, n, shorts);
        }
    }

    template <int MAX_ROWS, int COLUMNS>
    ThreadRange::Range tiles(ThreadRange range, const ShortRows& shorts) const {
        const auto [first, last] = range.split((N + COLUMNS - 1) / COLUMNS);
        for (Index block = first; block < last; block++) {
            Index n = block * COLUMNS;
            if (n + COLUMNS <= N)
                all_rows<MAX_ROWS, COLUMNS>(n, shorts);
            else
                for (; n < N; n++) all_rows<MAX_ROWS, 1>(n, shorts);
        }
        return {first * COLUMNS, last * COLUMNS < N ? last * COLUMNS : N};
    }

    // Computes one thread's columns of y and returns their range.
    ThreadRange::Range run_range(ThreadRange range, ShortRows& shorts) const {
        if constexpr (SHORT) shorts.assign(x, M, K);
        if (M == 1) return tiles<1, 8>(range, shorts);
        if (M == 2) return tiles<2, MANY_REGISTERS ? 8 : 4>(range, shorts);
        if constexpr (SHORT && MANY_REGISTERS)
            if (M > 4) return tiles<8, 3>(range, shorts);
        return tiles<4, MANY_REGISTERS ? 6 : 3>(range, shorts);
    }
};

}  // namespace
