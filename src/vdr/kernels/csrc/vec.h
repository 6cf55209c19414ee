/* One vector of floats as wide as the processor's registers; GCC and Clang turn it into AVX2, AVX-512, NEON or SSE. */
#ifndef VDR_VEC_H
#define VDR_VEC_H
#include <stdint.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif
/* VDR_SPLIT: the processor does 512 bits in two turns of 256, so wider lanes would only be emptier at a query's end (native.py). */
#if defined(__AVX512F__) && !defined(VDR_SPLIT)
#define VL 16
#else
#define VL 8
#endif
typedef float vf __attribute__((vector_size(VL * 4), aligned(4)));
typedef int32_t vi __attribute__((vector_size(VL * 4), aligned(4)));
typedef float hf __attribute__((vector_size(VL * 2), aligned(4))); /* half a register: 4 lanes cost half on 128-bit units */
typedef int32_t hi __attribute__((vector_size(VL * 2), aligned(4)));

static inline vf pick(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
static inline vi picki(vi mask, vi yes, vi no) { return (mask & yes) | (~mask & no); }

static inline vf splat(const float *x) {
#if VL == 16
    return (vf)_mm512_set1_ps(*x);
#elif defined(__AVX__) && !defined(__SANITIZE_ADDRESS__) /* the sanitizer does not see what a broadcast instruction reads */
    return (vf)_mm256_broadcast_ss(x);
#else
    vf y;
    for (int v = 0; v < VL; v++) y[v] = *x;
    return y;
#endif
}

static inline hf low_half(vf x) {
#if VL == 16
    return (hf)_mm512_castps512_ps256((__m512)x);
#elif defined(__AVX__)
    return (hf)_mm256_castps256_ps128((__m256)x);
#else
    hf y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
#endif
}

/* Larger of two; the second operand where either is NaN or both are equal. */
static inline hf hmax(hf a, hf b) {
#if VL == 16
    return (hf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__AVX__)
    return (hf)_mm_max_ps((__m128)a, (__m128)b);
#else
    const hi more = a > b;
    return (hf)((more & (hi)a) | (~more & (hi)b));
#endif
}

/* Second operand where either is NaN. */
static inline vf vmin(vf a, vf b) {
#if VL == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return pick(a < b, a, b);
#endif
}
static inline vf vmax(vf a, vf b) {
#if VL == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return pick(a > b, a, b);
#endif
}
static inline int any(vi mask) {
#if defined(__AVX__) && VL == 8
    return _mm256_movemask_ps((__m256)mask);
#else
    int hit = 0;
    for (int v = 0; v < VL; v++) hit |= mask[v];
    return hit;
#endif
}
#endif
