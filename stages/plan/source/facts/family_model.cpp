#include "stages/plan/source/facts/family_model.hpp"

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "stages/plan/source/facts/model_facts.hpp"
#include "stages/plan/source/facts/source_facts.hpp"
#include "stages/plan/source/facts/vocabulary.hpp"
#include "stages/plan/source/names/mlite_options.hpp"

namespace reshard {
namespace {

/// Takes the divisor of the padding rule from args, where config.json has no word for it.
void add_divisor(ModelFacts& facts, Json const& args) {
  Json const divisor = fact(args, "make_vocab_size_divisible_by");
  if (!divisor.is_null()) facts.facts.set("make_vocab_size_divisible_by", divisor);
}

/// The place of the facts, for messages: without any config.json one is made from the args.
std::string origin_of(Checkpoint const& source, SourceModel const& read) {
  bool const made = source.model.config.is_null() && !read.facts.files && !read.facts.reference &&
                    !read.facts.args.is_null();
  return made ? "args" : "config.json";
}

class FamilyModel {
 public:
  FamilyModel(Checkpoint const& source, PlanRequest const& request, MapFile const* names,
              std::function<bool(std::string_view)> const& has, SourceModel& read)
      : source_(source), request_(request), names_(names), has_(has), read_(read) {}

  void make() {
    ModelFacts facts{read_.facts.config, origin_of(source_, read_), request_.read.true_vocab_size};
    if (logical() && !to_huggingface(request_))
      facts.true_vocab_size = carried_vocab(source_, request_, read_);
    if (logical()) add_divisor(facts, read_.facts.args);
    make(facts);
    if (source_.names == NameOwner::family && request_.read.true_vocab_size > 0) check_key();
    Index const stated = count("M");
    Index const there = layers_there(stated);
    read_.draft = there > 0 && source_.names == NameOwner::family && read_.names.adapter.empty() &&
                  names_ == nullptr && !has_layers(false);
    if (there == stated) return;
    facts.prediction_layers = there;
    correct_prediction_layers(stated, there);
    make(facts);
  }

 private:
  bool logical() const { return source_.names == NameOwner::logical; }

  void make(ModelFacts const& facts) {
    read_.model = std::make_unique<Model>(*read_.names.maps.family, read_.names.maps.core, facts);
  }

  /// Names of a family come without padding rows.
  void check_key() const {
    Model const as_stated(*read_.names.maps.family, read_.names.maps.core,
                          ModelFacts{read_.facts.config, "config.json", 0});
    Json const vocab = as_stated.value("vocab");
    if (vocab.integer() == nullptr || *vocab.integer() <= request_.read.true_vocab_size) return;
    fail(
        ErrorKind::usage,
        "[model] true_vocab_size = {}: the config.json of {} says {} rows, and a checkpoint with a "
        "family's names has no padding behind them. Remove the key.",
        request_.read.true_vocab_size, source_.place, *vocab.integer());
  }

  /// Layers for multi-token prediction that the checkpoint has.
  Index layers_there(Index stated) const {
    if (logical()) return source_.logical.prediction_layers;
    if (!read_.facts.args.is_null()) {
      Json const by_args = Model(read_.names.maps.core, read_.names.maps.core,
                                 {read_.facts.args, "args", request_.read.true_vocab_size})
                               .value("M");
      return by_args.integer() == nullptr ? 0 : *by_args.integer();
    }
    bool const lacks = stated > 0 && source_.names == NameOwner::family &&
                       read_.names.adapter.empty() && !has_layers(true);
    return lacks ? 0 : stated;
  }

  /// config.json of the target may count layers for multi-token prediction that the checkpoint
  /// lacks: loaders would look for them.
  void correct_prediction_layers(Index stated, Index there) {
    std::string text =
        fmt::format("config.json has {} for multi-token prediction, {} are in the checkpoint",
                    counted(stated, "layer"), there);
    if (to_huggingface(request_) && read_.facts.reference)
      read_.facts.config_changes =
          prediction_layer_changes(*read_.names.maps.family, read_.facts.reference->config, there);
    for (huggingface::ConfigPatch const& change : read_.facts.config_changes)
      text += fmt::format(". The target's config.json is changed: {} = {}",
                          fmt::join(change.path, "."), there);
    read_.warnings.push_back(std::move(text));
  }

  /// Whether any tensor of a layer is there: of one for multi-token prediction, or of the others.
  bool has_layers(bool of_prediction) const {
    SideOptions options;
    if (names_ != nullptr && has_mlite_names(*names_))
      options.options = mlite_target_options(*names_, *read_.model, {});
    options.has = has_;
    Side const side(*read_.model, names_ != nullptr ? *names_ : *read_.names.maps.family,
                    std::move(options));
    Index const decoder_layers = count("L");
    for (StoredName const& name : side.names(nullptr))
      for (TensorId const tensor : side.tensors(name.entry)) {
        auto const layers = side.layers_of(name, tensor);
        bool const of_depth = !layers.empty() &&
                              read_.model->axes()[*read_.model->layer_axis(tensor)].name == "depth";
        bool const predicts = of_depth || (!layers.empty() && layers.front() >= decoder_layers);
        if (!name.copy && !layers.empty() && predicts == of_prediction && has_(name.name))
          return true;
      }
    return false;
  }

  Index count(char const* word) const {
    Json const value = read_.model->value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  Checkpoint const& source_;
  PlanRequest const& request_;
  MapFile const* names_;
  std::function<bool(std::string_view)> const& has_;
  SourceModel& read_;
};

}  // namespace

void make_family_model(Checkpoint const& source, PlanRequest const& request, MapFile const* names,
                       std::function<bool(std::string_view)> const& has, SourceModel& read) {
  FamilyModel(source, request, names, has, read).make();
}

void carry_vocab_rows(Checkpoint const& source, PlanRequest const& request, SourceModel& read) {
  Json const vocab = read.model->value("vocab");
  if (!request.read.carries_rows || source.others.adapter || source.names != NameOwner::megatron ||
      to_huggingface(request) ||
      format_of(request.target.format).target().names != NameOwner::megatron ||
      read.facts.traits.padded_vocab == 0 || vocab.integer() == nullptr)
    return;
  check_vocab(source, request, read);
  if (read.facts.args.is_null()) read.facts.recorded_vocab = *vocab.integer();
  ModelFacts facts{read.facts.config, origin_of(source, read),
                   carried_vocab(source, request, read)};
  add_divisor(facts, read.facts.args);
  Json const depth = read.model->value("M");
  if (depth.integer() != nullptr) facts.prediction_layers = *depth.integer();
  read.model = std::make_unique<Model>(*read.names.maps.family, read.names.maps.core, facts);
}

}  // namespace reshard
