#include "core/formats/megatron/headers/grid.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"

namespace reshard::megatron {
namespace {

/// More shards than any machine has: larger sizes are damage, and a list of missing shards would
/// not fit in memory.
constexpr std::int64_t most_shards = 1'000'000;

using Key = std::tuple<int, int, int>;

Key key_of(ShardPlace const& place) { return {place.tp, place.pp, place.ep}; }

/// Whether the grid of these sizes can be listed; a size of millions is a sign of damaged args.
bool listable(MeshSizes const& sizes) {
  std::int64_t product = sizes.pp;
  for (std::int64_t const factor : {sizes.tp, sizes.ep, sizes.etp}) {
    if (product > most_shards) return false;
    product *= factor;
  }
  return product <= most_shards;
}

class Grid {
 public:
  Grid(Classification& result, std::vector<ShardFacts> const& shards, NameStyle style)
      : result_(result), sizes_(result.sizes), style_(style) {
    for (std::size_t i = 0; i < shards.size(); ++i) {
      auto const& place = result.places[i];
      if (!shards[i].has_model_file) result.without_file.push_back(shards[i].name);
      if (place == no_place) continue;
      if (auto const [at, fresh] = named_.emplace(key_of(place), shards[i].name); !fresh)
        add(fmt::format(
            "{} and {} have the same numbers. Remove the one that does not belong here.",
            at->second, shards[i].name));
      if (shards[i].has_model_file) present_.insert(key_of(place));
    }
    if (!result.without_file.empty())
      add(fmt::format(
          "model_optim_rng.pt is missing in {}. The save was interrupted, or files were lost: "
          "restore them.",
          listed(result.without_file, 6)));
  }

  /// Directories outside the sizes are a contradiction; inside them, but for no rank, they are
  /// copies that need not be read.
  void find_extra(std::set<Key> const& wanted) {
    std::vector<std::string> outside;
    for (auto const& [key, name] : named_) {
      if (wanted.contains(key)) continue;
      result_.extra.push_back(name);
      auto const [tp, pp, ep] = key;
      if (tp >= sizes_.tp || pp >= sizes_.pp || ep >= sizes_.ep) outside.push_back(name);
    }
    if (!outside.empty())
      add_against_sizes(fmt::format(
          "{} are outside the sizes {}. Remove directories of another save, or correct the "
          "sizes.",
          listed(outside, 6), sizes_text()));
    else if (!result_.extra.empty())
      result_.notes.push_back(fmt::format("{} belong to no rank of this grid and are not needed",
                                          listed(result_.extra, 6)));
  }

  void find_missing(std::set<Key> const& wanted) {
    for (auto const& key : wanted)
      if (!named_.contains(key)) result_.missing.push_back(name_of(key));
  }

  void check_dense() {
    std::vector<std::string> lost;
    std::set<int> lost_ranks;
    std::set<std::pair<int, int>> slices;
    for (auto const& [tp, pp, ep] : present_) slices.emplace(tp, pp);
    for (int pp = 0; pp < sizes_.pp; ++pp)
      for (int tp = 0; tp < sizes_.tp; ++tp) {
        if (slices.contains({tp, pp})) continue;
        lost.push_back(fmt::format("tp {} of pp {}", tp, pp));
        lost_ranks.insert(tp);
      }
    if (lost.empty()) return;
    add_against_sizes(fmt::format(
        "no file holds {}{}. The sizes are {}.{} Restore the missing directories, or correct "
        "the sizes.",
        listed(lost, 6), absent(), sizes_text(), cause(lost_ranks)));
  }

  void check_experts() {
    std::vector<std::string> lost;
    std::set<Key> slices;  // (etp, pp, ep)
    for (auto const& [tp, pp, ep] : present_) slices.emplace(tp % sizes_.etp, pp, ep);
    for (int pp = 0; pp < sizes_.pp; ++pp)
      for (int ep = 0; ep < sizes_.ep; ++ep)
        for (int etp = 0; etp < sizes_.etp; ++etp)
          if (!slices.contains(Key(etp, pp, ep)))
            lost.push_back(fmt::format("ep {} (etp {}) of pp {}", ep, etp, pp));
    if (lost.empty()) return;
    add_against_sizes(fmt::format(
        "no file holds the experts of {}{}. The sizes are {}. Restore the missing directories, "
        "or correct the sizes.",
        listed(lost, 6), absent(), sizes_text()));
  }

