// Emulation of Intel's AMX tiles for CPUs that lack them, based on the emulation of AVX-512; only for tests. Included
// first, it compiles the kernels as for the level x86-64-v4-amx. Using a tile that is not configured, or with another
// shape, aborts. Two products are added with two roundings, like the instruction, which also flushes subnormal numbers.
#pragma once
#include <cstdlib>

#include "avx512.h"

#define SOFTWARE_AMX 1
#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps

namespace amx {

struct Tile {
    int rows = 0, bytes = 0;  // 0: not configured
    char numbers[16][64];
};
inline thread_local Tile tiles[8];

inline Tile& shaped(int i) {
    if (!tiles[i].rows || !tiles[i].bytes) abort();
    return tiles[i];
}
inline void configure(const void* from) {
    const uint8_t* config = (const uint8_t*)from;
    if (config[0] != 1 || config[1] != 0) abort();
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;
        memcpy(&bytes, config + 16 + 2 * i, sizeof bytes);
        tiles[i].rows = config[48 + i], tiles[i].bytes = bytes;
        if (tiles[i].rows > 16 || bytes > 64) abort();
        memset(tiles[i].numbers, 0, sizeof tiles[i].numbers);
    }
}
inline void release() {
    for (Tile& tile : tiles) tile.rows = tile.bytes = 0;
}
inline void zero(int i) { memset(shaped(i).numbers, 0, sizeof tiles[i].numbers); }
inline void load(int i, const void* from, int64_t stride) {
    Tile& tile = shaped(i);
    memset(tile.numbers, 0, sizeof tile.numbers);
    for (int r = 0; r < tile.rows; r++) memcpy(tile.numbers[r], (const char*)from + r * stride, size_t(tile.bytes));
}
inline void store(int i, void* to, int64_t stride) {
    const Tile& tile = shaped(i);
    for (int r = 0; r < tile.rows; r++) memcpy((char*)to + r * stride, tile.numbers[r], size_t(tile.bytes));
}
inline void multiply(int sum, int left, int right) {
    const Tile &a = shaped(left), &b = shaped(right);
    Tile& c = shaped(sum);
    if (a.rows != c.rows || b.bytes != c.bytes || a.bytes != 4 * b.rows) abort();
    for (int m = 0; m < c.rows; m++)
        for (int n = 0; n < c.bytes / 4; n++) {
            float total;
            memcpy(&total, c.numbers[m] + 4 * n, sizeof total);
            for (int k = 0; k < b.rows; k++) {
                uint16_t x[2], y[2];
                memcpy(x, a.numbers[m] + 4 * k, sizeof x);
                memcpy(y, b.numbers[k] + 4 * n, sizeof y);
                for (int i = 0; i < 2; i++) total = std::fma(avx512::widen(x[i]), avx512::widen(y[i]), total);
            }
            memcpy(c.numbers[m] + 4 * n, &total, sizeof total);
        }
}

}  // namespace amx

#define _tile_loadconfig(from) amx::configure(from)
#define _tile_release() amx::release()
#define _tile_zero(tile) amx::zero(tile)
#define _tile_loadd(tile, from, stride) amx::load(tile, from, stride)
#define _tile_stored(tile, to, stride) amx::store(tile, to, stride)
#define _tile_dpbf16ps(sum, left, right) amx::multiply(sum, left, right)
