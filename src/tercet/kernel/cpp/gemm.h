// y = (x wT) * scale + bias for many rows of x. The weights are the left side of the product, in their original layout.
// The rows of x are the right side, with one row in each lane. Sums are computed in the order of K for any M and any
// number of threads, so the result of a row does not depend on the other rows.
#pragma once
#include "gemv.h"
#include "products.h"

namespace {

constexpr Index MAX_GEMV_ROWS = 16;  // maximum number of rows for which gemv.h is faster

struct GemmScratch {
    AlignedBuffer<float> x, w, y;
    ShortRows shorts;
};

template <typename W>
struct Gemm {
    const Product<W>& p;

    static constexpr Index BATCH = 256, ROWS = 48;  // rows of x and of w per block, which stay in the cache

    // Returns rows n to n + rows - 1 of w as floats.
    Left<Float32> widened(Index n, Index rows, GemmScratch& scratch) const {
        if constexpr (std::is_same_v<W, float>) {
            return {p.w + n * p.K, p.K, 1};
        } else {
            const Index row = p.K + LANES;  // a stride that is not a power of two
            float* wide = scratch.w.reserve(ROWS * row);
            for (Index i = 0; i < rows; i++)
                for (Index k = 0; k < p.K; k += LANES) write(read(p.w + (n + i) * p.K, k, p.K, 0), wide + i * row, k, p.K);
            return {wide, row, 1};
        }
    }

    // Writes a block of y from the transposed sums, which have one row per column of y.
    void store(const float* sums, Index stride, Index m, Index rows, Index n, Index columns) const {
        for (Index across = 0; across < columns; across += LANES) {
            const Index from = n + across, left = columns - across;
            const Floats scale = p.scale ? read(p.scale + from, 0, left, 0) : Floats{} + 1;
            const Floats bias = p.bias ? read(p.bias + from, 0, left, 0) : Floats{};
            for (Index down = 0; down < rows; down += LANES) {
                Floats block[LANES];
                for (Index i = 0; i < LANES; i++) block[i] = load(sums + std::min(across + i, columns - 1) * stride + down);
                transpose(block);
                for (Index i = 0; i < LANES && down + i < rows; i++) {
                    float* y = p.y + (m + down + i) * p.N + from;
                    const Floats value = block[i] * scale + bias;
                    write(p.add ? read(y, 0, left, 0) + value : value, y, 0, left);
                }
            }
        }
    }

    ThreadRange::Range run_range(ThreadRange range, GemmScratch& scratch) const {
        const auto [first, blocks] = range.split((p.N + LANES - 1) / LANES);
        const Index last = std::min(blocks * LANES, p.N), whole = round_up(std::min(p.M, BATCH), WIDE);
        float *packed = scratch.x.reserve(whole * p.K), *sums = scratch.y.reserve(ROWS * whole);
        for (Index m = 0; m < p.M; m += BATCH) {
            const Index rows = std::min(BATCH, p.M - m), width = round_up(rows, WIDE);
            const auto x = pack_column_panels<Float32>(p.x + m * p.K, p.K, rows, width, p.K, packed);
            for (Index n = first * LANES; n < last; n += ROWS) {
                const Index columns = std::min(ROWS, last - n);
                multiply<Float32>(widened(n, columns, scratch), x, p.K, columns, width, sums, width);
                store(sums, width, m, rows, n, columns);
            }
        }
        return {first * LANES, last};
    }
};

// Computes one thread's columns of y with the faster method for M rows, and returns their range.
template <typename W>
ThreadRange::Range multiply_range(const Product<W>& product, ThreadRange range, GemmScratch& scratch) {
    return product.M > MAX_GEMV_ROWS ? Gemm<W>{product}.run_range(range, scratch)
                                     : product.run_range(range, scratch.shorts);
}

}  // namespace
