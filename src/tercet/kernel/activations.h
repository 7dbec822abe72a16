// What a feed-forward network bends its numbers by, eight at a time.
#pragma once
#include "vectors.h"

namespace {

enum Activation : Index { NONE, RELU, GELU, GELU_TANH, SILU, RELU_SQUARED };

inline Floats sigmoid(Floats x) {
    const Floats small = exp(x < 0 ? x : -x);  // e^-|x|
    return (x < 0 ? small : Floats{} + 1.0f) / (small + 1.0f);
}

// Abramowitz and Stegun (1964), 7.1.26: at most 1.5e-7 off.
inline Floats erf(Floats x) {
    const Floats size = x < 0 ? -x : x, t = 1.0f / (size * 0.3275911f + 1.0f);
    Floats p = Floats{} + 1.061405429f;
    for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = multiply_add(p, t, Floats{} + c);
    const Floats found = 1.0f - p * t * exp(-size * size);
    return x < 0 ? -found : found;
}

inline Floats activated(Floats x, Activation activation) {
    switch (activation) {
        case RELU: return x < 0 ? Floats{} : x;
        case GELU: return x * 0.5f * (erf(x * 0.70710678f) + 1.0f);
        case GELU_TANH: return x * sigmoid((x + x * x * x * 0.044715f) * 1.59576912f);
        case SILU: return x * sigmoid(x);
        case RELU_SQUARED: return x < 0 ? Floats{} : x * x;
        default: return x;
    }
}

inline void activate(float* row, Index count, Activation activation) {
    Index i = 0;
    for (; i + LANES <= count; i += LANES) *(Floats*)(row + i) = activated(load(row + i), activation);
    if (i == count) return;
    Floats rest = {};
    memcpy(&rest, row + i, (count - i) * sizeof(float));
    rest = activated(rest, activation);
    memcpy(row + i, &rest, (count - i) * sizeof(float));
}

}  // namespace
