// Compiled once for each instruction set: FFN_INSTRUCTIONS names it, FFN_LANES are the floats of its vectors.
#include "winograd.h"

namespace ffn {
namespace {

constexpr int kLanes = FFN_LANES;
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef float Unaligned __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

constexpr int kBlockVectors = kBlock / kLanes;

#define ALWAYS inline __attribute__((always_inline))

ALWAYS Vector load(const float* from) { return *(const Unaligned*)from; }
ALWAYS void store(float* to, Vector value) { *(Unaligned*)to = value; }
// Keeps GCC from reading a value from memory again for each use: CPUs read two vectors a cycle.
ALWAYS void keep(Vector& value) {
#if defined(__AVX512F__) || (defined(__AVX2__) && FFN_LANES == 8)
  asm("" : "+v"(value));
#else
  (void)value;
#endif
}

ALWAYS Vector relu(Vector value) { return value < 0 ? Vector{} : value; }  // NaN stays NaN

ALWAYS int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

ALWAYS int64_t block_width(const Shape& shape, int64_t block) {
  const int64_t left = shape.features - block * kBlock;
  return left > kBlock / 2 ? kBlock : kBlock / 2;
}

// --- Products ---------------------------------------------------------------------------------------------

// What a matrix product sums over, in segments: how many values, and where their rows and weights begin.
struct Segments {
  int count = 0;
  struct {
    int64_t length;
    const float *rows, *weights;
  } each[3 * kMaxBlocks];  // the first convolution needs 9
  ALWAYS void add(int64_t length, const float* rows, const float* weights) { each[count++] = {length, rows, weights}; }
};

// kNum rows of sums, of kVectors vectors each. Rows of values are kStep floats apart, rows of sums kBlock.
template <int kNum, int kVectors, int kStep>
ALWAYS void multiply_rows(const Segments& segments, int64_t row, const float* bias, float* sums) {
  Vector sum[kNum][kVectors];
  for (int i = 0; i < kNum; ++i)
    for (int v = 0; v < kVectors; ++v) sum[i][v] = bias ? load(bias + v * kLanes) : Vector{};
  for (int s = 0; s < segments.count; ++s) {
    const float* values = segments.each[s].rows + row * kStep;
    const float* weights = segments.each[s].weights;
    for (int64_t k = segments.each[s].length; k > 0; --k, ++values, weights += kVectors * kLanes) {
      Vector weight[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = load(weights + v * kLanes);
        keep(weight[v]);
        if (kNum > kVectors) continue;  // registers hold the values or the weights, whichever are fewer
#pragma GCC unroll 14
        for (int i = 0; i < kNum; ++i) sum[i][v] += values[i * kStep] * weight[v];
      }
      if (kNum <= kVectors) continue;
#pragma GCC unroll 14
      for (int i = 0; i < kNum; ++i)
        for (int v = 0; v < kVectors; ++v) sum[i][v] += values[i * kStep] * weight[v];
    }
  }
  for (int i = 0; i < kNum; ++i)
    for (int v = 0; v < kVectors; ++v) store(sums + (row + i) * kBlock + v * kLanes, sum[i][v]);
}

// Groups of rows, as large as the registers allow and as equal as can be.
template <int kVectors, int kStep, int kNum>
ALWAYS void multiply_some(int num, const Segments& segments, int64_t row, const float* bias, float* sums) {
  if (num == kNum) return multiply_rows<kNum, kVectors, kStep>(segments, row, bias, sums);
  if constexpr (kNum > 1) multiply_some<kVectors, kStep, kNum - 1>(num, segments, row, bias, sums);
}

// Not inlined: constants of the code around it would take registers.
template <int kVectors, int kStep>
__attribute__((noinline)) void multiply(const Segments& segments, int64_t rows, const float* bias, float* sums) {
  constexpr int kRows = kLanes == 16 ? 14 : 12 / kVectors;  // whose sums fit the registers
  const int64_t groups = (rows + kRows - 1) / kRows;
  int64_t row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int num = (int)((rows - row + groups - group - 1) / (groups - group));
    multiply_some<kVectors, kStep, kRows>(num, segments, row, bias, sums);
    row += num;
  }
}

template <int kStep>
ALWAYS void multiply_block(int64_t width, const Segments& segments, int64_t rows, const float* bias, float* sums) {
  if (width == kBlock)
    multiply<kBlockVectors, kStep>(segments, rows, bias, sums);
  else
    multiply<kBlockVectors / 2, kStep>(segments, rows, bias, sums);
}

// --- Transforms -------------------------------------------------------------------------------------------

constexpr float kA = (float)kNear, kB = (float)kFar, kA2 = 0.5f, kB2 = 2.0f, kA3 = kA * kA2, kB3 = kB * kB2;

// Six inputs, as a polynomial, at the six points.
ALWAYS void to_points(const Vector x[kPatch], Vector at[kPatch]) {
  const Vector even_a = x[4] - kB2 * x[2], odd_a = x[3] - kB2 * x[1];
  const Vector even_b = x[4] - kA2 * x[2], odd_b = x[3] - kA2 * x[1];
  at[0] = (x[0] + x[4]) - (kA2 + kB2) * x[2];
  at[1] = even_a + kA * odd_a;
  at[2] = even_a - kA * odd_a;
  at[3] = even_b + kB * odd_b;
  at[4] = even_b - kB * odd_b;
  at[5] = (x[1] + x[5]) - (kA2 + kB2) * x[3];
}

// Four outputs from the products at the six points.
ALWAYS void from_points(const Vector at[kPatch], Vector y[kTile]) {
  const Vector even_a = at[1] + at[2], odd_a = at[1] - at[2], even_b = at[3] + at[4], odd_b = at[3] - at[4];
  y[0] = at[0] + even_a + even_b;
  y[1] = kA * odd_a + kB * odd_b;
  y[2] = kA2 * even_a + kB2 * even_b;
  y[3] = kA3 * odd_a + kB3 * odd_b + at[5];
}

// One vector of channels of a patch to all positions.
ALWAYS void transform_patch(const float* from, int64_t row, int64_t position, float* to) {
  Vector half[kPatch][kPatch];  // transformed along y
  for (int x = 0; x < kPatch; ++x) {
    Vector in[kPatch], out[kPatch];
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) in[y] = relu(load(from + y * row + x * kBlock));
    to_points(in, out);
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) half[y][x] = out[y];
  }
  for (int y = 0; y < kPatch; ++y, to += kPatch * position) {
    Vector out[kPatch];
    to_points(half[y], out);
#pragma GCC unroll 6
    for (int x = 0; x < kPatch; ++x) store(to + x * position, out[x]);
  }
}

