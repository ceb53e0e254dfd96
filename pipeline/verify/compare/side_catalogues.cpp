#include "pipeline/verify/compare/side_catalogues.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/base/files/sight.hpp"
#include "core/formats/megatron/mcore/hybrid_pattern.hpp"
#include "core/formats/model_files.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "core/mapping/quant.hpp"
#include "core/plan/equal/state_checks.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/job/option_words.hpp"
#include "pipeline/job/plan_request.hpp"
#include "stages/plan/catalogue.hpp"
#include "stages/plan/config/expected_names.hpp"
#include "stages/plan/source/facts/model_class.hpp"
#include "stages/plan/source/facts/stated_args.hpp"
#include "stages/plan/source/state/master_weights.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Nothing in it says what model it holds.
bool is_plain(Checkpoint const& checkpoint) {
  return checkpoint.storage == Storage::chunks && checkpoint.names == NameOwner::family;
}
bool is_megatron(Checkpoint const& checkpoint) { return checkpoint.names == NameOwner::megatron; }

StoredView view_of(ComparedSide const& side) {
  return side.checkpoint.format->view(side.checkpoint, side.terms.prefix);
}

/// Whether stored names are compared, whatever they mean.
bool names_alone(ReadingTerms const& a, ReadingTerms const& b) {
  return a.map == "none" && b.map == "none";
}

/// A Hugging Face folder without its config.json.
bool is_bare(Checkpoint const& checkpoint) {
  return checkpoint.names == NameOwner::family && checkpoint.model.config.is_null();
}

/// The folder of a checkpoint that has a config.json; "" for others.
fs::path config_beside(ComparedSide const& side) {
  Checkpoint const& checkpoint = side.checkpoint;
  if (is_plain(checkpoint)) {
    auto const files = files_of(checkpoint);
    return files && checkpoint.model.config.is_null() ? files->path : fs::path();
  }
  if (is_megatron(checkpoint)) return {};  // its args say more
  return sees_file(checkpoint.folder / huggingface::config_name) ? checkpoint.folder : fs::path();
}

/// The same, or where a Megatron checkpoint carries one.
fs::path any_config_of(ComparedSide const& side) {
  if (!is_megatron(side.checkpoint)) return config_beside(side);
  auto const files = files_of(side.checkpoint);
  return files && !files->config.is_null() ? files->path : fs::path();
}

Index vocab_of(JobPlan const& catalogue) {
  int const axis = catalogue.model->axes().find("vocab");
  return axis < 0 ? 0 : catalogue.model->axes()[static_cast<AxisId>(axis)].size;
}

/// F32 weights of the plain optimizer are their own masters.
bool has_state_without_masters(StoredView const& view) {
  return !view.states.empty() && std::ranges::none_of(view.states, is_master_slot);
}

/// Whether weights are in parts, such as codes and scales.
bool is_quantised(JobPlan const& catalogue) {
  Model const& model = *catalogue.model;
  for (QuantScheme const& scheme : model.schemes()) {
    if (scheme.beside) continue;
    for (QuantPart const& part : scheme.parts) {
      std::string const ending = part_tensor("", scheme, part);
      for (std::size_t t = 0; t < model.tensors().size(); ++t)
        if (model.exists(TensorId(t)) && model.tensors()[t].name.ends_with(ending)) return true;
    }
  }
  return false;
}

class SidesOpener {
 public:
  SidesOpener(CompareRequest const& request, std::vector<ReadingChoice> const& choices,
              ComparedSides& sides)
      : request_(request), choices_(choices), sides_(sides) {}

  void run() {
    bool const merges = !request_.adapter.empty();
    bool const by_names = names_alone(request_.terms_a, request_.terms_b) && !merges;
    bool const free = request_.terms_a.map == "auto" && request_.terms_b.map == "auto" && !merges;
    if (by_names || (free && names_can_do()))
      for (ReadingChoice const& choice : choices_) {
        take(choice);
        if (!same_names(choice) || (request_.by_maps && !by_names)) continue;
        note_casts();
        return note(choice);
      }
    if (by_names) {
      take(choices_.front());
      return open_by_names();
    }
    sides_.by_names = false;
    std::vector<ReadingChoice> by_turns = choices_;
    std::ranges::stable_sort(by_turns, {}, &ReadingChoice::turn);
    std::optional<Error> failed;
    for (ReadingChoice const& choice : by_turns) {
      take(choice);
      auto const why = capture([&] { open_by_maps(); });
      if (!why) return note(choice);
      if (!failed) failed = why;
    }
    if (!free || sharing_ == nullptr) throw *failed;
    take(*sharing_);
    sides_.notes.push_back("compared by stored names, because no map describes both: " +
                           failed->sentence());
    open_by_names();
  }

