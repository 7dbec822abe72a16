// softmax(q kT / sqrt(K)) v over whole sequences, forward and backward: a few queries' scores, later a few keys', are all
// that is ever written of the (T, S) scores, and what causality hides is not worked out.
//
// q (B, H, T, K), k and v (B, G, S, K), by strides, the last axis without gaps; K is a multiple of 16. H is a multiple of G:
// heads next to each other share keys. Results lie as (B, T, H, K), as the layers around want them.
#pragma once
#include <cmath>

#include "masked_softmax.h"
#include "products.h"

namespace {

template <typename A>
struct Rows {
    using Number = typename A::Number;

    Number* at;
    Index strides[3];  // from sequence to sequence, head to head, token to token

    Number* of(Index b, Index h, Index t = 0) const { return at + b * strides[0] + h * strides[1] + t * strides[2]; }
    Left<A> left(Index b, Index h, Index t) const { return {of(b, h, t), strides[2], A::STEP}; }
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
    float* logsumexp;  // (B, H, T) logarithms of the softmax's sums

    static constexpr Index BLOCK = std::min<Index>(A::ROWS, 64);  // queries, then keys, whose scores are there at a time
    float scale() const { return 1.0f / std::sqrt(float(K)); }
    Index keys() const { return up_to(S, WIDE); }
    Index queries() const { return up_to(T, WIDE); }

    struct Scratch {
        AlignedBuffer<float> numbers[6];
        AlignedBuffer<Packed> packs[6];
        AlignedBuffer<Number> rounds[2];
        float* number(int i, Index count) { return numbers[i].of(count); }
        Packed* packed(int i, Index count) { return packs[i].of(count); }
        Number* rounded(int i, Index count) { return rounds[i].of(count); }
    };

    void forward(Index b, Index h, Scratch& scratch) const {
        const Index g = h / (H / G);
        const auto kt = pack_column_panels<A>(k.of(b, g), k.strides[2], S, keys(), K, scratch.packed(0, K / STEP * keys()));
        const auto vs = pack_row_panels<A>(v.of(b, g), v.strides[2], S, keys(), K, scratch.packed(1, keys() / STEP * K));
        float* scores = scratch.number(0, BLOCK * keys());
        float* block = scratch.number(1, BLOCK * K);
        Number* weights = scratch.rounded(0, BLOCK * keys());
        for (Index t = 0; t < T; t += BLOCK) {
            const Index rows = T - t < BLOCK ? T - t : BLOCK;
            const Index width = key_mask.causal ? up_to(t + rows, WIDE) : keys();
            multiply<A>(q.left(b, h, t), kt, K / STEP, rows, width, scores, keys());
            float shares[BLOCK];
            for (Index r = 0; r < rows; r++)
                shares[r] = weigh(scores + r * keys(), weights + r * keys(), width, (b * H + h) * T + t + r);
            multiply<A>({weights, keys(), STEP}, vs, width / STEP, rows, K, block, K);
            for (Index r = 0; r < rows; r++)
                put(block + r * K, shares[r], y.of(b, h, t + r));
        }
    }

    // A query's weights, e^(score - the largest one), and what their mean is to be multiplied by.
    float weigh(float* scores, Number* weights, Index width, Index row) const {
        const Index visible_keys = key_mask.keys(row);
        const uint8_t* shown = key_mask.shown(row);
        const Wide times = all(scale());
        Wide most = all(-INFINITY);
        for (Index s = 0; s < width; s += WIDE) {
            const Lanes may = shown ? nonzero_lanes(shown + s, visible_keys - s) : first_lanes(visible_keys - s);
            const Wide score = where(may, read(scores + s) * times, -INFINITY);
            write(scores + s, score);
            most = larger(score, most);
        }
        const float top = largest(most);
        Wide sums = all(0.0f);
        for (Index s = 0; s < width; s += WIDE) {
            const Wide score = read(scores + s);
            const Wide weight = where(lanes_above(score, -INFINITY), exp(score - all(top)), 0.0f);
            sums += weight;
            write(weights + s, weight);
        }
        const float sum = add_up(sums);
        logsumexp[row] = sum == 0 ? INFINITY : top + std::log(sum);  // who sees nothing takes zeros
        return sum == 0 ? 0.0f : 1.0f / sum;
    }

    void put(const float* sums, float scale, Number* place) const {
        for (Index j = 0; j < K; j += WIDE) write(place + j, read(sums + j) * all(scale));
    }

