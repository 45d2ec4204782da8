// How the float32 networks divide their work, and their weights as Winograd's products want them.
#pragma once

#include <algorithm>
#include <vector>

#include "winograd.h"

namespace ffn {

constexpr int64_t kStripTiles = 27;  // of a unit: the workspace and the weights of a convolution share the L2 cache
constexpr int64_t kInputTaps = 27 * 2;

inline int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

inline int64_t block_width(int64_t features, int64_t block) {
  return features - block * kBlock > kBlock / 2 ? kBlock : kBlock / 2;
}

struct Plan {
  Shape shape;
  int64_t strips;

  Plan(int64_t z, int64_t y, int64_t x, int64_t features) {
    shape = {z, y, x, features, divide_up(y, kTile), divide_up(x, kTile), 0, 0, 0, 0, 0, divide_up(features, kBlock)};
    shape.row = (shape.tile_columns * kTile + 2) * kBlock;
    shape.plane = (shape.tile_rows * kTile + 2) * shape.row;
    shape.block = z * shape.plane;
    strips = divide_up(shape.tile_rows, std::max<int64_t>(1, kStripTiles / shape.tile_columns));
    const int64_t tiles = divide_up(shape.tile_rows, strips) * shape.tile_columns;
    shape.position = (2 * tiles + 1) * (kBlock / 2);  // an odd number of cache lines, or all share a few of their sets
    shape.tile_block = kPositions * shape.position;
  }

  // Sizes in floats.
  int64_t map() const { return shape.blocks * shape.block; }
  int64_t pairs() const { return (shape.z + 2) * (shape.y + 2) * (shape.x + 2) * 2; }
  int64_t workspace() const { return 4 * shape.blocks * shape.tile_block; }
  int64_t width() const { return shape.blocks * kBlock; }
  int64_t weights() const { return kPositions * 3 * shape.features * width(); }
  int64_t first_weights() const { return kInputTaps * width(); }
  int64_t voxels() const { return shape.z * shape.y * shape.x; }

  int64_t row_begin(int64_t strip) const { return strip * shape.tile_rows / strips; }

  // Image and POM of one plane as pairs.
  void read_inputs(const float* image, const float* pom, int64_t z, float* pairs) const {
    const int64_t row = (shape.x + 2) * 2;
    float* plane = pairs + (z + 1) * (shape.y + 2) * row;
    int64_t voxel = z * shape.y * shape.x;
    for (int64_t y = 0; y < shape.y; ++y)
      for (int64_t x = 0; x < shape.x; ++x, ++voxel) {
        float* pair = plane + (y + 1) * row + (x + 1) * 2;
        pair[0] = image[voxel];
        pair[1] = pom[voxel];
      }
  }

  void pad(const float* from, float* to) const {
    std::fill(std::copy_n(from, shape.features, to), to + width(), 0.0f);
  }

  void order_first_weights(const float* weights, float* to) const {
    for (int64_t block = 0; block < shape.blocks; ++block)
      for (int64_t row = 0; row < kInputTaps; ++row)
        for (int64_t lane = block * kBlock; lane < block * kBlock + block_width(shape.features, block); ++lane, ++to)
          *to = lane < shape.features ? weights[row * shape.features + lane] : 0;
  }
};

// The values of a kernel along one axis at the six points, as a matrix.
struct Points {
  double of[kPatch][3];
  Points() {
    const double points[] = {kNear, -kNear, kFar, -kFar}, near = kNear * kNear, far = kFar * kFar;
    const double scales[] = {2 * near * (near - far), 2 * far * (far - near)};
    for (int tap = 0; tap < 3; ++tap) of[0][tap] = tap == 0 ? 1 / (near * far) : 0, of[5][tap] = tap == 2;
    for (int i = 0; i < 4; ++i)
      for (int tap = 0; tap < 3; ++tap)
        of[1 + i][tap] = (tap == 0 ? 1 : tap == 1 ? points[i] : points[i] * points[i]) / scales[i / 2];
  }
};

// Transform weights (z, y, x, input, output) and order them as `Weights` wants them. Mirrored, with inputs and outputs
// exchanged, they are those of the data gradient.
inline void transform_weights(const float* weights, int64_t features, bool mirrored, float* to) {
  static const Points points;
  const auto weight = [=](int64_t tap, int64_t input, int64_t output) -> double {
    if (output >= features) return 0;
    if (mirrored) return weights[((26 - tap) * features + output) * features + input];
    return weights[(tap * features + input) * features + output];
  };
  for (int64_t out = 0; out < features; out += kBlock) {
    const int64_t width = block_width(features, out / kBlock), position_size = 3 * features * width;
    for (int64_t z = 0; z < 3; ++z)
      for (int64_t input = 0; input < features; ++input) {
        const int64_t block = input / kBlock * kBlock, inputs = std::min(kBlock, features - block);
        float* values = to + (block * 3 + z * inputs + input - block) * width;
        double given[9][kBlock], half[kPatch][3][kBlock] = {};
        for (int64_t tap = 0; tap < 9; ++tap)
          for (int64_t lane = 0; lane < width; ++lane) given[tap][lane] = weight(z * 9 + tap, input, out + lane);
        for (int64_t y = 0; y < kPatch; ++y)
          for (int64_t tap = 0; tap < 9; ++tap)
            for (int64_t lane = 0; lane < width; ++lane)
              half[y][tap % 3][lane] += points.of[y][tap / 3] * given[tap][lane];
        for (int64_t position = 0; position < kPositions; ++position) {
          const auto& row = half[position / kPatch];
          const double* x = points.of[position % kPatch];
          for (int64_t lane = 0; lane < width; ++lane)
            values[position * position_size + lane] =
                static_cast<float>(x[0] * row[0][lane] + x[1] * row[1][lane] + x[2] * row[2][lane]);
        }
      }
    to += kPositions * position_size;
  }
}

inline const Instructions& instructions_of(int lanes) {
#ifdef __x86_64__
  if (lanes == 16) return kAvx512;
  if (lanes == 8) return kAvx2;
#endif
  (void)lanes;
  return kPlain;
}

}  // namespace ffn
