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

// How the operands of a product lie in memory: the distances between rows of values, between the values of a row, and
// between the weights of one value and the next (0: as wide as they are). Sums are kBlock apart.
struct Form {
  int row, value, weight;
  bool accumulate;  // on what `sums` holds
};
constexpr Form kConvolution = {kBlock, 1, 0, false}, kInputs = {2, 1, 0, false};
constexpr Form kGradient = {1, kBlock, kBlock, true}, kInputGradient = {1, 2, kBlock, true};

// kNum rows of sums, of kVectors vectors each.
template <Form kForm, int kVectors, int kNum>
ALWAYS void multiply_rows(const Segments& segments, int64_t row, const float* bias, float* sums) {
  constexpr int kWeightStep = kForm.weight ? kForm.weight : kVectors * kLanes;
  Vector sum[kNum][kVectors];
  for (int i = 0; i < kNum; ++i)
    for (int v = 0; v < kVectors; ++v)
      sum[i][v] = kForm.accumulate ? load(sums + (row + i) * kBlock + v * kLanes)
                                   : bias ? load(bias + v * kLanes) : Vector{};
  for (int s = 0; s < segments.count; ++s) {
    const float* values = segments.each[s].rows + row * kForm.row;
    const float* weights = segments.each[s].weights;
    for (int64_t k = segments.each[s].length; k > 0; --k, values += kForm.value, weights += kWeightStep) {
      Vector weight[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        weight[v] = load(weights + v * kLanes);
        keep(weight[v]);
        if (kNum > kVectors) continue;  // registers hold the values or the weights, whichever are fewer
#pragma GCC unroll 14
        for (int i = 0; i < kNum; ++i) sum[i][v] += values[i * kForm.row] * weight[v];
      }
      if (kNum <= kVectors) continue;
#pragma GCC unroll 14
      for (int i = 0; i < kNum; ++i)
        for (int v = 0; v < kVectors; ++v) sum[i][v] += values[i * kForm.row] * weight[v];
    }
  }
  for (int i = 0; i < kNum; ++i)
    for (int v = 0; v < kVectors; ++v) store(sums + (row + i) * kBlock + v * kLanes, sum[i][v]);
}

// Groups of rows, as large as the registers allow and as equal as can be.
template <Form kForm, int kVectors, int kNum>
ALWAYS void multiply_some(int num, const Segments& segments, int64_t row, const float* bias, float* sums) {
  if (num == kNum) return multiply_rows<kForm, kVectors, kNum>(segments, row, bias, sums);
  if constexpr (kNum > 1) multiply_some<kForm, kVectors, kNum - 1>(num, segments, row, bias, sums);
}

// Not inlined: constants of the code around it would take registers.
template <Form kForm, int kVectors>
__attribute__((noinline)) void multiply_width(const Segments& segments, int64_t rows, const float* bias, float* sums) {
  constexpr int kMost = kLanes == 16 ? 14 : 12 / kVectors;  // rows whose sums fit the registers
  const int64_t groups = (rows + kMost - 1) / kMost;
  int64_t row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int num = (int)((rows - row + groups - group - 1) / (groups - group));
    multiply_some<kForm, kVectors, kMost>(num, segments, row, bias, sums);
    row += num;
  }
}

template <Form kForm>
ALWAYS void multiply(int64_t width, const Segments& segments, int64_t rows, const float* bias, float* sums) {
  if (width == kBlock)
    multiply_width<kForm, kBlockVectors>(segments, rows, bias, sums);
  else
    multiply_width<kForm, kBlockVectors / 2>(segments, rows, bias, sums);
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
template <bool kRelu>
ALWAYS void transform_patch(const float* from, int64_t row, int64_t position, float* to) {
  Vector half[kPatch][kPatch];  // transformed along y
  for (int x = 0; x < kPatch; ++x) {
    Vector in[kPatch], out[kPatch];
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) {
      in[y] = load(from + y * row + x * kBlock);
      if (kRelu) in[y] = relu(in[y]);
    }
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

template <bool kRelu>
__attribute__((noinline)) void transform_plane(const Shape& shape, const Strip& strip, int64_t z, float* to) {
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const float* plane = strip.from + block * shape.block + z * shape.plane;
    float* tile = to + block * shape.tile_block;
    for (int64_t row = strip.row_begin; row < strip.row_end; ++row)
      for (int64_t column = 0; column < shape.tile_columns; ++column, tile += kBlock) {
        const float* patch = plane + row * kTile * shape.row + column * kTile * kBlock;
        for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes)
          transform_patch<kRelu>(patch + channel, shape.row, shape.position, tile + channel);
      }
  }
}

