// softmax(q kT / sqrt(K)) v over whole sequences, forward and backward, where the CPU multiplies bfloat16: a few queries'
// scores, later a few keys', are all that is ever written of the (T, S) scores, and what causality hides is not worked out.
//
// q (B, H, T, K), k and v (B, G, S, K), bfloat16, by strides, the last axis without gaps; K is a multiple of 16. H is a
// multiple of G: heads next to each other share keys. Results lie as (B, T, H, K), as the layers around want them.
#pragma once
#include <cmath>

#include "bf16_pairs.h"
#include "masked_softmax.h"

#ifdef __AVX512BF16__
namespace {

struct Rows {
    Half* at;
    Index strides[3];  // from sequence to sequence, head to head, token to token

    Half* of(Index b, Index h, Index t = 0) const { return at + b * strides[0] + h * strides[1] + t * strides[2]; }
    Left left(Index b, Index h, Index t) const { return {of(b, h, t), strides[2], 2}; }
};

struct FlashAttention {
    Index B, H, G, T, S, K;
    KeyMask key_mask;
    Rows q, k, v, y;
    float* logsumexp;  // (B, H, T) logarithms of the softmax's sums

    static constexpr Index BLOCK = 48;  // queries, then keys, whose scores are there at a time
    float scale() const { return 1.0f / std::sqrt(float(K)); }
    Index keys() const { return up_to(S, WIDE); }
    Index queries() const { return up_to(T, WIDE); }

    struct Scratch {
        AlignedBuffer<float> numbers[6];
        AlignedBuffer<Pair> pairs[6];
        AlignedBuffer<Half> halves[2];
        float* number(int i, Index count) { return numbers[i].of(count); }
        Pair* pair(int i, Index count) { return pairs[i].of(count); }
        Half* half(int i, Index count) { return halves[i].of(count); }
    };

    void forward(Index b, Index h, Scratch& scratch) const {
        const Index g = h / (H / G);
        Pair* kt = scratch.pair(0, K / 2 * keys());
        Pair* vs = scratch.pair(1, keys() / 2 * K);
        pair_columns(k.of(b, g), k.strides[2], S, keys(), K, kt);
        pair_rows(v.of(b, g), v.strides[2], S, keys(), K, vs);
        float* scores = scratch.number(0, BLOCK * keys());
        float* block = scratch.number(1, BLOCK * K);
        Half* weights = scratch.half(0, BLOCK * keys());
        for (Index t = 0; t < T; t += BLOCK) {
            const Index rows = T - t < BLOCK ? T - t : BLOCK;
            const Index width = key_mask.causal ? up_to(t + rows, WIDE) : keys();
            multiply(q.left(b, h, t), {kt, keys()}, K / 2, rows, width, scores, keys());
            float shares[BLOCK];
            for (Index r = 0; r < rows; r++)
                shares[r] = weigh(scores + r * keys(), weights + r * keys(), width, (b * H + h) * T + t + r);
            multiply({weights, keys(), 2}, {vs, K}, width / 2, rows, K, block, K);
            for (Index r = 0; r < rows; r++)
                put(block + r * K, shares[r], y.of(b, h, t + r));
        }
    }

    // A query's weights, e^(score - the largest one), and what their mean is to be multiplied by.
    float weigh(float* scores, Half* weights, Index width, Index row) const {
        const Index visible_keys = key_mask.keys(row);
        const uint8_t* shown = key_mask.shown(row);
        const Wide low = all(-INFINITY), times = all(scale());
        Wide most = low;
        for (Index s = 0; s < width; s += WIDE) {
            __mmask16 may = first_lanes(visible_keys - s);
            if (shown) may &= _mm_test_epi8_mask(_mm_maskz_loadu_epi8(may, shown + s), _mm_set1_epi8(-1));
            const Wide score = _mm512_mask_mul_ps(low, may, read(scores + s), times);
            write(scores + s, score);
            most = _mm512_max_ps(score, most);
        }
        const float top = largest(most);
        Wide sums = all(0.0f);
        for (Index s = 0; s < width; s += WIDE) {
            const Wide score = read(scores + s);
            const __mmask16 visible = _mm512_cmp_ps_mask(score, low, _CMP_NEQ_UQ);
            const Wide weight = _mm512_maskz_mov_ps(visible, exp(_mm512_sub_ps(score, all(top))));
            sums = _mm512_add_ps(sums, weight);
            write(weights + s, weight);
        }
        const float sum = add_up(sums);
        logsumexp[row] = sum == 0 ? INFINITY : top + std::log(sum);  // who sees nothing takes zeros
        return sum == 0 ? 0.0f : 1.0f / sum;
    }

    void put(const float* sums, float scale, Half* place) const {
        for (Index j = 0; j < K; j += WIDE) write(place + j, _mm512_mul_ps(read(sums + j), all(scale)));
    }

