// Products with Intel's AMX tiles: one instruction multiplies sixteen rows of 32 bfloat16 by 32 rows of sixteen and
// adds the products in float. Each thread must configure its tiles before use and release them afterwards.
#pragma once
#include "vectors.h"

#ifdef __AMX_BF16__
namespace {

constexpr Index TILE = 16;  // rows of a tile, and its columns of 32 bits each

// Tile configuration of this thread. Tiles 0 to 3 are 2 x 2 sums; 4 and 5 are left operands, 6 and 7 right operands.
class Tiles {
    static thread_local Index upper, lower;  // rows of tiles 0, 1 and 4, and of 2, 3 and 5; 0 if not configured

public:
    static void shape(Index upper_rows, Index lower_rows) {
        if (upper == upper_rows && lower == lower_rows) return;
        upper = upper_rows, lower = lower_rows;
        struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        const Index rows[] = {upper, upper, lower, lower, upper, lower, TILE, TILE};
        for (int i = 0; i < 8; i++) shapes.bytes[i] = 4 * TILE, shapes.rows[i] = uint8_t(rows[i]);
        _tile_loadconfig(&shapes);
    }
    static void release() {
        if (!upper) return;
        upper = 0;
        _tile_release();
    }
};
thread_local Index Tiles::upper = 0, Tiles::lower = 0;

// The last steps of an operand, if they are less than a whole tile, padded with zeros.
struct TileRest {
    alignas(64) uint32_t pairs[TILE][TILE];

    void left(const uint16_t* x, Index row, Index rows, Index steps) {
        for (Index r = 0; r < rows; r++)
            _mm512_storeu_si512(pairs[r], _mm512_maskz_loadu_epi32(first_lanes(steps), x + r * row));
    }
    void right(const uint32_t* x, Index row, Index steps) {
        for (Index p = 0; p < TILE; p++)
            _mm512_storeu_si512(pairs[p], p < steps ? _mm512_loadu_si512(x + p * row) : _mm512_setzero_si512());
    }
};

// y (rows, columns) = initial + a b, with at most two tiles in each direction. a (rows, 2 steps) elements, b (steps,
// columns) pairs of them; y and initial as in `products.h`.
template <bool LOWER, bool SECOND, typename Y>
inline void multiply_tiles(const uint16_t* a, Index a_row, const uint32_t* b, Index b_row, Index steps, Index rows, Y* y,
                           Index y_row, const float* initial, Index initial_row) {
    const Index upper = LOWER ? TILE : rows, lower = LOWER ? rows - TILE : TILE;
    Tiles::shape(upper, lower);
    const Index a_bytes = 2 * a_row, b_bytes = 4 * b_row, initial_bytes = 4 * initial_row;
    if (initial) {
        const float* below = initial + TILE * initial_row;
        _tile_loadd(0, initial, initial_bytes);
        if constexpr (SECOND) _tile_loadd(1, initial + TILE, initial_bytes);
        if constexpr (LOWER) _tile_loadd(2, below, initial_bytes);
        if constexpr (LOWER && SECOND) _tile_loadd(3, below + TILE, initial_bytes);
    } else {
        _tile_zero(0);
        if constexpr (SECOND) _tile_zero(1);
        if constexpr (LOWER) _tile_zero(2);
        if constexpr (LOWER && SECOND) _tile_zero(3);
    }
    const auto add_products = [](const void* left, const void* below, Index left_bytes, const void* right,
                                 const void* second, Index right_bytes) {
        _tile_loadd(4, left, left_bytes);
        _tile_loadd(6, right, right_bytes);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (SECOND) {
            _tile_loadd(7, second, right_bytes);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (LOWER) {
            _tile_loadd(5, below, left_bytes);
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (LOWER && SECOND) _tile_dpbf16ps(3, 5, 7);
    };
    Index p = 0;
    for (; p + TILE <= steps; p += TILE) {
        const uint16_t* left = a + 2 * p;
        const uint32_t* right = b + p * b_row;
        add_products(left, left + TILE * a_row, a_bytes, right, right + TILE, b_bytes);
    }
    if (p < steps) {
        TileRest left, below, right, second;
        left.left(a + 2 * p, a_row, upper, steps - p);
        if constexpr (LOWER) below.left(a + 2 * p + TILE * a_row, a_row, lower, steps - p);
        right.right(b + p * b_row, b_row, steps - p);
        if constexpr (SECOND) second.right(b + p * b_row + TILE, b_row, steps - p);
        asm volatile("" ::: "memory");  // GCC's tile loads do not declare that they read memory
        add_products(left.pairs, below.pairs, 4 * TILE, right.pairs, second.pairs, 4 * TILE);
    }
    if constexpr (sizeof(Y) == sizeof(float)) {
        const Index y_bytes = 4 * y_row;
        Y* below = y + TILE * y_row;
        _tile_stored(0, y, y_bytes);
        if constexpr (SECOND) _tile_stored(1, y + TILE, y_bytes);
        if constexpr (LOWER) _tile_stored(2, below, y_bytes);
        if constexpr (LOWER && SECOND) _tile_stored(3, below + TILE, y_bytes);
    } else {
        constexpr Index WIDTH = SECOND ? 2 * TILE : TILE;
        alignas(64) float sums[(LOWER ? 2 : 1) * TILE * WIDTH];
        float* below = sums + TILE * WIDTH;
        _tile_stored(0, sums, 4 * WIDTH);
        if constexpr (SECOND) _tile_stored(1, sums + TILE, 4 * WIDTH);
        if constexpr (LOWER) _tile_stored(2, below, 4 * WIDTH);
        if constexpr (LOWER && SECOND) _tile_stored(3, below + TILE, 4 * WIDTH);
        for (Index r = 0; r < rows; r++)
            for (Index n = 0; n < WIDTH; n += WIDE) write(y + r * y_row + n, read(sums + r * WIDTH + n));
    }
}

}  // namespace
#endif
