// Adam with decoupled weight decay, and the norm of a gradient, over many tensors in one go. float32.
#pragma once
#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace {

// What several tensors hold, in pieces: threads share those, and what is added up does not depend on how.
struct Pieces {
    static constexpr Index SIZE = 1 << 14;
    const Index* counts;  // numbers of each tensor
    Index tensors;

    static Index of(Index numbers) { return (numbers + SIZE - 1) / SIZE; }
    Index count() const {
        Index total = 0;
        for (Index i = 0; i < tensors; i++) total += of(counts[i]);
        return total;
    }
    // `work(tensor, from, numbers)` for the pieces first to last.
    template <typename Work>
    void each(Index first, Index last, Work work) const {
        for (Index i = 0; i < tensors && last > 0; i++) {
            const Index pieces = of(counts[i]);
            for (Index piece = std::max<Index>(first, 0); piece < std::min(pieces, last); piece++)
                work(i, piece * SIZE, std::min(SIZE, counts[i] - piece * SIZE));
            first -= pieces;
            last -= pieces;
        }
    }
};

// Kingma and Ba (2015), algorithm 1, of gradients times `scale`; the weights decay as Loshchilov and Hutter (2019) have it.
struct Adam {
    float rate, beta1, beta2, eps, decay;

    void step(float* __restrict p, const float* __restrict gradient, float* __restrict m, float* __restrict v, Index count,
              double steps, float scale) const {
        const float first = float(rate / (1 - std::pow(double(beta1), steps)));
        const float root = float(1 / std::sqrt(1 - std::pow(double(beta2), steps)));
#pragma omp simd
        for (Index i = 0; i < count; i++) {
            const float g = gradient[i] * scale;
            m[i] += (g - m[i]) * (1 - beta1);
            v[i] = v[i] * beta2 + g * g * (1 - beta2);
            p[i] = p[i] * (1 - rate * decay) - first * m[i] / (std::sqrt(v[i]) * root + eps);
        }
    }
};

inline float squares(const float* x, Index count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

}  // namespace
