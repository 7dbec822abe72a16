// Activations of the feed-forward network and their derivatives, for vectors of type Floats or Wide.
#pragma once
#include "vectors.h"

namespace {

enum Activation : Index { NONE, RELU, GELU, GELU_TANH, SILU, RELU_SQUARED };
#define ACTIVATION_NAMES "none relu gelu gelu_tanh silu relu_squared"  // in the same order; Python reads these names

template <typename V>
V sigmoid(V x) {
    const V small = exp(x < 0 ? x : -x);  // e^-|x|
    return (x < 0 ? small : V{} + 1.0f) / (small + 1.0f);
}

// Cumulative normal distribution at x, and its density times sqrt(2 pi). erf is approximated as in Abramowitz and
// Stegun (1964), 7.1.26, with an error of at most 1.5e-7.
template <typename V>
struct Normal {
    V below, density;

    explicit Normal(V x) : density(exp(x * x * -0.5f)) {
        const V t = 1.0f / ((x < 0 ? -x : x) * (0.3275911f * 0.70710678f) + 1.0f);
        V p = V{} + 1.061405429f;
        for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = multiply_add(p, t, V{} + c);
        const V tail = p * t * density * 0.5f;
        below = x < 0 ? tail : 1.0f - tail;
    }
};

template <typename V>
V apply_activation(V x, Activation activation) {
    switch (activation) {
        case RELU: return x < 0 ? V{} : x;
        case GELU: return x * Normal<V>(x).below;
        case GELU_TANH: return x * sigmoid((x + x * x * x * 0.044715f) * 1.59576912f);
        case SILU: return x * sigmoid(x);
        case RELU_SQUARED: return x < 0 ? V{} : x * x;
        default: return x;
    }
}

template <typename V>
V derivative(V x, Activation activation) {
    switch (activation) {
        case GELU: {
            const Normal<V> normal(x);
            return normal.below + x * normal.density * 0.39894228f;
        }
        case GELU_TANH: {
            const V gate = sigmoid((x + x * x * x * 0.044715f) * 1.59576912f);
            return gate + x * gate * (1.0f - gate) * ((x * x * (3 * 0.044715f) + 1.0f) * 1.59576912f);
        }
        case SILU: {
            const V gate = sigmoid(x);
            return gate + x * gate * (1.0f - gate);
        }
        case RELU: return x <= 0 ? V{} : V{} + 1.0f;
        case RELU_SQUARED: return x < 0 ? V{} : x + x;
        default: return V{} + 1.0f;
    }
}

inline void activate(float* row, Index count, Activation activation) {
    for (Index i = 0; i < count; i += LANES) write(apply_activation(read(row, i, count, 0), activation), row, i, count);
}

// y = apply_activation(x), for elements first to last - 1. If grad_output (the gradient of the activation's result) is
// not null, y receives the gradient of x instead.
template <Activation ACTIVATION, typename T>
void activate(const T* x, const T* grad_output, T* y, Index first, Index last) {
    Index i = first;
    for (; i + WIDE <= last; i += WIDE) {
        const Wide numbers = read(x + i);
        write(y + i, grad_output ? read(grad_output + i) * derivative(numbers, ACTIVATION)
                                 : apply_activation(numbers, ACTIVATION));
    }
    for (; i < last; i += LANES) {
        const Floats numbers = read(x, i, last, 0);
        write(grad_output ? read(grad_output, i, last, 0) * derivative(numbers, ACTIVATION)
                          : apply_activation(numbers, ACTIVATION),
              y, i, last);
    }
}

}  // namespace
