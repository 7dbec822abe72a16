// y = (x wT) * scale + bias for few rows of x: every weight is read once, in order, and meets all rows while it is in a
// register.
//
// x (M, K) float; w (N, K) float, bfloat16 or int8; scale (N) and bias (N) float, or null; y (M, N) float.
// Weights are widened to float on the way into the registers, so the arithmetic is that of float in all three cases.
#pragma once
#include <cmath>

#include "vectors.h"

namespace {

// How many tiles ahead weights are sent for, and how near (3: into the first cache). The first cache of Intel's CPUs waits
// for few lines at a time, the second one for three times as many.
#ifdef __AMX_BF16__
constexpr Index AHEAD = 2;
constexpr int NEAR = 2;
#else
constexpr Index AHEAD = 1;
constexpr int NEAR = 3;
#endif

template <typename W>
struct Product {
    const float* x;
    const W* w;
    const float *scale, *bias;
    float* y;
    Index M, K, N;
    bool add;  // to what is in y

    // Rows m.. and columns n.., ROWS x COLUMNS of y, whose sums stay in registers throughout.
    template <int ROWS, int COLUMNS>
    void tile(Index m, Index n) const {
        const float* rows = x + m * K;
        const W* columns = w + n * K;
        // The weights of a tile to come lie behind, and are sent for a piece at a step, over all rows that these ones
        // meet. The machine does so by itself for one row of floats, and then this is in its way.
        constexpr bool FETCH = sizeof(W) < 4 || ROWS > 1;
        const Index passes = (M + 3) / 4;
        const char* next = (const char*)(columns + AHEAD * COLUMNS * K) + m / 4 * K / passes * COLUMNS * sizeof(W);
        const Index piece = COLUMNS * LANES * sizeof(W) / passes;
        Floats sums[ROWS][COLUMNS] = {};
        Index k = 0;
        for (; k + LANES <= K; k += LANES) {
            if (FETCH) {
                for (Index ahead = 0; ahead < piece; ahead += 64) __builtin_prefetch(next + ahead, 0, NEAR);
                next += piece;
            }
            Floats wide[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) wide[c] = widen(columns + c * K + k);
            for (int r = 0; r < ROWS; r++) {
                const Floats numbers = load(rows + r * K + k);
                for (int c = 0; c < COLUMNS; c++) sums[r][c] = multiply_add(numbers, wide[c], sums[r][c]);
            }
        }
        constexpr int ALL = ROWS * COLUMNS;
        float totals[ALL];  // in one order whatever the tile: a row owes its neighbours nothing
        for (int i = 0; i + 4 <= ALL; i += 4)
            add_up(sums[i / COLUMNS][i % COLUMNS], sums[(i + 1) / COLUMNS][(i + 1) % COLUMNS],
                   sums[(i + 2) / COLUMNS][(i + 2) % COLUMNS], sums[(i + 3) / COLUMNS][(i + 3) % COLUMNS], totals + i);
        for (int i = ALL - ALL % 4; i < ALL; i++) totals[i] = add_up(sums[i / COLUMNS][i % COLUMNS]);
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                float sum = totals[r * COLUMNS + c];
                for (Index j = k; j < K; j++) sum = __builtin_fmaf(rows[r * K + j], widen_one(columns[c * K + j]), sum);
                const float scaled = scale ? sum * scale[n + c] : sum;
                const float value = bias ? scaled + bias[n + c] : scaled;
                float& place = y[(m + r) * N + n + c];
                place = add ? place + value : value;
            }
        }
    }

    // MOST rows at a time, and what is left of them.
    template <int MOST, int COLUMNS>
    void all_rows(Index n) const {
        Index m = 0;
        for (; m + MOST <= M; m += MOST) tile<MOST, COLUMNS>(m, n);
        if constexpr (MOST == 4) {
            if (M - m == 3) tile<3, COLUMNS>(m, n);
            if (M - m == 2) tile<2, COLUMNS>(m, n);
            if (M - m == 1) tile<1, COLUMNS>(m, n);
        }
    }

    template <int MOST, int COLUMNS>
    ThreadRange::Range tiles(ThreadRange range) const {
        const auto [first, last] = range.of((N + COLUMNS - 1) / COLUMNS);
        for (Index block = first; block < last; block++) {
            Index n = block * COLUMNS;
            if (n + COLUMNS <= N)
                all_rows<MOST, COLUMNS>(n);
            else
                for (; n < N; n++) all_rows<MOST, 1>(n);
        }
        return {first * COLUMNS, last * COLUMNS < N ? last * COLUMNS : N};
    }

    // One thread's share: these columns of y.
    ThreadRange::Range share(ThreadRange range) const {
        return M == 1 ? tiles<1, 8>(range) : M == 2 ? tiles<2, 4>(range) : tiles<4, 3>(range);
    }
};

}  // namespace
