// The number formats of weights and of the KV store, each decoded the obvious way.
#ifndef MINI_VLLM_TESTS_FORMATS_H
#define MINI_VLLM_TESTS_FORMATS_H

#include <cstdint>
#include <vector>

#include "memory.h"
#include "mini_vllm.h"

namespace mvt {

// A weight format: how a group of neighbouring columns lies in a row of the file.
struct Format {
  int32_t id;
  const char *name;
  int group;            // columns that are encoded together
  int64_t group_bytes;  // of one group
  bool int8_inputs;     // products round their inputs to int8 in groups of 32 (MV_QUANTIZE)
  void (*fill)(Random &random, uint8_t *bytes);             // one random group
  void (*decode)(const uint8_t *bytes, double *values);     // one group
};

// Every format of the header; a new one is a line here.
const std::vector<Format> &formats();
const Format &format_of(int32_t id);

// The nearest number that a plain format (f32, f16, bf16) holds; ties go to the even one.
double round_to(int32_t format, double x);
double decode_half(uint16_t half);
// x as f32, f16 or bf16 holds it.
void write_plain(int32_t format, double x, uint8_t *bytes);

// A random matrix, as rows of the file and decoded.
class Matrix {
 public:
  Matrix(Random &random, const Format &format, int rows, int cols, bool with_bias);
  Matrix(const Matrix &) = delete;
  Matrix &operator=(const Matrix &) = delete;

  const mv_matrix *get() const { return &matrix_; }
  const Format &format() const { return format_; }
  int rows() const { return matrix_.rows; }
  int cols() const { return matrix_.cols; }
  double at(int row, int col) const { return values_[size_t(row) * size_t(matrix_.cols) + size_t(col)]; }

 private:
  const Format &format_;
  std::vector<double> values_;
  Bytes packed_, bias_;
  mv_matrix matrix_;
};

}  // namespace mvt
#endif
