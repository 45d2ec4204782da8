// Forward and backward pass of the whole flood-filling network.
//
// The 3x3x3 convolutions are numbered 0, 1, 2, ...: conv0_a, conv0_b, conv1_a, ...; the voxel-wise one at the end is
// `lom`. Map i is the input of convolution i, after the ReLU; the last map is that of lom. The forward pass keeps the
// maps for the backward pass: weight gradients need them, and gradients pass where they are positive.
//
//     forward    even i: map[i + 1] = relu(conv_i(map[i]))        odd i: sum += conv_i(map[i]), map[i + 1] = relu(sum)
//     backward   odd i: inner = conv_i'(outer) [map[i] > 0]       even i: outer += conv_i'(inner) [map[i] > 0]
//
// The first convolution has 2 input channels, image and POM. Its map holds for each position the 27 x 2 inputs around
// it, so that it becomes a convolution of one tap with 54 channels.
#pragma once

#include "layout.h"
#include "workers.h"

namespace ffn {

struct Convolution {
  int64_t taps, inputs, outputs;
  int64_t tap_slots() const { return round_up(taps, 3); }  // of weight gradients, which come three taps at a time
  int64_t in_blocks() const { return round_up(inputs, kChannels) / kChannels; }
  int64_t out_blocks() const { return round_up(outputs, kChannels) / kChannels; }
};

class Network {
 public:
  // Weights and biases of all convolutions in turn, float32, those of lom last, as in ffn/model/network.py.
  Network(const Layout& layout, std::vector<const float*> weights, int64_t features, const Workers& workers);

  int64_t num_activations() const;  // bfloat16 values that `forward` keeps

  // image, pom, updated: float32 (B, Z, Y, X); activations aligned to 64 bytes.
  void forward(const float* image, const float* pom, bf16* activations, float* updated) const;

  // gradient: that of `updated`. Writes the gradients of all weights and biases, shaped and ordered like them.
  void backward(const float* gradient, bf16* activations, const std::vector<float*>& gradients) const;

 private:
  int num_convolutions() const { return static_cast<int>(convolutions_.size()); }
  std::vector<Map> maps(bf16* activations) const;
  int64_t packed_size(int index) const;
  std::vector<int64_t> offsets(int index) const;
  int64_t ranges() const;  // of positions in a sample, for sums over positions
  int64_t partial_size(int index) const;

  Work clear(Map map, int64_t blocks, bool halo_only) const;
  Work pack(int index, bool transposed, bf16* packed) const;
  Work read_inputs(const float* image, const float* pom, uint32_t* pairs) const;
  Work gather_neighbours(const uint32_t* pairs, Map map) const;
  Work convolution(int index, Map from, Map to, Map sum, const bf16* packed) const;
  Work update(Map map, const float* pom, float* updated) const;

  Work update_gradient(Map map, const float* gradient, Map outer, float* partials) const;
  void add_up_update(const float* partials, float* weights, float* bias) const;
  Work data_gradient(int index, Map from, Map map, Map to, const bf16* packed) const;
  Work weight_gradient(int index, Map map, Map from, bf16* workspaces, float* partials) const;
  Work add_up(int index, const float* partials, float* weights, float* bias) const;

  Layout layout_;
  std::vector<const float*> weights_;
  int64_t features_, blocks_;
  std::vector<Convolution> convolutions_;
  std::vector<uint8_t> is_voxel_;
  const Workers& workers_;
};

}  // namespace ffn
