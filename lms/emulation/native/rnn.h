// A stand-in for cuDNN's LSTM and GRU, which only a GPU has: CudnnRNN, its V2 and V3, and
// their gradients, for one layer in one direction, the only form that Keras calls.
//
// Sequences are independent, so each block of sequences runs through all steps by itself.
// The gradient op writes the gates' gradients into a workspace, then sums the parameters'
// gradients in the order of the steps. So results do not depend on the number of threads.
//
//   params    W of each gate [H, I], R of each gate [H, H], biases of W, biases of R
//   gates     LSTM: i f g o; GRU (reset after the product): r z n
//   reserve   of a step: i f g o c, or r z n q with q = R_n h + b
//   workspace of a step: gradients of i f g o, or of r z n q
//
// A dry card allocates the memory and computes nothing.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

extern "C" double lms_card_setting(const char* name, double otherwise);
extern "C" int lms_card_launch();

namespace card {

using namespace tensorflow;

struct RnnSizes {
  int64_t steps = 0, batch = 0, input = 0, units = 0, gates = 0;
  bool is_lstm = false, time_major = true;

  int64_t params() const { return gates * units * (input + units + 2); }
  int64_t kept() const { return is_lstm ? 5 : 4; }  // vectors of the reserve, each step
  // First element of a step's row in an input or output, and the distance between rows.
  int64_t First(int64_t step, int64_t row, int64_t width) const {
    return (time_major ? step * batch + row : row * steps + step) * width;
  }
  int64_t Apart(int64_t width) const { return time_major ? width : steps * width; }
};

// The base of both directions. T: the tensors' type; C: the type of computations.
template <typename T>
class Rnn : public OpKernel {
 public:
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Matrix = Eigen::Matrix<C, -1, -1, Eigen::RowMajor>;
  template <typename E>  // E: T, or const T
  using Rows = Eigen::Map<
      std::conditional_t<
          std::is_const_v<E>,
          const Eigen::Matrix<std::remove_const_t<E>, -1, -1, Eigen::RowMajor>,
          Eigen::Matrix<E, -1, -1, Eigen::RowMajor>>,
      0, Eigen::OuterStride<>>;
  static constexpr int64_t kBlock = 16;  // sequences, or rows of parameters, of a block

