// Greedy steps read the head in part: what they choose must be what all logits would choose, to the bit.
//
// Whether a step was screened shows in the number of ops it took: PICK, LEAD and REST are three, rounding may be one more.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "check.h"
#include "program.h"

namespace mvt {
namespace {

constexpr int TOKENS = 12;

typedef std::function<void(uint8_t *row, int index)> Edit;  // of a row's bytes, as the file has them

// An embedding of float32 rows, and a head over it whose rows a test may write itself.
class Head {
 public:
  Head(const mvt::Context &context, Random &random, int32_t format, int rows, int cols, const Edit &edit = {})
      : format_(format_of(format)),
        team_(context.threads),
        store_(MV_F32, 1, TOKENS, 4, 1, 4),
        table_(random, format_of(MV_F32), TOKENS, cols, false),
        packed_(mv_matrix_bytes(format, rows, cols)),
        head_{format, rows, cols, 0, packed_.data(), nullptr},
        rounded_(4 * TOKENS * int64_t(cols)),
        hidden_(4 * TOKENS * int64_t(cols)),
        logits_(4 * TOKENS * int64_t(rows)) {
    std::memset(packed_.data(), 0, size_t(packed_.size()));
    const int groups = cols / format_.group;
    Bytes row(groups * format_.group_bytes);
    for (int r = 0; r < rows; r++) {
      for (int g = 0; g < groups; g++) format_.fill(random, row.data() + g * format_.group_bytes);
      if (edit) edit(row.data(), r);
      mv_pack_rows(&head_, r, 1, row.data());
    }
    mv_op embed = {}, round = {}, product = {};
    embed.kind = MV_EMBED, embed.weight = table_.get(), embed.width = cols, embed.scale = 1;
    embed.out = floats(hidden_), embed.out_stride = cols;
    round.kind = MV_QUANTIZE, round.row_kind = MV_ROWS_OUTPUT, round.weight = &head_, round.x = floats(hidden_);
    round.x_stride = cols, round.out = floats(rounded_), round.out_stride = cols, round.width = cols;
    product.kind = MV_LINEAR, product.row_kind = MV_ROWS_OUTPUT, product.weight = &head_, product.width = rows;
    product.out = floats(logits_), product.out_stride = rows, product.x_stride = cols;
    const bool rounds = format_.int8_inputs || format == MV_BF16;
    product.x = floats(rounds ? rounded_ : hidden_);
    const mv_op head[] = {rounds ? round : product, product};
    const mv_limits limits = {TOKENS, TOKENS, TOKENS, TOKENS, TOKENS, 0};
    program_ = mv_program_create(team_.team, context.isa, &store_.shape, &limits, &embed, 1, head, rounds ? 2 : 1);
    MV_CHECK(program_ != nullptr);
  }
  ~Head() { mv_program_destroy(program_); }

  float *token(int i) { return const_cast<float *>(reinterpret_cast<const float *>(table_.get()->data)) + i % 16; }
  int rows() const { return head_.rows; }

  // A decode step of tokens 0 … count - 1, a sequence each. `ops`: how many it took.
  std::vector<float> run(int count, int32_t greedy_limit, bool begins = false) {
    std::vector<int32_t> ids, zeros(TOKENS, 0), ones(TOKENS, 1), starts{0};
    for (int i = 0; i < count; i++) ids.push_back(i), starts.push_back(i + 1);
    logits_.poison();
    const mv_step step = {count,         count,        count,       1,           ids.data(), zeros.data(),
                          ids_of_slots_, starts.data(), ones.data(), zeros.data(), ids.data(), greedy_limit, 0};
    const uint32_t before = mv_team_progress(team_.team);
    if (begins) MV_CHECK_EQUAL(mv_program_begin(program_, &step), MV_OK);
    if (!begins || mv_program_end(program_, 1) != 1) MV_CHECK_EQUAL(mv_program_run(program_, &step), MV_OK);
    ops = int(mv_team_progress(team_.team) - before);
    return {floats(logits_), floats(logits_) + int64_t(count) * rows()};
  }
  int ops = 0;
  // Of a step without screening, once `run` has been called so.
  bool was_screened(int plain_ops) const { return ops >= plain_ops + 3; }

 private:
  static float *floats(const Bytes &bytes) { return reinterpret_cast<float *>(bytes.data()); }

