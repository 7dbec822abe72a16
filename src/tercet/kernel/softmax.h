// The softmax of a query's scores over the keys that it may see, and back: each row is read once, and what a query may not
// see is zero, not next to it.
#pragma once
#include <cmath>
#include <vector>

#include "vectors.h"

namespace {

// Which keys a query sees: those up to its own place, or those that a mask shows.
struct Seen {
    Index H, T, S;
    bool causal;
    const uint8_t* mask;  // null: all
    Index over[2];        // strides of the mask from row to row and from query to query

    const uint8_t* shown(Index row) const {
        return mask ? mask + row / (H * T) * over[0] + row % T * over[1] : nullptr;
    }
    Index keys(Index row) const { return causal ? row % T + 1 : S; }
};

// `other` where the mask shows nothing.
inline Floats hidden(Floats found, const uint8_t* shown, Index s, Index count, float other) {
    if (!shown) return found;
    Bytes seen = {};
    memcpy(&seen, shown + s, s + LANES <= count ? LANES : count - s);
    return __builtin_convertvector(seen, Ints) != 0 ? found : Floats{} + other;
}

template <typename T>
void softmax_row(const T* scores, T* weights, const Seen& seen, Index row, std::vector<float>& kept) {
    const Index keys = seen.keys(row);
    const uint8_t* shown = seen.shown(row);
    scores += row * seen.S, weights += row * seen.S;
    Floats most = Floats{} - INFINITY;
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = hidden(read(scores, s, keys, -INFINITY), shown, s, keys, -INFINITY);
        *(Floats*)&kept[s] = score;
        most = score > most ? score : most;
    }
    const float top = largest(most);
    Floats sums = {};
    for (Index s = 0; s < keys; s += LANES) {
        const Floats score = load(&kept[s]), grown = score == -INFINITY ? Floats{} : exp(score - top);
        *(Floats*)&kept[s] = grown;
        sums += grown;
    }
    const float sum = add_up(sums), scale = sum == 0 ? 0.0f : 1.0f / sum;
    for (Index s = 0; s < keys; s += LANES) write(load(&kept[s]) * scale, weights, s, keys);
    memset((void*)(weights + keys), 0, (seen.S - keys) * sizeof(T));
}

// dscores = weights (dweights - sum of weights dweights)
template <typename T>
void softmax_back_row(const T* weights, const T* slopes, T* found, const Seen& seen, Index row) {
    const Index keys = seen.keys(row);
    weights += row * seen.S, slopes += row * seen.S, found += row * seen.S;
    Floats sums = {};
    for (Index s = 0; s < keys; s += LANES)
        sums = multiply_add(read(weights, s, keys, 0), read(slopes, s, keys, 0), sums);
    const float sum = add_up(sums);
    for (Index s = 0; s < keys; s += LANES) {
        const Floats weight = read(weights, s, keys, 0), slope = read(slopes, s, keys, 0);
        write(weight * (slope - sum), found, s, keys);
    }
    memset((void*)(found + keys), 0, (seen.S - keys) * sizeof(T));
}

}  // namespace
