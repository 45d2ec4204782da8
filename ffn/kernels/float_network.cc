#include "float_network.h"

#include <cstring>

#include "memory.h"

namespace ffn {
namespace {

constexpr int64_t kUnitsPerWorker = 6;
constexpr int64_t kGradientParts = 8;  // partial sums of a step, whatever the number of threads or the batch

// The sum of `count` arrays, each `step` after the one before, at one place.
double sum_of(const float* values, int64_t count, int64_t step) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i * step];
  return sum;
}

}  // namespace

FloatNetwork::FloatNetwork(const Instructions& instructions, int64_t batch, const Plan& plan,
                           std::vector<const float*> weights, const Workers& workers)
    : do_(instructions), batch_(batch), plan_(plan), weights_(std::move(weights)), workers_(workers) {
  ranges_ = std::min(plan.shape.z, divide_up(kUnitsPerWorker * workers.count, batch * plan.strips));
  gradient_ranges_ = std::min(plan.shape.z, divide_up(kGradientParts, batch * plan.strips));
}

int64_t FloatNetwork::gradient_parts() const { return std::min(kGradientParts, gradient_units()); }

int64_t FloatNetwork::num_activations() const { return pairs_of_batch() + num_convolutions() * maps_of_batch(); }

const float* FloatNetwork::map(const float* activations, int index) const {
  return index ? activations + pairs_of_batch() + (index - 1) * maps_of_batch() : activations;
}

// --- Forward ----------------------------------------------------------------------------------------------

void FloatNetwork::forward(const float* image, const float* pom, float* activations, float* updated) const {
  const int last = num_convolutions();
  const int64_t width = plan_.width();
  const Buffer kernels(last * plan_.weights() * sizeof(float));
  const Buffer workspaces(workers_.count * plan_.workspace() * sizeof(float));
  std::vector<float> first(plan_.first_weights()), biases((last + 1) * width);
  plan_.order_first_weights(weights_[0], first.data());
  for (int i = 0; i < last; ++i) plan_.pad(weights_[2 * i + 1], &biases[i * width]);
  plan_.pad(weights_[2 * last], &biases[last * width]);
  const auto at = [&](int index) { return activations + (map(activations, index) - activations); };

  std::vector<Work> works = {read_inputs(image, pom, activations), clear_halos(at(1), last)};
  for (int i = 1; i < last; ++i) works.push_back(transform(i, false, kernels.as<float>() + i * plan_.weights()));
  workers_.stage(works);
  workers_.stage({convolve_inputs(activations, first.data(), biases.data(), at(1))});
  for (int i = 1; i < last; ++i) {
    Strip strip = {};
    strip.from = at(i);
    strip.relu = true;
    strip.to = at(i + 1);
    strip.add = i % 2 && i > 1 ? at(i - 1) : nullptr;
    strip.weights = {kernels.as<float>() + i * plan_.weights(), &biases[i * width]};
    workers_.stage({convolve(kForward, strip, workspaces.as<float>())});
  }
  workers_.stage({update(at(last), &biases[last * width], pom, updated)});
}

// Zeros around the voxels of all planes.
Work FloatNetwork::clear_halos(float* maps, int count) const {
  const int64_t planes = plan_.shape.blocks * plan_.shape.z;
  return {kRest, count * batch_ * planes, [=, this](int, int64_t unit) {
            const Shape& shape = plan_.shape;
            float* plane = maps + unit * shape.plane;
            const auto zero = [=](int64_t begin, int64_t end) { std::fill(plane + begin, plane + end, 0.0f); };
            zero(0, shape.row);
            for (int64_t y = 1; y <= shape.y; ++y) {
              zero(y * shape.row, y * shape.row + kBlock);
              zero(y * shape.row + (shape.x + 1) * kBlock, (y + 1) * shape.row);
            }
            zero((shape.y + 1) * shape.row, shape.plane);
          }};
}

Work FloatNetwork::transform(int index, bool mirrored, float* to) const {
  return {kRest, 1, [=, this](int, int64_t) {
            transform_weights(weights_[2 * index], plan_.shape.features, mirrored, to);
          }};
}

