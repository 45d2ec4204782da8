// The whole network in float32, for inference: which map goes through what, in which units, and the C interface.
//
// There are two maps: `net`, which the residual modules add to, and `inner`, which is between their two convolutions.
#include <cstring>
#include <memory>

#include "memory.h"
#include "plan.h"
#include "pool.h"

namespace ffn {
namespace {

constexpr int64_t kUnitsPerWorker = 6;

class InferenceNetwork {
 public:
  InferenceNetwork(const Instructions& instructions, const Plan& plan, const std::vector<const float*>& weights,
                   int threads)
      : do_(instructions), plan_(plan), pool_(threads), workers_(pool_.workers()) {
    const int64_t z = plan.shape.z;
    ranges_ = workers_.count == 1 ? 1 : std::min(z, divide_up(kUnitsPerWorker * workers_.count, plan.strips));
    workspace_ = std::make_unique<Buffer>(workers_.count * plan.workspace() * sizeof(float));
    take_weights(weights);
  }

  void predict(int64_t batch, const float* image, const float* pom, float* updated) {
    reserve(batch);
    workers_.stage({read_inputs(batch, image, pom)});
    workers_.stage({convolve_inputs(batch)});
    for (size_t i = 0; i < kernels_.size(); ++i) workers_.stage({convolution(batch, i)});
    workers_.stage({update(batch, pom, updated)});
  }

 private:
  void take_weights(const std::vector<const float*>& weights) {
    const auto padded = [&](const float* from) {
      std::vector<float> to(plan_.width());
      plan_.pad(from, to.data());
      return to;
    };
    first_.resize(plan_.first_weights());
    plan_.order_first_weights(weights[0], first_.data());
    first_bias_ = padded(weights[1]);
    for (size_t i = 2; i + 2 < weights.size(); i += 2) {
      kernels_.push_back(std::make_unique<Buffer>(plan_.weights() * sizeof(float)));
      transform_weights(weights[i], plan_.shape.features, false, kernels_.back()->as<float>());
      biases_.push_back(padded(weights[i + 1]));
    }
    last_ = padded(weights[weights.size() - 2]);
    last_bias_ = *weights.back();
  }

  // Maps for a batch, with zeros around every plane, which nobody writes to later.
  void reserve(int64_t batch) {
    if (batch <= reserved_) return;
    const auto zeros = [&](int64_t size) {
      auto buffer = std::make_unique<Buffer>(batch * size * sizeof(float));
      std::memset(buffer->as<float>(), 0, batch * size * sizeof(float));
      return buffer;
    };
    // If there is not enough memory for one of them, all stay as they are.
    auto pairs = zeros(plan_.pairs()), net = zeros(plan_.map()), inner = zeros(plan_.map());
    pairs_ = std::move(pairs);
    net_ = std::move(net);
    inner_ = std::move(inner);
    reserved_ = batch;
  }

  float* of(const std::unique_ptr<Buffer>& maps, int64_t sample) const {
    return maps->as<float>() + sample * plan_.map();
  }

  Work read_inputs(int64_t batch, const float* image, const float* pom) const {
    const int64_t planes = plan_.shape.z;
    return {kRest, batch * planes, [=, this](int, int64_t unit) {
              const int64_t sample = unit / planes, first = sample * plan_.voxels();
              float* pairs = pairs_->as<float>() + sample * plan_.pairs();
              plan_.read_inputs(image + first, pom + first, unit % planes, pairs);
            }};
  }

  Work convolve_inputs(int64_t batch) const {
    const int64_t planes = plan_.shape.z;
    return {kForward, batch * planes, [=, this](int, int64_t unit) {
              const int64_t sample = unit / planes;
              do_.convolve_inputs(plan_.shape, pairs_->as<float>() + sample * plan_.pairs(),
                                  {first_.data(), first_bias_.data()}, unit % planes, of(inner_, sample));
            }};
  }

  // Convolutions 0, 2, ... end a module, 1, 3, ... begin one.
  Work convolution(int64_t batch, size_t index) const {
    const bool ends = index % 2 == 0;
    return {kForward, batch * plan_.strips * ranges_, [=, this](int worker, int64_t unit) {
              const int64_t sample = unit / (plan_.strips * ranges_), z = plan_.shape.z;
              const int64_t range = unit % ranges_, strip = unit / ranges_ % plan_.strips;
              float *net = of(net_, sample), *inner = of(inner_, sample);
              do_.convolve(plan_.shape, {ends ? inner : net, true, ends ? net : inner, nullptr,
                                         ends && index ? net : nullptr,
                                         {kernels_[index]->as<float>(), biases_[index].data()},
                                         range * z / ranges_, (range + 1) * z / ranges_, plan_.row_begin(strip),
                                         plan_.row_begin(strip + 1),
                                         workspace_->as<float>() + worker * plan_.workspace()});
            }};
  }

  Work update(int64_t batch, const float* pom, float* updated) const {
    const int64_t planes = plan_.shape.z;
    return {kForward, batch * planes, [=, this](int, int64_t unit) {
              const int64_t sample = unit / planes, first = sample * plan_.voxels();
              do_.update(plan_.shape, of(net_, sample), last_.data(), last_bias_, unit % planes, pom + first,
                         updated + first);
            }};
  }

  const Instructions& do_;
  const Plan plan_;
  Pool pool_;
  const Workers workers_;
  int64_t ranges_, reserved_ = 0;
  std::vector<float> first_, first_bias_, last_;
  float last_bias_;
  std::vector<std::unique_ptr<Buffer>> kernels_;
  std::vector<std::vector<float>> biases_;
  std::unique_ptr<Buffer> workspace_, pairs_, net_, inner_;
};

}  // namespace
}  // namespace ffn

extern "C" {

// lanes: 16 for AVX-512, 8 for AVX2, 4 for any CPU. Null without enough memory or threads.
void* ffn_network_create(int lanes, int64_t z, int64_t y, int64_t x, int64_t features, const float* const* weights,
                         int64_t num_weights, int threads) {
  try {
    return new ffn::InferenceNetwork(ffn::instructions_of(lanes), {z, y, x, features}, {weights, weights + num_weights},
                                     threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns 0, or 1 if there is not enough memory.
int ffn_network_predict(void* network, int64_t batch, const float* image, const float* pom, float* updated) {
  try {
    static_cast<ffn::InferenceNetwork*>(network)->predict(batch, image, pom, updated);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

void ffn_network_free(void* network) { delete static_cast<ffn::InferenceNetwork*>(network); }
}