  const Format &format_;
  TeamHandle team_;
  Store store_;
  Matrix table_;
  Bytes packed_;
  mv_matrix head_;
  Bytes rounded_, hidden_, logits_;
  const int32_t ids_of_slots_[TOKENS] = {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44};
  mv_program *program_ = nullptr;
};

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// The first of the largest that is a number; -1: there is none.
int choice(const float *logits, int limit) {
  int best = -1;
  for (int i = 0; i < limit; i++)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  return best;
}

// Each greedy logit below the limit is the real one, or an estimate below the largest. Returns how many are estimates.
int check_row(const float *greedy, const float *all, int limit) {
  const int expected = choice(all, limit);
  if (!MV_CHECK_EQUAL(choice(greedy, limit), expected)) return 0;
  int estimates = 0, wrong = 0;
  for (int i = 0; i < limit; i++) {
    if (same_bits(greedy[i], all[i])) continue;
    estimates++;
    wrong += expected < 0 || !(greedy[i] < all[expected]);
  }
  MV_CHECK_EQUAL(wrong, 0);
  return estimates;
}

// All rows of a greedy step against those of a plain one. Returns the estimates of all rows.
int check_step(Head &head, int count, int limit, bool *was_screened = nullptr, bool begins = false) {
  const std::vector<float> all = head.run(count, 0);
  const int plain_ops = head.ops;
  const std::vector<float> greedy = head.run(count, limit, begins);
  if (was_screened) *was_screened = head.was_screened(plain_ops);
  int estimates = 0;
  for (int r = 0; r < count; r++) estimates += check_row(&greedy[size_t(r * head.rows())], &all[size_t(r * head.rows())], limit);
  return estimates;
}

const int32_t SCREENED[] = {MV_F32, MV_F16, MV_BF16, MV_Q8_0};

}  // namespace

MV_TEST(greedy_steps_choose_what_all_logits_would) {
  Random random(context.seed);
  for (int32_t format : SCREENED) {
    for (int cols : {32, 96, 160}) {
      const int rows = 1000 + random.below(40);
      Head head(context, random, format, rows, cols);
      for (int count : {1, 2, 3, 8}) {
        for (int limit : {rows, rows - 1, rows / 16 * 16}) {
          trying("%s [%d, %d], %d rows, below %d", format_of(format).name, rows, cols, count, limit);
          bool was_screened = false;
          const int estimates = check_step(head, count, limit, &was_screened);
          MV_CHECK(was_screened);
          MV_CHECK(estimates > count * limit / 2);
        }
      }
    }
  }
}

MV_TEST(greedy_steps_that_are_not_screened_have_all_logits) {
  Random random(context.seed);
  for (const Format &format : formats()) {
    const bool can = format.id <= MV_Q8_0;
    for (auto [count, limit] : {std::pair(1, 300), {8, 300}, {9, 300}, {12, 300}, {1, 63}, {1, 1}, {1, 1000}}) {
      trying("%s, %d rows below %d", format.name, count, limit);
      Head head(context, random, format.id, 300, format.group > 32 ? 256 : 64);
      bool was_screened = false;
      const int estimates = check_step(head, count, std::min(limit, 300), &was_screened);
      MV_CHECK_EQUAL(was_screened, can && count <= 8 && limit >= 64);
      if (!was_screened) MV_CHECK_EQUAL(estimates, 0);
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
  for (double scale : {1e-10, 1e-19, 1e-30, 1e19, 1e37}) {
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

// Rows that no bound can tell apart: results stay right, and screening pauses, for longer each time.
MV_TEST(screening_pauses_where_it_does_not_help) {
  Random random(context.seed);
  const int cols = 64;
  std::vector<uint8_t> first;
  Head head(context, random, MV_F32, 500, cols, [&](uint8_t *row, int index) {
    if (index == 0) first.assign(row, row + 4 * cols);
    std::memcpy(row, first.data(), first.size());
    row[4 * random.below(cols)] ^= 3;  // last bits
  });
  std::vector<int> screened;
  for (int step = 0; step < 120; step++) {
    bool was_screened = false;
    check_step(head, 2, 500, &was_screened);
    if (was_screened) screened.push_back(step);
  }
  MV_CHECK(screened == std::vector<int>({0, 17, 50, 115}));
}

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
