// Every op by itself, over shapes that no tile divides, against the reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "check.h"
#include "reference.h"

namespace mvt {
namespace {

constexpr int VOCAB = 37;

// A program over one op, and a step of `rows` tokens for it.
struct Bench {
  Random random;
  TeamHandle team;
  Store store{MV_F32, 1, 210, 1, 1, 4};
  int rows;
  Program program;
  Batch batch;
  Mirror mirror;

  Bench(const Context &c, int num_rows)
      : random(c.seed),
        team(c.threads),
        rows(num_rows),
        program(team, c.isa, store, {num_rows + 3, 4, num_rows, VOCAB, std::max(VOCAB, num_rows)}),
        batch(random, {num_rows / 2, num_rows - num_rows / 2}, 1, VOCAB),
        mirror(store.shape) {}

  Activation input(int width, double size = 1) {
    Activation x = program.input(width);
    for (int r = 0; r < rows; r++)
      for (int i = 0; i < width; i++) x.data[r * x.stride + i] = float(random.normal() * size);
    return x;
  }
  void check() {
    if (!MV_CHECK(program.finish())) return;
    std::vector<Part> parts;
    for (int seq = 0; seq < 2; seq++)
      if (batch.length(seq) > 0) parts.push_back({seq, 0, batch.length(seq)});
    Step step = batch.step(parts);
    MV_CHECK_EQUAL(program.run(step), MV_OK);
    check_run(program, step, mirror);
  }
};

const int WIDTHS[] = {1, 3, 5, 15, 16, 17, 33, 64, 100, 201};

}  // namespace

MV_TEST(embeddings_of_every_format) {
  for (const Format &format : formats()) {
    for (int width : WIDTHS) {
      int cols = (width + format.group - 1) / format.group * format.group;
      trying("%s, %d columns", format.name, cols);
      Bench bench(context, 30);
      Matrix table(bench.random, format, VOCAB, cols, false);
      bench.program.embed(table, 1);
      bench.program.embed(table, 1.75f);
      bench.program.embed_positions(table);
      bench.check();
    }
  }
}

MV_TEST(products_of_every_format) {
  struct Shape {
    int rows, cols;
  };
  const Shape shapes[] = {{1, 1}, {16, 16}, {17, 33}, {50, 100}, {95, 64}, {160, 7}, {33, 129}, {64, 577}};
  for (const Format &format : formats()) {
    for (const Shape &shape : shapes) {
      for (int rows : {1, 2, 3, 7, 8, 13, 33, 61}) {
        int cols = (shape.cols + format.group - 1) / format.group * format.group;
        trying("%s [%d, %d] times %d rows", format.name, shape.rows, cols, rows);
        Bench bench(context, rows);
        Matrix weight(bench.random, format, shape.rows, cols, rows % 2 == 0);
        Activation x = bench.input(cols);
        bench.program.linear(x, weight, nullptr, 0);
        bench.check();
      }
    }
  }
}

// Some groups of any format.
int columns_of(const Format &format) { return std::max(64, format.group); }

MV_TEST(products_with_bias_residual_and_soft_cap) {
  for (const Format &format : formats()) {
    for (int rows : {1, 5, 20}) {
      trying("%s, %d rows", format.name, rows);
      Bench bench(context, rows);
      const int cols = columns_of(format);
      Matrix weight(bench.random, format, 41, cols, true);
      Activation x = bench.input(cols), residual = bench.input(41);
      bench.program.linear(x, weight, &residual, 0);
      bench.program.linear(x, weight, nullptr, 5);
      bench.check();
    }
  }
}

// Gate and up in one product; in bfloat16 also the norm before it and itself, rounded as they are written.
MV_TEST(products_with_a_gate) {
  for (const Format &format : formats()) {
    if (format.id > MV_BF16) continue;
    for (int rows : {1, 7, 97, 200}) {
      trying("%s, %d rows", format.name, rows);
      Bench bench(context, rows);
      Program &p = bench.program;
      const int cols = 70;
      Matrix gate_up(bench.random, format, 2 * 80, cols, false);
      const Activation x = bench.input(cols), whole = p.rms_norm(x, p.vector(bench.random, cols, 1), 1e-5f);
      const Activation apart = p.activate(MV_SILU_MUL, p.linear(whole, gate_up, nullptr, 0));
      const Activation joined = p.linear_silu_mul(whole, gate_up);
      Activation rounded = joined;
      if (format.id == MV_BF16) rounded = p.round(p.linear_silu_mul(whole, gate_up), MV_BF16);
      bench.check();
      for (int r = 0; r < rows; r++) {
        for (int i = 0; i < 80; i++) {
          const float value = joined.data[r * joined.stride + i];
          if (!MV_CHECK_EQUAL(value, apart.data[r * apart.stride + i])) return;
          if (rounded.format != MV_BF16) continue;
          uint16_t half;
          std::memcpy(&half, reinterpret_cast<const char *>(rounded.data + r * rounded.stride) + 2 * i, 2);
          uint32_t bits = uint32_t(half) << 16;
          float narrow;
          std::memcpy(&narrow, &bits, 4);
          if (!MV_CHECK_EQUAL(double(narrow), round_to(MV_BF16, value))) return;
        }
      }
    }
  }
}

// Norms and SiLU that round to int8 themselves: the bits of the same op with MV_QUANTIZE after it.
MV_TEST(ops_round_to_int8_as_quantize_does) {
  for (const Format &format : formats()) {
    if (!format.int8_inputs) continue;
    for (int cols : {columns_of(format), 18 * columns_of(format)}) {
      trying("%s, %d columns", format.name, cols);
      Bench bench(context, 21);
      Program &p = bench.program;
      const Matrix weight(bench.random, format, 20, cols, false);
      const Activation x = bench.input(2 * cols, 3), y = bench.input(cols);
      for (int i = 0; i < cols; i++) y.data[4 * y.stride + i] = i < 40 ? 0 : 1e-3f;  // a group of zeros
      const float *norm_weight = p.vector(bench.random, cols, 1);
      Activation products[2][2];
      for (bool joined : {false, true}) {
        for (bool norm : {false, true}) {
          Activation made = norm ? p.rms_norm(y, norm_weight, 1e-5f) : p.activate(MV_SILU_MUL, x);
          if (joined) made = p.round(made, format.id);
          products[joined][norm] = p.linear(made, weight, nullptr, 0);
        }
      }
      bench.check();
      x.data[6 * x.stride + 3] = y.data[6 * y.stride + 3] = NAN;
      x.data[7 * x.stride + 33] = y.data[7 * y.stride + 33] = INFINITY;
      MV_CHECK_EQUAL(p.run(bench.batch.step({{0, 0, 10}, {1, 0, 11}})), MV_OK);
      for (int r = 0; r < 21; r++)
        for (bool norm : {false, true})
          MV_CHECK(!std::memcmp(products[0][norm].data + r * products[0][norm].stride,
                                products[1][norm].data + r * products[1][norm].stride, 20 * sizeof(float)));
    }
  }
}

MV_TEST(products_of_extreme_inputs) {
  for (const Format &format : formats()) {
    trying("%s", format.name);
    Bench bench(context, 8);
    const int cols = columns_of(format);
    Matrix weight(bench.random, format, 20, cols, false);
    Activation x = bench.input(cols);
    const double sizes[] = {0, 1e-20, 1e-34, 1e-42, 1e10, 1e15, 1, 1};
    for (int r = 0; r < 8; r++)
      for (int i = 0; i < cols; i++) x.data[r * x.stride + i] *= float(sizes[r]);
    for (int i = 0; i < 32; i++) x.data[6 * x.stride + i] = i == 3 ? -1e6f : 1e-3f;  // one outlier
    bench.program.linear(x, weight, nullptr, 0);
    bench.check();
  }
}

// A NaN among the inputs, wherever, must reach every output of its row, and no other row; an infinity must not vanish.
MV_TEST(products_pass_on_nan_and_infinity) {
  for (const Format &format : formats()) {
    Bench bench(context, 6);
    const int cols = columns_of(format);
    Matrix weight(bench.random, format, 20, cols, false);
    Activation x = bench.input(cols);
    Activation out = bench.program.linear(x, weight, nullptr, 0);
    MV_CHECK(bench.program.finish());
    const Step step = bench.batch.step({{0, 0, 3}, {1, 0, 3}});
    for (int col = 0; col < cols; col++) {
      trying("%s, column %d", format.name, col);
      float &spoiled = x.data[3 * x.stride + col], before = spoiled;
      for (float value : {NAN, -INFINITY}) {
        spoiled = value;
        MV_CHECK_EQUAL(bench.program.run(step), MV_OK);
        for (int r = 0; r < 6; r++) {
          for (int i = 0; i < 20; i++) {
            float got = out.data[r * out.stride + i];
            if (!MV_CHECK_EQUAL(std::isnan(value) ? std::isnan(got) : !std::isfinite(got), r == 3)) return;
          }
        }
      }
      spoiled = before;
    }
  }
}

MV_TEST(sums_and_norms) {
  for (int width : WIDTHS) {
    trying("%d columns", width);
    Bench bench(context, 9);
    Program &p = bench.program;
    Activation x = bench.input(width, 3), y = bench.input(width);
    for (int i = 0; i < width; i++) y.data[i] += 50;  // a row far from zero
    p.add(x, y);
    for (const Activation &in : {x, y}) {
      p.rms_norm(in, p.vector(bench.random, width, 1), 1e-5f);
      p.layer_norm(in, p.vector(bench.random, width, 1), p.vector(bench.random, width, 0), 1e-5f);
    }
    bench.check();
  }
}

MV_TEST(norms_of_query_and_key_heads) {
  for (int head_dim : {1, 8, 12, 64, 80, 128}) {
    trying("heads of %d", head_dim);
    Bench bench(context, 5);
    Heads heads = {0, 3, 1, head_dim, 1, 0, 0, 0};
    Activation x = bench.input(5 * head_dim);
    bench.program.qk_norm(x, bench.program.vector(bench.random, head_dim, 1),
                          bench.program.vector(bench.random, head_dim, 1), 1e-6f, heads);
    bench.check();
  }
}

MV_TEST(activations) {
  for (int width : WIDTHS) {
    for (double size : {0.01, 1.0, 30.0, 1e4}) {
      trying("%d columns of size %g", width, size);
      Bench bench(context, 7);
      Activation x = bench.input(2 * width, size);
      for (int32_t kind : {MV_SILU_MUL, MV_GELU_MUL, MV_GELU}) bench.program.activate(kind, x);
      bench.check();
    }
  }
}

MV_TEST(rows_are_taken_for_the_output) {
  Bench bench(context, 20);
  Program &p = bench.program;
  Activation x = bench.input(33);
  Activation taken = p.take_rows(x);
  p.begin_head();
  p.rms_norm(taken, p.vector(bench.random, 33, 1), 1e-5f);
  if (!MV_CHECK(p.finish())) return;
  for (Outputs outputs : {Outputs::ALL, Outputs::LAST}) {
    Step step = bench.batch.step({{1, 0, 10}, {0, 0, 9}}, outputs);
    MV_CHECK_EQUAL(p.run(step), MV_OK);
    check_run(p, step, bench.mirror);
  }
  Step none = bench.batch.step({{1, 0, 10}, {0, 0, 9}});
  none.logit_rows.clear();
  MV_CHECK_EQUAL(p.run(none), MV_OK);
  check_run(p, none, bench.mirror);
}

}  // namespace mvt