 private:
  void take(ReadingChoice const& choice) {
    sides_.a.terms = choice.a;
    sides_.b.terms = choice.b;
  }

  void note(ReadingChoice const& choice) {
    sides_.notes.insert(sides_.notes.begin(), choice.notes.begin(), choice.notes.end());
  }

  /// Of stored names whose dtypes differ, those that the map of a config states.
  void note_casts() {
    JobPlan& a = sides_.a.catalogue;
    JobPlan const& b = sides_.b.catalogue;
    auto const dtype_of = [](JobPlan const& side, TensorId tensor) {
      auto const blobs = side.source.tensors[index(tensor)].blobs();
      return blobs.empty() ? std::nullopt : std::optional(side.source.blobs[blobs.front()].dtype);
    };
    std::set<std::string, std::less<>> names;
    for (std::size_t t = 0; t < a.model->tensors().size(); ++t) {
      auto const other = b.model->find_tensor(a.model->tensors()[t].name);
      if (other && dtype_of(a, TensorId(t)) != dtype_of(b, *other))
        names.insert(a.model->tensors()[t].name);
    }
    if (names.empty()) return;
    std::set<std::string, std::less<>> all;
    for (LogicalTensor const& tensor : a.model->tensors()) all.insert(tensor.name);
    Json const& config = a.configs.named.is_null() ? b.configs.named : a.configs.named;
    a.listing.casts.resize(a.model->tensors().size());
    for (auto const& [name, dtype] : cast_names(config, all, request_.library))
      if (names.contains(name)) a.listing.casts[index(*a.model->find_tensor(name))] = dtype;
  }

  /// Logical tensors have axes, which a comparison by names does not look at; beside them those of
  /// a checkpoint that kept their names have none.
  bool names_can_do() const {
    Checkpoint const& a = sides_.a.checkpoint;
    Checkpoint const& b = sides_.b.checkpoint;
    bool const shares = a.storage == Storage::shares || b.storage == Storage::shares;
    if (shares || (a.names == NameOwner::logical && b.names == NameOwner::logical)) return false;
    if (has_padding(sides_.a) || has_padding(sides_.b)) return false;
    if (sides_.a.changes.any() || sides_.b.changes.any()) return false;
    return !has_rows_by_rank(a) || !has_rows_by_rank(b) || saved_tp(a) == saved_tp(b);
  }

  /// Rows behind the vocabulary that the record of a side states: no model uses them.
  static bool has_padding(ComparedSide const& side) {
    if (side.recorded_rows == 0 || !is_megatron(side.checkpoint)) return false;
    return std::ranges::any_of(side.checkpoint.stored.tensors, [&](StoredTensor const& tensor) {
      return tensor.name.ends_with("embedding.word_embeddings.weight") && !tensor.shape.empty() &&
             tensor.shape.front() > side.recorded_rows;
    });
  }

