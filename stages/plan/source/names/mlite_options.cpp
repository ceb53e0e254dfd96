#include "stages/plan/source/names/mlite_options.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/ranges.h>

#include "core/base/divisors.hpp"
#include "core/base/tables/counted.hpp"
#include "stages/plan/source/names/mlite_words.hpp"

namespace reshard {
namespace {

using mlite::embeddings;
using mlite::layers;
using mlite::take;
using mlite::take_number;

constexpr std::string_view of_experts = ".experts.";
constexpr std::string_view first_projections = ".experts.fc1.weight";
/// Modules of layers that hold experts and their routers, by the program's models.
constexpr std::array<std::string_view, 2> expert_blocks = {".moe", ".mlp"};
constexpr std::array<std::string_view, 2> routers = {".moe.router.gate.weight",
                                                     ".mlp.gate.gate.weight"};
constexpr std::string_view share_prefix = "tp_";  ///< of options: a tensor-parallel rank's share
constexpr Index vocab_multiple = 128;

/// The numbers behind `part` in the names of layers' tensors.
struct Numbers {
  std::set<Index> layers;
  std::set<Index> experts;
};

Numbers numbers_of(StoredView::Table const& names) {
  Numbers found;
  for (auto const& [name, at] : names) {
    std::string_view rest = name;
    if (!take(rest, layers)) continue;
    std::optional<Index> const layer = take_number(rest);
    if (!layer) continue;
    found.layers.insert(*layer);
    std::size_t const begin = rest.find(first_projections);
    if (begin == std::string_view::npos) continue;
    rest.remove_prefix(begin + first_projections.size());
    if (std::optional<Index> const expert = take_number(rest); expert && rest.empty())
      found.experts.insert(*expert);
  }
  return found;
}

class Options {
 public:
  Options(MliteSource const& source, Model const& model)
      : source_(source), model_(model), found_(numbers_of(source.names)) {}

  std::map<std::string, Json> all(std::vector<std::string>& warnings) const {
    check_layers();
    std::map<std::string, Json> options;
    options["rank_experts"] = rank_experts();
    options["rank_inter"] = rank_inter(warnings);
    options["vocab_padding"] = vocab_padding(warnings);
    add_shares(options, warnings);
    return options;
  }

 private:
  Index size(char const* word) const {
    Json const value = model_.value(word);
    return value.integer() == nullptr ? 0 : *value.integer();
  }

  /// A rank's share of an axis that `key` of [source], the number of ranks, cuts.
  Index share_of_rank(char const* key, Index ranks, std::string const& axis) const {
    Index const whole = std::max<Index>(size(axis.c_str()), 1);
    if (whole % ranks != 0)
      fail(ErrorKind::usage,
           "[source] {} = {}: {} is {}, which {} does not divide. Give the {} that the run was "
           "trained with.",
           key, ranks, axis, whole, ranks, key);
    return whole / ranks;
  }

  /// "tp_inter": the rows of `inter` that a tensor-parallel rank has.
  void add_shares(std::map<std::string, Json>& options, std::vector<std::string>& warnings) const {
    bool asked = false;
    for (NamedExpression const& option : source_.map.options) {
      std::string_view axis = option.name;
      if (!take(axis, share_prefix)) continue;
      asked = true;
      options[option.name] = share_of_rank("tp", source_.tp, std::string(axis));
    }
    if (!asked && source_.tp != 1)
      fail(ErrorKind::usage,
           "[source] tp = {}: this has no effect with the names of {}. Remove the key.", source_.tp,
           source_.map.name);
    Index const cuts = asked ? dense_columns_cut() : source_.tp;
    warn_of_cuts("tp", source_.tp, cuts, "weights", "tensor parallelism", warnings);
  }

  /// Where the boxes cut columns into other parts than `key` of [source] says.
  static void warn_of_cuts(char const* key, Index ranks, Index cuts, char const* what,
                           char const* parallelism, std::vector<std::string>& warnings) {
    if (cuts % ranks == 0 && (ranks != 1 || cuts == 1)) return;
    warnings.push_back(fmt::format(
        "source.{} = {}, but {} are stored in {} column parts, which {} of another size may have "
        "left. The file does not record it: with a wrong source.{}, rows of gate and up are "
        "swapped",
        key, ranks, what, cuts, parallelism, key));
  }

  /// How many parts the boxes of any tensor that is no expert's cut its columns into.
  Index dense_columns_cut() const {
    Index most = 1;
    for (auto const& [name, at] : source_.names)
      if (name.find(of_experts) == std::string::npos &&
          source_.stored.tensors.shape(at).size() == 2)
        most = std::max(most, columns_cut(source_.stored.tensors[at]));
    return most;
  }

