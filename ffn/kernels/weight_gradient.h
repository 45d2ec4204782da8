// Gradient of the weights: for each tap, the sum over positions of output gradient (32 x 1) x shifted input (1 x 32).
//
// Here the positions are what the matrix product sums over, so both operands are packed again, a range of positions at
// a time, in a workspace that stays in the L2 cache:
//     A   output gradient, transposed: [32 positions][32 channels] becomes [32 channels][32 positions], two tiles
//     B   input in pairs of positions: row q holds positions 2q and 2q+1, channel by channel. An odd shift needs the
//         pairs (2q+1, 2q+2), so there are two copies ("phases").
#pragma once

#include <algorithm>

#include "amx.h"

namespace ffn {

constexpr int64_t kRange = 4096;     // positions whose sum is one partial result, whatever the number of threads
constexpr int64_t kDepth = 32;       // positions of one product
constexpr int64_t kTile = 16 * 32;   // values of a tile A or B

// Two positions channel by channel: channels 0-15 to pairs[0..31], 16-31 to pairs[32..63].
inline void interleave(const bf16* first, const bf16* second, __m512i* low, __m512i* high) {
  alignas(64) static const uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low_index = _mm512_load_si512(kLow);
  const __m512i high_index = _mm512_add_epi16(low_index, _mm512_set1_epi16(16));
  const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  *low = _mm512_permutex2var_epi16(a, low_index, b);
  *high = _mm512_permutex2var_epi16(a, high_index, b);
}

// Pack both phases of `count` positions (even) from `input` on; a row of a phase is 64 values.
inline void pack_pairs(const bf16* input, int64_t count, bf16* even, bf16* odd) {
  for (int64_t pair = 0; pair < count / 2; ++pair) {
    const bf16* position = input + 2 * pair * kChannels;
    __m512i low, high;
    interleave(position, position + kChannels, &low, &high);
    _mm512_store_si512(even + pair * 64, low);
    _mm512_store_si512(even + pair * 64 + 32, high);
    interleave(position + kChannels, position + 2 * kChannels, &low, &high);
    _mm512_store_si512(odd + pair * 64, low);
    _mm512_store_si512(odd + pair * 64 + 32, high);
  }
}

// Transpose 16 x 16 elements of 32 bits.
inline void transpose(__m512i rows[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int k = 0; k < 2; ++k) {
      rows[i + 2 * k] = _mm512_unpacklo_epi64(t[i + k], t[i + 2 + k]);
      rows[i + 2 * k + 1] = _mm512_unpackhi_epi64(t[i + k], t[i + 2 + k]);
    }
  for (int i = 0; i < 16; i += 8)
    for (int k = 0; k < 4; ++k) {
      t[i + k] = _mm512_shuffle_i32x4(rows[i + k], rows[i + 4 + k], 0x88);
      t[i + 4 + k] = _mm512_shuffle_i32x4(rows[i + k], rows[i + 4 + k], 0xdd);
    }
  for (int k = 0; k < 8; ++k) {
    rows[k] = _mm512_shuffle_i32x4(t[k], t[8 + k], 0x88);
    rows[8 + k] = _mm512_shuffle_i32x4(t[k], t[8 + k], 0xdd);
  }
}

// Pack 32 positions into two tiles A, and add them to the sums of each channel, which are the bias gradient.
inline void pack_transposed(const bf16* gradient, bf16* tiles, Channels* total) {
  const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512i low[16], high[16];
  for (int pair = 0; pair < 16; ++pair) {
    const bf16* position = gradient + 2 * pair * kChannels;
    interleave(position, position + kChannels, &low[pair], &high[pair]);
    total->low = _mm512_dpbf16_ps(total->low, (__m512bh)low[pair], one);
    total->high = _mm512_dpbf16_ps(total->high, (__m512bh)high[pair], one);
  }
  transpose(low);
  transpose(high);
  for (int channel = 0; channel < 16; ++channel) {
    _mm512_store_si512(tiles + channel * 32, low[channel]);
    _mm512_store_si512(tiles + kTile + channel * 32, high[channel]);
  }
}

// Three taps in a row and 16 input channels over all `products`: sums[tap][output channel][input channel].
//
// Six tiles C take all of it, so that each position is read from the cache nine times for 27 taps: the neighbours in x
// are the same rows of pairs, shifted, and still in L1.
inline void multiply_row(const bf16* gradient, const bf16* const pairs[3], int64_t products, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  constexpr int64_t pair_bytes = 2 * kChannels * sizeof(bf16);
  for (int64_t i = 0; i < products; ++i) {
    const int64_t step = i * kDepth * kChannels;
    _tile_loadd(7, pairs[0] + step, pair_bytes);
    _tile_loadd(6, gradient + step, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, gradient + step + kTile, 64);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(7, pairs[1] + step, pair_bytes);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(6, gradient + step, 64);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(7, pairs[2] + step, pair_bytes);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(6, gradient + step + kTile, 64);
    _tile_dpbf16ps(5, 6, 7);
  }
  constexpr int64_t stride = kChannels * sizeof(float), tap = kChannels * kChannels;
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + tap / 2, stride);
  _tile_stored(2, sums + tap, stride);
  _tile_stored(3, sums + tap * 3 / 2, stride);
  _tile_stored(4, sums + 2 * tap, stride);
  _tile_stored(5, sums + tap * 5 / 2, stride);
}

// The packed operands of one range, in memory that belongs to one thread.
class Workspace {
 public:
  Workspace(bf16* memory, int64_t halo) : memory_(memory), halo_(halo) {}
  static int64_t size(int64_t halo) { return (3 * kRange + 4 * halo) * kChannels; }
  bf16* gradient() const { return memory_; }
  bf16* even() const { return memory_ + kRange * kChannels; }
  bf16* odd() const { return even() + (kRange + 2 * halo_) * kChannels; }
  int64_t halo() const { return halo_; }

 private:
  bf16* memory_;
  int64_t halo_;
};

// Weight gradients of positions [0, count) from `gradient` and `input` on (count a multiple of 32, at most kRange).
//
// Sums go to sums[tap][output channel][input channel], taps rounded up to a multiple of 3; those of the gradient itself
// to bias[32]. Both are overwritten.
inline void weight_gradient(const bf16* input, const bf16* gradient, int64_t count, const std::vector<int64_t>& offsets,
                            const Workspace& workspace, float* sums, float* bias) {
  const int64_t halo = workspace.halo(), taps = offsets.size();
  Channels total = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t i = 0; i < count; i += kDepth)
    pack_transposed(gradient + i * kChannels, workspace.gradient() + i * kChannels, &total);
  store(bias, total);
  pack_pairs(input - halo * kChannels, count + 2 * halo, workspace.even(), workspace.odd());
  memory_is_written();
  for (int64_t tap = 0; tap < taps; tap += 3)
    for (int64_t channel = 0; channel < kChannels; channel += 16) {
      const bf16* pairs[3];
      for (int64_t i = 0; i < 3; ++i) {
        const int64_t first = halo + offsets[std::min(tap + i, taps - 1)];
        pairs[i] = (first % 2 ? workspace.odd() : workspace.even()) + first / 2 * 2 * kChannels + channel * 2;
      }
      multiply_row(workspace.gradient(), pairs, count / kDepth, sums + tap * kChannels * kChannels + channel);
    }
}

}  // namespace ffn
