// The two products of attention on register tiles: q.K^T and p.V for a few rows and one span of 64 keys.
//
// Both are sums of products over steps: a step is one dimension (q.K^T) or one key (p.V) of float32 and float16 stores,
// and a pair of them in a bfloat16 store. There q and the weights p are rounded to bfloat16 too, on every instruction set,
// and the dot product of pairs multiplies them; sums are float32. Each score is one chain in the order of dimensions,
// each output one chain in the order of keys, whatever the shape of the tile. An int8 store has pairs, too: attention_codes.h.
#ifndef MINI_VLLM_KERNELS_ATTENTION_TILES_H
#define MINI_VLLM_KERNELS_ATTENTION_TILES_H

#include "kernel_table.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"

namespace mv {
namespace MV_ISA {
namespace {

constexpr int GROUP = 16;             // keys side by side in K^T
constexpr int GROUPS = SPAN / GROUP;  // of a span
constexpr int GV = GROUP / W;         // vectors of a group
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MAX_TILE_ROWS = 6;  // rows of a register tile
constexpr int VALUE_VECTORS = 4;  // vectors of V's dimensions in a register tile
#else
constexpr int MAX_TILE_ROWS = W == 8 ? 4 : 2;
constexpr int VALUE_VECTORS = 2;
#endif
constexpr int SCORE_GROUPS = W == 16 ? 4 : 1;  // groups of keys in a register tile

// Float32 and float16 stores: P = 1 number a step, multiplied in float32.
template <typename Format>
struct Singles {
  typedef typename Format::Element Element;
  typedef float Operand;  // what a row multiplies a step with
  typedef F Vector;
  typedef F Sum;
  static constexpr int P = 1;
  static constexpr bool HAS_SCALES = false;
  static MV_INLINE F load(const Element *p) { return Format::widen(p); }
  static MV_INLINE F broadcast(float x) { return set1(x); }
  static MV_INLINE F multiply_add(F x, F operand, F sum) { return fma(x, operand, sum); }
  // x with the step's number, or with zero if it is not used.
  static MV_INLINE F keep(F x, bool, bool) { return x; }
  static void write_query(const float *x, int n, float factor, float *out) {
    for (int i = 0; i < n; i++) out[i] = x[i] * factor;
  }
  // Weights of W or 2 W neighbouring keys. Returns what to add to their sum.
  static MV_INLINE F write_weights(F a, F b, float *out) {
    store(out, a);
    store(out + W, b);
    return a + b;
  }
};

// Bfloat16 stores: P = 2 numbers a step.
struct Pairs {
  typedef uint16_t Element;
  typedef uint32_t Operand;
  typedef U Vector;
  typedef F Sum;
  static constexpr int P = 2;
  static constexpr bool HAS_SCALES = false;
  static MV_INLINE U load(const uint16_t *p) {
    U v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  static MV_INLINE U broadcast(uint32_t x) { return x - U{}; }
  static MV_INLINE U keep(U x, bool first, bool second) {
    return x & broadcast((first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u));
  }
  static void write_query(const float *x, int n, float factor, uint32_t *out) {
    uint16_t *lanes = (uint16_t *)out;
    for (int i = 0; i < n; i++) lanes[i] = BF16::narrow(x[i] * factor);
    if (n % 2) lanes[n] = 0;
  }
#if defined(__AVX512BF16__)
  static MV_INLINE F multiply_add(U x, U operand, F sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)operand);
  }
  static MV_INLINE F write_weights(F a, F b, uint32_t *out) {
    U pairs = (U)_mm512_cvtne2ps_pbh(b, a);
    memcpy(out, &pairs, sizeof pairs);
    return multiply_add(pairs, broadcast(0x3f803f80u), zero());  // times (1, 1)
  }
#else
  static MV_INLINE F first(U x) { return (F)(x << 16); }
  static MV_INLINE F second(U x) { return (F)(x & 0xffff0000u); }
  static MV_INLINE F multiply_add(U x, U operand, F sum) {
    return fma(second(x), second(operand), fma(first(x), first(operand), sum));
  }
  static MV_INLINE U round(F x) {
    U bits = (U)x, rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (x == x ? rounded : bits | 0x400000u) & 0xffff0000u;
  }
  static MV_INLINE F write_weights(F a, F b, uint32_t *out) {
    U x = round(a), y = round(b);
    H halves[2] = {__builtin_convertvector(x >> 16, H), __builtin_convertvector(y >> 16, H)};
    memcpy(out, halves, sizeof halves);
    return (F)x + (F)y;
  }
#endif
};

// Where a span's keys and values lie. Keys group g: step d of its 16 keys starts at keys[g] + d * key_stride; step j of its V
// at values[g] + j * value_stride.
template <typename Lanes>
struct Span {
  typedef typename Lanes::Element Element;
  const Element *keys[GROUPS], *values[GROUPS];
  const float *key_scales[GROUPS], *value_scales[GROUPS];  // of each key; int8 alone has them
  int64_t key_stride, value_stride;
  int steps, padded;  // steps of the head's dimensions
  const char *key_run, *value_run;  // where all of the span's keys, or values, begin if they lie in one piece; else NULL
};
template <typename Lanes>
constexpr int GROUP_STEPS = GROUP / Lanes::P;

// Memory is asked for half a span early, one step's worth at a time: V while q.K^T is computed, the next span's K while p.V
// is. (A whole span early is too early: the requests queue up before what is needed at once. docs/log/attention.md) One piece
// is asked for in the order of addresses, so that the processor's own requests run ahead of ours; others side by side, so
// that their beginnings are waited for together.
MV_INLINE void prefetch_run(const char *begin, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(begin + b);
}
template <typename Lanes>
MV_INLINE void prefetch_keys(const Span<Lanes> &span, int i) {
  const int64_t step = span.key_stride * GROUPS * int64_t(sizeof(typename Lanes::Element));
  if (span.key_run) {
    prefetch_run(span.key_run + i * step, step);
  } else {
    MV_UNROLL for (int g = 0; g < GROUPS; g++) __builtin_prefetch(span.keys[g] + i * span.key_stride);
  }
  if constexpr (Lanes::HAS_SCALES) {
    if (i > 0) return;
    for (int g = 0; g < GROUPS; g++) __builtin_prefetch(span.key_scales[g]), __builtin_prefetch(span.value_scales[g]);
  }
}
template <typename Lanes>
MV_INLINE void prefetch_values(const Span<Lanes> &span, int i) {
  const int64_t step = span.value_stride * int64_t(sizeof(typename Lanes::Element));
  if (span.value_run) {
    prefetch_run(span.value_run + i * step, step);
  } else {
    for (int g = 0; g < GROUPS; g++) prefetch_run((const char *)span.values[g] + i * (step / GROUPS), step / GROUPS);
  }
}

// scores[r][16 g …] of MR rows and NG groups of keys, as sums of the store's kind. q [rows][steps].
template <typename Lanes, int MR, int NG>
MV_INLINE void score_tile(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *q, int g,
                          float *scores) {
  typename Lanes::Sum acc[MR][NG * GV];
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NG * GV; v++) acc[m][v] = typename Lanes::Sum{};
  }
  const int64_t stride = span.key_stride;
  const int steps = span.steps;
  const typename Lanes::Element *keys[NG];
  MV_UNROLL for (int i = 0; i < NG; i++) keys[i] = span.keys[g + i];
  for (int d = 0; d < steps; d++) {
    if (ahead && d < SPAN / Lanes::P) prefetch_values(span, d);
    typename Lanes::Vector k[NG * GV];
    MV_UNROLL for (int v = 0; v < NG * GV; v++) k[v] = Lanes::load(keys[v / GV] + d * stride + v % GV * W * Lanes::P);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      typename Lanes::Vector a = Lanes::broadcast(q[m * steps + d]);
      MV_UNROLL for (int v = 0; v < NG * GV; v++) acc[m][v] = Lanes::multiply_add(k[v], a, acc[m][v]);
    }
  }
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NG * GV; v++) memcpy(scores + m * SPAN + g * GROUP + v * W, &acc[m][v], 4 * W);
  }
}

