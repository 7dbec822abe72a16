// Test the kernels without Python: compare each on seeded random inputs with plain loops in double precision.
//
//     driver CASES SEED THREADS [overread | overflow | race]
//
// For targets that PyTorch does not support: other CPUs in an emulator, and ThreadSanitizer. The last argument plants a
// fault, which must be detected.
#include "kernels.cpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "inputs.h"

namespace {

constexpr double BFLOAT16 = 1.0 / 128;  // error of two roundings

template <typename W>
void try_linear(void (*call)(const float*, const W*, const float*, const float*, float*, Index, Index, Index, int),
                int threads) {
    const bool is_long = one_in(20);
    const bool is_wide = !is_long && one_in(20);
    const Index M = is_long ? between(500, 600) : between(1, is_wide ? 20 : 40), K = is_wide ? between(1000, 2100) : between(1, 70);
    const Index N = between(1, is_long || is_wide ? 20 : 70);
    Memory<float> x(M * K), scale(one_in(2) ? N : 0), bias(one_in(2) ? N : 0), y(M * N);
    Memory<W> w(N * K);
    call(x, w, scale, bias, y, M, K, N, threads);
    for (Index m = 0; m < M; m++)
        for (Index n = 0; n < N; n++) {
            double sum = 0, size = 0, rounding = 0;
            for (Index k = 0; k < K; k++) {
                const double product = double(x[m * K + k]) * widen_one(w[n * K + k]);
                sum += product, size += std::abs(product);
            }
            if (sizeof(W) == 1 && M <= MAX_GEMV_ROWS)  // the kernel rounds x to 16 bits, in pieces of 1024 numbers
                for (Index first = 0; first < K; first += 1024) {
                    double top = 0, weights = 0;
                    for (Index k = first; k < std::min(K, first + 1024); k++)
                        top = std::max(top, std::abs(double(x[m * K + k]))), weights += std::abs(widen_one(w[n * K + k]));
                    rounding += top / 65534 * weights;
                }
            const double factor = scale ? scale[n] : 1, tolerance = 2e-6;
            expect(y[m * N + n], sum * factor + (bias ? bias[n] : 0), (size + 1.01 * rounding / tolerance) * std::abs(factor));
        }
}

// softmax(q kT / sqrt(K)) v of one query, or zeros if all keys are masked.
template <typename Key, typename Value, typename Sees>
std::vector<double> attention(const double* q, Index K, Index columns, Key key, Value value, Sees sees) {
    std::vector<double> weights(columns), y(K);
    double top = -INFINITY, sum = 0;
    for (Index s = 0; s < columns; s++) {
        for (Index j = 0; j < K; j++) weights[s] += q[j] * key(s, j) / std::sqrt(double(K));
        if (sees(s)) top = std::max(top, weights[s]);
    }
    for (Index s = 0; s < columns; s++) sum += weights[s] = sees(s) ? std::exp(weights[s] - top) : 0;
    for (Index s = 0; s < columns; s++)
        for (Index j = 0; j < K; j++) y[j] += sum > 0 ? weights[s] / sum * value(s, j) : 0;
    return y;
}

// Keys or values in memory, ordered by head or by column.
struct Table {
    Index strides[3], K;
    Memory<float> numbers;

