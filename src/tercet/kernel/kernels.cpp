// What Python calls.
#ifdef _OPENMP
#include <omp.h>
#endif
#include <numeric>

#include "adam.h"
#include "best_tokens.h"
#include "cross_entropy.h"
#include "few_queries.h"
#include "linear.h"
#include "many_rows.h"
#include "fused_step.h"
#include "softmax.h"
#include "whole_attention.h"

namespace {

constexpr Index WORTH_SHARING = 1 << 17;  // multiplications from which threads are worth waking

// `work(part)` for each part, by as many threads.
template <typename Work>
void shared(int threads, const Work& work) {
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        work(Part{omp_get_thread_num(), omp_get_num_threads()});
        return;
    }
#endif
    work(Part{0, 1});
}

template <typename W>
void linear(const float* x, const W* w, const float* scale, const float* bias, float* y, Index M, Index K, Index N,
            int threads) {
    const Product<W> product{x, w, scale, bias, y, M, K, N, false};
    shared(M * N * K > WORTH_SHARING ? threads : 1, [&](Part part) {
        Panels panels;
        share(product, part, panels);
    });
}

template <typename T>
void cross_entropy(Index N, const CrossEntropy<T>& rows, int threads) {
    constexpr Index EXPONENTIAL = 16;  // multiplications, two of them for each score
    shared(N > 1 && 2 * EXPONENTIAL * N * rows.V > WORTH_SHARING ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(N);
        for (Index n = first; n < last; n++) rows.row(n);
    });
}

// sizes: rows, H, T, S, causal, the mask's strides.
Seen seen(const Index* sizes, const uint8_t* mask) {
    return {sizes[1], sizes[2], sizes[3], sizes[4] != 0, mask, {sizes[5], sizes[6]}};
}

template <typename T>
void softmax(const T* scores, T* weights, const uint8_t* mask, const Index* sizes, int threads) {
    const Seen who = seen(sizes, mask);
    shared(sizes[0] * who.S > WORTH_SHARING ? threads : 1, [&](Part part) {
        std::vector<float> kept(who.S + LANES);
        const auto [first, last] = part.of(sizes[0]);
        for (Index row = first; row < last; row++) softmax_row(scores, weights, who, row, kept);
    });
}

template <typename T>
void softmax_back(const T* weights, const T* slopes, T* found, const Index* sizes, int threads) {
    const Seen who = seen(sizes, nullptr);
    shared(sizes[0] * who.S > WORTH_SHARING ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(sizes[0]);
        for (Index row = first; row < last; row++) softmax_back_row(weights, slopes, found, who, row);
    });
}

#ifdef __AVX512BF16__
// Of each tensor its address and four strides, the last of which is 1.
Rows rows(const Index* tensor) { return {(Half*)tensor[0], {tensor[1], tensor[2], tensor[3]}}; }

// tensors: q, k, v, y. sizes: B, H, G, T, S, K, causal, the mask's strides.
WholeAttention whole(const Index* tensors, const uint8_t* mask, float* logs, const Index* sizes) {
    const Index B = sizes[0], H = sizes[1], G = sizes[2], T = sizes[3], S = sizes[4], K = sizes[5];
    return {B, H, G, T, S, K, {H, T, S, sizes[6] != 0, mask, {sizes[7], sizes[8]}},
            rows(tensors), rows(tensors + 5), rows(tensors + 10), rows(tensors + 15), logs};
}
#endif

Table table(const Index* given) {
    return {(float*)given[0], (float*)given[1], {given[2], given[3], given[4]}, {given[5], given[6], given[7]}};
}

}  // namespace

