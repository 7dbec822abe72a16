// Best continuations of the hypotheses of each sentence: the largest of H x V sums of a total and a log-probability.
// Three passes over each row of scores while it is in the cache: the maximum, the log of the sum of e^score, and the
// candidates above the worst one so far.
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
    const Index* forbidden;  // ids that are never selected
    Index forbidden_count, eos_id;
    const uint8_t* is_early;  // (N): whether `eos_id` is forbidden too
    float* values;  // (N, count), the largest first; -inf if there are fewer, NaN if a score is NaN
    Index *parents, *tokens;  // (N, count): hypothesis and token of each value

    // Computes the largest score and the log of the sum of e^(score - largest). A log-probability is a score minus
    // both. Subtracting them one after the other is most precise.
    static void measure(const float* row, Index V, float& maximum, float& log_sum) {
        Wide maxima = broadcast(-INFINITY);
        Index v = 0;
        for (; v + WIDE <= V; v += WIDE) maxima = read(row + v) > maxima ? read(row + v) : maxima;
        maximum = largest(maxima);
        for (Index rest = v; rest < V; rest++) maximum = row[rest] > maximum ? row[rest] : maximum;
        Wide sums = broadcast(0);
        for (v = 0; v + WIDE <= V; v += WIDE) sums += exp(read(row + v) - broadcast(maximum));
        float sum = reduce_add(sums);
        for (; v < V; v++) sum += expf(row[v] - maximum);
        log_sum = logf(sum);
    }

    bool is_allowed(Index n, Index v) const {
        for (Index i = 0; i < forbidden_count; i++)
            if (forbidden[i] == v) return false;
        return !(is_early[n] && v == eos_id);
    }

    void sentence(Index n) const {
        float* top_values = values + n * count;
        Index *parent = parents + n * count, *token = tokens + n * count;
        for (Index i = 0; i < count; i++) top_values[i] = -INFINITY, parent[i] = token[i] = 0;
        for (Index h = 0; h < H; h++) {
            const float* row = scores + (n * H + h) * stride;
            const float total = totals[n * H + h];
            float maximum, log_sum;
            measure(row, V, maximum, log_sum);
            if (log_sum != log_sum) {
                for (Index i = 0; i < count; i++) top_values[i] = NAN;
                return;
            }
            auto consider = [&](Index v) {
                const float value = ((row[v] - maximum) - log_sum) + total;
                if (!(value > top_values[count - 1]) || !is_allowed(n, v)) return;
                Index i = count - 1;  // after equal values, which were found earlier
                for (; i > 0 && value > top_values[i - 1]; i--)
                    top_values[i] = top_values[i - 1], parent[i] = parent[i - 1], token[i] = token[i - 1];
                top_values[i] = value, parent[i] = h, token[i] = v;
            };
            Index v = 0;
            for (; v + LANES <= V; v += LANES)
                if (any(((load(row + v) - maximum) - log_sum) + total > Floats{} + top_values[count - 1]))
                    for (Index lane = 0; lane < LANES; lane++) consider(v + lane);
            for (; v < V; v++) consider(v);
        }
    }
};

}  // namespace
