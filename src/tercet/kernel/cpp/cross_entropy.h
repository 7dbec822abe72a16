// -ln p(target) for each row of scores. The gradient overwrites the scores. A row is read three times while it is in
// the cache. PyTorch makes about twelve passes over all rows.
//
//     z = cap tanh(score / cap), or the score itself without a cap
//     loss = (1 - e) (lse(z) - z[target]) + e (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - e) 1[target] - e / V
#pragma once
#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace {

template <typename T>
struct CrossEntropy {
    static constexpr Index IGNORE_INDEX = -100;  // PyTorch's `ignore_index`

    T* scores;  // (N, V), rows `stride` apart
    Index V, stride;
    const Index* targets;  // (N); a row with IGNORE_INDEX has the loss 0 and no gradient
    float smoothing, cap;  // 0: no cap
    bool needs_grad;  // whether to compute the gradient
    float *totals, *unsmoothed;  // (N): the loss with and without smoothing

    Wide load_scores(const T* data, Index count) const {
        const Wide z = apply_cap(read(data, count));
        return count < WIDE ? select(first_lanes(count), z, -INFINITY) : z;
    }
    float logit(T score) const { return apply_cap(broadcast(widen_one(score)))[0]; }

    Wide apply_cap(Wide score) const {
        if (cap == 0) return score;
        const Wide size = score < broadcast(0) ? -score : score, small = exp(size * (-2.0f / cap));
        const Wide bounded = (1.0f - small) / (1.0f + small) * cap;
        return score < broadcast(0) ? -bounded : bounded;
    }

    bool is_valid(Index n) const { return targets[n] == IGNORE_INDEX || (targets[n] >= 0 && targets[n] < V); }

    void row(Index n) const {
        T* row = scores + n * stride;
        totals[n] = unsmoothed[n] = 0.0f;
        if (targets[n] == IGNORE_INDEX) {
            if (needs_grad) std::fill(row, row + V, T(0));
            return;
        }
        Wide maxima = broadcast(-INFINITY);
        for (Index v = 0; v < V; v += WIDE) {
            const Wide z = load_scores(row + v, V - v);
            maxima = z > maxima ? z : maxima;
        }
        const float maximum = largest(maxima);
        Wide sums = broadcast(0), distances = broadcast(0);
        for (Index v = 0; v < V; v += WIDE) {
            const Wide z = load_scores(row + v, V - v) - maximum;
            sums += exp(z);
            if (smoothing != 0) distances += select(first_lanes(V - v), z, 0);
        }
        const float sum = reduce_add(sums), lse = logf(sum), target_score = logit(row[targets[n]]) - maximum;
        unsmoothed[n] = lse - target_score;
        totals[n] = smoothing != 0
                        ? (1 - smoothing) * unsmoothed[n] + smoothing * (lse - reduce_add(distances) / float(V))
                        : unsmoothed[n];
        if (!needs_grad) return;

        const float scale = 1.0f / sum, spread = smoothing / float(V);
        auto gradient = [&](Wide z) {
            const Wide grad_z = exp(z - maximum) * scale - spread;
            return cap != 0 ? grad_z * (1.0f - z * z * (1.0f / (cap * cap))) : grad_z;
        };
        const float target_logit = logit(row[targets[n]]);
        const float cap_derivative = cap != 0 ? 1.0f - target_logit * target_logit / (cap * cap) : 1.0f;
        const float at_target = gradient(broadcast(target_logit))[0] - (1.0f - smoothing) * cap_derivative;
        for (Index v = 0; v < V; v += WIDE) write(row + v, gradient(load_scores(row + v, V - v)), V - v);
        write(row + targets[n], broadcast(at_target), 1);
    }
};

}  // namespace
