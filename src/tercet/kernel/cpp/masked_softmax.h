// The softmax of a query's scores over the keys that it may see, forward and backward: each row is read once, and what a
// query may not see is zero, not next to it.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// Which keys a query sees: those up to its own place, or those that a mask shows.
struct KeyMask {
    Index H, T, S;
    bool causal;
    const uint8_t* mask;  // null: all
    Index strides[2];     // of the mask from row to row and from query to query

    const uint8_t* shown(Index row) const {
        return mask ? mask + row / (H * T) * strides[0] + row % T * strides[1] : nullptr;
    }
    Index keys(Index row) const { return causal ? row % T + 1 : S; }
};

// `other` where the mask shows nothing.
inline Floats hidden(Floats scores, const uint8_t* shown, Index s, Index count, float other) {
    if (!shown) return scores;
    Bytes lanes = {};
    memcpy(&lanes, shown + s, s + LANES <= count ? LANES : count - s);
    return __builtin_convertvector(lanes, Ints) != 0 ? scores : Floats{} + other;
}

template <typename T>
void softmax_row(const T* scores, T* weights, const KeyMask& key_mask, Index row, std::vector<float>& buffer) {
    const Index keys = key_mask.keys(row);
    const uint8_t* shown = key_mask.shown(row);
    scores += row * key_mask.S, weights += row * key_mask.S;
    Floats most = Floats{} - INFINITY;
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = hidden(read(scores, s, keys, -INFINITY), shown, s, keys, -INFINITY);
        narrow(score, &buffer[s]);
        most = score > most ? score : most;
    }
    const float top = largest(most);
    Floats sums = {};
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = load(&buffer[s]), weight = score == -INFINITY ? Floats{} : exp(score - top);
        narrow(weight, &buffer[s]);
        sums += weight;
    }
    const float sum = add_up(sums), scale = sum == 0 ? 0.0f : 1.0f / sum;
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
    const float sum = add_up(sums);
    for (Index s = 0; s < keys; s += LANES) {
        const Floats weight = read(weights, s, keys, 0), grad_weight = read(grad_weights, s, keys, 0);
        write(weight * (grad_weight - sum), grad_scores, s, keys);
    }
    std::fill(grad_scores + keys, grad_scores + key_mask.S, T(0));
}

}  // namespace
