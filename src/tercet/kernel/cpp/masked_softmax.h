// Softmax of each query's scores over its visible keys, forward and backward. Each row is read once, and the weights of
// masked keys are exactly zero.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// Visible keys of a query: those up to its own position, or those in a mask.
struct KeyMask {
    Index H, T, S;
    bool causal;
    const uint8_t* mask;  // null: all keys
    Index strides[2];  // of the mask's rows and queries

    const uint8_t* shown(Index row) const {
        return mask ? mask + row / (H * T) * strides[0] + row % T * strides[1] : nullptr;
    }
    Index keys(Index row) const { return causal ? row % T + 1 : S; }
};

// Replaces masked scores by `fill`.
inline Floats apply_mask(Floats scores, const uint8_t* shown, Index s, Index count, float fill) {
    if (!shown) return scores;
    Bytes lanes = {};
    memcpy(&lanes, shown + s, s + LANES <= count ? LANES : count - s);
    return __builtin_convertvector(lanes, Ints) != 0 ? scores : Floats{} + fill;
}

template <typename T>
void softmax_row(const T* scores, T* weights, const KeyMask& key_mask, Index row, std::vector<float>& buffer) {
    const Index keys = key_mask.keys(row);
    const uint8_t* shown = key_mask.shown(row);
    scores += row * key_mask.S, weights += row * key_mask.S;
    Floats maxima = Floats{} - INFINITY;
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = apply_mask(read(scores, s, keys, -INFINITY), shown, s, keys, -INFINITY);
        narrow(score, &buffer[s]);
        maxima = score > maxima ? score : maxima;
    }
    const float maximum = largest(maxima);
    Floats sums = {};
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = load(&buffer[s]), weight = score == -INFINITY ? Floats{} : exp(score - maximum);
        narrow(weight, &buffer[s]);
        sums += weight;
    }
    const float sum = reduce_add(sums), scale = sum == 0 ? 0.0f : 1.0f / sum;
    for (Index s = 0; s < keys; s += LANES) write(load(&buffer[s]) * scale, weights, s, keys);
    std::fill(weights + keys, weights + key_mask.S, T(0));
}

// dscores = weights (dweights - sum of weights dweights)
template <typename T>
void softmax_backward_row(const T* weights, const T* grad_weights, T* grad_scores, const KeyMask& key_mask, Index row) {
    const Index keys = key_mask.keys(row);
    weights += row * key_mask.S, grad_weights += row * key_mask.S, grad_scores += row * key_mask.S;
    Floats sums = {};
    for (Index s = 0; s < keys; s += LANES)
        sums = multiply_add(read(weights, s, keys, 0), read(grad_weights, s, keys, 0), sums);
    const float sum = reduce_add(sums);
    for (Index s = 0; s < keys; s += LANES) {
        const Floats weight = read(weights, s, keys, 0), grad_weight = read(grad_weights, s, keys, 0);
        write(weight * (grad_weight - sum), grad_scores, s, keys);
    }
    std::fill(grad_scores + keys, grad_scores + key_mask.S, T(0));
}

}  // namespace
