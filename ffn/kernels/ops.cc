// The two TensorFlow operations, forward and backward pass of the network, and what ffn/kernels/__init__.py asks for.
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
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

// The network on FOVs shaped like `fovs`, (B, Z, Y, X, 1), with the weights given to an operation.
Network network_of(OpKernelContext* context, const Tensor& fovs, const Workers& workers) {
  tensorflow::OpInputList weights;
  TF_CHECK_OK(context->input_list("weights", &weights));
  std::vector<const float*> values;
  for (const Tensor& each : weights) values.push_back(each.flat<float>().data());
  const Layout layout = {fovs.dim_size(0), fovs.dim_size(1), fovs.dim_size(2), fovs.dim_size(3)};
  return Network(layout, values, weights[1].NumElements(), workers);
}

class Forward : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &image = context->input(0), &pom = context->input(1);
    OP_REQUIRES(context, image.dims() == 5 && image.shape() == pom.shape(),
                absl::InvalidArgumentError(absl::StrCat("image and POM must be (B, Z, Y, X, 1), found ",
                                                        image.shape().DebugString(), " and ",
                                                        pom.shape().DebugString())));
    Tensor* updated;
    OP_REQUIRES_OK(context, context->allocate_output(0, pom.shape(), &updated));
    const Workers workers = workers_of(context);
    const Network network = network_of(context, image, workers);
    const Tensor activations = kept_tensor(network.num_activations());
    network.forward(image.flat<float>().data(), pom.flat<float>().data(), static_cast<bf16*>(activations.data()),
                    updated->flat<float>().data());
    context->set_output(1, activations);
  }
};

class Backward : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &gradient = context->input(0), &activations = context->input(1);
    const Workers workers = workers_of(context);
    const Network network = network_of(context, gradient, workers);
    std::vector<float*> gradients;
    for (int i = 0; i < context->num_outputs(); ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, context->input(2 + i).shape(), &output));
      gradients.push_back(output->flat<float>().data());
    }
    network.backward(gradient.flat<float>().data(), static_cast<bf16*>(activations.data()), gradients);
  }
};

REGISTER_OP("FfnForward")
    .Attr("num_weights: int >= 6")
    .Input("image: float")
    .Input("pom_logit: float")
    .Input("weights: num_weights * float")
    .Output("updated_pom_logit: float")
    .Output("activations: bfloat16")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(1));
      context->set_output(1, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

REGISTER_OP("FfnBackward")
    .Attr("num_weights: int >= 6")
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
