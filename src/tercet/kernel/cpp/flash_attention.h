// softmax(q kT / sqrt(K)) v over whole sequences, forward and backward. Only the scores of a few queries (forward) or
// keys (backward) are in memory at a time. In causal attention, the scores of later keys are not computed.
//
// q (B, H, T, K), k and v (B, G, S, K), with strides and a contiguous last axis. K is a multiple of 16. H is a multiple
// of G: consecutive query heads share keys. Results are stored as (B, T, H, K), the layout of the surrounding layers.
#pragma once
#include <cmath>

#include "masked_softmax.h"
#include "products.h"

namespace {

template <typename A>
struct Rows {
    using Number = typename A::Number;

    Number* data;
    Index strides[3];  // of sequences, heads and tokens

    Number* row(Index b, Index h, Index t = 0) const { return data + b * strides[0] + h * strides[1] + t * strides[2]; }
    Left<A> left(Index b, Index h, Index t) const { return {row(b, h, t), strides[2], A::STEP}; }
};

template <typename A>
struct FlashAttention {
    using Number = typename A::Number;
    using Packed = typename A::Packed;
    using Rows = ::Rows<A>;
    static constexpr Index STEP = A::STEP;

    Index B, H, G, T, S, K;
    KeyMask key_mask;
    Rows q, k, v, y;
    float* logsumexp;  // (B, H, T)

    static constexpr Index BLOCK = std::min<Index>(A::ROWS, 64);  // queries (forward) or keys (backward) per block
    float scale() const { return 1.0f / std::sqrt(float(K)); }
    Index keys() const { return round_up(S, WIDE); }
    Index queries() const { return round_up(T, WIDE); }

    struct Scratch {
        AlignedBuffer<float> numbers[6];
        AlignedBuffer<Packed> packs[6];
        AlignedBuffer<Number> rounds[2];
        float* number(int i, Index count) { return numbers[i].reserve(count); }
        Packed* packed(int i, Index count) { return packs[i].reserve(count); }
        Number* rounded(int i, Index count) { return rounds[i].reserve(count); }
    };

    void forward(Index b, Index h, Scratch& scratch) const {
        const Index g = h / (H / G);
        const auto kt = pack_column_panels<A>(k.row(b, g), k.strides[2], S, keys(), K, scratch.packed(0, K / STEP * keys()));
        const auto vs = pack_row_panels<A>(v.row(b, g), v.strides[2], S, keys(), K, scratch.packed(1, keys() / STEP * K));
        float* scores = scratch.number(0, BLOCK * keys());
        float* block = scratch.number(1, BLOCK * K);
        Number* weights = scratch.rounded(0, BLOCK * keys());
        for (Index t = 0; t < T; t += BLOCK) {
            const Index rows = T - t < BLOCK ? T - t : BLOCK;
            const Index width = key_mask.causal ? round_up(t + rows, WIDE) : keys();
            multiply<A>(q.left(b, h, t), kt, K / STEP, rows, width, scores, keys());
            float inverse_sums[BLOCK];
            for (Index r = 0; r < rows; r++)
                inverse_sums[r] = weigh(scores + r * keys(), weights + r * keys(), width, (b * H + h) * T + t + r);
            multiply<A>({weights, keys(), STEP}, vs, width / STEP, rows, K, block, K);
            for (Index r = 0; r < rows; r++)
                store(block + r * K, inverse_sums[r], y.row(b, h, t + r));
        }
    }

    // Computes the weights of a query, e^(score - maximum), and returns the factor that normalizes their sum.
    float weigh(float* scores, Number* weights, Index width, Index row) const {
        const Index visible_keys = key_mask.keys(row);
        const uint8_t* shown = key_mask.shown(row);
        const Wide factor = broadcast(scale());
        Wide maxima = broadcast(-INFINITY);
        for (Index s = 0; s < width; s += WIDE) {
            const Lanes visible = shown ? nonzero_lanes(shown + s, visible_keys - s) : first_lanes(visible_keys - s);
            const Wide score = select(visible, read(scores + s) * factor, -INFINITY);
            write(scores + s, score);
            maxima = larger(score, maxima);
        }
        const float maximum = largest(maxima);
        Wide sums = broadcast(0.0f);
        for (Index s = 0; s < width; s += WIDE) {
            const Wide score = read(scores + s);
            const Wide weight = select(lanes_above(score, -INFINITY), exp(score - broadcast(maximum)), 0.0f);
            sums += weight;
            write(weights + s, weight);
        }
        const float sum = reduce_add(sums);
        logsumexp[row] = sum == 0 ? INFINITY : maximum + std::log(sum);  // a query without keys gives zeros
        return sum == 0 ? 0.0f : 1.0f / sum;
    }

    void store(const float* sums, float scale, Number* place) const {
        for (Index j = 0; j < K; j += WIDE) write(place + j, read(sums + j) * broadcast(scale));
    }

