// -ln p(target) of rows of scores, and how it moves with each score, written over them: three passes over a row while it is
// in the cache, where PyTorch needs a dozen over all of them.
//
//     z = cap tanh(score / cap), or the score itself
//     loss = (1 - e) (lse(z) - z[target]) + e (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - e) 1[target] - e / V
#pragma once
#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace {

template <typename T>
struct CrossEntropy {
    static constexpr Index IGNORED = -100;  // PyTorch's `ignore_index`

    T* scores;  // (N, V), rows `stride` apart
    Index V, stride;
    const Index* targets;  // (N); IGNORED: costs nothing
    float smoothing, cap;  // no cap where it is 0
    bool learns;           // whether the gradient is wanted
    float *totals, *plains;  // (N): the loss, and what it is without smoothing

    Wide scores_from(const T* at, Index count) const {
        const Wide z = capped(read(at, count));
        return count < WIDE ? where(first_lanes(count), z, -INFINITY) : z;
    }
    float logit(T score) const { return capped(all(widen_one(score)))[0]; }

    Wide capped(Wide score) const {
        if (cap == 0) return score;
        const Wide size = score < all(0) ? -score : score, small = exp(size * (-2.0f / cap));
        const Wide bounded = (1.0f - small) / (1.0f + small) * cap;
        return score < all(0) ? -bounded : bounded;
    }

    bool is_possible(Index n) const { return targets[n] == IGNORED || (targets[n] >= 0 && targets[n] < V); }

    void row(Index n) const {
        T* row = scores + n * stride;
        totals[n] = plains[n] = 0.0f;
        if (targets[n] == IGNORED) {
            if (learns) std::fill(row, row + V, T(0));
            return;
        }
        Wide most = all(-INFINITY);
        for (Index v = 0; v < V; v += WIDE) {
            const Wide z = scores_from(row + v, V - v);
            most = z > most ? z : most;
        }
        const float top = largest(most);
        Wide sums = all(0), distances = all(0);
        for (Index v = 0; v < V; v += WIDE) {
            const Wide z = scores_from(row + v, V - v) - top;
            sums += exp(z);
            if (smoothing != 0) distances += where(first_lanes(V - v), z, 0);
        }
        const float sum = add_up(sums), lse = logf(sum), likely = logit(row[targets[n]]) - top;
        plains[n] = lse - likely;
        totals[n] = smoothing != 0 ? (1 - smoothing) * plains[n] + smoothing * (lse - add_up(distances) / float(V)) : plains[n];
        if (!learns) return;

        const float scale = 1.0f / sum, spread = smoothing / float(V);
        auto gradient = [&](Wide z) {
            const Wide grad_z = exp(z - top) * scale - spread;
            return cap != 0 ? grad_z * (1.0f - z * z * (1.0f / (cap * cap))) : grad_z;
        };
        const float aim = logit(row[targets[n]]);
        const float cap_derivative = cap != 0 ? 1.0f - aim * aim / (cap * cap) : 1.0f;
        const float at_target = gradient(all(aim))[0] - (1.0f - smoothing) * cap_derivative;
        for (Index v = 0; v < V; v += WIDE) write(row + v, gradient(scores_from(row + v, V - v)), V - v);
        write(row + targets[n], all(at_target), 1);
    }
};

}  // namespace
