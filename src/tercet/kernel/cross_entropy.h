// -ln p(target) of rows of scores, and how it moves with each score, written over them: three passes over a row while it is
// in the cache, where PyTorch needs a dozen over all of them.
//
//     z = cap tanh(score / cap), or the score itself
//     loss = (1 - e) (lse(z) - z[target]) + e (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - e) 1[target] - e / V
#pragma once
#include <cmath>

#include "vectors.h"

namespace {

template <typename T>
struct CrossEntropy {
    T* scores;  // (N, V), rows `stride` apart
    Index V, stride;
    const Index* targets;  // (N); below zero: costs nothing
    float smoothing, cap;  // no cap where it is 0
    bool learns;           // whether the gradient is wanted
    float *totals, *plains;  // (N): the loss, and what it is without smoothing

    Floats eight(const T* row, Index v) const {
        Floats z = capped(read(row, v, V, 0));
        if (v + LANES > V)
            for (Index lane = V - v; lane < LANES; lane++) z[lane] = -INFINITY;
        return z;
    }
    float one(const T* row, Index v) const { return capped(Floats{} + widen_one(row[v]))[0]; }

    Floats capped(Floats score) const {
        if (!cap) return score;
        const Floats size = score < 0 ? -score : score, small = exp(size * (-2.0f / cap));
        const Floats bent = (1.0f - small) / (1.0f + small) * cap;
        return score < 0 ? -bent : bent;
    }

    void row(Index n) const {
        T* row = scores + n * stride;
        totals[n] = plains[n] = 0.0f;
        if (targets[n] < 0) {
            if (learns) memset((void*)row, 0, V * sizeof(T));
            return;
        }
        Floats most = Floats{} - INFINITY;
        for (Index v = 0; v < V; v += LANES) {
            const Floats z = eight(row, v);
            most = z > most ? z : most;
        }
        const float top = largest(most);
        Floats sums = {}, distances = {};
        for (Index v = 0; v < V; v += LANES) {
            const Floats z = eight(row, v) - top;
            sums += exp(z);
            if (smoothing && v + LANES <= V) distances += z;
            if (smoothing && v + LANES > V)
                for (Index lane = 0; v + lane < V; lane++) distances[lane] += z[lane];
        }
        const float sum = add_up(sums), lse = logf(sum), likely = one(row, targets[n]) - top;
        plains[n] = lse - likely;
        totals[n] = smoothing ? (1 - smoothing) * plains[n] + smoothing * (lse - add_up(distances) / V) : plains[n];
        if (!learns) return;

        const float scale = 1.0f / sum, spread = smoothing / V;
        auto gradient = [&](Floats z) {
            const Floats slope = exp(z - top) * scale - spread;
            return cap ? slope * (1.0f - z * z * (1.0f / (cap * cap))) : slope;
        };
        const float aim = one(row, targets[n]);
        const float bend = cap ? 1.0f - aim * aim / (cap * cap) : 1.0f;
        const float at_target = gradient(Floats{} + aim)[0] - (1.0f - smoothing) * bend;
        for (Index v = 0; v < V; v += LANES) write(gradient(eight(row, v)), row, v, V);
        write(Floats{} + at_target, row, targets[n], targets[n] + 1);
    }
};

}  // namespace
