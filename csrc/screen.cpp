// See screen.h.
#include "screen.h"

#include <algorithm>
#include <new>

#include "kernels/panels.h"

namespace mv {
namespace {

constexpr int32_t MOST_ROWS = 8;        // of a step; with more, arithmetic is what a head takes time for
constexpr int32_t FEWEST_OUTPUTS = 64;  // a smaller head is not worth it
constexpr int32_t FIRST_PAUSE = 16, LONGEST_PAUSE = 4096;  // steps
constexpr int64_t TOO_MANY = 8;  // more than one panel in so many is a loss

bool can_screen(const mv_op &head) {
  if (head.kind != MV_LINEAR || head.softcap != 0.0f || head.y) return false;
  const mv_matrix &m = *head.weight;
  const bool gains = m.format == MV_F32 || m.format == MV_F16 || m.format == MV_BF16 || m.format == MV_Q8_0;
  return gains && !m.bias && m.rows == head.width && m.rows >= FEWEST_OUTPUTS && m.cols % GROUP_COLUMNS == 0;
}

}  // namespace

std::unique_ptr<Screen> Screen::of(const std::vector<mv_op> &head, const mv_limits &limits) {
  if (head.empty() || !can_screen(head.back())) return nullptr;
  const int32_t format = head.back().weight->format;
  const bool rounds = format == MV_BF16 || format == MV_Q8_0;  // in an op of its own, whose x is float32
  const mv_op *before = rounds && head.size() > 1 ? &head[head.size() - 2] : nullptr;
  if (rounds && !(before && before->kind == MV_QUANTIZE && before->out == head.back().x)) return nullptr;
  return std::unique_ptr<Screen>(new Screen(head, before, std::min(MOST_ROWS, limits.max_logit_rows)));
}

// Of the ops, all but the last stay: they lead to what the head takes. For a head that takes something else than int8, one
// more rounds for the codes.
Screen::Screen(const std::vector<mv_op> &head, const mv_op *before, int32_t most_rows)
    : exact_(*head.back().weight), ops_(head.begin(), head.end() - 1), most_rows_(most_rows), next_pause_(FIRST_PAUSE) {
  mv_op last = head.back();
  codes_ = {MV_SCREEN, exact_.rows, exact_.cols, 0, nullptr, nullptr};
  mv_op estimate = last;
  estimate.weight = &codes_;
  if (exact_.format != MV_Q8_0) {
    const int64_t stride = exact_.cols / GROUP_COLUMNS * (GROUP_COLUMNS / 4 + 2);
    rounded_.resize(size_t(stride * most_rows));
    mv_op round = before ? *before : last;
    round.kind = MV_QUANTIZE;
    round.weight = &codes_;
    round.width = exact_.cols;
    round.out = rounded_.data(), round.out_stride = stride;
    if (!before) round.x = last.x, round.x_stride = last.x_stride;
    ops_.push_back(round);
    estimate.x = round.out, estimate.x_stride = stride;
  }
  ops_.push_back(estimate);
  last.y = estimate.x, last.y_stride = estimate.x_stride;
  for (int32_t kind : {MV_SCREEN_LEAD, MV_SCREEN_PICK, MV_SCREEN_REST}) {
    ops_.push_back(last);
    ops_.back().kind = kind;
  }
}

Screen::~Screen() { mv_free(codes_.data, bytes_); }

bool Screen::takes(const mv_step &step, Team &team, const KernelTable &table) {
  judge();
  if (step.greedy_limit < FEWEST_OUTPUTS || step.num_logit_rows > most_rows_) return false;
  if (pause_ > 0) return --pause_, false;
  const bool is_decode = step.num_logit_rows == step.num_tokens;
  if (!codes_.data && !(is_decode && make(team, table))) return false;
  view_.limit = std::min(step.greedy_limit, exact_.rows);
  asked_ = int64_t(step.num_logit_rows) * num_panels(view_.limit);
  computed_ = 0;
  return true;
}

bool Screen::make(Team &team, const KernelTable &table) {
  const size_t panels = size_t(num_panels(exact_.rows));
  bytes_ = mv_matrix_bytes(MV_SCREEN, exact_.rows, exact_.cols);
  try {
    errors_.resize(panels * PANEL);
    if (!rounded_.empty()) lengths_.resize(panels * PANEL);
    leads_.resize(panels * size_t(most_rows_));  // a lead is of several panels
    marks_.resize(size_t(most_rows_));
    codes_.data = mv_alloc(bytes_);
  } catch (const std::bad_alloc &) {
  }
  if (!codes_.data) {
    most_rows_ = 0;  // never again
    return false;
  }
  view_ = {&codes_, errors_.data(), lengths_.empty() ? nullptr : lengths_.data(), leads_.data(), marks_.data(), 0, &computed_};
  mv_op make = {};
  make.kind = MV_SCREEN_MAKE;
  make.weight = &exact_;
  StepView step = {};
  step.screen = &view_;
  team.run({&table, &make, 1, &step, nullptr, 0});
  return true;
}

void Screen::judge() {
  if (asked_ == 0) return;
  if (computed_ * TOO_MANY > asked_) {
    pause_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, LONGEST_PAUSE);
  } else {
    next_pause_ = FIRST_PAUSE;
  }
  asked_ = 0;
}

}  // namespace mv
