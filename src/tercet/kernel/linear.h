// y = x wT + b for many rows, there and back, where the CPU multiplies bfloat16. Weights and their slopes stay float32: a
// weight is narrowed as it is laid out for the product, where PyTorch keeps copies. No sum depends on the number of threads.
#pragma once
#include <algorithm>

#include "pairs.h"

#ifdef __AVX512BF16__
namespace {

struct Linear {
    Index N, K, M;  // rows; numbers of a row of x, a multiple of WIDE; rows of w, of any number where there is no bias
    const Half* x;
    const float* w;  // (M, K)

    Index padded = up_to(M, WIDE);  // numbers of a row of y: zeros after the first M

    // What is multiplied at a time: so many rows of the left side by so many columns of the right one, which lie in panels
    // of their own, next to each other: from pair to pair it is never far. Rows whose slopes are added up at a time.
    static constexpr Index ROWS = 48, COLUMNS = 4 * WIDE, TOGETHER = 1024;

    struct Laid {
        Room<Pair> rooms[3];
        Pair *w, *x, *slopes;

        Laid& of(Index weights, Index inputs, Index outputs) {
            w = rooms[0].of(weights / 2), x = rooms[1].of(inputs / 2), slopes = rooms[2].of(outputs / 2);
            return *this;
        }
    };

    // `work(n, columns, r, rows)` for a thread's share of a matrix, one piece after the other.
    template <typename Work>
    static void each(Part part, Index columns, Index some, Index rows, Index few, const Work& work) {
        const Index across = (columns + some - 1) / some, down = (rows + few - 1) / few;
        const auto [first, last] = part.of(across * down);
        for (Index i = first; i < last; i++) {
            const Index n = i / down * some, r = i % down * few;
            work(n, std::min(some, columns - n), r, std::min(few, rows - r));
        }
    }

    void lay_out(Part part, Laid& laid) const {
        each(part, padded, COLUMNS, K, K, [&](Index n, Index columns, Index, Index) {
            pair_columns(w + n * K, K, M - n, columns, K, laid.w + n * (K / 2));
        });
    }
    void there(Part part, const Laid& laid, const float* bias, Half* y) const {
        each(part, padded, COLUMNS, N, ROWS, [&](Index n, Index columns, Index r, Index rows) {
            const Right weights{laid.w + n * (K / 2), columns};
            Half* found = y + r * padded + n;
            multiply({x + r * K, K, 2}, weights, K / 2, rows, columns, found, padded, Before{bias}.from(0, n));
        });
    }

    // With dy the slopes of y:   dx = dy w,   dw = dyT x,   db = the sum of dy's rows
    struct Slopes {
        const Half* y;
        Half* x;  // nullptr, here and below: not wanted
        float *w, *b;
    };

    // For rows first to first + count.
    void lay_out(Part part, Laid& laid, const Slopes& slopes, Index first, Index count) const {
        const Index whole = up_to(count, 2);
        if (first == 0 && slopes.x)
            each(part, K, COLUMNS, padded, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                pair_rows(w + r * K + n, K, M - r, rows, columns, laid.w + n * (padded / 2) + r / 2 * columns);
            });
        if (slopes.w)
            each(part, K, COLUMNS, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Half* at = x + (first + r) * K + n;
                pair_rows(at, K, count - r, rows, columns, laid.x + n * (whole / 2) + r / 2 * columns);
            });
        if (slopes.w || slopes.b)
            each(part, padded, ROWS, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Half* at = slopes.y + (first + r) * padded + n;
                pair_rows(at, padded, count - r, rows, columns, laid.slopes + n * (whole / 2) + r / 2 * columns);
            });
    }
    void back(Part part, const Laid& laid, const Slopes& slopes, Index first, Index count) const {
        const Index depth = up_to(count, 2) / 2;
        const auto so_far = [&](const float* sums, Index row) { return first ? Before{sums, row} : Before{}; };
        if (slopes.x)
            each(part, K, COLUMNS, count, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Left left{slopes.y + (first + r) * padded, padded, 2};
                Half* found = slopes.x + (first + r) * K + n;
                multiply(left, {laid.w + n * (padded / 2), columns}, padded / 2, rows, columns, found, K);
            });
        if (slopes.w)
            each(part, K, COLUMNS, M, ROWS, [&](Index n, Index columns, Index m, Index rows) {
                const Left left{(const Half*)(laid.slopes + m * depth), 2, 2 * std::min(ROWS, padded - m)};
                float* sums = slopes.w + m * K + n;
                multiply(left, {laid.x + n * depth, columns}, depth, rows, columns, sums, K, so_far(sums, K));
            });
        if (slopes.b)
            each(part, M, ROWS, 1, 1, [&](Index m, Index columns, Index, Index) {
                const Pair ones = 0x3f803f80;
                float* sums = slopes.b + m;
                multiply({(const Half*)&ones, 0, 0}, {laid.slopes + m * depth, columns}, depth, 1, columns, sums, M,
                         so_far(sums, M));
            });
    }
};

}  // namespace
#endif
