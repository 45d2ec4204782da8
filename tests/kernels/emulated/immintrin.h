// The AMX and AVX-512 instructions that ffn/kernels uses, in plain C++: `-I tests/kernels/emulated` makes the compiler
// find this file in the place of its own, so that the kernels run on any x86 CPU.
//
// The results are those of Intel's manual, bit by bit, but for products that underflow or overflow and denormal sums
// within a product of tiles. As on the hardware, tiles must be set up first and shapes must match; here the program
// stops with a message if they do not.
#pragma once

#include <emmintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using __m512 = float __attribute__((vector_size(64), may_alias));
using __m512i = long long __attribute__((vector_size(64), may_alias));
using __m512bh = short __attribute__((vector_size(64), may_alias));
using __m256i = long long __attribute__((vector_size(32), may_alias));
using __m128bh = short __attribute__((vector_size(16), may_alias));
using __mmask16 = uint16_t;
constexpr int _CMP_GT_OQ = 30;

namespace emulated {

using Words = uint16_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));
using Ints = uint32_t __attribute__((vector_size(64)));

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "emulated instruction: %s\n", what);
  std::abort();
}

// Denormal numbers become zero of the same sign.
inline __m512 flush(__m512 a) {
  const Ints bits = (Ints)a;
  return (__m512)((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

// The numbers at even (0) or odd (1) places of 32 bfloat16.
inline __m512 widen(__m512i pairs, int odd) {
  return flush((__m512)(odd ? (Ints)pairs & 0xffff0000 : (Ints)pairs << 16));
}

inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return bits >> 16 | 0x40;
  if (std::fpclassify(value) == FP_SUBNORMAL) bits &= 0x80000000;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// The vector whose lane i is lane `from(i)` of `a` and `b` in a row.
template <class Lane, class From>
__m512i pick(__m512i a, __m512i b, const From& from) {
  constexpr int count = 64 / sizeof(Lane);
  Lane all[2 * count], picked[count];
  std::memcpy(all, &a, 64);
  std::memcpy(all + count, &b, 64);
  for (int i = 0; i < count; ++i) picked[i] = all[from(i)];
  std::memcpy(&a, picked, 64);
  return a;
}

}  // namespace emulated

// --- Vectors --------------------------------------------------------------------------------------------

inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512 _mm512_set1_ps(float value) {
  __m512 all;
  for (int i = 0; i < 16; ++i) all[i] = value;
  return all;
}
inline __m512i _mm512_set1_epi16(uint16_t value) { return (__m512i)(emulated::Words{} + value); }

inline __m512 _mm512_loadu_ps(const float* from) {
  __m512 a;
  std::memcpy(&a, from, 64);
  return a;
}
inline __m512i _mm512_loadu_si512(const void* from) {
  __m512i a;
  std::memcpy(&a, from, 64);
  return a;
}
inline __m512i _mm512_load_si512(const void* from) { return *static_cast<const __m512i*>(from); }
inline void _mm512_storeu_ps(float* to, __m512 a) { std::memcpy(to, &a, 64); }
inline void _mm512_storeu_si512(void* to, __m512i a) { std::memcpy(to, &a, 64); }
inline void _mm512_store_si512(void* to, __m512i a) { *static_cast<__m512i*>(to) = a; }

inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
inline float _mm512_reduce_add_ps(__m512 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a[i] += a[i + half];
  return a[0];
}
inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int comparison) {
  emulated::require(comparison == _CMP_GT_OQ, "only > is emulated");
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) mask |= (a[i] > b[i]) << i;
  return mask;
}
inline __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a) {
  for (int i = 0; i < 16; ++i) a[i] = mask >> i & 1 ? a[i] : 0.0f;
  return a;
}

inline __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
inline __m256i _mm512_extracti64x4_epi64(__m512i a, int half) {
  __m256i part;
  std::memcpy(&part, reinterpret_cast<const char*>(&a) + 32 * half, 32);
  return part;
}
inline __m256i _mm512_castsi512_si256(__m512i a) { return _mm512_extracti64x4_epi64(a, 0); }
inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return (__m512i)__builtin_convertvector((emulated::Halves)a, emulated::Ints);
}
inline __m512i _mm512_slli_epi32(__m512i a, unsigned count) { return (__m512i)((emulated::Ints)a << count); }
inline __m512i _mm512_add_epi16(__m512i a, __m512i b) { return (__m512i)((emulated::Words)a + (emulated::Words)b); }
inline __m512i _mm512_mask_i32gather_epi32(__m512i otherwise, __mmask16 mask, __m512i index, const void* base,
                                           int scale) {
  emulated::Ints values = (emulated::Ints)otherwise;
  for (int i = 0; i < 16; ++i) {
    uint32_t value = values[i];
    const int64_t offset = static_cast<int32_t>(((emulated::Ints)index)[i]);
    if (mask >> i & 1) std::memcpy(&value, static_cast<const char*>(base) + offset * scale, 4);
    values[i] = value;
  }
  return (__m512i)values;
}

