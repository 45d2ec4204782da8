// The two TensorFlow operations, forward and backward pass of the network, and what ffn/kernels/__init__.py asks for.
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "float_network.h"
#include "memory.h"
#include "network.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tsl/platform/threadpool.h"

namespace ffn {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Memory of a tensor that goes back to the kept buffers with it.
class BufferOfTensor : public tensorflow::TensorBuffer {
 public:
  explicit BufferOfTensor(std::unique_ptr<Buffer> buffer, size_t size)
      : TensorBuffer(buffer->as<void>()), buffer_(std::move(buffer)), size_(size) {}
  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}

 private:
  std::unique_ptr<Buffer> buffer_;
  size_t size_;
};

Tensor kept_tensor(int64_t size) {
  const size_t bytes = size * sizeof(bf16);
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> memory(
      new BufferOfTensor(std::make_unique<Buffer>(bytes), bytes));
  return Tensor(tensorflow::DT_BFLOAT16, TensorShape({size}), std::move(memory));
}

// The threads TensorFlow gives an operation; the calling one works, too.
Workers workers_of(OpKernelContext* context) {
  auto* pool = context->device()->tensorflow_cpu_worker_threads()->workers;
  const int count = context->device()->tensorflow_cpu_worker_threads()->num_threads;
  const auto one_each = tsl::thread::ThreadPool::SchedulingParams::Fixed(1);
  return {count, [=](const std::function<void(int)>& work) {
            if (count == 1) return work(0);
            pool->ParallelFor(count, one_each, [&](int64_t begin, int64_t end) {
              for (int64_t worker = begin; worker < end; ++worker) work(static_cast<int>(worker));
            });
          }};
}

std::vector<const float*> weights_of(OpKernelContext* context, int64_t* features) {
  tensorflow::OpInputList weights;
  TF_CHECK_OK(context->input_list("weights", &weights));
  std::vector<const float*> values;
  for (const Tensor& each : weights) values.push_back(each.flat<float>().data());
  *features = weights[1].NumElements();
  return values;
}

// The networks on FOVs shaped like `fovs`, (B, Z, Y, X, 1), with the weights given to an operation.
Network network_of(OpKernelContext* context, const Tensor& fovs, const Workers& workers) {
  int64_t features;
  const std::vector<const float*> weights = weights_of(context, &features);
  return Network({fovs.dim_size(0), fovs.dim_size(1), fovs.dim_size(2), fovs.dim_size(3)}, weights, features, workers);
}

FloatNetwork float_network_of(OpKernelContext* context, int lanes, const Tensor& fovs, const Workers& workers) {
  int64_t features;
  const std::vector<const float*> weights = weights_of(context, &features);
  const Plan plan(fovs.dim_size(1), fovs.dim_size(2), fovs.dim_size(3), features);
  return FloatNetwork(instructions_of(lanes), fovs.dim_size(0), plan, weights, workers);
}

// An operation that computes with AMX in bfloat16 if `lanes` is 0, else in float32 with vectors of that size.
class NetworkKernel : public OpKernel {
 public:
  explicit NetworkKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("lanes", &lanes_));
  }

 protected:
  int lanes_;
};

class Forward : public NetworkKernel {
 public:
  using NetworkKernel::NetworkKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &image = context->input(0), &pom = context->input(1);
    OP_REQUIRES(context, image.dims() == 5 && image.shape() == pom.shape(),
                absl::InvalidArgumentError(absl::StrCat("image and POM must be (B, Z, Y, X, 1), found ",
                                                        image.shape().DebugString(), " and ",
                                                        pom.shape().DebugString())));
    Tensor* updated;
    OP_REQUIRES_OK(context, context->allocate_output(0, pom.shape(), &updated));
    const Workers workers = workers_of(context);
    const auto run = [&](const auto& network, auto number) {
      const Tensor activations = kept_tensor(network.num_activations() * sizeof(number) / sizeof(bf16));
      network.forward(image.flat<float>().data(), pom.flat<float>().data(),
                      static_cast<decltype(number)*>(activations.data()), updated->flat<float>().data());
      context->set_output(1, activations);
    };
    if (lanes_)
      run(float_network_of(context, lanes_, image, workers), float());
    else
      run(network_of(context, image, workers), bf16());
  }
};

class Backward : public NetworkKernel {
 public:
  using NetworkKernel::NetworkKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &gradient = context->input(0), &activations = context->input(1);
    const Workers workers = workers_of(context);
    std::vector<float*> gradients;
    for (int i = 0; i < context->num_outputs(); ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, context->input(2 + i).shape(), &output));
      gradients.push_back(output->flat<float>().data());
    }
    const float* values = gradient.flat<float>().data();
    if (lanes_)
      float_network_of(context, lanes_, gradient, workers)
          .backward(values, static_cast<const float*>(activations.data()), gradients);
    else
      network_of(context, gradient, workers).backward(values, static_cast<bf16*>(activations.data()), gradients);
  }
};

REGISTER_OP("FfnForward")
    .Attr("num_weights: int >= 6")
    .Attr("lanes: int = 0")
    .Input("image: float")
    .Input("pom_logit: float")
    .Input("weights: num_weights * float")
    .Output("updated_pom_logit: float")
    .Output("activations: bfloat16")  // or the bytes of float32 numbers
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(1));
      context->set_output(1, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

REGISTER_OP("FfnBackward")
    .Attr("num_weights: int >= 6")
    .Attr("lanes: int = 0")
    .Input("gradient: float")
    .Input("activations: bfloat16")
    .Input("weights: num_weights * float")
    .Output("gradients: num_weights * float")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(2 + i));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("FfnForward").Device(tensorflow::DEVICE_CPU), Forward);
REGISTER_KERNEL_BUILDER(Name("FfnBackward").Device(tensorflow::DEVICE_CPU), Backward);

}  // namespace
}  // namespace ffn

// Ask Linux to let this process use AMX's tiles; 0 if it may.
extern "C" int ffn_kernels_request_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return static_cast<int>(syscall(SYS_arch_prctl, kRequestPermission, kTileData));
}

// Processor seconds of all threads so far: forward, data gradients, weight gradients, rest.
extern "C" void ffn_kernels_seconds(double* seconds) {
  for (int kind = 0; kind < ffn::kNumKinds; ++kind)
    seconds[kind] = static_cast<double>(ffn::nanoseconds(static_cast<ffn::Kind>(kind))) * 1e-9;
}
