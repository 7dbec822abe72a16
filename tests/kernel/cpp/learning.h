// Tests of trained kernels: linear layers and attention, forward and backward, in float32 or bfloat16.
#pragma once
#include "inputs.h"

namespace {

template <typename A>
constexpr double ROUNDING = A::STEP > 1 ? BFLOAT16 : 1e-5;

template <typename A>
void try_linear_learning(int threads) {
    using Number = typename A::Number;
    const Index N = one_in(20) ? between(1020, 1030) : between(1, 60), K = 16 * between(1, 4);
    const bool has_bias = one_in(2);
    const Index M = has_bias ? 16 * between(1, 5) : between(1, 80), padded = round_up(M, 16);
    Memory<Number> x(N * K), y(N * padded), dy(N * padded), dx(one_in(2) ? N * K : 0);
    Memory<float> w(M * K), bias(has_bias ? M : 0), dw(one_in(2) ? M * K : 0), db(has_bias ? M : 0);
    linear_forward<A>(x, w, bias, y, N, K, M, threads);
    linear_backward<A>(dy, x, w, dx, dw, db, N, K, M, threads);
    std::vector<double> sums(size_t(M * K), 0.0), totals(size_t(M), 0.0);
    for (Index n = 0; n < N; n++) {
        std::vector<double> back(size_t(K), 0.0), back_sizes(size_t(K), 0.0);
        for (Index m = 0; m < padded; m++) {
            double sum = m < M && bias ? bias[m] : 0, size = std::abs(sum);
            for (Index k = 0; k < K && m < M; k++) {
                const double weight = w[m * K + k], number = widen_one(x[n * K + k]), slope = widen_one(dy[n * padded + m]);
                sum += weight * number, back[size_t(k)] += slope * weight, sums[size_t(m * K + k)] += slope * number;
                size += std::abs(weight * number), back_sizes[size_t(k)] += std::abs(slope * weight);
            }
            if (m < M) totals[size_t(m)] += widen_one(dy[n * padded + m]);
            expect(widen_one(y[n * padded + m]), sum, m < M ? size : -1, ROUNDING<A>);
        }
        for (Index k = 0; k < K && dx; k++) expect(widen_one(dx[n * K + k]), back[size_t(k)], back_sizes[size_t(k)], ROUNDING<A>);
    }
    for (Index i = 0; i < dw.count; i++) expect(dw[i], sums[size_t(i)], double(N), 1e-5);
    for (Index m = 0; m < db.count; m++) expect(db[m], totals[size_t(m)], double(N), 1e-5);
}

// A tensor (B, H, T, K), ordered in memory by head or by token.
template <typename A>
struct Heads {
    Index strides[4];
    Memory<typename A::Number> numbers;

    Heads(Index B, Index H, Index T, Index K, bool by_tokens)
        : strides{H * T * K, by_tokens ? K : T * K, by_tokens ? H * K : K, 1}, numbers(B * H * T * K) {}
    double operator()(Index b, Index h, Index t, Index j) const {
        return widen_one(numbers[b * strides[0] + h * strides[1] + t * strides[2] + j]);
    }
};

template <typename A>
void try_flash_attention(int threads) {
    const Index B = between(1, 2), G = between(1, 2), H = G * between(1, 2), T = between(1, 60), K = 16 * between(1, 4);
    const bool causal = one_in(2), for_each = one_in(2), for_query = one_in(2);
    const Index S = causal ? T : between(1, 60);
    const Heads<A> q(B, H, T, K, one_in(2)), k(B, G, S, K, one_in(2)), v(B, G, S, K, one_in(2)), y(B, H, T, K, true);
    const Heads<A> dy(B, H, T, K, one_in(2)), dq(B, H, T, K, true), dk(B, G, S, K, true), dv(B, G, S, K, true);
    Memory<uint8_t> mask(causal || one_in(2) ? 0 : (for_each ? B : 1) * (for_query ? T : 1) * S);
    Memory<float> logsumexp(B * H * T);
    const Index mask_strides[] = {for_each ? (for_query ? T : 1) * S : 0, for_query ? S : 0};
    const Index sizes[] = {B, H, G, T, S, K, causal, mask_strides[0], mask_strides[1]};
    std::vector<Index> tensors;
    for (const Heads<A>* x : {&q, &k, &v, &y, &dy, &dq, &dk, &dv}) {
        tensors.push_back(x->numbers.address());
        tensors.insert(tensors.end(), x->strides, x->strides + 4);
    }
    attend<A>(tensors.data(), mask, logsumexp, sizes, threads);
    attend_backward<A>(tensors.data(), mask, logsumexp, sizes, threads);
    const double scale = 1 / std::sqrt(double(K));
    std::vector<double> grad_keys(size_t(B * G * S * K), 0.0), grad_values(grad_keys.size());
    for (Index i = 0; i < B * H * T; i++) {
        const Index b = i / (H * T), h = i / T % H, t = i % T, g = h / (H / G);
        const auto sees = [&](Index s) { return causal ? s <= t : !mask || mask[b * mask_strides[0] + t * mask_strides[1] + s]; };
        std::vector<double> weights(size_t(S), 0.0), slopes(size_t(S), 0.0);
        double sum = 0, mean = 0;
        for (Index s = 0; s < S; s++) {
            for (Index j = 0; j < K; j++) {
                weights[size_t(s)] += scale * q(b, h, t, j) * k(b, g, s, j);
                slopes[size_t(s)] += dy(b, h, t, j) * v(b, g, s, j);
            }
            sum += weights[size_t(s)] = sees(s) ? std::exp(weights[size_t(s)]) : 0;
        }
        for (Index s = 0; s < S; s++) {
            weights[size_t(s)] /= sum > 0 ? sum : 1;
            mean += weights[size_t(s)] * slopes[size_t(s)];
        }
        for (Index j = 0; j < K; j++) {
            double out = 0, grad_query = 0;
            for (Index s = 0; s < S; s++) {
                const double weight = weights[size_t(s)], grad_score = weight * (slopes[size_t(s)] - mean) * scale;
                out += weight * v(b, g, s, j), grad_query += grad_score * k(b, g, s, j);
                grad_keys[size_t(((b * G + g) * S + s) * K + j)] += grad_score * q(b, h, t, j);
                grad_values[size_t(((b * G + g) * S + s) * K + j)] += weight * dy(b, h, t, j);
            }
            expect(y(b, h, t, j), out, 2, ROUNDING<A>);
            expect(dq(b, h, t, j), grad_query, double(K), ROUNDING<A>);
        }
    }
    for (Index i = 0; i < B * G * S * K; i++) {
        const Index b = i / (G * S * K), g = i / (S * K) % G, s = i / K % S, j = i % K;
        expect(dk(b, g, s, j), grad_keys[size_t(i)], double(T + K), ROUNDING<A>);
        expect(dv(b, g, s, j), grad_values[size_t(i)], double(T), ROUNDING<A>);
    }
}

}  // namespace
