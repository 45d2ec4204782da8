// Convolution and data gradient: for each position, a sum over taps of (1 x 32 channels) x (32 x 32 weights).
//
// Sixteen consecutive positions are a tile A as they lie in memory; the weights of a tap are two tiles B, one for each
// half of the output channels. Four tiles C take 64 positions x 16 output channels through all taps without being
// stored; weights of one half (27 KB) stay in the L1 cache meanwhile.
#pragma once

#include "amx.h"

namespace ffn {

constexpr int64_t kTapWeights = kChannels * kChannels;  // packed for tiles B: [half][pair of rows][16 columns][2]

// Pack the weights of one tap: element (row, column) lies at source[row * row_step + column * column_step].
inline void pack_weights(const float* source, int64_t rows, int64_t columns, int64_t row_step, int64_t column_step,
                         bf16* packed) {
  for (int64_t half = 0; half < 2; ++half)
    for (int64_t row = 0; row < kChannels; ++row)
      for (int64_t lane = 0; lane < 16; ++lane) {
        const int64_t column = half * 16 + lane;
        const bool exists = row < rows && column < columns;
        const float value = exists ? source[row * row_step + column * column_step] : 0.0f;
        packed[half * kTapWeights / 2 + (row / 2) * 32 + lane * 2 + row % 2] = to_bf16(value);
      }
}

// What one output block is computed from: for each tap its input, at position 0, and its packed weights in a row.
struct Taps {
  std::vector<const bf16*> inputs;
  const bf16* weights;
  int halves;  // 1 if there are at most 16 output channels
};

// Sums of 64 positions x 16 channels, written to every 32nd float from `sums` on; `meanwhile` is called for each tap.
template <class Meanwhile>
void multiply_group(const Taps& taps, int64_t position, int half, float* sums, const Meanwhile& meanwhile) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const bf16* weights = taps.weights + half * kTapWeights / 2;
  for (const bf16* input : taps.inputs) {
    const bf16* a = input + position * kChannels;
    _tile_loadd(6, weights, 64);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + 16 * kChannels, 64);
    _tile_dpbf16ps(1, 5, 6);
    meanwhile();
    _tile_loadd(4, a + 32 * kChannels, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(5, a + 48 * kChannels, 64);
    _tile_dpbf16ps(3, 5, 6);
    weights += kTapWeights;
  }
  constexpr int64_t stride = kChannels * sizeof(float);
  _tile_stored(0, sums, stride);
  _tile_stored(1, sums + 16 * kChannels, stride);
  _tile_stored(2, sums + 32 * kChannels, stride);
  _tile_stored(3, sums + 48 * kChannels, stride);
}

// Convolve positions [begin, end), a multiple of 64; finish(position, Channels) makes of each sum what is wanted.
//
// The sums of a group are finished while the next group is multiplied: the vector units have nothing else to do then.
template <class Finish>
void convolve(const Taps& taps, int64_t begin, int64_t end, const Finish& finish) {
  alignas(64) float sums[2][kGroup * kChannels] = {};
  memory_is_written();
  int64_t finished = begin;
  const auto finish_one = [&] {
    const float* from = sums[(finished - begin) / kGroup % 2] + (finished - begin) % kGroup * kChannels;
    finish(finished++, load(from));
  };
  for (int64_t position = begin; position < end; position += kGroup) {
    const auto finish_some = [&] {
      for (int i = 0; i < 2 && finished < position; ++i) finish_one();
    };
    float* group = sums[(position - begin) / kGroup % 2];
    for (int half = 0; half < taps.halves; ++half) multiply_group(taps, position, half, group + half * 16, finish_some);
    while (finished < position) finish_one();
  }
  while (finished < end) finish_one();
}

}  // namespace ffn