inline __m512i _mm512_permutex2var_epi16(__m512i a, __m512i index, __m512i b) {
  return emulated::pick<uint16_t>(a, b, [&](int i) { return ((emulated::Words)index)[i] & 63; });
}
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
  return emulated::pick<uint32_t>(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * 16; });
}
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
  return emulated::pick<uint32_t>(a, b, [](int i) { return i / 4 * 4 + i % 4 / 2 + i % 2 * 16 + 2; });
}
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  return emulated::pick<uint64_t>(a, b, [](int i) { return i / 2 * 2 + i % 2 * 8; });
}
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  return emulated::pick<uint64_t>(a, b, [](int i) { return i / 2 * 2 + i % 2 * 8 + 1; });
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int choice) {
  return emulated::pick<uint64_t>(a, b, [=](int i) { return (choice >> i / 2 * 2 & 3) * 2 + i % 2 + i / 4 * 8; });
}

inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  __m512bh both;
  for (int i = 0; i < 16; ++i) both[i] = emulated::narrow(low[i]), both[16 + i] = emulated::narrow(high[i]);
  return both;
}
inline __m128bh _mm_cvtneps_pbh(__m128 a) {
  __m128bh values = {};
  for (int i = 0; i < 4; ++i) values[i] = emulated::narrow(a[i]);
  return values;
}
inline __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  for (const int odd : {1, 0})
    sums = emulated::flush(emulated::flush(sums) + emulated::widen((__m512i)a, odd) * emulated::widen((__m512i)b, odd));
  return sums;
}

// --- Tiles ----------------------------------------------------------------------------------------------

namespace emulated {

struct Config {  // as ldtilecfg reads it
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

struct Tiles {
  Config config = {};
  __m512i rows[8][16];
};
inline thread_local Tiles tiles;

inline __m512i* tile(int index) {
  require(tiles.config.palette == 1, "a tile is used that is not set up");
  return tiles.rows[index];
}
inline int rows(int index) { return tiles.config.rows[index]; }
inline int row_bytes(int index) { return tiles.config.row_bytes[index]; }

}  // namespace emulated

inline void _tile_release() { emulated::tiles.config = {}; }
inline void _tile_zero(int index) { std::memset(emulated::tile(index), 0, 16 * 64); }
inline void _tile_loadconfig(const void* config) {
  using namespace emulated;
  std::memcpy(&tiles.config, config, sizeof(Config));
  for (int i = 0; i < 16; ++i)
    require(rows(i) <= (i < 8 ? 16 : 0) && row_bytes(i) <= (i < 8 ? 64 : 0), "a tile is larger than there are");
  for (int i = 0; i < 8; ++i) _tile_zero(i);
}
inline void _tile_loadd(int index, const void* from, int64_t stride) {
  _tile_zero(index);
  for (int row = 0; row < emulated::rows(index); ++row)
    std::memcpy(emulated::tile(index) + row, static_cast<const char*>(from) + row * stride, emulated::row_bytes(index));
}
inline void _tile_stored(int index, void* to, int64_t stride) {
  for (int row = 0; row < emulated::rows(index); ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, emulated::tile(index) + row, emulated::row_bytes(index));
}
inline void _tile_dpbf16ps(int sums, int a, int b) {
  using namespace emulated;
  require(rows(sums) == rows(a) && row_bytes(a) == 4 * rows(b) && row_bytes(sums) == row_bytes(b), "shapes of tiles");
  __m512 b_parts[2][16];
  for (int k = 0; k < rows(b); ++k)
    for (const int odd : {0, 1}) b_parts[odd][k] = widen(tile(b)[k], odd);
  for (int row = 0; row < rows(sums); ++row) {
    __m512 totals[2] = {};
    for (const int odd : {0, 1}) {
      const __m512 a_row = widen(tile(a)[row], odd);
      for (int k = 0; k < rows(b); ++k) totals[odd] += a_row[k] * b_parts[odd][k];
    }
    tile(sums)[row] = (__m512i)flush(flush((__m512)tile(sums)[row]) + flush(totals[0] + totals[1]));
  }
}