  /// Megatron up to 0.17 and from 0.18 writes fewer files than its loader asks for; as long as
  /// every slice is somewhere, all is well.
  void note_harmless_gaps(std::size_t mismatches_before, std::size_t wanted) {
    if (result_.missing.empty() || result_.mismatches.size() != mismatches_before) return;
    result_.notes.push_back(fmt::format(
        "{} of the {} directories that Megatron's loader looks for are missing ({}), but every "
        "slice is in another one",
        result_.missing.size(), wanted, listed(result_.missing, 6)));
  }

 private:
  void add(std::string sentence) { result_.mismatches.push_back({std::move(sentence), false}); }
  /// Adds a mismatch between the sizes and the files: the user's mistake if the user stated the
  /// sizes.
  void add_against_sizes(std::string sentence) {
    auto const& s = result_.sources;
    bool const user = s.tp == SizeSource::user || s.pp == SizeSource::user ||
                      s.ep == SizeSource::user || s.etp == SizeSource::user;
    result_.mismatches.push_back({std::move(sentence), user});
  }
  std::string name_of(Key const& key) const {
    return format_shard_name(
        {.tp = std::get<0>(key), .pp = std::get<1>(key), .ep = std::get<2>(key)}, sizes_, style_);
  }
  std::string sizes_text() const {
    auto const& from = result_.sources;
    return fmt::format("tensor {} (from {}), pipeline {} ({}), expert {} ({})", sizes_.tp,
                       text(from.tp), sizes_.pp, text(from.pp), sizes_.ep, text(from.ep));
  }
  std::string absent() const {
    return result_.missing.empty() ? std::string()
                                   : fmt::format(" (missing: {})", listed(result_.missing, 6));
  }

  /// Core 0.10 to 0.17: only the first expert-data-parallel rank wrote, so tensor ranks from etp *
  /// ep on never did.
  std::string cause(std::set<int> const& lost_ranks) const {
    int const written = sizes_.etp * sizes_.ep;
    if (written >= sizes_.tp ||
        lost_ranks.size() != static_cast<std::size_t>(sizes_.tp - written) ||
        *lost_ranks.begin() != written)
      return {};
    return fmt::format(
        " Megatron Core 0.10 to 0.17 never wrote tensor ranks from etp x ep = {} on (its issue 4200): if one of these saved it, "
        "the weights are lost.",
        written);
  }

  Classification& result_;
  MeshSizes const sizes_;
  NameStyle const style_;
  std::map<Key, std::string> named_;
  std::set<Key> present_;
};

/// Tensor slices of experts are numbered tp mod etp only when etp divides tp.
bool expert_slices_expressible(Classification& result) {
  auto const& sizes = result.sizes;
  if (sizes.tp % sizes.etp == 0) return true;
  bool const user = result.sources.etp == SizeSource::user || result.sources.tp == SizeSource::user;
  if (sizes.etp > sizes.tp)
    result.mismatches.push_back(
        {fmt::format(
             "expert tensor size {} is above tensor size {}: {} wrote each file and the "
             "last one overwrote the others, so only one slice of the experts is left. Save "
             "the checkpoint as torch_dist.",
             sizes.etp, sizes.tp,
             counted(sizes.etp / sizes.tp + (sizes.etp % sizes.tp != 0 ? 1 : 0), "rank")),
         user});
  else
    result.mismatches.push_back(
        {fmt::format(
             "expert tensor size {} does not divide tensor size {}: the name of a file does "
             "not show which slice of the experts it holds. Save the checkpoint as torch_dist.",
             sizes.etp, sizes.tp),
         user});
  return false;
}

}  // namespace

void check_grid(Classification& result, std::vector<ShardFacts> const& shards, NameStyle style,
                bool experts) {
  auto const before = result.mismatches.size();
  Grid grid(result, shards, style);
  if (experts && !expert_slices_expressible(result)) return;
  if (!listable(result.sizes)) {
    result.mismatches.push_back(
        {fmt::format("sizes tensor {}, pipeline {}, expert {} need more than {} directories. Check "
                     "args or the sizes given.",
                     result.sizes.tp, result.sizes.pp, result.sizes.ep, most_shards),
         false});
    return;
  }
  std::set<Key> wanted;
  for (ShardPlace const& place : shard_places(result.sizes)) wanted.insert(key_of(place));
  grid.find_extra(wanted);
  grid.find_missing(wanted);
  grid.check_dense();
  if (experts) grid.check_experts();
  grid.note_harmless_gaps(before, wanted.size());
}

}  // namespace reshard::megatron