  explicit Rnn(OpKernelConstruction* construction) : OpKernel(construction) {
    std::string mode, input_mode, direction;
    int projection = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("rnn_mode", &mode));
    OP_REQUIRES_OK(construction, construction->GetAttr("input_mode", &input_mode));
    OP_REQUIRES_OK(construction, construction->GetAttr("direction", &direction));
    if (construction->HasAttr("num_proj")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("num_proj", &projection));
    }
    if (construction->HasAttr("time_major")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("time_major", &time_major_));
    }
    if (construction->HasAttr("is_training")) {
      OP_REQUIRES_OK(construction, construction->GetAttr("is_training", &is_training_));
    }
    is_lstm_ = mode == "lstm";
    OP_REQUIRES(construction,
                (is_lstm_ || mode == "gru") && input_mode != "skip_input" &&
                    direction == "unidirectional" && projection == 0,
                absl::UnimplementedError(
                    "an emulated card has cuDNN's LSTM and GRU in one direction, got " +
                    mode + ", " + input_mode + ", " + direction));
  }

  void Compute(OpKernelContext* context) override {
    absl::Status status = Measure(context);
    if (status.ok()) status = Run(context);
    OP_REQUIRES_OK(context, status);
  }

 protected:
  struct Call {  // inputs of one call
    RnnSizes sizes;
    const T *x, *h0, *c0;
    std::vector<int> lengths;
    Matrix w, r;     // rows of all gates, below each other
    Eigen::Matrix<C, 1, -1> bw, br;
  };

  virtual absl::Status Run(OpKernelContext* context) const = 0;

  // Checks sizes as cuDNN requires.
  absl::Status Measure(OpKernelContext* context) const {
    const TensorShape& x = context->input(0).shape();
    const TensorShape& h = context->input(1).shape();
    if (x.dims() != 3 || h.dims() != 3) {
      return absl::InvalidArgumentError("RNN input must be a 3-D vector.");
    }
    const RnnSizes sizes = Sizes(context);
    if (h.dim_size(time_major_ ? 0 : 1) != 1 || h.dim_size(time_major_ ? 1 : 0) != sizes.batch) {
      return absl::InvalidArgumentError(
          "an emulated card has an RNN of one layer, got a state of " + h.DebugString());
    }
    if (is_lstm_ && context->input(2).shape() != h) {
      return absl::InvalidArgumentError("Invalid input_c shape: " +
                                        context->input(2).shape().DebugString());
    }
    if (context->input(3).NumElements() != sizes.params()) {
      return absl::InvalidArgumentError(
          "RNN params must be " + std::to_string(sizes.params()) + " numbers, got " +
          std::to_string(context->input(3).NumElements()));
    }
    return absl::OkStatus();
  }

  RnnSizes Sizes(OpKernelContext* context) const {
    const TensorShape& x = context->input(0).shape();
    RnnSizes sizes;
    sizes.steps = x.dim_size(time_major_ ? 0 : 1);
    sizes.batch = x.dim_size(time_major_ ? 1 : 0);
    sizes.input = x.dim_size(2);
    sizes.units = context->input(1).dim_size(2);
    sizes.gates = is_lstm_ ? 4 : 3;
    sizes.is_lstm = is_lstm_;
    sizes.time_major = time_major_;
    return sizes;
  }

  absl::Status Read(OpKernelContext* context, Call* call) const {
    const RnnSizes& s = call->sizes = Sizes(context);
    call->x = Data(context->input(0));
    call->h0 = Data(context->input(1));
    call->c0 = is_lstm_ ? Data(context->input(2)) : nullptr;
    call->lengths.assign(s.batch, s.steps);
    const Tensor* lengths = nullptr;
    if (context->input("sequence_lengths", &lengths).ok()) {
      if (lengths->NumElements() != s.batch) {
        return absl::InvalidArgumentError("RNN needs a length for each sequence.");
      }
      for (int64_t n = 0; n < s.batch; ++n) {
        call->lengths[n] = std::min<int64_t>(lengths->flat<int>()(n), s.steps);
      }
    }
    if (IsDry()) return absl::OkStatus();
    const T* at = Data(context->input(3));
    const int64_t rows = s.gates * s.units;
    call->w = Of(at, rows, s.input).template cast<C>();
    call->r = Of(at += rows * s.input, rows, s.units).template cast<C>();
    call->bw = Of(at += rows * s.units, 1, rows).template cast<C>();
    call->br = Of(at += rows, 1, rows).template cast<C>();
    return absl::OkStatus();
  }

  static bool IsDry() {
    static const bool dry = lms_card_setting("LMS_CARD_DRY", 0) != 0;
    return dry;
  }
  static C Sigmoid(C x) { return C(1) / (C(1) + std::exp(-x)); }
  static const T* Data(const Tensor& tensor) { return static_cast<const T*>(tensor.data()); }
  static T* Data(Tensor& tensor) { return static_cast<T*>(tensor.data()); }
  template <typename E>
  static Rows<E> Of(E* at, int64_t rows, int64_t columns) {
    return Rows<E>(at, rows, columns, Eigen::OuterStride<>(columns));
  }
  template <typename Work>
  static void InBlocks(OpKernelContext* context, int64_t all, int64_t cost, Work work) {
    if (IsDry()) {
      lms_card_launch();
      return;
    }
    auto* threads = context->device()->tensorflow_cpu_worker_threads();
    threads->workers->ParallelFor(
        (all + kBlock - 1) / kBlock, cost * kBlock, [&](int64_t first, int64_t last) {
          for (int64_t i = first; i < last; ++i) {
            work(i * kBlock, std::min(all, (i + 1) * kBlock));
          }
        });
  }

  bool is_lstm_ = true, time_major_ = true, is_training_ = true;
};

template <typename T>
class RnnForward : public Rnn<T> {
  using Base = Rnn<T>;
  using typename Base::C;
  using typename Base::Call;
  using typename Base::Matrix;
  template <typename E>
  using Rows = typename Base::template Rows<E>;
  using Base::Base, Base::Data, Base::Of, Base::is_lstm_;

