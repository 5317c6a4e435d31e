#include "program.h"

#include <cstdio>

#include "check.h"

namespace mvt {

TeamHandle::TeamHandle(int threads) : team(mv_team_create(threads)) {
  if (!team) throw std::bad_alloc();
}

Store::Store(int32_t format, int layers, int blocks, int block_size, int kv_heads, int head_dim)
    : shape{format, layers, blocks, block_size, kv_heads, head_dim, nullptr}, memory(mv_store_bytes(&shape)) {
  shape.data = memory.data();
}

Program::Program(const TeamHandle &team, const char *isa, Store &store, const mv_limits &limits)
    : team_(team), isa_(isa), store_(store), limits_(limits) {}

Program::~Program() {
  mv_program_destroy(program_);
  begun_.reset();
}

Activation Program::make(int width, int32_t row_kind) {
  int64_t stride = width + 1 + int64_t(buffers_.size() % 4) * 5;
  buffers_.emplace_back(4 * ((rows(row_kind) - 1) * stride + width));
  float *data = reinterpret_cast<float *>(buffers_.back().data());
  return {data, stride, width, row_kind, int(buffers_.size()) - 1};
}

Activation Program::push(const mv_op &op, const Activation &out) {
  (in_head_ ? head_ops_ : ops_).push_back(op);
  outputs_.push_back(out);
  made_in_head_.push_back(in_head_);
  return out;
}

mv_op Program::op(int32_t kind, const Activation &x, const Activation &out) const {
  mv_op op = {};
  op.kind = kind;
  op.row_kind = out.row_kind;
  op.width = out.width;
  op.x = x.data;
  op.x_stride = x.stride;
  op.out = out.data;
  op.out_stride = out.stride;
  op.scale = 1;
  return op;
}

namespace {

const Activation NOTHING = {nullptr, 0, 0, 0, -1};

void set_heads(mv_op &op, const Heads &heads) {
  op.layer = heads.layer;
  op.num_heads = heads.num_heads;
  op.num_kv_heads = heads.num_kv_heads;
  op.head_dim = heads.head_dim;
  op.window = heads.window;
}

}  // namespace

Activation Program::input(int width) { return make(width, MV_ROWS_TOKENS); }

Activation Program::embed(const Matrix &table, float scale) {
  Activation out = make(table.cols(), MV_ROWS_TOKENS);
  mv_op o = op(MV_EMBED, NOTHING, out);
  o.weight = table.get();
  o.scale = scale;
  matrices_.push_back(&table);
  return push(o, out);
}

Activation Program::embed_positions(const Matrix &table) {
  Activation out = make(table.cols(), MV_ROWS_TOKENS);
  mv_op o = op(MV_EMBED_POSITIONS, NOTHING, out);
  o.weight = table.get();
  matrices_.push_back(&table);
  return push(o, out);
}

Activation Program::add(const Activation &x, const Activation &y) {
  Activation out = make(x.width, x.row_kind);
  mv_op o = op(MV_ADD, x, out);
  o.y = y.data;
  o.y_stride = y.stride;
  return push(o, out);
}

Activation Program::rms_norm(const Activation &x, const float *weight, float eps) {
  Activation out = make(x.width, x.row_kind);
  mv_op o = op(MV_RMS_NORM, x, out);
  o.vector0 = weight;
  o.eps = eps;
  return push(o, out);
}

Activation Program::layer_norm(const Activation &x, const float *weight, const float *bias, float eps) {
  Activation out = make(x.width, x.row_kind);
  mv_op o = op(MV_LAYER_NORM, x, out);
  o.vector0 = weight;
  o.vector1 = bias;
  o.eps = eps;
  return push(o, out);
}

Activation Program::qk_norm(const Activation &x, const float *q_weight, const float *k_weight, float eps,
                            const Heads &heads) {
  Activation out = make(x.width, x.row_kind);
  mv_op o = op(MV_QK_NORM, x, out);
  o.vector0 = q_weight;
  o.vector1 = k_weight;
  o.eps = eps;
  set_heads(o, heads);
  return push(o, out);
}

Activation Program::factor(const Activation &x, const Matrix &weight) {
  const Format &format = weight.format();
  if (x.format != MV_F32 || !(format.int8_inputs || format.id == MV_BF16)) return x;
  Activation rounded = make(format.int8_inputs ? x.width / 32 * 10 : (x.width + 1) / 2, x.row_kind);
  mv_op o = op(MV_QUANTIZE, x, rounded);
  o.weight = weight.get();
  return push(o, rounded);
}

Activation Program::round(Activation x, int32_t format) {
  (in_head_ ? head_ops_ : ops_).back().out_format = x.format = format;
  return outputs_.back() = x;
}

Activation Program::linear_silu_mul(const Activation &x, const Matrix &gate_up) {
  const Activation in = factor(x, gate_up), out = make(gate_up.rows() / 2, x.row_kind);
  mv_op o = op(MV_LINEAR_SILU_MUL, in, out);
  o.weight = gate_up.get();
  matrices_.push_back(&gate_up);
  return push(o, out);
}

Activation Program::linear(const Activation &x, const Matrix &weight, const Activation *residual, float softcap) {
  const Activation in = factor(x, weight), out = make(weight.rows(), x.row_kind);
  mv_op o = op(MV_LINEAR, in, out);
  o.weight = weight.get();
  o.softcap = softcap;
  if (residual) {
    o.y = residual->data;
    o.y_stride = residual->stride;
  }
  matrices_.push_back(&weight);
  return push(o, out);
}

Activation Program::rope_store(const Activation &qkv, const float *cos, const float *sin, const Heads &heads) {
  Activation out = make(heads.num_heads * heads.head_dim, MV_ROWS_TOKENS);
  mv_op o = op(MV_ROPE_STORE, qkv, out);
  set_heads(o, heads);
  o.rope_dims = heads.rope_dims;
  o.vector0 = cos;
  o.vector1 = sin;
  return push(o, out);
}

Activation Program::attend(const Activation &q, const Heads &heads) {
  Activation out = make(q.width, MV_ROWS_TOKENS);
  mv_op o = op(MV_ATTEND, q, out);
  set_heads(o, heads);
  o.scale = heads.scale;
  o.softcap = heads.softcap;
  return push(o, out);
}

Activation Program::activate(int32_t kind, const Activation &x) {
  Activation out = make(kind == MV_GELU ? x.width : x.width / 2, x.row_kind);
  return push(op(kind, x, out), out);
}

Activation Program::take_rows(const Activation &x) {
  Activation out = make(x.width, MV_ROWS_OUTPUT);
  return push(op(MV_TAKE_ROWS, x, out), out);
}

void Program::begin_head() { in_head_ = true; }

bool Program::finish() {
  program_ = mv_program_create(team_.team, isa_, &store_.shape, &limits_, ops_.data(), int32_t(ops_.size()),
                               head_ops_.data(), int32_t(head_ops_.size()));
  return program_ != nullptr;
}

const float *Program::vector(Random &random, int width, double mean) {
  vectors_.emplace_back(4 * int64_t(width));
  float *values = reinterpret_cast<float *>(vectors_.back().data());
  for (int i = 0; i < width; i++) values[i] = float(mean + random.normal());
  return values;
}

void Program::poison() {
  for (const Activation &out : outputs_) buffers_[size_t(out.index)].poison();
}

bool Program::untouched() const {
  for (const Activation &out : outputs_)
    if (!buffers_[size_t(out.index)].untouched()) return false;
  return true;
}

namespace {

// A step whose arrays end where they should.
struct ExactStep {
  Bytes memory[7];
  mv_step view;

