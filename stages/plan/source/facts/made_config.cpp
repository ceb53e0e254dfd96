#include "stages/plan/source/facts/made_config.hpp"

#include "core/base/text/text.hpp"
#include "stages/plan/config/carried_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "stages/plan/source/facts/source_facts.hpp"
#include "stages/plan/source/facts/stated_args.hpp"

namespace reshard {
namespace {

/// The rows of the vocabulary where they are not args.vocab_size: Megatron's null tokenizer has one
/// token more. 0: as args say.
Index counted_vocab(Checkpoint const& source, PlanRequest const& request, SourceModel const& read) {
  if (request.read.true_vocab_size > 0) return request.read.true_vocab_size;
  return source.names == NameOwner::logical ? source.logical.vocab
                                            : read.facts.recorded_vocab.value_or(0);
}

Model described_by_args(SourceModel const& read, Index vocab) {
  return {read.names.maps.core, read.names.maps.core, {read.facts.args, "args", vocab}};
}

void warn_of_guesses(Checkpoint const& source, SourceModel& read) {
  MapFile const& family = *read.names.maps.family;
  Json const args = args_that_say(source, read.facts.args);
  auto const guessed = guessed_members(family, read.names.maps.core, args, read.facts.config);
  if (!guessed.empty())
    read.warnings.push_back(fmt::format(
        "config.json is made from the checkpoint's args, which do not contain everything: {} "
        "{} guessed. Give target.reference to use a model's own config and tokenizer",
        listed(guessed, 6), guessed.size() == 1 ? "is" : "are"));
  std::string untold = untold_warning(family, read.names.maps.core, read.facts.config, args);
  if (!untold.empty()) read.warnings.push_back(std::move(untold));
}

}  // namespace

Json args_that_say(Checkpoint const& source, Json const& all) {
  if (!from_settings(source)) return all;
  Json args = Json::object();
  for (auto const& [key, value] : *all.members())
    if (!value.is_null()) args.set(key, value);
  return args;
}

void make_config(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  MapFile const& family = *read.names.maps.family;
  if (family.config.empty())
    fail(ErrorKind::usage,
         "[target] reference: {} cannot make a config.json from a checkpoint's args. Name a folder "
         "with the model's own.",
         family.name);
  Model const described = described_by_args(read, counted_vocab(source, request, read));
  check_settings(source, family, described, request.read.library);
  read.facts.config = config_from_args(family, described);
  Json quantised = fact(read.facts.args, "quantization_config");  // what an earlier job noted there
  if (!quantised.is_null()) read.facts.config.set("quantization_config", std::move(quantised));
  read.facts.config_text = read.facts.config.dump(2) + "\n";
  if (to_huggingface(request)) warn_of_guesses(source, read);
}

Index vocab_of_args_beside(Json const& by_config, Checkpoint const& source,
                           PlanRequest const& request, SourceModel const& read) {
  Index const counted = counted_vocab(source, request, read);
  return by_config == Json(counted) ? counted : request.read.true_vocab_size;
}

void compare_facts(Checkpoint const& source, PlanRequest const& request, SourceModel const& read) {
  Model const described = described_by_args(
      read, vocab_of_args_beside(read.model->value("vocab"), source, request, read));
  if (auto const conflict = axis_conflict(*read.model, described, read.facts.args))
    fail(ErrorKind::source,
         "{} is {} in {} and {} in args. They describe two different models: {}.", conflict->axis,
         conflict->by_config,
         read.facts.reference ? config_name_of(*read.facts.reference) : "config.json",
         conflict->by_args,
         !request.options.huggingface.reference.empty() ? "check target.reference"
         : !request.read.config.empty()
             ? "check source.config"
             : "give target.reference, the folder of this model's own config");
}

}  // namespace reshard
