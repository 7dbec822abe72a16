// The functions that Python calls.
#ifdef _OPENMP
#include <omp.h>
#endif
#include <numeric>

#include "adam.h"
#include "cross_entropy.h"
#include "decode_attention.h"
#include "denormals.h"
#include "flash_attention.h"
#include "fused_step.h"
#include "gemm.h"
#include "linear.h"
#include "masked_softmax.h"
#include "top_tokens.h"

namespace {

constexpr Index MIN_PARALLEL_WORK = 1 << 17;  // minimum number of multiplications for several threads

// Calls `work(range)` in each thread, with its range.
template <typename Work>
void parallel_for(int threads, const Work& work) {
    const auto run = [&](ThreadRange range) {
        work(range);
#ifdef __AMX_BF16__
        Tiles::release();  // other code must find the CPU without configured tiles
#endif
    };
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        run(ThreadRange{omp_get_thread_num(), omp_get_num_threads()});
        return;
    }
#endif
    run(ThreadRange{0, 1});
}

template <typename W>
void linear(const float* x, const W* w, const float* scale, const float* bias, float* y, Index M, Index K, Index N,
            int threads) {
    const Product<W> product{x, w, scale, bias, y, M, K, N, false};
    parallel_for(M * N * K > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        GemmScratch scratch;
        multiply_range(product, range, scratch);
    });
}

template <typename T>
void cross_entropy(Index N, const CrossEntropy<T>& rows, Index* invalid, int threads) {
    for (Index n = 0; n < N; n++)
        if (!rows.is_valid(n)) {
            *invalid = n;
            return;
        }
    constexpr Index EXPONENTIAL = 16;  // cost of an exponential in multiplications; there are two per score
    parallel_for(N > 1 && 2 * EXPONENTIAL * N * rows.V > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(N);
        for (Index n = first; n < last; n++) rows.row(n);
    });
}

// sizes: rows, H, T, S, causal, strides of the mask.
KeyMask key_mask_of(const Index* sizes, const uint8_t* mask) {
    return {sizes[1], sizes[2], sizes[3], sizes[4] != 0, mask, {sizes[5], sizes[6]}};
}

template <typename T>
void softmax(const T* scores, T* weights, const uint8_t* mask, const Index* sizes, int threads) {
    const KeyMask key_mask = key_mask_of(sizes, mask);
    parallel_for(sizes[0] * key_mask.S > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        std::vector<float> buffer(key_mask.S + LANES);
        const auto [first, last] = range.split(sizes[0]);
        for (Index row = first; row < last; row++) softmax_row(scores, weights, key_mask, row, buffer);
    });
}

template <typename T>
void softmax_backward(const T* weights, const T* grad_weights, T* grad_scores, const Index* sizes, int threads) {
    const KeyMask key_mask = key_mask_of(sizes, nullptr);
    parallel_for(sizes[0] * key_mask.S > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(sizes[0]);
        for (Index row = first; row < last; row++) softmax_backward_row(weights, grad_weights, grad_scores, key_mask, row);
    });
}

// Each tensor is an address and four strides, the last of which is 1.
template <typename A>
Rows<A> rows(const Index* tensor) { return {(typename A::Number*)tensor[0], {tensor[1], tensor[2], tensor[3]}}; }

// tensors: q, k, v, y. sizes: B, H, G, T, S, K, causal, strides of the mask.
template <typename A>
FlashAttention<A> attention_of(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes) {
    const Index B = sizes[0], H = sizes[1], G = sizes[2], T = sizes[3], S = sizes[4], K = sizes[5];
    return {B, H, G, T, S, K, {H, T, S, sizes[6] != 0, mask, {sizes[7], sizes[8]}},
            rows<A>(tensors), rows<A>(tensors + 5), rows<A>(tensors + 10), rows<A>(tensors + 15), logsumexp};
}
template <typename A>
void attend(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes, int threads) {
    const auto attention = attention_of<A>(tensors, mask, logsumexp, sizes);
    parallel_for(threads, [&](ThreadRange range) {
        thread_local typename FlashAttention<A>::Scratch scratch;
        const auto [first, last] = range.split(attention.B * attention.H);
        for (Index i = first; i < last; i++) attention.forward(i / attention.H, i % attention.H, scratch);
    });
}
// tensors: q, k, v, y, the gradient of y, and the results for the gradients of q, k and v.
template <typename A>
void attend_backward(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes, int threads) {
    const auto attention = attention_of<A>(tensors, mask, logsumexp, sizes);
    const auto dy = rows<A>(tensors + 20), dq = rows<A>(tensors + 25), dk = rows<A>(tensors + 30), dv = rows<A>(tensors + 35);
    parallel_for(threads, [&](ThreadRange range) {
        thread_local typename FlashAttention<A>::Scratch scratch;
        const auto [first, last] = range.split(attention.B * attention.G);
        for (Index i = first; i < last; i++) attention.backward(i / attention.G, i % attention.G, dy, dq, dk, dv, scratch);
    });
}