__attribute__((noinline)) void transform_plane(const Shape& shape, const Strip& strip, int64_t z, float* to) {
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const float* plane = strip.from + block * shape.block + z * shape.plane;
    float* tile = to + block * shape.tile_block;
    for (int64_t row = strip.row_begin; row < strip.row_end; ++row)
      for (int64_t column = 0; column < shape.tile_columns; ++column, tile += kBlock) {
        const float* patch = plane + row * kTile * shape.row + column * kTile * kBlock;
        for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes)
          transform_patch(patch + channel, shape.row, shape.position, tile + channel);
      }
  }
}

// One vector of channels from all positions to a tile of outputs, of which `rows` x `columns` exist.
template <bool kAdd>
ALWAYS void transform_tile(const float* from, int64_t position, Vector bias, float* to, int64_t row, int64_t rows,
                           int64_t columns) {
  Vector half[kTile][kPatch];  // transformed along y
  for (int x = 0; x < kPatch; ++x) {
    Vector in[kPatch], out[kTile];
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) in[y] = load(from + (y * kPatch + x) * position);
    from_points(in, out);
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) half[y][x] = out[y];
  }
  for (int64_t y = 0; y < rows; ++y, to += row) {
    Vector out[kTile];
    from_points(half[y], out);
#pragma GCC unroll 4
    for (int x = 0; x < kTile; ++x)
      if (x < columns) {
        float* voxel = to + x * kBlock;
        store(voxel, kAdd ? load(voxel) + (out[x] + bias) : out[x] + bias);
      }
  }
}

