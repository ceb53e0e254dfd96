// Megatron's args, as the pickle of a Namespace or of a dict that has one: facts, sizes and the
// pipeline that follow from them. What a target's args change is what they say afterwards, and
// everything else stays.

#include "core/formats/megatron/mcore/args.hpp"
#include "core/layout/pipeline_layout.hpp"
#include "tests/fuzz/pickle_mutator.hpp"
#include "tests/fuzz/torch_document.hpp"

namespace reshard {
namespace {

using namespace megatron;

TargetArgs target_of(Json const& facts) {
  TargetArgs target;
  target.sizes = {.tp = 2, .pp = 2, .vpp = 1, .ep = 2, .etp = 1};
  target.pipeline = pipeline_spec(facts, target.sizes);
  target.padded_vocab = 128;
  return target;
}

/// Only in a plain Namespace: elsewhere keys may stand twice, or not be texts.
void expect_set(pickle::Document document, Json const& facts) {
  ArgValues const values = target_args(target_of(facts), facts);
  pickle::NodeId const copy = add_namespace(document, values);
  Json const changed = args_as_json(document, copy);
  for (auto const& [key, value] : values)
    FUZZ_EXPECT(changed.find(key) != nullptr && *changed.find(key) == value);
  set_args(document, copy, values);
  FUZZ_EXPECT(args_as_json(document, copy) == changed);
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  auto const document = fuzz::attempt(ErrorKind::source, [&] {
    return pickle::parse(fuzz::bytes_of(fuzz::text_of(data, size)), "fuzz", nullptr,
                         fuzz::small_limits);
  });
  if (!document) return 0;
  pickle::NodeId const inner = document->find(document->root, "args");  // of a whole checkpoint
  pickle::NodeId const args = inner == pickle::no_node ? document->root : inner;
  auto const facts =
      fuzz::attempt(ErrorKind::source, [&] { return args_as_json(*document, args); });
  if (!facts) return 0;
  auto const sizes = fuzz::accepted(ErrorKind::source, [&] { return args_sizes(*facts, "fuzz"); });
  if (!sizes) return 0;
  std::string const layout = pipeline_spec(*facts, {}).layout;
  auto const stages =
      fuzz::attempt(ErrorKind::usage, [&] { return parse_pipeline_layout(layout); });
  if (stages) FUZZ_EXPECT(!stages->empty() && stages->size() <= most_pipeline_stages);
  expect_set(*document, *facts);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return reshard::fuzz::mutate_pickle(data, size, most, seed);
}
