// Random inputs for the kernels: sizes and numbers from a seed, in memory that ends with the tensor.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

std::mt19937_64 engine;
const char* kernel;  // name and case number, to reproduce an error
Index case_number;

Index between(Index low, Index high) { return low + Index(engine() % uint64_t(high - low + 1)); }
bool one_in(Index count) { return between(1, count) == 1; }

template <typename T>
T draw();
template <>
float draw() { return float(between(-2000, 2000)) / 1000; }
template <>
uint16_t draw() { return uint16_t(between(0x3c00, 0x4000) | between(0, 1) << 15); }  // a bfloat16 of 2^-7 to 2
template <>
int8_t draw() { return int8_t(between(-128, 127)); }
template <>
uint8_t draw() { return !one_in(4); }  // an element of a mask
template <>
Index draw() { return 0; }

#if defined(__SANITIZE_ADDRESS__)
constexpr bool HAS_REDZONES = true;
#elif defined(__has_feature)
constexpr bool HAS_REDZONES = __has_feature(address_sanitizer);
#else
constexpr bool HAS_REDZONES = false;
#endif

// A tensor directly before or after a protected page, or between the red zones of AddressSanitizer.
template <typename T>
struct Memory {
    Index count;

    explicit Memory(Index numbers) : count(numbers) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = size_t(count) * sizeof(T);
        if (HAS_REDZONES) {
            at = (T*)malloc(bytes);
        } else {
            length = (bytes + page - 1) / page * page + 2 * page;
            pages = (char*)mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            mprotect(pages, page, PROT_NONE);
            mprotect(pages + length - page, page, PROT_NONE);
            at = (T*)(one_in(4) ? pages + page : pages + length - page - bytes);
        }
        for (Index i = 0; i < count; i++) at[i] = draw<T>();
    }
    Memory(const Memory&) = delete;
    ~Memory() { pages ? void(munmap(pages, length)) : free(at); }

    T& operator[](Index i) const { return at[i]; }
    operator T*() const { return count ? at : nullptr; }  // nullptr stands for a missing tensor
    Index address() const { return Index(at); }

private:
    T* at;
    char* pages = nullptr;
    size_t length = 0;
};

// `size`: sum of the absolute terms, to which rounding errors are proportional.
void expect(double found, double expected, double size, double tolerance = 2e-6) {
    if (std::abs(found - expected) <= tolerance * (size + 1)) return;
    fprintf(stderr, "%s, case %lld: %.9g instead of %.9g, size %.3g\n", kernel, (long long)case_number, found, expected, size);
    exit(1);
}

}  // namespace