// One vector of channels from all positions to a tile of outputs at `at`, of which `rows` x `columns` exist.
template <bool kMask, bool kAdd>
ALWAYS void transform_tile(const float* from, int64_t position, Vector bias, const Strip& strip, int64_t at,
                           int64_t row, int64_t rows, int64_t columns) {
  Vector half[kTile][kPatch];  // transformed along y
  for (int x = 0; x < kPatch; ++x) {
    Vector in[kPatch], out[kTile];
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) in[y] = load(from + (y * kPatch + x) * position);
    from_points(in, out);
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) half[y][x] = out[y];
  }
  for (int64_t y = 0; y < rows; ++y, at += row) {
    Vector out[kTile];
    from_points(half[y], out);
#pragma GCC unroll 4
    for (int x = 0; x < kTile; ++x)
      if (x < columns) {
        const int64_t voxel = at + x * kBlock;
        Vector value = out[x] + bias;
        if (kMask) value = load(strip.mask + voxel) > 0 ? value : Vector{};
        if (kAdd) value = load(strip.add + voxel) + value;
        store(strip.to + voxel, value);
      }
  }
}

template <bool kMask, bool kAdd>
__attribute__((noinline)) void transform_products(const Shape& shape, const Strip& strip, int64_t block, int64_t z) {
  const float *from = strip.workspace, *bias = strip.weights.bias + block * kBlock;
  const int64_t plane = block * shape.block + z * shape.plane;
  for (int64_t row = strip.row_begin; row < strip.row_end; ++row)
    for (int64_t column = 0; column < shape.tile_columns; ++column, from += kBlock) {
      const int64_t y = row * kTile, x = column * kTile, tile = plane + (y + 1) * shape.row + (x + 1) * kBlock;
      for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes)
        transform_tile<kMask, kAdd>(from + channel, shape.position, load(bias + channel), strip, tile + channel,
                                    shape.row, least(kTile, shape.y - y), least(kTile, shape.x - x));
    }
}

// Four output gradients at the six points: the transpose of `from_points`.
ALWAYS void gradient_to_points(const Vector y[kTile], Vector at[kPatch]) {
  const Vector even_a = y[0] + kA2 * y[2], odd_a = kA * y[1] + kA3 * y[3];
  const Vector even_b = y[0] + kB2 * y[2], odd_b = kB * y[1] + kB3 * y[3];
  at[0] = y[0];
  at[1] = even_a + odd_a;
  at[2] = even_a - odd_a;
  at[3] = even_b + odd_b;
  at[4] = even_b - odd_b;
  at[5] = y[3];
}

// The gradient of a kernel's three taps along one axis from that of its values at the six points, as `Points` has them.
ALWAYS void gradient_of_taps(const Vector at[kPatch], Vector taps[3]) {
  constexpr float kScaleA = 1 / (2 * kA2 * (kA2 - kB2)), kScaleB = 1 / (2 * kB2 * (kB2 - kA2));
  const Vector even_a = kScaleA * (at[1] + at[2]), odd_a = kScaleA * (at[1] - at[2]);
  const Vector even_b = kScaleB * (at[3] + at[4]), odd_b = kScaleB * (at[3] - at[4]);
  taps[0] = at[0] + even_a + even_b;
  taps[1] = kA * odd_a + kB * odd_b;
  taps[2] = kA2 * even_a + kB2 * even_b + at[5];
}

// One vector of channels of a tile of output gradients to all positions; returns their sum.
ALWAYS Vector transform_gradient_tile(const float* from, int64_t row, int64_t position, float* to) {
  Vector half[kPatch][kTile], sum{};
  for (int x = 0; x < kTile; ++x) {
    Vector in[kTile], out[kPatch];
#pragma GCC unroll 4
    for (int y = 0; y < kTile; ++y) sum += in[y] = load(from + y * row + x * kBlock);
    gradient_to_points(in, out);
#pragma GCC unroll 6
    for (int y = 0; y < kPatch; ++y) half[y][x] = out[y];
  }
  for (int y = 0; y < kPatch; ++y, to += kPatch * position) {
    Vector out[kPatch];
    gradient_to_points(half[y], out);
#pragma GCC unroll 6
    for (int x = 0; x < kPatch; ++x) store(to + x * position, out[x]);
  }
  return sum;
}

