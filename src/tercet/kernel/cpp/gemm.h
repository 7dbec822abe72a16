// y = (x wT) * scale + bias for many rows of x, a tile of y at a time: rows of x lie side by side in the lanes, and each
// weight is sent to all of them. Sums are made in order of K, whatever M and the threads: a row owes its neighbours nothing.
#pragma once
#include <vector>

#include "gemv.h"

namespace {

constexpr Index FEW = 16;  // rows up to which the other way is the faster one

struct Panels {
    AlignedBuffer<float> x, w;
};

template <typename W>
struct Gemm {
    const Product<W>& p;
    Index row() const { return p.K + WIDE; }  // apart from each other in memory by no power of two

    static constexpr Index BATCH = 512;              // rows that meet the weights while these are near
    static constexpr int MOST = WIDE > LANES ? 2 : 1;  // panels whose sums fit into the registers

    // Panels of WIDE rows of x, a number of each next to each other; zeros where there is no such row.
    void pack_rows(Index begin, Index end, float* panels) const {
        for (Index m = begin; m < up_to(end, WIDE); m += LANES) {
            float* panel = panels + (m - begin) / WIDE * WIDE * p.K + m % WIDE;
            for (Index k = 0; k < p.K; k += LANES) {
                Floats rows[LANES];
                for (int i = 0; i < LANES; i++) rows[i] = m + i < p.M ? read(p.x + (m + i) * p.K, k, p.K, 0) : Floats{};
                transpose(rows);
                for (int i = 0; i < LANES && k + i < p.K; i++) *(Floats*)(panel + (k + i) * WIDE) = rows[i];
            }
        }
    }

    // LANES rows of w from n on, as floats.
    void widen_rows(Index n, float* rows) const {
        for (Index i = 0; i < LANES; i++)
            for (Index k = 0; k < p.K; k += LANES)
                write(n + i < p.N ? read(p.w + (n + i) * p.K, k, p.K, 0) : Floats{}, rows + i * row(), k, p.K);
    }

    // Rows m.., so many panels, and LANES columns from n on.
    template <int PANELS>
    void tile(Index m, Index n, const float* panel, const float* rows) const {
        Wide sums[PANELS][LANES];
        for (int j = 0; j < PANELS; j++)
            for (int i = 0; i < LANES; i++) sums[j][i] = all(0);
        for (Index k = 0; k < p.K; k++) {
            Wide x[PANELS];
            for (int j = 0; j < PANELS; j++) x[j] = read(panel + (j * p.K + k) * WIDE);
            for (int i = 0; i < LANES; i++) {
                const Wide weight = all(rows[i * row() + k]);
                for (int j = 0; j < PANELS; j++) sums[j][i] = multiply_add(weight, x[j], sums[j][i]);
            }
        }
        const Floats scale = p.scale ? read(p.scale, n, p.N, 0) : Floats{} + 1;
        const Floats bias = p.bias ? read(p.bias, n, p.N, 0) : Floats{};
        for (int j = 0; j < PANELS; j++) {
            float lanes[LANES][WIDE];
            for (int i = 0; i < LANES; i++) write(lanes[i], sums[j][i]);
            for (Index down = 0; down < WIDE; down += LANES) {
                Floats transposed[LANES];
                for (int i = 0; i < LANES; i++) transposed[i] = load(&lanes[i][down]);
                transpose(transposed);
                for (int i = 0; i < LANES && m + j * WIDE + down + i < p.M; i++) {
                    float* y = p.y + (m + j * WIDE + down + i) * p.N;
                    const Floats value = transposed[i] * scale + bias;
                    write(p.add ? read(y, n, p.N, 0) + value : value, y, n, p.N);
                }
            }
        }
    }

    ThreadRange::Range share(ThreadRange range, Panels& panels) const {
        const auto [first, last] = range.of((p.N + LANES - 1) / LANES);
        float *x = panels.x.of(BATCH * p.K), *w = panels.w.of(LANES * row());
        for (Index begin = 0; begin < p.M; begin += BATCH) {
            const Index end = begin + BATCH < p.M ? begin + BATCH : p.M;
            pack_rows(begin, end, x);
            for (Index n = first * LANES; n < last * LANES; n += LANES) {
                widen_rows(n, w);
                Index m = begin;
                for (; m + MOST * WIDE <= up_to(end, WIDE); m += MOST * WIDE)
                    tile<MOST>(m, n, x + (m - begin) * p.K, w);
                for (; m < end; m += WIDE) tile<1>(m, n, x + (m - begin) * p.K, w);
            }
        }
        return {first * LANES, last * LANES < p.N ? last * LANES : p.N};
    }
};

// One thread's share of a product, by the way that suits it.
template <typename W>
ThreadRange::Range share(const Product<W>& product, ThreadRange range, Panels& panels) {
    return product.M > FEW ? Gemm<W>{product}.share(range, panels) : product.share(range);
}

}  // namespace
