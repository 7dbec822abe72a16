// The best continuations of each sentence's hypotheses: of H x V sums of a total and a log-probability the few largest,
// in two passes over the scores while they are in the cache: log of the sum of e^score, and who is above the worst so far.
#pragma once
#include <cmath>

#include "vectors.h"

namespace {

inline bool any(Ints mask) {
#ifdef __AVX__
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    return (mask[0] | mask[1] | mask[2] | mask[3] | mask[4] | mask[5] | mask[6] | mask[7]) != 0;
#endif
}

struct TopTokens {
    const float* scores;  // (N H, V), rows `stride` apart
    const float* totals;  // (N H)
    Index H, V, stride, count;
    const Index* never;  // ids that are not written
    Index nevers, end;
    const uint8_t* early;  // (N): whether `end` is not written either
    float* values;         // (N, count), the largest first; -inf where there are fewer, NaN where a score is none
    Index *parents, *tokens;

    // The largest score, and the log of the sum of e^(score - largest): taken away one after the other they lose least.
    static void measure(const float* row, Index V, float& top, float& log_sum) {
        Wide most = all(-INFINITY);
        Index v = 0;
        for (; v + WIDE <= V; v += WIDE) most = read(row + v) > most ? read(row + v) : most;
        top = largest(most);
        for (Index rest = v; rest < V; rest++) top = row[rest] > top ? row[rest] : top;
        Wide sums = all(0);
        for (v = 0; v + WIDE <= V; v += WIDE) sums += exp(read(row + v) - all(top));
        float sum = add_up(sums);
        for (; v < V; v++) sum += expf(row[v] - top);
        log_sum = logf(sum);
    }

    bool is_allowed(Index n, Index v) const {
        for (Index i = 0; i < nevers; i++)
            if (never[i] == v) return false;
        return !(early[n] && v == end);
    }

    void sentence(Index n) const {
        float* top_values = values + n * count;
        Index *parent = parents + n * count, *token = tokens + n * count;
        for (Index i = 0; i < count; i++) top_values[i] = -INFINITY, parent[i] = token[i] = 0;
        for (Index h = 0; h < H; h++) {
            const float* row = scores + (n * H + h) * stride;
            const float total = totals[n * H + h];
            float top, log_sum;
            measure(row, V, top, log_sum);
            if (log_sum != log_sum) {
                for (Index i = 0; i < count; i++) top_values[i] = NAN;
                return;
            }
            auto consider = [&](Index v) {
                const float value = ((row[v] - top) - log_sum) + total;
                if (!(value > top_values[count - 1]) || !is_allowed(n, v)) return;
                Index i = count - 1;  // behind its equals, which came before it
                for (; i > 0 && value > top_values[i - 1]; i--)
                    top_values[i] = top_values[i - 1], parent[i] = parent[i - 1], token[i] = token[i - 1];
                top_values[i] = value, parent[i] = h, token[i] = v;
            };
            Index v = 0;
            for (; v + LANES <= V; v += LANES)
                if (any(((load(row + v) - top) - log_sum) + total > Floats{} + top_values[count - 1]))
                    for (Index lane = 0; lane < LANES; lane++) consider(v + lane);
            for (; v < V; v++) consider(v);
        }
    }
};

}  // namespace
