#include "stages/plan/source/facts/model_class.hpp"

#include <algorithm>

#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/megatron/mcore/paired_layers.hpp"

namespace reshard {
namespace {

/// Whether the family describes the model, in layers of GPTModel.
bool is_described_by_gpt_family(SourceModel const& read) {
  if (!read.names.maps.family || is_hybrid(*read.names.maps.family)) return false;
  return !read.facts.config.is_null() || !read.names.maps.family->config.empty();
}

}  // namespace

bool is_hybrid(MapFile const& family) {
  return std::ranges::any_of(family.let,
                             [](NamedExpression const& let) { return let.name == "hybrid"; });
}

Json gpt_args(Json const& args) {
  return megatron::hybrid_pattern(args) ? megatron::unpaired_args(args).args : Json();
}

void settle_model_class(PlanRequest const& request, std::string_view place, SourceModel& result) {
  if (!megatron::hybrid_pattern(result.facts.args)) return;
  bool const asked = request.options.named.model == megatron::TargetModel::gpt;
  if (!asked && !is_described_by_gpt_family(result)) return;
  megatron::UnpairedArgs unpaired = megatron::unpaired_args(result.facts.args);
  if (!unpaired.args.is_null()) {
    result.facts.args = std::move(unpaired.args);
    result.facts.traits.paired = true;
  } else if (asked) {
    fail(ErrorKind::usage,
         "[target] model = \"gpt\": {} is a hybrid model whose pattern {}, so two layers of it are "
         "not one of GPTModel. Set model = \"auto\".",
         place, unpaired.why);
  }
}

}  // namespace reshard