  /// Rows of adapters and of quantisers lie by the tensor parallelism of the save.
  static bool has_rows_by_rank(Checkpoint const& checkpoint) {
    if (checkpoint.names != NameOwner::megatron) return false;
    return std::ranges::any_of(checkpoint.stored.tensors, [](StoredTensor const& tensor) {
      std::string_view const name = tensor.name.text();
      return std::ranges::any_of(
          std::array<std::string_view, 3>{".adapter.", ".lora_", "_quantizer."},
          [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
    });
  }

  Json saved_tp(Checkpoint const& checkpoint) const {
    return fact(stated_args(checkpoint, request_.library), "tensor_model_parallel_size");
  }

  void open_by_names() {
    for (ComparedSide* side : {&sides_.a, &sides_.b}) {
      if (side->checkpoint.storage == Storage::shares)
        fail(
            ErrorKind::usage,
            "{}: the files of a Megatron checkpoint hold parts that only a map can put together. Leave out --map none.",
            side->path.string());
      PlanRequest by_name;
      by_name.read.map = "none";
      by_name.read.prefix = side->terms.prefix;
      side->request = by_name;
      side->catalogue = catalogue(side->checkpoint, by_name);
    }
    sides_.by_names = true;
  }

  /// Opens both by their names, and says whether these and all shapes agree.
  bool same_names(ReadingChoice const& choice) {
    open_by_names();
    auto const shapes = [](JobPlan const& job) {
      std::map<std::string, std::vector<std::string>> result;
      for (LogicalTensor const& tensor : job.model->tensors()) {
        std::vector<std::string>& shape = result[tensor.name];
        for (LogicalAxis const& axis : tensor.axes)
          shape.push_back(job.model->axes()[axis.axis].name);
      }
      return result;
    };
    auto const a = shapes(sides_.a.catalogue);
    auto const b = shapes(sides_.b.catalogue);
    sides_.by_names = a == b;
    if (sharing_ == nullptr &&
        std::ranges::any_of(a, [&b](auto const& tensor) { return b.contains(tensor.first); }))
      sharing_ = &choice;
    return sides_.by_names;
  }

  void open_by_maps() {
    ComparedSide* const rounded = settle_masters();
    settle_classes();
    open_by_map(sides_.a);
    open_by_map(sides_.b);
    if (masters_ == Masters::apart) {
      bool const of_a = holds_masters_alone(sides_.a.checkpoint, view_of(sides_.a));
      if (!has_rounded_weights(of_a ? sides_.b : sides_.a)) {
        masters_ = Masters::both;
        open_by_map(of_a ? sides_.a : sides_.b);
      }
    }
    bool const by_value = request_.comparison == Comparison::values;
    if (rounded != nullptr && !by_value &&
        has_rounded_weights(rounded == &sides_.a ? sides_.b : sides_.a)) {
      masters_ = Masters::apart;
      open_by_map(*rounded);
      sides_.notes.push_back(fmt::format(
          "weights of {} are F32 master weights: they are compared rounded, as its run computes with "
          "them",
          rounded->path.string()));
    }
    match_vocabularies();
    if (request_.adapter.empty() && !request_.by_maps) match_quantised();
  }

  /// The side that has masters alone where the other one has no state: the weights of that one may
  /// be the masters, which a job without the state wrote, or these rounded. Else null.
  ComparedSide* settle_masters() {
    StoredView const a = view_of(sides_.a);
    StoredView const b = view_of(sides_.b);
    bool const alone_a = holds_masters_alone(sides_.a.checkpoint, a);
    bool const differ = alone_a != holds_masters_alone(sides_.b.checkpoint, b);
    StoredView const& other = alone_a ? b : a;
    bool const open = differ && other.states.empty();
    bool const apart = differ && !open && !has_state_without_masters(other);
    masters_ = apart ? Masters::apart : Masters::as_stored;
    if (!open) return nullptr;
    return alone_a ? &sides_.a : &sides_.b;
  }

  /// A hybrid model of pairs is read as a GPTModel where the other side is or can be read as one:
  /// its layers have other numbers, and a family that describes one side reads it so.
  void settle_classes() {
    Json const a = stated_args(sides_.a.checkpoint, request_.library);
    Json const b = stated_args(sides_.b.checkpoint, request_.library);
    auto const has_pairs = [](Json const& args) { return !gpt_args(args).is_null(); };
    auto const meets_gpt = [&](ComparedSide const& side, Json const& of_other) {
      // The other is of a family, which files of Megatron are then read by anyway.
      if (of_other.is_null()) return side.checkpoint.names == NameOwner::logical;
      return !megatron::hybrid_pattern(of_other) || has_pairs(of_other);
    };
    as_gpt_ = {has_pairs(a) && meets_gpt(sides_.a, b), has_pairs(b) && meets_gpt(sides_.b, a)};
  }

  /// Whether a weight is in a dtype that masters are rounded to.
  static bool has_rounded_weights(ComparedSide const& side) {
    Catalog const& source = side.catalogue.source;
    return std::ranges::any_of(source.tensors, [&](TensorPieces const& tensor) {
      if (tensor.empty()) return false;
      DType const dtype = source.blobs[tensor.blob(0)].dtype;
      return dtype == DType::bf16 || dtype == DType::f16;
    });
  }

  void open_by_map(ComparedSide& side) const {
    bool const of_a = &side == &sides_.a;
    ComparedSide const& other = of_a ? sides_.b : sides_.a;
    with_option_words(of_a ? "--config-a" : "--config-b",
                      [&] { open_by_map(side, side.terms.config, other, other.terms.config); });
  }

  void open_by_map(ComparedSide& side, fs::path const& own_config, ComparedSide const& other,
                   fs::path const& other_config) const {
    fs::path config = own_config;
    if (config.empty() && is_plain(side.checkpoint)) config = config_beside(side);
    bool const bare = is_bare(side.checkpoint);
    // That of the other side describes the model after the changes.
    if (config.empty() && !side.changes.any() &&
        (bare || is_plain(side.checkpoint) || is_megatron(side.checkpoint)))
      config = !other_config.empty()          ? other_config
               : is_megatron(side.checkpoint) ? config_beside(other)
                                              : any_config_of(other);
    if (is_plain(side.checkpoint) && config.empty())
      fail(ErrorKind::usage,
           "{}: does not state which model it holds, and neither does the other checkpoint. Give "
           "its config.json with --config-{}.",
           side.path.string(), &side == &sides_.a ? "a" : "b");
    PlanRequest& request = side.request;
    request = by_map(side, config);
    if (!is_megatron(side.checkpoint) || config.empty()) {
      side.catalogue = catalogue(side.checkpoint, request, masters_);
      return;
    }
    request.read.axes_by_config = true;  // as on the other side
    auto const failed =
        capture([&] { side.catalogue = catalogue(side.checkpoint, request, masters_); });
    if (!failed) return;
    // A config of another model: what the checkpoint's own args say shows the difference tensor by
    // tensor.
    request = by_map(side, {});
    if (!own_config.empty() ||
        capture([&] { side.catalogue = catalogue(side.checkpoint, request, masters_); }))
      throw *failed;
  }

  PlanRequest by_map(ComparedSide const& side, fs::path const& config) const {
    PlanRequest request = request_without_target(side.terms.map, config, request_.library);
    request.read.prefix = side.terms.prefix;
    request.read.frozen = side.terms.frozen;
    if (&side == &sides_.a ? as_gpt_.first : as_gpt_.second)
      request.options.named.model = megatron::TargetModel::gpt;
    request.read.tp = side.terms.tp;
    request.read.etp = side.terms.etp;
    request.changes = side.changes;
    if (side.changes.vocab_size > 0) request.read.true_rows = true;
    return request;
  }

  /// Args that do not count the vocabulary leave padded rows in it.
  void match_vocabularies() {
    if (Index const rows = std::max(sides_.a.terms.vocab, sides_.b.terms.vocab); rows > 0) {
      for (ComparedSide* side : {&sides_.a, &sides_.b}) (void)shorten(*side, side->request, rows);
      return;
    }
    bool const recorded = sides_.a.recorded_rows > 0 || sides_.b.recorded_rows > 0;
    bool const alike = vocab_of(sides_.a.catalogue) == vocab_of(sides_.b.catalogue);
    if (alike && !recorded) return;
    for (ComparedSide* side : {&sides_.a, &sides_.b})
      if (side->recorded_rows > 0) (void)shorten(*side, side->request, side->recorded_rows);
    Index const a = vocab_of(sides_.a.catalogue);
    Index const b = vocab_of(sides_.b.catalogue);
    if (a == b || a == 0 || b == 0) return;
    ComparedSide& larger = a > b ? sides_.a : sides_.b;
    if (!is_megatron(larger.checkpoint)) return;
    Index const rows = std::min(a, b);
    if (!shorten(larger, by_map(larger, {}), rows) || alike) return;
    sides_.notes.push_back(fmt::format(
        "{} does not state how many of its {} embedding rows are vocabulary: the first {} are "
        "compared",
        larger.path.string(), std::max(a, b), rows));
  }

  /// A quantised side has the values that its codes stand for where the other one has values.
  void match_quantised() {
    bool const of_a = is_quantised(sides_.a.catalogue);
    if (of_a == is_quantised(sides_.b.catalogue)) return;
    ComparedSide& side = of_a ? sides_.a : sides_.b;
    ComparedSide const& other = of_a ? sides_.b : sides_.a;
    PlanRequest request = side.request;
    request.read.dequantise = true;
    JobPlan values;
    auto const failed = capture([&] { values = catalogue(side.checkpoint, request, masters_); });
    sides_.notes.push_back(fmt::format(
        "{} is quantised and {} is not: {}", side.path.string(), other.path.string(),
        failed
            ? "stored codes are compared, because values cannot be computed. " + failed->sentence()
            : "its values are compared as a job with model.quant = \"dequantise-bf16\" computes "
              "them"));
    if (failed) return;
    side.catalogue = std::move(values);
    side.request = std::move(request);
  }

  /// Counts these rows as the vocabulary of a side; false, and nothing is changed, where they
  /// cannot be.
  bool shorten(ComparedSide& side, PlanRequest request, Index rows) const {
    request.read.true_vocab_size = rows;
    JobPlan shorter;
    if (capture([&] { shorter = catalogue(side.checkpoint, request, masters_); })) return false;
    side.catalogue = std::move(shorter);
    side.request = std::move(request);
    return true;
  }

  CompareRequest const& request_;
  std::vector<ReadingChoice> const& choices_;  ///< what was given first
  ComparedSides& sides_;
  ReadingChoice const* sharing_ = nullptr;  ///< the first with which some names are the same
  Masters masters_ = Masters::as_stored;    ///< apart where one side alone has no others
  std::pair<bool, bool> as_gpt_;            ///< whether a and b are read as GPTModel
};

}  // namespace

void open_catalogues(CompareRequest const& request, std::vector<ReadingChoice> const& choices,
                     ComparedSides& sides) {
  SidesOpener(request, choices, sides).run();
}

}  // namespace reshard