// Weights are packed and then multiplied by all threads, with a barrier in between.
template <typename A>
void linear_forward(const typename A::Number* x, const float* w, const float* bias, typename A::Number* y, Index N, Index K,
                    Index M, int threads) {
    thread_local typename Linear<A>::PackedWeights buffers;
    const Linear<A> linear{N, K, M, x, w};
    auto& packed = buffers.reserve(K * linear.padded, 0, 0);
    threads = N * K * M > MIN_PARALLEL_WORK ? threads : 1;
    parallel_for(threads, [&](ThreadRange range) { linear.pack_weights(range, packed); });
    parallel_for(threads, [&](ThreadRange range) { linear.forward(range, packed, bias, y); });
}
template <typename A>
void linear_backward(const typename A::Number* dy, const typename A::Number* x, const float* w, typename A::Number* dx,
                     float* dw, float* db, Index N, Index K, Index M, int threads) {
    thread_local typename Linear<A>::PackedWeights buffers;
    const Linear<A> linear{N, K, M, x, w};
    const Index batch = std::min(round_up(N, A::STEP), Linear<A>::BATCH);
    auto& packed = buffers.reserve(K * linear.padded, K * batch, linear.padded * batch);
    const typename Linear<A>::Gradients gradients{dy, dx, dw, db};
    threads = N * K * M > MIN_PARALLEL_WORK ? threads : 1;
    for (Index first = 0; first < N; first += batch) {
        const Index count = std::min(batch, N - first);
        parallel_for(threads, [&](ThreadRange range) { linear.pack_operands(range, packed, gradients, first, count); });
        parallel_for(threads, [&](ThreadRange range) { linear.backward(range, packed, gradients, first, count); });
    }
}

template <typename T>
void activate_all(const T* x, const T* grad_output, T* y, Index count, Index activation, int threads) {
    parallel_for(count > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(count);
        switch (activation) {
            case RELU: return activate<RELU>(x, grad_output, y, first, last);
            case GELU: return activate<GELU>(x, grad_output, y, first, last);
            case GELU_TANH: return activate<GELU_TANH>(x, grad_output, y, first, last);
            case SILU: return activate<SILU>(x, grad_output, y, first, last);
            case RELU_SQUARED: return activate<RELU_SQUARED>(x, grad_output, y, first, last);
            default: return activate<NONE>(x, grad_output, y, first, last);
        }
    });
}

KVTable kv_table(const Index* table) {
    return {(float*)table[0], (float*)table[1], {table[2], table[3], table[4]}, {table[5], table[6], table[7]}};
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

// sizes: M, H, G, K, rows, columns, strides of the mask. table: addresses and strides of keys and values.
void decode_attention(const float* q, const Index* table, const uint8_t* mask, float* y, const Index* sizes, int threads) {
    const Index M = sizes[0], H = sizes[1], K = sizes[3], columns = sizes[5];
    const DecodeAttention attention{q, y, M, H, sizes[2], K, sizes[4], kv_table(table), columns, mask,
                                    {sizes[6], sizes[7]}, nullptr, nullptr, nullptr};
    parallel_for(M * H * columns * K > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        std::vector<int32_t> visible;
        std::vector<float> weights;
        attention.run_range(range, visible, weights);
    });
}

void top_tokens(const float* scores, const float* totals, Index N, Index H, Index V, Index stride, Index count,
                 const Index* forbidden, Index forbidden_count, Index eos_id, const uint8_t* is_early, float* values,
                 Index* parents, Index* tokens, int threads) {
    const TopTokens top{scores, totals, H, V, stride, count, forbidden, forbidden_count,
                        eos_id, is_early, values, parents, tokens};
    parallel_for(N > 1 && N * H * V > MIN_PARALLEL_WORK ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(N);
        for (Index n = first; n < last; n++) top.sentence(n);
    });
}

// invalid: set to the first row with an invalid target; nothing else is written in this case.
void cross_entropy_float32(float* scores, Index N, Index V, Index stride, const Index* targets, float smoothing, float cap,
                           int needs_grad, float* totals, float* unsmoothed, Index* invalid, int threads) {
    cross_entropy<float>(N, {scores, V, stride, targets, smoothing, cap, needs_grad != 0, totals, unsmoothed}, invalid,
                         threads);
}
void cross_entropy_bfloat16(uint16_t* scores, Index N, Index V, Index stride, const Index* targets, float smoothing,
                            float cap, int needs_grad, float* totals, float* unsmoothed, Index* invalid, int threads) {
    cross_entropy<uint16_t>(N, {scores, V, stride, targets, smoothing, cap, needs_grad != 0, totals, unsmoothed}, invalid,
                            threads);
}

void flash_attention_forward_float32(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes,
                                     int threads) {
    attend<Float32>(tensors, mask, logsumexp, sizes, threads);
}
void flash_attention_backward_float32(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes,
                                      int threads) {
    attend_backward<Float32>(tensors, mask, logsumexp, sizes, threads);
}
void linear_forward_float32(const float* x, const float* w, const float* bias, float* y, Index N, Index K, Index M,
                            int threads) {
    linear_forward<Float32>(x, w, bias, y, N, K, M, threads);
}
void linear_backward_float32(const float* dy, const float* x, const float* w, float* dx, float* dw, float* db, Index N,
                             Index K, Index M, int threads) {
    linear_backward<Float32>(dy, x, w, dx, dw, db, N, K, M, threads);
}