Work FloatNetwork::read_inputs(const float* image, const float* pom, float* pairs) const {
  return {kRest, batch_, [=, this](int, int64_t sample) {
            float* to = pairs + sample * plan_.pairs();
            std::fill(to, to + plan_.pairs(), 0.0f);
            const int64_t first = sample * plan_.voxels();
            for (int64_t z = 0; z < plan_.shape.z; ++z) plan_.read_inputs(image + first, pom + first, z, to);
          }};
}

Work FloatNetwork::convolve_inputs(const float* pairs, const float* weights, const float* bias, float* to) const {
  const int64_t planes = plan_.shape.z;
  return {kForward, batch_ * planes, [=, this](int, int64_t unit) {
            const int64_t sample = unit / planes;
            do_.convolve_inputs(plan_.shape, pairs + sample * plan_.pairs(), {weights, bias}, unit % planes,
                                to + sample * plan_.map());
          }};
}

// What `all` says, for all strips of all samples.
Work FloatNetwork::convolve(Kind kind, const Strip& all, float* workspaces) const {
  return {kind, batch_ * plan_.strips * ranges_, [=, this](int worker, int64_t unit) {
            const int64_t first = unit / (plan_.strips * ranges_) * plan_.map(), z = plan_.shape.z;
            const int64_t range = unit % ranges_, row = unit / ranges_ % plan_.strips;
            Strip strip = all;
            strip.from += first;
            strip.to += first;
            if (strip.mask) strip.mask += first;
            if (strip.add) strip.add += first;
            strip.z_begin = range * z / ranges_;
            strip.z_end = (range + 1) * z / ranges_;
            strip.row_begin = plan_.row_begin(row);
            strip.row_end = plan_.row_begin(row + 1);
            strip.workspace = workspaces + worker * plan_.workspace();
            do_.convolve(plan_.shape, strip);
          }};
}

Work FloatNetwork::update(const float* from, const float* weights, const float* pom, float* updated) const {
  const int64_t planes = plan_.shape.z;
  return {kForward, batch_ * planes, [=, this](int, int64_t unit) {
            const int64_t sample = unit / planes, first = sample * plan_.voxels();
            do_.update(plan_.shape, from + sample * plan_.map(), weights, *weights_.back(), unit % planes, pom + first,
                       updated + first);
          }};
}

// --- Backward ---------------------------------------------------------------------------------------------

void FloatNetwork::backward(const float* gradient, const float* activations,
                            const std::vector<float*>& gradients) const {
  const int last = num_convolutions();
  const int64_t planes = batch_ * plan_.shape.z, width = plan_.width();
  const Buffer kernels(last * plan_.weights() * sizeof(float));
  const Buffer workspaces(workers_.count * plan_.workspace() * sizeof(float));
  const Buffer maps(2 * maps_of_batch() * sizeof(float));
  const Buffer sums(gradient_parts() * sums_size() * sizeof(float));
  const Buffer plane_sums(planes * std::max(first_sums_size(), width + 1) * sizeof(float));
  float *outer = maps.as<float>(), *inner = outer + maps_of_batch();
  std::vector<float> weights(width), no_bias(width);
  plan_.pad(weights_[2 * last], weights.data());

  std::vector<Work> works = {clear_halos(outer, 2)};
  for (int i = 1; i < last; ++i) works.push_back(transform(i, true, kernels.as<float>() + i * plan_.weights()));
  works.push_back(
      update_gradient(map(activations, last), weights.data(), gradient, outer, plane_sums.as<float>()));
  workers_.stage(works);
  add_up_last(plane_sums.as<float>(), gradients[2 * last], gradients[2 * last + 1]);
  for (int i = last - 1; i > 0; --i) {
    Strip strip = {};
    strip.from = i % 2 ? outer : inner;
    strip.to = i % 2 ? inner : outer;
    strip.mask = map(activations, i);
    strip.add = i % 2 ? nullptr : outer;
    strip.weights = {kernels.as<float>() + i * plan_.weights(), no_bias.data()};
    workers_.stage({weight_gradient(map(activations, i), strip.from, sums.as<float>(), workspaces.as<float>()),
                    convolve(kDataGradient, strip, workspaces.as<float>())});
    workers_.stage({add_up(sums.as<float>(), gradients[2 * i], gradients[2 * i + 1])});
  }
  workers_.stage({input_weight_gradient(activations, inner, plane_sums.as<float>())});
  add_up_first(plane_sums.as<float>(), gradients[0], gradients[1]);
}

