// Denormal numbers: on many CPUs, an operation that reads or returns one takes a hundred cycles.
#pragma once
#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// Computes with zero in place of denormal numbers in the calling thread, or exactly again.
inline void flush_denormals_of_thread(bool flush) {
#if defined(__SSE__)
    constexpr unsigned FLUSH = 0x8040;  // results (FTZ) and operands (DAZ)
    _mm_setcsr(flush ? _mm_getcsr() | FLUSH : _mm_getcsr() & ~FLUSH);
#elif defined(__aarch64__)
    constexpr uint64_t FLUSH = uint64_t(1) << 24;  // FZ of the register FPCR
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" : : "r"(flush ? control | FLUSH : control & ~FLUSH));
#endif
}