  absl::Status Run(OpKernelContext* context) const override {
    Call call;
    TF_RETURN_IF_ERROR(this->Read(context, &call));
    const RnnSizes& s = call.sizes;
    TensorShape shape = context->input(0).shape();
    shape.set_dim(2, s.units);
    Tensor *y = nullptr, *h = nullptr, *c = nullptr, *reserve = nullptr, *other = nullptr;
    const TensorShape& state = context->input(1).shape();
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &y));
    TF_RETURN_IF_ERROR(context->allocate_output(1, state, &h));
    TF_RETURN_IF_ERROR(context->allocate_output(2, is_lstm_ ? state : TensorShape(), &c));
    const int64_t kept = s.steps * s.batch * s.kept() * s.units;
    TF_RETURN_IF_ERROR(context->allocate_output(
        3, this->is_training_ ? TensorShape({kept}) : TensorShape(), &reserve));
    if (this->num_outputs() > 4) {
      TF_RETURN_IF_ERROR(context->allocate_output(4, TensorShape(), &other));
      other->scalar<int8>()() = 0;
    }
    if (!this->is_training_) Data(*reserve)[0] = T(0);
    if (!is_lstm_) Data(*c)[0] = T(0);
    T* to = this->is_training_ ? Data(*reserve) : nullptr;
    this->InBlocks(context, s.batch, s.steps * s.params(), [&](int64_t begin, int64_t end) {
      RunBlock(call, begin, end - begin, Data(*y), Data(*h), Data(*c), to);
    });
    return absl::OkStatus();
  }

  // Runs all steps of `count` sequences from `begin` on.
  void RunBlock(const Call& call, int64_t begin, int64_t count, T* y, T* h_out, T* c_out,
                T* reserve) const {
    const RnnSizes& s = call.sizes;
    const int64_t u = s.units, wide = s.kept() * u;
    Matrix h = Of(call.h0 + begin * u, count, u).template cast<C>(), c;
    if (is_lstm_) c = Of(call.c0 + begin * u, count, u).template cast<C>();
    Matrix gates(count, s.gates * u), hidden(count, s.gates * u);
    for (int64_t t = 0; t < s.steps; ++t) {
      Rows<const T> x(call.x + s.First(t, begin, s.input), count, s.input,
                      Eigen::OuterStride<>(s.Apart(s.input)));
      gates.noalias() = x.template cast<C>() * call.w.transpose();
      hidden.noalias() = h * call.r.transpose();
      gates.rowwise() += call.bw;
      hidden.rowwise() += call.br;
      for (int64_t n = 0; n < count; ++n) {
        T* out = y + s.First(t, begin + n, u);
        T* keep = reserve ? reserve + (t * s.batch + begin + n) * wide : nullptr;
        if (t >= call.lengths[begin + n]) {
          std::fill_n(out, u, T(0));
          if (keep) std::fill_n(keep, wide, T(0));
          continue;
        }
        C *g = &gates(n, 0), *q = &hidden(n, 0);
        for (int64_t k = 0; k < u; ++k) {
          C all[5];
          if (is_lstm_) {
            for (int j = 0; j < 4; ++j) {
              const C sum = g[j * u + k] + q[j * u + k];
              all[j] = j == 2 ? std::tanh(sum) : Base::Sigmoid(sum);
            }
            all[4] = c(n, k) = all[1] * c(n, k) + all[0] * all[2];
            h(n, k) = all[3] * std::tanh(all[4]);
          } else {
            all[0] = Base::Sigmoid(g[k] + q[k]);
            all[1] = Base::Sigmoid(g[u + k] + q[u + k]);
            all[3] = q[2 * u + k];
            all[2] = std::tanh(g[2 * u + k] + all[0] * all[3]);
            h(n, k) = (1 - all[1]) * all[2] + all[1] * h(n, k);
          }
          out[k] = static_cast<T>(h(n, k));
          for (int j = 0; keep && j < s.kept(); ++j) keep[j * u + k] = static_cast<T>(all[j]);
        }
      }
    }
    Of(h_out + begin * u, count, u) = h.template cast<T>();
    if (is_lstm_) Of(c_out + begin * u, count, u) = c.template cast<T>();
  }
};

}  // namespace card
