// Greedy steps read the head in part: what they choose must be what all logits would choose, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "head.h"

namespace mvt {

MV_TEST(greedy_steps_choose_what_all_logits_would) {
  Random random(context.seed);
  for (int32_t format : SCREENED) {
    for (int cols : {32, 96, 160}) {
      const int rows = 1000 + random.below(40);
      Head head(context, random, format, rows, cols);
      for (int count : {1, 2, 3, 8}) {
        for (int limit : {rows, rows - 1, rows / 16 * 16, 100000}) {
          trying("%s [%d, %d], %d rows, below %d", format_of(format).name, rows, cols, count, limit);
          bool was_screened = false;
          const int estimates = check_step(head, count, limit, &was_screened);
          MV_CHECK(was_screened);
          MV_CHECK(estimates > count * std::min(limit, rows) / 2);
        }
      }
    }
  }
}

MV_TEST(greedy_steps_that_are_not_screened_have_all_logits) {
  Random random(context.seed);
  for (const Format &format : formats()) {
    const bool can = format.id <= MV_Q8_0;
    for (auto [count, limit] : {std::pair(1, 300), {8, 300}, {9, 300}, {12, 300}, {1, 64}, {1, 63}, {1, 1}, {1, 1000}}) {
      trying("%s, %d rows below %d", format.name, count, limit);
      Head head(context, random, format.id, 300, format.group > 32 ? 256 : 64);
      bool was_screened = false;
      const int estimates = check_step(head, count, limit, &was_screened);
      MV_CHECK_EQUAL(was_screened, can && count <= 8 && limit >= 64);
      if (!was_screened) MV_CHECK_EQUAL(estimates, 0);
    }
  }
}

MV_TEST(heads_that_do_more_than_multiply_are_not_screened) {
  Random random(context.seed);
  const std::vector<float> numbers(TOKENS * 300, 2.0f);
  mv_matrix biased = {};
  const Change changes[] = {[](mv_op &) {}, [](mv_op &op) { op.softcap = 5; }, [](mv_op &op) { op.width = 299; },
                            [&](mv_op &op) { op.y = numbers.data(), op.y_stride = 300; },
                            [&](mv_op &op) { biased = *op.weight, biased.bias = numbers.data(), op.weight = &biased; }};
  for (const Change &change : changes) {
    Head head(context, random, MV_F32, 300, 64, {}, change);
    trying("change %d", int(&change - changes));
    bool was_screened = false;
    check_step(head, 2, 299, &was_screened);
    MV_CHECK_EQUAL(was_screened, &change == changes);
  }
}

MV_TEST(heads_of_unfinished_groups_are_not_screened) {
  Random random(context.seed);
  for (int32_t format : {MV_F32, MV_F16, MV_BF16}) {
    for (int cols : {16, 40, 63}) {
      Head head(context, random, format, 300, cols);
      trying("%s, %d columns", format_of(format).name, cols);
      bool was_screened = true;
      MV_CHECK_EQUAL(check_step(head, 2, 300, &was_screened), 0);
      MV_CHECK(!was_screened);
    }
  }
}

// The codes of a bfloat16 head take what the op before it rounds, which must be at hand: in an op that does nothing else.
MV_TEST(heads_whose_norm_rounds_by_itself_are_not_screened) {
  Random random(context.seed);
  const std::vector<float> weights(64, 1.5f);
  for (int32_t format : {MV_BF16, MV_Q8_0}) {
    for (bool rounds_by_itself : {false, true}) {
      trying("%s, %s", format_of(format).name, rounds_by_itself ? "a norm that rounds" : "a rounding");
      Head head(context, random, format, 300, 64, {}, [&](mv_op &op) {
        if (op.kind != MV_QUANTIZE || !rounds_by_itself) return;
        op.kind = MV_RMS_NORM, op.vector0 = weights.data(), op.eps = 1e-5f, op.out_format = format;
      });
      bool was_screened = false;
      check_step(head, 2, 300, &was_screened);
      MV_CHECK_EQUAL(was_screened, !rounds_by_itself);
    }
  }
}

// Equal rows, on either side of the best one, and rows a last bit apart.
MV_TEST(the_first_of_equal_logits_is_chosen) {
  Random random(context.seed);
  for (int32_t format : SCREENED) {
    for (int round = 0; round < context.rounds; round++) {
      const int rows = 400 + random.below(200), cols = 32 * random.between(1, 4), period = random.between(2, 90);
      const Format &form = format_of(format);
      std::vector<std::vector<uint8_t>> seen;
      Head head(context, random, format, rows, cols, [&](uint8_t *row, int index) {
        const size_t bytes = size_t(cols / form.group * form.group_bytes);
        if (index < period) return seen.emplace_back(row, row + bytes), void();
        std::memcpy(row, seen[size_t(index % period)].data(), bytes);
        if (random.below(2)) row[random.below(int(bytes / form.group_bytes)) * form.group_bytes + (form.group > 1 ? 2 : 0)] ^= 1;
      });
      trying("%s [%d, %d], rows repeat after %d", form.name, rows, cols, period);
      check_step(head, random.between(1, 8), random.between(64, rows));
    }
  }
}

// A row beyond the limit that is larger than all: padding of a vocabulary.
MV_TEST(rows_beyond_the_limit_do_not_compete) {
  Random random(context.seed);
  const int rows = 500, cols = 64;
  for (int limit : {496, 489, 480, 65}) {
    Head head(context, random, MV_F32, rows, cols, [&](uint8_t *row, int index) {
      for (int k = 0; k < cols && index >= limit; k++) row[4 * k + 3] = uint8_t((row[4 * k + 3] & 0x80) | 0x44);  // 2^9 and more
    });
    trying("below %d", limit);
    MV_CHECK(choice(head.run(1, 0).data(), rows) >= limit);
    check_step(head, 5, limit);
  }
}

// Weights and activations that are not numbers, not finite, or too small for squares.
MV_TEST(broken_weights_give_what_all_logits_give) {
  Random random(context.seed);
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const int rows = 500, cols = 64;
  for (float value : {nan, infinity, -infinity, 3e38f, -3e38f, 1e-25f, 1e-38f, 0.0f}) {
    for (int broken : {0, 7, 250, 499}) {
      trying("row %d with %g", broken, double(value));
      Head head(context, random, MV_F32, rows, cols, [&](uint8_t *row, int index) {
        if (index == broken) std::memcpy(row + 4 * (index % cols), &value, 4);
      });
      check_step(head, 4, rows);
    }
    trying("a token with %g", double(value));
    for (int32_t format : SCREENED) {
      Head head(context, random, format, rows, cols);
      head.token(1)[16 * 5] = value;
      check_step(head, 4, rows);
    }
  }
  for (double scale : {1e-4, 1e-5, 1e-6, 1e-10, 1e-19, 1e-30, 1e19, 1e37}) {
    trying("all weights times %g", scale);
    Head head(context, random, MV_F32, rows, cols, [&](uint8_t *row, int) {
      for (int k = 0; k < cols; k++) {
        float x;
        std::memcpy(&x, row + 4 * k, 4);
        x = float(x * scale);
        std::memcpy(row + 4 * k, &x, 4);
      }
    });
    check_step(head, 4, rows);
    for (int k = 0; k < cols; k++) head.token(0)[16 * k] *= float(scale);
    check_step(head, 4, rows);
  }
  for (uint16_t half : {0x7c00, 0x7e00, 0x7bff, 0x0001, 0x0000, 0xfc00, 0xbc00}) {  // as scales of 8-bit blocks
    trying("scale %04x", half);
    Head head(context, random, MV_Q8_0, rows, cols, [&](uint8_t *row, int index) {
      if (index % 100 == 7) std::memcpy(row, &half, 2);
    });
    check_step(head, 4, rows);
  }
}

namespace {

// A head whose rows no bound can tell apart.
Head hopeless_head(const Context &context, Random &random) {
  const int cols = 64;
  std::vector<uint8_t> first;
  return Head(context, random, MV_F32, 500, cols, [&](uint8_t *row, int index) {
    if (index == 0) first.assign(row, row + 4 * cols);
    std::memcpy(row, first.data(), first.size());
    row[4 * random.below(cols)] ^= 3;  // last bits
  });
}

// Which of the next steps were screened; the one at `dropped` is begun and dropped.
std::vector<int> screened_steps(Head &head, int count, int dropped = -1) {
  std::vector<int> screened;
  for (int step = 0; step < count; step++) {
    bool was_screened = false;
    if (step == dropped) head.drop(2, head.rows());
    else check_step(head, 2, head.rows(), &was_screened);
    if (was_screened) screened.push_back(step);
  }
  return screened;
}

}  // namespace

// Results stay right, and screening pauses, for longer each time.
MV_TEST(screening_pauses_where_it_does_not_help) {
  Random random(context.seed);
  Head head = hopeless_head(context, random);
  MV_CHECK(screened_steps(head, 120) == std::vector<int>({0, 17, 50, 115}));
}

// Step 17 would be screened, and is dropped before its panels tell anything: neither is the next pause shorter for it, nor
// does it begin before a step has been screened in full.
MV_TEST(dropped_steps_do_not_tell_whether_screening_helps) {
  Random random(context.seed);
  Context shared = context;
  shared.threads = std::max(context.threads, 2);  // one thread begins nothing
  Head head = hopeless_head(shared, random);
  MV_CHECK(screened_steps(head, 60, 17) == std::vector<int>({0, 18, 51}));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Where the system has no memory for the codes, steps read all of the head, then and later.
MV_TEST(greedy_steps_without_memory_for_codes) {
  Random random(context.seed);
  Head head(context, random, MV_BF16, 20000, 256);
  const std::vector<float> all = head.run(2, 0);
  const int plain_ops = head.ops;
  std::vector<float> first;
  {
    const TightMemory tight(int64_t(1) << 20);
    if (!tight.is_tight()) return skip("the address space cannot be limited here");
    first = head.run(2, 20000);
  }
  if (head.was_screened(plain_ops)) return skip("this system did not refuse");
  MV_CHECK(std::memcmp(first.data(), all.data(), 4 * all.size()) == 0);
  check_step(head, 2, 20000);
  MV_CHECK(!head.was_screened(plain_ops));
}
#endif

MV_TEST(greedy_steps_begun_ahead_choose_the_same) {
  Random random(context.seed);
  for (int32_t format : SCREENED) {
    Head head(context, random, format, 2000, 96);
    for (int round = 0; round < 10; round++) {
      trying("%s, step %d", format_of(format).name, round);
      check_step(head, random.between(1, 8), 2000, nullptr, true);
    }
  }
}

}  // namespace mvt