    Table(Index sources, Index G, Index columns, Index width, bool by_columns)
        : strides{G * columns * width, by_columns ? width : columns * width, by_columns ? G * width : width}, K(width),
          numbers(sources * G * columns * width) {}
    float& operator()(Index source, Index g, Index s, Index j) const {
        return numbers[source * strides[0] + g * strides[1] + s * strides[2] + j];
    }
};
std::vector<Index> table_of(const Table& keys, const Table& values) {
    return {keys.numbers.address(), values.numbers.address(), keys.strides[0], keys.strides[1],
            keys.strides[2], values.strides[0], values.strides[1], values.strides[2]};
}

void try_decode_attention(int threads) {
    const Index B = between(1, 3), T = between(1, 3), G = between(1, 3), H = G * between(1, 3), K = 8 * between(1, 6);
    const Index columns = one_in(20) ? 400 : between(1, 40);
    const bool for_each = one_in(2), for_query = one_in(2);
    Memory<float> q(B * T * H * K), y(B * T * H * K);
    const Table keys(B, G, columns, K, one_in(2)), values(B, G, columns, K, one_in(2));
    const Index queries = for_query ? T : 1;
    Memory<uint8_t> mask(one_in(2) ? (for_each ? B : 1) * queries * columns : 0);
    const Index strides[] = {for_each ? queries * columns : 0, for_query ? columns : 0};
    const Index sizes[] = {B * T, H, G, K, T, columns, strides[0], strides[1]};
    decode_attention(q, table_of(keys, values).data(), mask, y, sizes, threads);
    for (Index m = 0; m < B * T; m++)
        for (Index h = 0; h < H; h++) {
            const Index b = m / T, g = h / (H / G);
            const std::vector<double> query(q + (m * H + h) * K, q + (m * H + h + 1) * K);
            const auto expected = attention(
                query.data(), K, columns, [&](Index s, Index j) { return keys(b, g, s, j); },
                [&](Index s, Index j) { return values(b, g, s, j); },
                [&](Index s) { return !mask || mask[b * strides[0] + m % T * strides[1] + s]; });
            for (Index j = 0; j < K; j++) expect(y[(m * H + h) * K + j], expected[size_t(j)], 2);
        }
}

void try_top_tokens(int threads) {
    const Index N = between(1, 3), H = between(1, 4), V = one_in(20) ? 20000 : between(1, 50), stride = V + between(0, 3);
    const Index count = between(1, 9), end = between(0, V - 1);
    Memory<float> scores((N * H - 1) * stride + V), totals(N * H), values(N * count);
    Memory<Index> never(between(0, 2)), parents(N * count), tokens(N * count);
    Memory<uint8_t> early(N);
    for (Index i = 0; i < never.count; i++) never[i] = between(0, V - 1);
    top_tokens(scores, totals, N, H, V, stride, count, never, never.count, end, early, values, parents, tokens, threads);
    for (Index n = 0; n < N; n++) {
        std::vector<double> sums;
        for (Index h = 0; h < H; h++) {
            const float* row = scores + (n * H + h) * stride;
            double sum = 0;
            for (Index v = 0; v < V; v++) sum += std::exp(double(row[v]));
            for (Index v = 0; v < V; v++) {
                const bool is_hidden = std::count(never + 0, never + never.count, v) || (early[n] && v == end);
                sums.push_back(is_hidden ? -INFINITY : totals[n * H + h] + row[v] - std::log(sum));
            }
        }
        std::vector<double> best = sums;
        std::sort(best.begin(), best.end(), std::greater<double>());
        for (Index i = n * count; i < (n + 1) * count; i++) {
            const double expected = i - n * count < H * V ? best[size_t(i - n * count)] : -INFINITY;
            if (std::isinf(expected) && values[i] == expected) continue;
            expect(values[i], expected, 10);
            expect(values[i], sums[size_t(parents[i] * V + tokens[i])], 10);
        }
    }
}

template <typename T>
void try_cross_entropy(void (*call)(T*, Index, Index, Index, const Index*, float, float, int, float*, float*, Index*, int),
                       int threads) {
    const Index N = between(1, 9), V = one_in(20) ? 9000 : between(1, 50), stride = V + between(0, 3);
    const float smoothing = one_in(2) ? 0.1f : 0.0f, cap = one_in(2) ? 3.0f : 0.0f;
    const bool learns = one_in(2), is_wrong = one_in(10);
    Memory<T> scores((N - 1) * stride + V);
    Memory<Index> targets(N);
    Memory<float> totals(N), plains(N);
    for (Index n = 0; n < N; n++) targets[n] = one_in(5) ? -100 : between(0, V - 1);
    if (is_wrong) targets[N - 1] = one_in(2) ? V : -1;
    const std::vector<T> before(scores + 0, scores + scores.count);
    Index wrong = -1;
    call(scores, N, V, stride, targets, smoothing, cap, learns, totals, plains, &wrong, threads);
    expect(double(wrong), is_wrong ? double(N - 1) : -1, 0);
    for (Index n = 0; n < N && !is_wrong; n++) {
        const bool counts = targets[n] != -100;
        const auto capped = [&](Index v) {
            const double z = widen_one(before[size_t(n * stride + v)]);
            return cap ? cap * std::tanh(z / cap) : z;
        };
        double sum = 0, mean = 0;
        for (Index v = 0; v < V; v++) sum += std::exp(capped(v)), mean += capped(v) / double(V);
        const double plain = counts ? std::log(sum) - capped(targets[n]) : 0;
        expect(plains[n], plain, 10);
        expect(totals[n], counts ? (1 - smoothing) * plain + smoothing * (std::log(sum) - mean) : 0, 10);
        for (Index v = 0; v < V; v++) {
            const double z = capped(v), moved = cap ? 1 - z * z / cap / cap : 1;
            const double expected = std::exp(z) / sum - (v == targets[n] ? 1 - smoothing : 0) - smoothing / double(V);
            const double kept = widen_one(before[size_t(n * stride + v)]);
            expect(widen_one(scores[n * stride + v]), learns ? counts ? expected * moved : 0 : kept, 1,
                   sizeof(T) == 2 ? BFLOAT16 : 2e-6);
        }
    }
}

template <typename T, typename Forward, typename Backward>
void try_softmax(Forward forward, Backward backward, int threads) {
    const Index B = between(1, 2), H = between(1, 3), T_ = between(1, 20);
    const bool causal = one_in(2), for_each = one_in(2), for_query = one_in(2);
    const Index S = one_in(20) ? 3000 : !causal && one_in(20) ? 0 : T_ + between(0, 30);
    const double tolerance = sizeof(T) == 2 ? BFLOAT16 : 2e-6;
    Memory<T> scores(B * H * T_ * S), weights(scores.count), grad_weights(scores.count), grad_scores(scores.count);
    Memory<uint8_t> mask(causal || one_in(2) ? 0 : (for_each ? B : 1) * (for_query ? T_ : 1) * S);
    const Index strides[] = {for_each ? (for_query ? T_ : 1) * S : 0, for_query ? S : 0};
    const Index sizes[] = {B * H * T_, H, T_, S, causal, strides[0], strides[1]};
    forward(scores, weights, mask, sizes, threads);
    backward(weights, grad_weights, grad_scores, sizes, threads);
    for (Index row = 0; row < B * H * T_; row++) {
        const auto sees = [&](Index s) {
            return causal ? s <= row % T_ : !mask || mask[row / (H * T_) * strides[0] + row % T_ * strides[1] + s];
        };
        double sum = 0, product = 0;
        for (Index s = 0; s < S; s++) {
            if (sees(s)) sum += std::exp(double(widen_one(scores[row * S + s])));
            product += double(widen_one(weights[row * S + s])) * widen_one(grad_weights[row * S + s]);
        }
        for (Index s = 0; s < S; s++) {
            const double expected = sees(s) ? std::exp(double(widen_one(scores[row * S + s]))) / sum : 0;
            const double weight = widen_one(weights[row * S + s]), gradient = widen_one(grad_weights[row * S + s]);
            expect(weight, expected, 0, tolerance);
            expect(widen_one(grad_scores[row * S + s]), weight * (gradient - product), 1, tolerance);
        }
    }
}

double activation_of(double x, Index activation) {
    switch (activation) {
        case RELU: return std::max(x, 0.0);
        case GELU: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
        case GELU_TANH: return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case SILU: return x / (1 + std::exp(-x));
        case RELU_SQUARED: return std::max(x, 0.0) * x;
        default: return x;
    }
}

template <typename T>
void try_activate(int threads) {
    const Index count = one_in(20) ? (1 << 17) + between(1, 40) : between(1, 100), activation = between(NONE, RELU_SQUARED);
    const bool learns = one_in(2);
    Memory<T> x(count), grad_output(learns ? count : 0), y(count);
    activate_all<T>(x, grad_output, y, count, activation, threads);
    for (Index i = 0; i < count; i++) {
        const double at = widen_one(x[i]), step = 1e-6;
        if (std::abs(at) < step) continue;  // some activations have no derivative here
        const double slope = (activation_of(at + step, activation) - activation_of(at - step, activation)) / (2 * step);
        const double expected = learns ? slope * widen_one(grad_output[i]) : activation_of(at, activation);
        expect(widen_one(y[i]), expected, std::abs(expected) - 1 + 0.01, BFLOAT16);
    }
}

void try_adam(int threads) {
    const Index count = between(1, 4);
    std::vector<Index> counts;
    std::vector<std::unique_ptr<Memory<float>>> tensors;
    std::vector<std::vector<float>> before;
    std::vector<Index> addresses;
    for (Index i = 0; i < count; i++) counts.push_back(one_in(10) ? (1 << 14) + between(0, 1) : between(0, 50));
    for (Index i = 0; i < 5 * count; i++) {
        tensors.push_back(std::make_unique<Memory<float>>(i < 4 * count ? counts[size_t(i % count)] : 1));
        Memory<float>& x = *tensors.back();
        if (i >= 3 * count)  // squares and steps
            for (Index j = 0; j < x.count; j++) x[j] = i < 4 * count ? std::abs(x[j]) : 7;
        addresses.push_back(x.address());
        before.emplace_back(x + 0, x + x.count);
    }
    const std::vector<Adam> settings(size_t(count), Adam{0.01f, 0.9f, 0.95f, 1e-8f, one_in(2) ? 0.1f : 0});
    double norm = -1, expected_norm = 0;
    gradient_norm(addresses.data() + count, counts.data(), count, &norm, threads);
    const bool overlaps = one_in(4) && counts[0];
    if (overlaps) addresses[size_t(2 * count)] = addresses[0];  // the first mean is also the first parameter
    Index found = -1;
    adam(addresses.data(), counts.data(), count, settings.data(), 0.5f, &found, threads);
    expect(double(found), overlaps, 0);
    for (Index i = 0; i < count; i++) {
        const auto old = [&](Index kind, Index j) { return double(before[size_t(kind * count + i)][size_t(j)]); };
        const auto now = [&](Index kind, Index j) { return double((*tensors[size_t(kind * count + i)])[j]); };
        for (Index j = 0; j < counts[size_t(i)]; j++) {
            const Adam& s = settings[size_t(i)];
            const double g = old(1, j) / 2, steps = 8;
            const double m = old(2, j) * s.beta1 + g * (1 - double(s.beta1)), v = old(3, j) * s.beta2 + g * g * (1 - double(s.beta2));
            const double size = std::sqrt(v / (1 - std::pow(double(s.beta2), steps))) + s.eps;
            const double p = old(0, j) * (1 - double(s.rate) * s.decay) - s.rate * m / (1 - std::pow(double(s.beta1), steps)) / size;
            expected_norm += old(1, j) * old(1, j);
            expect(now(0, j), overlaps ? old(0, j) : p, 1 + std::abs(s.rate * m / size));
            expect(now(2, j), overlaps ? old(2, j) : m, 4);
            expect(now(3, j), overlaps ? old(3, j) : v, 4);
        }
    }
    expect(norm, std::sqrt(expected_norm), norm, 1e-5);
}
}  // namespace