template <bool kAdd>
__attribute__((noinline)) void transform_products(const Shape& shape, const Strip& strip, int64_t width, const float* bias, float* plane) {
  const float* from = strip.workspace;
  for (int64_t row = strip.row_begin; row < strip.row_end; ++row)
    for (int64_t column = 0; column < shape.tile_columns; ++column, from += kBlock) {
      const int64_t y = row * kTile, x = column * kTile;
      float* tile = plane + (y + 1) * shape.row + (x + 1) * kBlock;
      for (int64_t channel = 0; channel < width; channel += kLanes)
        transform_tile<kAdd>(from + channel, shape.position, load(bias + channel), tile + channel, shape.row,
                             least(kTile, shape.y - y), least(kTile, shape.x - x));
    }
}

// --- Units of work ----------------------------------------------------------------------------------------

// The product of all tiles of a strip at one position of the patch; moves `weights` on to the next position.
ALWAYS void multiply_position(const Shape& shape, const Strip& strip, float* const planes[3], int64_t z,
                              int64_t position, int64_t width, const float*& weights) {
  Segments segments;
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const int64_t inputs = least(shape.features - block * kBlock, kBlock);
    for (int64_t from = z - 1; from < z + 2; ++from, weights += inputs * width)
      if (from >= 0 && from < shape.z)
        segments.add(inputs, planes[from % 3] + block * shape.tile_block + position * shape.position, weights);
  }
  const int64_t tiles = (strip.row_end - strip.row_begin) * shape.tile_columns;
  multiply_block<kBlock>(width, segments, tiles, nullptr, strip.workspace + position * shape.position);
}

void convolve(const Shape& shape, const Strip& strip) {
  float* planes[3];  // transformed plane z is in planes[z % 3], after the products
  for (int i = 0; i < 3; ++i) planes[i] = strip.workspace + (1 + i * shape.blocks) * shape.tile_block;
  int64_t next = strip.z_begin ? strip.z_begin - 1 : 0;
  for (int64_t z = strip.z_begin; z < strip.z_end; ++z) {
    for (; next < least(z + 2, shape.z); ++next) transform_plane(shape, strip, next, planes[next % 3]);
    const float* weights = strip.weights.values;
    for (int64_t block = 0; block < shape.blocks; ++block) {
      const int64_t width = block_width(shape, block);
      for (int64_t position = 0; position < kPositions; ++position)
        multiply_position(shape, strip, planes, z, position, width, weights);
      float* to = strip.to + block * shape.block + z * shape.plane;
      const float* bias = strip.weights.bias + block * kBlock;
      if (strip.add)
        transform_products<true>(shape, strip, width, bias, to);
      else
        transform_products<false>(shape, strip, width, bias, to);
    }
  }
}

void convolve_inputs(const Shape& shape, const float* pairs, Weights weights, int64_t z, float* to) {
  const int64_t row = (shape.x + 2) * 2, plane = (shape.y + 2) * row;
  const float* values = weights.values;
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const int64_t width = block_width(shape, block);
    for (int64_t y = 0; y < shape.y; ++y) {
      Segments segments;
      for (int tap = 0; tap < 9; ++tap)
        segments.add(6, pairs + (z + tap / 3) * plane + (y + tap % 3) * row, values + tap * 6 * width);
      float* sums = to + block * shape.block + z * shape.plane + (y + 1) * shape.row + kBlock;
      multiply_block<2>(width, segments, shape.x, weights.bias + block * kBlock, sums);
    }
    values += 9 * 6 * width;
  }
}

void update(const Shape& shape, const float* from, const float* weights, float bias, int64_t z, const float* pom,
            float* updated) {
  int64_t voxel = z * shape.y * shape.x;
  for (int64_t y = 0; y < shape.y; ++y)
    for (int64_t x = 0; x < shape.x; ++x, ++voxel) {
      Vector sums[16 / kLanes] = {};  // 16 partial sums with any vectors, so that all add up in the same order
      for (int64_t block = 0; block < shape.blocks; ++block) {
        const float* features = from + block * shape.block + z * shape.plane + (y + 1) * shape.row + (x + 1) * kBlock;
        for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes)
          sums[channel % 16 / kLanes] += relu(load(features + channel)) * load(weights + block * kBlock + channel);
      }
      float total = bias;
      for (int channel = 0; channel < 16; ++channel) total += sums[channel / kLanes][channel % kLanes];
      updated[voxel] = pom[voxel] + total;
    }
}

}  // namespace

extern const Instructions FFN_INSTRUCTIONS = {convolve, convolve_inputs, update};

}  // namespace ffn
