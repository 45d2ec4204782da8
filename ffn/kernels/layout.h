// How a batch of feature maps lies in memory, so that a 3x3x3 convolution becomes a sum of shifted matrix products.
//
// A feature map is an array of positions; a position holds 32 channels in bfloat16: 64 bytes, one cache line and one
// row of an AMX tile. More than 32 features are several such arrays ("blocks"). The voxels of a sample are flattened
// with ONE column of zeros after each row and ONE row of zeros after each plane:
//
//     position(z, y, x) = (z * (Y + 1) + y) * (X + 1) + x
//
// The left neighbour of a row's first voxel then is the zero after the row before, and so on: the neighbour of any
// voxel in direction (dz, dy, dx) is a fixed number of positions away. Samples are separated by a halo of zeros.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace ffn {

using bf16 = uint16_t;                 // only its bits are moved around here
constexpr int64_t kChannels = 32;      // of a position
constexpr int64_t kGroup = 64;         // positions that the convolution computes at once: four tiles of 16
constexpr int kMaxTaps = 27;

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Layout {
  int64_t batch, z, y, x;

  int64_t row() const { return x + 1; }
  int64_t plane() const { return (y + 1) * row(); }
  int64_t halo() const { return round_up(plane() + row() + 1, kGroup); }
  // Positions of one sample, the last few of them beyond its last voxel.
  int64_t sample() const { return round_up(z * plane(), kGroup); }
  int64_t start(int64_t index) const { return halo() + index * (halo() + sample()); }
  // All positions of a block, and one more group so that vectors may read a little beyond.
  int64_t positions() const { return start(batch) + kGroup; }
  int64_t block_size() const { return positions() * kChannels; }

  // Distance in positions to each neighbour, in the order of a kernel's (dz, dy, dx).
  std::array<int64_t, kMaxTaps> taps() const {
    std::array<int64_t, kMaxTaps> offsets;
    for (int tap = 0; tap < kMaxTaps; ++tap)
      offsets[tap] = (tap / 9 - 1) * plane() + (tap / 3 % 3 - 1) * row() + tap % 3 - 1;
    return offsets;
  }

  // For each position of a sample whether it is a voxel.
  std::vector<uint8_t> voxels() const {
    std::vector<uint8_t> is_voxel(sample(), 0);
    for (int64_t position = 0; position < z * plane(); ++position)
      is_voxel[position] = position % row() < x && position / row() % (y + 1) < y;
    return is_voxel;
  }
};

// One feature map of all samples: `blocks` arrays of `layout.block_size()` values.
struct Map {
  bf16* data;
  int64_t block_size;
  bf16* at(int64_t block, int64_t position) const { return data + block * block_size + position * kChannels; }
};

}  // namespace ffn
