// Adam with decoupled weight decay, and gradient norms, over many tensors in one call. float32.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

// The elements of several tensors in pieces of fixed size. Each piece is summed by one thread, so sums do not depend on
// the number of threads.
struct Pieces {
    static constexpr Index SIZE = 1 << 14;
    const Index* counts;  // elements of each tensor
    Index tensors;

    static Index count_in(Index numbers) { return (numbers + SIZE - 1) / SIZE; }
    Index count() const {
        Index total = 0;
        for (Index i = 0; i < tensors; i++) total += count_in(counts[i]);
        return total;
    }
    // Calls `work(tensor, from, numbers)` for pieces first to last - 1 of all tensors together, with the index of the
    // tensor, the piece's first element and its number of elements.
    template <typename Work>
    void for_each(Index first, Index last, Work work) const {
        for (Index i = 0; i < tensors && last > 0; i++) {
            const Index pieces = count_in(counts[i]);
            for (Index piece = std::max<Index>(first, 0); piece < std::min(pieces, last); piece++)
                work(i, piece * SIZE, std::min(SIZE, counts[i] - piece * SIZE));
            first -= pieces;
            last -= pieces;
        }
    }
};

// Returns whether a tensor that is written overlaps with any other. tensors: addresses of parameters, gradients, both
// moments and steps, `count` of each. Only gradients are not written.
inline bool has_overlap(const Index* tensors, const Index* counts, Index count) {
    std::vector<std::pair<Index, Index>> places;  // start address and index of each tensor
    for (Index i = 0; i < 5 * count; i++) places.push_back({tensors[i], i});
    std::sort(places.begin(), places.end());
    Index end = 0, end_written = 0;
    for (const auto& [begin, i] : places) {
        const Index kind = i / count, numbers = kind == 4 ? 1 : counts[i % count];
        const bool is_written = kind != 1;
        if (numbers && (begin < end_written || (is_written && begin < end))) return true;
        end = std::max(end, Index(begin + numbers * sizeof(float)));
        if (is_written) end_written = end;
    }
    return false;
}

// Kingma and Ba (2015), algorithm 1, for gradients times `scale`, with weight decay by Loshchilov and Hutter (2019).
struct Adam {
    float rate, beta1, beta2, eps, decay;

    void step(float* __restrict p, const float* __restrict gradient, float* __restrict m, float* __restrict v, Index count,
              double steps, float scale) const {
        const float first = float(rate / (1 - std::pow(double(beta1), steps)));
        const float root = float(1 / std::sqrt(1 - std::pow(double(beta2), steps)));
        const float kept = multiply_add(-rate, decay, 1.0f);
        // The compiler could fuse another product of a sum in the last elements than in whole vectors. The product g is
        // also a factor, so it is not fused with its difference to m.
#pragma omp simd
        for (Index i = 0; i < count; i++) {
            const float g = gradient[i] * scale;
            m[i] = multiply_add(g - m[i], 1 - beta1, m[i]);
            v[i] = multiply_add(v[i], beta2, g * g * (1 - beta2));
            p[i] = multiply_add(p[i], kept, -(first * m[i] / multiply_add(std::sqrt(v[i]), root, eps)));
        }
    }
};

inline float sum_of_squares(const float* x, Index count) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Index i = 0; i < count; i++) sum += x[i] * x[i];
    return sum;
}

}  // namespace
