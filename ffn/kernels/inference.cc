// The whole network in float32, for inference: which map goes through what, in which units, and the C interface.
//
// There are two maps: `net`, which the residual modules add to, and `inner`, which is between their two convolutions.
#include <algorithm>
#include <cstring>
#include <memory>

#include "memory.h"
#include "pool.h"
#include "winograd.h"

namespace ffn {
namespace {

constexpr int64_t kStripTiles = 27;  // of a unit: the workspace and the weights of a convolution share the L2 cache
constexpr int64_t kUnitsPerWorker = 6;
constexpr int kTaps = 27;

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

int64_t block_width(int64_t features, int64_t block) {
  return features - block * kBlock > kBlock / 2 ? kBlock : kBlock / 2;
}

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

// Transform weights (z, y, x, input, output) and order them as `Weights` wants them.
void transform_weights(const float* weights, int64_t features, float* to) {
  static const Points points;
  for (int64_t out = 0; out < features; out += kBlock)
    for (int64_t position = 0; position < kPositions; ++position)
      for (int64_t in = 0; in < features; in += kBlock)
        for (int64_t z = 0; z < 3; ++z)
          for (int64_t input = in; input < std::min(in + kBlock, features); ++input)
            for (int64_t lane = 0; lane < block_width(features, out / kBlock); ++lane, ++to) {
              double sum = 0;
              if (out + lane < features)
                for (int64_t tap = 0; tap < 9; ++tap)
                  sum += points.of[position / kPatch][tap / 3] * points.of[position % kPatch][tap % 3] *
                         weights[((z * 9 + tap) * features + input) * features + out + lane];
              *to = static_cast<float>(sum);
            }
}

const Instructions& instructions_of(int lanes) {
#ifdef __x86_64__
  if (lanes == 16) return kAvx512;
  if (lanes == 8) return kAvx2;
#endif
  (void)lanes;
  return kPlain;
}

class FloatNetwork {
 public:
  FloatNetwork(const Instructions& instructions, int64_t z, int64_t y, int64_t x, int64_t features,
               const std::vector<const float*>& weights, int threads)
      : do_(instructions), pool_(threads), workers_(pool_.workers()) {
    shape_ = {z, y, x, features, divide_up(y, kTile), divide_up(x, kTile), 0, 0, 0, 0, 0, divide_up(features, kBlock)};
    shape_.row = (shape_.tile_columns * kTile + 2) * kBlock;
    shape_.plane = (shape_.tile_rows * kTile + 2) * shape_.row;
    shape_.block = z * shape_.plane;
    strips_ = divide_up(shape_.tile_rows, std::max<int64_t>(1, kStripTiles / shape_.tile_columns));
    const int64_t tiles = divide_up(shape_.tile_rows, strips_) * shape_.tile_columns;
    shape_.position = (2 * tiles + 1) * (kBlock / 2);  // an odd number of cache lines, or all share a few of their sets
    shape_.tile_block = kPositions * shape_.position;
    ranges_ = workers_.count == 1 ? 1 : std::min(z, divide_up(kUnitsPerWorker * workers_.count, strips_));
    workspace_ = std::make_unique<Buffer>(workers_.count * workspace_size() * sizeof(float));
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
  int64_t map_size() const { return shape_.blocks * shape_.block; }
  int64_t pairs_size() const { return (shape_.z + 2) * (shape_.y + 2) * (shape_.x + 2) * 2; }
  int64_t workspace_size() const { return (1 + 3 * shape_.blocks) * shape_.tile_block; }

  void take_weights(const std::vector<const float*>& weights) {
    const int64_t features = shape_.features, width = shape_.blocks * kBlock;
    const auto padded = [&](const float* from) {
      std::vector<float> to(width);
      std::copy_n(from, features, to.begin());
      return to;
    };
    first_.assign(kTaps * 2 * width, 0.0f);
    float* to = first_.data();
    for (int64_t block = 0; block < shape_.blocks; ++block)
      for (int64_t row = 0; row < kTaps * 2; ++row)
        for (int64_t lane = 0; lane < block_width(features, block); ++lane, ++to)
          if (block * kBlock + lane < features) *to = weights[0][row * features + block * kBlock + lane];
    first_bias_ = padded(weights[1]);
    for (size_t i = 2; i + 2 < weights.size(); i += 2) {
      kernels_.push_back(std::make_unique<Buffer>(kPositions * 3 * features * width * sizeof(float)));
      transform_weights(weights[i], features, kernels_.back()->as<float>());
      biases_.push_back(padded(weights[i + 1]));
    }
    last_ = padded(weights[weights.size() - 2]);
    last_bias_ = *weights.back();
  }

  // Maps for a batch, with zeros around every plane, which nobody writes to later.
  void reserve(int64_t batch) {
    if (batch <= reserved_) return;
    reserved_ = batch;
    const auto zeros = [&](int64_t size) {
      auto buffer = std::make_unique<Buffer>(size * sizeof(float));
      std::memset(buffer->as<float>(), 0, size * sizeof(float));
      return buffer;
    };
    pairs_ = zeros(batch * pairs_size());
    net_ = zeros(batch * map_size());
    inner_ = zeros(batch * map_size());
  }

  Work read_inputs(int64_t batch, const float* image, const float* pom) const {
    return {kRest, batch * shape_.z, [=, this](int, int64_t unit) {
              const int64_t sample = unit / shape_.z, z = unit % shape_.z, row = (shape_.x + 2) * 2;
              float* plane = pairs_->as<float>() + sample * pairs_size() + (z + 1) * (shape_.y + 2) * row;
              int64_t voxel = unit * shape_.y * shape_.x;
              for (int64_t y = 0; y < shape_.y; ++y)
                for (int64_t x = 0; x < shape_.x; ++x, ++voxel) {
                  float* pair = plane + (y + 1) * row + (x + 1) * 2;
                  pair[0] = image[voxel];
                  pair[1] = pom[voxel];
                }
            }};
  }

  Work convolve_inputs(int64_t batch) const {
    return {kForward, batch * shape_.z, [=, this](int, int64_t unit) {
              const int64_t sample = unit / shape_.z;
              do_.convolve_inputs(shape_, pairs_->as<float>() + sample * pairs_size(),
                                  {first_.data(), first_bias_.data()}, unit % shape_.z,
                                  inner_->as<float>() + sample * map_size());
            }};
  }

  // Convolutions 1, 3, ... end a module, 2, 4, ... begin one.
  Work convolution(int64_t batch, size_t index) const {
    const bool ends = index % 2 == 0;
    const float* from = (ends ? inner_ : net_)->as<float>();
    float* to = (ends ? net_ : inner_)->as<float>();
    return {kForward, batch * strips_ * ranges_, [=, this](int worker, int64_t unit) {
              const int64_t sample = unit / (strips_ * ranges_), range = unit % ranges_, strip = unit / ranges_ % strips_;
              do_.convolve(shape_, {from + sample * map_size(), to + sample * map_size(), ends && index > 0,
                                    {kernels_[index]->as<float>(), biases_[index].data()},
                                    range * shape_.z / ranges_, (range + 1) * shape_.z / ranges_,
                                    strip * shape_.tile_rows / strips_, (strip + 1) * shape_.tile_rows / strips_,
                                    workspace_->as<float>() + worker * workspace_size()});
            }};
  }

  Work update(int64_t batch, const float* pom, float* updated) const {
    return {kForward, batch * shape_.z, [=, this](int, int64_t unit) {
              const int64_t sample = unit / shape_.z, first = sample * shape_.z * shape_.y * shape_.x;
              do_.update(shape_, net_->as<float>() + sample * map_size(), last_.data(), last_bias_, unit % shape_.z,
                         pom + first, updated + first);
            }};
  }

  const Instructions& do_;
  Pool pool_;
  const Workers workers_;
  Shape shape_;
  int64_t strips_, ranges_, reserved_ = 0;
  std::vector<float> first_, first_bias_, last_;
  float last_bias_;
  std::vector<std::unique_ptr<Buffer>> kernels_;
  std::vector<std::vector<float>> biases_;
  std::unique_ptr<Buffer> workspace_, pairs_, net_, inner_;
};

}  // namespace
}  // namespace ffn

extern "C" {

// lanes: 16 for AVX-512, 8 for AVX2, 4 for any CPU. Null if there is not enough memory.
void* ffn_network_create(int lanes, int64_t z, int64_t y, int64_t x, int64_t features, const float* const* weights,
                         int64_t num_weights, int threads) {
  try {
    return new ffn::FloatNetwork(ffn::instructions_of(lanes), z, y, x, features, {weights, weights + num_weights},
                                 threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Returns 0, or 1 if there is not enough memory.
int ffn_network_predict(void* network, int64_t batch, const float* image, const float* pom, float* updated) {
  try {
    static_cast<ffn::FloatNetwork*>(network)->predict(batch, image, pom, updated);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

void ffn_network_free(void* network) { delete static_cast<ffn::FloatNetwork*>(network); }
}
