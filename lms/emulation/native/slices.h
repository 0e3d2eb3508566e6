// A stand-in for XlaDynamicUpdateSlice, which Keras's `slice_update` calls and XLA would
// compile for the card. Starts are clamped so that the update fits, as in XLA. A dry card
// allocates the output and computes nothing.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

extern "C" double lms_card_setting(const char* name, double otherwise);

namespace card {

using namespace tensorflow;

class UpdateSlice : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &input = context->input(0), &update = context->input(1);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, input.shape(), &output));
    OP_REQUIRES(context, update.dims() == input.dims(),
                absl::InvalidArgumentError("an update must have the input's rank"));
    bool fits = context->input(2).NumElements() == input.dims();
    for (int i = 0; i < input.dims(); ++i) fits &= update.dim_size(i) <= input.dim_size(i);
    OP_REQUIRES(context, fits,
                absl::InvalidArgumentError("an update must fit into the input"));
    static const bool is_dry = lms_card_setting("LMS_CARD_DRY", 0) != 0;
    if (is_dry || input.NumElements() == 0) return;
    const int rank = input.dims();
    const int64_t each = DataTypeSize(input.dtype());
    std::vector<int64_t> apart(rank, each);  // stride of each axis in bytes
    for (int i = rank - 2; i >= 0; --i) apart[i] = apart[i + 1] * input.dim_size(i + 1);
    int64_t begin = 0;
    for (int i = 0; i < rank; ++i) {
      const Tensor& at = context->input(2);
      const int64_t start = at.dtype() == DT_INT32 ? at.flat<int32_t>()(i)
                                                   : at.flat<int64_t>()(i);
      const int64_t last = input.dim_size(i) - update.dim_size(i);
      begin += apart[i] * std::clamp<int64_t>(start, 0, std::max<int64_t>(0, last));
    }
    auto* to = const_cast<char*>(output->tensor_data().data());
    const char* from = update.tensor_data().data();
    std::memcpy(to, input.tensor_data().data(), input.TotalBytes());
    const int64_t row = rank == 0 ? each : each * update.dim_size(rank - 1);
    for (int64_t done = 0; done < update.NumElements() * each; done += row) {
      int64_t place = begin, left = done / std::max<int64_t>(1, row);
      for (int i = rank - 2; i >= 0; --i) {
        place += apart[i] * (left % update.dim_size(i));
        left /= update.dim_size(i);
      }
      std::memcpy(to + place, from + done, row);
    }
  }
};

inline bool IsUpdateSlice(const std::string& op) { return op == "XlaDynamicUpdateSlice"; }

}  // namespace card