    // The gradients of all that share a head of keys: with P the weights and dy the gradient of y,
    //     dv = PT dy,   dS = P (dy vT - the row's sum of y dy),   dq = dS k / sqrt(K),   dk = dST q / sqrt(K)
    // Scores lie the other way around here, a row for each key.
    void backward(Index b, Index g, const Rows& dy, const Rows& dq, const Rows& dk, const Rows& dv, Scratch& scratch) const {
        Pair* ks = scratch.pair(5, keys() / 2 * K);
        pair_rows(k.of(b, g), k.strides[2], S, keys(), K, ks);
        float* grad_keys = scratch.number(0, S * K);
        float* grad_values = scratch.number(1, S * K);
        for (Index h = g * (H / G); h < (g + 1) * (H / G); h++)
            backward_head(b, g, h, dy, dq, ks, grad_keys, grad_values, h != g * (H / G), scratch);
        for (Index s = 0; s < S; s++) {
            put(grad_keys + s * K, scale(), dk.of(b, g, s));
            put(grad_values + s * K, 1.0f, dv.of(b, g, s));
        }
    }

    void backward_head(Index b, Index g, Index h, const Rows& dy, const Rows& dq, const Pair* ks, float* grad_keys,
                       float* grad_values, bool add, Scratch& scratch) const {
        const Index N = queries();
        const Half *query = q.of(b, h), *grad_y = dy.of(b, h);
        Pair* qt = scratch.pair(0, K / 2 * N);
        Pair* st = scratch.pair(1, K / 2 * N);
        Pair* qs = scratch.pair(2, N / 2 * K);
        Pair* ss = scratch.pair(3, N / 2 * K);
        pair_columns(query, q.strides[2], T, N, K, qt);
        pair_columns(grad_y, dy.strides[2], T, N, K, st);
        pair_rows(query, q.strides[2], T, N, K, qs);
        pair_rows(grad_y, dy.strides[2], T, N, K, ss);
        float* log = scratch.number(2, 2 * N);
        float* mean = log + N;
        for (Index t = 0; t < N; t++) {
            mean[t] = t < T ? product_of(y.of(b, h, t), dy.of(b, h, t)) : 0;
            log[t] = t < T ? logsumexp[(b * H + h) * T + t] : INFINITY;
        }
        float* scores = scratch.number(3, BLOCK * N);
        float* grad_weights = scratch.number(4, BLOCK * N);
        float* grad_queries = scratch.number(5, N * K);
        Half* weights = scratch.half(0, BLOCK * N);
        Half* grad_scores = scratch.half(1, BLOCK * N);
        Pair* grad_pairs = scratch.pair(4, BLOCK / 2 * N);
        std::fill(grad_queries, grad_queries + N * K, 0.0f);
        for (Index s = 0; s < S; s += BLOCK) {
            const Index rows = S - s < BLOCK ? S - s : BLOCK, pairs = up_to(rows, 2) / 2;
            const Index from = key_mask.causal ? s / WIDE * WIDE : 0, width = N - from;
            multiply(k.left(b, g, s), {qt + from, N}, K / 2, rows, width, scores, width);
            multiply(v.left(b, g, s), {st + from, N}, K / 2, rows, width, grad_weights, width);
            for (Index r = 0; r < rows; r++)
                for (Index t = 0; t < width; t += WIDE) {
                    const Index place = r * width + t;
                    const __mmask16 may = mask_of((b * H + h) * T, from + t, s + r);
                    const Wide x = _mm512_fmsub_ps(read(scores + place), all(scale()), read(log + from + t));
                    const Wide weight = _mm512_maskz_mov_ps(may, exp(x));
                    write(weights + place, weight);
                    const Wide grad_weight = _mm512_sub_ps(read(grad_weights + place), read(mean + from + t));
                    write(grad_scores + place, _mm512_mul_ps(weight, grad_weight));
                }
            const auto sums = [&](const float* so_far) { return add ? Before{so_far + s * K, K} : Before{}; };
            pair_rows(grad_scores, width, rows, 2 * pairs, width, grad_pairs);
            multiply({weights, width, 2}, {ss + from / 2 * K, K}, width / 2, rows, K, grad_values + s * K, K,
                     sums(grad_values));
            multiply({grad_scores, width, 2}, {qs + from / 2 * K, K}, width / 2, rows, K, grad_keys + s * K, K,
                     sums(grad_keys));
            multiply({(const Half*)grad_pairs, 2, 2 * width}, {ks + s / 2 * K, K}, pairs, width, K,
                     grad_queries + from * K, K, {grad_queries + from * K, K});
        }
        for (Index t = 0; t < T; t++) put(grad_queries + t * K, scale(), dq.of(b, h, t));
    }

    // Which of WIDE queries from t on see key s; `first` is the row of query 0.
    __mmask16 mask_of(Index first, Index t, Index s) const {
        __mmask16 may = first_lanes(T - t);
        if (key_mask.causal) may &= ~first_lanes(s - t);
        if (key_mask.mask)
            for (Index lane = 0; lane < WIDE && t + lane < T; lane++)
                if (!key_mask.shown(first + t + lane)[s]) may &= ~(1u << lane);
        return may;
    }

    float product_of(const Half* a, const Half* b) const {
        Wide sums = all(0.0f);
        for (Index j = 0; j < K; j += WIDE) sums = multiply_add(read(a + j), read(b + j), sums);
        return add_up(sums);
    }
};

}  // namespace
#endif
