// y = (x wT) * scale + bias for few rows of x: every weight is read once, in order, and meets all rows while it is in a register.
//
// x (M, K) float; w (N, K) float, bfloat16 or int8; scale (N) and bias (N) float, or null; y (M, N) float.
// Weights are widened to float on the way into the registers, so the arithmetic is that of float in all three cases.
#include <cstdint>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

using Index = int64_t;
constexpr int LANES = 8;
typedef float Floats __attribute__((vector_size(32), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(32), aligned(4)));
typedef uint32_t Words __attribute__((vector_size(32), aligned(4)));
typedef int8_t Bytes __attribute__((vector_size(8), aligned(1)));
typedef uint16_t Halves __attribute__((vector_size(16), aligned(2)));

inline Floats widen(const float* w) { return *(const Floats*)w; }
#ifdef __AVX2__  // the compiler knows no short way for these two
inline Floats widen(const int8_t* w) {
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)w)));
}
inline Floats widen(const uint16_t* w) {
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)w)), 16);
}
#else
inline Floats widen(const int8_t* w) {
    return __builtin_convertvector(__builtin_convertvector(*(const Bytes*)w, Ints), Floats);
}
inline Floats widen(const uint16_t* w) { return (Floats)(__builtin_convertvector(*(const Halves*)w, Words) << 16); }
#endif

// Always one rounding: left to itself the compiler takes one in some tiles and two in others.
inline Floats multiply_add(Floats a, Floats b, Floats sum) {
#ifdef __FMA__
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

inline float widen_one(float w) { return w; }
inline float widen_one(int8_t w) { return w; }
inline float widen_one(uint16_t w) {
    const uint32_t bits = uint32_t(w) << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

template <typename W>
struct Product {
    const float* x;
    const W* w;
    const float *scale, *bias;
    float* y;
    Index K, N;

    // Rows m.. and columns n.., ROWS x COLUMNS of y, whose sums stay in registers throughout.
    template <int ROWS, int COLUMNS>
    void tile(Index m, Index n) const {
        const float* rows = x + m * K;
        const W* columns = w + n * K;
        // The next tile's weights lie right behind, and are sent for a piece at a step. The machine does so by itself for
        // one row of floats, and then this is in its way.
        constexpr bool FETCH = sizeof(W) < 4 || ROWS > 1;
        Floats sums[ROWS][COLUMNS] = {};
        Index k = 0;
        for (; k + LANES <= K; k += LANES) {
            if (FETCH && m == 0)
                for (size_t ahead = 0; ahead < COLUMNS * LANES * sizeof(W); ahead += 64)
                    __builtin_prefetch((const char*)(columns + COLUMNS * (K + k)) + ahead);
            Floats wide[COLUMNS];
            for (int c = 0; c < COLUMNS; c++) wide[c] = widen(columns + c * K + k);
            for (int r = 0; r < ROWS; r++) {
                const Floats part = *(const Floats*)(rows + r * K + k);
                for (int c = 0; c < COLUMNS; c++) sums[r][c] = multiply_add(part, wide[c], sums[r][c]);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                const Floats s = sums[r][c];  // added up in one order whatever the tile: a row owes its neighbours nothing
                float sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
                for (Index j = k; j < K; j++) sum = __builtin_fmaf(rows[r * K + j], widen_one(columns[c * K + j]), sum);
                const float scaled = scale ? sum * scale[n + c] : sum;
                y[(m + r) * N + n + c] = bias ? scaled + bias[n + c] : scaled;
            }
        }
    }

    template <int COLUMNS>
    void all_rows(Index M, Index n) const {
        Index m = 0;
        for (; m + 4 <= M; m += 4) tile<4, COLUMNS>(m, n);
        if (M - m == 3) tile<3, COLUMNS>(m, n);
        if (M - m == 2) tile<2, COLUMNS>(m, n);
        if (M - m == 1) tile<1, COLUMNS>(m, n);
    }

    template <int COLUMNS>
    void all(Index M, int threads) const {
        const Index blocks = (N + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(threads) if (M * N * K > (1 << 17))
        for (Index block = 0; block < blocks; block++) {
            Index n = block * COLUMNS;
            if (n + COLUMNS <= N)
                all_rows<COLUMNS>(M, n);
            else
                for (; n < N; n++) all_rows<1>(M, n);
        }
    }
};

template <typename W>
void linear(const float* x, const W* w, const float* scale, const float* bias, float* y, Index M, Index K, Index N,
            int threads) {
    const Product<W> product{x, w, scale, bias, y, K, N};
    if (M == 1)
        product.template all<8>(M, threads);
    else if (M == 2)
        product.template all<4>(M, threads);
    else
        product.template all<3>(M, threads);
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
}