#include "fused_program.h"
#include "learning.h"

namespace {

struct Kernel {
    const char* name;
    void (*attempt)(int threads);
};
const Kernel KERNELS[] = {
    {"linear_float32", [](int threads) { try_linear<float>(linear_float32, threads); }},
    {"linear_bfloat16", [](int threads) { try_linear<uint16_t>(linear_bfloat16, threads); }},
    {"linear_int8", [](int threads) { try_linear<int8_t>(linear_int8, threads); }},
    {"decode_attention", try_decode_attention},
    {"top_tokens", try_top_tokens},
    {"cross_entropy_float32", [](int threads) { try_cross_entropy<float>(cross_entropy_float32, threads); }},
    {"cross_entropy_bfloat16", [](int threads) { try_cross_entropy<uint16_t>(cross_entropy_bfloat16, threads); }},
    {"softmax_float32", [](int threads) { try_softmax<float>(softmax_float32, softmax_backward_float32, threads); }},
    {"softmax_bfloat16", [](int threads) { try_softmax<uint16_t>(softmax_bfloat16, softmax_backward_bfloat16, threads); }},
    {"activate_float32", try_activate<float>},
    {"activate_bfloat16", try_activate<uint16_t>},
    {"adam", try_adam},
    {"fused_step", try_fused_step},
    {"linear_learning_float32", try_linear_learning<Float32>},
    {"flash_attention_float32", try_flash_attention<Float32>},
#ifdef __AVX512BF16__
    {"linear_learning_bfloat16", try_linear_learning<Bfloat16>},
    {"flash_attention_bfloat16", try_flash_attention<Bfloat16>},
#endif
};

void plant(const std::string& fault) {
    if (fault == "overread") {
        Memory<float> x(8), w(8), y(1);
        linear_float32(x, w, nullptr, nullptr, y, 1, 9, 1, 1);
    } else if (fault == "overflow") {
        Memory<float> x(1);
        linear_float32(x, x, nullptr, nullptr, x, Index(1) << 40, Index(1) << 40, 1, 1);
    } else if (fault == "race") {
        volatile Index count = 0;
        parallel_for(4, [&](ThreadRange) {
            for (int i = 0; i < 1000; i++) count = count + 1;
        });
    }
}

}  // namespace

int main(int argc, char** argv) {
#if defined(__AMX_TILE__) && !defined(SOFTWARE_AMX)
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA)) return fprintf(stderr, "this process may not use AMX tiles\n"), 2;
#endif
    if (argc < 4) return fprintf(stderr, "driver CASES SEED THREADS [overread | overflow | race]\n"), 2;
    const Index cases = atoll(argv[1]), seed = atoll(argv[2]);
    if (argc > 4) plant(argv[4]);
    constexpr Index COUNT = sizeof KERNELS / sizeof *KERNELS;
    for (case_number = 0; case_number < cases; case_number++) {
        engine.seed(uint64_t(seed * 1000000007 + case_number));
        kernel = KERNELS[case_number % COUNT].name;
        KERNELS[case_number % COUNT].attempt(atoi(argv[3]));
    }
    printf("%lld cases of %lld kernels\n", (long long)cases, (long long)COUNT);
}
