// What the library says about itself, and which instruction sets it can run.
#include <cstring>
#include <string>

#include "isa.h"
#include "mini_vllm.h"

#if defined(__linux__)
#include <sys/auxv.h>
#endif

namespace mv {

const KernelTable &kernel_table_portable();
#if defined(MV_HAVE_avx2)
const KernelTable &kernel_table_avx2();
const KernelTable &kernel_table_avx512();
#endif
#if defined(MV_HAVE_dotprod)
const KernelTable &kernel_table_dotprod();
#endif

namespace {

struct InstructionSet {
  const char *name;
  bool supported;
  const KernelTable &(*table)();
};

#if defined(MV_HAVE_dotprod)
// arm64's dot product of bytes.
bool has_dotprod() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) >> 20 & 1) != 0;  // HWCAP_ASIMDDP
#else
  return true;  // all that Apple builds have it
#endif
}
#endif

// Best first.
const InstructionSet SETS[] = {
#if defined(MV_HAVE_avx2)
    {"avx512",
     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("fma"),
     kernel_table_avx512},
    {"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"),
     kernel_table_avx2},
#endif
#if defined(MV_HAVE_dotprod)
    {"dotprod", has_dotprod(), kernel_table_dotprod},
#endif
    {"portable", true, kernel_table_portable},
};

// The best set's units of work, and nothing done for them: what a step costs beside its kernels.
const KernelTable &kernel_table_none() {
  static const KernelTable table = [] {
    const InstructionSet *best = SETS;
    while (!best->supported) best++;
    KernelTable none = best->table();
    for (Kernel &kernel : none.kernels) {
      kernel.run = [](const mv_op &, const StepView &, int64_t, int64_t, const ThreadView &) {};
      kernel.stream = nullptr;
    }
    return none;
  }();
  return table;
}

}  // namespace

const KernelTable *find_table(const char *isa) {
  if (std::strcmp(isa, "none") == 0) return &kernel_table_none();
  for (const InstructionSet &set : SETS)
    if (set.supported && std::strcmp(set.name, isa) == 0) return &set.table();
  return nullptr;
}

}  // namespace mv

extern "C" int32_t mv_version(void) { return MV_ABI_VERSION; }

extern "C" int32_t mv_struct_bytes(int32_t which) {
  const size_t bytes[] = {sizeof(mv_matrix), sizeof(mv_store), sizeof(mv_op), sizeof(mv_step), sizeof(mv_limits),
                          sizeof(mv_follow)};
  return which >= 0 && which < 6 ? int32_t(bytes[which]) : -1;
}

extern "C" const char *mv_isa_names(void) {
  static const std::string names = [] {
    std::string list;
    for (const mv::InstructionSet &set : mv::SETS)
      if (set.supported) list += (list.empty() ? "" : " ") + std::string(set.name);
    return list;
  }();
  return names.c_str();
}

extern "C" int32_t mv_isa_supported(const char *isa) { return mv::find_table(isa) != nullptr; }