// Groups g … end - 1 of MR rows.
template <typename Lanes, int MR>
void score_groups(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *q, int g, int end,
                  float *scores) {
  if constexpr (SCORE_GROUPS == 4) {
    for (; g + 4 <= end; g += 4, ahead = nullptr) score_tile<Lanes, MR, 4>(span, ahead, q, g, scores);
    for (; g + 2 <= end; g += 2, ahead = nullptr) score_tile<Lanes, MR, 2>(span, ahead, q, g, scores);
  }
  for (; g < end; g++, ahead = nullptr) score_tile<Lanes, MR, 1>(span, ahead, q, g, scores);
}

// acc[r] += sum over steps from <= j < to of p[r][j] V[j], for MR rows at once. p [rows][SPAN / P], acc [rows][padded].
template <typename Lanes, int MR, int NV>
MV_INLINE void value_tile(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *p, int from,
                          int to, int column, float *acc) {
  constexpr int STEPS = GROUP_STEPS<Lanes>;
  const int64_t padded = span.padded, stride = span.value_stride;
  F sum[MR][NV];
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = load(acc + m * padded + column + v * W);
  }
  for (int j = from; j < to; j++) {
    if (ahead) prefetch_keys(*ahead, j);
    const typename Lanes::Element *row = span.values[j / STEPS] + j % STEPS * stride + column * Lanes::P;
    typename Lanes::Vector value[NV];
    MV_UNROLL for (int v = 0; v < NV; v++) value[v] = Lanes::load(row + v * W * Lanes::P);
    MV_UNROLL for (int m = 0; m < MR; m++) {
      typename Lanes::Vector a = Lanes::broadcast(p[m * (SPAN / Lanes::P) + j]);
      MV_UNROLL for (int v = 0; v < NV; v++) sum[m][v] = Lanes::multiply_add(value[v], a, sum[m][v]);
    }
  }
  MV_UNROLL for (int m = 0; m < MR; m++) {
    MV_UNROLL for (int v = 0; v < NV; v++) store(acc + m * padded + column + v * W, sum[m][v]);
  }
}