__attribute__((noinline)) void transform_gradient(const Shape& shape, const GradientStrip& strip, int64_t z, float* to,
                                                  float* bias) {
  for (int64_t block = 0; block < shape.blocks; ++block) {
    const float* plane = strip.gradient + block * shape.block + z * shape.plane;
    float* tile = to + block * shape.tile_block;
    for (int64_t row = strip.row_begin; row < strip.row_end; ++row)
      for (int64_t column = 0; column < shape.tile_columns; ++column, tile += kBlock) {
        const float* first = plane + (row * kTile + 1) * shape.row + (column * kTile + 1) * kBlock;
        for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes) {
          float* sum = bias + block * kBlock + channel;
          store(sum, load(sum) + transform_gradient_tile(first + channel, shape.row, shape.position, tile + channel));
        }
      }
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
  multiply<kConvolution>(width, segments, tiles, nullptr, strip.workspace + position * shape.position);
}

void convolve(const Shape& shape, const Strip& strip) {
  float* planes[3];  // transformed plane z is in planes[z % 3], after the products
  for (int i = 0; i < 3; ++i) planes[i] = strip.workspace + (1 + i * shape.blocks) * shape.tile_block;
  int64_t next = strip.z_begin ? strip.z_begin - 1 : 0;
  for (int64_t z = strip.z_begin; z < strip.z_end; ++z) {
    for (; next < least(z + 2, shape.z); ++next)
      if (strip.relu)
        transform_plane<true>(shape, strip, next, planes[next % 3]);
      else
        transform_plane<false>(shape, strip, next, planes[next % 3]);
    const float* weights = strip.weights.values;
    for (int64_t block = 0; block < shape.blocks; ++block) {
      const int64_t width = block_width(shape, block);
      for (int64_t position = 0; position < kPositions; ++position)
        multiply_position(shape, strip, planes, z, position, width, weights);
      if (strip.mask && strip.add)
        transform_products<true, true>(shape, strip, block, z);
      else if (strip.mask)
        transform_products<true, false>(shape, strip, block, z);
      else if (strip.add)
        transform_products<false, true>(shape, strip, block, z);
      else
        transform_products<false, false>(shape, strip, block, z);
    }
  }
}

// The products of all tiles of a strip in plane z with its inputs in the planes around it.
ALWAYS void multiply_gradient(const Shape& shape, const GradientStrip& strip, float* const planes[3],
                              const float* gradient, int64_t z) {
  const int64_t tiles = (strip.row_end - strip.row_begin) * shape.tile_columns;
  float* sums = strip.sums;
  for (int64_t out = 0; out < shape.blocks; ++out)
    for (int64_t position = 0; position < kPositions; ++position)
      for (int64_t in = 0; in < shape.blocks; ++in)
        for (int64_t from = z - 1; from < z + 2; ++from, sums += kBlock * kBlock) {
          if (from < 0 || from >= shape.z) continue;
          Segments segments;
          const int64_t at = position * shape.position;
          segments.add(tiles, planes[from % 3] + in * shape.tile_block + at, gradient + out * shape.tile_block + at);
          multiply<kGradient>(block_width(shape, out), segments, least(shape.features - in * kBlock, kBlock), nullptr,
                              sums);
        }
}

void weight_gradient(const Shape& shape, const GradientStrip& strip) {
  float *planes[3], *gradient = strip.workspace + 3 * shape.blocks * shape.tile_block;
  for (int i = 0; i < 3; ++i) planes[i] = strip.workspace + i * shape.blocks * shape.tile_block;
  float* bias = strip.sums + shape.blocks * shape.blocks * kPositions * 3 * kBlock * kBlock;
  Strip inputs = {};
  inputs.from = strip.from;
  inputs.row_begin = strip.row_begin;
  inputs.row_end = strip.row_end;
  int64_t next = strip.z_begin ? strip.z_begin - 1 : 0;
  for (int64_t z = strip.z_begin; z < strip.z_end; ++z) {
    for (; next < least(z + 2, shape.z); ++next) transform_plane<true>(shape, inputs, next, planes[next % 3]);
    transform_gradient(shape, strip, z, gradient, bias);
    multiply_gradient(shape, strip, planes, gradient, z);
  }
}

