// Bytes that an op reads or writes, as fronts tell the driver.
#pragma once

#include <cstddef>

struct LmsRange {
  const void* at;
  size_t size;
  int writes;
  const char* tensor;  // its name; null if unknown
};