extern "C" {
void linear_float32(const float* x, const float* w, const float* s, const float* b, float* y, Index M, Index K, Index N,
                    int threads) {
    linear(x, w, s, b, y, M, K, N, threads);
}
void linear_bfloat16(const float* x, const uint16_t* w, const float* s, const float* b, float* y, Index M, Index K,
                     Index N, int threads) {
    linear(x, w, s, b, y, M, K, N, threads);
}
void linear_int8(const float* x, const int8_t* w, const float* s, const float* b, float* y, Index M, Index K, Index N,
                 int threads) {
    linear(x, w, s, b, y, M, K, N, threads);
}

// sizes: M, H, G, K, rows, columns, the mask's strides. tables: addresses and strides of keys and values.
void few_queries(const float* q, const Index* tables, const uint8_t* mask, float* y, const Index* sizes, int threads) {
    const Attention look{q, y, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], table(tables), sizes[5], mask,
                         {sizes[6], sizes[7]}, nullptr};
    shared(look.M * look.H * look.columns * look.K > WORTH_SHARING ? threads : 1, [&](Part part) {
        std::vector<int32_t> seen;
        std::vector<float> weights;
        look.share(part, seen, weights);
    });
}

void best_tokens(const float* scores, const float* totals, Index N, Index H, Index V, Index stride, Index count,
                 const Index* never, Index nevers, Index end, const uint8_t* early, float* values, Index* parents,
                 Index* tokens, int threads) {
    const Best best{scores, totals, H, V, stride, count, never, nevers, end, early, values, parents, tokens};
    shared(N > 1 && N * H * V > WORTH_SHARING ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(N);
        for (Index n = first; n < last; n++) best.sentence(n);
    });
}

void cross_entropy_float32(float* scores, Index N, Index V, Index stride, const Index* targets, float smoothing, float cap,
                           int learns, float* totals, float* plains, int threads) {
    cross_entropy<float>(N, {scores, V, stride, targets, smoothing, cap, learns != 0, totals, plains}, threads);
}
void cross_entropy_bfloat16(uint16_t* scores, Index N, Index V, Index stride, const Index* targets, float smoothing,
                            float cap, int learns, float* totals, float* plains, int threads) {
    cross_entropy<uint16_t>(N, {scores, V, stride, targets, smoothing, cap, learns != 0, totals, plains}, threads);
}

#ifdef __AVX512BF16__
extern const int MULTIPLIES_BFLOAT16 = 1;
void whole_attention(const Index* tensors, const uint8_t* mask, float* logs, const Index* sizes, int threads) {
    const WholeAttention look = whole(tensors, mask, logs, sizes);
    shared(threads, [&](Part part) {
        thread_local WholeAttention::Scratch scratch;
        const auto [first, last] = part.of(look.B * look.H);
        for (Index i = first; i < last; i++) look.there(i / look.H, i % look.H, scratch);
    });
}
// tensors: q, k, v, y, the slopes of y, and where those of q, k and v go.
void whole_attention_back(const Index* tensors, const uint8_t* mask, float* logs, const Index* sizes, int threads) {
    const WholeAttention look = whole(tensors, mask, logs, sizes);
    const Rows dy = rows(tensors + 20), dq = rows(tensors + 25), dk = rows(tensors + 30), dv = rows(tensors + 35);
    shared(threads, [&](Part part) {
        thread_local WholeAttention::Scratch scratch;
        const auto [first, last] = part.of(look.B * look.G);
        for (Index i = first; i < last; i++) look.back(i / look.G, i % look.G, dy, dq, dk, dv, scratch);
    });
}

// Laid out and multiplied by the same threads, who wait for each other in between.
void linear_there(const uint16_t* x, const float* w, const float* bias, uint16_t* y, Index N, Index K, Index M,
                  int threads) {
    thread_local Linear::Laid rooms;
    const Linear linear{N, K, M, x, w};
    Linear::Laid& laid = rooms.of(K * linear.padded, 0, 0);
    threads = N * K * M > WORTH_SHARING ? threads : 1;
    shared(threads, [&](Part part) { linear.lay_out(part, laid); });
    shared(threads, [&](Part part) { linear.there(part, laid, bias, y); });
}
void linear_back(const uint16_t* slopes, const uint16_t* x, const float* w, uint16_t* dx, float* dw, float* db, Index N,
                 Index K, Index M, int threads) {
    thread_local Linear::Laid rooms;
    const Linear linear{N, K, M, x, w};
    const Index most = std::min(up_to(N, 2), Linear::TOGETHER);
    Linear::Laid& laid = rooms.of(K * linear.padded, K * most, linear.padded * most);
    const Linear::Slopes found{slopes, dx, dw, db};
    threads = N * K * M > WORTH_SHARING ? threads : 1;
    for (Index first = 0; first < N; first += most) {
        const Index count = std::min(most, N - first);
        shared(threads, [&](Part part) { linear.lay_out(part, laid, found, first, count); });
        shared(threads, [&](Part part) { linear.back(part, laid, found, first, count); });
    }
}
#else
extern const int MULTIPLIES_BFLOAT16 = 0;
void linear_there(const uint16_t*, const float*, const float*, uint16_t*, Index, Index, Index, int) {}
void linear_back(const uint16_t*, const uint16_t*, const float*, uint16_t*, float*, float*, Index, Index, Index, int) {}
void whole_attention(const Index*, const uint8_t*, float*, const Index*, int) {}
void whole_attention_back(const Index*, const uint8_t*, float*, const Index*, int) {}
#endif