void add_up(const Shape& shape, const PartialSums& partial, int64_t z, int64_t first, int64_t block, float* weights) {
  alignas(64) float totals[kPositions][kRows * kBlock];
  const int64_t inputs = least(kRows, shape.features - first), outputs = block * kBlock;
  for (int64_t position = 0; position < kPositions; ++position) {
    const int64_t product = ((block * kPositions + position) * shape.blocks + first / kBlock) * 3 + z;
    const float* from = partial.values + product * kBlock * kBlock + first % kBlock * kBlock;
    for (int64_t at = 0; at < inputs * kBlock; at += kLanes) {
      Vector sum = load(from + at);
      for (int64_t part = 1; part < partial.count; ++part) sum += load(from + part * partial.size + at);
      store(&totals[position][at], sum);
    }
  }
  for (int64_t input = 0; input < inputs; ++input)
    for (int64_t channel = 0; channel < least(kBlock, shape.features - outputs); channel += kLanes) {
      Vector half[3][kPatch];  // taps along y
      for (int x = 0; x < kPatch; ++x) {
        Vector in[kPatch], out[3];
        for (int y = 0; y < kPatch; ++y) in[y] = load(&totals[y * kPatch + x][input * kBlock + channel]);
        gradient_of_taps(in, out);
        for (int y = 0; y < 3; ++y) half[y][x] = out[y];
      }
      for (int y = 0; y < 3; ++y) {
        Vector taps[3];
        gradient_of_taps(half[y], taps);
        for (int x = 0; x < 3; ++x) {
          const int64_t tap = (z * 3 + y) * 3 + x;
          float* to = weights + (tap * shape.features + first + input) * shape.features + outputs + channel;
          for (int lane = 0; lane < least(kLanes, shape.features - outputs - channel); ++lane) to[lane] = taps[x][lane];
        }
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
      multiply<kInputs>(width, segments, shape.x, weights.bias + block * kBlock, sums);
    }
    values += 9 * 6 * width;
  }
}

void input_weight_gradient(const Shape& shape, const float* pairs, const float* gradient, int64_t z, float* sums) {
  const int64_t row = (shape.x + 2) * 2, plane = (shape.y + 2) * row;
  float* bias = sums + shape.blocks * 9 * 6 * kBlock;
  for (int64_t block = 0; block < shape.blocks; ++block, sums += 9 * 6 * kBlock)
    for (int64_t y = 0; y < shape.y; ++y) {
      const float* from = gradient + block * shape.block + z * shape.plane + (y + 1) * shape.row + kBlock;
      for (int tap = 0; tap < 9; ++tap) {
        Segments segments;
        segments.add(shape.x, pairs + (z + tap / 3) * plane + (y + tap % 3) * row, from);
        multiply<kInputGradient>(block_width(shape, block), segments, 6, nullptr, sums + tap * 6 * kBlock);
      }
      for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes) {
        Vector sum = load(bias + block * kBlock + channel);
        for (int64_t x = 0; x < shape.x; ++x) sum += load(from + x * kBlock + channel);
        store(bias + block * kBlock + channel, sum);
      }
    }
}

void update_gradient(const Shape& shape, const float* from, const float* weights, int64_t z, const float* gradient,
                     float* to, float* sums) {
  int64_t voxel = z * shape.y * shape.x;
  for (int64_t y = 0; y < shape.y; ++y)
    for (int64_t x = 0; x < shape.x; ++x, ++voxel) {
      sums[shape.blocks * kBlock] += gradient[voxel];
      for (int64_t block = 0; block < shape.blocks; ++block)
        for (int64_t channel = 0; channel < block_width(shape, block); channel += kLanes) {
          const int64_t at = block * shape.block + z * shape.plane + (y + 1) * shape.row + (x + 1) * kBlock + channel;
          const Vector feature = load(from + at);
          float* sum = sums + block * kBlock + channel;
          store(sum, load(sum) + gradient[voxel] * relu(feature));
          store(to + at, feature > 0 ? gradient[voxel] * load(weights + block * kBlock + channel) : Vector{});
        }
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

extern const Instructions FFN_INSTRUCTIONS = {convolve, convolve_inputs,       update,         weight_gradient,
                                               add_up,   input_weight_gradient, update_gradient};

}  // namespace ffn
