// y = x wT + b for many rows, forward and backward, where the CPU multiplies bfloat16. Weights and their gradients stay
// float32: a weight is narrowed as it is packed for the product, where PyTorch keeps copies. No sum depends on the number
// of threads.
#pragma once
#include <algorithm>

#include "bf16_pairs.h"

#ifdef __AVX512BF16__
namespace {

struct Linear {
    Index N, K, M;  // rows; numbers of a row of x, a multiple of WIDE; rows of w, of any number where there is no bias
    const Half* x;
    const float* w;  // (M, K)

    Index padded = up_to(M, WIDE);  // numbers of a row of y: zeros after the first M

    // What is multiplied at a time: so many rows of the left side by so many columns of the right one, which lie in panels
    // of their own, next to each other: from pair to pair it is never far. Rows whose gradients are added up at a time.
    static constexpr Index ROWS = 48, COLUMNS = 4 * WIDE, BATCH = 1024;

    struct PackedWeights {
        AlignedBuffer<Pair> buffers[3];
        Pair *w, *x, *gradients;

        PackedWeights& of(Index weights, Index inputs, Index outputs) {
            w = buffers[0].of(weights / 2), x = buffers[1].of(inputs / 2), gradients = buffers[2].of(outputs / 2);
            return *this;
        }
    };

    // `work(n, columns, r, rows)` for a thread's share of a matrix, one piece after the other.
    template <typename Work>
    static void each(ThreadRange range, Index columns, Index width, Index rows, Index height, const Work& work) {
        const Index wide = (columns + width - 1) / width, high = (rows + height - 1) / height;
        const auto [first, last] = range.of(wide * high);
        for (Index i = first; i < last; i++) {
            const Index n = i / high * width, r = i % high * height;
            work(n, std::min(width, columns - n), r, std::min(height, rows - r));
        }
    }

    void pack_weights(ThreadRange range, PackedWeights& packed) const {
        each(range, padded, COLUMNS, K, K, [&](Index n, Index columns, Index, Index) {
            pair_columns(w + n * K, K, M - n, columns, K, packed.w + n * (K / 2));
        });
    }
    void forward(ThreadRange range, const PackedWeights& packed, const float* bias, Half* y) const {
        each(range, padded, COLUMNS, N, ROWS, [&](Index n, Index columns, Index r, Index rows) {
            const Right weights{packed.w + n * (K / 2), columns};
            Half* tile = y + r * padded + n;
            multiply({x + r * K, K, 2}, weights, K / 2, rows, columns, tile, padded, Before{bias}.from(0, n));
        });
    }

    // With dy the gradient of y:   dx = dy w,   dw = dyT x,   db = the sum of dy's rows
    struct Gradients {
        const Half* y;
        Half* x;  // nullptr, here and below: not wanted
        float *w, *b;
    };

    // For rows first to first + count.
    void pack_operands(ThreadRange range, PackedWeights& packed, const Gradients& gradients, Index first,
                       Index count) const {
        const Index whole = up_to(count, 2);
        if (first == 0 && gradients.x)
            each(range, K, COLUMNS, padded, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                pair_rows(w + r * K + n, K, M - r, rows, columns, packed.w + n * (padded / 2) + r / 2 * columns);
            });
        if (gradients.w)
            each(range, K, COLUMNS, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Half* at = x + (first + r) * K + n;
                pair_rows(at, K, count - r, rows, columns, packed.x + n * (whole / 2) + r / 2 * columns);
            });
        if (gradients.w || gradients.b)
            each(range, padded, ROWS, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Half* at = gradients.y + (first + r) * padded + n;
                pair_rows(at, padded, count - r, rows, columns, packed.gradients + n * (whole / 2) + r / 2 * columns);
            });
    }
    void backward(ThreadRange range, const PackedWeights& packed, const Gradients& gradients, Index first,
                  Index count) const {
        const Index depth = up_to(count, 2) / 2;
        const auto so_far = [&](const float* sums, Index row) { return first ? Before{sums, row} : Before{}; };
        if (gradients.x)
            each(range, K, COLUMNS, count, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Left left{gradients.y + (first + r) * padded, padded, 2};
                Half* tile = gradients.x + (first + r) * K + n;
                multiply(left, {packed.w + n * (padded / 2), columns}, padded / 2, rows, columns, tile, K);
            });
        if (gradients.w)
            each(range, K, COLUMNS, M, ROWS, [&](Index n, Index columns, Index m, Index rows) {
                const Left left{(const Half*)(packed.gradients + m * depth), 2, 2 * std::min(ROWS, padded - m)};
                float* sums = gradients.w + m * K + n;
                multiply(left, {packed.x + n * depth, columns}, depth, rows, columns, sums, K, so_far(sums, K));
            });
        if (gradients.b)
            each(range, M, ROWS, 1, 1, [&](Index m, Index columns, Index, Index) {
                const Pair ones = 0x3f803f80;
                float* sums = gradients.b + m;
                multiply({(const Half*)&ones, 0, 0}, {packed.gradients + m * depth, columns}, depth, 1, columns, sums, M,
                         so_far(sums, M));
            });
    }
};

}  // namespace
#endif
