#include "stages/plan/source/peft_adapter.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/base/file.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text.hpp"
#include "core/formats/huggingface/config.hpp"
#include "core/formats/huggingface/folder.hpp"
#include "core/formats/huggingface/lora_config.hpp"
#include "core/quant/low_rank.hpp"

namespace reshard {
namespace {

constexpr std::string_view model_prefix = "base_model.model.";
constexpr std::string_view wrapped_suffix = ".base_layer";

/// One adapted module, or one of several parameters of a module.
struct Module {
  std::string name;
  StoredTensor const* a = nullptr;
  StoredTensor const* b = nullptr;
};

/// Modules by their keys, ".base_layer" included.
using Modules = std::map<std::string, Module>;

[[noreturn]] void fail_key(Checkpoint const& adapter, std::string const& key) {
  std::string meaning = "a tensor that is no factor of a module";
  if (key.find("lora_magnitude_vector") != std::string::npos) meaning = "a magnitude (DoRA)";
  if (key.find("lora_embedding_") != std::string::npos) meaning = "a factor of an embedding";
  if (key.find("modules_to_save") != std::string::npos) meaning = "a module trained as a whole";
  if (key.ends_with(".bias")) meaning = "a bias";
  if (key.ends_with(".base_layer.weight"))
    fail(
        ErrorKind::source,
        "{}: holds '{}', a copy of a weight of the base model, which may differ from the base's own. "
        "Save the adapter without it: save_pretrained(…, save_embedding_layers=False).",
        adapter.place, key);
  fail(
      ErrorKind::source,
      "{}: holds '{}', {}: this version merges products of linear layers only. Merge it with peft.",
      adapter.place, key, meaning);
}

/// "base_model.model.X.lora_A.weight", the name of an adapter ("default") in front of "weight" in
/// files of some trainers.
Modules modules_of(Checkpoint const& adapter) {
  Modules modules;
  for (StoredTensor const& tensor : adapter.stored.tensors) {
    bool found = false;
    for (bool const is_a : {true, false}) {
      std::string_view const word = is_a ? ".lora_A." : ".lora_B.";
      std::size_t const at = tensor.name.rfind(word);
      if (at == std::string::npos || !tensor.name.ends_with("weight")) continue;
      std::string key = tensor.name.substr(0, at);
      if (key.starts_with(model_prefix)) key.erase(0, model_prefix.size());
      Module& module = modules[key];
      module.name = key;
      while (module.name.ends_with(wrapped_suffix))
        module.name.resize(module.name.size() - wrapped_suffix.size());
      StoredTensor const*& factor = is_a ? module.a : module.b;
      if (factor != nullptr)
        fail(ErrorKind::source,
             "{}: '{}' and '{}' are the same factor of two adapters. Save one adapter alone.",
             adapter.place, factor->name, tensor.name);
      factor = &tensor;
      found = true;
    }
    if (!found) fail_key(adapter, tensor.name);
  }
  for (auto const& [key, module] : modules)
    if (module.a == nullptr || module.b == nullptr)
      fail(ErrorKind::source,
           "{}: '{}' has lora_{} and no lora_{}. The file is not complete: copy it again.",
           adapter.place, key, module.a != nullptr ? "A" : "B", module.a != nullptr ? "B" : "A");
  return modules;
}

huggingface::LoraConfig config_of(Checkpoint const& adapter) {
  auto const path = readable_member(adapter.folder, huggingface::adapter_config_name);
  return {huggingface::parse_config(read_text_file(path, huggingface::largest_config_bytes),
                                    path.string()),
          path.string()};
}

/// "mlp.experts.gate_up_proj" of the module "model.layers.0.mlp.experts": the parameter's name in
/// full; nothing when it is in another module.
std::optional<std::string> parameter_in(std::string const& module, std::string const& parameter) {
  std::size_t const dot = parameter.rfind('.');
  if (dot == std::string::npos) return module + "." + parameter;
  std::string const owner = parameter.substr(0, dot);
  if (module != owner && !module.ends_with("." + owner)) return std::nullopt;
  return module + parameter.substr(dot);
}

std::string shape_text(std::vector<Index> const& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// How the matrices of a weight lie in it: [matrices, rows, columns].
struct Matrices {
  Index count = 1;
  Index rows = 1;
  Index columns = 1;
  bool transposed = false;  ///< rows are inputs
};

class Reader {
 public:
  Reader(Checkpoint const& adapter, Model const& model, Side const& side, std::uint32_t first_file)
      : adapter_(adapter),
        model_(model),
        side_(side),
        first_file_(first_file),
        config_(config_of(adapter)),
        modules_(modules_of(adapter)),
        pairs_(model) {
    for (StoredName& name : side.names(nullptr)) {
      std::string key = name.name;
      names_.emplace(std::move(key), std::move(name));
    }
  }

  LowRankPairs run() {
    for (auto const& [key, module] : modules_) {
      auto const found = names_.find(module.name + ".weight");
      if (found != names_.end())
        add(module, module.name, found->second);
      else
        add_parameter(key, module);
    }
    return std::move(pairs_);
  }

 private:
  /// A module of which parameters are adapted as such: which one it is, shapes tell.
  void add_parameter(std::string const& key, Module const& module) {
    std::vector<std::string> candidates;
    for (std::string const& parameter : config_.parameters())
      if (auto const name = parameter_in(module.name, parameter);
          name && names_.contains(*name) && !taken_.contains(*name))
        candidates.push_back(*name);
    if (candidates.empty()) fail_unknown(module);
    std::vector<std::string> fitting;
    for (std::string const& name : candidates)
      if (!fits(module, names_.at(name)).empty()) fitting.push_back(name);
    if (fitting.empty())
      fail(ErrorKind::source,
           "{}: '{}' has A {} and B {}, which fit none of {}. Name the adapter of this "
           "model.",
           adapter_.place, key, shape_text(module.a->shape), shape_text(module.b->shape),
           listed(candidates));
    if (fitting.size() > 1)
      fail(ErrorKind::source,
           "{}: '{}' may be an adapter of {}, which have the same shape. Merge it with peft.",
           adapter_.place, key, listed(fitting));
    taken_.insert(fitting.front());
    add(module, fitting.front(), names_.at(fitting.front()));
  }

  [[noreturn]] void fail_unknown(Module const& module) const {
    std::vector<std::string> known;
    for (auto const& [name, stored] : names_) known.push_back(name);
    std::string const near = nearest(module.name + ".weight", known);
    fail(ErrorKind::source,
         "{}: '{}' adapts '{}', which the model does not have{}. Name the adapter of "
         "this base, or a map that describes this weight.",
         adapter_.place, module.a->name, module.name,
         near.empty() ? std::string() : fmt::format(" ('{}' is the nearest)", near));
  }

  /// The ways in which A and B fit a stored weight.
  std::vector<Matrices> fits(Module const& module, StoredName const& name) const {
    auto const& shape = side_.layout(name.entry, {}).layout.shape;
    if (module.a->shape.size() != 2 || module.b->shape.size() != 2) return {};
    if (shape.size() != 2 && shape.size() != 3) return {};
    Matrices one{shape.size() == 3 ? shape[0] : 1, shape[shape.size() - 2], shape.back(), false};
    if (module.a->shape[0] != module.b->shape[1] || module.a->shape[0] % one.count != 0) return {};
    std::vector<Matrices> result;
    for (bool const transposed : {false, true}) {
      if (shape.size() == 2 && transposed != config_.transposed()) continue;
      one.transposed = transposed;
      if (module.a->shape[1] == (transposed ? one.rows : one.columns) &&
          module.b->shape[0] == (transposed ? one.columns : one.rows))
        result.push_back(one);
    }
    return result;
  }

  /// Square matrices lie as the others of the adapter do.
  Matrices only(std::vector<Matrices> const& ways, Module const& module) const {
    if (ways.size() == 1) return ways.front();
    for (auto const& [key, other] : modules_)
      for (std::string const& parameter : config_.parameters()) {
        auto const name = parameter_in(other.name, parameter);
        if (!name || !names_.contains(*name)) continue;
        auto const of_other = fits(other, names_.at(*name));
        if (of_other.size() == 1)
          return of_other.front().transposed == ways.front().transposed ? ways.front()
                                                                        : ways.back();
      }
    fail(ErrorKind::source,
         "{}: '{}' is {}: it cannot be seen which of its dimensions is the input. Merge it with "
         "peft.",
         adapter_.place, module.name, shape_text({ways.front().rows, ways.front().columns}));
  }

  void add(Module const& module, std::string const& name, StoredName const& stored) {
    if (stored.copy)
      fail(ErrorKind::source,
           "{}: adapts '{}', which is tied to the embedding: merged, both would change. Merge it "
           "with peft, into a model whose output layer is its own.",
           adapter_.place, name);
    auto const ways = fits(module, stored);
    if (ways.empty())
      fail(ErrorKind::source,
           "{}: '{}' has A {} and B {}, and the weight is {}{}. Name the adapter of this "
           "model.",
           adapter_.place, module.name, shape_text(module.a->shape), shape_text(module.b->shape),
           shape_text(side_.layout(stored.entry, {}).layout.shape),
           config_.transposed() ? " (fan_in_fan_out: [in, out])" : "");
    Matrices const matrices = only(ways, module);
    Index const rank = module.a->shape[0] / matrices.count;
    std::string const key = name.ends_with(".weight") ? module.name : name;
    if (Index const meant = config_.rank(key); meant != rank)
      fail(ErrorKind::source,
           "{}: '{}' has rank {}, and {} says {}. The files are two adapters': copy both "
           "from one.",
           adapter_.place, module.name, rank, huggingface::adapter_config_name, meant);
    for (TensorId const tensor : std::set<TensorId>(side_.tensors(stored.entry).begin(),
                                                    side_.tensors(stored.entry).end())) {
      AdaptedTensor adapted{module.name, tensor, rank, config_.scale(key, rank), {}, {}};
      for (Piece const& piece : side_.layout(stored.entry, {}).layout.pieces)
        if (piece.tensor == tensor) add_pieces(module, stored, matrices, piece, adapted);
      if (!adapted.a.empty()) pairs_.add(adapted);
    }
  }

  /// What a step of `unit` elements of the weight is in A and in B, in elements; nothing where it
  /// is a step along the other factor's dimension. A is [rank, in], B is [out, rank]; of several
  /// matrices A is [matrix, rank, in] and B is [out, rank, matrix].
  struct FactorSteps {
    std::optional<Index> in_a;
    std::optional<Index> in_b;
  };
  static FactorSteps steps_of(Index unit, Matrices const& matrices, Index rank) {
    Index const matrix = matrices.rows * matrices.columns;
    Index const inputs = matrices.transposed ? matrices.rows : matrices.columns;
    if (unit >= matrix) return {unit / matrix * rank * inputs, unit / matrix};
    bool const along_rows = unit >= matrices.columns;
    Index const steps = along_rows ? unit / matrices.columns : unit;
    if (along_rows == matrices.transposed) return {steps, std::nullopt};
    return {std::nullopt, steps * rank * matrices.count};
  }

  /// The pieces of A and B that belong to a piece of the weight.
  void add_pieces(Module const& module, StoredName const& stored, Matrices const& matrices,
                  Piece const& piece, AdaptedTensor& adapted) const {
    Index const rank = adapted.rank;
    std::vector<Piece> name_digits(1);
    name_digits.front().tensor = piece.tensor;
    side_.add_name_digits(stored, {}, name_digits);
    FactorPiece a = factor(*module.a, piece.tensor, name_digits.front());
    FactorPiece b = factor(*module.b, piece.tensor, name_digits.front());
    for (PieceDigit digit : piece.digits) {
      FactorSteps const steps = steps_of(digit.stride, matrices, rank);
      if ((digit.stride = steps.in_a.value_or(0)); steps.in_a) a.piece.digits.push_back(digit);
      if ((digit.stride = steps.in_b.value_or(0)); steps.in_b) b.piece.digits.push_back(digit);
    }
    Index const matrix = matrices.rows * matrices.columns;
    Index const row = piece.offset % matrix / matrices.columns * matrices.columns;
    for (Index const part :
         {piece.offset / matrix * matrix, row, piece.offset % matrices.columns}) {
      if (part == 0) continue;
      FactorSteps const steps = steps_of(part, matrices, rank);
      a.piece.offset += steps.in_a.value_or(0);
      b.piece.offset += steps.in_b.value_or(0);
    }
    Index const inputs = matrices.transposed ? matrices.rows : matrices.columns;
    a.piece.digits.push_back({rank_axis, rank, 1, 0, rank, inputs});
    b.piece.digits.push_back({rank_axis, rank, 1, 0, rank, matrices.count});
    adapted.a.push_back(std::move(a));
    adapted.b.push_back(std::move(b));
  }

  FactorPiece factor(StoredTensor const& tensor, TensorId weight, Piece const& name_digits) const {
    if (!quant::mergeable(tensor.dtype))
      fail(ErrorKind::source,
           "{}: '{}' is {}, expected F32, BF16 or F16. Convert it to one of these.", adapter_.place,
           tensor.name, reshard::name(tensor.dtype));
    FactorPiece factor;
    factor.file = first_file_ + adapter_.stored.chunks[tensor.first_chunk].item.file;
    factor.offset_bytes = adapter_.stored.payload_offset_bytes[tensor.first_chunk];
    factor.dtype = tensor.dtype;
    factor.piece.tensor = weight;
    factor.piece.digits = name_digits.digits;
    return factor;
  }

  Checkpoint const& adapter_;
  Model const& model_;
  Side const& side_;
  std::uint32_t first_file_;
  huggingface::LoraConfig config_;
  Modules modules_;
  std::map<std::string, StoredName> names_;
  std::set<std::string> taken_;
  LowRankPairs pairs_;
};

}  // namespace

std::vector<std::string> peft_weights(Checkpoint const& adapter) {
  huggingface::LoraConfig const config = config_of(adapter);
  std::vector<std::string> names;
  for (auto const& [key, module] : modules_of(adapter)) {
    names.push_back(module.name + ".weight");
    for (std::string const& parameter : config.parameters())
      if (auto name = parameter_in(module.name, parameter)) names.push_back(*std::move(name));
  }
  return names;
}

LowRankPairs peft_pairs(Checkpoint const& adapter, Model const& model, MapFile const& family,
                        std::function<bool(std::string_view)> const& has,
                        std::uint32_t first_file) {
  std::vector<std::string> const weights = peft_weights(adapter);
  SideOptions options;
  // What lies in a module that the adapter adapts has the adapter's form.
  std::map<std::string, bool, std::less<>> known;
  options.has = [&](std::string_view name) {
    auto const found = known.find(name);
    if (found != known.end()) return found->second;
    std::string const module(name.substr(0, name.rfind('.')));
    bool const there = std::ranges::any_of(
        weights, [&](std::string const& weight) { return matches_glob(name, weight); });
    bool const inside = std::ranges::any_of(
        weights, [&](std::string const& weight) { return matches_glob(module + ".*", weight); });
    return known.emplace(name, there || (!inside && has(name))).first->second;
  };
  Side const side(model, family, std::move(options));
  return Reader(adapter, model, side, first_file).run();
}

}  // namespace reshard
