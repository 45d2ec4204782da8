#include "network.h"

#include <algorithm>
#include <cstring>

#include "convolution.h"
#include "memory.h"
#include "weight_gradient.h"

namespace ffn {
namespace {

constexpr int64_t kChunk = 8 * kGroup;  // positions of a unit of convolution

int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// The sum of `rows` arrays of `size`, each `step` after the one before.
void add_up_rows(const float* values, int64_t rows, int64_t step, int64_t size, float* sums) {
  std::copy_n(values, size, sums);
  for (int64_t row = 1; row < rows; ++row)
    for (int64_t i = 0; i < size; ++i) sums[i] += values[row * step + i];
}

}  // namespace

Network::Network(const Layout& layout, std::vector<const float*> weights, int64_t features, const Workers& workers)
    : layout_(layout),
      weights_(std::move(weights)),
      features_(features),
      blocks_(divide_up(features, kChannels)),
      is_voxel_(layout.voxels()),
      workers_(workers) {
  convolutions_.push_back({1, 2 * kMaxTaps, features});
  while (convolutions_.size() + 1 < weights_.size() / 2) convolutions_.push_back({kMaxTaps, features, features});
}

int64_t Network::num_activations() const {
  return (convolutions_[0].in_blocks() + num_convolutions() * blocks_) * layout_.block_size();
}

std::vector<Map> Network::maps(bf16* activations) const {
  std::vector<Map> maps;
  for (int i = 0; i <= num_convolutions(); ++i) {
    maps.push_back({activations, layout_.block_size()});
    activations += (i ? blocks_ : convolutions_[0].in_blocks()) * layout_.block_size();
  }
  return maps;
}

int64_t Network::packed_size(int index) const {
  const Convolution& conv = convolutions_[index];
  return conv.taps * conv.in_blocks() * conv.out_blocks() * kTapWeights;
}

// Distance in positions from an output to the inputs of each tap.
std::vector<int64_t> Network::offsets(int index) const {
  if (index == 0) return {0};
  const auto taps = layout_.taps();
  return {taps.begin(), taps.end()};
}

int64_t Network::ranges() const { return divide_up(layout_.sample(), kRange); }

int64_t Network::partial_size(int index) const {
  const Convolution& conv = convolutions_[index];
  return (conv.tap_slots() * conv.in_blocks() * kChannels + 1) * conv.out_blocks() * kChannels;
}

// --- Forward --------------------------------------------------------------------------------------------

void Network::forward(const float* image, const float* pom, bf16* activations, float* updated) const {
  const std::vector<Map> maps = this->maps(activations);
  const Buffer sums(blocks_ * layout_.block_size() * sizeof(bf16));
  const Buffer pairs(layout_.positions() * sizeof(uint32_t));
  std::vector<Work> works = {read_inputs(image, pom, pairs.as<uint32_t>())};
  int64_t size = 0;
  for (int i = 0; i < num_convolutions(); ++i) size += packed_size(i);
  const Buffer packed(size * sizeof(bf16));
  std::vector<bf16*> packed_of;
  for (int i = 0, begin = 0; i < num_convolutions(); begin += packed_size(i++)) {
    packed_of.push_back(packed.as<bf16>() + begin);
    works.push_back(pack(i, false, packed_of[i]));
    works.push_back(clear(maps[i + 1], blocks_, true));
  }
  workers_.stage(works);
  workers_.stage({gather_neighbours(pairs.as<uint32_t>(), maps[0])});
  const Map sum = {sums.as<bf16>(), layout_.block_size()};
  for (int i = 0; i < num_convolutions(); ++i)
    workers_.stage({convolution(i, maps[i], maps[i + 1], sum, packed_of[i])});
  workers_.stage({update(maps.back(), pom, updated)});
}

// Zeros to a map, or to the halo between its samples.
Work Network::clear(Map map, int64_t blocks, bool halo_only) const {
  return {kRest, blocks * (layout_.batch + 1), [=, this](int, int64_t unit) {
            const int64_t sample = unit % (layout_.batch + 1), end = layout_.start(sample);
            const int64_t begin = sample && !halo_only ? layout_.start(sample - 1) : end - layout_.halo();
            const int64_t tail = sample == layout_.batch ? kGroup : 0;
            std::memset(map.at(unit / (layout_.batch + 1), begin), 0, (end + tail - begin) * kChannels * sizeof(bf16));
          }};
}

// Weights as tiles B: [output block][input block][tap]; transposed, with outputs and inputs exchanged.
Work Network::pack(int index, bool transposed, bf16* packed) const {
  const Convolution conv = convolutions_[index];
  const float* weights = weights_[2 * index];
  const int64_t to_blocks = transposed ? conv.in_blocks() : conv.out_blocks();
  const int64_t from_blocks = transposed ? conv.out_blocks() : conv.in_blocks();
  return {kRest, to_blocks * from_blocks, [=](int, int64_t unit) {
            const int64_t to = unit / from_blocks * kChannels, from = unit % from_blocks * kChannels;
            const int64_t from_step = transposed ? 1 : conv.outputs, to_step = transposed ? conv.outputs : 1;
            const int64_t rows = (transposed ? conv.outputs : conv.inputs) - from;
            const int64_t columns = (transposed ? conv.inputs : conv.outputs) - to;
            for (int64_t tap = 0; tap < conv.taps; ++tap)
              pack_weights(weights + tap * conv.inputs * conv.outputs + from * from_step + to * to_step, rows, columns,
                           from_step, to_step, packed + (unit * conv.taps + tap) * kTapWeights);
          }};
}

// Image and POM of each position as one pair of bfloat16, zero outside of the FOV.
Work Network::read_inputs(const float* image, const float* pom, uint32_t* pairs) const {
  return {kRest, layout_.batch + 1, [=, this](int, int64_t sample) {
            const int64_t start = layout_.start(sample);
            std::memset(pairs + start - layout_.halo(), 0, layout_.halo() * sizeof(uint32_t));
            if (sample == layout_.batch) return;
            const int64_t voxels = layout_.z * layout_.y * layout_.x;
            const float *from_image = image + sample * voxels, *from_pom = pom + sample * voxels;
            for (int64_t i = 0; i < layout_.sample(); ++i)
              pairs[start + i] = is_voxel_[i] ? to_bf16(*from_image++) | (uint32_t)to_bf16(*from_pom++) << 16 : 0;
          }};
}

// The map of the first convolution: for each position the pairs of its 27 neighbours; the last 10 channels are 0.
Work Network::gather_neighbours(const uint32_t* pairs, Map map) const {
  const int64_t chunks = divide_up(layout_.sample(), kChunk);
  return {kForward, layout_.batch * chunks, [=, this](int, int64_t unit) {
            alignas(64) int32_t offsets[32] = {};
            const auto taps = layout_.taps();
            for (int tap = 0; tap < kMaxTaps; ++tap) offsets[tap] = (int32_t)taps[tap];
            const __m512i low = _mm512_load_si512(offsets), high = _mm512_load_si512(offsets + 16);
            const int64_t start = layout_.start(unit / chunks), begin = unit % chunks * kChunk;
            for (int64_t i = begin; i < std::min(begin + kChunk, layout_.sample()); ++i) {
              const uint32_t* here = pairs + start + i;
              const __mmask16 all = is_voxel_[i] ? 0xffff : 0, rest = is_voxel_[i] ? 0x07ff : 0;
              const __m512i zero = _mm512_setzero_si512();
              _mm512_store_si512(map.at(0, start + i), _mm512_mask_i32gather_epi32(zero, all, low, here, 4));
              _mm512_store_si512(map.at(1, start + i), _mm512_mask_i32gather_epi32(zero, rest, high, here, 4));
            }
          }};
}

Work Network::convolution(int index, Map from, Map to, Map sum, const bf16* packed) const {
  const Convolution conv = convolutions_[index];
  const int64_t chunks = divide_up(layout_.sample(), kChunk);
  return {kForward, conv.out_blocks() * layout_.batch * chunks, [=, this](int, int64_t unit) {
            const int64_t start = layout_.start(unit / chunks % layout_.batch);
            const int64_t block = unit / chunks / layout_.batch, outputs = conv.outputs - block * kChannels;
            Taps taps{{}, packed + block * conv.in_blocks() * conv.taps * kTapWeights, outputs > 16 ? 2 : 1};
            for (int64_t input = 0; input < conv.in_blocks(); ++input)
              for (const int64_t offset : offsets(index)) taps.inputs.push_back(from.at(input, start + offset));
            alignas(64) float bias[kChannels] = {};
            std::copy_n(weights_[2 * index + 1] + block * kChannels, std::min(outputs, kChannels), bias);
            const Channels add = load(bias);
            const bool is_sum = index % 2, is_first = index == 1;
            const Tiles tiles;
            const int64_t begin = unit % chunks * kChunk, end = std::min(begin + kChunk, layout_.sample());
            ffn::convolve(taps, begin, end, [&](int64_t i, Channels value) {
              value = value + add;
              if (is_sum) {
                bf16* total = sum.at(block, start + i);
                if (!is_first) value = value + load(total);
                store(total, value);
              }
              store(to.at(block, start + i), keep_if(is_voxel_[i], relu(value)));
            });
          }};
}

// The voxel-wise convolution, added to the POM.
Work Network::update(Map map, const float* pom, float* updated) const {
  return {kForward, layout_.batch * layout_.z, [=, this](int, int64_t unit) {
            std::vector<float> weights(blocks_ * kChannels, 0.0f);
            std::copy_n(weights_[2 * num_convolutions()], features_, weights.begin());
            const float bias = *weights_[2 * num_convolutions() + 1];
            const int64_t plane = layout_.start(unit / layout_.z) + unit % layout_.z * layout_.plane();
            int64_t voxel = unit * layout_.y * layout_.x;
            for (int64_t y = 0; y < layout_.y; ++y)
              for (int64_t x = 0; x < layout_.x; ++x, ++voxel) {
                float value = bias;
                for (int64_t block = 0; block < blocks_; ++block)
                  value += ffn::sum(load(map.at(block, plane + y * layout_.row() + x)) *
                                    load(weights.data() + block * kChannels));
                updated[voxel] = pom[voxel] + value;
              }
          }};
}

// --- Backward -------------------------------------------------------------------------------------------

void Network::backward(const float* gradient, bf16* activations, const std::vector<float*>& gradients) const {
  const std::vector<Map> maps = this->maps(activations);
  const int last = num_convolutions() - 1;
  const Buffer memory(2 * blocks_ * layout_.block_size() * sizeof(bf16));
  const Map outer = {memory.as<bf16>(), layout_.block_size()};
  const Map inner = {outer.at(blocks_, 0), layout_.block_size()};
  int64_t size = 0, partial = 0;
  for (int i = 0; i <= last; ++i) size += packed_size(i), partial = std::max(partial, partial_size(i));
  const Buffer packed(size * sizeof(bf16));
  const int64_t update_size = layout_.batch * layout_.z * (blocks_ * kChannels + 1);
  const Buffer partials(std::max(layout_.batch * ranges() * partial, update_size) * sizeof(float));
  const int64_t workspace = Workspace::size(layout_.halo());
  const Buffer workspaces(workers_.count * workspace * sizeof(bf16));

  std::vector<Work> works = {clear(outer, blocks_, false), clear(inner, blocks_, true)};
  std::vector<bf16*> packed_of;
  for (int i = 0, begin = 0; i <= last; begin += packed_size(i++)) {
    packed_of.push_back(packed.as<bf16>() + begin);
    if (i) works.push_back(pack(i, true, packed_of[i]));
  }
  workers_.stage(works);
  workers_.stage({update_gradient(maps.back(), gradient, outer, partials.as<float>())});
  add_up_update(partials.as<float>(), gradients[2 * last + 2], gradients[2 * last + 3]);
  for (int i = last; i >= 0; --i) {
    const Map &from = i % 2 ? outer : inner, &to = i % 2 ? inner : outer;
    works = {weight_gradient(i, maps[i], from, workspaces.as<bf16>(), partials.as<float>())};
    if (i) works.push_back(data_gradient(i, from, maps[i], to, packed_of[i]));
    workers_.stage(works);
    workers_.stage({add_up(i, partials.as<float>(), gradients[2 * i], gradients[2 * i + 1])});
  }
}

// Back through the voxel-wise convolution: `outer`, and for each plane the sums of its weights' and bias's gradient.
Work Network::update_gradient(Map map, const float* gradient, Map outer, float* partials) const {
  return {kRest, layout_.batch * layout_.z, [=, this](int, int64_t unit) {
            std::vector<float> weights(blocks_ * kChannels, 0.0f);
            std::copy_n(weights_[2 * num_convolutions()], features_, weights.begin());
            float* sums = partials + unit * (blocks_ * kChannels + 1);
            std::fill_n(sums, blocks_ * kChannels + 1, 0.0f);
            const int64_t plane = layout_.start(unit / layout_.z) + unit % layout_.z * layout_.plane();
            const float* value = gradient + unit * layout_.y * layout_.x;
            for (int64_t y = 0; y < layout_.y; ++y)
              for (int64_t x = 0; x < layout_.x; ++x, ++value) {
                sums[blocks_ * kChannels] += *value;
                for (int64_t block = 0; block < blocks_; ++block) {
                  const int64_t position = plane + y * layout_.row() + x, channel = block * kChannels;
                  const Channels input = load(map.at(block, position));
                  store(sums + channel, load(sums + channel) + times(*value, input));
                  store(outer.at(block, position),
                        where_positive(input, times(*value, load(weights.data() + channel))));
                }
              }
          }};
}

void Network::add_up_update(const float* partials, float* weights, float* bias) const {
  const int64_t step = blocks_ * kChannels + 1, num_partials = layout_.batch * layout_.z;
  add_up_rows(partials, num_partials, step, features_, weights);
  add_up_rows(partials + step - 1, num_partials, step, 1, bias);
}

Work Network::data_gradient(int index, Map from, Map map, Map to, const bf16* packed) const {
  const Convolution conv = convolutions_[index];
  const int64_t chunks = divide_up(layout_.sample(), kChunk);
  return {kDataGradient, conv.in_blocks() * layout_.batch * chunks, [=, this](int, int64_t unit) {
            const int64_t start = layout_.start(unit / chunks % layout_.batch), block = unit / chunks / layout_.batch;
            const int halves = conv.inputs - block * kChannels > 16 ? 2 : 1;
            Taps taps{{}, packed + block * conv.out_blocks() * conv.taps * kTapWeights, halves};
            for (int64_t output = 0; output < conv.out_blocks(); ++output)
              for (const int64_t offset : offsets(index)) taps.inputs.push_back(from.at(output, start - offset));
            const bool adds = index % 2 == 0;
            const Tiles tiles;
            const int64_t begin = unit % chunks * kChunk, end = std::min(begin + kChunk, layout_.sample());
            ffn::convolve(taps, begin, end, [&](int64_t i, Channels value) {
              value = where_positive(load(map.at(block, start + i)), value);  // 0 beside the voxels, like the map
              bf16* place = to.at(block, start + i);
              store(place, adds ? value + load(place) : value);
            });
          }};
}

// Partial sums [sample and range][output block][input block][tap][output][input], then [output block][output].
Work Network::weight_gradient(int index, Map map, Map from, bf16* workspaces, float* partials) const {
  const Convolution conv = convolutions_[index];
  const int64_t workspace_size = Workspace::size(layout_.halo());
  return {kWeightGradient, layout_.batch * ranges(), [=, this](int worker, int64_t unit) {
            Workspace workspace(workspaces + worker * workspace_size, layout_.halo());
            const int64_t begin = unit % ranges() * kRange, count = std::min(kRange, layout_.sample() - begin);
            const int64_t position = layout_.start(unit / ranges()) + begin;
            const int64_t size = conv.tap_slots() * kChannels * kChannels;
            float* sums = partials + unit * partial_size(index);
            float* bias = sums + conv.out_blocks() * conv.in_blocks() * size;
            const Tiles tiles;
            for (int64_t output = 0; output < conv.out_blocks(); ++output)
              for (int64_t input = 0; input < conv.in_blocks(); ++input, sums += size)
                ffn::weight_gradient(map.at(input, position), from.at(output, position), count, offsets(index),
                                     workspace, sums, bias + output * kChannels);
          }};
}

// The partial sums of all samples and ranges, always in the same order, to the places of the weights; a unit a tap.
Work Network::add_up(int index, const float* partials, float* weights, float* bias) const {
  const Convolution conv = convolutions_[index];
  const int64_t num_partials = layout_.batch * ranges(), step = partial_size(index);
  return {kWeightGradient, conv.taps + 1, [=](int, int64_t tap) {
            if (tap == conv.taps) {
              const float* sums = partials + step - conv.out_blocks() * kChannels;
              return add_up_rows(sums, num_partials, step, conv.outputs, bias);
            }
            float sums[kChannels * kChannels];
            for (int64_t block = 0; block < conv.out_blocks() * conv.in_blocks(); ++block) {
              const int64_t place = (block * conv.tap_slots() + tap) * kChannels * kChannels;
              add_up_rows(partials + place, num_partials, step, kChannels * kChannels, sums);
              const int64_t output = block / conv.in_blocks() * kChannels, input = block % conv.in_blocks() * kChannels;
              float* target = weights + (tap * conv.inputs + input) * conv.outputs + output;
              for (int64_t i = 0; i < std::min(conv.inputs - input, kChannels); ++i)
                for (int64_t o = 0; o < std::min(conv.outputs - output, kChannels); ++o)
                  target[i * conv.outputs + o] = sums[o * kChannels + i];
            }
          }};
}

}  // namespace ffn
