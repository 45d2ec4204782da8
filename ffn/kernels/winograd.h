// The network in float32 with Winograd's convolution F(4 x 4, 3 x 3): what one unit of work does, for one instruction
// set.
//
// A tile of 4 x 4 outputs of a z plane needs a patch of 6 x 6 inputs. Along y and x, patch and kernel are evaluated at
// six points, as polynomials are (0, +-a, +-b, infinity); their 36 products give the 16 outputs: a quarter of the
// multiplications. The taps along z stay as they are: they and the input channels are what the products sum over. So a
// strip of tiles becomes, for each of the 36 positions, a product of matrices
//
//     (tiles) x (3 planes * input channels)    times    (3 planes * input channels) x (32 output channels)
//
// Products and the transformed planes of a strip stay in the L2 cache, weights of one position in the L1 cache.
//
// A feature map holds blocks of 32 channels, a block (Z, rows, columns) positions of 32 floats, with zeros around each
// plane: one before and at least one after each axis. It is kept before the ReLU, which is applied where it is read.
//
// These files are compiled once for each instruction set. Nothing here may be shared between them, not even an inline
// function: the linker would keep one of the copies, which another CPU may not understand.
#pragma once

#include <stdint.h>

namespace ffn {

constexpr int64_t kBlock = 32;     // channels of a block
constexpr int64_t kTile = 4;       // outputs of a tile along y and x
constexpr int64_t kPatch = 6;      // inputs that they need
constexpr int64_t kPositions = kPatch * kPatch;
constexpr int64_t kMaxBlocks = 8;
constexpr int64_t kRows = 8;       // inputs whose partial sums a unit adds up
constexpr double kNear = 0.70710678118654752, kFar = 1.41421356237309505;  // a and b; a * b = 1 keeps rounding small

// Where the parts of a feature map lie, in floats.
struct Shape {
  int64_t z, y, x, features;
  int64_t tile_rows, tile_columns;
  int64_t row, plane, block;     // distances
  int64_t position, tile_block;  // distances in the workspace: [block][position][tile of the strip][channel]
  int64_t blocks;
};

// One convolution of the network.
struct Weights {
  const float* values;  // [output block][position][input block][z tap][input channel][output channel]
  const float* bias;    // padded to whole blocks
};

// Tile rows [row_begin, row_end) of planes [z_begin, z_end) of one convolution.
struct Strip {
  const float* from;
  bool relu;  // of what is read
  float* to;
  const float* mask;  // results where this is not positive become 0; null: they stay
  const float* add;   // added to the results; null: nothing is
  Weights weights;
  int64_t z_begin, z_end, row_begin, row_end;
  float* workspace;  // 1 + 3 * blocks times tile_block floats
};

// The same tiles, of the gradient of the weights.
struct GradientStrip {
  const float* from;      // input of the convolution, before its ReLU
  const float* gradient;  // of its output
  // Sums over the tiles: [output block][position][input block][z tap][32 inputs][32 outputs], then one sum for each
  // bias.
  float* sums;
  int64_t z_begin, z_end, row_begin, row_end;
  float* workspace;  // 4 * blocks times tile_block floats
};

// Results of `weight_gradient` for parts of the tiles.
struct PartialSums {
  const float* values;
  int64_t count, size;
};

struct Instructions {
  // Convolution of 3 x 3 x 3.
  void (*convolve)(const Shape&, const Strip&);
  // The first convolution, of one plane; `pairs` holds image and POM of (Z + 2, Y + 2, X + 2) positions.
  void (*convolve_inputs)(const Shape&, const float* pairs, Weights weights, int64_t z, float* to);
  // The last, voxel-wise convolution of one plane, added to the POM.
  void (*update)(const Shape&, const float* from, const float* weights, float bias, int64_t z, const float* pom,
                 float* updated);
  // Adds to the sums; for the weights of the first convolution, [output block][tap, image or POM][32 outputs].
  void (*weight_gradient)(const Shape&, const GradientStrip&);
  // Adds up what `weight_gradient` summed, for kRows inputs, a z tap and a block of outputs. Writes the gradient of the
  // weights, [z tap][y tap][x tap][input][output].
  void (*add_up)(const Shape&, const PartialSums&, int64_t z_tap, int64_t input, int64_t block, float* weights);
  void (*input_weight_gradient)(const Shape&, const float* pairs, const float* gradient, int64_t z, float* sums);
  // Back through the last convolution: writes the gradient of `from`, adds that of the weights and, behind it, the
  // bias.
  void (*update_gradient)(const Shape&, const float* from, const float* weights, int64_t z, const float* gradient,
                          float* to, float* sums);
};

extern const Instructions kPlain, kAvx2, kAvx512;

}  // namespace ffn