#ifdef __AVX512BF16__  // other levels do not export these functions
void flash_attention_forward_bfloat16(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes,
                                      int threads) {
    attend<Bfloat16>(tensors, mask, logsumexp, sizes, threads);
}
void flash_attention_backward_bfloat16(const Index* tensors, const uint8_t* mask, float* logsumexp, const Index* sizes,
                                       int threads) {
    attend_backward<Bfloat16>(tensors, mask, logsumexp, sizes, threads);
}
void linear_forward_bfloat16(const uint16_t* x, const float* w, const float* bias, uint16_t* y, Index N, Index K, Index M,
                             int threads) {
    linear_forward<Bfloat16>(x, w, bias, y, N, K, M, threads);
}
void linear_backward_bfloat16(const uint16_t* dy, const uint16_t* x, const float* w, uint16_t* dx, float* dw, float* db,
                              Index N, Index K, Index M, int threads) {
    linear_backward<Bfloat16>(dy, x, w, dx, dw, db, N, K, M, threads);
}
#endif

void flush_denormals(int flush, int threads) {
    parallel_for(threads, [&](ThreadRange) { flush_denormals_of_thread(flush != 0); });
}

extern const char* const ACTIVATIONS = ACTIVATION_NAMES;
void activate_float32(const float* x, const float* grad_output, float* y, Index count, Index activation, int threads) {
    activate_all(x, grad_output, y, count, activation, threads);
}
void activate_bfloat16(const uint16_t* x, const uint16_t* grad_output, uint16_t* y, Index count, Index activation,
                       int threads) {
    activate_all(x, grad_output, y, count, activation, threads);
}

void softmax_float32(const float* scores, float* weights, const uint8_t* mask, const Index* sizes, int threads) {
    softmax(scores, weights, mask, sizes, threads);
}
void softmax_bfloat16(const uint16_t* scores, uint16_t* weights, const uint8_t* mask, const Index* sizes, int threads) {
    softmax(scores, weights, mask, sizes, threads);
}
void softmax_backward_float32(const float* weights, const float* grad_weights, float* grad_scores,
                              const Index* sizes, int threads) {
    softmax_backward(weights, grad_weights, grad_scores, sizes, threads);
}
void softmax_backward_bfloat16(const uint16_t* weights, const uint16_t* grad_weights, uint16_t* grad_scores,
                               const Index* sizes, int threads) {
    softmax_backward(weights, grad_weights, grad_scores, sizes, threads);
}

// tensors: addresses of parameters, gradients, both moments and steps, `count` of each. settings: one per parameter.
// overlaps: set to 1 if tensors overlap; nothing else is written in this case.
void adam(const Index* tensors, const Index* counts, Index count, const Adam* settings, float scale, Index* overlaps,
          int threads) {
    if ((*overlaps = has_overlap(tensors, counts, count))) return;
    const Pieces pieces{counts, count};
    const auto of = [&](int kind, Index i) { return (float*)tensors[kind * count + i]; };
    for (Index i = 0; i < count; i++) *of(4, i) += 1;
    parallel_for(pieces.count() > 1 ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(pieces.count());
        pieces.for_each(first, last, [&](Index i, Index from, Index numbers) {
            settings[i].step(of(0, i) + from, of(1, i) + from, of(2, i) + from, of(3, i) + from, numbers, *of(4, i), scale);
        });
    });
}
void gradient_norm(const Index* tensors, const Index* counts, Index count, double* norm, int threads) {
    const Pieces pieces{counts, count};
    std::vector<double> sums(pieces.count());
    parallel_for(pieces.count() > 1 ? threads : 1, [&](ThreadRange range) {
        const auto [first, last] = range.split(pieces.count());
        double* sum = sums.data() + first;
        pieces.for_each(first, last, [&](Index i, Index from, Index numbers) {
            *sum++ = sum_of_squares((const float*)tensors[i] + from, numbers);
        });
    });
    *norm = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

// tables: KV tables of self-attention and cross-attention for each layer. invalid: set to the first token with an
// invalid column; nothing else is written in this case.
void fused_step(const Step* steps, Index count, float* x, float* scratch, const Index* columns, const float* cosines,
                const float* sines, const uint8_t* source_mask, const Index* sizes, const Index* tables, Index* invalid,
                int threads) {
    for (Index m = 0; m < sizes[0] * sizes[1]; m++)
        if (columns[m] < 0 || columns[m] > sizes[2]) {
            *invalid = m;
            return;
        }
    const Tokens tokens{sizes[0], sizes[1], columns, sizes[2], cosines, sines, sizes[3], sizes[4], sizes[5], source_mask};
    std::vector<Layer> layers;
    for (Index i = 0; i < sizes[6]; i++) layers.push_back({kv_table(tables + 16 * i), kv_table(tables + 16 * i + 8)});
    const Run run{steps, count, x, scratch, tokens, layers.data(), tokens.rows * tokens.per_row};
    parallel_for(threads, [&](ThreadRange range) { run.run_range(range); });
}
}