int64_t FloatNetwork::sums_size() const {
  return plan_.shape.blocks * plan_.shape.blocks * kPositions * 3 * kBlock * kBlock + plan_.width();
}

int64_t FloatNetwork::first_sums_size() const { return (kInputTaps + 1) * plan_.width(); }

Work FloatNetwork::update_gradient(const float* from, const float* weights, const float* gradient, float* to,
                                   float* sums) const {
  const int64_t planes = plan_.shape.z, size = plan_.width() + 1;
  return {kRest, batch_ * planes, [=, this](int, int64_t unit) {
            const int64_t sample = unit / planes;
            std::fill_n(sums + unit * size, size, 0.0f);
            do_.update_gradient(plan_.shape, from + sample * plan_.map(), weights, unit % planes,
                                gradient + sample * plan_.voxels(), to + sample * plan_.map(), sums + unit * size);
          }};
}

void FloatNetwork::add_up_last(const float* sums, float* weights, float* bias) const {
  const int64_t planes = batch_ * plan_.shape.z, size = plan_.width() + 1;
  for (int64_t i = 0; i < plan_.shape.features; ++i) weights[i] = static_cast<float>(sum_of(sums + i, planes, size));
  *bias = static_cast<float>(sum_of(sums + plan_.width(), planes, size));
}

Work FloatNetwork::weight_gradient(const float* from, const float* gradient, float* sums, float* workspaces) const {
  return {kWeightGradient, gradient_parts(), [=, this](int worker, int64_t part) {
            const int64_t z = plan_.shape.z, units = gradient_units(), parts = gradient_parts();
            float* mine = sums + part * sums_size();
            std::fill_n(mine, sums_size(), 0.0f);
            for (int64_t unit = part * units / parts; unit < (part + 1) * units / parts; ++unit) {
              const int64_t first = unit / (plan_.strips * gradient_ranges_) * plan_.map();
              const int64_t range = unit % gradient_ranges_, row = unit / gradient_ranges_ % plan_.strips;
              do_.weight_gradient(plan_.shape, {from + first, gradient + first, mine, range * z / gradient_ranges_,
                                                (range + 1) * z / gradient_ranges_, plan_.row_begin(row),
                                                plan_.row_begin(row + 1), workspaces + worker * plan_.workspace()});
            }
          }};
}

// All partial sums of a convolution's weights, back from the 36 positions to 9 taps.
Work FloatNetwork::add_up(const float* sums, float* weights, float* bias) const {
  const int64_t blocks = plan_.shape.blocks, rows = kBlock / kRows;
  return {kRest, blocks * blocks * 3 * rows, [=, this](int, int64_t unit) {
            const int64_t z = unit / rows % 3, in = unit / rows / 3 % blocks, out = unit / rows / 3 / blocks;
            do_.add_up(plan_.shape, {sums, gradient_parts(), sums_size()}, z, in * kBlock + unit % rows * kRows, out,
                       weights);
            if (unit) return;
            const float* from = sums + sums_size() - plan_.width();
            for (int64_t i = 0; i < plan_.shape.features; ++i)
              bias[i] = static_cast<float>(sum_of(from + i, gradient_parts(), sums_size()));
          }};
}

Work FloatNetwork::input_weight_gradient(const float* pairs, const float* gradient, float* sums) const {
  const int64_t planes = plan_.shape.z;
  return {kWeightGradient, batch_ * planes, [=, this](int, int64_t unit) {
            const int64_t sample = unit / planes;
            float* mine = sums + unit * first_sums_size();
            std::fill_n(mine, first_sums_size(), 0.0f);
            do_.input_weight_gradient(plan_.shape, pairs + sample * plan_.pairs(), gradient + sample * plan_.map(),
                                      unit % planes, mine);
          }};
}

void FloatNetwork::add_up_first(const float* sums, float* weights, float* bias) const {
  const int64_t planes = batch_ * plan_.shape.z, features = plan_.shape.features;
  for (int64_t i = 0; i < features; ++i) {
    const float* from = sums + i / kBlock * kInputTaps * kBlock + i % kBlock;
    for (int64_t row = 0; row < kInputTaps; ++row)
      weights[row * features + i] = static_cast<float>(sum_of(from + row * kBlock, planes, first_sums_size()));
    bias[i] = static_cast<float>(sum_of(sums + kInputTaps * plan_.width() + i, planes, first_sums_size()));
  }
}

}  // namespace ffn
