// softmax(q kT / sqrt(K) + bias) v for few queries, as in a decode step. Masked keys are not read, and no intermediate
// result is written to memory.
//
// q and y (M, H, K), k and v (sources, G, S, K): the last axis is contiguous, the others have strides, counted in
// elements. K is a multiple of 8. H is a multiple of G: consecutive query heads share keys.
#pragma once
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

struct KVTable {
    float *keys, *values;
    Index key_strides[3], value_strides[3];  // of sources, heads and columns
};

struct DecodeAttention {
    const float* q;
    float* y;
    Index M, H, G, K;
    Index rows;  // consecutive queries that share a source
    KVTable table;
    Index columns;  // columns of each source
    const uint8_t* mask;  // visible columns, or null
    Index mask_strides[2];  // of sources and queries
    const Index* last;  // last visible column of each query, or null
    const float* biases;  // (buckets, H), or null. Requires `last`
    const int32_t* buckets;  // bucket of each distance: a query's last column minus the column of a key

    void list_visible(Index m, std::vector<int32_t>& visible) const {
        visible.clear();
        const uint8_t* allowed = mask ? mask + m / rows * mask_strides[0] + m % rows * mask_strides[1] : nullptr;
        const Index end = last && last[m] + 1 < columns ? last[m] + 1 : columns;
        for (Index s = 0; s < end; s++)
            if (!allowed || allowed[s]) visible.push_back(int32_t(s));
    }

    // Attention of one query and head. `weights` must have space for one number per visible key, rounded up to LANES.
    void attend_head(Index m, Index h, const std::vector<int32_t>& visible, float* weights) const {
        const float* query = q + (m * H + h) * K;
        const Index source = m / rows, g = h / (H / G), n = Index(visible.size());
        const float* keys = table.keys + source * table.key_strides[0] + g * table.key_strides[1];
        const float* values = table.values + source * table.value_strides[0] + g * table.value_strides[1];
        float* out = y + (m * H + h) * K;
        float scale = 1.0f / std::sqrt(float(K));
        Index scored = 0;
        for (; scored + 4 <= n; scored += 4) score<4>(query, keys, visible.data() + scored, weights + scored);
        for (; scored < n; scored++) score<1>(query, keys, visible.data() + scored, weights + scored);
        if (biases) {
            for (Index i = 0; i < n; i++)
                weights[i] = multiply_add(weights[i], scale, biases[buckets[last[m] - visible[i]] * H + h]);
            scale = 1;
        }
        for (Index i = n; i % LANES; i++) weights[i] = -INFINITY;
        Floats maxima = Floats{} - INFINITY;
        for (Index i = 0; i < n; i += LANES) {
            const Floats score = load(weights + i) * scale;
            narrow(score, weights + i);
            maxima = score > maxima ? score : maxima;
        }
        const float maximum = largest(maxima);
        Floats total = {};
        for (Index i = 0; i < n; i += LANES) {
            Floats weight = exp(load(weights + i) - maximum);
            narrow(weight, weights + i);
            total += weight;
        }
        const float inverse_sum = n ? 1.0f / reduce_add(total) : 0.0f;  // a query without keys gives zeros
        Index j = 0;
        for (; j + 4 * LANES <= K; j += 4 * LANES) mean<4>(values + j, visible, weights, inverse_sum, out + j);
        for (; j < K; j += LANES) mean<1>(values + j, visible, weights, inverse_sum, out + j);
    }

    // Computes the products of a query with COUNT of its visible keys.
    template <int COUNT>
    void score(const float* query, const float* keys, const int32_t* visible, float* products) const {
        Floats sums[COUNT] = {};
        for (Index j = 0; j < K; j += LANES) {
            const Floats numbers = load(query + j);
            for (int i = 0; i < COUNT; i++)
                sums[i] = multiply_add(numbers, load(keys + visible[i] * table.key_strides[2] + j), sums[i]);
        }
        if constexpr (COUNT == 4)
            reduce_add(sums[0], sums[1], sums[2], sums[3], products);
        else
            for (int i = 0; i < COUNT; i++) products[i] = reduce_add(sums[i]);
    }

    // Computes PARTS vectors of the weighted mean of the values.
    template <int PARTS>
    void mean(const float* values, const std::vector<int32_t>& visible, const float* weights, float scale, float* out) const {
        Floats sums[PARTS] = {};
        for (size_t i = 0; i < visible.size(); i++) {
            const float* value = values + visible[i] * table.value_strides[2];
            for (int j = 0; j < PARTS; j++)
                sums[j] = multiply_add(Floats{} + weights[i], load(value + j * LANES), sums[j]);
        }
        for (int j = 0; j < PARTS; j++) narrow(sums[j] * scale, out + j * LANES);
    }

    // Computes the queries and heads of one thread.
    void run_range(ThreadRange range, std::vector<int32_t>& visible, std::vector<float>& weights) const {
        const auto [first, end] = range.split(M * H);
        weights.resize(columns + LANES);
        for (Index i = first; i < end; i++) {
            if (i == first || i % H == 0) list_visible(i / H, visible);
            attend_head(i / H, i % H, visible, weights.data());
        }
    }
};

}  // namespace
