// y = x wT + b for many rows, forward and backward. Weights and their gradients stay float32. For products in bfloat16,
// weights are converted when they are packed, while PyTorch would keep a converted copy of each weight. No sum depends
// on the number of threads.
#pragma once
#include <algorithm>

#include "products.h"

namespace {

template <typename A>
struct Linear {
    using Number = typename A::Number;
    using Packed = typename A::Packed;
    static constexpr Index STEP = A::STEP;

    Index N, K, M;  // N rows of x, K (a multiple of 16) elements per row, M rows of w (a multiple of 16 with a bias)
    const Number* x;
    const float* w;  // (M, K)

    Index padded = round_up(M, 16);  // elements per row of y; those after the first M are zeros

    static constexpr Index ROWS = A::ROWS;
    static constexpr Index BATCH = 512;  // rows whose gradients are summed at a time

    struct PackedWeights {
        AlignedBuffer<Packed> buffers[3];
        Packed *w, *x, *gradients;

        PackedWeights& reserve(Index weights, Index inputs, Index outputs) {
            w = buffers[0].reserve(weights / STEP), x = buffers[1].reserve(inputs / STEP),
            gradients = buffers[2].reserve(outputs / STEP);
            return *this;
        }
    };

    // Calls `work(n, columns, r, rows)` for each block in a thread's part of a matrix, with the first column, the
    // number of columns, the first row and the number of rows. Blocks are ordered so that a few rows stay in the cache
    // until all their columns are computed.
    template <typename Work>
    static void for_each_tile(ThreadRange range, Index columns, Index width, Index rows, Index height, const Work& work) {
        const Index wide = (columns + width - 1) / width, high = (rows + height - 1) / height;
        const auto [first, last] = range.split(wide * high);
        for (Index i = first; i < last; i++) {
            const Index n = i % wide * width, r = i / wide * height;
            work(n, std::min(width, columns - n), r, std::min(height, rows - r));
        }
    }

    void pack_weights(ThreadRange range, PackedWeights& packed) const {
        for_each_tile(range, padded, PANEL, K, K, [&](Index n, Index columns, Index, Index) {
            A::pack_columns(w + n * K, K, M - n, columns, K, packed.w + n * (K / STEP));
        });
    }
    void forward(ThreadRange range, const PackedWeights& packed, const float* bias, Number* y) const {
        for_each_tile(range, padded, PANEL, N, ROWS, [&](Index n, Index columns, Index r, Index rows) {
            const Right<A> weights{packed.w + n * (K / STEP), K / STEP, columns};
            Number* tile = y + r * padded + n;
            multiply<A>({x + r * K, K, STEP}, weights, K / STEP, rows, columns, tile, padded, InitialSums{bias}.from(0, n));
        });
    }

    // With dy the gradient of y:   dx = dy w,   dw = dyT x,   db = sum of the rows of dy
    struct Gradients {
        const Number* y;
        Number* x;  // nullptr, here and below: not computed
        float *w, *b;
    };

    // Packs the operands of rows first to first + count - 1.
    void pack_operands(ThreadRange range, PackedWeights& packed, const Gradients& gradients, Index first,
                       Index count) const {
        const Index whole = round_up(count, STEP);
        if (first == 0 && gradients.x)
            for_each_tile(range, K, PANEL, padded, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                A::pack_rows(w + r * K + n, K, M - r, rows, columns, packed.w + n * (padded / STEP) + r / STEP * columns);
            });
        if (gradients.w) {
            for_each_tile(range, K, PANEL, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Number* data = x + (first + r) * K + n;
                A::pack_rows(data, K, count - r, rows, columns, packed.x + n * (whole / STEP) + r / STEP * columns);
            });
            for_each_tile(range, padded, ROWS, whole, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Number* data = gradients.y + (first + r) * padded + n;
                A::pack_left(data, padded, count - r, r, rows, whole, columns, packed.gradients + n * (whole / STEP));
            });
        }
    }
    void backward(ThreadRange range, const PackedWeights& packed, const Gradients& gradients, Index first,
                  Index count) const {
        const Index depth = round_up(count, STEP) / STEP;
        const auto accumulated = [&](const float* sums, Index row) {
            return first ? InitialSums{sums, row} : InitialSums{};
        };
        if (gradients.x)
            for_each_tile(range, K, PANEL, count, ROWS, [&](Index n, Index columns, Index r, Index rows) {
                const Left<A> left{gradients.y + (first + r) * padded, padded, STEP};
                Number* tile = gradients.x + (first + r) * K + n;
                multiply<A>(left, {packed.w + n * (padded / STEP), padded / STEP, columns}, padded / STEP, rows, columns,
                            tile, K);
            });
        if (gradients.w)
            for_each_tile(range, K, PANEL, M, ROWS, [&](Index n, Index columns, Index m, Index rows) {
                const Left<A> left = A::packed_left(packed.gradients + m * depth, STEP * depth, std::min(ROWS, padded - m));
                float* sums = gradients.w + m * K + n;
                multiply<A>(left, {packed.x + n * depth, depth, columns}, depth, rows, columns, sums, K,
                            accumulated(sums, K));
            });
        if (gradients.b)
            for_each_tile(range, M, PANEL, 1, 1, [&](Index n, Index columns, Index, Index) {
                for (Index m = n; m < n + columns; m += WIDE) {  // M is a multiple of 16 if there is a bias
                    Wide sums = first ? read(gradients.b + m) : broadcast(0.0f);
                    for (Index r = first; r < first + count; r++) sums += read(gradients.y + r * padded + m);
                    write(gradients.b + m, sums);
                }
            });
    }
};

}  // namespace
