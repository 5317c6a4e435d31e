#include "formats.h"

#include <cmath>
#include <cstdio>

namespace mvt {
namespace {

// x rounded to `bits` bits of mantissa (the hidden one included), exponents from `lowest` on.
double round_bits(double x, int bits, int lowest) {
  if (x == 0 || std::isnan(x) || std::isinf(x)) return x;
  int exponent = std::ilogb(x) > lowest ? std::ilogb(x) : lowest;
  return std::ldexp(std::nearbyint(std::ldexp(x, bits - 1 - exponent)), exponent - bits + 1);
}

uint16_t encode_half(double x) {
  double rounded = round_bits(x, 11, -14);
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  double magnitude = std::fabs(rounded);
  if (magnitude < std::ldexp(1.0, -14)) return uint16_t(sign | int(std::ldexp(magnitude, 24)));
  int exponent = std::ilogb(magnitude);
  return uint16_t(sign | (exponent + 15) << 10 | (int(std::ldexp(magnitude, 10 - exponent)) - 1024));
}

uint16_t read16(const uint8_t *bytes) { return uint16_t(bytes[0] | bytes[1] << 8); }
void write16(uint8_t *bytes, uint16_t value) { std::memcpy(bytes, &value, 2); }

void fill_f32(Random &random, uint8_t *bytes) {
  float value = float(random.normal());
  std::memcpy(bytes, &value, 4);
}
void decode_f32(const uint8_t *bytes, double *values) {
  float value;
  std::memcpy(&value, bytes, 4);
  values[0] = value;
}
void fill_f16(Random &random, uint8_t *bytes) { write16(bytes, encode_half(random.normal())); }
void decode_f16(const uint8_t *bytes, double *values) { values[0] = decode_half(read16(bytes)); }
void fill_bf16(Random &random, uint8_t *bytes) {
  float value = float(random.normal());
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  write16(bytes, uint16_t(bits >> 16));
}
void decode_bf16(const uint8_t *bytes, double *values) {
  uint32_t bits = uint32_t(read16(bytes)) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  values[0] = value;
}

// Codes are random bytes: every value of each code occurs, the extremes too.
void fill_codes(Random &random, uint8_t *bytes, int count) {
  for (int i = 0; i < count; i++) bytes[i] = uint8_t(random.bits());
}
void fill_q8_0(Random &random, uint8_t *bytes) {
  write16(bytes, encode_half(random.normal() / 64));
  fill_codes(random, bytes + 2, 32);
}
void decode_q8_0(const uint8_t *bytes, double *values) {
  for (int i = 0; i < 32; i++) values[i] = decode_half(read16(bytes)) * int8_t(bytes[2 + i]);
}
int nibble(const uint8_t *codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
void fill_q4_0(Random &random, uint8_t *bytes) {
  write16(bytes, encode_half(random.normal() / 8));
  fill_codes(random, bytes + 2, 16);
}
void decode_q4_0(const uint8_t *bytes, double *values) {
  for (int i = 0; i < 32; i++) values[i] = decode_half(read16(bytes)) * (nibble(bytes + 2, i) - 8);
}
void fill_q4_1(Random &random, uint8_t *bytes) {
  write16(bytes, encode_half(random.normal() / 8));
  write16(bytes + 2, encode_half(random.normal()));
  fill_codes(random, bytes + 4, 16);
}
void decode_q4_1(const uint8_t *bytes, double *values) {
  double scale = decode_half(read16(bytes)), minimum = decode_half(read16(bytes + 2));
  for (int i = 0; i < 32; i++) values[i] = scale * nibble(bytes + 4, i) + minimum;
}

int five_bits(const uint8_t *bytes, int i) { return nibble(bytes + 4, i) | (bytes[i / 8] >> (i % 8) & 1) << 4; }
void fill_q5_0(Random &random, uint8_t *bytes) {
  write16(bytes, encode_half(random.normal() / 16));
  fill_codes(random, bytes + 2, 20);
}
void decode_q5_0(const uint8_t *bytes, double *values) {
  for (int i = 0; i < 32; i++) values[i] = decode_half(read16(bytes)) * (five_bits(bytes + 2, i) - 16);
}
void fill_q5_1(Random &random, uint8_t *bytes) {
  write16(bytes, encode_half(random.normal() / 16));
  write16(bytes + 2, encode_half(random.normal()));
  fill_codes(random, bytes + 4, 20);
}
void decode_q5_1(const uint8_t *bytes, double *values) {
  double scale = decode_half(read16(bytes)), minimum = decode_half(read16(bytes + 2));
  for (int i = 0; i < 32; i++) values[i] = scale * five_bits(bytes + 4, i) + minimum;
}

// Super-blocks, written out as the layouts of ggml's block_q2_K … block_q6_K are read there.
void fill_k(Random &random, uint8_t *bytes, int size, int scale_at, int minimum_at) {
  fill_codes(random, bytes, size);
  write16(bytes + scale_at, encode_half(random.normal() / 256));
  if (minimum_at >= 0) write16(bytes + minimum_at, encode_half(random.normal() / 16));
}
void fill_q2_k(Random &random, uint8_t *bytes) { fill_k(random, bytes, 84, 80, 82); }
void fill_q3_k(Random &random, uint8_t *bytes) { fill_k(random, bytes, 110, 108, -1); }
void fill_q4_k(Random &random, uint8_t *bytes) { fill_k(random, bytes, 144, 0, 2); }
void fill_q5_k(Random &random, uint8_t *bytes) { fill_k(random, bytes, 176, 0, 2); }
void fill_q6_k(Random &random, uint8_t *bytes) { fill_k(random, bytes, 210, 208, -1); }

void decode_q2_k(const uint8_t *bytes, double *values) {
  const double d = decode_half(read16(bytes + 80)), dmin = decode_half(read16(bytes + 82));
  for (int half = 0, group = 0; half < 2; half++) {
    for (int shift = 0; shift < 8; shift += 2) {
      for (int part = 0; part < 2; part++, group++) {
        for (int l = 0; l < 16; l++) {
          int code = bytes[16 + half * 32 + part * 16 + l] >> shift & 3;
          *values++ = d * (bytes[group] & 15) * code - dmin * (bytes[group] >> 4);
        }
      }
    }
  }
}
void decode_q3_k(const uint8_t *bytes, double *values) {
  const uint8_t *packed = bytes + 96;
  const double d = decode_half(read16(bytes + 108));
  for (int k = 0; k < 256; k++) {
    int group = k / 16, low = group < 8 ? packed[group] & 15 : packed[group - 8] >> 4;
    int scale = (low | (packed[8 + group % 4] >> (2 * (group / 4)) & 3) << 4) - 32;
    int code = bytes[32 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
    if (!(bytes[k % 32] >> (k / 32) & 1)) code -= 4;
    values[k] = d * scale * code;
  }
}
// ggml's get_scale_min_k4.
void six_bits(const uint8_t *packed, int group, int *scale, int *minimum) {
  if (group < 4) {
    *scale = packed[group] & 63;
    *minimum = packed[group + 4] & 63;
  } else {
    *scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4;
    *minimum = (packed[group + 4] >> 4) | (packed[group] >> 6) << 4;
  }
}
void decode_with_six_bits(const uint8_t *bytes, const uint8_t *fifth, const uint8_t *nibbles, double *values) {
  for (int k = 0; k < 256; k++) {
    int group = k / 32, scale, minimum, byte = nibbles[group / 2 * 32 + k % 32];
    six_bits(bytes + 4, group, &scale, &minimum);
    int code = group % 2 ? byte >> 4 : byte & 15;
    if (fifth) code += fifth[k % 32] >> group & 1 ? 16 : 0;
    values[k] = decode_half(read16(bytes)) * scale * code - decode_half(read16(bytes + 2)) * minimum;
  }
}
void decode_q4_k(const uint8_t *bytes, double *values) { decode_with_six_bits(bytes, nullptr, bytes + 16, values); }
void decode_q5_k(const uint8_t *bytes, double *values) { decode_with_six_bits(bytes, bytes + 16, bytes + 48, values); }
void decode_q6_k(const uint8_t *bytes, double *values) {
  const double d = decode_half(read16(bytes + 208));
  for (int k = 0; k < 256; k++) {
    int half = k / 128, quarter = k % 128 / 32, l = k % 32;
    int low = bytes[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
    int high = bytes[128 + half * 32 + l] >> (2 * quarter) & 3;
    values[k] = d * int8_t(bytes[192 + k / 16]) * ((low | high << 4) - 32);
  }
}

const Format FORMATS[] = {
    {MV_F32, "f32", 1, 4, false, fill_f32, decode_f32},
    {MV_F16, "f16", 1, 2, false, fill_f16, decode_f16},
    {MV_BF16, "bf16", 1, 2, false, fill_bf16, decode_bf16},
    {MV_Q8_0, "q8_0", 32, 34, true, fill_q8_0, decode_q8_0},
    {MV_Q4_0, "q4_0", 32, 18, true, fill_q4_0, decode_q4_0},
    {MV_Q4_1, "q4_1", 32, 20, true, fill_q4_1, decode_q4_1},
    {MV_Q5_0, "q5_0", 32, 22, true, fill_q5_0, decode_q5_0},
    {MV_Q5_1, "q5_1", 32, 24, true, fill_q5_1, decode_q5_1},
    {MV_Q2_K, "q2_k", 256, 84, true, fill_q2_k, decode_q2_k},
    {MV_Q3_K, "q3_k", 256, 110, true, fill_q3_k, decode_q3_k},
    {MV_Q4_K, "q4_k", 256, 144, true, fill_q4_k, decode_q4_k},
    {MV_Q5_K, "q5_k", 256, 176, true, fill_q5_k, decode_q5_k},
    {MV_Q6_K, "q6_k", 256, 210, true, fill_q6_k, decode_q6_k},
};
static_assert(sizeof FORMATS / sizeof FORMATS[0] == MV_NUM_FORMATS, "add the new format of mini_vllm.h to FORMATS");

}  // namespace

const std::vector<Format> &formats() {
  static const std::vector<Format> all(std::begin(FORMATS), std::end(FORMATS));
  return all;
}

const Format &format_of(int32_t id) {
  for (const Format &format : formats())
    if (format.id == id) return format;
  std::fprintf(stderr, "no format %d\n", id);
  std::abort();
}

double decode_half(uint16_t half) {
  int exponent = half >> 10 & 31, mantissa = half & 1023;
  double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                     : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                      : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -magnitude : magnitude;
}

void write_plain(int32_t format, double x, uint8_t *bytes) {
  if (format == MV_F16) return write16(bytes, encode_half(x));
  const float value = float(round_to(format, x));
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  format == MV_F32 ? void(std::memcpy(bytes, &bits, 4)) : write16(bytes, uint16_t(bits >> 16));
}

double round_to(int32_t format, double x) {
  if (format == MV_F32) return round_bits(x, 24, -126);
  double rounded = format == MV_F16 ? round_bits(x, 11, -14) : round_bits(x, 8, -126);
  return format == MV_F16 && std::fabs(rounded) > 65504 ? std::copysign(INFINITY, x) : rounded;
}

Matrix::Matrix(Random &random, const Format &format, int rows, int cols, bool with_bias)
    : format_(format),
      values_(size_t(rows) * size_t(cols)),
      packed_(mv_matrix_bytes(format.id, rows, cols)),
      bias_(with_bias ? 4 * int64_t(rows) : 0),
      matrix_{format.id, rows, cols, 0, packed_.data(), nullptr} {
  const int groups = cols / format.group;
  Bytes file(int64_t(rows) * groups * format.group_bytes);
  for (int64_t g = 0; g < int64_t(rows) * groups; g++) {
    uint8_t *bytes = file.data() + g * format.group_bytes;
    format.fill(random, bytes);
    format.decode(bytes, values_.data() + g * format.group);
  }
  std::memset(packed_.data(), 0, size_t(packed_.size()));
  int first = random.below(rows + 1);  // in two pieces, as fused parts are
  mv_pack_rows(&matrix_, 0, first, file.data());
  mv_pack_rows(&matrix_, first, rows - first, file.data() + int64_t(first) * groups * format.group_bytes);
  if (!with_bias) return;
  float *bias = reinterpret_cast<float *>(bias_.data());
  for (int r = 0; r < rows; r++) bias[r] = float(random.normal());
  matrix_.bias = bias;
}

}  // namespace mvt
