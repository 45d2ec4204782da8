// What all kernels need of AMX and AVX-512: tile set-up, and bfloat16 in and out of float32 vectors.
//
// Tiles are 16 rows of 64 bytes. _tile_dpbf16ps(C, A, B) adds A x B to C:
//     A   16 x 32 bfloat16, row-major
//     B   32 x 16 bfloat16 in pairs: its row i holds rows 2i and 2i+1 of the matrix, element by element
//     C   16 x 16 float32, row-major
// GCC's intrinsics for loads do not tell the compiler which memory they read: `memory_is_written` stands between
// ordinary stores and tile loads of the same memory.
#pragma once

#include <immintrin.h>

#include "layout.h"

namespace ffn {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void memory_is_written() { asm volatile("" ::: "memory"); }

// The calling thread may use tiles while this lives.
class Tiles {
 public:
  Tiles() {
    static const TileConfig config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

// The 32 channels of a position in float32.
struct Channels {
  __m512 low, high;
};

inline Channels load(const bf16* position) {
  const __m512i bits = _mm512_loadu_si512(position);
  const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bits));
  const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bits, 1));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
}

inline void store(bf16* position, Channels value) {  // rounds to nearest even
  _mm512_storeu_si512(position, (__m512i)_mm512_cvtne2ps_pbh(value.high, value.low));
}

inline Channels load(const float* values) { return {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16)}; }

inline void store(float* values, Channels value) {
  _mm512_storeu_ps(values, value.low);
  _mm512_storeu_ps(values + 16, value.high);
}

inline Channels operator+(Channels a, Channels b) {
  return {_mm512_add_ps(a.low, b.low), _mm512_add_ps(a.high, b.high)};
}

inline Channels operator*(Channels a, Channels b) {
  return {_mm512_mul_ps(a.low, b.low), _mm512_mul_ps(a.high, b.high)};
}

inline Channels relu(Channels a) {
  // NaN must stay NaN: the second operand is returned then
  return {_mm512_max_ps(_mm512_setzero_ps(), a.low), _mm512_max_ps(_mm512_setzero_ps(), a.high)};
}

// `a` where `by` is positive, 0 elsewhere.
inline Channels where_positive(Channels by, Channels a) {
  const __m512 zero = _mm512_setzero_ps();
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by.low, zero, _CMP_GT_OQ), a.low),
          _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by.high, zero, _CMP_GT_OQ), a.high)};
}

inline Channels keep_if(bool condition, Channels a) {
  const __mmask16 mask = condition ? 0xffff : 0;
  return {_mm512_maskz_mov_ps(mask, a.low), _mm512_maskz_mov_ps(mask, a.high)};
}

inline Channels times(float factor, Channels a) {
  const __m512 all = _mm512_set1_ps(factor);
  return {_mm512_mul_ps(all, a.low), _mm512_mul_ps(all, a.high)};
}

inline float sum(Channels a) { return _mm512_reduce_add_ps(_mm512_add_ps(a.low, a.high)); }

inline bf16 to_bf16(float value) {
  return (bf16)_mm_cvtsi128_si32((__m128i)_mm_cvtneps_pbh(_mm_set_ss(value)));
}

}  // namespace ffn