void bend(const uint16_t* x, const uint16_t* slopes, uint16_t* y, Index count, int activation, int threads) {
    shared(count > WORTH_SHARING ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(count);
        if (activation == GELU) bend<GELU>(x, slopes, y, first, last);
        if (activation == GELU_TANH) bend<GELU_TANH>(x, slopes, y, first, last);
        if (activation == SILU) bend<SILU>(x, slopes, y, first, last);
    });
}

void softmax_float32(const float* scores, float* weights, const uint8_t* mask, const Index* sizes, int threads) {
    softmax(scores, weights, mask, sizes, threads);
}
void softmax_bfloat16(const uint16_t* scores, uint16_t* weights, const uint8_t* mask, const Index* sizes, int threads) {
    softmax(scores, weights, mask, sizes, threads);
}
void softmax_back_float32(const float* weights, const float* slopes, float* found, const Index* sizes, int threads) {
    softmax_back(weights, slopes, found, sizes, threads);
}
void softmax_back_bfloat16(const uint16_t* weights, const uint16_t* slopes, uint16_t* found, const Index* sizes,
                           int threads) {
    softmax_back(weights, slopes, found, sizes, threads);
}

// tensors: parameters, gradients, both moments and steps, so many addresses of each. how: what each is worked on with.
void adam(const Index* tensors, const Index* counts, Index count, const Adam* how, float scale, int threads) {
    const Pieces pieces{counts, count};
    const auto of = [&](int kind, Index i) { return (float*)tensors[kind * count + i]; };
    for (Index i = 0; i < count; i++) *of(4, i) += 1;
    shared(pieces.count() > 1 ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(pieces.count());
        pieces.each(first, last, [&](Index i, Index from, Index numbers) {
            how[i].step(of(0, i) + from, of(1, i) + from, of(2, i) + from, of(3, i) + from, numbers, *of(4, i), scale);
        });
    });
}
void norm(const Index* tensors, const Index* counts, Index count, double* found, int threads) {
    const Pieces pieces{counts, count};
    std::vector<double> sums(pieces.count());
    shared(pieces.count() > 1 ? threads : 1, [&](Part part) {
        const auto [first, last] = part.of(pieces.count());
        double* sum = sums.data() + first;
        pieces.each(first, last, [&](Index i, Index from, Index numbers) {
            *sum++ = squares((const float*)tensors[i] + from, numbers);
        });
    });
    *found = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

// tables: for each layer those of what is behind it and of what it looks across at.
void fused_step(const Step* steps, Index count, float* x, float* scratch, const Index* columns, const float* cosines,
                const float* sines, const uint8_t* real, const Index* sizes, const Index* tables, int threads) {
    const Tokens tokens{sizes[0], sizes[1], columns, sizes[2], cosines, sines, sizes[3], sizes[4], sizes[5], real};
    std::vector<Layer> layers;
    for (Index i = 0; i < sizes[6]; i++) layers.push_back({table(tables + 16 * i), table(tables + 16 * i + 8)});
    const Run run{steps, count, x, scratch, tokens, layers.data(), tokens.rows * tokens.each};
    shared(threads, [&](Part part) { run.share(part); });
}
}
