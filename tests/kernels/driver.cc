// Forward and backward pass of the network without TensorFlow, so that sanitizers see nothing but the kernels.
//
//     driver LANES BATCH Z Y X FEATURES NUM_CONVOLUTIONS THREADS
//         < weights, image, POM, gradient > updated POM, gradients
//
// LANES 0 computes in bfloat16, others in float32 with vectors of that size. All numbers are float32, in the order of
// the operations' arguments; each array has memory of its own.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "float_network.h"
#include "memory.h"
#include "network.h"

namespace {

using Array = std::vector<float>;

Array read(int64_t size) {
  Array array(size);
  if (std::fread(array.data(), sizeof(float), size, stdin) != array.size()) std::abort();
  return array;
}

void write(const Array& array) { std::fwrite(array.data(), sizeof(float), array.size(), stdout); }

void run(int threads, const std::function<void(int)>& work) {
  std::vector<std::thread> others;
  for (int worker = 1; worker < threads; ++worker) others.emplace_back(work, worker);
  work(0);
  for (std::thread& other : others) other.join();
}

}  // namespace

int main(int, char** arguments) {
  int64_t numbers[8];
  for (int i = 0; i < 8; ++i) numbers[i] = std::atoll(arguments[i + 1]);
  const auto [lanes, batch, z, y, x, features, num_convolutions, threads] = numbers;
  const int num_threads = static_cast<int>(threads);
  const ffn::Workers workers = {num_threads, [=](const auto& work) { run(num_threads, work); }};

  std::vector<Array> weights, gradients;
  for (int i = 0; i <= num_convolutions; ++i) {
    const bool is_lom = i == num_convolutions;
    weights.push_back(read(is_lom ? features : ffn::kMaxTaps * (i ? features : 2) * features));
    weights.push_back(read(is_lom ? 1 : features));
  }
  const int64_t voxels = batch * z * y * x;
  const Array image = read(voxels), pom = read(voxels), gradient = read(voxels);
  Array updated(voxels);
  std::vector<const float*> weights_at;
  std::vector<float*> gradients_at;
  for (const Array& each : weights) {
    weights_at.push_back(each.data());
    gradients_at.push_back(gradients.emplace_back(each.size()).data());
  }

  const auto pass = [&](const auto& network, auto number) {
    using Number = decltype(number);
    const ffn::Buffer activations(network.num_activations() * sizeof(Number));
    network.forward(image.data(), pom.data(), activations.as<Number>(), updated.data());
    network.backward(gradient.data(), activations.as<Number>(), gradients_at);
  };
  if (lanes)
    pass(ffn::FloatNetwork(ffn::instructions_of(static_cast<int>(lanes)), batch, {z, y, x, features}, weights_at,
                           workers),
         float());
  else
    pass(ffn::Network({batch, z, y, x}, weights_at, features, workers), ffn::bf16());
  write(updated);
  for (const Array& each : gradients) write(each);
}
