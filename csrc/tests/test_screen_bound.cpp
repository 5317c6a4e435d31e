// The bound that lets a greedy step leave rows of the head unread: what it must allow for, one by one.
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "head.h"

namespace mvt {
namespace {

// A matrix of small integers in any of these formats, zeros but for what `at` says.
Edit small_integers(int32_t format, int cols, const std::function<int(int row, int column)> &at) {
  return [=](uint8_t *row, int index) {
    const Format &form = format_of(format);
    const uint16_t one = 0x3c00;
    for (int k = 0; k < cols; k++) {
      uint8_t *group = row + k / form.group * form.group_bytes;
      if (format != MV_Q8_0) {
        write_plain(format, at(index, k), group);
      } else {
        std::memcpy(group, &one, sizeof one);
        group[2 + k % 32] = uint8_t(at(index, k));
      }
    }
  };
}

// Activations of two tokens, the first of them next to nothing: what a step keeps of a row must not serve another.
void check_second_token(Head &head, int cols, const std::function<float(int column)> &x, int best, int second) {
  for (int k = 0; k < cols; k++) {
    head.token(0)[16 * k] = 1e-3f * x(k);
    head.token(1)[16 * k] = x(k);
  }
  const std::vector<float> all = head.run(2, 0);
  const float *row = &all[size_t(head.rows())];
  MV_CHECK_EQUAL(choice(row, head.rows()), best);
  MV_CHECK(row[second] > 0.92f * row[best]);
  for (int step = 0; step < 2; step++) {  // the second one only if rows of zeros were left alone
    bool was_screened = false;
    check_step(head, 2, head.rows(), &was_screened);
    MV_CHECK(was_screened);
  }
}

}  // namespace

// Rows that differ by little: what their codes miss, what activations lose in int8, and what sums lose decide.
MV_TEST(rows_that_are_nearly_alike_are_told_apart) {
  Random random(context.seed);
  for (int32_t format : SCREENED) {
    const Format &form = format_of(format);
    for (int round = 0; round < 4 * context.rounds; round++) {
      const int rows = 300 + random.below(300), cols = 32 * random.between(1, 5);
      const double apart = std::pow(10.0, -6 * random.uniform());
      std::vector<uint8_t> base;
      std::vector<double> group(size_t(form.group));
      Head head(context, random, format, rows, cols, [&](uint8_t *row, int index) {
        const size_t bytes = size_t(cols / form.group * form.group_bytes);
        if (index == 0) return base.assign(row, row + bytes), void();
        std::memcpy(row, base.data(), bytes);
        for (int k = 0; k < cols; k++) {
          if (format == MV_Q8_0) {
            if (random.uniform() < apart) row[k / 32 * 34 + 2 + k % 32] ^= uint8_t(1 + random.below(3));
            continue;
          }
          uint8_t *at = row + k * form.group_bytes;
          form.decode(at, group.data());
          write_plain(format, group[0] * (1 + apart * random.normal()), at);
        }
      });
      trying("%s [%d, %d], %g apart", form.name, rows, cols, apart);
      check_step(head, random.between(1, 3), rows);
    }
  }
}

// Codes hold these weights in full. Where int8 holds the activations too, all sums are the same but for the order of their
// terms; else (neighbours are alike, and change places) what activations lose decides.
MV_TEST(sums_that_differ_by_rounding_alone_are_told_apart) {
  Random random(context.seed);
  for (int round = 0; round < 8 * context.rounds; round++) {
    const bool exact = round % 2;
    const int rows = 400, cols = 32 * random.between(2, 8), reach = exact ? 32 : 2;
    std::vector<float> base;
    for (int k = 0; k < cols; k++) {
      const float step = float(decode_half(uint16_t(0x3c00 + 97 * (k / 32) + round)));  // of a group
      base.push_back(float(k % 32 ? random.between(-31, 31) : 31) * step);
    }
    Head head(context, random, MV_F32, rows, cols, [&](uint8_t *row, int) {
      for (int k = 0; k < cols; k += reach)
        for (int i = reach - 1; i > 0; i--) std::swap(base[size_t(k + i)], base[size_t(k + random.below(i + 1))]);
      std::memcpy(row, base.data(), base.size() * 4);
    });
    for (int k = 0; k < cols; k++)
      head.token(0)[16 * k] = exact ? 127.0f / 32 : float(k % 32 / 2) / 7 + 1e-3f * float(random.normal());
    trying("%d columns%s", cols, exact ? "" : ", activations rounded");
    check_step(head, 1, rows);
  }
}

// What codes miss of a row, or int8 of the activations, may point the same way as what it is multiplied by: then the row
// reaches its bound. Its neighbours are zeros, so theirs would not do. Beside 127, whose code is 31, 2 becomes 0 and 3 becomes 4.
MV_TEST(rows_that_reach_their_bound_are_computed) {
  Random random(context.seed);
  const int rows = 512, best = random.below(256), second = 256 + best;
  const auto beside_peaks = [](int column) { return float(column % 32 > 0); };
  for (int32_t format : SCREENED) {
    trying("%s, estimated too low", format_of(format).name);
    Head low(context, random, format, rows, 128, small_integers(format, 128, [=](int row, int k) {
               if (row == best) return k % 32 ? 2 : 127;
               return row == second && k % 32 ? 2 - (k == 1) : 0;
             }));
    check_second_token(low, 128, beside_peaks, best, second);
    trying("%s, the second estimated higher than the best", format_of(format).name);
    Head high(context, random, format, rows, 128, small_integers(format, 128, [=](int row, int k) {
                if (row == best) return k < 96 ? k % 32 ? 4 : 0 : k % 32 ? 2 : 127;
                return row == second ? k % 32 ? 3 + (k < 32) : 127 : 0;
              }));
    check_second_token(high, 128, beside_peaks, best, second);
    if (format == MV_Q8_0) continue;  // the head takes what the estimates take
    trying("%s, activations rounded", format_of(format).name);
    Head near(context, random, format, rows, 32, small_integers(format, 32, [=](int row, int k) {
                return row == best && k ? 33 : row == second && !k ? 4 : 0;
              }));
    check_second_token(near, 32, [](int k) { return k ? 0.498046875f : 127.0f; }, best, second);
  }
}

// A sum that has become large gains half of its last place from each number that comes after: more, the more there are.
// Estimates add up groups, and gain nothing.
MV_TEST(long_sums_that_gain_by_rounding_are_told_apart) {
  Random random(context.seed);
  const int rows = 256, cols = 1024, best = 77, second = 177;
  Head head(context, random, MV_F32, rows, cols, [&](uint8_t *row, int index) {
    for (int k = 0; k < cols; k++) {
      const bool ends = k < 32 || k >= cols - 32;
      float x = 0;
      if (index == best) x = k == 0 ? 46.5f : k == cols - 1 ? -46.5f : ends ? 0 : 31 * 34 / 1024.0f;
      if (index == second && !ends) x = 31 * 48 / 1024.0f;
      std::memcpy(row + 4 * k, &x, 4);
    }
  });
  for (int k = 0; k < cols; k++)  // int8 holds them; 46.5 of the largest are between 2^24 and 2^25
    head.token(0)[16 * k] = k == 0 || k == cols - 1 ? 127 * 4096.0f : float(k >= 32 && k < cols - 32);
  const std::vector<float> all = head.run(1, 0);
  MV_CHECK_EQUAL(all[size_t(best)], 2 * (cols - 64));
  MV_CHECK(all[size_t(second)] < 1.5f * (cols - 64) && all[size_t(second)] > 1.4f * (cols - 64));
  bool was_screened = false;
  check_step(head, 1, rows, &was_screened);
  MV_CHECK(was_screened);
}

// A row with a large scale and small codes against one with a small scale and large codes: an offset of codes would show.
MV_TEST(eight_bit_codes_have_the_right_offset) {
  Random random(context.seed);
  const uint16_t one = 0x3c00, small = 0x2400;  // 2^0 and 2^-6
  for (float sign : {-1.0f, 1.0f}) {
    const uint8_t large_code = uint8_t(int8_t(60 * sign)), small_code = uint8_t(int8_t(sign));
    Head head(context, random, MV_Q8_0, 400, 32, [&](uint8_t *row, int index) {
      std::memset(row, 0, 34);
      if (index == 90) std::memcpy(row, &one, 2), std::memset(row + 2, small_code, 32);   // 32 in all
      if (index == 290) std::memcpy(row, &small, 2), std::memset(row + 2, large_code, 32);  // 30
    });
    for (int k = 0; k < 32; k++) head.token(0)[16 * k] = sign;
    trying("activations of %g", double(sign));
    const std::vector<float> all = head.run(1, 0);
    MV_CHECK_EQUAL(choice(all.data(), 400), 90);
    bool was_screened = false;
    check_step(head, 1, 400, &was_screened);
    MV_CHECK(was_screened);
  }
}

}  // namespace mvt