    // The gradients of all that share a head of keys: with P the weights and dy the gradient of y,
    //     dv = PT dy,   dS = P (dy vT - the row's sum of y dy),   dq = dS k / sqrt(K),   dk = dST q / sqrt(K)
    // Scores lie the other way around here, a row for each key.
    void backward(Index b, Index g, const Rows& dy, const Rows& dq, const Rows& dk, const Rows& dv, Scratch& scratch) const {
        const auto ks = pack_row_panels<A>(k.of(b, g), k.strides[2], S, keys(), K, scratch.packed(5, keys() / STEP * K));
        float* grad_keys = scratch.number(0, S * K);
        float* grad_values = scratch.number(1, S * K);
        for (Index h = g * (H / G); h < (g + 1) * (H / G); h++)
            backward_head(b, g, h, dy, dq, ks, grad_keys, grad_values, h != g * (H / G), scratch);
        for (Index s = 0; s < S; s++) {
            put(grad_keys + s * K, scale(), dk.of(b, g, s));
            put(grad_values + s * K, 1.0f, dv.of(b, g, s));
        }
    }

    void backward_head(Index b, Index g, Index h, const Rows& dy, const Rows& dq, Right<A> ks, float* grad_keys,
                       float* grad_values, bool add, Scratch& scratch) const {
        const Index N = queries();
        const Number *query = q.of(b, h), *grad_y = dy.of(b, h);
        const Index count = K / STEP * N;
        const auto qt = pack_column_panels<A>(query, q.strides[2], T, N, K, scratch.packed(0, count));
        const auto st = pack_column_panels<A>(grad_y, dy.strides[2], T, N, K, scratch.packed(1, count));
        const auto qs = pack_row_panels<A>(query, q.strides[2], T, N, K, scratch.packed(2, count));
        const auto ss = pack_row_panels<A>(grad_y, dy.strides[2], T, N, K, scratch.packed(3, count));
        float* log = scratch.number(2, 2 * N);
        float* mean = log + N;
        for (Index t = 0; t < N; t++) {
            mean[t] = t < T ? product_of(y.of(b, h, t), dy.of(b, h, t)) : 0;
            log[t] = t < T ? logsumexp[(b * H + h) * T + t] : INFINITY;
        }
        float* scores = scratch.number(3, BLOCK * N);
        float* grad_weights = scratch.number(4, BLOCK * N);
        float* grad_queries = scratch.number(5, N * K);
        Number* weights = scratch.rounded(0, BLOCK * N);
        Number* grad_scores = scratch.rounded(1, BLOCK * N);
        std::fill(grad_queries, grad_queries + N * K, 0.0f);
        for (Index s = 0; s < S; s += BLOCK) {
            const Index rows = S - s < BLOCK ? S - s : BLOCK, steps = up_to(rows, STEP) / STEP;
            const Index from = key_mask.causal ? s / WIDE * WIDE : 0, width = N - from;
            multiply<A>(k.left(b, g, s), qt.from(0, from), K / STEP, rows, width, scores, width);
            multiply<A>(v.left(b, g, s), st.from(0, from), K / STEP, rows, width, grad_weights, width);
            for (Index r = 0; r < rows; r++)
                for (Index t = 0; t < width; t += WIDE) {
                    const Index place = r * width + t;
                    const Lanes may = lanes_of((b * H + h) * T, from + t, s + r);
                    const Wide x = multiply_add(read(scores + place), all(scale()), -read(log + from + t));
                    const Wide weight = where(may, exp(x), 0.0f);
                    write(weights + place, weight);
                    write(grad_scores + place, weight * (read(grad_weights + place) - read(mean + from + t)));
                }
            const auto sums = [&](const float* so_far) { return add ? Before{so_far + s * K, K} : Before{}; };
            const Packed* grad_columns = (const Packed*)grad_scores;  // where a step is one number they serve as they lie
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
        for (Index t = 0; t < T; t++) put(grad_queries + t * K, scale(), dq.of(b, h, t));
    }

    // Which of WIDE queries from t on see key s; `first` is the row of query 0.
    Lanes lanes_of(Index first, Index t, Index s) const {
        Lanes may = first_lanes(T - t);
        if (key_mask.causal) may = Lanes(may & ~first_lanes(s - t));
        if (key_mask.mask)
            for (Index lane = 0; lane < WIDE && t + lane < T; lane++)
                if (!key_mask.shown(first + t + lane)[s]) set(may, lane, false);
        return may;
    }

    float product_of(const Number* a, const Number* b) const {
        Wide sums = all(0.0f);
        for (Index j = 0; j < K; j += WIDE) sums = multiply_add(read(a + j), read(b + j), sums);
        return add_up(sums);
    }
};

}  // namespace
