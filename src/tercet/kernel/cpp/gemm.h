// y = (x wT) * scale + bias for many rows of x: weights are the left side of the product as they lie there, and rows of x
// the right one, side by side in the lanes. Sums are made in order of K, whatever M and the threads: a row owes its
// neighbours nothing.
#pragma once
#include "gemv.h"
#include "products.h"

namespace {

constexpr Index FEW = 16;  // rows up to which the other way is the faster one

struct GemmScratch {
    AlignedBuffer<float> x, w, y;
    ShortRows shorts;
};

template <typename W>
struct Gemm {
    const Product<W>& p;

    static constexpr Index BATCH = 256, ROWS = 48;  // rows of x, and of w, that meet while they are near

    // Rows of w from n on, as floats.
    Left<Float32> widened(Index n, Index rows, GemmScratch& scratch) const {
        if constexpr (std::is_same_v<W, float>) {
            return {p.w + n * p.K, p.K, 1};
        } else {
            const Index row = p.K + LANES;  // apart from each other in memory by no power of two
            float* wide = scratch.w.of(ROWS * row);
            for (Index i = 0; i < rows; i++)
                for (Index k = 0; k < p.K; k += LANES) write(read(p.w + (n + i) * p.K, k, p.K, 0), wide + i * row, k, p.K);
            return {wide, row, 1};
        }
    }

    // y's rows m.. and columns n.., so many, from their sums: a row for each column.
    void put(const float* sums, Index stride, Index m, Index rows, Index n, Index columns) const {
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

    ThreadRange::Range share(ThreadRange range, GemmScratch& scratch) const {
        const auto [first, blocks] = range.of((p.N + LANES - 1) / LANES);
        const Index last = std::min(blocks * LANES, p.N), whole = up_to(std::min(p.M, BATCH), WIDE);
        float *packed = scratch.x.of(whole * p.K), *sums = scratch.y.of(ROWS * whole);
        for (Index m = 0; m < p.M; m += BATCH) {
            const Index rows = std::min(BATCH, p.M - m), width = up_to(rows, WIDE);
            const auto x = pack_column_panels<Float32>(p.x + m * p.K, p.K, rows, width, p.K, packed);
            for (Index n = first * LANES; n < last; n += ROWS) {
                const Index columns = std::min(ROWS, last - n);
                multiply<Float32>(widened(n, columns, scratch), x, p.K, columns, width, sums, width);
                put(sums, width, m, rows, n, columns);
            }
        }
        return {first * LANES, last};
    }
};

// One thread's share of a product, by the way that suits it.
template <typename W>
ThreadRange::Range share(const Product<W>& product, ThreadRange range, GemmScratch& scratch) {
    return product.M > FEW ? Gemm<W>{product}.share(range, scratch) : product.share(range, scratch.shorts);
}

}  // namespace
