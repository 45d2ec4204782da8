// Forward and backward pass of the whole network in float32, by Winograd's convolutions.
//
// As in network.h: map i is the input of convolution i, here before the ReLU, and the last map is that of lom.
//
//     forward    even i: map[i + 1] = conv_i(relu(map[i]))        odd i: map[i + 1] = map[i - 1] + conv_i(relu(map[i]))
//     backward   odd i: inner = conv_i'(outer) [map[i] > 0]       even i: outer += conv_i'(inner) [map[i] > 0]
#pragma once

#include "plan.h"
#include "workers.h"

namespace ffn {

class FloatNetwork {
 public:
  // Weights and biases of all convolutions in turn, those of lom last, as in ffn/model/network.py.
  FloatNetwork(const Instructions& instructions, int64_t batch, const Plan& plan, std::vector<const float*> weights,
               const Workers& workers);

  int64_t num_activations() const;  // floats that `forward` keeps

  // image, pom, updated: (B, Z, Y, X).
  void forward(const float* image, const float* pom, float* activations, float* updated) const;

  // gradient: that of `updated`. Writes the gradients of all weights and biases, shaped and ordered like them.
  void backward(const float* gradient, const float* activations, const std::vector<float*>& gradients) const;

 private:
  int num_convolutions() const { return static_cast<int>(weights_.size()) / 2 - 1; }
  int64_t maps_of_batch() const { return batch_ * plan_.map(); }
  int64_t pairs_of_batch() const { return divide_up(batch_ * plan_.pairs(), kBlock) * kBlock; }
  const float* map(const float* activations, int index) const;
  int64_t sums_size() const;        // of the gradient of one convolution's weights
  int64_t first_sums_size() const;  // of the first one's
  int64_t gradient_units() const { return batch_ * plan_.strips * gradient_ranges_; }
  int64_t gradient_parts() const;

  Work clear_halos(float* maps, int count) const;
  Work transform(int index, bool mirrored, float* to) const;
  Work read_inputs(const float* image, const float* pom, float* pairs) const;
  Work convolve_inputs(const float* pairs, const float* weights, const float* bias, float* to) const;
  Work convolve(Kind kind, const Strip& strip, float* workspaces) const;
  Work update(const float* from, const float* weights, const float* pom, float* updated) const;

  Work update_gradient(const float* from, const float* weights, const float* gradient, float* to, float* sums) const;
  Work weight_gradient(const float* from, const float* gradient, float* sums, float* workspaces) const;
  Work input_weight_gradient(const float* pairs, const float* gradient, float* sums) const;
  Work add_up(const float* sums, float* weights, float* bias) const;
  void add_up_first(const float* sums, float* weights, float* bias) const;
  void add_up_last(const float* sums, float* weights, float* bias) const;

  const Instructions& do_;
  const int64_t batch_;
  const Plan plan_;
  const std::vector<const float*> weights_;
  const Workers& workers_;
  int64_t ranges_, gradient_ranges_;
};

}  // namespace ffn