template <typename Lanes, int MR>
void value_columns(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *p, int from, int to,
                   float *acc) {
  int column = 0;
  for (; column + VALUE_VECTORS * W <= span.padded; column += VALUE_VECTORS * W, ahead = nullptr)
    value_tile<Lanes, MR, VALUE_VECTORS>(span, ahead, p, from, to, column, acc);
  for (; column < span.padded; column += W, ahead = nullptr)
    value_tile<Lanes, MR, 1>(span, ahead, p, from, to, column, acc);
}

// The same for keys from <= j < to of one row, which may begin or end inside a step: the step's other key counts as zero,
// whatever lies there.
template <typename Lanes>
void value_edge(const Span<Lanes> &span, const typename Lanes::Operand *p, int from, int to, float *acc) {
  constexpr int P = Lanes::P, STEPS = GROUP_STEPS<Lanes>;
  for (int j = from / P; j * P < to; j++) {
    const typename Lanes::Element *row = span.values[j / STEPS] + j % STEPS * span.value_stride;
    typename Lanes::Vector a = Lanes::broadcast(p[j]);
    bool first = j * P >= from, second = j * P + 1 < to;
    for (int i = 0; i < span.padded; i += W)
      store(acc + i, Lanes::multiply_add(Lanes::keep(Lanes::load(row + i * P), first, second), a, load(acc + i)));
  }
}

// Calls Function<MR>::run for a number of rows known only at run time.
template <template <typename, int> class Function, typename Lanes, int MR = MAX_TILE_ROWS, typename... Args>
MV_INLINE void dispatch_rows(int rows, const Args &...args) {
  if (rows == MR) return Function<Lanes, MR>::run(args...);
  if constexpr (MR > 1) dispatch_rows<Function, Lanes, MR - 1>(rows, args...);
}
template <typename Lanes, int MR>
struct ScoreRows {
  static void run(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *q, int g, int end,
                  float *scores) {
    score_groups<Lanes, MR>(span, ahead, q, g, end, scores);
  }
};
template <typename Lanes, int MR>
struct ValueRows {
  static void run(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *p, int from, int to,
                  float *acc) {
    value_columns<Lanes, MR>(span, ahead, p, from, to, acc);
  }
};

struct RowRange {
  int from, to;  // visible keys of a row in the span
};

// acc[r] += p[r] V over each row's visible keys, for up to MAX_TILE_ROWS rows: steps visible to all of them in one register
// tile, those before and after row by row, so that each row adds its own keys in their order and no others.
template <typename Lanes>
void add_values(const Span<Lanes> &span, const Span<Lanes> *ahead, const typename Lanes::Operand *p,
                const RowRange *ranges, int count, float *acc) {
  constexpr int P = Lanes::P, ROW = SPAN / P;
  int from = 0, to = SPAN;
  for (int i = 0; i < count; i++) {
    from = max32(from, ranges[i].from);
    to = min32(to, ranges[i].to);
  }
  from = (from + P - 1) / P;
  to /= P;
  if (from >= to) {
    for (int i = 0; i < count; i++) value_edge(span, p + i * ROW, ranges[i].from, ranges[i].to, acc + i * span.padded);
    from = to = 0;
  } else {
    for (int i = 0; i < count; i++) value_edge(span, p + i * ROW, ranges[i].from, from * P, acc + i * span.padded);
    dispatch_rows<ValueRows, Lanes>(count, span, ahead, p, from, to, acc);
    for (int i = 0; i < count; i++) value_edge(span, p + i * ROW, to * P, ranges[i].to, acc + i * span.padded);
  }
  if (!ahead) return;
  for (int j = 0; j < from; j++) prefetch_keys(*ahead, j);
  for (int j = to; j < span.steps; j++) prefetch_keys(*ahead, j);
}

}  // namespace
}  // namespace MV_ISA
}  // namespace mv
#endif