  void check_layers() const {
    auto const held = static_cast<Index>(found_.layers.size());
    if (held == size("L")) return;
    fail(ErrorKind::source,
         "{}: holds {}, and {} gives {}. Check source.config; a stage may be missing.",
         source_.place, counted(held, "layer"), model_.origin(), size("L"));
  }

  /// Experts under a name of their own in each layer: those of one rank.
  Index rank_experts() const {
    Index const all = size("expert");
    if (found_.experts.empty())
      return std::max<Index>(all, 1);  // what is missing is named with the rest
    check_routers();
    auto const held = static_cast<Index>(found_.experts.size());
    if (*found_.experts.rbegin() != held - 1)
      fail(ErrorKind::source,
           "{}: has names of {}, and the highest number is {}: experts are missing. "
           "The save was interrupted: choose another one.",
           source_.place, counted(held, "expert"), *found_.experts.rbegin());
    if (all == 0 || all % held != 0)
      fail(ErrorKind::source,
           "{}: each layer names {}, and {} gives {}, which {} does not divide. Check "
           "source.config.",
           source_.place, counted(held, "expert"), model_.origin(), all, held);
    check_ranks(all / held, held, all);
    return held;
  }

  /// Every rank has the router whole: it says how many experts there are.
  void check_routers() const {
    std::optional<StoredTensor> tensor;
    for (std::string_view const name : routers)
      if (!tensor) tensor = stored(name);
    if (!tensor || tensor->shape.size() != 2 || tensor->shape[0] == size("expert")) return;
    fail(ErrorKind::source,
         "{}: '{}' chooses among {}, and {} gives {}. Set source.config to this model's.",
         source_.place, tensor->name, counted(tensor->shape[0], "expert"), model_.origin(),
         size("expert"));
  }

  /// As many expert-parallel ranks must lie in the rows as names leave over.
  void check_ranks(Index by_names, Index held, Index all) const {
    std::optional<StoredTensor> const tensor = of_first_expert("fc1");
    Index const rows_of_rank =
        checked_mul(Index{2}, size("moe_inter"), ErrorKind::source, "moe_inter");
    if (!tensor || tensor->shape.size() != 2 || rows_of_rank == 0) return;
    Index const rows = tensor->shape[0];
    Index const expected = checked_mul(by_names, rows_of_rank, ErrorKind::source, tensor->name);
    if (rows > 0 && expected % rows == 0)
      return;  // all of it, or a shard: check_whole() has words for that
    fail(
        ErrorKind::source,
        "{}: '{}' has {} rows, which are {} expert-parallel ranks of 2 x {} rows; but {} under {} names are {}. Check source.config.",
        source_.place, tensor->name, rows,
        rows % rows_of_rank == 0 ? fmt::format("{}", rows / rows_of_rank) : "no whole number of",
        rows_of_rank / 2, counted(all, "expert"), held, counted(by_names, "rank"));
  }

  Index rank_inter(std::vector<std::string>& warnings) const {
    Index const share = share_of_rank("etp", source_.etp, "moe_inter");
    Index const cuts = columns_cut(of_first_expert("fc2"));
    warn_of_cuts("etp", source_.etp, cuts, "the experts' second projections",
                 "expert tensor parallelism", warnings);
    return share;
  }

  /// How many parts the boxes cut the second dimension into.
  Index columns_cut(std::optional<StoredTensor> const& tensor) const {
    if (!tensor || tensor->shape.size() != 2) return source_.etp;
    StoredTable const& metadata = source_.stored;
    std::set<Index> begins;
    for (std::size_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; ++c)
      begins.insert(metadata.offsets(metadata.chunks[c])[1]);
    return std::max<Index>(static_cast<Index>(begins.size()), 1);
  }

  /// Rows of embedding and head are rounded up to a multiple of 128, and of the tensor-parallel
  /// size.
  Index vocab_padding(std::vector<std::string>& warnings) const {
    Index const vocab = size("vocab");
    Index const least =
        checked_add(vocab, (vocab_multiple - vocab % vocab_multiple) % vocab_multiple,
                    ErrorKind::source, "vocab");
    std::optional<StoredTensor> tensor;
    for (std::string_view const name : embeddings)
      if (!tensor) tensor = named(std::string(name));
    Index const rows = !tensor || tensor->shape.empty() ? vocab : tensor->shape[0];
    if (rows < vocab) return least - vocab;
    if (rows > least)
      warnings.push_back(fmt::format(
          "'{}' has {} rows; the vocabulary of {} is {}, padded {}. The rows after it are left "
          "out",
          tensor->name, rows, model_.origin(), vocab, least));
    return rows - vocab;
  }

  std::optional<StoredTensor> of_first_expert(std::string_view projection) const {
    for (std::string_view const block : expert_blocks)
      if (auto tensor = stored(fmt::format("{}.experts.{}.weight0", block, projection)))
        return tensor;
    return std::nullopt;
  }