    // Gradients of all query heads that share a key head. With P the weights and dy the gradient of y:
    //     dv = PT dy,   dS = P (dy vT - the row's sum of y dy),   dq = dS k / sqrt(K),   dk = dST q / sqrt(K)
    // Scores are transposed here: there is one row per key.
    void backward(Index b, Index g, const Rows& dy, const Rows& dq, const Rows& dk, const Rows& dv, Scratch& scratch) const {
        const auto ks = pack_row_panels<A>(k.row(b, g), k.strides[2], S, keys(), K, scratch.packed(5, keys() / STEP * K));
        float* grad_keys = scratch.number(0, S * K);
        float* grad_values = scratch.number(1, S * K);
        for (Index h = g * (H / G); h < (g + 1) * (H / G); h++)
            backward_head(b, g, h, dy, dq, ks, grad_keys, grad_values, h != g * (H / G), scratch);
        for (Index s = 0; s < S; s++) {
            store(grad_keys + s * K, scale(), dk.row(b, g, s));
            store(grad_values + s * K, 1.0f, dv.row(b, g, s));
        }
    }

    void backward_head(Index b, Index g, Index h, const Rows& dy, const Rows& dq, Right<A> ks, float* grad_keys,
                       float* grad_values, bool add, Scratch& scratch) const {
        const Index N = queries();
        const Number *query = q.row(b, h), *grad_y = dy.row(b, h);
        const Index count = K / STEP * N;
        const auto qt = pack_column_panels<A>(query, q.strides[2], T, N, K, scratch.packed(0, count));
        const auto st = pack_column_panels<A>(grad_y, dy.strides[2], T, N, K, scratch.packed(1, count));
        const auto qs = pack_row_panels<A>(query, q.strides[2], T, N, K, scratch.packed(2, count));
        const auto ss = pack_row_panels<A>(grad_y, dy.strides[2], T, N, K, scratch.packed(3, count));
        float* log = scratch.number(2, 2 * N);
        float* mean = log + N;
        for (Index t = 0; t < N; t++) {
            mean[t] = t < T ? product_of(y.row(b, h, t), dy.row(b, h, t)) : 0;
            log[t] = t < T ? logsumexp[(b * H + h) * T + t] : INFINITY;
        }
        float* scores = scratch.number(3, BLOCK * N);
        float* grad_weights = scratch.number(4, BLOCK * N);
        float* grad_queries = scratch.number(5, N * K);
        Number* weights = scratch.rounded(0, BLOCK * N);
        Number* grad_scores = scratch.rounded(1, BLOCK * N);
        std::fill(grad_queries, grad_queries + N * K, 0.0f);
        for (Index s = 0; s < S; s += BLOCK) {
            const Index rows = S - s < BLOCK ? S - s : BLOCK, steps = round_up(rows, STEP) / STEP;
            const Index from = key_mask.causal ? s / WIDE * WIDE : 0, width = N - from;
            multiply<A>(k.left(b, g, s), qt.from(0, from), K / STEP, rows, width, scores, width);
            multiply<A>(v.left(b, g, s), st.from(0, from), K / STEP, rows, width, grad_weights, width);
            for (Index r = 0; r < rows; r++)
                for (Index t = 0; t < width; t += WIDE) {
                    const Index place = r * width + t;
                    const Lanes visible = lanes_of((b * H + h) * T, from + t, s + r);
                    const Wide x = multiply_add(read(scores + place), broadcast(scale()), -read(log + from + t));
                    const Wide weight = select(visible, exp(x), 0.0f);
                    write(weights + place, weight);
                    write(grad_scores + place, weight * (read(grad_weights + place) - read(mean + from + t)));
                }
            const auto sums = [&](const float* accumulated) {
                return add ? InitialSums{accumulated + s * K, K} : InitialSums{};
            };
            const Packed* grad_columns = (const Packed*)grad_scores;  // float32 needs no packing
            if constexpr (STEP > 1) {
                Packed* packed = scratch.packed(4, BLOCK / STEP * N);
                A::pack_left(grad_scores, width, rows, 0, STEP * steps, STEP * steps, width, packed);
                grad_columns = packed;
            }
            multiply<A>({weights, width, STEP}, ss.from(from / STEP, 0), width / STEP, rows, K, grad_values + s * K, K,
                     sums(grad_values));
            multiply<A>({grad_scores, width, STEP}, qs.from(from / STEP, 0), width / STEP, rows, K, grad_keys + s * K, K,
                     sums(grad_keys));
            multiply<A>(A::packed_left(grad_columns, STEP * steps, width), ks.from(s / STEP, 0), steps, width, K,
                     grad_queries + from * K, K, {grad_queries + from * K, K});
        }
        for (Index t = 0; t < T; t++) store(grad_queries + t * K, scale(), dq.row(b, h, t));
    }

    // Mask of the WIDE queries from t on that attend to key s. `first` is the row of query 0.
    Lanes lanes_of(Index first, Index t, Index s) const {
        Lanes visible = first_lanes(T - t);
        if (key_mask.causal) visible = Lanes(visible & ~first_lanes(s - t));
        if (key_mask.mask)
            for (Index lane = 0; lane < WIDE && t + lane < T; lane++)
                if (!key_mask.shown(first + t + lane)[s]) set(visible, lane, false);
        return visible;
    }

    float product_of(const Number* a, const Number* b) const {
        Wide sums = broadcast(0.0f);
        for (Index j = 0; j < K; j += WIDE) sums = multiply_add(read(a + j), read(b + j), sums);
        return reduce_add(sums);
    }
};

}  // namespace