  static Bytes copy(const std::vector<int32_t> &values) {
    Bytes bytes(4 * int64_t(values.size()));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), size_t(bytes.size()));
    return bytes;
  }
  const int32_t *array(int i) const { return reinterpret_cast<const int32_t *>(memory[i].data()); }
  explicit ExactStep(const Step &s)
      : memory{copy(s.token_ids),    copy(s.positions), copy(s.slots),     copy(s.query_starts), copy(s.seq_lens),
               copy(s.block_tables), copy(s.logit_rows)},
        view{s.num_tokens(), s.num_seqs(), int32_t(s.logit_rows.size()), s.table_width,
             array(0),       array(1),     array(2),                     array(3),
             array(4),       array(5),     array(6),                     s.greedy_limit,
             0} {}
};

}  // namespace

int32_t Program::run(const Step &step) {
  poison();
  ExactStep exact(step);
  int32_t status = mv_program_run(program_, &exact.view);
  if (status == MV_OK) MV_CHECK(gaps_untouched(step));
  return status;
}

int32_t Program::begin(const Step &step) {
  mv_program_end(program_, 0);
  poison();
  return begin_instead(step);
}

int32_t Program::begin_instead(const Step &step) {
  auto exact = std::make_shared<ExactStep>(step);
  int32_t status = mv_program_begin(program_, &exact->view);
  begun_ = exact;
  return status;
}

bool Program::end(bool keep) {
  bool is_done = mv_program_end(program_, keep) == 1;
  begun_.reset();
  return is_done;
}

bool Program::gaps_untouched(const Step &step) const {
  const int num_outputs = int(step.logit_rows.size());
  const bool head_ran = num_outputs <= limits_.max_logit_rows;
  for (size_t i = 0; i < outputs_.size(); i++) {
    const Activation &out = outputs_[i];
    const Bytes &buffer = buffers_[size_t(out.index)];
    int num_rows = out.row_kind == MV_ROWS_TOKENS ? step.num_tokens() : num_outputs;
    if (made_in_head_[i] && !head_ran) num_rows = 0;
    int64_t gap = 0;  // what no row covers begins here
    for (int64_t row = 0; row < num_rows; row++) {
      if (!buffer.untouched(gap, 4 * row * out.stride)) return false;
      gap = 4 * (row * out.stride + out.words());
    }
    if (!buffer.untouched(gap, buffer.size())) return false;
  }
  return true;
}

const Matrix &Program::matrix(const mv_op &op) const {
  for (const Matrix *matrix : matrices_)
    if (matrix->get() == op.weight) return *matrix;
  std::fprintf(stderr, "an op with an unknown matrix\n");
  std::abort();
}

const mv_op *Program::quantizer(const mv_op &op) const {
  for (const std::vector<mv_op> *list : {&ops_, &head_ops_})
    for (const mv_op &other : *list)
      if (other.kind == MV_QUANTIZE && other.out == op.x) return &other;
  return nullptr;
}

}  // namespace mvt
