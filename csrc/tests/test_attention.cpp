// Rotation, the K/V store and attention: ragged batches against the reference, and the same bits however a batch is cut.
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "check.h"
#include "reference.h"

namespace mvt {
namespace {

constexpr int POSITIONS = 1400;

struct Setup {
  Heads heads;
  int block_size, format;
  std::vector<int> lengths;
  double size;  // of queries and keys
};

// Rows [q heads | k heads | v heads] that depend on the sequence and the position alone go through rope_store and attend.
class Attention {
 public:
  Attention(const Context &c, const Setup &setup, int threads, int max_tokens)
      : setup_(setup),
        random_(c.seed),
        batch_(random_, setup.lengths, setup.block_size, 5),
        team_(threads),
        store_(setup.format, setup.heads.layer + 1, batch_.num_blocks(), setup.block_size, setup.heads.num_kv_heads,
               setup.heads.head_dim),
        program_(team_, c.isa, store_, {max_tokens, 64, max_tokens, 5, POSITIONS}),
        mirror_(store_.shape),
        x_(program_.input((setup.heads.num_heads + 2 * setup.heads.num_kv_heads) * setup.heads.head_dim)),
        out_(x_) {
    int half = setup.heads.rope_dims / 2;
    const float *cos = program_.vector(random_, POSITIONS * half + 1, 0);
    const float *sin = program_.vector(random_, POSITIONS * half + 1, 0);
    out_ = program_.attend(program_.rope_store(x_, cos, sin, setup.heads), setup.heads);
    MV_CHECK(program_.finish());
  }

  const Batch &batch() const { return batch_; }

  // Runs the parts, and against the reference if `check`. Outputs by (sequence, position).
  void run(const std::vector<Part> &parts, bool check) {
    Step step = batch_.step(parts);
    int row = 0;
    for (const Part &part : parts)
      for (int p = part.begin; p < part.end; p++) fill(row++, part.seq, p);
    if (!MV_CHECK_EQUAL(program_.run(step), MV_OK)) return;
    if (check) check_run(program_, step, mirror_);
    row = 0;
    for (const Part &part : parts) {
      for (int p = part.begin; p < part.end; p++, row++) {
        const float *out = out_.data + row * out_.stride;
        outputs[{part.seq, p}] = std::vector<float>(out, out + out_.width);
      }
    }
  }
  std::map<std::pair<int, int>, std::vector<float>> outputs;

 private:
  void fill(int row, int seq, int position) {
    Random random(uint64_t(seq) << 32 | uint64_t(position));
    for (int i = 0; i < x_.width; i++) x_.data[row * x_.stride + i] = float(random.normal() * setup_.size);
  }

