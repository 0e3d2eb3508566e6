// The gradient of cuDNN's LSTM and GRU (`rnn.h`).
#pragma once

#include "rnn.h"

namespace card {

template <typename T>
class RnnGradient : public Rnn<T> {
  using Base = Rnn<T>;
  using typename Base::C;
  using typename Base::Call;
  using typename Base::Matrix;
  template <typename E>
  using Rows = typename Base::template Rows<E>;
  using Base::Base, Base::Data, Base::Of, Base::is_lstm_;

  struct Given {  // outputs of the op, their gradients, and the gradients to write
    const T *y, *dy, *dh, *dc, *reserve;
    T *dx, *dh0, *dc0, *dparams;
    C* workspace;
  };

  absl::Status Run(OpKernelContext* context) const override {
    Call call;
    TF_RETURN_IF_ERROR(this->Read(context, &call));
    const RnnSizes& s = call.sizes;
    Given given;
    const Tensor* found = nullptr;
    auto read = [&](const char* name, const T** at) -> absl::Status {
      TF_RETURN_IF_ERROR(context->input(name, &found));
      *at = Data(*found);
      return absl::OkStatus();
    };
    TF_RETURN_IF_ERROR(read("output", &given.y));
    TF_RETURN_IF_ERROR(read("output_backprop", &given.dy));
    TF_RETURN_IF_ERROR(read("output_h_backprop", &given.dh));
    TF_RETURN_IF_ERROR(read("output_c_backprop", &given.dc));
    TF_RETURN_IF_ERROR(read("reserve_space", &given.reserve));
    if (found->NumElements() != s.steps * s.batch * s.kept() * s.units) {
      return absl::InvalidArgumentError("RNN was not run with is_training");
    }
    auto make = [&](int i, const TensorShape& shape, T** at) -> absl::Status {
      Tensor* made = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &made));
      *at = Data(*made);
      return absl::OkStatus();
    };
    const TensorShape& state = context->input(1).shape();
    TF_RETURN_IF_ERROR(make(0, context->input(0).shape(), &given.dx));
    TF_RETURN_IF_ERROR(make(1, state, &given.dh0));
    TF_RETURN_IF_ERROR(make(2, is_lstm_ ? state : TensorShape(), &given.dc0));
    TF_RETURN_IF_ERROR(make(3, context->input(3).shape(), &given.dparams));
    if (!is_lstm_) given.dc0[0] = T(0);
    Tensor workspace;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        DataTypeToEnum<C>::value, TensorShape({s.steps * s.batch * 4 * s.units}), &workspace));
    given.workspace = workspace.flat<C>().data();
    this->InBlocks(context, s.batch, s.steps * s.params(), [&](int64_t begin, int64_t end) {
      BlockOfSequences(call, given, begin, end - begin);
    });
    this->InBlocks(context, s.gates * s.units,
                   s.steps * s.batch * (s.input + s.units),
                   [&](int64_t begin, int64_t end) {
                     BlockOfParams(call, given, begin, end - begin);
                   });
    return absl::OkStatus();
  }

  // Computes gradients of inputs, states and gates, from the last step to the first.
  void BlockOfSequences(const Call& call, const Given& given, int64_t begin,
                        int64_t count) const {
    const RnnSizes& s = call.sizes;
    const int64_t u = s.units, wide = s.kept() * u;
    Matrix dh = Of(given.dh + begin * u, count, u).template cast<C>(), dc;
    if (is_lstm_) dc = Of(given.dc + begin * u, count, u).template cast<C>();
    for (int64_t t = s.steps - 1; t >= 0; --t) {
      C* const work = given.workspace + (t * s.batch + begin) * 4 * u;
      for (int64_t n = 0; n < count; ++n) {
        C* d = work + n * 4 * u;
        if (t >= call.lengths[begin + n]) {
          std::fill_n(d, 4 * u, C(0));
          continue;
        }
        const T* kept = given.reserve + (t * s.batch + begin + n) * wide;
        const T* dy = given.dy + s.First(t, begin + n, u);
        // The previous state: h of a GRU, c of an LSTM.
        const T* before = is_lstm_ ? t > 0 ? kept - s.batch * wide + 4 * u
                                           : call.c0 + (begin + n) * u
                          : t > 0  ? given.y + s.First(t - 1, begin + n, u)
                                   : call.h0 + (begin + n) * u;
        for (int64_t k = 0; k < u; ++k) {
          const C was = static_cast<C>(before[k]);
          const C g = dh(n, k) + static_cast<C>(dy[k]);
          C all[5];
          for (int j = 0; j < s.kept(); ++j) all[j] = static_cast<C>(kept[j * u + k]);
          if (is_lstm_) {
            const C c = std::tanh(all[4]), gc = dc(n, k) + g * all[3] * (1 - c * c);
            d[k] = gc * all[2] * all[0] * (1 - all[0]);
            d[u + k] = gc * was * all[1] * (1 - all[1]);
            d[2 * u + k] = gc * all[0] * (1 - all[2] * all[2]);
            d[3 * u + k] = g * c * all[3] * (1 - all[3]);
            dc(n, k) = gc * all[1];
            dh(n, k) = 0;
          } else {
            const C dn = g * (1 - all[1]) * (1 - all[2] * all[2]);
            d[k] = dn * all[3] * all[0] * (1 - all[0]);
            d[u + k] = g * (was - all[2]) * all[1] * (1 - all[1]);
            d[2 * u + k] = dn;
            d[3 * u + k] = dn * all[0];
            dh(n, k) = g * all[1];
          }
        }
      }
      const int64_t plain = is_lstm_ ? 4 : 2;  // gates whose pre-activation sums h and x
      Rows<C> d = Rows<C>(work, count, 4 * u, Eigen::OuterStride<>(4 * u));
      dh.noalias() += d.leftCols(plain * u) * call.r.topRows(plain * u);
      if (!is_lstm_) dh.noalias() += d.rightCols(u) * call.r.bottomRows(u);
      Rows<T> dx(given.dx + s.First(t, begin, s.input), count, s.input,
                 Eigen::OuterStride<>(s.Apart(s.input)));
      dx = (d.leftCols(s.gates * u) * call.w).template cast<T>();
    }
    Of(given.dh0 + begin * u, count, u) = dh.template cast<T>();
    if (is_lstm_) Of(given.dc0 + begin * u, count, u) = dc.template cast<T>();
  }

  // Sums gradients of `count` rows of W and R, and of their biases.
  void BlockOfParams(const Call& call, const Given& given, int64_t begin,
                     int64_t count) const {
    const RnnSizes& s = call.sizes;
    const int64_t u = s.units, rows = s.gates * u;
    Matrix dw = Matrix::Zero(count, s.input), dr = Matrix::Zero(count, u);
    Matrix dbw = Matrix::Zero(1, count), dbr = Matrix::Zero(1, count);
    Matrix of_x(s.batch, count), of_h(s.batch, count);
    for (int64_t t = 0; t < s.steps; ++t) {
      const C* from = given.workspace + t * s.batch * 4 * u;
      for (int64_t n = 0; n < s.batch; ++n) {
        for (int64_t k = 0; k < count; ++k) {
          const int64_t row = begin + k;
          of_x(n, k) = from[n * 4 * u + row];
          of_h(n, k) = from[n * 4 * u + row + (!is_lstm_ && row >= 2 * u ? u : 0)];
        }
      }
      Rows<const T> x(call.x + s.First(t, 0, s.input), s.batch, s.input,
                      Eigen::OuterStride<>(s.Apart(s.input)));
      Rows<const T> h(t > 0 ? given.y + s.First(t - 1, 0, u) : call.h0, s.batch, u,
                      Eigen::OuterStride<>(t > 0 ? s.Apart(u) : u));
      dw.noalias() += of_x.transpose() * x.template cast<C>();
      dr.noalias() += of_h.transpose() * h.template cast<C>();
      dbw += of_x.colwise().sum();
      dbr += of_h.colwise().sum();
    }
    T* at = given.dparams;
    Of(at + begin * s.input, count, s.input) = dw.template cast<T>();
    Of((at += rows * s.input) + begin * u, count, u) = dr.template cast<T>();
    Of((at += rows * u) + begin, 1, count) = dbw.template cast<T>();
    Of((at += rows) + begin, 1, count) = dbr.template cast<T>();
  }
};

inline bool IsRnn(const std::string& op) {
  return op.rfind("CudnnRNN", 0) == 0 && op.find("Params") == std::string::npos;
}

inline OpKernel* MakeRnn(OpKernelConstruction* construction) {
  const bool is_gradient =
      construction->def().op().find("Backprop") != std::string::npos;
  auto make = [&](auto element) -> OpKernel* {
    using T = decltype(element);
    if (is_gradient) return new RnnGradient<T>(construction);
    return new RnnForward<T>(construction);
  };
  DataType type = DT_FLOAT;
  construction->SetStatus(construction->GetAttr("T", &type));
  switch (type) {
    case DT_HALF: return make(Eigen::half());
    case DT_BFLOAT16: return make(bfloat16());
    case DT_DOUBLE: return make(double());
    default: return make(float());
  }
}

}  // namespace card