  std::optional<StoredTensor> named(std::string const& name) const {
    auto const found = source_.names.find(name);
    if (found == source_.names.end()) return std::nullopt;
    return source_.stored.tensors[found->second];
  }

  /// This tensor of the first layer that has it.
  std::optional<StoredTensor> stored(std::string_view name) const {
    for (Index const layer : found_.layers)
      if (auto tensor = named(fmt::format("{}{}{}", layers, layer, name))) return tensor;
    return std::nullopt;
  }

  MliteSource const& source_;
  Model const& model_;
  Numbers found_;
};

/// How many such shards make up the whole; 1 when `shape` is no even shard.
Index shards(std::vector<Index> const& shape, std::vector<Index> const& whole) {
  Index count = 1;
  for (std::size_t d = 0; d < whole.size() && shape.size() == whole.size(); ++d) {
    if (shape[d] <= 0 || whole[d] % shape[d] != 0) return 1;
    count *= whole[d] / shape[d];
  }
  return count;
}

/// A stored tensor, and the shape that it should have.
struct Found {
  std::string name;
  StoredTensor tensor;
  std::vector<Index> whole;
};

std::vector<Found> found_in(MliteSource const& source, Side const& side) {
  std::vector<Found> result;
  for (StoredName const& name : side.names(nullptr))
    if (auto const found = source.names.find(name.name); found != source.names.end())
      result.push_back({name.name, source.stored.tensors[found->second], side.shape(name)});
  return result;
}

/// Whether tensor or expert parallelism cuts a tensor. The head of the hyper-connections has a
/// name like that of the output layer, and every rank has it whole.
bool is_cut(std::string_view name) {
  if (name.find("hc_head.") != std::string_view::npos) return false;
  bool const linear = name.ends_with(".linear.weight");  // of the parallel layers
  for (std::string_view const part :
       {of_experts, std::string_view("embedding."), std::string_view(".conv1d."),
        std::string_view(".dt_bias"), std::string_view(".A_log")})
    if (name.find(part) != std::string_view::npos) return true;
  return linear;
}

}  // namespace

std::map<std::string, Json> mlite_target_options(MapFile const& map, Model const& model,
                                                 Mesh const& mesh) {
  auto const share = [&](std::string_view axis, char const* key) {
    Json const value = model.value(axis);
    Index const size = value.integer() == nullptr ? 1 : std::max<Index>(*value.integer(), 1);
    if (size % mesh.size(key) != 0)
      fail(
          ErrorKind::usage,
          "[target] layout.{} = {}: {} is {}, which {} does not divide. Sizes that fit: {}. Choose "
          "one of them.",
          key, mesh.size(key), axis, size, mesh.size(key), listed_divisors(size));
    return Json(size / mesh.size(key));
  };
  std::map<std::string, Json> options{{"rank_experts", share("expert", "ep")},
                                      {"rank_inter", share("moe_inter", "etp")}};
  for (NamedExpression const& option : map.options)
    if (std::string_view axis = option.name; take(axis, share_prefix))
      options[option.name] = share(axis, "tp");
  Json const vocab = model.value("vocab");
  Index const rows = vocab.integer() == nullptr ? 0 : *vocab.integer();
  Index const unit = std::lcm(vocab_multiple, mesh.size("tp"));
  options["vocab_padding"] = Json((unit - rows % unit) % unit);
  return options;
}

bool has_mlite_names(MapFile const& map) {
  return std::any_of(map.options.begin(), map.options.end(),
                     [](NamedExpression const& option) { return option.name == "rank_experts"; });
}

std::map<std::string, Json> mlite_options(MliteSource const& source, Model const& model,
                                          std::vector<std::string>& warnings) {
  return Options(source, model).all(warnings);
}

void check_whole(MliteSource const& source, Side const& side) {
  std::vector<Found> const tensors = found_in(source, side);
  for (Found const& found : tensors)  // a wrong config.json shows in what every rank has whole
    if (!is_cut(found.name) && found.tensor.shape != found.whole) return;
  for (Found const& found : tensors) {
    Index const count = is_cut(found.name) ? shards(found.tensor.shape, found.whole) : 1;
    if (count == 1) continue;
    fail(
        ErrorKind::source,
        "{}: '{}' is [{}], and a model of these sizes needs [{}]: the file holds 1/{} of {}. Releases of Megatron Lite saved every rank's shard of "
        "an "
        "FSDP2 parameter under one key, so one is left and the others are lost. That cannot be repaired: save again with a release that does not, or "
        "export Hugging Face weights from the running job.",
        source.place, found.tensor.name, fmt::join(found.tensor.shape, ", "),
        fmt::join(found.whole, ", "), count,
        found.name.find(of_experts) != std::string::npos ? "the experts" : "this tensor");
  }
}

}  // namespace reshard