  Setup setup_;
  Random random_;
  Batch batch_;
  TeamHandle team_;
  Store store_;
  Program program_;
  Mirror mirror_;
  Activation x_, out_;
};

Heads heads(int num_heads, int num_kv_heads, int head_dim) {
  return {1, num_heads, num_kv_heads, head_dim, 1 / std::sqrt(float(head_dim)), 0, 0, head_dim / 4 * 2};
}

// Decodes, prefills and chunks in the middle, around the edges of blocks, spans and splits.
const std::vector<std::pair<int, int>> RAGGED = {{0, 1},  {16, 1}, {0, 17},  {5, 16},   {63, 1},
                                                 {0, 33}, {31, 9}, {255, 2}, {250, 20}, {300, 1}};
const std::vector<std::pair<int, int>> QUICK = {{0, 1}, {5, 16}, {63, 1}, {0, 17}, {250, 9}};

const std::vector<std::pair<int, int>> &ragged(const Context &c) { return c.quick() ? QUICK : RAGGED; }

void check_ragged(const Context &c, Setup setup, const std::vector<std::pair<int, int>> &chunks) {
  trying("%d/%d heads of %d, blocks of %d, %s, window %d, cap %g", setup.heads.num_heads, setup.heads.num_kv_heads,
         setup.heads.head_dim, setup.block_size,
         setup.format == MV_STORE_Q8 ? "int8" : format_of(setup.format).name, setup.heads.window,
         double(setup.heads.softcap));
  for (const auto &chunk : chunks) setup.lengths.push_back(chunk.first + chunk.second);
  std::vector<Part> before, now;
  for (int seq = 0; seq < int(chunks.size()); seq++) {
    auto [start, count] = chunks[size_t(seq)];
    if (start > 0) before.push_back({seq, 0, start});
    now.push_back({seq, start, start + count});
  }
  Attention attention(c, setup, c.threads, 1500);
  if (!before.empty()) attention.run(before, true);
  attention.run(now, true);
}

const int STORE_FORMATS[] = {MV_F32, MV_F16, MV_BF16, MV_STORE_Q8};

}  // namespace

MV_TEST(attention_over_block_sizes_and_formats) {
  for (int format : STORE_FORMATS)
    for (int block_size : {1, 7, 16, 48, 128}) check_ragged(context, {heads(6, 2, 20), block_size, format, {}, 1}, ragged(context));
}

MV_TEST(attention_with_grouped_heads) {
  for (auto [num_heads, num_kv_heads] : {std::pair(1, 1), {5, 5}, {9, 3}, {8, 1}, {14, 2}})
    check_ragged(context, {heads(num_heads, num_kv_heads, 16), 16, MV_F16, {}, 1}, ragged(context));
}

MV_TEST(attention_over_head_sizes) {
  for (int format : {int(MV_F16), int(MV_BF16), int(MV_STORE_Q8)})
    for (int head_dim : {3, 4, 12, 33, 64, 80, 96, 128, 256})
      check_ragged(context, {heads(2, 1, head_dim), 16, format, {}, 1}, {{0, 3}, {70, 1}, {60, 9}});
}

MV_TEST(attention_in_sliding_windows) {
  for (int window : {1, 2, 15, 24, 64, 200}) {
    for (int block_size : {7, 16}) {
      Heads h = heads(4, 2, 8);
      h.window = window;
      check_ragged(context, {h, block_size, MV_F32, {}, 1}, ragged(context));
    }
  }
}

MV_TEST(attention_with_soft_cap_and_large_scores) {
  Heads capped = heads(4, 2, 16), large = heads(2, 1, 16);
  capped.softcap = 5;
  capped.scale = 2;
  check_ragged(context, {capped, 16, MV_F32, {}, 1}, ragged(context));
  large.scale = 30;
  check_ragged(context, {large, 16, MV_F32, {}, 4}, {{40, 3}, {0, 70}});
}

MV_TEST(attention_over_a_long_history) {
  for (int block_size : {7, 32}) {
    if (context.quick() && block_size == 7) continue;
    check_ragged(context, {heads(2, 1, 8), block_size, MV_F16, {}, 1}, {{context.quick() ? 600 : 1300, 1}});
    check_ragged(context, {heads(2, 1, 8), block_size, MV_F16, {}, 1}, {{1030, 3}, {0, 1}});
    Heads windowed = heads(2, 1, 8);
    windowed.window = 300;
    check_ragged(context, {windowed, block_size, MV_F16, {}, 1}, {{900, 20}});
  }
}

// Attention that rounds to int8 itself, in one part or several: the bits of MV_QUANTIZE after it.
MV_TEST(attention_rounds_to_int8_as_quantize_does) {
  for (int head_dim : {32, 64, 96, 544}) {
    for (int format : {MV_Q8_0, MV_Q4_1, MV_Q6_K}) {
      trying("heads of %d, for %s", head_dim, format_of(format).name);
      const int width = 8 * head_dim;
      Random random(context.seed);
      const Batch batch(random, {300, 20, 1}, 16, 5);
      const TeamHandle team(context.threads);
      Store store(MV_BF16, 1, batch.num_blocks(), 16, 2, head_dim);
      Program program(team, context.isa, store, {321, 3, 321, 5, POSITIONS});
      const Heads heads = {0, 8, 2, head_dim, 0.1f, 0, 0, 0};
      const Matrix weight(random, format_of(format), 20, width, false);
      const Activation x = program.input(12 * head_dim), q = program.rope_store(x, nullptr, nullptr, heads);
      const Activation apart = program.linear(program.attend(q, heads), weight, nullptr, 0);
      const Activation joined = program.linear(program.round(program.attend(q, heads), format), weight, nullptr, 0);
      if (!MV_CHECK(program.finish())) return;
      for (int row = 0; row < 321; row++)
        for (int i = 0; i < x.width; i++) x.data[row * x.stride + i] = float(random.normal());
      const std::vector<std::vector<Part>> steps = {{{0, 0, 299}, {1, 0, 19}}, {{0, 299, 300}, {1, 19, 20}, {2, 0, 1}}};
      for (const std::vector<Part> &parts : steps) {
        const Step step = batch.step(parts);
        MV_CHECK_EQUAL(program.run(step), MV_OK);
        for (int row = 0; row < step.num_tokens(); row++)
          MV_CHECK(!std::memcmp(apart.data + row * apart.stride, joined.data + row * joined.stride, 20 * sizeof(float)));
      }
    }
  }
}

// Threads, chunks and neighbours change nothing, to the last bit.
MV_TEST(attention_has_the_same_bits_however_it_is_cut) {
  for (int round = 0; round < context.rounds; round++) {
    Random random(context.seed * 1000 + uint64_t(round));
    Setup setup = {heads(6, random.below(2) ? 2 : 3, random.between(1, 5) * 4), 1, STORE_FORMATS[random.below(4)], {}, 1};
    setup.block_size = std::vector<int>{1, 7, 16, 32, 64, 256}[size_t(random.below(6))];
    setup.heads.window = random.below(2) ? 0 : random.between(1, 400);
    for (int i = random.between(1, 4); i > 0; i--)
      setup.lengths.push_back(random.below(4) ? random.between(1, 90) : random.between(200, 700));
    trying("round %d: %zu sequences, blocks of %d, window %d", round, setup.lengths.size(), setup.block_size,
           setup.heads.window);
    Attention alone(context, setup, 1, 700);
    for (int seq = 0; seq < alone.batch().num_seqs(); seq++) alone.run({{seq, 0, alone.batch().length(seq)}}, false);
    for (int threads : {1, 2, 3}) {
      Attention mixed(context, setup, threads, 100);
      for (const std::vector<Part> &parts : mixed.batch().random_schedule(random, 100)) mixed.run(parts, false);
      MV_CHECK(mixed.outputs == alone.outputs);
    }
  }
}

// A chunk of a long prompt beside short histories: few long tasks and many short ones, whole or in parts.
MV_TEST(attention_has_the_same_bits_beside_short_histories) {
  for (int chunk : {5, 16, 40}) {
    Setup setup = {heads(6, 3, 16), 16, MV_BF16, {600 + chunk}, 1};
    for (int i = 0; i < 12; i++) setup.lengths.push_back(10 + i);
    Attention alone(context, setup, 1, 700);
    for (int seq = 0; seq < alone.batch().num_seqs(); seq++) alone.run({{seq, 0, alone.batch().length(seq)}}, false);
    for (int threads : {2, 3}) {
      Attention mixed(context, setup, threads, 700);
      std::vector<Part> before, now;
      for (int seq = 0; seq < mixed.batch().num_seqs(); seq++) {
        const int length = mixed.batch().length(seq), start = length - (seq == 0 ? chunk : 1);
        before.push_back({seq, 0, start});
        now.push_back({seq, start, length});
      }
      for (const Part &part : before) mixed.run({part}, false);
      mixed.run(now, false);
      MV_CHECK(mixed.outputs == alone.outputs);
    }
  }
}

}  // namespace mvt
