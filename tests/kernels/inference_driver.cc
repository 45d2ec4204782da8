// One call of the network for inference, so that sanitizers see nothing but the kernels.
//
//     inference_driver LANES BATCH Z Y X FEATURES NUM_CONVOLUTIONS THREADS < weights, image, POM > updated POM
//
// All numbers are float32; each array has memory of its own.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
void* ffn_network_create(int, int64_t, int64_t, int64_t, int64_t, const float* const*, int64_t, int);
int ffn_network_predict(void*, int64_t, const float*, const float*, float*);
void ffn_network_free(void*);
}

static std::vector<float> read(int64_t size) {
  std::vector<float> array(size);
  if (std::fread(array.data(), sizeof(float), size, stdin) != array.size()) std::abort();
  return array;
}

int main(int, char** arguments) {
  int64_t numbers[8];
  for (int i = 0; i < 8; ++i) numbers[i] = std::atoll(arguments[i + 1]);
  const auto [lanes, batch, z, y, x, features, num_convolutions, threads] = numbers;
  std::vector<std::vector<float>> weights;
  for (int i = 0; i <= num_convolutions; ++i) {
    const bool is_lom = i == num_convolutions;
    weights.push_back(read(is_lom ? features : 27 * (i ? features : 2) * features));
    weights.push_back(read(is_lom ? 1 : features));
  }
  std::vector<const float*> pointers;
  for (const auto& each : weights) pointers.push_back(each.data());
  const auto image = read(batch * z * y * x), pom = read(batch * z * y * x);
  std::vector<float> updated(pom.size());
  void* network = ffn_network_create(static_cast<int>(lanes), z, y, x, features, pointers.data(), pointers.size(),
                                     static_cast<int>(threads));
  if (ffn_network_predict(network, batch, image.data(), pom.data(), updated.data())) std::abort();
  ffn_network_free(network);
  std::fwrite(updated.data(), sizeof(float), updated.size(), stdout);
}
